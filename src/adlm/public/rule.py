"""The rule that turns public quantities into the settings of a moment release.

It sees the number of records, the number of classes, the budget and what the public prior says of the
features; it never sees a record. `adlm plan` shows it, and the release follows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from scipy.optimize import brentq
from scipy.special import ndtr

from adlm.errors import UserError
from adlm.public.features import Features, PriorStatistics

# Fixed on the last 10,000 training images of MNIST and Fashion-MNIST, taken as public for that.
PER_COORDINATE = 10  # pure: records of a class, times epsilon, that a coordinate needs
FEWEST = 10  # coordinates, however small the budget
ENOUGH = (100, 200)  # coordinates for class sums without noise: a third of the width, within these
BESIDE = 50  # directions beside the class means, in second moments with pure epsilon
INSIDE = 0.4  # energy of a record in directions between class means and the leading ones
LEAST = 4  # directions beside the class means for which second moments are worth a part of the budget


@dataclass(frozen=True)
class Plan:
    """The settings of a moment release, each from public quantities alone.

    Attributes
    ----------
    k : coordinates whose class sums are released.
    noise : `gaussian` (delta > 0), `radial` or `laplace` (pure).
    level : clip level of a record in the norm of the noise (L1 for Laplace, else L2).
    constant : share of the clip that carries the class counts.
    q, basis, second_level : second moments of q coordinates (0: none), in the `leading` coordinates or
        around the released `means`, clipped at `second_level`.
    share_sums : share of the budget for class sums.
    scales : (k,) relative noise scales, or None for identical ones.
    reasons : one sentence for each choice.
    """

    k: int
    noise: Literal["gaussian", "radial", "laplace"]
    level: float
    constant: float
    q: int = 0
    basis: Literal["leading", "means"] = "leading"
    second_level: float = 1.0
    share_sums: Fraction = Fraction(3, 5)
    scales: tuple[float, ...] | None = None
    reasons: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; the scales, which can be many, are left to the release's tensors."""
        return {
            "k": self.k, "noise": self.noise, "level": self.level, "constant": self.constant, "q": self.q,
            "basis": self.basis, "second_level": self.second_level, "share_sums": str(self.share_sums),
            "allocation": "identical" if self.scales is None else "adaptive", "reasons": list(self.reasons),
        }  # fmt: skip


def choose(n: int, classes: int, epsilon: float, delta: float, neighbours: str, features: Features) -> Plan:
    """Choose settings for n records of some classes under a budget."""
    if n < 1 or classes < 2:
        raise UserError(f"a plan needs at least one record and two classes, got {n} and {classes}")
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 <= delta < 1):
        raise UserError(f"a budget needs epsilon > 0 and 0 <= delta < 1, got {epsilon} and {delta}")
    # A record that is added or removed moves one class, one that is replaced may move two.
    factor = 2.0 if neighbours == "add-remove" else 1.0
    if delta:
        return _gaussian(n, classes, factor * gaussian_mu(epsilon, delta), features.width)
    return _pure(n, classes, factor * epsilon, features)


def _enough(width: int) -> int:
    """Coordinates beyond which class sums alone gain nothing, even without noise."""
    return min(width, max(ENOUGH[0], min(width // 3, ENOUGH[1])))


def _pure(n: int, classes: int, budget: float, features: Features) -> Plan:
    """Radial noise: a coordinate of a class mean has standard deviation 2 sqrt(k) M / (epsilon n)."""
    width = features.width
    wide = _enough(width)
    q = min(classes - 1 + BESIDE, wide // 2, math.floor((0.55 * budget * n / ENOUGH[1]) ** (2 / 3)))
    share = Fraction(7, 10)
    k = min(wide, math.floor(float(share) * budget * n / (PER_COORDINATE * classes)))
    if q >= classes + LEAST and k >= 2 * q:
        level = second_level(features.prior, q)
        return Plan(
            k, "radial", 1.0, 0.1, q=q, basis="means", second_level=level, share_sums=share,
            reasons=(
                f"k = {k}: one coordinate for each {PER_COORDINATE} M / epsilon n, at most {wide}",
                f"q = {q}: second moments around the released means are worth their noise from "
                f"{classes + LEAST} directions, (0.55 epsilon n / {ENOUGH[1]})^(2/3)",
                f"clip level {level:.3g}: what to expect of the length of a record in {q} directions",
            ),
        )  # fmt: skip
    k = max(min(wide, math.floor(budget * n / (PER_COORDINATE * classes))), min(width, FEWEST))
    why = f"k = {k}: one coordinate for each {PER_COORDINATE} M / epsilon n, within {FEWEST} and {wide}"
    return Plan(k, "radial", 1.0, 0.1, reasons=(why, "no second moments: they are not worth their noise"))


def _gaussian(n: int, classes: int, mu: float, width: int) -> Plan:
    """Gaussian noise: eigenvalues 1/k of second moments against noise of spectral size sqrt(k) / (n mu)."""
    tellable = (n * mu) ** (2 / 3)
    least = min(_enough(width), 150)
    k = min(width, max(least, math.floor(min(width, 600) / 800 * tellable)))
    if tellable >= min(least, 90):
        why = f"k = {k}: second moments tell about (n mu)^(2/3) = {tellable:.0f} directions"
        return Plan(k, "gaussian", 1.0, 0.2, q=k, share_sums=Fraction(1, 2), reasons=(why,))
    k = max(min(least, math.floor(0.065 * (n * mu / (2 * classes)) ** 2)), min(width, FEWEST))
    why = f"k = {k}: noise on a class mean stays below a tenth of what records vary by"
    return Plan(k, "gaussian", 1.0, 0.2, reasons=(why, "no second moments: they are not worth their noise"))


def second_level(prior: PriorStatistics | None, q: int) -> float:
    """Clip level of q directions of a unit vector: the L1 norm to expect, and a tenth more.

    A vector of energy share s in q directions has an L1 norm of about sqrt(2 s q / pi) there. Features that
    come with a prior leave much of their energy outside any few directions; of others nothing is known.
    """
    return 1.1 * math.sqrt(2 / math.pi * q * (1.0 if prior is None else INSIDE))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Sensitivity, in standard deviations, that costs (epsilon, delta): for planning, not for a proof."""

    def excess(mu: float) -> float:
        tail = math.exp(min(epsilon, 700.0)) * float(ndtr(-epsilon / mu - mu / 2))
        return float(ndtr(-epsilon / mu + mu / 2)) - tail - delta

    return float(brentq(excess, 1e-9, 100.0))
