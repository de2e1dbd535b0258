"""Layer-wise relevance propagation: how much each feature of a record contributes to the outcome (Eqs. 4-9).

The network is traced into a graph once. Relevance then walks the graph backwards. It goes through an affine
map by Eq. 5, with the bias in the denominator and the stabiliser mu carrying the sign of z. Activations,
normalisations and drop-out, which act on each neuron alone, leave it unchanged. It is split between the
summands of a residual sum as between any two neurons that feed a third. Pooling is an affine map too: an
average has equal weights, a maximum weighs its winner with one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, cast

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


@dataclass(frozen=True)
class Relevances:
    """Relevance of every feature of every record, and the relevance that was absorbed.

    ``outcome = features.sum + bias + stabiliser`` for every record: Eq. 9 with both losses.

    Attributes
    ----------
    features : (n, *shape) relevance R_xij of each feature.
    outcome : (n,) the outcome the walk started from, F_x(theta) in Eq. 8.
    bias : (n,) relevance absorbed by biases.
    stabiliser : (n,) relevance absorbed by mu.
    """

    features: Tensor
    outcome: Tensor
    bias: Tensor
    stabiliser: Tensor


def relevance(
    network: nn.Module, x: Tensor, *, target: Tensor | None = None, mu: float = 1e-2, batch_size: int = 256
) -> Relevances:
    """Propagate the outcome of ``network`` back to its input, record by record.

    Parameters
    ----------
    network : any classifier made of known layers; used in evaluation mode, and its mode is restored.
    x : (n, *shape) records, on the network's device.
    target : (n,) index of the output to explain; each record's largest output by default.
    mu : stabiliser of Eqs. 5 and 8, not negative. At mu = 0 a neuron whose z is zero passes nothing on.
    batch_size : records in a batch; it does not change the result.

    Formal guarantees
    -----------------
    The relevance of a record depends on that record and on ``network`` alone: batch statistics are never
    used, and a network that needs them is refused. The sensitivity of averages (Lemma 1) rests on this.
    """
    if not 0 <= mu < math.inf:
        raise UserError(f"mu must be finite and not negative (got {mu}); it moves denominators from zero.")
    if target is not None and tuple(target.shape) != (len(x),):
        raise UserError(
            f"target must name one output for each of {len(x)} records (got {tuple(target.shape)})."
        )
    was_training = network.training
    network.eval()
    try:
        graph = trace(network)
        parts = [
            _propagate(
                graph, x[i : i + batch_size], None if target is None else target[i : i + batch_size], mu
            )
            for i in range(0, max(len(x), 1), batch_size)
        ]
    finally:
        network.train(was_training)
    return Relevances(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Relevances)))


def _propagate(module: fx.GraphModule, x: Tensor, target: Tensor | None, mu: float) -> Relevances:
    """One batch: forward, then back through the nodes in reverse order."""
    forward = Values(module)
    with torch.no_grad():
        output = cast(Tensor, forward.run(x))
    if output.dim() != 2:
        raise UserError(
            f"relevance starts from scores of shape (n, M); the network gave {tuple(output.shape)}."
        )
    if target is not None and bool(((target < 0) | (target >= output.shape[1])).any()):
        raise UserError(
            f"target must lie between 0 and {output.shape[1] - 1}, for the network has {output.shape[1]} "
            f"outputs (got {int(target.min())} to {int(target.max())})."
        )
    chosen = (output.argmax(dim=1) if target is None else target.to(output.device)).view(-1, 1)
    outcome = output.gather(1, chosen)
    walk = _Walk(module, forward.env, mu, outcome.new_zeros(len(x)), outcome.new_zeros(len(x)), {})
    nodes = list(module.graph.nodes)
    # Eq. 8: the outcome is the relevance of the output variable it belongs to; all others have none.
    walk.send(nodes[-1].args[0], torch.zeros_like(output).scatter_(1, chosen, outcome))
    for node in reversed(nodes):
        if node.op != "placeholder" and node in walk.relevance:
            way = passage(module, node)
            if way is Passage.NONE:
                raise UserError(
                    f"layer '{node.name}' takes part of a tensor by index, which relevance cannot follow."
                )
            _RULES[way](walk, node, walk.relevance.pop(node))
    source = next(node for node in nodes if node.op == "placeholder")
    features = walk.relevance.get(source, torch.zeros_like(x))
    return Relevances(features.detach(), outcome.squeeze(1), walk.bias, walk.stabiliser)


@dataclass
class _Walk:
    """The state of one backward walk: values of nodes, relevance waiting at each, and what was absorbed."""

    module: fx.GraphModule
    values: dict[fx.Node, Any]
    mu: float
    bias: Tensor
    stabiliser: Tensor
    relevance: dict[Any, Tensor]

    def send(self, node: Any, amount: Tensor) -> None:
        """Eq. 4: the relevance of a neuron is the sum of the messages from all neurons above it."""
        self.relevance[node] = self.relevance[node] + amount if node in self.relevance else amount

    def ratio(self, z: Tensor, amount: Tensor) -> Tensor:
        """R_m / (z_m + mu sign z_m) of Eq. 5, where the sign of zero is plus; mu's share is recorded."""
        signed = self.mu * torch.where(z >= 0, 1.0, -1.0).to(z)
        denominator = z + signed
        lost = denominator == 0
        ratio = torch.where(lost, 0.0, amount / torch.where(lost, 1.0, denominator))
        self.stabiliser = self.stabiliser + torch.where(lost, amount, ratio * signed).flatten(1).sum(1)
        return ratio

    def absorb(self, share: Tensor) -> None:
        self.bias = self.bias + share.flatten(1).sum(1)

    def pull_back(self, node: fx.Node, amount: Tensor) -> tuple[Tensor, Tensor]:
        """The node's input p, and the transpose of the node's linear part applied to ``amount``."""
        arguments = cast(tuple[Any, ...], fx.node.map_arg(node.args[1:], lambda n: self.values[n]))
        named = cast(dict[str, Any], fx.node.map_arg(dict(node.kwargs), lambda n: self.values[n]))
        named = {name: value for name, value in named.items() if name != "input"}
        function: Callable[..., Tensor]
        if node.op == "call_module":
            function = self.module.get_submodule(str(node.target))
        elif node.op == "call_method":
            function = getattr(Tensor, str(node.target))
        else:
            function = cast(Callable[..., Tensor], node.target)
        with torch.enable_grad():
            p = self.values[_source(node)].detach().requires_grad_()
            (back,) = torch.autograd.grad(function(p, *arguments, **named), p, amount)
        return p.detach(), back


def _source(node: fx.Node) -> Any:
    return node.args[0] if node.args else node.kwargs["input"]


def _through(walk: _Walk, node: fx.Node, amount: Tensor) -> None:
    walk.send(_source(node), amount)


def _rearranged(walk: _Walk, node: fx.Node, amount: Tensor) -> None:
    walk.send(_source(node), walk.pull_back(node, amount)[1])


def _affine(walk: _Walk, node: fx.Node, amount: Tensor) -> None:
    """Eqs. 5-7: R_p = sum_m p W_pm / (z_m + mu sign z_m) R_m, as value times gradient of the affine map."""
    ratio = walk.ratio(walk.values[node], amount)
    p, back = walk.pull_back(node, ratio)
    walk.absorb(ratio * _bias(walk, node, ratio))
    walk.send(_source(node), p * back)


def _bias(walk: _Walk, node: fx.Node, like: Tensor) -> Tensor:
    """b_m of Eq. 7, broadcast to ``like``; zero for pooling."""
    layer = walk.module.get_submodule(str(node.target)) if node.op == "call_module" else None
    if isinstance(layer, BATCH_NORM):
        return cast(Tensor, layer(torch.zeros_like(like))).detach()
    bias = getattr(layer, "bias", None)
    if bias is None:
        return like.new_zeros(())
    shape = [1] * like.dim()
    shape[-1 if isinstance(layer, nn.Linear) else 1] = -1
    return cast(Tensor, bias.detach().view(shape))


def _sum(walk: _Walk, node: fx.Node, amount: Tensor) -> None:
    """A residual sum z = a + b: each summand gets its share by Eq. 5, and a constant keeps its own."""
    if node.kwargs.get("alpha", 1) != 1:
        raise UserError("layer 'add' with alpha is not supported by relevance propagation; multiply first.")
    ratio = walk.ratio(walk.values[node], amount)
    for summand in (*node.args, *(v for k, v in node.kwargs.items() if k in ("input", "other"))):
        value: Any = walk.values[summand] if isinstance(summand, fx.Node) else summand
        if not isinstance(summand, fx.Node) or summand.op == "get_attr":
            walk.absorb(ratio * value)
        elif value.shape == ratio.shape:
            walk.send(summand, ratio * value)
        else:
            raise UserError(
                f"layer '{node.name}' sums shapes {tuple(value.shape)} and {tuple(ratio.shape)}; "
                f"relevance propagation needs summands of one shape."
            )


def _concatenated(walk: _Walk, node: fx.Node, amount: Tensor) -> None:
    parts = cast(tuple[fx.Node, ...], node.args[0])
    dim = cast(int, node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0))
    shares = torch.split(amount, [walk.values[part].shape[dim] for part in parts], dim)
    for part, share in zip(parts, shares, strict=True):
        walk.send(part, share)


_RULES: dict[Passage, Callable[[_Walk, fx.Node, Tensor], None]] = {
    Passage.THROUGH: _through,
    Passage.REARRANGED: _rearranged,
    Passage.AFFINE: _affine,
    Passage.SUM: _sum,
    Passage.CONCATENATED: _concatenated,
}
