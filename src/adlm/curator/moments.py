"""The moment release: noise on whole-data sums of frozen public features.

The degree-2 loss needs only class sums, counts and second moments of z = h0(x). They are computed in exact
integers, charged, and released once with exact noise. Proofs: docs/proof-moments.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from adlm.certificate import Charge, Mechanism, compose, gaussian_mu, root_up
from adlm.curator import noise
from adlm.curator.clipping import EXACT_ROWS, Clip, Norm, Reals
from adlm.curator.ledger import Ledger
from adlm.errors import UserError
from adlm.public.domain import Domain
from adlm.public.features import Features
from adlm.release import SEEDED, Release

Batch = tuple[npt.ArrayLike, npt.NDArray[np.int64]]  # (n, width) features, (n,) class codes
Batches = Callable[[], Iterable[Batch]]  # called once a pass over the records
Basis = Literal["leading", "means"]
PROOF = "docs/proof-moments.md"


@dataclass(frozen=True)
class Second:
    """Which second moments to release: of z @ basis, q numbers a record.

    `leading` takes the first q coordinates; `means` the span of the class means as already released, then the
    leading coordinates made orthogonal to it, so that stage two looks where stage one found the classes.
    """

    q: int
    basis: Basis = "leading"
    level: float = 1.0
    scales: tuple[float, ...] | None = None  # relative noise scales of its coordinates; None: identical


@dataclass(frozen=True)
class Design:
    """The public settings of a moment release. Nothing here may be learnt from the records for free.

    Attributes
    ----------
    epsilon, delta : the budget; delta 0 means Laplace noise.
    k : coordinates summed.
    level : clip level of z in the norm of the noise.
    scales : (k,) relative noise scales b_j (the allocation); None: identical.
    constant : share of the clip that carries the class counts.
    share_sums : share of the budget for class sums and counts when second moments are released too.
    second : which second moments, or None.
    contributions : records one person may have; the guarantee is for a person.
    pure : the noise on class sums when delta is 0: `laplace`, best for sparse vectors, or `radial`, best for
        dense ones.
    """

    epsilon: Fraction
    delta: Fraction
    k: int
    level: float
    scales: tuple[float, ...] | None = None
    constant: float = 0.2
    share_sums: Fraction = Fraction(3, 5)
    second: Second | None = None
    contributions: int = 1
    pure: Literal["laplace", "radial"] = "laplace"

    @property
    def mechanism(self) -> Mechanism:
        """The noise on class sums."""
        return "gaussian" if self.delta else self.pure

    @property
    def second_mechanism(self) -> Literal["laplace", "gaussian"]:
        """The noise on second moments."""
        return "gaussian" if self.delta else "laplace"

    def clip(self) -> Clip:
        """The clip of class sums."""
        norm: Norm = "l1" if self.mechanism == "laplace" else "l2"
        return Clip(norm, self.scales or (1.0,) * self.k, self.level, self.constant)

    def second_clip(self) -> Clip | None:
        """The clip of second moments: that of the sums when the cost is joint, else one without a count."""
        if self.second is None:
            return None
        if self.joint:
            return self.clip()
        scales = self.second.scales or (1.0,) * self.second.q
        return Clip("l2" if self.delta else "l1", scales, self.second.level)

    @property
    def joint(self) -> bool:
        """Whether sums and second moments see the same clipped rows, so that their cost is joint."""
        return (
            self.second is not None
            and self.delta > 0
            and self.second.basis == "leading"
            and (self.scales, self.level) == (None, self.second.level)
            and self.second.scales is None
        )


@dataclass(frozen=True)
class Scales:
    """Integer noise scales, in grid steps."""

    sums: int
    second: int = 0  # off the diagonal
    second_diagonal: int = 0


def calibrate(design: Design, neighbours: str) -> tuple[Scales, tuple[Charge, ...]]:
    """Return the smallest integer noise scales that keep to the budget, and their charges.

    Formal guarantees
    -----------------
    Relation: the given one. Sensitivity: asked of the `Clip` that clips. Guarantee: the charges compose to
    at most the design's epsilon and delta; they are computed from the integers returned, not from the
    request. Proved in docs/proof-moments.md (Theorems 1 to 3).
    """
    if not design.delta:
        return _calibrate_pure(design, neighbours)
    mu = gaussian_mu(design.epsilon, design.delta) / design.contributions
    while True:  # once, unless rounding up in the charge costs more than rounding down in mu left
        scales, charges = _calibrate_gaussian(design, neighbours, mu)
        if compose(charges).epsilon_proved <= design.epsilon:
            return scales, charges
        mu *= Fraction(999_999, 1_000_000)


def _calibrate_pure(design: Design, neighbours: str) -> tuple[Scales, tuple[Charge, ...]]:
    share = design.share_sums if design.second else Fraction(1)
    people = design.contributions
    radial = design.mechanism == "radial"
    clipped = design.clip()
    sums = people * (clipped.rows_sensitivity if radial else clipped.sums_sensitivity)(neighbours)
    scale = math.ceil(sums / (share * design.epsilon))
    charges = [_charge("class sums and counts", design.mechanism, neighbours, sums, scale, "Theorem 1")]
    clip = design.second_clip()
    if clip is None:
        return Scales(scale), tuple(charges)
    second = people * clip.second_sensitivity(neighbours)
    fine = math.ceil(second / ((1 - share) * design.epsilon))
    charges.append(_charge("second moments", "laplace", neighbours, second, fine, "Theorem 1"))
    return Scales(scale, fine, 2 * fine), tuple(charges)


def _calibrate_gaussian(design: Design, neighbours: str, mu: Fraction) -> tuple[Scales, tuple[Charge, ...]]:
    clip, fine_clip = design.clip(), design.second_clip()
    share = design.share_sums if fine_clip else Fraction(1)
    sums = clip.sums_sensitivity(neighbours)
    if fine_clip is None or not design.joint:
        scale = math.ceil(sums / (mu * root_down(share)))
        charges = [
            _charge("class sums and counts", "gaussian", neighbours, sums * design.contributions, scale,
                    "Theorem 2", design.delta)
        ]  # fmt: skip
        if fine_clip is None:
            return Scales(scale), tuple(charges)
        second = fine_clip.second_sensitivity(neighbours)
        diagonal = math.ceil(second / (mu * root_down(1 - share)))
        charges.append(
            _charge("second moments", "gaussian", neighbours, second * design.contributions, diagonal,
                    "Theorem 2", design.delta)
        )  # fmt: skip
        return Scales(scale, off_diagonal(diagonal), diagonal), tuple(charges)
    # P : Q = share : 1 - share; mu^2 is homogeneous in both, so one trial scale gives the right one
    room = Fraction(clip.room)
    p, q = share, 1 - share
    trial = clip.joint_loss_squared(room / root_down(p), room**2 / root_down(q), neighbours)
    stretch = root_up(trial) / mu
    scale = math.ceil(room / root_down(p) * stretch)
    diagonal = math.ceil(room**2 / root_down(q) * stretch)
    loss = root_up(clip.joint_loss_squared(Fraction(scale), Fraction(diagonal), neighbours))
    charge = _charge("class sums, counts and second moments", "gaussian", neighbours,
                     loss * design.contributions, 1, "Theorem 3", design.delta)  # fmt: skip
    return Scales(scale, off_diagonal(diagonal), diagonal), (charge,)


def _charge(
    what: str,
    mechanism: Mechanism,
    neighbours: str,
    sensitivity: Fraction,
    scale: int,
    theorem: str,
    delta: Fraction = Fraction(0),
) -> Charge:
    return Charge(what, mechanism, neighbours, sensitivity, Fraction(scale), f"{PROOF} {theorem}", delta)


def root_down(value: Fraction) -> Fraction:
    """Return the square root rounded down to a multiple of 10^-12."""
    step = 10**12
    return Fraction(math.isqrt(math.floor(value * step * step)), step)


def off_diagonal(diagonal: int) -> int:
    """Return the smallest whole scale that is at least the diagonal's over sqrt(2)."""
    return math.isqrt((diagonal * diagonal - 1) // 2) + 1


def release_moments(
    batches: Batches,
    *,
    domain: Domain,
    features: Features,
    design: Design,
    ledger: Ledger,
    source: noise.Source,
    settings: dict[str, Any] | None = None,
    stamps: tuple[str, ...] = (),
    earlier: tuple[Charge, ...] = (),
    extra: dict[str, torch.Tensor] | None = None,
) -> Release:
    """Make a moment release: one pass over the records for the sums, a second one if its basis needs it.

    Parameters
    ----------
    batches : gives (features, codes) batches, the same ones each time it is called.
    settings : public facts to keep in the certificate beside the design, such as the plan's reasons.
    earlier : charges, already in the ledger, of what the design was chosen by, such as private relevances.
    extra : tensors that go into the release beside the moments; private already, or public.

    Formal guarantees
    -----------------
    Relation: the domain's. Guarantee: `calibrate`. Every charge is in the ledger before noise is drawn.
    """
    scales, charges = calibrate(design, domain.neighbours)
    table, second, n = _sums(batches, len(domain.classes), design)
    if n == 0:
        raise UserError("there are no records to release; give at least one")
    ledger.charge(*charges)
    table += _table_noise(design, table.shape, scales.sums, source)
    clip, fine_clip = design.clip(), design.second_clip()
    step = np.concatenate([[1 / clip.count if clip.count else 0.0], clip.steps])
    tensors = {"class_sums": torch.from_numpy(table), "step": torch.from_numpy(step)}
    if design.second is not None and fine_clip is not None:
        if design.second.basis == "means":
            basis = mean_basis(table[:, 1:] * step[1:], design.second.q)
            tensors["basis"] = torch.from_numpy(basis)
            second = _projected_second(batches, basis, design.k, fine_clip)
        assert second is not None
        tensors["second"] = torch.from_numpy(_noisy_second(second, design, scales, source))
        tensors["step_second"] = torch.from_numpy(fine_clip.steps[: design.second.q].copy())
    spread = {"laplace": math.sqrt(2.0), "radial": math.sqrt(2.0 + design.k), "gaussian": 1.0}
    facts = {
        "n": n if domain.neighbours == "replace-one" else None,
        "mechanism": design.mechanism,
        "k": design.k,
        "level": design.level,
        "constant": design.constant,
        "share_sums": str(design.share_sums),
        "allocation": "identical" if design.scales is None else "adaptive",
        "second": None if design.second is None else {"q": design.second.q, "basis": design.second.basis,
                                                      "level": design.second.level},
        "contributions": design.contributions,
        "sd_sums": spread[design.mechanism] * scales.sums,
        "sd_second": spread[design.second_mechanism] * scales.second,
        "sd_second_diagonal": spread[design.second_mechanism] * scales.second_diagonal,
    }  # fmt: skip
    return Release.make(
        tensors | (extra or {}),
        kind="moments",
        domain=domain,
        features={"spec": features.spec(), "fingerprint": features.fingerprint()},
        settings=facts | (settings or {}),
        charges=earlier + charges,
        stamps=stamps + ((SEEDED,) if source.seeded else ()),
    )


def _sums(
    batches: Batches, classes: int, design: Design
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None, int]:
    """Sum clipped records by class, and their products when the same pass serves for both."""
    clip, fine_clip = design.clip(), design.second_clip()
    table = np.zeros((classes, 1 + design.k), dtype=np.int64)
    leading = design.second is not None and design.second.basis == "leading"
    second = np.zeros((design.second.q,) * 2, dtype=np.int64) if design.second and leading else None
    n = 0
    for z, codes in batches():
        values = np.asarray(z)[:, : design.k]
        n += len(values)
        rows = clip.integers(values)
        for start in range(0, len(rows), EXACT_ROWS):
            block, labels = rows[start : start + EXACT_ROWS], codes[start : start + EXACT_ROWS]
            member = np.zeros((len(block), classes))
            member[np.arange(len(block)), labels] = 1.0
            table[:, 1:] += (member.T @ block).astype(np.int64)
            table[:, 0] += clip.count * member.sum(0).astype(np.int64)
        if second is not None and design.second is not None and fine_clip is not None:
            q = design.second.q
            _add_products(second, rows[:, :q] if design.joint else fine_clip.integers(values[:, :q]))
    return table, second, n


def _add_products(second: npt.NDArray[np.int64], rows: Reals) -> None:
    for start in range(0, len(rows), EXACT_ROWS):
        block = rows[start : start + EXACT_ROWS]
        second += (block.T @ block).astype(np.int64)


def _projected_second(batches: Batches, basis: Reals, k: int, clip: Clip) -> npt.NDArray[np.int64]:
    second = np.zeros((basis.shape[1],) * 2, dtype=np.int64)
    for z, _ in batches():
        _add_products(second, clip.integers(np.asarray(z, dtype=np.float64)[:, :k] @ basis))
    return second


def mean_basis(sums: Reals, q: int) -> Reals:
    """Return (k, q) orthonormal columns: directions between released means, then leading coordinates."""
    centred = sums - sums.mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    between = directions[: min(len(sums) - 1, q)].T
    basis, _ = np.linalg.qr(np.hstack([between, np.eye(sums.shape[1], q)]))
    return np.asarray(basis[:, :q])


def _table_noise(
    design: Design, shape: tuple[int, ...], scale: int, source: noise.Source
) -> npt.NDArray[np.int64]:
    if design.mechanism == "radial":
        return noise.radial(shape[0], shape[1], scale, source)
    return _noise(design, shape, scale, source)


def _noise(design: Design, shape: tuple[int, ...], scale: int, source: noise.Source) -> npt.NDArray[np.int64]:
    draw = noise.gaussian if design.delta else noise.laplace
    return draw(shape, scale, source)


def _noisy_second(
    second: npt.NDArray[np.int64], design: Design, scales: Scales, source: noise.Source
) -> npt.NDArray[np.int64]:
    """Return the upper triangle with noise: larger on the diagonal, zero below it."""
    q = len(second)
    noisy = np.zeros_like(second)
    above = np.triu_indices(q, 1)
    noisy[above] = second[above] + _noise(design, (above[0].size,), scales.second, source)
    corner = np.diag_indices(q)
    noisy[corner] = second[corner] + _noise(design, (q,), scales.second_diagonal, source)
    return noisy
