"""A release as a list of stages: centre, class sums, perturbed loss, check.

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

from adlm.domain import Domain
from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.engine.passes import Part, Records, Totals, clamped
from adlm.engine.records import TableFeatures
from adlm.errors import UserError
from adlm.features import Features, described
from adlm.features.tables import CentredTable, IndicatorTable
from adlm.mechanism import objective as perturbed
from adlm.mechanism.class_sums import add_class_sums
from adlm.mechanism.planner import SETTLED, PurePlan
from adlm.model.estimates import class_offsets
from adlm.model.head import BINS, ERROR_BOUND, FEATURE_UNIT, WEIGHT_UNIT, TargetScale, objective_head
from adlm.privacy.accounting import GAUSSIAN, Budget, Charge, Gaussians, Mechanism, gaussian_mu, show
from adlm.privacy.certificate import LEARNT_BOUNDS, SEEDED
from adlm.privacy.clipping import Clip
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import progress
from adlm.runtime.arithmetic import root_down, root_up

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

LENGTH_STEPS = 1 << 20  # grid steps of the longest possible distance to the centre
ERROR_UNIT = 1 << 16  # grid steps in one squared standard deviation of a target
COUNT_SHARE = 0.5  # of a record's norm in class sums that counts it
GRID_POINTS = 129  # values of a mean that its prior may put weight on
PRIOR_STEPS = 200
MU_STEPS = 1 << 16  # of the search for the largest mu within a budget


@dataclass(frozen=True)
class Calibrated:
    """Noise scales of all stages, in grid steps, and their charges."""

    centre: int
    length: int
    sums: int
    check: int
    objective: perturbed.ObjectiveNoise
    charges: tuple[Charge, ...]


def scalar_noise(plan: PurePlan) -> Mechanism:
    """The noise of stages that release one number, or numbers in the L1 norm."""
    return "gaussian" if plan.objective.noise == "gaussian" else "laplace"


def row_noise(plan: PurePlan) -> Mechanism:
    """The noise of stages that release rows of numbers in the L2 norm."""
    return "gaussian" if plan.objective.noise == "gaussian" else "radial"


def spread(noise: Mechanism, width: int) -> float:
    """Return the standard deviation of noise on each of `width` numbers, in units of its scale."""
    return {"laplace": math.sqrt(2.0), "radial": math.sqrt(1.0 + width), "gaussian": 1.0}[noise]


def class_sums_clip(plan: PurePlan) -> Clip:
    """The clip of a record's features in class sums, with the share of it that counts the record."""
    objective = plan.objective
    laplace = objective.noise == "laplace"
    norm = objective.norm - objective.constant if laplace else 1.0
    return Clip("l1" if laplace else "l2", (1.0,) * plan.k, norm, COUNT_SHARE)


def sums_noise(plan: PurePlan) -> Mechanism:
    """The noise of class sums."""
    return scalar_noise(plan) if class_sums_clip(plan).norm == "l1" else row_noise(plan)


def target_clip(noise: Mechanism = "laplace") -> Clip:
    """The clip of the piecewise-linear bins of a target: not negative, summing to one."""
    return Clip("l2" if noise == "gaussian" else "l1", (1.0,) * (BINS + 1), 1.0)


def centre_clip(width: int) -> Clip:
    """The clip of encoded records around the middle of their domain, and of one half, which counts them."""
    return Clip("l2", (1.0,) * (width + 1), math.sqrt(width + 1) / 2)


def calibrate(plan: PurePlan, budget: Budget, neighbours: str, contributions: int, inputs: int) -> Calibrated:
    """Divide the budget between the stages: epsilon, or mu^2 of Gaussian noise.

    Parameters
    ----------
    plan : the public settings.
    budget : epsilon and delta; delta goes with Gaussian noise.
    neighbours, contributions : the relation, and records that one person may have.
    inputs : numbers of an encoded record of a table, of which the centre is released.

    Formal guarantees
    -----------------
    Relation: the given one. Sensitivity: asked of the clips of the stages. Guarantee: the charges compose to
    at most the budget. Proved in docs/proof-objective.md (Theorems 3 and 4).
    """
    if (plan.objective.noise == "gaussian") != bool(budget.delta):
        raise UserError("a plan with Gaussian noise needs delta, and no other plan can use it")

    def calibrated(loss: Fraction) -> Calibrated:
        return _calibrated(plan, budget, neighbours, contributions, inputs, loss)

    if not budget.delta:
        return calibrated(budget.epsilon)

    def holds(loss: Fraction) -> bool:
        charges = calibrated(loss).charges
        rest = budget.epsilon - sum((c.loss for c in charges if c.mechanism not in GAUSSIAN), Fraction(0))
        return Gaussians.of(charges).delta(Fraction(math.floor(rest * 10**6), 10**6)) <= budget.delta

    most = gaussian_mu(budget.epsilon, budget.delta)
    low, high = 0, MU_STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(most * Fraction(middle, MU_STEPS)) else (low, middle)
    if not low:
        raise UserError(f"epsilon {show(budget.epsilon)} is too small for these settings; raise it")
    return calibrated(most * Fraction(low, MU_STEPS))


def _calibrated(
    plan: PurePlan, budget: Budget, neighbours: str, contributions: int, inputs: int, loss: Fraction
) -> Calibrated:
    """Calibrate the stages to a pure epsilon, or to the mu of all Gaussian noise together."""
    charges: list[Charge] = []

    def part(share: Fraction) -> Fraction:
        return loss * (root_down(share) if budget.delta else share)

    def scale(what: str, noise: Mechanism, moved: Fraction, share: Fraction, proof: str) -> int:
        moved = moved * contributions
        steps = math.ceil(moved / part(share))
        charges.append(
            Charge(
                what,
                noise,
                neighbours,
                moved,
                Fraction(steps),
                proof,
                budget.delta,
                contributions=contributions,
            )
        )
        return steps

    centre = length = 0
    numbers, rows, lemma = scalar_noise(plan), row_noise(plan), f"{perturbed.PROOF} Lemma"
    if plan.form == "centred":
        moved = centre_clip(inputs).rows_sensitivity(neighbours)
        centre = scale("mean of the records", rows, moved, plan.centre_share, f"{lemma} 2")
        moved = Fraction(LENGTH_STEPS)
        length = scale("mean distance to it", numbers, moved, plan.length_share, f"{lemma} 2")
    if plan.objective.loss == "target":
        bins = target_clip(numbers)
        moved = (bins.counts_sensitivity if bins.norm == "l2" else bins.sums_sensitivity)(neighbours)
        sums = scale("counts of the target's bins", numbers, moved, plan.sums_share, _MOMENTS)
    else:
        clip, noise = class_sums_clip(plan), sums_noise(plan)
        moved = (clip.rows_sensitivity if noise == "radial" else clip.sums_sensitivity)(neighbours)
        sums = scale("class sums and counts", noise, moved, plan.sums_share, _MOMENTS)
    if budget.delta:
        found = perturbed.calibrate(
            plan.objective,
            budget.epsilon,
            neighbours,
            contributions,
            mu=part(plan.objective_share),
            delta=budget.delta,
        )
    else:
        found = perturbed.calibrate(plan.objective, part(plan.objective_share), neighbours, contributions)
    charges.extend(found.charges)
    if plan.objective.loss == "target":
        bound = Fraction(math.floor(ERROR_BOUND * ERROR_UNIT))
        moved = root_up(2 * bound**2) if budget.delta else 2 * bound
        what = "squared errors of the model and of the mean"
    else:
        moved, what = Fraction(1), "correct predictions"
    check = scale(what, numbers, moved, plan.check_share, f"{lemma} 3")
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
        counts = self.clip.counts(bins_of(part[1])).sum(0).astype(np.int64)
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
    """Make a release by a perturbed loss.

    Parameters
    ----------
    records : encoded records of a table with class codes or positions of the target; or features of images
        and vectors with class codes.
    subject : their declared domain.
    plan : the public settings.
    budget : epsilon and delta.
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
        keep = TargetCountsKept(target_clip(scalar_noise(plan)), bounded)
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
    noise = row_noise(plan)
    sums = clamped(source.add(total[0].integers(), noise, calibrated.centre))
    step = float(centre_clip(len(sums) - 1).steps[0])
    size = float(plan.objective.size) if public else max(2 * step * float(sums[-1]), 1.0)
    sd = calibrated.centre * spread(noise, len(sums)) * step / size
    centre = likely_means(np.asarray(0.5 + sums[:-1] * (step / size), dtype=np.float64), sd)
    with progress.bar(records.rows, "distance to the mean", "records") as advance:
        distances = records.total(DistanceSum(centre), advance)
    assert distances is not None
    noisy = clamped(source.add(distances[0].integers(), scalar_noise(plan), calibrated.length))
    mean = float(noisy[0]) / (LENGTH_STEPS * size) * longest(centre)
    length = max(SETTLED.length * mean, 0.01 * longest(centre))
    features = CentredTable(table, centre, round(length, 6), plan.fourier)
    return features, {"centre": sums, "distance": noisy}


def _learnt(
    kept: Records, sums: npt.NDArray[Any], plan: PurePlan, calibrated: Calibrated, source: Source
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Release the sums, the minimum of the perturbed loss, and its check; also the noise, for a reader."""
    objective, numbers = plan.objective, scalar_noise(plan)
    if objective.loss == "target":
        counts = clamped(source.add(sums, numbers, calibrated.sums))
        scale = TargetScale.of(counts)
        weights = perturbed.perturbed_minimum(
            kept, objective, calibrated.objective, np.zeros(1), source, plan.k, Standardised(scale)
        )
        head = objective_head(weights, np.zeros(1), objective.constant)
        real = head.integers / WEIGHT_UNIT
        errors = kept.total(SquaredErrors(real, scale))
        assert errors is not None
        noisy = clamped(source.add(errors[0].integers(), numbers, calibrated.check))
        tensors = {"target": counts, "weights": weights, "errors": noisy}
        return tensors, {
            "sd_target": calibrated.sums * spread(numbers, 1),
            "sd_errors": calibrated.check * spread(numbers, 1),
            "error_unit": ERROR_UNIT,
            "target_unit": target_clip().record_norm_bound,
            "method": "objective",
        }
    clip, noise = class_sums_clip(plan), sums_noise(plan)
    table = clamped(sums + source.draw(noise, sums.shape, calibrated.sums))
    sd = calibrated.sums * spread(noise, 1 + plan.k)
    offsets = class_offsets(table[:, 0], sd)
    weights = perturbed.perturbed_minimum(kept, objective, calibrated.objective, offsets, source, plan.k)
    head = objective_head(weights, offsets, objective.constant)
    correct = kept.total(perturbed.Correct(head.integers.astype(np.int64)))
    assert correct is not None
    tensors = {
        "class_sums": table,
        "step": np.concatenate([[1 / clip.count], clip.steps]),
        "weights": weights,
        "correct": clamped(source.add(correct[0].integers(), numbers, calibrated.check)),
    }
    return tensors, {"sd_sums": sd, "sd_correct": calibrated.check * spread(numbers, 1)}
