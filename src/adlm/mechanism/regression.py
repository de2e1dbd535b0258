"""Settings, clip, noise scales and charges for a numeric target. Proof: docs/proof-gradients.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.engine.passes import Part, Records, clamped
from adlm.engine.records import IndicatorCounts, TableFeatures, encoded_records
from adlm.errors import UserError
from adlm.features import described
from adlm.features.tables import ScaledTable, TableIndicators, frequencies, is_ordered
from adlm.mechanism.calibration import Calibration, Indicators, Spending, within_budget
from adlm.mechanism.gradient_rounds import FINE, GradientClip, GradientRecords, OnGrid, run_rounds, stored
from adlm.mechanism.planning import FOURIER, GAUSSIAN_SHARES, RegressionPlan, plan_regression, signal_of
from adlm.model.head import BINS, ERROR_BOUND, FARTHEST, Head, TargetScale, final_head
from adlm.privacy.accounting import Budget, Mechanism, gaussian_mu
from adlm.privacy.certificate import SEEDED
from adlm.privacy.clipping import Clip
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import progress
from adlm.runtime.arithmetic import root_up

# ---- Settings, clip, noise scales and charges for a numeric target. Proof: docs/proof-gradients.md.

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

PROOF = "docs/proof-gradients.md"
ERRORS = "squared errors of the model and of the mean"
MIDDLE = TargetScale(0.5, 0.25)  # placeholder where only bounds are needed, which do not depend on it
ERROR_UNIT = 1 << 16  # grid steps in one squared standard deviation, where errors are clipped at ERROR_BOUND


@dataclass(frozen=True)
class TargetClip(GradientClip):
    """The L2 ball of one record's gradient of the squared loss.

    Parameters
    ----------
    clip_norm : bound on the L2 norm of (w.x - t) (c, z), t in standard deviations.
    constant : c.
    scale : the released mean and spread of the target.
    error_limit : where squared errors are clipped, in units of the target's variance; a released number.

    Formal guarantees
    -----------------
    That of `GradientClip`: whatever the record and the head, the integer gradient has L2 norm at most
    `bound`.
    """

    scale: TargetScale = MIDDLE
    error_limit: float = ERROR_BOUND

    @property
    def error_unit(self) -> float:
        """Grid steps in one unit of the target's variance; the limit is always `error_bound` steps."""
        return self.error_bound / self.error_limit

    def targets(self, positions: Integers) -> Reals:
        """Return (n,) targets in standard deviations, clipped at FARTHEST."""
        return np.clip(self.scale.standardised(positions / TARGET_UNIT), -FARTHEST, FARTHEST)

    def errors(self, z: OnGrid, codes: Integers, head: Head) -> Reals:
        """Return (n, 1) errors w.x - t, in steps of 1 / FINE."""
        return np.asarray(np.rint((self.scores(z, head) - self.targets(codes)[:, None]) * FINE))

    def squared_errors(self, z: Reals, codes: Integers, head: Head) -> Integers:
        """Return (n, 2) clipped squared errors, of the head and of the mean, in steps of 1 / `error_unit`.

        A prediction is clipped to the bounds of the target. Each entry lies between 0 and
        `error_bound`.
        """
        truth = self.scale.standardised(codes / TARGET_UNIT)
        low, high = (float(v) for v in self.scale.standardised(np.array([0.0, 1.0])))
        of_head = np.clip(self.scores(z, head)[:, 0], low, high) - truth
        both = np.minimum(np.stack([of_head * of_head, truth * truth], 1), self.error_limit)
        return np.asarray(np.minimum(np.rint(both * self.error_unit), self.error_bound), dtype=np.int64)

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


@dataclass(frozen=True)
class RegressionScales:
    """Integer noise scales, in grid steps."""

    indicators: int
    target: int
    learnt: int  # of gradients; of second moments on the diagonal
    errors: int


@dataclass(frozen=True)
class RegressionConfig:
    """The public settings of a release for a numeric target.

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

    @property
    def learnt(self) -> str:
        """Description of the statistics that the model is fitted to."""
        return f"gradients of {self.plan.rounds.rounds} rounds"

    def learnt_sensitivity(self, neighbours: str) -> Fraction:
        """Return the sensitivity of the statistics that the model is fitted to."""
        one, rounds = self.clip().sensitivity(neighbours), self.plan.rounds.rounds
        return root_up(rounds * one**2) if self.budget.delta else rounds * one


def calibrate(config: RegressionConfig, neighbours: str) -> Calibration[RegressionScales]:
    """Return the smallest integer noise scales that keep to the budget, and their charges.

    Formal guarantees
    -----------------
    Relation: the given one. Sensitivity: asked of the code that clips. Guarantee: the charges compose to at
    most the budget. Proved in docs/proof-gradients.md (Theorems 1, 2, 4 and 5).
    """
    return within_budget(
        lambda loss: _calibrated(config, neighbours, loss), config.budget, config.contributions
    )


def _calibrated(config: RegressionConfig, neighbours: str, loss: Fraction) -> Calibration[RegressionScales]:
    """Divide mu (whose square adds up) or epsilon between the four parts."""
    spending = Spending(config.mechanism, neighbours, loss, config.contributions, config.budget.delta)
    shares = GAUSSIAN_SHARES
    first = config.indicators.clip().counts_sensitivity(neighbours)
    second = target_bins().counts_sensitivity(neighbours)
    learnt, checked = config.learnt_sensitivity(neighbours), config.clip().errors_sensitivity()
    scales = RegressionScales(
        spending.scale("counts of indicators", first, shares.indicators, f"{PROOF} Theorem 1"),
        spending.scale("counts of the target's bins", second, shares.target, f"{PROOF} Theorem 1"),
        spending.scale(config.learnt, learnt, shares.learnt, f"{PROOF} Theorem 2"),
        spending.scale(ERRORS, checked, shares.check, f"{PROOF} Theorem 4"),
    )
    return spending.calibration(scales)


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
    count = fourier or (FOURIER if any(is_ordered(column) for column in table.features) else 0)
    mu = float(gaussian_mu(epsilon, delta)) * math.sqrt(GAUSSIAN_SHARES.learnt)
    return plan_regression(n, signal_of(n, mu, table.neighbours, table.contributions), count)


# ---- Privatise a table with a numeric target: counts of indicators and of the target, gradients, a check.
#
# The gradient of the squared loss of one record is (w.x - t) x, bounded like that of a classifier: in exact
# integers, record by record. Proof: docs/proof-gradients.md.


Encoded = tuple[npt.NDArray[np.float32], Integers]


def bins_of(positions: Integers) -> Reals:
    """Return (n, BINS + 1) piecewise-linear bins, exactly, of positions clipped to 0..TARGET_UNIT."""
    width, positions = TARGET_UNIT // BINS, np.clip(positions, 0, TARGET_UNIT)
    below = np.minimum(positions // width, BINS - 1)
    rest = (positions - below * width) / width
    out = np.zeros((len(positions), BINS + 1))
    out[np.arange(len(positions)), below] = 1 - rest
    out[np.arange(len(positions)), below + 1] = rest
    return out


def configured(plan: RegressionPlan, table: TableDomain, budget: Budget) -> RegressionConfig:
    """The settings of a table's release that follow a plan."""
    counted = TableIndicators(table)
    first = Indicators(counted.width, len(counted.blocks), GAUSSIAN_SHARES.indicators)
    width = ScaledTable.width_of(table, plan.fourier)
    return RegressionConfig(budget, width, plan, first, table.contributions)


def release(
    passes: Records | Callable[[], Iterable[Encoded]],
    table: TableDomain,
    *,
    plan: RegressionPlan,
    budget: Budget,
    ledger: Ledger,
    source: Source,
) -> Release:
    """Make the release of a table with a numeric target.

    Parameters
    ----------
    passes : records that an engine holds, or a function that yields (encoded records, positions of the
        target) batches, the same ones each time it is called.
    table : the declared table.
    plan : the public settings.
    budget : epsilon and delta.
    ledger : the charges are written there before noise is drawn.
    source : of the noise.

    Formal guarantees
    -----------------
    Relation: the table's, of persons with at most `table.contributions` records. Guarantee: the charges of
    `calibrate`, all of them in the ledger before the first noise is drawn. Proved in docs/proof-gradients.md.
    """
    counted = TableIndicators(table)
    config = configured(plan, table, budget)
    first, width = config.indicators, config.k
    scales, charges = calibrate(config, table.neighbours).for_domain(table.domain)
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
    public = table.neighbours == "replace-one" and table.contributions == 1  # else n is private
    many = float(n) if public else float(of_target.sum()) / bins.record_norm_bound
    target = config.clip(scale)
    on_errors = scales.errors * error_spread(config) / (target.error_bound * max(many, 1.0))
    target = replace(target, error_limit=scale.error_limit(on_errors))
    with progress.bar(records.rows, "features", "records") as advance:
        mapped, _ = records.mapped(TableFeatures(features)).keep(TargetOnGrid(target, width), advance)
    gradient_records = GradientRecords(mapped, target, width, int(n))
    tensors: dict[str, npt.NDArray[Any]] = {"indicators": total, "target": of_target}
    noise = (config.mechanism, scales.learnt)
    gradients = run_rounds(gradient_records, plan.rounds, np.zeros(1), noise, source)
    head = final_head(gradients, plan.rounds, np.zeros(1))
    tensors["gradients"] = gradients
    squared_errors = mapped.total(SquaredErrors(target, head))
    assert squared_errors is not None
    tensors["errors"] = clamped(source.add(squared_errors[0].integers(), config.mechanism, scales.errors))
    mapped.close()
    return Release.make(
        {name: torch.from_numpy(value) for name, value in tensors.items()},
        kind="regression",
        domain=table.domain,
        features=described(features),
        settings=_facts(config, scales, int(n) if public else None, target),
        charges=charges,
        stamps=(SEEDED,) if source.seeded else (),
    )


@dataclass(frozen=True, eq=False)
class RegressionCounts:
    """Partial sums of the counts of indicators and of the target's bins, and of n."""

    indicators: IndicatorCounts
    bins: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        of_target = self.bins.counts(bins_of(part[1])).sum(0).astype(np.int64)
        return (*self.indicators(part), of_target, np.array([len(part[1])], dtype=np.int64))


@dataclass(frozen=True)
class TargetOnGrid:
    """Stores features on their grid; nothing is summed."""

    clip: TargetClip
    width: int

    def __call__(self, part: Part) -> tuple[Part, tuple[Integers, ...]]:
        """Return the part to store for later passes."""
        return stored(part[0][:, : self.width], part[1], self.clip), ()


@dataclass(frozen=True)
class SquaredErrors:
    """Partial sums of the clipped squared errors of the head and of the mean: (2,)."""

    clip: TargetClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum squared errors."""
        z, positions, _ = part
        return (self.clip.squared_errors(z.astype(np.float64), positions, self.head).sum(0),)


def error_spread(config: RegressionConfig) -> float:
    """Return the standard deviation of the noise on a sum of squared errors, in units of its scale."""
    return 1.0 if config.budget.delta else math.sqrt(3.0)


def _facts(
    config: RegressionConfig, scales: RegressionScales, n: int | None, target: TargetClip
) -> dict[str, Any]:
    """Return the design and its noise, for the certificate; deviations are in grid steps."""

    def spread(width: int) -> float:
        return 1.0 if config.budget.delta else math.sqrt(1.0 + width)

    learnt = scales.learnt * spread(1 + config.k)
    return {
        "n": n,
        "mechanism": config.mechanism,
        "k": config.k,
        "method": "rounds",
        "rounds": config.plan.rounds.to_dict(),
        "plan": config.plan.to_dict(),
        "asked": config.budget.to_dict(),
        "indicators": config.indicators.to_dict(),
        "contributions": config.contributions,
        "sd_indicators": scales.indicators * spread(config.indicators.width),
        "sd_target": scales.target * spread(BINS + 1),
        "sd_learnt": learnt,
        "sd_errors": scales.errors * error_spread(config),
        "error_limit": target.error_limit,
        "error_unit": target.error_unit,
        "target_unit": target_bins().record_norm_bound,
    }
