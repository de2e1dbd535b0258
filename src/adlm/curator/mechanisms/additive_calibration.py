"""Noise scales and charges of the class tables of a table. Proofs: docs/proof-tables.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from adlm.curator.clipping import Clip, Norm
from adlm.curator.mechanisms.calibration import Calibration, Spending, off_diagonal
from adlm.estimation.additive_scaling import BOUND, UNIT
from adlm.privacy.accounting import Mechanism, gaussian_mu
from adlm.privacy.budget import Budget
from adlm.public.planning.tables import TablePlan
from adlm.runtime.roots import root_up

PROOF = "docs/proof-tables.md"
SCALING_STEPS = 3  # of class offsets and the temperature


@dataclass(frozen=True)
class TableScales:
    """Integer noise scales of each stage, in grid steps."""

    norm: Norm
    tables: int
    second_round: int = 0  # 0: the tables are released once
    gradient: int = 0  # 0: stage two is left out
    curvature: int = 0  # off the diagonal
    diagonal: int = 0
    residuals: int = 0  # 0: not released
    scaling: int = 0  # 0: column weights, not one temperature
    correct: int = 0  # 0: not released

    @property
    def mechanism(self) -> Mechanism:
        """The noise of every stage."""
        return "laplace" if self.norm == "l1" else "gaussian"

    @property
    def spread(self) -> float:
        """Standard deviation of noise of scale one."""
        return math.sqrt(2.0) if self.norm == "l1" else 1.0


def calibrate(
    plan: TablePlan, budget: Budget, neighbours: str, contributions: int = 1
) -> Calibration[TableScales]:
    """Divide a budget between the stages.

    Parameters
    ----------
    plan : the public settings, with the share of each stage.
    budget : epsilon, and delta; delta 0 gives Laplace noise.
    neighbours : the relation of the charges.
    contributions : records that one person may have.

    Formal guarantees
    -----------------
    Relation: the given one, of persons with at most `contributions` records. Sensitivities: in grid
    steps, the same whatever the earlier stages released, so the charges can be made before the first noise is
    drawn. Guarantee: they compose to at most epsilon and delta. Proved in docs/proof-tables.md.
    """
    epsilon, delta = budget.epsilon, budget.delta
    norm: Norm = "l2" if delta else "l1"
    loss = (gaussian_mu(epsilon, delta) if delta else epsilon) / contributions
    mechanism: Mechanism = "gaussian" if delta else "laplace"
    spending = Spending(mechanism, neighbours, loss, contributions, delta)
    unit = Clip(norm, (1.0,), 1.0)
    tables, sums = _table_sensitivity(unit, neighbours), unit.sums_sensitivity(neighbours)
    one, two = f"{PROOF} Theorem 1", f"{PROOF} Theorem 2"
    left = 1 - plan.check_share - plan.scaling_share
    shares = [left * share for share in plan.shares]
    scales = TableScales(norm, spending.scale("class tables and counts", tables, shares[0], one))
    if shares[1]:
        second_round = spending.scale("class tables again, noise by relevance", tables, shares[1], one)
        scales = replace(scales, second_round=second_round)
    if plan.weights == "columns":
        gradient = spending.scale("gradient in column weights", sums, shares[2], two)
        curvature = spending.scale(
            "curvature in column weights", unit.second_sensitivity(neighbours), shares[3], two
        )
        off, diagonal = (off_diagonal(curvature), curvature) if delta else (curvature, 2 * curvature)
        scales = replace(scales, gradient=gradient, curvature=off, diagonal=diagonal)
    if plan.residuals:
        scales = replace(scales, residuals=spending.scale("residual tables", sums, shares[4], two))
    if plan.scaling_share:
        moved, what = scaling_sensitivity(norm, neighbours), f"offsets and temperature, {SCALING_STEPS} steps"
        moved = root_up(SCALING_STEPS * moved**2) if delta else SCALING_STEPS * moved
        steps = spending.scale(what, moved, plan.scaling_share, f"{PROOF} Theorem 3")
        scales = replace(scales, scaling=steps)
    if plan.check_share:
        what, proof = "records that the model gets right", f"{PROOF} Theorem 4"
        right = spending.scale(what, Fraction(1), plan.check_share, proof)
        scales = replace(scales, correct=right)
    return spending.calibration(scales)


def _table_sensitivity(unit: Clip, neighbours: str) -> Fraction:
    """Distance of class tables of neighbours: no indicator is negative, so no two records are opposite."""
    if neighbours == "add-remove":
        return Fraction(unit.record_norm_bound)
    return (
        Fraction(2 * unit.record_norm_bound)
        if unit.norm == "l1"
        else root_up(Fraction(2 * unit.record_norm_bound**2))
    )


def scaling_sensitivity(norm: Norm, neighbours: str) -> Fraction:
    """Return the distance of neighbours' sums of a step of scaling, in grid steps.

    Predicted probabilities are non-negative and add up to at most UNIT; the first derivative is within BOUND
    of zero and the second in [0, BOUND].
    """
    if norm == "l1":
        return Fraction(UNIT + 2 * BOUND if neighbours == "add-remove" else 2 * UNIT + 3 * BOUND)
    if neighbours == "add-remove":
        return root_up(Fraction(UNIT**2 + 2 * BOUND**2))
    return root_up(Fraction(2 * UNIT**2 + 5 * BOUND**2))
