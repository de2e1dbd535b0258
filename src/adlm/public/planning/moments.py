"""The rule that turns public quantities into the settings of a moment release.

Its inputs are the number of records, the number of classes, the budget and the public prior of the
features; it never reads a record. `adlm plan` shows it, and the release follows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from adlm.errors import UserError
from adlm.estimation.gradient_head import GradientRounds
from adlm.privacy.accounting import gaussian_mu
from adlm.public.features import Features, PriorStatistics
from adlm.public.features.narrowed import narrow
from adlm.public.planning.rounds import plan_image_rounds

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
        from adlm.privacy.notebook import Part, box

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
            f"k = {k}: one coordinate for each {PER_COORDINATE} M / epsilon n, at most {wide}",
            f"q = {q}: second moments around the released means are worth their noise from "
            f"{classes + LEAST} directions, sqrt(epsilon n) / 8",
            f"clip level {math.sqrt(LOOSE * inside):.3g}: what to expect of a record around its class mean",
        )
        clip_norms = None
        if cross:
            between = energy_inside(energy, k, classes - 1, classes)
            clip_norms = (math.sqrt(LOOSE * between), math.sqrt(LOOSE * max(energy - inside, 0.1 * energy)))
            reasons += (f"products across the basis: epsilon n is at least {CROSS_FROM} for each coordinate",)
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
    why = f"k = {k}: one coordinate for each {PER_COORDINATE} M / epsilon n, within {FEWEST} and {wide}"
    return MomentPlan(
        k, "radial", 1.0, 0.1, reasons=(why, "no second moments: they are not worth their noise")
    )


def _rounds(n: int, signal: float, features: Features) -> MomentPlan:
    """Gradient rounds: noise on a score depends on the path, not on k, unless weights are tapered."""
    k, taper = features.rounds_width(signal), features.rounds_taper(signal)
    which = "all coordinates" if k == features.width else "the leading coordinates that suit the signal"
    if taper:
        which += f", with weights that have halved at {taper}"
    rounds = plan_image_rounds(n, signal, features.path, features.clip_norm)
    reasons = (
        f"k = {k}: {which}",
        f"{rounds.rounds} gradient rounds: the signal n mu / sensitivity is {signal:.0f}, at least "
        f"{features.rounds_from:g}",
        f"step {rounds.step:g}: the path is {features.path:g} of the signal",
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
        why = f"k = {k}: second moments tell about (n mu)^(2/3) = {tellable:.0f} directions"
        energy = energy_within(features.prior, k)
        if energy > CENTRED_UP_TO:
            both = f"one cost for both parts: records keep {energy:.2f} of their energy around class means"
            return MomentPlan(k, "gaussian", 1.0, 0.2, q=k, share_sums=Fraction(1, 2), reasons=(why, both))
        around = f"around released means, where {energy:.2f} of a record's energy is to be expected"
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
    why = f"k = {k}: at least {FEWEST}, else noise on a class mean has at most {LOUD:g} of a record's energy"
    return MomentPlan(
        k, "gaussian", 1.0, 0.2, reasons=(why, "no second moments: they are not worth their noise")
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
