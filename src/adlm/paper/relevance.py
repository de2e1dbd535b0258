"""Relevance: LRP (Eqs. 4-9), its private average (lines 1-7, Lemmas 1-2), and the network that it explains.

Layer-wise relevance propagation says how much each feature of a record contributes to the outcome. Here
the backward pass of a network carries relevance instead of gradients. It goes through an affine map by Eq. 5,
with the bias in the denominator and the stabiliser mu carrying the sign of z. Activations, normalisations and
drop-out, which act on each neuron alone, leave it unchanged. It is split between the summands of a residual
sum as between any two neurons that feed a third. Pooling is an affine map too: an average has equal weights,
a maximum weighs its winner with one.

Relevances of a record are then scaled to [0, 1], truncated to a grid, summed as integers over the records,
and given exact Laplace noise. The guarantee also depends on the provenance of the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

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

# ---- Layer-wise relevance propagation. Functions of torch by name, for modules call them too; `relu_` is
# `relu`.

POOLS = {f"{kind}_pool{axes}d" for kind in ("max", "avg", "adaptive_max", "adaptive_avg") for axes in (1, 2)}
AFFINE = {"linear", "conv1d", "conv2d", "batch_norm", "mean"} | POOLS
ELEMENTWISE = {
    *("relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "tanh", "softplus", "hardtanh"),
    *("dropout", "feature_dropout", "dropout1d", "dropout2d", "alpha_dropout", "local_response_norm"),
    "layer_norm",  # the identity rule of Achtibat et al. 2024
}
REARRANGED = {
    *("flatten", "unflatten", "view", "reshape", "squeeze", "unsqueeze", "permute", "transpose", "movedim"),
    *("cat", "concat", "pad", "getitem", "contiguous", "float", "double"),
}


class _Rule(torch.autograd.Function):
    """A value whose backward pass sends relevance to the inputs by a rule."""

    @staticmethod
    def forward(ctx: Any, rule: Callable[[Tensor], tuple[Tensor, ...]], value: Tensor, *_: Tensor) -> Tensor:
        ctx.rule = rule
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *relevance: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.rule(relevance[0]))


def _apply(rule: Callable[[Tensor], tuple[Tensor, ...]], value: Tensor, *inputs: Tensor) -> Tensor:
    made: Tensor = _Rule.apply(rule, value.detach(), *inputs)  # type: ignore[no-untyped-call]
    return made


class _Propagation(TorchFunctionMode):
    """Runs a network so that its backward pass carries relevance; sums up what biases and mu absorb.

    A module with ``lrp_pass_through = True`` acts on each neuron alone, whatever functions it calls.
    """

    def __init__(self, mu: float) -> None:
        super().__init__()
        self.mu = mu
        self.bias: Tensor | float = 0.0
        self.stabiliser: Tensor | float = 0.0
        self._depth = 0  # of modules that pass relevance through
        self._affine: dict[int, tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        carriers = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.requires_grad]
        name = str(getattr(func, "__name__", func)).strip("_")
        if self._depth or not carriers or name in REARRANGED:
            return func(*args, **kwargs)
        if name == "add":
            return self._sum(*args, **kwargs)
        if name in AFFINE | ELEMENTWISE:
            source = args[0] if args else kwargs.pop("input")
            if name in ELEMENTWISE:
                # a copy, as the function may write into its argument
                return _apply(lambda R: (R,), func(source.detach().clone(), *args[1:], **kwargs), source)
            if name == "batch_norm" and (kwargs.get("training") or (*args, *[None] * 6)[5]):
                raise UserError(
                    "BatchNorm without running statistics couples the records of a batch; use "
                    "track_running_stats=True so that the relevance of a record is its own"
                )
            return self._through(lambda p: func(p, *args[1:], **kwargs), source, fold=name == "batch_norm")
        found = func(*args, **kwargs)
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(found)):
            raise UserError(
                f"layer {name!r} is not supported by relevance propagation; supported are linear and "
                "convolutional layers, pooling, BatchNorm, activations, normalisation, drop-out, reshaping "
                "and sums; a module that acts on each neuron alone can declare lrp_pass_through = True"
            )
        return found

    def _through(self, function: Callable[[Tensor], Tensor], source: Tensor, fold: bool) -> Tensor:
        """Eqs. 5-7: R_p = sum_m p W_pm / (z_m + mu sign z_m) R_m, as value times gradient of the affine map.

        A batch normalisation is one affine map with the layer that feeds it, if that is affine.
        """
        if fold and id(source) in self._affine:
            _, source, first = self._affine[id(source)]
            last, function = function, lambda p: last(first(p))
        with torch.enable_grad():
            p = source.detach().requires_grad_()
            z = function(p)
        constant = function(torch.zeros_like(p)).detach()  # b_m of Eq. 7; zero for pooling

        def rule(above: Tensor) -> tuple[Tensor, ...]:
            ratio = self._ratio(z.detach(), above)
            self.bias = self.bias + (ratio * constant).flatten(1).sum(1)
            return (p.detach() * torch.autograd.grad(z, p, ratio)[0],)

        made = _apply(rule, z, source)
        self._affine[id(made)] = (made, source, function)
        return made

    def _sum(self, input: Any, other: Any, *, alpha: float = 1) -> Tensor:
        """A residual sum z = a + b: each summand gets its share by Eq. 5, and a constant keeps its own."""
        carry = [s for s in (input, other) if isinstance(s, Tensor) and s.requires_grad]
        z = (input.detach() if isinstance(input, Tensor) else input) + (
            other.detach() if isinstance(other, Tensor) else other
        )
        if alpha != 1 or any(summand.shape != z.shape for summand in carry):
            raise UserError(
                "relevance propagation needs sums of one shape and without alpha, got "
                f"{[tuple(summand.shape) for summand in carry]} and alpha = {alpha}"
            )

        def rule(above: Tensor) -> tuple[Tensor, ...]:
            ratio = self._ratio(z, above)
            constant = z - sum(summand.detach() for summand in carry)
            self.bias = self.bias + (ratio * constant).flatten(1).sum(1)
            return tuple(summand.detach() * ratio for summand in carry)

        return _apply(rule, z, *carry)

    def _ratio(self, z: Tensor, above: Tensor) -> Tensor:
        """R_m / (z_m + mu sign z_m) of Eq. 5, where the sign of zero is plus; mu's share is recorded."""
        signed = self.mu * torch.where(z >= 0, 1.0, -1.0).to(z)
        denominator = z + signed
        lost = denominator == 0
        ratio = torch.where(lost, 0.0, above / torch.where(lost, 1.0, denominator))
        absorbed = torch.where(lost, above, ratio * signed)
        self.stabiliser = self.stabiliser + absorbed.flatten(1).sum(1)
        return ratio

    def run(self, network: nn.Module, x: Tensor) -> Tensor:
        """Run a network on records that carry relevance; its parameters carry none."""

        def enter(*_: Any) -> None:
            self._depth += 1

        def leave(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            passed = _apply(lambda R: (R,), output, inputs[0])
            self._depth -= 1
            return passed

        through = [m for m in network.modules() if getattr(m, "lrp_pass_through", False)]
        hooks = [m.register_forward_pre_hook(enter) for m in through]
        hooks += [m.register_forward_hook(leave) for m in through]
        constants = {name: parameter.detach() for name, parameter in network.named_parameters()}
        try:
            with torch.enable_grad(), self:
                output: Tensor = torch.func.functional_call(network, constants, (x,))
        finally:
            for hook in hooks:
                hook.remove()
        return output


@dataclass(frozen=True)
class Relevances:
    """Relevance of every feature of every record, and the relevance that was absorbed.

    ``outcome = features.sum + bias + stabiliser`` for every record: Eq. 9 with both losses.

    Attributes
    ----------
    features : (n, *shape) relevance R_xij of each feature.
    outcome : (n,) the outcome that is explained, F_x(theta) in Eq. 8: each record's largest output.
    bias, stabiliser : (n,) relevance absorbed by biases, and by mu.
    """

    features: Tensor
    outcome: Tensor
    bias: Tensor
    stabiliser: Tensor


def relevance(network: nn.Module, x: Tensor, *, mu: float = 1e-2, batch_size: int = 256) -> Relevances:
    """Propagate the outcome of ``network`` back to its input, record by record.

    Parameters
    ----------
    network : any classifier made of known layers; used in evaluation mode, and its mode is restored.
    x : (n, *shape) records, on the network's device.
    mu : stabiliser of Eqs. 5 and 8, not negative. At mu = 0 a neuron whose z is zero passes nothing on.
    batch_size : records in a batch; it does not change the result.

    Formal guarantees
    -----------------
    The relevance of a record depends on that record and on ``network`` alone: batch statistics are never
    used, and a network that needs them is refused. The sensitivity of averages (Lemma 1) rests on this.
    """
    if not 0 <= mu < math.inf:
        raise UserError(f"mu must be finite and not negative (got {mu}); it moves denominators from zero.")
    was_training = network.training
    network.eval()
    try:
        parts = [_propagate(network, part, mu) for part in torch.split(x, batch_size)]
    finally:
        network.train(was_training)
    return Relevances(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Relevances)))


def _propagate(network: nn.Module, x: Tensor, mu: float) -> Relevances:
    """One batch: forward, and back with relevance."""
    walk, x = _Propagation(mu), x.detach().requires_grad_()
    output = walk.run(network, x)
    if output.dim() != 2:
        raise UserError(
            f"relevance starts from scores of shape (n, M); the network gave {tuple(output.shape)}."
        )
    # Eq. 8: the outcome is the relevance of the output variable it belongs to; all others have none.
    outcome, chosen = output.detach().max(1, keepdim=True)
    (features,) = torch.autograd.grad(output, x, torch.zeros_like(output).scatter_(1, chosen, outcome))
    absorbed = (torch.as_tensor(lost).expand(len(x)) for lost in (walk.bias, walk.stabiliser))
    return Relevances(features, outcome.squeeze(1), *absorbed)


# ---- Private relevance of every feature (lines 1-7), and its share of the budget (line 11, Eq. 16)

CHUNK = 500  # records scaled and summed together; each is explained alone
STEPS = 1 << 20  # grid steps in [0, 1]; a relevance is truncated to the grid
SENSITIVITIES = ("paper", "tight")
PRIVATE = "the relevance network was trained on private records without privacy"

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
    provenance: str | Certificate
    mu: float = 1e-2

    def charges(self) -> tuple[Charge, ...]:
        """The charges of the network itself; an unknown provenance is refused."""
        if isinstance(self.provenance, Certificate):
            return self.provenance.charges
        if self.provenance not in ("public", "private"):
            raise UserError(
                f"provenance of the relevance network must be 'public', 'private' or a certificate, "
                f"got {self.provenance!r}; say 'private' when in doubt."
            )
        return ()


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
    """Sum over (n, *shape) private records of their scaled relevances, in grid steps, (d,), without noise.

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
    """The charge of the average relevance over a number of records; `unproved` says why nothing is proved."""
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
    provenance, carried = explained.provenance, explained.charges()
    _check_network(explained.network, domain.shape, explained.mu)
    step = relevance_charge(domain, used, epsilon, sensitivity, PRIVATE if provenance == "private" else "")
    ledger.charge(step)
    if used < len(records):  # not the first ones, which change where a record before them is dropped
        records = records[source.permutation(len(records))[:used]]
    total = relevance_sum(explained.network, records, domain, mu=explained.mu)
    noisy = total + source.laplace(domain.size, step.scale)
    certificate = provenance if isinstance(provenance, Certificate) else None
    settings: dict[str, object] = {
        "epsilon1": str(epsilon),
        "relevance_network": f"certificate {certificate.digest}" if certificate else provenance,
        "relevance_records": used,
        "relevance_sensitivity": sensitivity,
        "mu": explained.mu,
    }
    stamps = certificate.stamps if certificate else ()
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
        with torch.no_grad():
            outcome = network(probe).amax(1)
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
    if not torch.allclose(relevance(network, probe, mu=mu).outcome, outcome, rtol=1e-3, atol=1e-4):
        raise UserError("relevance cannot follow a network that writes into its tensors; use relu, not relu_")


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
        raw = save_tensors({name: value.contiguous() for name, value in self.network.state_dict().items()})
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

    The paper trains for 12 epochs on MNIST and 50 on CIFAR-10; a smaller network needs fewer.

    Parameters
    ----------
    shape : of a record.
    name : of the network.
    classes, per_class : random classes, and records of each.
    epochs : of training.
    seed : of classes and weights.
    """
    if min(classes, per_class, epochs) < 1:
        raise UserError(
            f"pre-training needs classes, records and epochs (got {classes}, {per_class}, {epochs})"
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build(name, shape, classes).train()
    x, labels = synthetic(shape, classes=classes, per_class=per_class, seed=seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(seed)
    with progress.bar(epochs * len(x), "pre-training", "records") as advance:
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=generator).split(100):  # type: ignore[no-untyped-call]
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(network(x[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                advance(len(rows))
    return RelevanceNetwork(network.eval(), "public", name=name, shape=shape, classes=classes)


def synthetic(
    shape: tuple[int, ...], *, classes: int = CLASSES, per_class: int = 100, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Records (n, *shape) in [0, 1] of random classes, and their labels (n,).

    Grey squares get stroke classes, colour squares scenes; anything else gets classes that are random
    points of the unit box with noise around them.
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
