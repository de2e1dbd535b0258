"""Layer-wise relevance propagation: how much each feature of a record contributes to the outcome (Eqs. 4-9).

The network is traced into a graph once. Relevance then walks the graph backwards. It goes through an affine
map by Eq. 5, with the bias in the denominator and the stabiliser mu carrying the sign of z. Activations,
normalisations and drop-out, which act on each neuron alone, leave it unchanged. It is split between the
summands of a residual sum as between any two neurons that feed a third. Pooling is an affine map too: an
average has equal weights, a maximum weighs its winner with one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from adlm.errors import UserError
from adlm.estimation.lrp_graph import BATCH_NORM, Passage, Values, passage, trace


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
