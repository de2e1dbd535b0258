"""The public settings of a moment release, and the scales of its noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from adlm.curator.clipping import Clip, Norm
from adlm.curator.mechanisms.second_moments import CrossMoments, Second
from adlm.errors import UserError
from adlm.estimation.gradient_head import GradientRounds
from adlm.privacy.accounting import Mechanism
from adlm.privacy.budget import Budget
from adlm.public.planning.moments import MomentPlan

CHECK_SHARE = Fraction(1, 50)
CALIBRATIONS = 2  # corrections of a table's class offsets by sums of predicted probabilities


@dataclass(frozen=True)
class Indicators:
    """The first passes over a table: a noisy count of each indicator, then second moments of its values.

    Attributes
    ----------
    width : number of indicators.
    blocks : columns and crosses, each with a vector of non-negative numbers that sum to one.
    share : of the budget, in mu squared.
    values : number of standardised values whose second moments are released; 0 leaves them out.
    values_share : of the budget, for the second moments.
    """

    width: int
    blocks: int
    share: Fraction
    values: int = 0
    values_share: Fraction = Fraction(0)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "width": self.width,
            "blocks": self.blocks,
            "share": str(self.share),
            "values": self.values,
            "values_share": str(self.values_share),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Indicators:
        """Read what `to_dict` wrote."""
        return cls(
            int(raw["width"]),
            int(raw["blocks"]),
            Fraction(raw["share"]),
            int(raw.get("values", 0)),
            Fraction(raw.get("values_share", 0)),
        )

    def clip(self) -> Clip:
        """The clip of a record's indicators."""
        return Clip("l2", (1.0,) * self.width, math.sqrt(self.blocks))

    def values_clip(self) -> Clip:
        """The clip of a record's values, scaled to length 1."""
        return Clip("l2", (1.0,) * self.values, 1.0)


@dataclass(frozen=True)
class MomentConfig:
    """The public settings of a moment release. Nothing here may be learnt from the records for free.

    Attributes
    ----------
    epsilon, delta : the budget; delta 0 means Laplace noise.
    k : coordinates summed.
    clip_norm : clip norm of z in the norm of the noise.
    scales : (k,) relative noise scales b_j (the allocation); None: identical.
    constant : share of the clip that carries the class counts.
    share_sums : share of the budget for class sums and counts when second moments are released too.
    second : which second moments, or None.
    contributions : records one person may have; the guarantee is for a person.
    pure : the noise on class sums when delta is 0: `laplace`, best for sparse vectors, or `radial`, best for
        dense ones.
    rounds : gradient rounds after the class sums; they get the rest of the budget after `share_sums`.
    indicators : the counts of a table that come before everything else, and their share of the budget.
    check_share : of the budget without indicators, to count the records that the last head classifies
        correctly.
    """

    epsilon: Fraction
    delta: Fraction
    k: int
    clip_norm: float
    scales: tuple[float, ...] | None = None
    constant: float = 0.2
    share_sums: Fraction = Fraction(3, 5)
    second: Second | None = None
    contributions: int = 1
    pure: Literal["laplace", "radial"] = "laplace"
    rounds: GradientRounds | None = None
    indicators: Indicators | None = None
    check_share: Fraction = CHECK_SHARE

    @classmethod
    def of(cls, plan: MomentPlan, budget: Budget, contributions: int = 1) -> MomentConfig:
        """Return the settings of a plan, with a budget for one person's records."""
        cross = second = None
        if plan.cross_clip_norms and plan.q < plan.k:
            cross = CrossMoments(*plan.cross_clip_norms, plan.cross_share)
        if plan.q:
            second = Second(plan.q, plan.basis, plan.second_clip_norm, around=plan.around, cross=cross)
        return cls(
            budget.epsilon,
            budget.delta,
            plan.k,
            plan.clip_norm,
            plan.scales,
            plan.constant,
            plan.share_sums,
            second,
            contributions,
            "laplace" if plan.noise == "laplace" else "radial",
            plan.rounds,
        )

    def __post_init__(self) -> None:
        if self.rounds is not None and (self.mechanism == "laplace" or self.second is not None):
            raise UserError("gradient rounds come with Gaussian or radial noise and without second moments")
        if self.indicators is not None and self.indicators.values and not self.delta:
            raise UserError("second moments of a table's values come with Gaussian noise, which needs delta")

    @property
    def mechanism(self) -> Mechanism:
        """The noise on class sums."""
        return "gaussian" if self.delta else self.pure

    def clip(self) -> Clip:
        """The clip of class sums."""
        norm: Norm = "l1" if self.mechanism == "laplace" else "l2"
        return Clip(norm, self.scales or (1.0,) * self.k, self.clip_norm, self.constant)

    @property
    def calibrations(self) -> int:
        """Number of releases of sums of predicted probabilities: for tables, with delta."""
        return CALIBRATIONS if self.rounds is not None and self.indicators is not None and self.delta else 0

    def second_clip(self) -> Clip | None:
        """The clip of second moments: that of the sums when the cost is joint, else one without a count."""
        if self.second is None:
            return None
        if self.joint:
            return self.clip()
        scales = self.second.scales or (1.0,) * self.second.q
        return Clip("l1" if self.mechanism == "laplace" else "l2", scales, self.second.clip_norm)

    @property
    def joint(self) -> bool:
        """Whether sums and second moments use the same clipped rows, so that their cost is joint."""
        return (
            self.second is not None
            and self.delta > 0
            and not self.second.later
            and (self.scales, self.clip_norm) == (None, self.second.clip_norm)
            and self.second.scales is None
        )


@dataclass(frozen=True)
class Scales:
    """Integer noise scales, in grid steps."""

    sums: int
    second: int = 0  # off the diagonal; radial noise: of the weighted triangle
    second_diagonal: int = 0
    cross: int = 0
    gradients: int = 0
    indicators: int = 0
    correct: int = 0
    values: int = 0  # on the diagonal
    predicted: int = 0
