"""Settings, clip, noise scales and charges for a numeric target. Proof: docs/proof-gradients.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from adlm.curator.clipping import Clip
from adlm.curator.mechanisms.calibration import Calibration, Spending, within_budget
from adlm.curator.mechanisms.gradient_rounds import FINE, GradientClip, OnGrid
from adlm.curator.mechanisms.moments import Indicators
from adlm.estimation.gradient_head import Head
from adlm.estimation.regression import BINS, ERROR_BOUND, FARTHEST, TargetScale
from adlm.privacy.accounting import Mechanism, gaussian_mu
from adlm.privacy.budget import Budget
from adlm.public.domain.encoding import TARGET_UNIT
from adlm.public.domain.table import TableDomain
from adlm.public.features.table_indicators import is_ordered
from adlm.public.planning.regression import FOURIER, GAUSSIAN_SHARES, RegressionPlan, plan_regression
from adlm.public.planning.rounds import signal_of
from adlm.runtime.roots import root_up

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
