"""A release under pure epsilon, as a list of stages: centre, class sums, perturbed loss, check.

Every stage is calibrated and charged before the first noise is drawn; each reads the records and what earlier
stages released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.curator.clipping import Clip
from adlm.curator.ledger import Ledger
from adlm.curator.noise import Source
from adlm.curator.passes import Records
from adlm.curator.sums import add_class_sums
from adlm.curator.table_records import TableFeatures
from adlm.curator.totals import Totals, clamped
from adlm.errors import UserError
from adlm.estimation.class_counts import class_offsets
from adlm.estimation.gradient_head import FEATURE_UNIT, WEIGHT_UNIT, objective_head
from adlm.estimation.regression import BINS, ERROR_BOUND, TargetScale
from adlm.mechanism import objective as perturbed
from adlm.mechanism.planner import SETTLED, PurePlan
from adlm.privacy.accounting import Charge, Mechanism
from adlm.privacy.budget import Budget
from adlm.privacy.certificate import LEARNT_BOUNDS, SEEDED
from adlm.privacy.release import Release
from adlm.public.domain import Domain
from adlm.public.domain.encoding import TARGET_UNIT
from adlm.public.domain.table import TableDomain
from adlm.public.features import Features, described
from adlm.public.features.tables import CentredTable, IndicatorTable
from adlm.runtime import progress
from adlm.runtime.part_store import Part

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

LENGTH_STEPS = 1 << 20  # grid steps of the longest possible distance to the centre
ERROR_UNIT = 1 << 16  # grid steps in one squared standard deviation of a target
COUNT_SHARE = 0.5  # of a record's norm in class sums that counts it
GRID_POINTS = 129  # values of a mean that its prior may put weight on
PRIOR_STEPS = 200


@dataclass(frozen=True)
class Calibrated:
    """Noise scales of all stages, in grid steps, and their charges."""

    centre: int
    length: int
    sums: int
    check: int
    objective: perturbed.ObjectiveNoise
    charges: tuple[Charge, ...]


def class_sums_clip(plan: PurePlan) -> Clip:
    """The clip of a record's features in class sums, with the share of it that counts the record."""
    objective = plan.objective
    laplace = objective.noise == "laplace"
    norm = objective.norm - objective.constant if laplace else 1.0
    return Clip("l1" if laplace else "l2", (1.0,) * plan.k, norm, COUNT_SHARE)


def target_clip() -> Clip:
    """The clip of the piecewise-linear bins of a target: not negative, summing to one."""
    return Clip("l1", (1.0,) * (BINS + 1), 1.0)


def centre_clip(width: int) -> Clip:
    """The clip of encoded records around the middle of their domain, and of one half, which counts them."""
    return Clip("l2", (1.0,) * (width + 1), math.sqrt(width + 1) / 2)


def calibrate(plan: PurePlan, budget: Budget, neighbours: str, contributions: int, inputs: int) -> Calibrated:
    """Divide epsilon between the stages.

    Parameters
    ----------
    plan : the public settings.
    budget : epsilon; delta must be 0.
    neighbours, contributions : the relation, and records that one person may have.
    inputs : numbers of an encoded record of a table, of which the centre is released.

    Formal guarantees
    -----------------
    Relation: the given one. Sensitivity: asked of the clips of the stages. Guarantee: the charges add up to
    at most epsilon. Proved in docs/proof-objective.md (Theorem 3).
    """
    charges: list[Charge] = []

    def scale(what: str, noise: Mechanism, moved: Fraction, share: Fraction, proof: str) -> int:
        steps = math.ceil(moved * contributions / (budget.epsilon * share))
        charges.append(
            Charge(
                what,
                noise,
                neighbours,
                moved * contributions,
                Fraction(steps),
                proof,
                contributions=contributions,
            )
        )
        return steps

    centre = length = 0
    if plan.form == "centred":
        moved = centre_clip(inputs).rows_sensitivity(neighbours)
        centre = scale(
            "mean of the records", "radial", moved, plan.centre_share, f"{perturbed.PROOF} Lemma 2"
        )
        length = scale(
            "mean distance to it",
            "laplace",
            Fraction(LENGTH_STEPS),
            plan.length_share,
            f"{perturbed.PROOF} Lemma 2",
        )
    if plan.objective.loss == "target":
        moved = target_clip().sums_sensitivity(neighbours)
        sums = scale("counts of the target's bins", "laplace", moved, plan.sums_share, _MOMENTS)
    else:
        clip = class_sums_clip(plan)
        laplace = clip.norm == "l1"
        moved = clip.sums_sensitivity(neighbours) if laplace else clip.rows_sensitivity(neighbours)
        noise: Mechanism = "laplace" if laplace else "radial"
        sums = scale("class sums and counts", noise, moved, plan.sums_share, _MOMENTS)
    found = perturbed.calibrate(
        plan.objective, budget.epsilon * plan.objective_share, neighbours, contributions
    )
    charges.extend(found.charges)
    if plan.objective.loss == "target":
        moved = Fraction(2 * math.floor(ERROR_BOUND * ERROR_UNIT))
        what = "squared errors of the model and of the mean"
    else:
        moved, what = Fraction(1), "correct predictions"
    check = scale(what, "laplace", moved, plan.check_share, f"{perturbed.PROOF} Lemma 3")
    return Calibrated(centre, length, sums, check, found, tuple(charges))


_MOMENTS = "docs/proof-moments.md Theorem 1"


# ---- passes


@dataclass(frozen=True)
class CentreSum:
    """Partial sums of clipped encoded records less the middle of their domain, and of one half: (d + 1,)."""

    clip: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum."""
        rows = np.full((len(part[0]), part[0].shape[1] + 1), 0.5)
        rows[:, :-1] = np.clip(part[0], 0, 1) - 0.5
        return (self.clip.integers(rows).sum(0).astype(np.int64),)


@dataclass(frozen=True)
class DistanceSum:
    """Partial sums of distances to the centre, in shares of the longest possible one."""

    centre: Reals

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum, each distance rounded down to its grid."""
        apart = np.clip(part[0], 0, 1).astype(np.float64) - self.centre
        ratio = np.sqrt((apart * apart).sum(1)) / longest(self.centre)
        steps = np.clip(np.floor(ratio * LENGTH_STEPS), 0, LENGTH_STEPS)
        return (np.array([steps.sum()], dtype=np.int64),)


@dataclass(frozen=True)
class ClassSumsKept:
    """Partial sums of class sums and counts; the records are stored for the solver."""

    classes: int
    clip: Clip
    bounded: perturbed.Bounded

    def __call__(self, part: Part) -> tuple[Part, tuple[Integers, ...]]:
        """Return bounded records, (M, 1 + k) sums, and their number."""
        z, codes = np.asarray(part[0])[:, : self.bounded.width], part[1]
        table = np.zeros((self.classes, 1 + self.bounded.width), dtype=np.int64)
        add_class_sums(table, self.clip.integers(z), codes, self.clip.count)
        return self.bounded(part)[0], (table, np.array([len(codes)], dtype=np.int64))


@dataclass(frozen=True)
class TargetCountsKept:
    """Partial sums of the bins of a target; the records are stored for the solver."""

    clip: Clip
    bounded: perturbed.Bounded

    def __call__(self, part: Part) -> tuple[Part, tuple[Integers, ...]]:
        """Return bounded records, (BINS + 1,) counts, and their number."""
        counts = self.clip.integers(bins_of(part[1])).sum(0).astype(np.int64)
        return self.bounded(part)[0], (counts, np.array([len(part[1])], dtype=np.int64))


@dataclass(frozen=True)
class Standardised:
    """From stored positions of a target to standard deviations from its released mean."""

    scale: TargetScale

    def __call__(self, positions: npt.NDArray[Any]) -> Reals:
        """Return (n,) targets."""
        return self.scale.standardised(np.asarray(positions) / TARGET_UNIT)


@dataclass(frozen=True)
class SquaredErrors:
    """Partial sums of the clipped squared errors of a model and of the mean: (2,).

    Formal guarantees
    -----------------
    Each entry of a record lies between 0 and ERROR_BOUND, so that neighbours differ by at most twice that in
    the L1 norm, under either relation.
    """

    weights: Reals  # (1, 1 + k), real
    scale: TargetScale

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum squared errors."""
        rows, positions = part
        truth = self.scale.standardised(np.asarray(positions) / TARGET_UNIT)
        low, high = (float(v) for v in self.scale.standardised(np.array([0.0, 1.0])))
        predicted = np.clip((rows.astype(np.float64) @ self.weights[0]) / FEATURE_UNIT, low, high)
        errors = np.stack([(predicted - truth) ** 2, truth * truth], 1)
        steps = np.floor(np.minimum(errors, ERROR_BOUND) * ERROR_UNIT)
        return (steps.sum(0).astype(np.int64),)


def bins_of(positions: npt.NDArray[Any]) -> Reals:
    """Return (n, BINS + 1) piecewise-linear bins of positions in 0..TARGET_UNIT."""
    inside = np.clip(np.asarray(positions, dtype=np.int64), 0, TARGET_UNIT)
    width = TARGET_UNIT // BINS
    below = np.minimum(inside // width, BINS - 1)
    rest = (inside - below * width) / width
    out = np.zeros((len(inside), BINS + 1))
    out[np.arange(len(inside)), below] = 1 - rest
    out[np.arange(len(inside)), below + 1] = rest
    return out


def longest(centre: Reals) -> float:
    """Return the longest distance of a point in [0, 1]^d to a centre."""
    return math.sqrt(float((np.maximum(centre, 1 - centre) ** 2).sum()))


def likely_means(noisy: Reals, spread: float) -> Reals:
    """Return the posterior means of numbers in [0, 1], given their noise.

    All share one prior, which is the most likely one given the noisy numbers (Kiefer and Wolfowitz 1956, by
    expectation maximisation on a grid). So numbers that noise hides are taken to be alike.

    Parameters
    ----------
    noisy : (d,) noisy numbers.
    spread : standard deviation of their noise.
    """
    grid = np.linspace(0.0, 1.0, GRID_POINTS)
    log = -0.5 * ((noisy[:, None] - grid) / max(spread, 1e-6)) ** 2
    likelihood = np.exp(log - log.max(1, keepdims=True))
    prior = np.full(GRID_POINTS, 1 / GRID_POINTS)
    posterior = likelihood * prior
    for _ in range(PRIOR_STEPS):
        posterior = likelihood * prior
        posterior /= posterior.sum(1, keepdims=True)
        prior = posterior.mean(0)
    return np.asarray(np.rint((posterior @ grid) * (1 << 20)) / (1 << 20))


# ---- the release


def release(
    records: Records,
    subject: Domain | TableDomain,
    *,
    plan: PurePlan,
    budget: Budget,
    ledger: Ledger,
    source: Source,
    features: Features | None = None,
    contributions: int = 1,
    settings: Mapping[str, Any] | None = None,
    stamps: tuple[str, ...] = (),
    unproved: str = "",
) -> Release:
    """Make a release under pure epsilon.

    Parameters
    ----------
    records : encoded records of a table with class codes or positions of the target; or features of images
        and vectors with class codes.
    subject : their declared domain.
    plan : the public settings.
    budget : epsilon.
    ledger : the charges are written there before noise is drawn.
    source : of the noise.
    features : the public map that made the features; None for a table.
    contributions : records that one person may have.
    settings : further public facts for the certificate.
    stamps, unproved : warnings that travel with the release, and why no epsilon is proved, if so.

    Formal guarantees
    -----------------
    Relation: the domain's. Guarantee: the charges of `calibrate`, all of them in the ledger before the first
    noise is drawn. Proved in docs/proof-objective.md. n is kept only where it is public: under replace-one
    with one record a person.
    """
    table = subject if isinstance(subject, TableDomain) else None
    inputs = sum(column.width for column in table.features) if table is not None else 0
    calibrated = calibrate(plan, budget, subject.neighbours, contributions, inputs)
    domain = subject.domain if isinstance(subject, TableDomain) else subject
    unproved = unproved or (LEARNT_BOUNDS if domain.bounds_learnt_from_data else "")
    charges = tuple(replace(c, unproved=unproved, contributions=contributions) for c in calibrated.charges)
    ledger.check(*charges)
    objective = plan.objective
    public = subject.neighbours == "replace-one" and contributions == 1  # else n is private
    tensors: dict[str, npt.NDArray[Any]] = {}
    charged = False
    if table is not None and plan.form == "centred":
        with progress.bar(records.rows, "mean of the records", "records") as advance:
            total = records.total(CentreSum(centre_clip(inputs)), advance)
        if total is None:
            raise UserError("there are no records to release; give at least one")
        ledger.charge(*charges)
        charged = True
        features, tensors = _centred(records, table, plan, calibrated, total, source, public=public)
    elif table is not None:
        features = IndicatorTable(table)
    assert features is not None
    mapped = records if table is None else records.mapped(TableFeatures(features))
    bounded = perturbed.Bounded(objective, plan.k)
    keep: Callable[[Part], tuple[Part, tuple[Integers, ...]]]
    if objective.loss == "target":
        keep = TargetCountsKept(target_clip(), bounded)
    else:
        keep = ClassSumsKept(objective.classes, class_sums_clip(plan), bounded)
    what = "counts of the target" if objective.loss == "target" else "class sums"
    with progress.bar(records.rows, what, "records") as advance:
        kept, sums = mapped.keep(keep, advance)
    if sums is None:
        raise UserError("there are no records to release; give at least one")
    if not charged:
        ledger.charge(*charges)
    n = int(sums[1].integers()[0])
    try:
        more, facts = _learnt(kept, sums[0].integers(), plan, calibrated, source)
    finally:
        kept.close()
    tensors |= more
    return Release.make(
        {name: torch.from_numpy(value) for name, value in tensors.items()},
        kind="regression" if objective.loss == "target" else "moments",
        domain=domain,
        features=described(features),
        settings={
            "n": n if public else None,
            "mechanism": objective.noise,
            "k": plan.k,
            "contributions": contributions,
            "objective": objective.to_dict(),
            "noise_scale": calibrated.objective.scale,
            "plan": plan.to_dict(),
            "asked": budget.to_dict(),
        }
        | facts
        | dict(settings or {}),
        charges=charges,
        stamps=stamps + ((SEEDED,) if source.seeded else ()),
    )


def _centred(
    records: Records,
    table: TableDomain,
    plan: PurePlan,
    calibrated: Calibrated,
    total: Totals,
    source: Source,
    *,
    public: bool,
) -> tuple[CentredTable, dict[str, npt.NDArray[Any]]]:
    """Release centre and length of a table's records, and return its features."""
    sums = clamped(source.add(total[0].integers(), "radial", calibrated.centre))
    step = float(centre_clip(len(sums) - 1).steps[0])
    size = float(plan.objective.size) if public else max(2 * step * float(sums[-1]), 1.0)
    spread = calibrated.centre * math.sqrt(len(sums) + 1.0) * step / size
    centre = likely_means(np.asarray(0.5 + sums[:-1] * (step / size), dtype=np.float64), spread)
    with progress.bar(records.rows, "distance to the mean", "records") as advance:
        distances = records.total(DistanceSum(centre), advance)
    assert distances is not None
    noisy = clamped(source.add(distances[0].integers(), "laplace", calibrated.length))
    mean = float(noisy[0]) / (LENGTH_STEPS * size) * longest(centre)
    length = max(SETTLED.length * mean, 0.01 * longest(centre))
    features = CentredTable(table, centre, round(length, 6), plan.fourier)
    return features, {"centre": sums, "distance": noisy}


def _learnt(
    kept: Records, sums: npt.NDArray[Any], plan: PurePlan, calibrated: Calibrated, source: Source
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Release the sums, the minimum of the perturbed loss, and its check; also the noise, for a reader."""
    objective = plan.objective
    if objective.loss == "target":
        counts = clamped(source.add(sums, "laplace", calibrated.sums))
        scale = TargetScale.of(counts)
        weights = perturbed.perturbed_minimum(
            kept, objective, calibrated.objective, np.zeros(1), source, plan.k, Standardised(scale)
        )
        head = objective_head(weights, np.zeros(1), objective.constant)
        real = head.integers / WEIGHT_UNIT
        errors = kept.total(SquaredErrors(real, scale))
        assert errors is not None
        noisy = clamped(source.add(errors[0].integers(), "laplace", calibrated.check))
        tensors = {"target": counts, "weights": weights, "errors": noisy}
        return tensors, {
            "sd_target": calibrated.sums * math.sqrt(2.0),
            "sd_errors": calibrated.check * math.sqrt(2.0),
            "error_unit": ERROR_UNIT,
            "target_unit": target_clip().record_norm_bound,
            "method": "objective",
        }
    clip = class_sums_clip(plan)
    noise: Mechanism = "laplace" if clip.norm == "l1" else "radial"
    table = clamped(sums + source.draw(noise, sums.shape, calibrated.sums))
    sd = calibrated.sums * (math.sqrt(2.0) if noise == "laplace" else math.sqrt(2.0 + plan.k))
    offsets = class_offsets(table[:, 0], sd)
    weights = perturbed.perturbed_minimum(kept, objective, calibrated.objective, offsets, source, plan.k)
    head = objective_head(weights, offsets, objective.constant)
    correct = kept.total(perturbed.Correct(head.integers.astype(np.int64)))
    assert correct is not None
    tensors = {
        "class_sums": table,
        "step": np.concatenate([[1 / clip.count], clip.steps]),
        "weights": weights,
        "correct": clamped(source.add(correct[0].integers(), "laplace", calibrated.check)),
    }
    return tensors, {"sd_sums": sd, "sd_correct": calibrated.check * math.sqrt(2.0)}
