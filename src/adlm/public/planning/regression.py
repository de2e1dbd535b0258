"""The rule for a numeric target: features, rounds, clip norm, from public quantities alone.

The constants were fixed on held-out quarters of the training records of Adult (age), satimage (a pixel)
and scikit-learn's `load_diabetes` and `make_friedman1` (docs/reproduction.md). They are for budgets with
delta; pure ones have the perturbed loss (`adlm.mechanism.planner`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from adlm.errors import UserError
from adlm.estimation.gradient_head import GradientRounds
from adlm.public.planning.rounds import CLIP_NORM, plan_rounds

PATH = 0.035  # step x clip norm x rounds, over the signal
LONGEST_STEP = 3.5  # rows have norm at most about 1, so steps of 2 (1 + momentum) are stable
# Small clip norms bias a skewed target's mean to its median, so a strong signal gets a larger one.
WIDER_CLIPS = ((2_000.0, 0.5), (6_000.0, 1.0))
FOURIER = 200  # random Fourier features of the ordered columns
CHECK_SHARE = Fraction(1, 20)
FIRST_STAGES = (
    "of the budget counts indicators, to centre and scale the columns; a twentieth finds the target's mean "
    "and spread; a twentieth compares the model with that mean"
)


@dataclass(frozen=True)
class Shares:
    """Shares of the budget, in mu squared."""

    indicators: Fraction
    target: Fraction
    check: Fraction = CHECK_SHARE

    @property
    def learnt(self) -> Fraction:
        """The rest, for gradients."""
        return 1 - self.indicators - self.target - self.check


GAUSSIAN_SHARES = Shares(Fraction(1, 10), Fraction(1, 20))


@dataclass(frozen=True)
class RegressionPlan:
    """The public settings of a release for a numeric target.

    Attributes
    ----------
    rounds : gradient rounds of the clipped squared loss.
    fourier : random Fourier features of the ordered columns.
    """

    rounds: GradientRounds
    fourier: int
    reasons: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """Short description of the mechanism."""
        return f"{self.rounds.rounds} gradient rounds, clip norm {self.rounds.clip_norm:g}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "rounds": self.rounds.to_dict(),
            "fourier": self.fourier,
            "reasons": list(self.reasons),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RegressionPlan:
        """Read what `to_dict` wrote."""
        try:
            values = dict(raw) | {"reasons": tuple(raw.get("reasons", ()))}
            return cls(**values | {"rounds": GradientRounds.from_dict(raw["rounds"])})
        except (KeyError, TypeError) as error:
            raise UserError(f"the settings of a numeric target cannot be read: {error}") from None


def plan_regression(n: int, signal: float, fourier: int) -> RegressionPlan:
    """Choose settings for n records.

    Parameters
    ----------
    n : public number of records.
    signal : n mu over the sensitivity in clip norms, from `adlm.public.planning.rounds.signal_of`.
    fourier : random Fourier features of the ordered columns.
    """
    if n < 1:
        raise UserError(f"a plan needs at least one record, got {n}")
    clip_norm = max((norm for least, norm in WIDER_CLIPS if signal >= least), default=CLIP_NORM)
    longest = LONGEST_STEP * clip_norm / CLIP_NORM  # curvature does not depend on the clip
    rounds = plan_rounds(n, signal, path=PATH, longest_step=longest, clip_norm=clip_norm)
    reasons = (
        f"{rounds.rounds} gradient rounds of the squared loss with steps of {rounds.step:g}: the signal "
        f"n mu / sensitivity is {signal:.0f}",
        f"gradients are clipped at {clip_norm:g} standard deviations of the target, which makes the loss "
        "Huber's",
        f"{fourier} random Fourier features of the ordered columns together",
        f"a tenth {FIRST_STAGES}",
    )
    return RegressionPlan(rounds, fourier, reasons=reasons)
