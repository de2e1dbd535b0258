"""Calibration of class sums and gradient rounds: settings, noise scales and charges for a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from torch import Tensor

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.mechanism import second_moments as stage
from adlm.mechanism.gradient_rounds import clip_of, predicted_sensitivity
from adlm.mechanism.planning import MomentPlan
from adlm.mechanism.second_moments import CrossMoments, Second
from adlm.model.head import GradientRounds
from adlm.privacy.accounting import Budget, Charge, Mechanism, compose, gaussian_mu
from adlm.privacy.certificate import LEARNT_BOUNDS
from adlm.privacy.clipping import Clip, Norm
from adlm.runtime.arithmetic import root_down, root_up

# ---- Calibration of noise to a plan and a budget, shared by all mechanisms.
#
# Every kind of release goes `plan -> calibrate() -> Calibration(scales, charges) -> release()`.

AnyScales = TypeVar("AnyScales")


class Calibration(NamedTuple, Generic[AnyScales]):
    """Noise for every stage of a release.

    Attributes
    ----------
    scales : integer noise scales, in grid steps.
    charges : what they cost, in the order in which the stages are made.
    """

    scales: AnyScales
    charges: tuple[Charge, ...]

    def for_domain(self, domain: Domain) -> Calibration[AnyScales]:
        """Return it for a domain: nothing is proved where the bounds were learnt from the records."""
        if not domain.bounds_learnt_from_data:
            return self
        return Calibration(self.scales, tuple(replace(c, unproved=LEARNT_BOUNDS) for c in self.charges))


class Stage(NamedTuple):
    """One stage of a release: its content, sensitivity, noise and proof."""

    what: str
    sensitivity: Fraction
    scale: int
    proof: str


@dataclass
class Spending:
    """A budget that is spent share by share; all charges are made together, when every share is spent.

    Parameters
    ----------
    mechanism : the noise of every stage.
    neighbours : the relation of the charges.
    loss : privacy loss that the budget allows one record: mu for Gaussian noise, where mu^2 adds up, or
        epsilon for pure noise, which adds up.
    contributions : records that one person may have.
    delta : of the charges; 0 for pure noise.
    """

    mechanism: Mechanism
    neighbours: str
    loss: Fraction
    contributions: int = 1
    delta: Fraction = Fraction(0)
    stages: list[Stage] = field(default_factory=list)

    def scale(self, what: str, sensitivity: Fraction, share: Fraction, proof: str) -> int:
        """Return the smallest integer noise scale for a share of the budget, and record the stage.

        Parameters
        ----------
        what : what is released.
        sensitivity : to one record, in grid steps.
        share : of the budget.
        proof : page and theorem.
        """
        part = root_down(share) if self.mechanism == "gaussian" else share
        steps = math.ceil(sensitivity / (self.loss * part))
        self.stages.append(Stage(what, sensitivity * self.contributions, steps, proof))
        return steps

    def calibration(self, scales: AnyScales) -> Calibration[AnyScales]:
        """Return the scales of all stages with their charges."""
        charges = (
            Charge(
                what,
                self.mechanism,
                self.neighbours,
                moved,
                Fraction(steps),
                proof,
                self.delta,
                contributions=self.contributions,
            )
            for what, moved, steps, proof in self.stages
        )
        return Calibration(scales, tuple(charges))


def within_budget(
    calibrated: Callable[[Fraction], Calibration[AnyScales]], budget: Budget, contributions: int = 1
) -> Calibration[AnyScales]:
    """Return the calibration of the largest loss whose charges compose to at most the budget.

    Parameters
    ----------
    calibrated : returns scales and charges for the loss of one record: mu for Gaussian noise, epsilon for
        pure noise.
    budget : epsilon and delta; delta 0 gives pure noise.
    contributions : records that one person may have.
    """
    if not budget.delta:
        return calibrated(budget.epsilon / contributions)
    mu = gaussian_mu(budget.epsilon, budget.delta) / contributions
    while True:  # once, unless the charge is rounded up by more than mu was rounded down
        calibration = calibrated(mu)
        if compose(calibration.charges).epsilon_proved <= budget.epsilon:
            return calibration
        mu *= Fraction(999_999, 1_000_000)


@dataclass(frozen=True)
class Upstream:
    """Inputs that a release inherits from earlier steps.

    Attributes
    ----------
    settings : public facts for the certificate, such as the plan and its reasons.
    stamps, unproved : of the inputs: warnings, and why no epsilon is proved.
    charges : of private inputs to the settings, such as private relevances; in the ledger already.
    tensors : go into the release besides its own; private already, or public.
    charged : the release's own charges are in the ledger already, because a first stage has been made.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    stamps: tuple[str, ...] = ()
    unproved: str = ""
    charges: tuple[Charge, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    charged: bool = False


NOTHING_BEFORE = Upstream()


def off_diagonal(diagonal: int) -> int:
    """Return the smallest integer scale that is at least the diagonal's over sqrt(2)."""
    return math.isqrt((diagonal * diagonal - 1) // 2) + 1


# ---- The public settings of a moment release, and the scales of its noise.

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


# ---- Noise scales and charges of gradient rounds. Proof: docs/proof-gradients.md.

ROUNDS_PROOF = "docs/proof-gradients.md"
PREDICTED_SHARE = Fraction(1, 50)  # of the budget, for sums of predicted probabilities


def calibrate_rounds(config: MomentConfig, rounds: GradientRounds, spending: Spending) -> Scales:
    """Indicators, class sums and gradient rounds, each with its share of the budget."""
    gaussian, neighbours = config.mechanism == "gaussian", spending.neighbours
    left, counts, values, predicted = Fraction(1), 0, 0, 0
    if config.indicators is not None:
        moved = config.indicators.clip().counts_sensitivity(neighbours)
        counts = spending.scale(
            "counts of indicators", moved, config.indicators.share, f"{ROUNDS_PROOF} Theorem 1"
        )
        left -= config.indicators.share
    if config.indicators is not None and config.indicators.values:
        moved = config.indicators.values_clip().second_sensitivity(neighbours)
        share, proof = config.indicators.values_share, "docs/proof-moments.md Theorem 2"
        values = spending.scale("second moments of values", moved, share, proof)
        left -= share
    clip = config.clip()
    moved = clip.sums_sensitivity(neighbours) if gaussian else clip.rows_sensitivity(neighbours)
    theorem = "Theorem 2" if gaussian else "Theorem 1"
    sums = spending.scale(
        "class sums and counts", moved, left * config.share_sums, f"docs/proof-moments.md {theorem}"
    )
    one = clip_of(rounds).sensitivity(neighbours)
    gradients = spending.scale(
        f"gradients of {rounds.rounds} rounds",
        root_up(rounds.rounds * one**2) if gaussian else rounds.rounds * one,
        left * (1 - config.share_sums - config.check_share - (PREDICTED_SHARE if config.calibrations else 0)),
        f"{ROUNDS_PROOF} Theorem 2",
    )
    if config.calibrations:
        moved = root_up(config.calibrations * predicted_sensitivity(neighbours) ** 2)
        what = "sums of predicted probabilities"
        predicted = spending.scale(what, moved, left * PREDICTED_SHARE, f"{ROUNDS_PROOF} Theorem 3")
    correct = spending.scale(
        "records that the head gets right",
        Fraction(1),
        left * config.check_share,
        f"{ROUNDS_PROOF} Theorem 4",
    )
    return Scales(
        sums, gradients=gradients, indicators=counts, correct=correct, values=values, predicted=predicted
    )


# ---- Noise scales and charges of a moment release. Proofs: docs/proof-moments.md, docs/proof-gradients.md.

PROOF = "docs/proof-moments.md"


def calibrate(config: MomentConfig, neighbours: str) -> Calibration[Scales]:
    """Return the smallest integer noise scales that keep to the budget, and their charges.

    Formal guarantees
    -----------------
    Relation: the given one. Sensitivity: asked of the `Clip` that clips. Guarantee: the charges compose to
    at most the config's epsilon and delta; they are computed from the integers returned, not from the
    request. Proved in docs/proof-moments.md (Theorems 1 to 3).
    """
    budget = Budget(config.epsilon, config.delta)
    return within_budget(lambda loss: _calibrated(config, neighbours, loss), budget, config.contributions)


def _calibrated(config: MomentConfig, neighbours: str, loss: Fraction) -> Calibration[Scales]:
    """Divide the loss of one record between the stages: mu for Gaussian noise, epsilon for pure noise."""
    spending = Spending(config.mechanism, neighbours, loss, config.contributions, config.delta)
    if config.rounds is not None:
        return spending.calibration(calibrate_rounds(config, config.rounds, spending))
    if config.joint:
        return _joint(config, neighbours, loss)
    return spending.calibration(_one_by_one(config, spending))


def _one_by_one(config: MomentConfig, spending: Spending) -> Scales:
    """Class sums, second moments, and products across the basis, each with its own charge."""
    neighbours, mechanism = spending.neighbours, config.mechanism
    proof = f"{PROOF} {'Theorem 2' if mechanism == 'gaussian' else 'Theorem 1'}"
    clip, fine_clip = config.clip(), config.second_clip()
    share = config.share_sums if fine_clip else Fraction(1)
    radial = mechanism == "radial"
    moved = clip.rows_sensitivity(neighbours) if radial else clip.sums_sensitivity(neighbours)
    sums = spending.scale("class sums and counts", moved, share, proof)
    if fine_clip is None or config.second is None:
        return Scales(sums)
    inner, outer = stage.split(1 - share, config.second)
    sensitivity = stage.triangle_sensitivity if radial else type(fine_clip).second_sensitivity
    fine = spending.scale("second moments", sensitivity(fine_clip, neighbours), inner, proof)
    off, diagonal = {
        "laplace": (fine, 2 * fine),
        "radial": (fine, fine),
        "gaussian": (off_diagonal(fine), fine),
    }[mechanism]
    if not outer:
        return Scales(sums, off, diagonal)
    if mechanism == "laplace":
        raise UserError("products across the basis come with radial or Gaussian noise, not with Laplace")
    moved = stage.cross_sensitivity(*config.second.cross_clips(), neighbours)
    return Scales(sums, off, diagonal, spending.scale("products across the basis", moved, outer, proof))


def _joint(config: MomentConfig, neighbours: str, mu: Fraction) -> Calibration[Scales]:
    """Class sums and second moments of the same clipped rows: one record's cost in both is bounded at once.

    P : Q = share : 1 - share; mu^2 is homogeneous in both, so one trial scale gives the right one.
    """
    clip, p, q = config.clip(), config.share_sums, 1 - config.share_sums
    bound = Fraction(clip.feature_norm_bound)
    trial = clip.joint_loss_squared(bound / root_down(p), bound**2 / root_down(q), neighbours)
    stretch = root_up(trial) / mu
    scale = math.ceil(bound / root_down(p) * stretch)
    diagonal = math.ceil(bound**2 / root_down(q) * stretch)
    loss = root_up(clip.joint_loss_squared(Fraction(scale), Fraction(diagonal), neighbours))
    charge = Charge(
        "class sums, counts and second moments",
        "gaussian",
        neighbours,
        loss * config.contributions,
        Fraction(1),
        f"{PROOF} Theorem 3",
        config.delta,
        contributions=config.contributions,
    )
    return Calibration(Scales(scale, off_diagonal(diagonal), diagonal), (charge,))
