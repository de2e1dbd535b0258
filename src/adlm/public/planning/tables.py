"""The rule for a table's release: its stages, its bins and the shares of the budget.

Its inputs are the declared table, the number of records and the budget, never a record. Its thresholds were
set on development splits of the training records of Adult and Diabetes-130 alone (docs/guide-tables.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from adlm.errors import UserError
from adlm.privacy.accounting import gaussian_mu
from adlm.public.domain.table import TableDomain
from adlm.public.features.tabular import TabularFeatures, detail_rule

Weights = Literal["columns", "none"]
CHECK_SHARE = Fraction(1, 50)
# Set on synthetic tables and on parts of training records, see docs/guide-tables.md.
SCALING_SHARE = Fraction(1, 5)
TWO_CLASS_NOISE = 2.0  # on column weights: above it two classes are scaled too; categories always are
Shares = tuple[Fraction, Fraction, Fraction, Fraction, Fraction]


@dataclass(frozen=True)
class TablePlan:
    """The public settings of a table's release.

    Attributes
    ----------
    detail : indicators of a numeric column without cuts.
    weights : `columns` fits a weight for each column in a second stage, `none` leaves it out.
    residuals : whether a third stage corrects single indicators.
    shares : of the budget less the last two shares: for class tables, a second round of them with noise by
        relevance, gradient, curvature and residual tables; they sum to 1.
    reasons : one sentence for each choice.
    fourier : random Fourier features.
    check_share : of the whole budget, to count the records that the model classifies correctly; 0 for none.
    scaling_share : of the whole budget, for class offsets and one temperature in place of column weights.
    """

    detail: int
    weights: Weights
    residuals: bool
    shares: Shares
    reasons: tuple[str, ...] = ()
    fourier: int = 0
    check_share: Fraction = CHECK_SHARE
    scaling_share: Fraction = Fraction(0)

    @property
    def summary(self) -> str:
        """Short description of the mechanism."""
        stages = 1 + (self.weights == "columns" or self.scaling_share > 0) + self.residuals
        return f"additive, {stages} stage{'s' if stages > 1 else ''}, {self.detail} bins a column"

    def with_rounds(self, *, two_rounds: bool) -> TablePlan:
        """The same plan with its share for class tables spent on one round, or on two equal ones."""
        tables, second_round, *rest = self.shares
        first = (tables + second_round) / (2 if two_rounds else 1)
        return replace(self, shares=(first, tables + second_round - first, rest[0], rest[1], rest[2]))

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "detail": self.detail,
            "weights": self.weights,
            "residuals": self.residuals,
            "shares": [str(share) for share in self.shares],
            "reasons": list(self.reasons),
            "fourier": self.fourier,
            "check_share": str(self.check_share),
            "scaling_share": str(self.scaling_share),
        }


def _shares(*percent: int) -> Shares:
    tables, second_round, gradient, curvature, residuals = (Fraction(part, 100) for part in percent)
    return tables, second_round, gradient, curvature, residuals


# A second round pays under Gaussian noise, where two halves of a budget give 1/sqrt(2) of the precision each;
# under Laplace noise they give 1/2 each, and it does not.
ONE_STAGE = {"laplace": _shares(100, 0, 0, 0, 0), "gaussian": _shares(50, 50, 0, 0, 0)}
TWO_STAGES = {"laplace": _shares(80, 0, 10, 10, 0), "gaussian": _shares(40, 40, 10, 10, 0)}
# Random Fourier features: as many as keep the noise on a sum within this share of n, and at most these.
FOURIER_NOISE, MOST_FOURIER = 0.002, 16
FOURIER_LIMIT = 1000  # when requested by number
THREE_STAGES = {"laplace": _shares(40, 0, 15, 15, 30), "gaussian": _shares(20, 20, 15, 15, 30)}


def plan_table(
    table: TableDomain, n: int, epsilon: Fraction, delta: Fraction, fourier: int | Literal["auto"] = 0
) -> TablePlan:
    """Choose settings for n records under a budget; `auto` chooses the number of random Fourier features.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    fourier : random Fourier features: a number, or `auto` for the rule's.
    """
    if n < 1:
        raise UserError(f"a plan needs at least one record, got {n}")
    kind = "gaussian" if delta else "laplace"
    one, two, three = ONE_STAGE[kind], TWO_STAGES[kind], THREE_STAGES[kind]
    noise = _Noise(table, epsilon, delta)
    fourier_count, reasons = _random_fourier_features(table, n, noise, two[0] + two[1], fourier)
    blocks = len(table.features) + len(table.crosses) + fourier_count
    length = 1 + blocks / 2  # of a record's scores, if they are of size one half: L1, or squared L2
    detail = detail_rule(n, noise.on_sums(blocks, two[0] + two[1]))
    width = TabularFeatures(table, detail=detail, fourier=fourier_count).indicators
    gradient = noise.on_sums(length, two[2]) * (blocks + 1) / n
    residual = math.sqrt(2) * noise.on_sums(blocks, three[4]) * width / n
    reasons += (
        f"numeric columns without cuts have {detail} bins: a bin holds eight times the noise on a count",
    )
    if gradient > 0.5:
        categories = all(column.kind == "categorical" for column in table.features)
        scaled = len(table.label.classes) > 2 or gradient > TWO_CLASS_NOISE or categories
        why = (
            f"class tables{', then class offsets and one temperature' if scaled else ' alone'}: noise on "
            f"column weights would be {gradient:.2f} of the signal, above 0.5"
        )
        scaling = SCALING_SHARE if scaled else Fraction(0)
        return TablePlan(detail, "none", False, one, (*reasons, why), fourier_count, scaling_share=scaling)
    if len(table.label.classes) > 2:
        why = "no residual tables: with more than two classes their corrections of one offset add up"
        return TablePlan(detail, "columns", False, two, (*reasons, why), fourier_count)
    if residual > 0.12:
        why = f"no residual tables: their noise would be {residual:.2f} of a bin's records, above 0.12"
        return TablePlan(detail, "columns", False, two, (*reasons, why), fourier_count)
    why = f"residual tables too: their noise is {residual:.2f} of a bin's records, at most 0.12"
    return TablePlan(detail, "columns", True, three, (*reasons, why), fourier_count)


def _random_fourier_features(
    table: TableDomain, n: int, noise: _Noise, share: Fraction, fourier: int | str
) -> tuple[int, tuple[str, ...]]:
    """Number of random Fourier features: as requested, or as many as keep the noise on sums small."""
    if fourier != "auto":
        if isinstance(fourier, str) or not 0 <= fourier <= FOURIER_LIMIT:
            raise UserError(f"fourier must be auto or an integer from 0 to {FOURIER_LIMIT} (got {fourier!r})")
        return int(fourier), (f"{fourier} random Fourier features were asked for",) if fourier else ()
    if all(column.kind == "categorical" for column in table.features):
        return 0, ("no random Fourier features: every column is categorical",)
    columns = len(table.features) + len(table.crosses)
    few = (w for w in range(MOST_FOURIER, 0, -1) if noise.on_sums(columns + w, share) <= FOURIER_NOISE * n)
    fourier_count = next(few, 0)
    return fourier_count, (
        f"{fourier_count} random Fourier features: noise on a sum stays within {FOURIER_NOISE} of n",
    )


class _Noise:
    """Standard deviation of the noise on one count, for records of a given size."""

    def __init__(self, table: TableDomain, epsilon: Fraction, delta: Fraction) -> None:
        self.pure = not delta
        factor = table.contributions * (1.0 if table.neighbours == "replace-one" else 0.5)
        loss = float(epsilon) if self.pure else float(gaussian_mu(epsilon, delta)) * math.sqrt(0.5)
        self.unit = factor / loss

    def on_sums(self, size: float, share: Fraction) -> float:
        """`size` is the L1 norm of a record for Laplace noise, its squared L2 norm for Gaussian noise."""
        if self.pure:
            return self.unit * 2 * math.sqrt(2) * size / float(share)
        return self.unit * math.sqrt(size / float(share))
