"""The rule that turns public quantities into the settings of a moment release.

It sees the number of records, the number of classes, the budget and what the public prior says of the
features; it never sees a record. `adlm plan` shows it, and the release follows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from adlm.errors import UserError
from adlm.public.features import Features


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
    factor = 2.0 if neighbours == "add-remove" else 1.0  # add-remove costs half
    budget = factor * epsilon
    if delta:
        return _gaussian(n, classes, budget, delta, features.width)
    k = max(min(features.width, math.floor(budget * n / (8 * classes))), min(features.width, 20))
    reason = f"k = {k}: one coordinate for each 8 M / (epsilon n), within 20 and {features.width}"
    return Plan(k, "radial", 1.0, 0.1, reasons=(reason,))


def _gaussian(n: int, classes: int, budget: float, delta: float, width: int) -> Plan:
    sigma = 2 * math.sqrt(2 * math.log(1.25 / delta)) / budget
    k = min(width, math.floor((1.3 * n / sigma) ** (2 / 3)))
    if k >= min(130, width):
        why = f"k = {k}: second moments of (1.3 n / sigma)^(2/3) coordinates are worth their noise"
        return Plan(k, "gaussian", 1.0, 0.2, q=k, reasons=(why,))
    k = max(min(width, math.floor(0.05 * (n / classes) ** 2 / sigma**2)), min(width, 20))
    return Plan(k, "gaussian", 1.0, 0.2, reasons=(f"k = {k}: second moments are not worth their noise",))
