"""Two models of a table from one pure budget, of which the more accurate one is kept.

Under pure epsilon neither an additive model nor gradient rounds are best on every table, and which is better
depends on the records. So each gets a part of epsilon, and each has a noisy count of the records that it
classifies correctly. The counts are released and charged like all else. Proof: docs/proof-gradients.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms import additive, additive_calibration, table_rounds
from adlm.curator.mechanisms.calibration import Calibration
from adlm.curator.mechanisms.moment_config import Scales
from adlm.curator.mechanisms.table_rounds import TableRoundsPlan
from adlm.curator.noise import Source
from adlm.curator.passes import Records
from adlm.curator.table_records import TableFeatures, encoded_records
from adlm.errors import UserError
from adlm.privacy.accounting import Charge
from adlm.privacy.budget import Budget
from adlm.privacy.release import Release
from adlm.public.domain.table import TableDomain
from adlm.public.features.tabular import TabularFeatures
from adlm.public.planning.tables import TablePlan, plan_table

Encoded = tuple[NDArray[np.float32], NDArray[np.int64]]
# Signal of gradient rounds from which both models are made; the additive one gets half of it, and no more of
# a stronger one but for its least share. Categories suit an additive model, so where they lead it has more.
# Settled on held-out training records (docs/reproduction.md).
SELECTION_FROM, CATEGORICAL_FROM = 800.0, 2_000.0
LEAST_SHARE = Fraction(1, 10)
# Gradient rounds have more parameters, so their training accuracy is more optimistic. They must be ahead by
# this many times the square root of the additive model's number of errors.
MARGIN = 2.0
NOT_KEPT = ", of the model that was not kept"


@dataclass(frozen=True)
class SelectionPlan:
    """The public settings of both models of a table.

    Attributes
    ----------
    additive, rounds : the settings of each.
    additive_share : of epsilon, for the additive model; gradient rounds have the rest.
    """

    additive: TablePlan
    rounds: TableRoundsPlan
    additive_share: Fraction

    @property
    def summary(self) -> str:
        """The mechanism in a few words."""
        return f"the better of two: {self.additive.summary}; {self.rounds.summary}"

    @property
    def fourier(self) -> int:
        """Random Fourier features of the gradient rounds."""
        return self.rounds.fourier

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence for each choice."""
        share = f"{float(100 * self.additive_share):.3g} %"
        why = (
            f"{share} of epsilon for an additive model, the rest for gradient rounds; noisy counts of the "
            "records that each gets right decide"
        )
        return (why, *self.additive.reasons, *self.rounds.reasons)

    def budgets(self, budget: Budget) -> tuple[Budget, Budget]:
        """Split a pure budget between the additive model and gradient rounds."""
        if budget.delta:
            raise UserError("two models share a pure budget; with delta gradient rounds are taken alone")
        first = budget.epsilon * self.additive_share
        return Budget(first), Budget(budget.epsilon - first)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "additive": self.additive.to_dict(),
            "rounds": self.rounds.to_dict(),
            "additive_share": str(self.additive_share),
            "reasons": list(self.reasons),
        }


class SelectionScales(NamedTuple):
    """Noise scales of both models."""

    additive: additive_calibration.TableScales
    rounds: Scales


def selection_from(table: TableDomain) -> float:
    """Return the signal from which both models of a table are made."""
    return CATEGORICAL_FROM if table_rounds.mostly_categorical(table) else SELECTION_FROM


def suits_selection(table: TableDomain, n: int, epsilon: Fraction) -> bool:
    """Whether a pure budget is large enough for two models; below it the additive one is made alone.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon : the budget.
    """
    return table_rounds.table_signal(table, n, epsilon, Fraction(0)) >= selection_from(table)


def plan_selection(table: TableDomain, n: int, epsilon: Fraction, fourier: int = 0) -> SelectionPlan:
    """Choose settings of both models for n records under pure epsilon.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon : the budget.
    fourier : random Fourier features of the gradient rounds; 0 leaves their number to the rule.
    """
    signal = table_rounds.table_signal(table, n, epsilon, Fraction(0))
    part = Fraction(f"{0.5 * selection_from(table) / max(signal, 1.0):.3f}")
    share = min(Fraction(1, 2), max(LEAST_SHARE, part))
    return SelectionPlan(
        plan_table(table, n, epsilon * share, Fraction(0)),
        table_rounds.plan_table(table, n, epsilon * (1 - share), Fraction(0), fourier),
        share,
    )


def calibrate(plan: SelectionPlan, table: TableDomain, budget: Budget) -> Calibration[SelectionScales]:
    """Divide a pure budget between both models.

    Formal guarantees
    -----------------
    Relation: the table's, of persons with at most `table.contributions` records. Guarantee: the charges of
    both compose to at most epsilon. Proved in docs/proof-gradients.md (Theorem 6).
    """
    first, second = plan.budgets(budget)
    one = additive_calibration.calibrate(plan.additive, first, table.neighbours, table.contributions)
    other = table_rounds.calibrate(plan.rounds, table, second)
    return Calibration(SelectionScales(one.scales, other.scales), one.charges + other.charges)


def release(
    passes: Records | Callable[[], Iterable[Encoded]],
    table: TableDomain,
    *,
    plan: SelectionPlan,
    budget: Budget,
    ledger: Ledger,
    source: Source,
    stamps: tuple[str, ...] = (),
) -> Release:
    """Make both releases of a table, and keep the one whose model classifies more records correctly.

    Parameters
    ----------
    passes, table, ledger, source, stamps : as for `table_rounds.release`.
    plan : the public settings of both.
    budget : a pure epsilon for both together.

    Formal guarantees
    -----------------
    Relation: the table's, of persons with at most `table.contributions` records. Guarantee: `calibrate`. The
    charges of each are in the ledger before its noise is drawn; which is kept is a function of released
    counts. The certificate has the charges of both.
    """
    ledger.check(*calibrate(plan, table, budget).charges)  # both, before anything is spent on one
    first, second = plan.budgets(budget)
    features = TabularFeatures(table, detail=plan.additive.detail, fourier=plan.additive.fourier)
    simple = additive.release(
        encoded_records(passes, table).mapped(TableFeatures(features)),
        features=features,
        plan=plan.additive,
        budget=first,
        ledger=ledger,
        source=source,
        stamps=stamps,
    )
    richer = table_rounds.release(
        passes, table, plan=plan.rounds, budget=second, ledger=ledger, source=source, stamps=stamps
    )
    right = [int(made.tensors["correct"][0]) for made in (simple, richer)]
    wrong = max(0.0, float(simple.certificate.settings["n_estimated"]) - right[0])
    ahead = right[1] - right[0] > MARGIN * math.sqrt(wrong)
    kept, other = (richer, simple) if ahead else (simple, richer)
    certificate = kept.certificate
    selection = {"correct": right, "share": str(plan.additive_share), "other": other.certificate.settings}
    return Release.make(
        kept.tensors,
        kind=certificate.kind,
        domain=certificate.domain,
        features=certificate.features,
        settings=dict(certificate.settings) | {"asked": budget.to_dict(), "selection": selection},
        charges=_not_kept(other.certificate.charges) + certificate.charges,
        stamps=certificate.stamps,
    )


def _not_kept(charges: tuple[Charge, ...]) -> tuple[Charge, ...]:
    return tuple(replace(charge, what=charge.what + NOT_KEPT) for charge in charges)
