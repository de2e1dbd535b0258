"""Privatise a table with a numeric target: counts of indicators and of the target, gradients, a check.

The gradient of the squared loss of one record is (w.x - t) x, bounded like that of a classifier: in exact
integers, record by record. Proof: docs/proof-gradients.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.curator.clipping import Clip
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms import second_moments as stage
from adlm.curator.mechanisms.calibration import Calibration, Spending, off_diagonal
from adlm.curator.mechanisms.gradient_rounds import (
    FINE,
    GradientClip,
    GradientRecords,
    Small,
    feature_integers,
    on_grid,
    run_rounds,
)
from adlm.curator.mechanisms.moments import Indicators
from adlm.curator.noise import Source
from adlm.curator.passes import Records
from adlm.curator.table_records import IndicatorCounts, TableFeatures, encoded_records
from adlm.curator.totals import clamped
from adlm.errors import UserError
from adlm.estimation.gradient_head import FEATURE_UNIT, Head, final_head
from adlm.estimation.regression import BINS, ERROR_BOUND, FARTHEST, TargetScale, ridge_head
from adlm.privacy.accounting import Mechanism, compose, gaussian_mu, root_up
from adlm.privacy.budget import Budget
from adlm.privacy.release import SEEDED, Release
from adlm.public.domain.encoding import TARGET_UNIT
from adlm.public.domain.table import TableDomain
from adlm.public.features import described
from adlm.public.features.frequencies import frequencies
from adlm.public.features.scaled_table import ScaledTable
from adlm.public.features.table_indicators import TableIndicators, is_ordered
from adlm.public.features.triangle import symmetric
from adlm.public.planning.regression import (
    FOURIER,
    GAUSSIAN_SHARES,
    MOMENTS_COLUMNS,
    MOMENTS_SIGNAL,
    PURE_ROUNDS,
    PURE_SHARES,
    PURE_STRONG,
    RegressionPlan,
    Shares,
    plan_regression,
    plan_ridge,
)
from adlm.public.planning.rounds import signal_of
from adlm.runtime import progress
from adlm.runtime.part_store import Part

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Encoded = tuple[npt.NDArray[np.float32], Integers]
PROOF = "docs/proof-gradients.md"
ERRORS = "squared errors of the model and of the mean"
MIDDLE = TargetScale(0.5, 0.25)  # stands in where only bounds are asked for, which do not depend on it
ERROR_UNIT = 1 << 16  # grid steps in one squared standard deviation


@dataclass(frozen=True)
class TargetClip(GradientClip):
    """The L2 ball of one record's gradient of the squared loss.

    Parameters
    ----------
    clip_norm : bound on the L2 norm of (w.x - t) (c, z), t in standard deviations.
    constant : c.
    scale : the released mean and spread of the target.

    Formal guarantees
    -----------------
    That of `GradientClip`: whatever the record and the head, the integer gradient has L2 norm at most
    `bound`.
    """

    scale: TargetScale = MIDDLE

    def targets(self, positions: Integers) -> Reals:
        """Return (n,) targets in standard deviations, clipped at FARTHEST."""
        return np.clip(self.scale.standardised(positions / TARGET_UNIT), -FARTHEST, FARTHEST)

    def errors(self, z: Reals | Small, codes: Integers, head: Head) -> Reals:
        """Return (n, 1) errors w.x - t, in steps of 1 / FINE."""
        return np.asarray(np.rint((self.scores(z, head) - self.targets(codes)[:, None]) * FINE))

    def squared_errors(self, z: Reals, codes: Integers, head: Head) -> Integers:
        """Return (n, 2) clipped squared errors, of the head and of the mean, in steps of 1 / ERROR_UNIT.

        A prediction is brought back between the bounds of the target. Each entry lies between 0 and
        `error_bound`.
        """
        truth = self.scale.standardised(codes / TARGET_UNIT)
        low, high = (float(v) for v in self.scale.standardised(np.array([0.0, 1.0])))
        of_head = np.clip(self.scores(z, head)[:, 0], low, high) - truth
        both = np.minimum(np.stack([of_head * of_head, truth * truth], 1), ERROR_BOUND)
        return np.asarray(np.rint(both * ERROR_UNIT), dtype=np.int64)

    @property
    def error_bound(self) -> int:
        """Bound of a clipped squared error, in grid steps."""
        return math.floor(ERROR_BOUND * ERROR_UNIT)

    def errors_sensitivity(self) -> Fraction:
        """Return the L2 distance of the two sums of squared errors of neighbours, under either relation.

        One record's two entries lie in [0, error_bound], and so differ from another's, or from none, by at
        most that each.
        """
        return root_up(Fraction(2 * self.error_bound**2))


def target_bins() -> Clip:
    """The clip of a record's bins of the target: non-negative, summing to one."""
    return Clip("l2", (1.0,) * (BINS + 1), 1.0)


def bins_of(positions: Integers) -> Reals:
    """Return (n, BINS + 1) piecewise-linear bins of positions in 0..TARGET_UNIT, exactly."""
    width = TARGET_UNIT // BINS
    below = np.minimum(positions // width, BINS - 1)
    rest = (positions - below * width) / width
    out = np.zeros((len(positions), BINS + 1))
    out[np.arange(len(positions)), below] = 1 - rest
    out[np.arange(len(positions)), below + 1] = rest
    return out


@dataclass(frozen=True)
class RegressionScales:
    """Integer noise scales, in grid steps."""

    indicators: int
    target: int
    learnt: int  # of gradients; of second moments on the diagonal
    errors: int


@dataclass(frozen=True)
class RegressionConfig:
    """What a release for a numeric target is made by; all of it public.

    Attributes
    ----------
    budget : epsilon and delta; delta 0 gives radial noise.
    k : number of features.
    plan : the settings.
    indicators : the counts of the table's indicators.
    contributions : records one person may have.
    """

    budget: Budget
    k: int
    plan: RegressionPlan
    indicators: Indicators
    contributions: int = 1

    @property
    def mechanism(self) -> Mechanism:
        """The noise."""
        return "gaussian" if self.budget.delta else "radial"

    def clip(self, scale: TargetScale | None = None) -> TargetClip:
        """The clip of gradients, for a released mean and spread."""
        rounds = self.plan.rounds
        return TargetClip(rounds.clip_norm, rounds.constant, scale or MIDDLE)

    def second_clip(self) -> Clip:
        """The clip of (constant, z, weight t / FARTHEST), whose products are summed."""
        longest = math.sqrt(self.plan.rounds.constant**2 + 1 + self.plan.weight**2)
        return Clip("l2", (1.0,) * (self.k + 2), longest)

    @property
    def learnt(self) -> str:
        """What the model is learnt from, in words."""
        if self.plan.method == "moments":
            return "second moments of features and target"
        return f"gradients of {self.plan.rounds.rounds} rounds"

    def learnt_sensitivity(self, neighbours: str) -> Fraction:
        """Return how far neighbours move what the model is learnt from."""
        if self.plan.method == "moments":
            clip = self.second_clip()
            return (
                clip.second_sensitivity(neighbours)
                if self.budget.delta
                else stage.triangle_sensitivity(clip, neighbours)
            )
        one, rounds = self.clip().sensitivity(neighbours), self.plan.rounds.rounds
        return root_up(rounds * one**2) if self.budget.delta else rounds * one


def shares_of(delta: Fraction) -> Shares:
    """Return how the budget is divided."""
    return GAUSSIAN_SHARES if delta else PURE_SHARES


def calibrate(config: RegressionConfig, neighbours: str) -> Calibration[RegressionScales]:
    """Return the smallest integer noise scales that keep to the budget, and their charges.

    Formal guarantees
    -----------------
    Relation: the given one. Sensitivity: asked of the code that clips. Guarantee: the charges compose to at
    most the budget. Proved in docs/proof-gradients.md (Theorems 1, 2, 4 and 5).
    """
    budget = config.budget
    if not budget.delta:
        return _calibrated(config, neighbours, budget.epsilon / config.contributions)
    mu = gaussian_mu(budget.epsilon, budget.delta) / config.contributions
    while True:  # once, unless rounding up in the charge costs more than rounding down in mu left
        made = _calibrated(config, neighbours, mu)
        if compose(made.charges).epsilon_proved <= budget.epsilon:
            return made
        mu *= Fraction(999_999, 1_000_000)


def _calibrated(config: RegressionConfig, neighbours: str, loss: Fraction) -> Calibration[RegressionScales]:
    """Divide mu (whose square adds up) or epsilon between the four parts."""
    spending = Spending(config.mechanism, neighbours, loss, config.contributions, config.budget.delta)
    shares = shares_of(config.budget.delta)
    theorem = "Theorem 2" if config.plan.method == "rounds" else "Theorem 5"
    first = config.indicators.clip().counts_sensitivity(neighbours)
    second = target_bins().counts_sensitivity(neighbours)
    learnt, checked = config.learnt_sensitivity(neighbours), config.clip().errors_sensitivity()
    scales = RegressionScales(
        spending.scale("counts of indicators", first, shares.indicators, f"{PROOF} Theorem 1"),
        spending.scale("counts of the target's bins", second, shares.target, f"{PROOF} Theorem 1"),
        spending.scale(config.learnt, learnt, shares.learnt, f"{PROOF} {theorem}"),
        spending.scale(ERRORS, checked, shares.check, f"{PROOF} Theorem 4"),
    )
    return Calibration(scales, tuple(spending.charges))


def plan_target(
    table: TableDomain, n: int, epsilon: Fraction, delta: Fraction, fourier: int = 0
) -> RegressionPlan:
    """Choose settings for n records of a table with a numeric target; `fourier` 0 leaves that to the rule.

    Parameters
    ----------
    table : the declared table, with a numeric target.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    fourier : number of random Fourier features; 0 leaves it to the rule.
    """
    ordered = [is_ordered(column) for column in table.features]
    count = fourier or (FOURIER if any(ordered) and delta else 0)
    if delta:
        mu = float(gaussian_mu(epsilon, delta)) * math.sqrt(shares_of(delta).learnt)
        return plan_regression(n, signal_of(n, mu, table.neighbours, table.contributions), count)
    columns, loss = len(ordered), float(epsilon * shares_of(delta).learnt)
    each = signal_of(n, loss, table.neighbours, table.contributions) / columns
    if not fourier and all(ordered) and columns <= MOMENTS_COLUMNS and each < MOMENTS_SIGNAL:
        return plan_ridge(n, columns)
    width = 1 + ScaledTable.width_of(table, count)
    few, many = (
        signal_of(n, loss / math.sqrt(rounds * width), table.neighbours, table.contributions)
        for rounds in PURE_ROUNDS
    )
    if few < PURE_STRONG:
        return plan_regression(n, few, count, pure=PURE_ROUNDS[0])
    return plan_regression(n, many, count, pure=PURE_ROUNDS[1])


def release(
    passes: Records | Callable[[], Iterable[Encoded]],
    table: TableDomain,
    *,
    plan: RegressionPlan,
    budget: Budget,
    ledger: Ledger,
    source: Source,
    stamps: tuple[str, ...] = (),
) -> Release:
    """Make the release of a table with a numeric target.

    Parameters
    ----------
    passes : records that an engine keeps, or a function that gives (encoded records, positions of the target)
        batches, the same ones each time it is called.
    table : the declared table.
    plan : the public settings.
    budget : epsilon and delta; delta 0 gives radial noise.
    ledger : the charges are written there before noise is drawn.
    source : of the noise.
    stamps : warnings that travel with the release.

    Formal guarantees
    -----------------
    Relation: the table's, of persons with at most `table.contributions` records. Guarantee: the charges of
    `calibrate`, all of them in the ledger before the first noise is drawn. Proved in docs/proof-gradients.md.
    """
    counted = TableIndicators(table)
    first = Indicators(counted.width, len(counted.blocks), shares_of(budget.delta).indicators)
    width = ScaledTable.width_of(table, plan.fourier)
    width = width if plan.width is None else min(width, plan.width)
    config = RegressionConfig(budget, width, plan, first, table.contributions)
    scales, charges = calibrate(config, table.neighbours)
    clip, bins = first.clip(), target_bins()
    records = encoded_records(passes, table)
    with progress.bar(records.rows, "counts of indicators and target", "records") as advance:
        counts = records.total(RegressionCounts(IndicatorCounts(counted, clip), bins), advance)
    if counts is None:
        raise UserError("there are no records to release; give at least one")
    ledger.charge(*charges)
    of_records, of_positions, (n,) = (part.integers() for part in counts)
    total = clamped(source.add(of_records, config.mechanism, scales.indicators))
    of_target = clamped(source.add(of_positions, config.mechanism, scales.target))
    scale = TargetScale.of(of_target)
    features = ScaledTable(table, frequencies(total * clip.steps, counted.blocks), fourier=plan.fourier)
    target = config.clip(scale)
    with progress.bar(records.rows, "features", "records") as advance:
        made, _ = records.mapped(TableFeatures(features)).keep(OnGrid(target, width), advance)
    kept = GradientRecords(made, target, width, int(n))
    tensors: dict[str, npt.NDArray[Any]] = {"indicators": total, "target": of_target}
    if plan.method == "rounds":
        noise = (config.mechanism, scales.learnt)
        gradients = run_rounds(kept, plan.rounds, np.zeros(1), noise, source)
        head = final_head(gradients, plan.rounds, np.zeros(1))
        tensors["gradients"] = gradients
    else:
        second = _noisy_products(kept, config, scales.learnt, source)
        head = moments_head(second, config, scales.learnt)
        tensors |= {"second": second, "weights": head.integers.astype(np.int64)}
    found = made.total(SquaredErrors(target, head))
    assert found is not None
    tensors["errors"] = clamped(source.add(found[0].integers(), config.mechanism, scales.errors))
    made.close()
    public = table.neighbours == "replace-one" and table.contributions == 1  # else n is private
    return Release.make(
        {name: torch.from_numpy(value) for name, value in tensors.items()},
        kind="regression",
        domain=table.domain,
        features=described(features),
        settings=_facts(config, scales, int(n) if public else None),
        charges=charges,
        stamps=stamps + ((SEEDED,) if source.seeded else ()),
    )


def moments_head(second: Integers, config: RegressionConfig, scale: int) -> Head:
    """Ridge regression on released second moments, from the upper triangle in grid steps squared."""
    clip, constant = config.second_clip(), config.plan.rounds.constant
    unit = float(clip.steps[0]) ** 2
    whole = symmetric(second) * unit
    return ridge_head(whole, second_sd(config, scale) * unit, constant, config.plan.weight)


def second_sd(config: RegressionConfig, scale: int) -> float:
    """Return the standard deviation of the noise off the diagonal of second moments, in grid steps."""
    if config.budget.delta:
        return float(off_diagonal(scale))
    q = config.k + 2
    return scale * math.sqrt(1.0 + q * (q + 1) // 2) / stage.OFF_DIAGONAL


@dataclass(frozen=True, eq=False)
class RegressionCounts:
    """What a part adds to the counts of indicators and of the target's bins, and to n."""

    indicators: IndicatorCounts
    bins: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        of_target = self.bins.integers(bins_of(part[1])).sum(0).astype(np.int64)
        return (*self.indicators(part), of_target, np.array([len(part[1])], dtype=np.int64))


@dataclass(frozen=True)
class OnGrid:
    """Keeps features on their grid; nothing is summed."""

    clip: TargetClip
    width: int

    def __call__(self, part: Part) -> tuple[Part, tuple[Integers, ...]]:
        """Return what is kept of a part."""
        return on_grid(feature_integers(part[0][:, : self.width]), part[1], self.clip), ()


@dataclass(frozen=True)
class TargetProducts:
    """What a part adds to the products of (constant, z, weight t / FARTHEST)."""

    clip: Clip
    target: TargetClip
    weight: float

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum products: (k + 2, k + 2)."""
        z, positions, _ = part
        last = self.target.targets(positions) * (self.weight / FARTHEST)
        first = np.full((len(last), 1), self.target.constant)
        rows = self.clip.integers(np.hstack([first, z / FEATURE_UNIT, last[:, None]]))
        return (stage.products_of(rows, rows),)


@dataclass(frozen=True)
class SquaredErrors:
    """What a part adds to the clipped squared errors of the head and of the mean: (2,)."""

    clip: TargetClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum squared errors."""
        z, positions, _ = part
        return (self.clip.squared_errors(z.astype(np.float64), positions, self.head).sum(0),)


def _noisy_products(
    kept: GradientRecords, config: RegressionConfig, noise_scale: int, source: Source
) -> Integers:
    """Sum the products of (constant, z, weight t / FARTHEST), and add noise to the upper triangle."""
    target = kept.clip
    assert isinstance(target, TargetClip)
    total = kept.records.total(TargetProducts(config.second_clip(), target, config.plan.weight))
    assert total is not None
    off = off_diagonal(noise_scale) if config.budget.delta else noise_scale
    return clamped(stage.noisy_triangle(total[0].integers(), config.mechanism, off, noise_scale, source))


def _facts(config: RegressionConfig, scales: RegressionScales, n: int | None) -> dict[str, Any]:
    """Return what a certificate says of the design and its noise; deviations are in grid steps."""

    def spread(width: int) -> float:
        return 1.0 if config.budget.delta else math.sqrt(1.0 + width)

    learnt = scales.learnt * spread(1 + config.k)
    if config.plan.method == "moments":
        learnt = second_sd(config, scales.learnt)
    return {
        "n": n,
        "mechanism": config.mechanism,
        "k": config.k,
        "method": config.plan.method,
        "rounds": config.plan.rounds.to_dict(),
        "plan": config.plan.to_dict(),
        "asked": config.budget.to_dict(),
        "indicators": config.indicators.to_dict(),
        "contributions": config.contributions,
        "sd_indicators": scales.indicators * spread(config.indicators.width),
        "sd_target": scales.target * spread(BINS + 1),
        "sd_learnt": learnt,
        "sd_errors": scales.errors * spread(2),
        "error_unit": ERROR_UNIT,
        "target_unit": target_bins().record_norm_bound,
    }
