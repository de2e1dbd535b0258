"""Relevance: LRP (Eqs. 4-9), its private average (lines 1-7, Lemmas 1-2), and the network that it explains.

Layer-wise relevance propagation says how much each feature of a record contributes to the outcome. It walks
the graph of the network backwards. It goes through an affine map by Eq. 5, with the bias in the denominator
and the stabiliser mu carrying the sign of z. Activations, normalisations and drop-out, which act on each
neuron alone, leave it unchanged. It is split between the summands of a residual sum as between any two
neurons that feed a third. Pooling is an affine map too: an average has equal weights, a maximum weighs its
winner with one.

Relevances of a record are then scaled to [0, 1], truncated to a grid, summed as integers over the records,
and given exact Laplace noise. The guarantee also depends on the provenance of the network.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.features import declared
from adlm.features.encoders import coupling
from adlm.paper.networks import build
from adlm.privacy.accounting import Charge
from adlm.privacy.certificate import LEARNT_BOUNDS, Certificate
from adlm.privacy.clipping import check_allocation, finite_row
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.signature import FILE, Signature, Statement, require, sign
from adlm.runtime import progress
from adlm.runtime.artefact import canonical, new_folder, read_json, sha256

# ---- Layer-wise relevance propagation


AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d)
BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d)


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
        rule_of(module, node)
    return module


def rule_of(module: fx.GraphModule, node: fx.Node) -> Rule:
    """How relevance passes ``node``."""
    if node.op in ("placeholder", "get_attr", "output"):
        return _none
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        if getattr(layer, "lrp_pass_through", False):
            return _through
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
            rule_of(module, node)(walk, node, walk.relevance.pop(node))
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


def _none(walk: _Walk, node: fx.Node, amount: Tensor) -> None:
    raise UserError(f"layer '{node.name}' takes part of a tensor by index, which relevance cannot follow.")


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


Rule = Callable[[_Walk, fx.Node, Tensor], None]
_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
)
_THROUGH = (
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Hardtanh),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.Identity),
    *(nn.LocalResponseNorm, nn.LayerNorm),  # the identity rule of Achtibat et al. 2024
)

_LAYERS: tuple[tuple[tuple[type[nn.Module], ...], Rule], ...] = (
    (_THROUGH, _through),
    (AFFINE + BATCH_NORM + _POOLS, _affine),
    ((nn.Flatten, nn.Unflatten, nn.ZeroPad1d, nn.ZeroPad2d), _rearranged),
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
_CALLS: tuple[tuple[tuple[Any, ...], Rule], ...] = (
    (_THROUGH_CALLS, _through),
    (_POOL_CALLS, _affine),
    (_RESHAPES, _rearranged),
    ((operator.add, operator.iadd, torch.add), _sum),
    ((torch.cat, torch.concat), _concatenated),
    ((getattr, operator.getitem), _none),
)
_METHODS: tuple[tuple[tuple[str, ...], Rule], ...] = (
    (("relu", "relu_", "sigmoid", "tanh", "contiguous", "float"), _through),
    (("mean",), _affine),
    (("flatten", "view", "reshape", "squeeze", "unsqueeze", "permute", "transpose"), _rearranged),
    (("add", "add_"), _sum),
    (("size", "dim"), _none),
)


# ---- Private relevance of every feature (lines 1-7), and its share of the budget (line 11, Eq. 16)

CHUNK = 500  # records scaled and summed together; each is explained alone
STEPS = 1 << 20  # grid steps in [0, 1]; a relevance is truncated to the grid
SENSITIVITIES = ("paper", "tight")
PRIVATE = "the relevance network was trained on private records without privacy"

Provenance = str | Certificate
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RelevanceSource:
    """The network whose output is explained by relevances.

    Attributes
    ----------
    network : a classifier of records scaled to [0, 1].
    provenance : `public` when no private record had a part in the network; the certificate of the release
        it was trained on; or `private`, which is allowed and makes the proved epsilon infinite. There is no
        default.
    mu : stabiliser that LRP adds to its denominators.
    """

    network: nn.Module
    provenance: Provenance
    mu: float = 1e-2


@dataclass(frozen=True)
class PrivateRelevance:
    """Noisy average relevance of each feature, and its charges.

    Attributes
    ----------
    values : (d,) R_j, in the order of the flattened record.
    charges : the charge of this step, after those in the relevance network's certificate.
    settings : of this step, for the certificate.
    stamps : warnings in the relevance network's certificate.
    """

    values: Floats
    charges: tuple[Charge, ...]
    settings: dict[str, object]
    stamps: tuple[str, ...] = ()


def scaled(relevances: Tensor) -> Tensor:
    """Min-max scale each record's relevances (n, d) to [0, 1]; constant relevances become zero.

    Formal guarantees
    -----------------
    Row i of the result depends on row i alone and lies in [0, 1]^d whatever the network did: values that are
    not finite count as zero.
    """
    flat = torch.nan_to_num(relevances.flatten(1).double(), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    spread = high - low
    share = (flat - low) / torch.where(spread > 0, spread, 1.0)
    return torch.where(spread > 0, share, 0.0).nan_to_num(0.0).clamp(0, 1)


def relevance_sum(
    network: nn.Module, x: npt.ArrayLike, domain: Domain, *, mu: float = 1e-2
) -> npt.NDArray[np.int64]:
    """Sum over records of their scaled relevances, in grid steps, (d,). Private: it has no noise yet.

    Parameters
    ----------
    network : classifier of scaled records.
    x, domain : (n, *shape) private records, and their domain.
    mu : stabiliser that LRP adds to its denominators.

    Formal guarantees
    -----------------
    The network is given one record at a time, so the relevances of a record do not depend on other records,
    bit for bit, if the network keeps no state between calls.
    """
    records = np.asarray(x)
    total = np.zeros(domain.size, dtype=np.int64)
    device = next(network.parameters()).device
    with progress.bar(len(records), "relevance", "records") as advance:
        for start in range(0, len(records), CHUNK):
            batch = torch.from_numpy(domain.scale(records[start : start + CHUNK])).to(device)
            relevances = relevance(network, batch, mu=mu, batch_size=1).features
            steps = (scaled(relevances) * STEPS).floor().to(torch.int64)
            total += steps.sum(0).cpu().numpy()
            advance(len(batch))
    return total


def relevance_charge(
    domain: Domain, records: int, epsilon: Fraction, sensitivity: str = "paper", unproved: str = ""
) -> Charge:
    """The charge of the average relevance over a number of records.

    Parameters
    ----------
    domain : of the records.
    records : how many are averaged over.
    epsilon : eps1.
    sensitivity : `paper` or `tight`.
    unproved : why nothing is proved, if so.
    """
    return Charge(
        what=f"average relevance of {domain.size} features over {records} records",
        mechanism="laplace",
        neighbours=domain.neighbours,
        sensitivity=Fraction(domain.size * STEPS),
        scale=(2 if sensitivity == "paper" else 1) * domain.size * STEPS / epsilon,
        proof="Lemma 1 with relevances in [0, 1]: a record moves each of the d sums by one range at most",
        epsilon_claimed=epsilon,
        unproved=unproved or (LEARNT_BOUNDS if domain.bounds_learnt_from_data else ""),
    )


def private_relevance(
    explained: RelevanceSource,
    x: npt.ArrayLike,
    domain: Domain,
    *,
    epsilon: Fraction,
    ledger: Ledger,
    source: Source,
    rows: int | None = None,
    sensitivity: str = "paper",
) -> PrivateRelevance:
    """Average relevance of each feature over the records, with Laplace noise (lines 2-7).

    Parameters
    ----------
    explained : the relevance network and its provenance.
    x : (n, *shape) private records, in the units of the domain.
    domain : of the records; its relation must be replace-one.
    epsilon : eps1.
    ledger : the charge is written there before noise is drawn.
    source : of the noise.
    rows : average over this many records only, drawn at random; the sensitivity then depends on that number.
    sensitivity : `paper` for Delta_R = 2d/n, `tight` for d/n: relevances in [0, 1] differ by 1 at most.

    Formal guarantees
    -----------------
    Neighbours: replace-one. With each record's relevances in [0, 1]^d (`scaled`), replacing a record moves
    the sum by at most d in L1 (Lemma 1, whose 2d is twice that). Discrete Laplace noise of scale Delta_R n
    / eps1 makes it eps1-differentially private with `tight`, and eps1/2 with `paper`, if the network is
    fixed before the records are read.
    """
    records = np.asarray(x)
    if domain.neighbours != "replace-one":
        raise UserError(
            "relevance is an average over a public number of records: declare neighbours = replace-one."
        )
    if sensitivity not in SENSITIVITIES:
        raise UserError(f"sensitivity must be one of {', '.join(SENSITIVITIES)} (got {sensitivity!r}).")
    used = len(records) if rows is None else rows
    if not 1 <= used <= len(records):
        raise UserError(f"relevance needs between 1 and {len(records)} records (got rows = {rows}).")
    network, provenance, mu = explained.network, explained.provenance, explained.mu
    carried, unproved, named = _provenance(provenance)
    _check_network(network, domain.shape, mu)
    step = relevance_charge(domain, used, epsilon, sensitivity, unproved)
    ledger.charge(step)
    if used < len(records):  # not the first ones, which change where a record before them is dropped
        records = records[source.permutation(len(records))[:used]]
    total = relevance_sum(network, records, domain, mu=mu)
    noisy = total + source.laplace(domain.size, step.scale)
    settings: dict[str, object] = {
        "epsilon1": str(epsilon),
        "relevance_network": named,
        "relevance_records": used,
        "relevance_sensitivity": sensitivity,
        "mu": mu,
    }
    stamps = provenance.stamps if isinstance(provenance, Certificate) else ()
    return PrivateRelevance(noisy / (used * STEPS), (*carried, step), settings, stamps)


def budget_ratios(
    allocation: str, relevance: Sequence[float] | Floats | None = None, *, size: int | None = None
) -> Floats:
    """beta_j of Eq. 16 for d features of equal range: not negative, and d in sum.

    Parameters
    ----------
    allocation : `identical` (all one), `linear` (beta_j = d |R_j| / sum |R|), or `optimal` (proportional to
        |R_j|^(2/3), which minimises sum_j R_j^2 b_j^2 at the same cost).
    relevance : (d,) private relevances; not needed for `identical`.
    size : d, needed for `identical` without relevances.

    Returns
    -------
    (d,) ratios. A feature whose ratio is zero is not released; its budget goes to the others. If all
    relevances are zero, all ratios are equal.
    """
    check_allocation(allocation)
    if relevance is None:
        if allocation != "identical" or size is None:
            raise UserError(f"allocation {allocation!r} needs the relevance of every feature.")
        return np.ones(size)
    weight = np.abs(finite_row("relevance", relevance))
    share = {"identical": np.ones_like(weight), "linear": weight, "optimal": np.cbrt(weight**2)}[allocation]
    if not share.any():
        return np.ones_like(weight)
    return np.asarray(len(share) * (share / share.sum()))


def _check_network(network: nn.Module, shape: tuple[int, ...], mu: float) -> None:
    """Refuse a network that does not take such records, that LRP does not support, or whose output for a
    record depends on the rest of its batch. It is run on random inputs, never on records: no privacy cost.
    What this cannot find is said in `features.encoders.coupling`; the network is given one record at a time.
    """
    device = next(network.parameters()).device
    probe = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    was_training = network.training
    network.eval()
    try:
        cause = coupling(network, shape, device=device)
    except (RuntimeError, ValueError, IndexError):
        raise UserError(
            f"the relevance network does not take records of shape {shape}; give one made for that shape."
        ) from None
    finally:
        network.train(was_training)
    if cause is not None:
        raise UserError(
            f"the relevance network's answer for a record depends on {cause}, so Lemma 1 does not hold for "
            "it; use layers without batch statistics in evaluation mode."
        )
    relevance(network, probe, mu=mu)


def _provenance(provenance: Provenance) -> tuple[tuple[Charge, ...], str, str]:
    """Charges of the network, why nothing is proved (if so), and the entry of the certificate."""
    if isinstance(provenance, Certificate):
        return provenance.charges, "", f"certificate {provenance.to_dict()['digest']}"
    if provenance == "public":
        return (), "", "public"
    if provenance == "private":
        return (), PRIVATE, "private"
    raise UserError(
        f"provenance of the relevance network must be 'public', 'private' or a certificate, "
        f"got {provenance!r}; say 'private' when in doubt."
    )


# ---- The network that relevances explain. The paper trains it on the private records, without privacy. Here
# it is trained on random processes, without them, so only the average relevance costs privacy.

CLASSES = 40  # synthetic classes the network learns to separate
_TENSORS, _ABOUT = "network.safetensors", "network.json"


@dataclass(frozen=True, kw_only=True)
class RelevanceNetwork(RelevanceSource):
    """A relevance network that can be saved: `RelevanceSource` with what rebuilds it.

    Attributes
    ----------
    name, shape, classes : arguments of `adlm.paper.networks.build`.
    """

    name: str
    shape: tuple[int, ...]
    classes: int

    def save(self, folder: Path | str, *, key: Ed25519PrivateKey | None = None) -> None:
        """Write weights and description to a new folder; with a key, sign both."""
        weights = {key: value.detach().cpu().contiguous() for key, value in self.network.state_dict().items()}
        raw = save_tensors(weights)
        about = {
            "kind": "relevance network",
            "name": self.name,
            "shape": list(self.shape),
            "classes": self.classes,
            "provenance": self.provenance,
            "sha256": sha256(raw),
        }
        with new_folder(Path(folder), what="relevance network") as temporary:
            (temporary / _TENSORS).write_bytes(raw)
            (temporary / _ABOUT).write_bytes(canonical(about))
            if key is not None:
                (temporary / FILE).write_bytes(canonical(sign(_statement(about), key).to_dict()))

    @classmethod
    def load(
        cls, folder: Path | str, *, provenance: str | None = None, trusted: Sequence[Ed25519PublicKey] = ()
    ) -> RelevanceNetwork:
        """Read what `save` wrote; altered weights are refused.

        Parameters
        ----------
        provenance : `public` or `private`, declared by whoever loads it. The folder's own statement is used
            only if it is signed by one of the trusted keys.
        """
        folder = Path(folder)
        about = read_json(folder / _ABOUT, what="relevance network")
        if provenance is None:
            signature = Signature.read(folder / FILE, _statement(about), f"the relevance network {folder}")
            require(
                signature,
                trusted,
                f"the relevance network {folder}",
                "anybody can write 'public' into a file, so declare its provenance yourself "
                "(provenance=..., --relevance-provenance), or trust the key of whoever signed it",
            )
        try:
            raw = (folder / _TENSORS).read_bytes()
            if about["kind"] != "relevance network" or sha256(raw) != about["sha256"]:
                raise KeyError("sha256")
            network = build(about["name"], tuple(about["shape"]), about["classes"])
            network.load_state_dict(load_tensors(raw))
        except (OSError, KeyError, TypeError, RuntimeError, SafetensorError) as problem:
            raise UserError(f"{folder} is not a sound relevance network: {problem}; make it again") from None
        shape = tuple(about["shape"])
        origin = declared(provenance or about.get("provenance", ""), f"the relevance network {folder}")
        return cls(network.eval(), origin, name=about["name"], shape=shape, classes=about["classes"])


def _statement(about: object) -> Statement:
    return Statement("relevance network", sha256(canonical(about)), "")


def make_public(
    shape: tuple[int, ...],
    *,
    name: str = "small-cnn",
    classes: int = CLASSES,
    per_class: int = 100,
    epochs: int = 12,
    seed: int = 0,
) -> RelevanceNetwork:
    """Pre-train the named network on random public classes of records of ``shape``.

    Parameters
    ----------
    shape : of a record.
    name : of the network.
    classes, per_class : random classes, and records of each.
    epochs : of training.
    seed : of classes and weights.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build(name, shape, classes)
    x, labels = synthetic(shape, classes=classes, per_class=per_class, seed=seed)
    pretrain(network, x, labels, epochs=epochs, seed=seed)
    return RelevanceNetwork(network, "public", name=name, shape=shape, classes=classes)


def synthetic(
    shape: tuple[int, ...], *, classes: int = CLASSES, per_class: int = 100, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Records (n, *shape) in [0, 1] of random classes, and their labels (n,).

    Grey squares get stroke classes, colour squares scenes; anything else gets classes that are random
    points of the unit box with noise around them.

    Parameters
    ----------
    shape : of a record.
    classes, per_class : numbers of classes, and of records of each.
    seed : of the draw.
    """
    generator = torch.Generator().manual_seed(seed)
    square = len(shape) >= 2 and shape[-1] == shape[-2] and shape[-1] >= 16
    if square and (len(shape) == 2 or shape[0] == 1):
        from adlm.features.priors import strokes

        images, labels = strokes.draw(classes, per_class, generator, shape[-1])
        return images.reshape(-1, *shape), labels
    if square and len(shape) == 3 and shape[0] == 3:
        from adlm.features.priors import scenes

        return scenes.draw(classes, per_class, generator, shape[-1])
    labels = torch.arange(classes).repeat_interleave(per_class)
    centres = torch.rand(classes, *shape, generator=generator)
    noise = 0.2 * torch.randn(len(labels), *shape, generator=generator)
    return (centres[labels] + noise).clamp(0, 1), labels


def pretrain(
    network: nn.Module,
    x: Tensor,
    labels: Tensor,
    *,
    epochs: int = 12,
    seed: int = 0,
) -> float:
    """Train a classifier of public records in place; return its accuracy on the last epoch's batches.

    Parameters
    ----------
    network : a classifier of at least as many outputs as there are labels.
    x, labels : (n, *shape) public records in [0, 1] and their class codes; never private records.
    epochs : the paper has 12 for MNIST and 50 for CIFAR-10; a smaller network needs fewer.
    """
    if len(x) != len(labels) or len(x) == 0 or epochs < 1:
        raise UserError(
            f"pre-training needs records, a label for each, and an epoch (got {len(x)}, {epochs})."
        )
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(seed)
    device = next(network.parameters()).device
    network.train()
    right = 0
    with progress.bar(epochs * len(x), "pre-training", "records") as advance:
        for _ in range(epochs):
            right = 0
            for rows in torch.randperm(len(x), generator=generator).split(100):  # type: ignore[no-untyped-call]
                logits, target = network(x[rows].to(device)), labels[rows].to(device)
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(logits, target).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                right += int((logits.argmax(1) == target).sum())
                advance(len(rows))
    network.eval()
    return right / len(x)
