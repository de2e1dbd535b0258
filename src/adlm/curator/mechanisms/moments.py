"""The moment release: noise on whole-data sums of frozen public features.

The degree-2 loss needs only class sums, counts and second moments of z = h0(x). They are computed in exact
integers, charged, and released once with exact noise. Proofs: docs/proof-moments.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from adlm.curator.clipping import EXACT_ROWS, Clip, Norm
from adlm.curator.feature_store import FeatureStore
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms import second_moments as stage
from adlm.curator.mechanisms.gradient_rounds import (
    GradientClip,
    count_correct,
    feature_integers,
    predicted_sensitivity,
    run_rounds,
    sum_predicted,
)
from adlm.curator.mechanisms.second_moments import Batch, Batches, CrossMoments, Second
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.estimation.gradient_head import (
    RESIDUAL_UNIT,
    GradientRounds,
    Head,
    calibrated,
    calibration_spread,
    class_offsets,
    final_head,
)
from adlm.estimation.moments import Moments
from adlm.privacy.accounting import Charge, Mechanism, compose, gaussian_mu, root_up
from adlm.privacy.release import SEEDED, Release
from adlm.public.domain import Domain
from adlm.public.features import Features, described

__all__ = [
    "Batch",
    "Batches",
    "CrossMoments",
    "MomentConfig",
    "Scales",
    "Second",
    "calibrate",
    "facts",
    "release_moments",
]
PROOF = "docs/proof-moments.md"
ROUNDS_PROOF = "docs/proof-gradients.md"
CHECK_SHARE = Fraction(1, 50)  # of the budget, to count the records that the head gets right
CALIBRATIONS = 2  # times that a table's class offsets are moved by sums of predicted probabilities
ACROSS = "products across the basis"


@dataclass(frozen=True)
class Indicators:
    """The first passes over a table: a noisy count of each indicator, then second moments of its values.

    Attributes
    ----------
    width : number of indicators.
    blocks : columns and crosses, each with a vector of non-negative numbers that sum to one.
    share : of the budget, in mu squared.
    values : number of standardised values whose second moments are released; 0 leaves them out.
    values_share : of the budget, for the second moments.
    """

    width: int
    blocks: int
    share: Fraction
    values: int = 0
    values_share: Fraction = Fraction(0)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "width": self.width,
            "blocks": self.blocks,
            "share": str(self.share),
            "values": self.values,
            "values_share": str(self.values_share),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Indicators:
        """Read what `to_dict` wrote."""
        return cls(
            int(raw["width"]),
            int(raw["blocks"]),
            Fraction(raw["share"]),
            int(raw.get("values", 0)),
            Fraction(raw.get("values_share", 0)),
        )

    def clip(self) -> Clip:
        """The clip of a record's indicators."""
        return Clip("l2", (1.0,) * self.width, math.sqrt(self.blocks))

    def values_clip(self) -> Clip:
        """The clip of a record's values, scaled to length 1."""
        return Clip("l2", (1.0,) * self.values, 1.0)


@dataclass(frozen=True)
class MomentConfig:
    """The public settings of a moment release. Nothing here may be learnt from the records for free.

    Attributes
    ----------
    epsilon, delta : the budget; delta 0 means Laplace noise.
    k : coordinates summed.
    clip_norm : clip level of z in the norm of the noise.
    scales : (k,) relative noise scales b_j (the allocation); None: identical.
    constant : share of the clip that carries the class counts.
    share_sums : share of the budget for class sums and counts when second moments are released too.
    second : which second moments, or None.
    contributions : records one person may have; the guarantee is for a person.
    pure : the noise on class sums when delta is 0: `laplace`, best for sparse vectors, or `radial`, best for
        dense ones.
    rounds : gradient rounds after the class sums; they take what `share_sums` leaves.
    indicators : the counts of a table that come before everything else, and their share of the budget.
    """

    epsilon: Fraction
    delta: Fraction
    k: int
    clip_norm: float
    scales: tuple[float, ...] | None = None
    constant: float = 0.2
    share_sums: Fraction = Fraction(3, 5)
    second: Second | None = None
    contributions: int = 1
    pure: Literal["laplace", "radial"] = "laplace"
    rounds: GradientRounds | None = None
    indicators: Indicators | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and (self.mechanism == "laplace" or self.second is not None):
            raise UserError("gradient rounds come with Gaussian or radial noise and without second moments")
        if self.indicators is not None and self.indicators.values and not self.delta:
            raise UserError("second moments of a table's values come with Gaussian noise, which needs delta")

    @property
    def mechanism(self) -> Mechanism:
        """The noise on class sums."""
        return "gaussian" if self.delta else self.pure

    @property
    def second_mechanism(self) -> Mechanism:
        """The noise on second moments: that on class sums."""
        return self.mechanism

    def clip(self) -> Clip:
        """The clip of class sums."""
        norm: Norm = "l1" if self.mechanism == "laplace" else "l2"
        return Clip(norm, self.scales or (1.0,) * self.k, self.clip_norm, self.constant)

    @property
    def calibrations(self) -> int:
        """How often sums of predicted probabilities are released: for tables, with delta."""
        return CALIBRATIONS if self.rounds is not None and self.indicators is not None and self.delta else 0

    def second_clip(self) -> Clip | None:
        """The clip of second moments: that of the sums when the cost is joint, else one without a count."""
        if self.second is None:
            return None
        if self.joint:
            return self.clip()
        scales = self.second.scales or (1.0,) * self.second.q
        return Clip("l1" if self.mechanism == "laplace" else "l2", scales, self.second.clip_norm)

    @property
    def joint(self) -> bool:
        """Whether sums and second moments see the same clipped rows, so that their cost is joint."""
        return (
            self.second is not None
            and self.delta > 0
            and not self.second.later
            and (self.scales, self.clip_norm) == (None, self.second.clip_norm)
            and self.second.scales is None
        )


@dataclass(frozen=True)
class Scales:
    """Integer noise scales, in grid steps."""

    sums: int
    second: int = 0  # off the diagonal; radial noise: of the weighted triangle
    second_diagonal: int = 0
    cross: int = 0
    gradients: int = 0
    indicators: int = 0
    correct: int = 0
    values: int = 0  # on the diagonal
    predicted: int = 0


def calibrate(design: MomentConfig, neighbours: str) -> tuple[Scales, tuple[Charge, ...]]:
    """Return the smallest integer noise scales that keep to the budget, and their charges.

    Formal guarantees
    -----------------
    Relation: the given one. Sensitivity: asked of the `Clip` that clips. Guarantee: the charges compose to
    at most the design's epsilon and delta; they are computed from the integers returned, not from the
    request. Proved in docs/proof-moments.md (Theorems 1 to 3).
    """
    if not design.delta:
        if design.rounds is not None:
            return _calibrate_rounds(design, design.rounds, neighbours, design.epsilon / design.contributions)
        return _calibrate_pure(design, neighbours)
    mu = gaussian_mu(design.epsilon, design.delta) / design.contributions
    while True:  # once, unless rounding up in the charge costs more than rounding down in mu left
        scales, charges = _calibrate_gaussian(design, neighbours, mu)
        if compose(charges).epsilon_proved <= design.epsilon:
            return scales, charges
        mu *= Fraction(999_999, 1_000_000)


def _calibrate_pure(design: MomentConfig, neighbours: str) -> tuple[Scales, tuple[Charge, ...]]:
    share = design.share_sums if design.second else Fraction(1)
    people = design.contributions
    radial = design.mechanism == "radial"
    clipped = design.clip()
    sums = people * (clipped.rows_sensitivity if radial else clipped.sums_sensitivity)(neighbours)
    scale = math.ceil(sums / (share * design.epsilon))
    charges = [_charge("class sums and counts", design.mechanism, neighbours, sums, scale, "Theorem 1")]
    clip = design.second_clip()
    if clip is None or design.second is None:
        return Scales(scale), tuple(charges)
    inner, outer = stage.split((1 - share) * design.epsilon, design.second)
    sensitivity = stage.triangle_sensitivity if radial else Clip.second_sensitivity
    second = people * sensitivity(clip, neighbours)
    fine = math.ceil(second / inner)
    charges.append(_charge("second moments", design.mechanism, neighbours, second, fine, "Theorem 1"))
    scales = Scales(scale, fine, fine if radial else 2 * fine)
    if not outer:
        return scales, tuple(charges)
    if not radial:
        raise UserError("products across the basis come with radial or Gaussian noise, not with Laplace")
    moved = people * stage.cross_sensitivity(*design.second.cross_clips(), neighbours)
    across = math.ceil(moved / outer)
    charges.append(_charge(ACROSS, "radial", neighbours, moved, across, "Theorem 1"))
    return Scales(scale, fine, fine, across), tuple(charges)


def _calibrate_gaussian(
    design: MomentConfig, neighbours: str, mu: Fraction
) -> tuple[Scales, tuple[Charge, ...]]:
    if design.rounds is not None:
        return _calibrate_rounds(design, design.rounds, neighbours, mu)
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
        assert design.second is not None
        inner, outer = stage.split(1 - share, design.second)
        second = fine_clip.second_sensitivity(neighbours)
        diagonal = math.ceil(second / (mu * root_down(inner)))
        charges.append(
            _charge("second moments", "gaussian", neighbours, second * design.contributions, diagonal,
                    "Theorem 2", design.delta)
        )  # fmt: skip
        if not outer:
            return Scales(scale, off_diagonal(diagonal), diagonal), tuple(charges)
        moved = stage.cross_sensitivity(*design.second.cross_clips(), neighbours)
        across = math.ceil(moved / (mu * root_down(outer)))
        charges.append(
            _charge(ACROSS, "gaussian", neighbours, moved * design.contributions, across,
                    "Theorem 2", design.delta)
        )  # fmt: skip
        return Scales(scale, off_diagonal(diagonal), diagonal, across), tuple(charges)
    # P : Q = share : 1 - share; mu^2 is homogeneous in both, so one trial scale gives the right one
    bound = Fraction(clip.feature_norm_bound)
    p, q = share, 1 - share
    trial = clip.joint_loss_squared(bound / root_down(p), bound**2 / root_down(q), neighbours)
    stretch = root_up(trial) / mu
    scale = math.ceil(bound / root_down(p) * stretch)
    diagonal = math.ceil(bound**2 / root_down(q) * stretch)
    loss = root_up(clip.joint_loss_squared(Fraction(scale), Fraction(diagonal), neighbours))
    charge = _charge("class sums, counts and second moments", "gaussian", neighbours,
                     loss * design.contributions, 1, "Theorem 3", design.delta)  # fmt: skip
    return Scales(scale, off_diagonal(diagonal), diagonal), (charge,)


def _calibrate_rounds(
    design: MomentConfig, rounds: GradientRounds, neighbours: str, loss: Fraction
) -> tuple[Scales, tuple[Charge, ...]]:
    """Indicators, class sums and gradient rounds, each with its share of the budget.

    `loss` is mu, whose square adds up, for Gaussian noise, and epsilon, which adds up, for radial noise.
    """
    gaussian, charges, scales = design.mechanism == "gaussian", [], []

    def add(what: str, moved: Fraction, share: Fraction, proof: str) -> None:
        part = loss * root_down(share) if gaussian else loss * share
        scales.append(math.ceil(moved / part))
        charges.append(
            Charge(what, design.mechanism, neighbours, moved * design.contributions, Fraction(scales[-1]),
                   proof, design.delta)
        )  # fmt: skip

    left, clip, first = Fraction(1), design.clip(), design.indicators
    if first is not None:
        moved = first.clip().counts_sensitivity(neighbours)
        add("counts of indicators", moved, first.share, f"{ROUNDS_PROOF} Theorem 1")
        left -= first.share
    if first is not None and first.values:
        moved = first.values_clip().second_sensitivity(neighbours)
        add("second moments of values", moved, first.values_share, f"{PROOF} Theorem 2")
        left -= first.values_share
    moved = clip.sums_sensitivity(neighbours) if gaussian else clip.rows_sensitivity(neighbours)
    theorem = "Theorem 2" if gaussian else "Theorem 1"
    add("class sums and counts", moved, left * design.share_sums, f"{PROOF} {theorem}")
    one = GradientClip(rounds.clip_norm, rounds.constant).sensitivity(neighbours)
    every = root_up(rounds.rounds * one**2) if gaussian else rounds.rounds * one
    what = f"gradients of {rounds.rounds} rounds"
    checks = 2 * CHECK_SHARE if design.calibrations else CHECK_SHARE
    add(what, every, left * (1 - design.share_sums - checks), f"{ROUNDS_PROOF} Theorem 2")
    sums, gradients = scales[-2:]
    predicted = 0
    if design.calibrations:
        moved = root_up(design.calibrations * predicted_sensitivity(neighbours) ** 2)
        add("sums of predicted probabilities", moved, left * CHECK_SHARE, f"{ROUNDS_PROOF} Theorem 3")
        predicted = scales[-1]
    add("records that the head gets right", Fraction(1), left * CHECK_SHARE, f"{ROUNDS_PROOF} Theorem 4")
    return Scales(
        sums,
        gradients=gradients,
        indicators=scales[0] if first is not None else 0,
        correct=scales[-1],
        values=scales[1] if first is not None and first.values else 0,
        predicted=predicted,
    ), tuple(charges)


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
    design: MomentConfig,
    ledger: Ledger,
    source: Source,
    settings: dict[str, Any] | None = None,
    stamps: tuple[str, ...] = (),
    unproved: str = "",
    earlier: tuple[Charge, ...] = (),
    extra: dict[str, torch.Tensor] | None = None,
    charged: bool = False,
) -> Release:
    """Make a moment release: one pass over the records for the sums, a second one if its basis needs it.

    Parameters
    ----------
    batches : gives (features, codes) batches, the same ones each time it is called.
    settings : public facts to keep in the certificate beside the design, such as the plan's reasons.
    stamps, unproved : what the inputs bring along: warnings, and why no epsilon is proved.
    earlier : charges, already in the ledger, of what the design was chosen by, such as private relevances.
    extra : tensors that go into the release beside the moments; private already, or public.
    charged : the design's charges are in the ledger already, because its indicators were counted first.

    Formal guarantees
    -----------------
    Relation: the domain's. Guarantee: `calibrate`. Every charge is in the ledger before noise is drawn. n is
    kept only where it is public: under replace-one with one record a person.
    """
    scales, charges = calibrate(design, domain.neighbours)
    charges = tuple(replace(c, unproved=unproved) for c in charges) if unproved else charges
    store = FeatureStore(design.k) if design.rounds is not None else None
    table, second, n = _sums(batches, len(domain.classes), design, store)
    if n == 0:
        raise UserError("there are no records to release; give at least one")
    if not charged:
        ledger.charge(*charges)
    table += source.draw(design.mechanism, table.shape, scales.sums)
    clip, fine_clip = design.clip(), design.second_clip()
    step = np.concatenate([[1 / clip.count if clip.count else 0.0], clip.steps])
    tensors = {"class_sums": torch.from_numpy(table), "step": torch.from_numpy(step)}
    public = domain.neighbours == "replace-one" and design.contributions == 1  # else n is private
    stated = facts(design, scales, n if public else None, len(domain.classes))
    if design.second is not None and fine_clip is not None:
        across = None
        if design.second.later:
            known, outer = stage.second_moment_basis(Moments.from_tensors(tensors, stated), design.second)
            second, across = stage.products(
                batches, known.get("centres"), known.get("basis"), fine_clip, outer
            )
            tensors |= {name: torch.from_numpy(value) for name, value in known.items()}
        assert second is not None
        tensors["second"] = torch.from_numpy(
            stage.noisy_triangle(second, design.mechanism, scales.second, scales.second_diagonal, source)
        )
        tensors["step_second"] = torch.from_numpy(fine_clip.steps[: design.second.q].copy())
        if across is not None and outer is not None:
            tensors["cross"] = torch.from_numpy(source.add(across, design.mechanism, scales.cross))
            tensors["step_cross"] = torch.tensor(outer[1].steps[0] * outer[2].steps[0], dtype=torch.float64)
    if design.rounds is not None and store is not None:
        offsets = class_offsets(table[:, 0])
        gradients = run_rounds(store, design.rounds, offsets, (design.mechanism, scales.gradients), source)
        head = final_head(gradients, design.rounds, offsets)
        if design.calibrations:
            head, predicted = _calibrate_head(head, store, design, (table, scales), source)
            tensors["predicted"] = torch.from_numpy(predicted)
        correct = source.add(count_correct(store, head, design.rounds), design.mechanism, scales.correct)
        tensors |= {"gradients": torch.from_numpy(gradients), "correct": torch.from_numpy(correct)}
        store.close()
    return Release.make(
        tensors | (extra or {}),
        kind="moments",
        domain=domain,
        features=described(features),
        settings=stated | (settings or {}),
        charges=earlier + charges,
        stamps=stamps + ((SEEDED,) if source.seeded else ()),
    )


def _calibrate_head(
    head: Head,
    store: FeatureStore,
    design: MomentConfig,
    released: tuple[npt.NDArray[np.int64], Scales],
    source: Source,
) -> tuple[Head, npt.NDArray[np.int64]]:
    """Move a head's class offsets by noisy sums of what it predicts; the sums are (calibrations, M)."""
    assert design.rounds is not None
    (table, scales), step = released, 1 / design.clip().count
    counts = table[:, 0].astype(np.float64) * step
    spread = calibration_spread(float(scales.sums) * step, float(scales.predicted))
    found = np.empty((design.calibrations, len(table)), dtype=np.int64)
    for row in found:
        total = sum_predicted(store, head, design.rounds)
        row[...] = source.add(total, "gaussian", scales.predicted)
        head = calibrated(head, counts, row.astype(np.float64) / RESIDUAL_UNIT, spread)
    return head, found


def facts(design: MomentConfig, scales: Scales, n: int | None, classes: int) -> dict[str, Any]:
    """Return what a certificate says of the design and its noise."""
    second, spread = design.second, _spread(design.mechanism, 1 + design.k)
    beside = diagonal = across = 0.0
    if second is not None:
        beside = diagonal = _spread(design.mechanism, second.q * (second.q + 1) // 2)
        if design.mechanism == "radial":
            beside, diagonal = beside / stage.OFF_DIAGONAL, diagonal / stage.DIAGONAL
        width = (design.k - second.q) * min(classes - 1, second.q)
        across = _spread(design.mechanism, width) if second.cross else 0.0
    return {
        "n": n,
        "mechanism": design.mechanism,
        "k": design.k,
        "level": design.clip_norm,
        "constant": design.constant,
        "share_sums": str(design.share_sums if second is not None or design.rounds else Fraction(1)),
        "allocation": "identical" if design.scales is None else "adaptive",
        "second": None if second is None else second.to_dict(),
        "contributions": design.contributions,
        "sd_sums": spread * scales.sums,
        "sd_second": beside * scales.second,
        "sd_second_diagonal": diagonal * scales.second_diagonal,
        "sd_cross": across * scales.cross,
        "rounds": None if design.rounds is None else design.rounds.to_dict(),
        "sd_gradients": scales.gradients * _spread(design.mechanism, classes * (1 + design.k)),
        "sd_correct": scales.correct * _spread(design.mechanism, 1),
        "indicators": design.indicators and design.indicators.to_dict(),
        "sd_indicators": scales.indicators
        * (_spread(design.mechanism, design.indicators.width) if design.indicators else 0.0),
        "sd_values": scales.values,
        "sd_predicted": scales.predicted,
    }


def _spread(mechanism: Mechanism, width: int) -> float:
    """Return the standard deviation of a coordinate of noise of scale 1 on rows of some width."""
    return {"laplace": math.sqrt(2.0), "radial": math.sqrt(1.0 + width), "gaussian": 1.0}[mechanism]


def _sums(
    batches: Batches, classes: int, design: MomentConfig, store: FeatureStore | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None, int]:
    """Sum clipped records by class, and their products when the same pass serves for both."""
    clip, fine_clip = design.clip(), design.second_clip()
    table = np.zeros((classes, 1 + design.k), dtype=np.int64)
    at_once = design.second is not None and not design.second.later
    second = np.zeros((design.second.q,) * 2, dtype=np.int64) if design.second and at_once else None
    n = 0
    for z, codes in batches():
        values = np.asarray(z)[:, : design.k]
        n += len(values)
        if store is not None:
            store.append(feature_integers(values), codes)
        rows = clip.integers(values)
        for start in range(0, len(rows), EXACT_ROWS):
            block, labels = rows[start : start + EXACT_ROWS], codes[start : start + EXACT_ROWS]
            member = np.zeros((len(block), classes))
            member[np.arange(len(block)), labels] = 1.0
            table[:, 1:] += (member.T @ block).astype(np.int64)
            table[:, 0] += clip.count * member.sum(0).astype(np.int64)
        if second is not None and design.second is not None and fine_clip is not None:
            q = design.second.q
            part = rows[:, :q] if design.joint else fine_clip.integers(values[:, :q])
            stage.add_products(second, part, part)
    return table, second, n
