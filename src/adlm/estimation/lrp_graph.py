"""A network as a graph for relevance propagation: the supported layers and the rule of each."""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from adlm.errors import UserError


class Passage(Enum):
    """How relevance passes a node."""

    AFFINE = "shared out by Eq. 5"
    THROUGH = "unchanged: the node acts on each neuron alone"
    REARRANGED = "unchanged, in another order or shape"
    SUM = "shared between the summands by Eq. 5"
    CONCATENATED = "each part gets its own"
    NONE = "carries no relevance"


AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d)
BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d)
_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
)
_THROUGH = (
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Hardtanh),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.Identity),
    *(nn.LocalResponseNorm, nn.LayerNorm),  # the identity rule of Achtibat et al. 2024
)

_LAYERS: tuple[tuple[tuple[type[nn.Module], ...], Passage], ...] = (
    (_THROUGH, Passage.THROUGH),
    (AFFINE + BATCH_NORM + _POOLS, Passage.AFFINE),
    ((nn.Flatten, nn.Unflatten, nn.ZeroPad1d, nn.ZeroPad2d), Passage.REARRANGED),
)
_THROUGH_CALLS = (
    *(F.relu, torch.relu, F.leaky_relu, F.elu, F.gelu, F.silu, F.sigmoid, torch.sigmoid, F.tanh, torch.tanh),
    *(F.dropout, F.dropout1d, F.dropout2d, F.local_response_norm, F.softplus, F.hardtanh),
)
_POOL_CALLS = (
    *(F.avg_pool1d, F.avg_pool2d, F.max_pool1d, F.max_pool2d, torch.max_pool1d, torch.max_pool2d),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_max_pool1d, F.adaptive_max_pool2d, torch.mean),
)
_RESHAPES = (torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze, torch.permute, torch.transpose)
_CALLS: tuple[tuple[tuple[Any, ...], Passage], ...] = (
    (_THROUGH_CALLS, Passage.THROUGH),
    (_POOL_CALLS, Passage.AFFINE),
    (_RESHAPES, Passage.REARRANGED),
    ((operator.add, operator.iadd, torch.add), Passage.SUM),
    ((torch.cat, torch.concat), Passage.CONCATENATED),
    ((getattr, operator.getitem), Passage.NONE),
)
_METHODS: tuple[tuple[tuple[str, ...], Passage], ...] = (
    (("relu", "relu_", "sigmoid", "tanh", "contiguous", "float"), Passage.THROUGH),
    (("mean",), Passage.AFFINE),
    (("flatten", "view", "reshape", "squeeze", "unsqueeze", "permute", "transpose"), Passage.REARRANGED),
    (("add", "add_"), Passage.SUM),
    (("size", "dim"), Passage.NONE),
)


class _Tracer(fx.Tracer):
    """Traces layers with ``lrp_pass_through = True`` as leaves, like torch's layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return bool(getattr(m, "lrp_pass_through", False)) or super().is_leaf_module(m, module_qualified_name)


class Values(fx.Interpreter):
    """Runs a graph forwards and keeps the value of every node, guarding each against in-place layers."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        return value.clone() if isinstance(value, Tensor) and n.op != "output" else value

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[Any, Any]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        in_place = n.target in ("relu_", "add_", operator.iadd) or (
            n.op == "call_module" and getattr(self.module.get_submodule(str(n.target)), "inplace", False)
        )
        return (args[0].clone(), *args[1:]) if in_place else args, kwargs


def trace(network: nn.Module) -> fx.GraphModule:
    """The network as a graph with BatchNorm folded; an unsupported layer is an error that names it."""
    try:
        graph = _Tracer().trace(network)
    except (fx.proxy.TraceError, TypeError, RuntimeError) as problem:
        raise UserError(
            f"relevance needs a network whose forward does not branch on values; tracing "
            f"{type(network).__name__} stopped with: {problem}"
        ) from problem
    module = fx.GraphModule(network, graph)
    _fold_batch_norms(module)
    for node in module.graph.nodes:
        passage(module, node)
    return module


def passage(module: fx.GraphModule, node: fx.Node) -> Passage:
    """How relevance passes ``node``."""
    if node.op in ("placeholder", "get_attr", "output"):
        return Passage.NONE
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        if getattr(layer, "lrp_pass_through", False):
            return Passage.THROUGH
        ways = [way for kinds, way in _LAYERS if isinstance(layer, kinds)]
        name = f"'{node.target}' ({type(layer).__name__})"
    elif node.op == "call_function":
        ways = [way for calls, way in _CALLS if any(node.target is call for call in calls)]
        name = f"'{getattr(node.target, '__name__', node.target)}'"
    else:
        ways = [way for methods, way in _METHODS if node.target in methods]
        name = f"'.{node.target}()'"
    if not ways:
        raise UserError(
            f"layer {name} is not supported by relevance propagation; supported are linear and convolutional "
            f"layers, pooling, BatchNorm, activations, normalisation, drop-out, flatten and sums; "
            f"a layer that acts on each neuron alone can declare lrp_pass_through = True."
        )
    return ways[0]


def _fold_batch_norms(module: fx.GraphModule) -> None:
    """Fold each BatchNorm into the affine layer that feeds it, so that Eq. 5 sees one affine map."""
    layers = dict(module.named_modules())
    calls = [str(node.target) for node in module.graph.nodes if node.op == "call_module"]
    for node in list(module.graph.nodes):
        if node.op != "call_module" or not isinstance(layers[node.target], BATCH_NORM):
            continue
        norm, source = layers[node.target], node.args[0]
        if norm.running_mean is None:
            raise UserError(
                f"layer '{node.target}' (BatchNorm without running statistics) couples the records of a "
                f"batch; use track_running_stats=True so that the relevance of a record is its own."
            )
        feeds_it_alone = (
            source.op == "call_module" and len(source.users) == 1 and calls.count(source.target) == 1
        )
        if not feeds_it_alone or not isinstance(layers[source.target], AFFINE):
            continue
        affine = layers[source.target]
        fuse: Callable[[Any, Any], nn.Module]
        fuse = fuse_linear_bn_eval if isinstance(affine, nn.Linear) else fuse_conv_bn_eval
        name = f"_folded_{str(source.target).replace('.', '_')}"
        module.add_submodule(name, fuse(affine, norm))
        source.target = name
        node.replace_all_uses_with(source)
        module.graph.erase_node(node)
    module.recompile()
