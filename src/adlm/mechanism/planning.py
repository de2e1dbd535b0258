"""Settings of class sums and gradient rounds from public quantities alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from adlm.errors import UserError
from adlm.features import Features, PriorStatistics
from adlm.features.narrowed import narrow
from adlm.model.head import GradientRounds
from adlm.privacy.accounting import gaussian_mu

# ---- The rule for gradient rounds: how many, how long a step, from public quantities alone.
#
# The noise on a score does not depend on the number of rounds. It grows with the *path*, the sum of all
# steps, over signal = n mu / s, where s is the sensitivity in clip norms (1 under add-remove, 2 under
# replace-one, times the records of a person). So the path follows the signal, and the number of rounds only
# has to be large enough for the steps to be stable. The constants were fixed on held-out training records
# of MNIST, Fashion-MNIST and CIFAR-10 and of six tables (docs/reproduction.md).

CLIP_NORM = 0.25
# Small clip norms bias the class shares of imbalanced data, so a strong signal gets a larger one.
WIDER_CLIPS = ((8_000.0, 0.5), (16_000.0, 1.0))
TABLE_PATH = 0.15  # step x clip norm x rounds, over the signal; images have their own
ROUNDS = (100, 200)  # default and most
IMAGE_ROUNDS = (200, 400)  # of images and vectors: for the same path, short steps do better than long ones
LEAST_ROUNDS, MANY_RECORDS = 50, 100_000  # least rounds; a table with more records than this gets fewer
# The more columns, the less of a record's length lies in one direction, so steps can be longer and fewer.
WIDE_COLUMNS, WIDE_LEAST_ROUNDS, WIDE_STEP = 20, 36, 256.0
REACH = 3.0  # momentum keeps at most e^-REACH of the first of all rounds
IMAGE_STEP, TABLE_STEP = 128.0, 32.0  # the longest stable steps, for a clip norm of CLIP_NORM
SHORT_IMAGE_STEP = 40.0  # of images, for any clip norm, while there are fewer than the most rounds
MOMENTUM = (0.9, 0.97)  # default and most


def signal_of(n: int, mu: float, neighbours: str, contributions: int = 1) -> float:
    """Return n mu over the sensitivity, in clip norms.

    Parameters
    ----------
    n : number of records.
    mu : of the gradients' share of the budget.
    neighbours : the relation.
    contributions : records that one person may have.
    """
    return n * mu / ((1.0 if neighbours == "add-remove" else 2.0) * contributions)


def plan_rounds(
    n: int, signal: float, *, path: float, longest_step: float, clip_norm: float = CLIP_NORM
) -> GradientRounds:
    """Choose gradient rounds for n records and a signal.

    The path grows with the signal: first by longer steps, then by more rounds, then by more momentum.

    Parameters
    ----------
    n : public number of records.
    signal : what `signal_of` returns.
    path : step x clip norm x rounds, over the signal.
    longest_step : the longest stable step on the mean gradient, for a clip norm of CLIP_NORM.
    clip_norm : L2 bound on one record's gradient.
    """
    longest = longest_step * CLIP_NORM / clip_norm
    return _with_steps(n, path * signal / clip_norm, (longest, longest), ROUNDS, clip_norm)


def plan_image_rounds(n: int, signal: float, path: float, clip_norm: float = CLIP_NORM) -> GradientRounds:
    """Choose gradient rounds for the features of n images, taken around their mean.

    More rounds come before longer steps, up to the most of IMAGE_ROUNDS.

    Parameters
    ----------
    n : public number of records.
    signal : what `signal_of` returns.
    path : step x clip norm x rounds, over the signal.
    clip_norm : L2 bound on one record's gradient.
    """
    steps = (SHORT_IMAGE_STEP, IMAGE_STEP * CLIP_NORM / clip_norm)
    return replace(_with_steps(n, path * signal / clip_norm, steps, IMAGE_ROUNDS, clip_norm), centred=True)


def _with_steps(
    n: int, length: float, steps: tuple[float, float], rounds_range: tuple[int, int], clip_norm: float
) -> GradientRounds:
    """Divide a length into rounds: steps up to the first length, more rounds, longer steps, more momentum."""
    usual, longest = steps
    fewest, most = rounds_range
    rounds, momentum = max(fewest, min(most, round(length / usual))), MOMENTUM[0]
    step = length / rounds
    if step > longest:
        momentum = min(MOMENTUM[1], 1 - (1 - momentum) * longest / step)
        step = longest
    return GradientRounds(rounds, clip_norm, float(f"{step:.6g}"), n, momentum=float(f"{momentum:.6g}"))


def fewer_rounds(plan: GradientRounds, columns: int = 0) -> GradientRounds:
    """Take fewer and longer steps over a table of many records, where a round takes long.

    The path is the same, so the noise on a score is. Momentum must not reach back over too many of the
    remaining rounds. Over a table of WIDE_COLUMNS and more than twice MANY_RECORDS, rounds are fewer
    still, and steps make up for less momentum as well, up to WIDE_STEP for a clip norm of CLIP_NORM.

    Parameters
    ----------
    plan : the rounds of a table of fewer records.
    columns : of the table.
    """
    wide = columns >= WIDE_COLUMNS
    share = MANY_RECORDS / plan.size
    most = max(LEAST_ROUNDS, round(ROUNDS[1] * share))
    if wide and share < 1 / 2:
        most = max(WIDE_LEAST_ROUNDS, round(ROUNDS[1] * 2 * share * share))
    if plan.rounds <= most:
        return plan
    step = plan.step * plan.rounds / most
    momentum = min(plan.momentum, 1 - REACH / most)
    if wide:
        longest = max(step, WIDE_STEP * CLIP_NORM / plan.clip_norm)
        step = min(step * (1 - momentum) / (1 - plan.momentum), longest)
    return replace(plan, rounds=most, step=float(f"{step:.6g}"), momentum=float(f"{momentum:.6g}"))


def table_clip_norm(signal: float) -> float:
    """Return the clip norm of a table's gradients."""
    return max((norm for least, norm in WIDER_CLIPS if signal >= least), default=CLIP_NORM)


# ---- The rule that turns public quantities into the settings of a moment release.
#
# Its inputs are the number of records, the number of classes, the budget and the public prior of the
# features; it never reads a record. `adlm plan` shows it, and the release follows it.

# Fixed on the last 10,000 training images of MNIST and Fashion-MNIST, taken as public.
PER_COORDINATE = 10  # pure: records of a class, times epsilon, per coordinate
SPARE = 16  # the same, for coordinates beyond ENOUGH
FEWEST = 10  # coordinates, however small the budget
ENOUGH = (100, 200)  # coordinates for class sums without noise: a third of the width, within these
LEAST = 4  # directions besides the class means from which second moments get a share of the budget
LOUD = 0.2  # with delta: noise energy on a class mean, over a record's, from which only sums are released
CROSS_FROM = 500  # pure: epsilon n per coordinate from which products across the basis are released
BROAD = 0.6  # least energy of a record around its class mean: real classes are broader than synthetic ones
LOOSE = 1.1  # squared clip norm over its expected value
ROUNDS_SUMS = Fraction(1, 40)  # share of class sums with gradient rounds: enough for means and checks
CENTRED_UP_TO = 0.8  # energy around class means up to which second moments are taken around them


@dataclass(frozen=True)
class MomentPlan:
    """The settings of a moment release, each from public quantities alone.

    Attributes
    ----------
    k : coordinates whose class sums are released.
    noise : `gaussian` (delta > 0), `radial` or `laplace` (pure).
    clip_norm : clip level of a record in the norm of the noise (L1 for Laplace, else L2).
    constant : share of the clip that carries the class counts.
    q, basis, around, second_clip_norm : second moments of q numbers (0: none), the `leading` coordinates or
        in the span of the released `means`; of records around the `origin` or around the `means`, clipped at
        `second_clip_norm`.
    cross_clip_norms : clip clip_norms inside and outside the basis of products across it, or None.
    share_sums, cross_share : share of the budget for class sums; of the rest, for products across.
    scales : (k,) relative noise scales, or None for identical ones.
    reasons : one sentence for each choice.
    rounds : gradient rounds after the class sums, or None.
    taper : the coordinate whose weight is one half; 0 for equal weights.
    """

    k: int
    noise: Literal["gaussian", "radial", "laplace"]
    clip_norm: float
    constant: float
    q: int = 0
    basis: Literal["leading", "means"] = "leading"
    around: Literal["origin", "means"] = "origin"
    second_clip_norm: float = 1.0
    cross_clip_norms: tuple[float, float] | None = None
    share_sums: Fraction = Fraction(3, 5)
    cross_share: Fraction = Fraction(0)
    scales: tuple[float, ...] | None = None
    reasons: tuple[str, ...] = field(default=())
    rounds: GradientRounds | None = None
    taper: int = 0

    def _repr_html_(self) -> str:
        from adlm.privacy.certificate import Part, box

        entries = self.to_dict()
        facts = [("coordinates", self.k), ("noise", self.noise), ("second moments of", self.q or "none")]
        settings = Part(
            "settings", ("setting", "value"), [kv for kv in entries.items() if kv[0] != "reasons"]
        )
        return box(
            "Plan of a moment release", facts, [Part("why", ("",), [(r,) for r in self.reasons]), settings]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, without the scales, which are stored in the release's tensors."""
        return {
            "k": self.k,
            "noise": self.noise,
            "level": self.clip_norm,
            "constant": self.constant,
            "q": self.q,
            "basis": self.basis,
            "around": self.around,
            "second_level": self.second_clip_norm,
            "across": self.cross_clip_norms and list(self.cross_clip_norms),
            "share_sums": str(self.share_sums if self.q or self.rounds else Fraction(1)),
            "rounds": self.rounds and self.rounds.to_dict(),
            "share_across": str(self.cross_share),
            "allocation": "identical" if self.scales is None else "adaptive",
            "reasons": list(self.reasons),
        } | ({"taper": self.taper} if self.taper else {})


def plan_moments(
    n: int,
    classes: int,
    epsilon: float,
    delta: float,
    neighbours: str,
    features: Features,
    *,
    rounds: bool = True,
) -> MomentPlan:
    """Choose settings for n records of some classes under a budget.

    Parameters
    ----------
    n : number of records, public or guessed.
    classes : number of classes.
    epsilon, delta : the budget.
    neighbours : `replace-one` or `add-remove`.
    features : the public map of the records.
    rounds : whether gradient rounds may be chosen.
    """
    if n < 1 or classes < 2:
        raise UserError(f"a plan needs at least one record and two classes, got {n} and {classes}")
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 <= delta < 1):
        raise UserError(f"a budget needs epsilon > 0 and 0 <= delta < 1, got {epsilon} and {delta}")
    # An added or removed record changes one class; a replaced one may change two.
    factor = 2.0 if neighbours == "add-remove" else 1.0
    plain = features.part(features.moments_width())
    if delta:
        mu = factor * float(gaussian_mu(Fraction(str(epsilon)), Fraction(str(delta))))
        signal = n * mu / 2 * math.sqrt(1 - ROUNDS_SUMS)
        if rounds and signal >= features.rounds_from:
            return _rounds(n, signal, features)
        plan = _gaussian(n, classes, mu, plain)
    else:
        plan = _pure(n, classes, factor * epsilon, plain)
    if features.prior is None and plan.k < features.width:
        why = "the coordinates are random directions: nothing public says which of the features matter"
        plan = replace(plan, reasons=(*plan.reasons, why))
    return plan


def _enough(width: int) -> int:
    """Coordinates beyond which class sums alone do not improve, even without noise."""
    return min(width, max(ENOUGH[0], min(width // 3, ENOUGH[1])))


def _pure(n: int, classes: int, budget: float, features: Features) -> MomentPlan:
    """Radial noise: a coordinate of a class mean has standard deviation 2 sqrt(k) M / (epsilon n)."""
    width, known = features.width, budget * n
    wide = _enough(width)
    # Without a prior the length of records around their means is unknown; products across suffer most.
    cross = known >= CROSS_FROM * wide and features.prior is not None
    share = Fraction(2, 5) if cross else Fraction(4, 5)
    # Beyond ENOUGH a coordinate adds little, so it must cost little; even less with products across.
    spare = known / (2 * CROSS_FROM) if cross else float(share) * known / (SPARE * classes)
    wide = min(width, 3 * wide // 2, max(wide, math.floor(spare)))
    k = min(wide, math.floor(float(share) * known / (PER_COORDINATE * classes)))
    q = min(k // 3, math.floor(math.sqrt(known) / 8))
    if q >= classes + LEAST:
        energy = energy_within(features.prior, k)
        inside = energy_inside(energy, k, q, classes)
        reasons: tuple[str, ...] = (
            f"{k} features: epsilon n / ({PER_COORDINATE} classes), at most {wide}",
            f"second moments along {q} directions, sqrt(epsilon n) / 8: from {classes + LEAST} on, signal "
            "exceeds noise",
            f"clip norm {math.sqrt(LOOSE * inside):.3g}: the expected distance to the class mean",
        )
        clip_norms = None
        if cross:
            between = energy_inside(energy, k, classes - 1, classes)
            clip_norms = (math.sqrt(LOOSE * between), math.sqrt(LOOSE * max(energy - inside, 0.1 * energy)))
            reasons += (f"products across the basis: epsilon n is at least {CROSS_FROM} per feature",)
        return MomentPlan(
            k,
            "radial",
            1.0,
            0.1,
            q=q,
            basis="means",
            around="means",
            second_clip_norm=math.sqrt(LOOSE * inside),
            cross_clip_norms=clip_norms,
            share_sums=share,
            cross_share=Fraction(3, 4) if cross else Fraction(0),
            reasons=reasons,
        )
    k = max(min(wide, math.floor(known / (PER_COORDINATE * classes))), min(width, FEWEST))
    why = f"{k} features: epsilon n / ({PER_COORDINATE} classes), between {FEWEST} and {wide}"
    return MomentPlan(
        k, "radial", 1.0, 0.1, reasons=(why, "second moments skipped: noise would exceed the signal")
    )


def _rounds(n: int, signal: float, features: Features) -> MomentPlan:
    """Gradient rounds: noise on a score depends on the path, not on k, unless weights are tapered."""
    k, taper = features.rounds_width(signal), features.rounds_taper(signal)
    which = "all of them" if k == features.width else "the leading ones, by the strength of the signal"
    if taper:
        which += f", with weights that have halved at {taper}"
    rounds = plan_image_rounds(n, signal, features.path, features.clip_norm)
    reasons = (
        f"{k} features: {which}",
        f"{rounds.rounds} gradient rounds: the signal n mu / sensitivity is {signal:.0f}, at least "
        f"{features.rounds_from:g}",
        f"step size {rounds.step:g}: the path length is {features.path:g} times the signal",
        "a fortieth of the budget for class sums, which networks and checks need; features are taken around "
        "their mean",
    )
    return MomentPlan(
        k, "gaussian", 1.0, 0.2, share_sums=ROUNDS_SUMS, reasons=reasons, rounds=rounds, taper=taper
    )


def _gaussian(n: int, classes: int, mu: float, features: Features) -> MomentPlan:
    """Gaussian noise: eigenvalues 1/k of second moments against noise of spectral size sqrt(k) / (n mu)."""
    width = features.width
    tellable = (n * mu) ** (2 / 3)
    least = min(_enough(width), 150)
    k = min(width, max(least, math.floor(min(width, 600) / 800 * tellable)))
    if tellable >= min(least, 90):
        why = f"{k} features: second moments resolve about (n mu)^(2/3) = {tellable:.0f} directions"
        energy = energy_within(features.prior, k)
        if energy > CENTRED_UP_TO:
            both = (
                f"both parts share the budget: {energy:.2f} of a record's energy lies around its class mean"
            )
            return MomentPlan(k, "gaussian", 1.0, 0.2, q=k, share_sums=Fraction(1, 2), reasons=(why, both))
        around = f"around released means, where {energy:.2f} of a record's energy is expected"
        share = Fraction(3, 5) if tellable < 3 * least else Fraction(2, 5)
        return MomentPlan(
            k,
            "gaussian",
            1.0,
            0.2,
            q=k,
            around="means",
            second_clip_norm=math.sqrt(LOOSE * energy),
            share_sums=share,
            reasons=(why, around),
        )
    k = max(min(least, math.floor(LOUD * (n * mu / (2 * classes)) ** 2)), min(width, FEWEST))
    why = (
        f"{k} features: at least {FEWEST}, else noise of at most {LOUD:g} of a record's energy per class mean"
    )
    return MomentPlan(
        k, "gaussian", 1.0, 0.2, reasons=(why, "second moments skipped: noise would exceed the signal")
    )


def energy_within(prior: PriorStatistics | None, k: int) -> float:
    """Squared length of a record of k coordinates around its class mean under a prior, or 1."""
    if prior is None:
        return 1.0
    return max(float(narrow(prior, k).within.diagonal().sum()), BROAD)


def energy_inside(energy: float, k: int, q: int, classes: int) -> float:
    """The part of that energy in q directions in the span of the means, where records vary most.

    Parameters
    ----------
    energy : of a record less its class mean.
    k, q : coordinates, and directions of the second stage.
    classes : number of classes.
    """
    return energy * min(1.0, (q + classes) / k)


# ---- The rule for a numeric target: features, rounds, clip norm, from public quantities alone.
#
# The constants were fixed on held-out quarters of the training records of Adult (age), satimage (a pixel)
# and scikit-learn's `load_diabetes` and `make_friedman1` (docs/reproduction.md). They are for budgets with
# delta; pure ones have the perturbed loss (`adlm.mechanism.planner`).

PATH = 0.035  # step x clip norm x rounds, over the signal
LONGEST_STEP = 3.5  # rows have norm at most about 1, so steps of 2 (1 + momentum) are stable
# Small clip norms bias a skewed target's mean to its median, so a strong signal gets a larger one.
WIDER_TARGET_CLIPS = ((2_000.0, 0.5), (6_000.0, 1.0))
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
    signal : n mu over the sensitivity in clip norms, from `adlm.mechanism.planning.signal_of`.
    fourier : random Fourier features of the ordered columns.
    """
    if n < 1:
        raise UserError(f"a plan needs at least one record, got {n}")
    clip_norm = max((norm for least, norm in WIDER_TARGET_CLIPS if signal >= least), default=CLIP_NORM)
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
