"""The rule for a numeric target: features, rounds, clip norm, from public quantities alone.

The constants were fixed on held-out quarters of the training records of Adult (age), satimage (a pixel)
and scikit-learn's `load_diabetes` and `make_friedman1`. With delta, gradient
rounds did better there than ridge regression on noisy second moments. Under pure epsilon second moments of a
few columns did better than rounds (docs/reproduction.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from adlm.errors import UserError
from adlm.estimation.gradient_head import GradientRounds
from adlm.public.planning.rounds import CLIP_NORM, plan_rounds

METHODS = ("rounds", "moments")
PATH = 0.035  # step x clip norm x rounds, over the signal
LONGEST_STEP = 3.5  # rows have norm at most about 1, so steps of 2 (1 + momentum) are stable
# Under pure epsilon every round costs its share of epsilon, so there are few, with long steps.
PURE_ROUNDS = (8, 20)  # with a weak and with a strong signal
PURE_STRONG = 250.0  # signal, with fewer rounds, above which the signal is strong
PURE_MOMENTUM, PURE_PATH, PURE_STEP = (0.6, 0.8), (0.08, 0.1), 3.0
PURE_CLIPS = ((300.0, 0.5), (500.0, 1.0))
MOMENTS_COLUMNS = 16  # most columns, all ordered, for which second moments beat pure rounds
MOMENTS_SIGNAL = 2_000.0  # epsilon n over sensitivity and columns from which rounds do better
# Small clip norms bias a skewed target's mean to its median, so a strong signal gets a larger one.
WIDER_CLIPS = ((2_000.0, 0.5), (6_000.0, 1.0))
FOURIER = 200  # random Fourier features of the ordered columns, with delta; none under pure epsilon
CHECK_SHARE = Fraction(1, 20)
FIRST_STAGES = (
    "of the budget counts indicators, to centre and scale the columns; a twentieth finds the target's mean "
    "and spread; a twentieth compares the model with that mean"
)


@dataclass(frozen=True)
class Shares:
    """Shares of the budget: of mu squared, or of a pure epsilon."""

    indicators: Fraction
    target: Fraction
    check: Fraction = CHECK_SHARE

    @property
    def learnt(self) -> Fraction:
        """The rest, for gradients or second moments."""
        return 1 - self.indicators - self.target - self.check


# Pure epsilon is divided rather than its square, so the first stages need a larger share.
GAUSSIAN_SHARES, PURE_SHARES = (
    Shares(Fraction(1, 10), Fraction(1, 20)),
    Shares(Fraction(1, 4), Fraction(1, 20)),
)


@dataclass(frozen=True)
class RegressionPlan:
    """The public settings of a release for a numeric target.

    Attributes
    ----------
    rounds : gradient rounds of the clipped squared loss; for moments, their constant and size alone are used.
    fourier : random Fourier features of the ordered columns.
    method : `rounds`, or `moments` for ridge regression on second moments.
    weight : of the target beside unit features, when second moments are taken.
    width : how many leading features second moments are taken of; None for all.
    """

    rounds: GradientRounds
    fourier: int
    method: str = "rounds"
    weight: float = 1.0
    width: int | None = None
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"a target is learnt by {' or '.join(METHODS)} (got {self.method!r})")
        if not 0 < self.weight <= 4:
            raise UserError(f"the target's weight must lie in (0, 4] (got {self.weight})")

    @property
    def summary(self) -> str:
        """Short description of the mechanism."""
        if self.method == "moments":
            return "second moments, ridge regression"
        return f"{self.rounds.rounds} gradient rounds, clip norm {self.rounds.clip_norm:g}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "rounds": self.rounds.to_dict(),
            "fourier": self.fourier,
            "method": self.method,
            "weight": self.weight,
            "width": self.width,
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


def plan_regression(n: int, signal: float, fourier: int, *, pure: int = 0) -> RegressionPlan:
    """Choose settings for n records.

    Parameters
    ----------
    n : public number of records.
    signal : n mu over the sensitivity in clip norms, from `adlm.public.planning.rounds.signal_of`.
    fourier : random Fourier features of the ordered columns.
    pure : rounds with radial noise, each of which costs its share of epsilon (see PURE_ROUNDS); 0 with delta.
    """
    if n < 1:
        raise UserError(f"a plan needs at least one record, got {n}")
    wider = PURE_CLIPS if pure else WIDER_CLIPS
    clip_norm = max((norm for least, norm in wider if signal >= least), default=CLIP_NORM)
    longest = LONGEST_STEP * clip_norm / CLIP_NORM  # curvature does not depend on the clip
    rounds = plan_rounds(n, signal, path=PATH, longest_step=longest, clip_norm=clip_norm)
    if pure:
        strong = PURE_ROUNDS.index(pure)
        step = float(f"{min(PURE_PATH[strong] * signal / (clip_norm * pure), PURE_STEP):.6g}")
        rounds = replace(rounds, rounds=pure, step=step, momentum=PURE_MOMENTUM[strong])
    first = "a quarter" if pure else "a tenth"
    reasons = (
        f"{rounds.rounds} gradient rounds of the squared loss with steps of {rounds.step:g}: the signal "
        f"n mu / sensitivity is {signal:.0f}",
        f"gradients are clipped at {clip_norm:g} standard deviations of the target, which makes the loss "
        "Huber's",
        f"{fourier} random Fourier features of the ordered columns together",
        f"{first} {FIRST_STAGES}",
    )
    return RegressionPlan(rounds, fourier, reasons=reasons)


def plan_ridge(n: int, columns: int) -> RegressionPlan:
    """Choose ridge regression on the second moments of a few columns and the target."""
    reasons = (
        f"second moments of {columns} columns and the target: {(columns + 2) * (columns + 3) // 2} numbers, "
        "which under pure epsilon tell more than gradient rounds",
        f"a quarter {FIRST_STAGES}",
    )
    rounds = GradientRounds(1, CLIP_NORM, 1.0, n)
    return RegressionPlan(rounds, 0, "moments", width=columns, reasons=reasons)
