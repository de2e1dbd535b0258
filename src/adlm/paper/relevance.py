"""Private relevance of every feature (lines 1-7, Lemmas 1-2), and the network that relevances explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.features import declared
from adlm.features.probe import coupling
from adlm.paper.lrp import relevance as propagate
from adlm.paper.networks import build
from adlm.privacy.accounting import Charge
from adlm.privacy.certificate import LEARNT_BOUNDS, Certificate
from adlm.privacy.clipping import check_allocation, finite_row
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.signature import FILE, Signature, Statement, require, sign
from adlm.runtime import progress
from adlm.runtime.artefact import canonical, new_folder, read_json, sha256

# ---- Private relevance of every feature (lines 1-7, Lemmas 1-2) and its share of the budget (line 11, Eq.
# 16).
#
# Relevances of a record are scaled to [0, 1], truncated to a grid, summed as integers over the records, and
# get exact Laplace noise. The guarantee also depends on the provenance of the relevance network.

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
            relevances = propagate(network, batch, mu=mu, batch_size=1).features
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
    What this cannot find is said in `features.probe`; the network is given one record at a time.
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
    propagate(network, probe, mu=mu)


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


# ---- The network that relevances explain: trained on public classes, saved with its provenance, loaded
# again.
#
# The paper trains it on the private records, without privacy. Here it is trained on random processes,
# without them, so only the average relevance costs privacy.

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
