"""Private relevance of every feature (lines 1-7, Lemmas 1-2) and its share of the budget (line 11, Eq. 16).

Relevances of a record are scaled to [0, 1], truncated to a grid, summed as integers over the records, and get
exact Laplace noise. The guarantee also depends on the provenance of the relevance network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adlm.curator.allocation import check_allocation, finite_row
from adlm.curator.ledger import Ledger
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.paper.lrp import relevance as propagate
from adlm.privacy.accounting import Charge
from adlm.privacy.certificate import LEARNT_BOUNDS, Certificate
from adlm.public.domain import Domain
from adlm.public.features.probe import coupling
from adlm.runtime import progress

BATCH = 500  # records explained together
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
    network: nn.Module, x: npt.ArrayLike, domain: Domain, *, mu: float = 1e-2, batch_size: int = BATCH
) -> npt.NDArray[np.int64]:
    """Sum over records of their scaled relevances, in grid steps, (d,). Private: it has no noise yet.

    Parameters
    ----------
    network : classifier of scaled records.
    x, domain : (n, *shape) private records, and their domain.
    mu : stabiliser that LRP adds to its denominators.
    batch_size : records explained at once; the result does not depend on it.
    """
    records = np.asarray(x)
    total = np.zeros(domain.size, dtype=np.int64)
    device = next(network.parameters()).device
    with progress.bar(len(records), "relevance", "records") as advance:
        for start in range(0, len(records), batch_size):
            batch = torch.from_numpy(domain.scale(records[start : start + batch_size])).to(device)
            relevances = propagate(network, batch, mu=mu, batch_size=batch_size).features
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
    rows : average over this many first records only; the sensitivity then depends on that number.
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
    total = relevance_sum(network, records[:used], domain, mu=mu)
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
    They are as many as are explained together. What this cannot find is said in `public.features.probe`;
    that LRP knows every layer excludes layers that route records.
    """
    device = next(network.parameters()).device
    probe = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    was_training = network.training
    network.eval()
    try:
        cause = coupling(network, shape, batch=BATCH, device=device)
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
