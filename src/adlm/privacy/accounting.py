"""What was released, and what that costs: charges, their composition, the certificate.

A `Charge` is a frozen value; its meaning never changes once it is in a certificate. The epsilon of a
charge is not stated but computed from its sensitivity and scale, here and nowhere else, so that
`adlm verify` repeats the proof from the certificate alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from adlm.errors import UserError
from adlm.runtime.roots import root_up

Mechanism = Literal["laplace", "radial", "gaussian"]
MECHANISMS = ("laplace", "radial", "gaussian")
NONE_PROVED = "none proved"
SMALLEST_DELTA = Fraction(1, 10**50)  # a delta is computed to 60 digits
_DIGITS = 6  # epsilons for delta > 0 and printed ones are rounded up to 10^-6

Epsilon = Fraction | float  # a Fraction, or math.inf


def round_up(value: Epsilon, digits: int = _DIGITS) -> Epsilon:
    """Round up to a multiple of 10^-digits; infinity stays."""
    if math.isinf(value):
        return math.inf
    step = 10**digits
    return Fraction(math.ceil(Fraction(value) * step), step)


def show(value: Epsilon) -> str:
    """Print an epsilon, rounded up to six digits; infinity is `none proved`."""
    if math.isinf(value):
        return NONE_PROVED
    return f"{float(round_up(value)):.6f}".rstrip("0").rstrip(".")


def number(value: Epsilon) -> float | None:
    """Return an epsilon for JSON: a number rounded up, or null when none is proved."""
    return None if math.isinf(value) else float(round_up(value))


def parse_epsilon(value: object, name: str = "epsilon") -> Fraction:
    """Read a positive, finite privacy budget exactly: 0.1 is one tenth, not the nearest double.

    A value that is zero or infinite as a double is refused: nothing can be computed with it.
    """
    text = str(value)
    try:
        near = float(text) if "/" not in text else float(Fraction(text))
        exact = Fraction(text) if 0 < abs(near) < math.inf else Fraction(0)  # 1e999999999 would never end
    except (ValueError, ZeroDivisionError, OverflowError):
        near, exact = math.nan, Fraction(0)
    if not math.isfinite(near):
        raise UserError(f"{name} must be a positive number such as 0.5, got {value!r}")
    if exact <= 0:
        raise UserError(f"{name} must be greater than 0, got {value}; a smaller budget means more privacy")
    return exact


def parse_delta(value: object) -> Fraction:
    """Read delta: 0 for pure epsilon, else a small probability below 1."""
    try:
        exact = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise UserError(f"delta must be 0 or a small probability such as 1e-5, got {value!r}") from None
    if not 0 <= exact < 1:
        raise UserError(f"delta must be at least 0 and below 1, got {value}; 0 means pure epsilon")
    return exact


@lru_cache(maxsize=256)
def gaussian_epsilon(mu: Fraction, delta: Fraction) -> Fraction:
    """Return the epsilon of the Gaussian mechanism with sensitivity `mu` standard deviations, rounded up.

    The analytic Gaussian mechanism (Balle and Wang 2018): the smallest multiple of 10^-6 that its closed form
    allows. Delta falls as epsilon grows, so bisection finds it.
    """

    def holds(steps: int) -> bool:
        return gaussian_delta(mu, Fraction(steps, 10**_DIGITS)) <= delta

    fails, high = -1, 1
    while not holds(high):
        fails, high = high, 2 * high
    while high - fails > 1:
        middle = (fails + high) // 2
        fails, high = (fails, middle) if holds(middle) else (middle, high)
    return Fraction(high, 10**_DIGITS)


def gaussian_delta(mu: Fraction, epsilon: Fraction) -> Fraction:
    """Return delta(epsilon) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), rounded up."""
    import mpmath

    lost = len(str(int(mu))) + len(str(int(epsilon)))  # digits before the point, which both terms cancel
    with mpmath.workdps(80 + lost):
        m, e = mpmath.mpf(mu.numerator) / mu.denominator, mpmath.mpf(epsilon.numerator) / epsilon.denominator
        value = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        return Fraction(int(mpmath.ceil(value * mpmath.mpf(10) ** 60)), 10**60)


@lru_cache(maxsize=256)
def gaussian_mu(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest sensitivity, in standard deviations, that costs at most `epsilon`."""
    low, high = Fraction(0), Fraction(64)
    for _ in range(60):
        middle = (low + high) / 2
        if gaussian_delta(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle
    mu = Fraction(math.floor(low * 10**9), 10**9)
    while mu > 0 and gaussian_epsilon(mu, delta) > epsilon:
        mu -= Fraction(1, 10**9) * max(1, math.ceil(mu * 1000))
    if mu <= 0:
        raise UserError(
            f"epsilon {show(epsilon)} at delta {float(delta):g} is too small for Gaussian noise; raise it"
        )
    return mu


@dataclass(frozen=True)
class Charge:
    """One read of private records: what was released and at what cost.

    Attributes
    ----------
    what : what was released, in words.
    mechanism : `laplace` (sensitivity in L1), `radial` (in the sum of the rows' L2 norms) or `gaussian`
        (in L2).
    neighbours : the neighbouring relation that `sensitivity` is for.
    sensitivity, scale : in the same units, normally steps of the noise grid. The proved epsilon is their
        ratio for Laplace and radial noise, and the analytic Gaussian one of their ratio for Gaussian noise.
    delta : 0 except for Gaussian noise.
    epsilon_claimed : the epsilon that the method's authors claim for this step; None if it is the proved one.
    proof : where the bound is proved. A charge without a proof cannot be made.
    unproved : why no epsilon is proved although noise was added; empty when one is.
    """

    what: str
    mechanism: Mechanism
    neighbours: str
    sensitivity: Fraction
    scale: Fraction
    proof: str
    delta: Fraction = Fraction(0)
    epsilon_claimed: Fraction | None = None
    unproved: str = ""

    def __post_init__(self) -> None:
        from adlm.public.domain import NEIGHBOURS

        if self.mechanism not in MECHANISMS:
            raise UserError(
                f"charge mechanism must be one of {', '.join(MECHANISMS)}, got {self.mechanism!r}"
            )
        if self.neighbours not in NEIGHBOURS:
            raise UserError(f"neighbours must be one of {', '.join(NEIGHBOURS)}, got {self.neighbours!r}")
        if not self.proof.strip() or not self.what.strip():
            raise UserError("a charge must say what was released and where its bound is proved")
        if not (self.sensitivity > 0 and self.scale > 0):
            raise UserError(
                f"a charge needs a positive sensitivity and scale, got {self.sensitivity} and {self.scale}"
            )
        if (self.mechanism == "gaussian") != (self.delta > 0) or not 0 <= self.delta < 1:
            raise UserError(f"delta is in (0, 1) for Gaussian noise and 0 for any other, got {self.delta}")
        if 0 < self.delta < SMALLEST_DELTA:
            raise UserError(f"delta of a charge must be at least {float(SMALLEST_DELTA):g}, got {self.delta}")

    @property
    def loss(self) -> Fraction:
        """Return sensitivity over scale: epsilon of a pure mechanism, mu of the Gaussian one."""
        return self.sensitivity / self.scale

    @property
    def epsilon_proved(self) -> Epsilon:
        """Return the epsilon that the proof gives, infinite when there is none."""
        if self.unproved:
            return math.inf
        return gaussian_epsilon(self.loss, self.delta) if self.mechanism == "gaussian" else self.loss

    @property
    def claimed(self) -> Epsilon:
        """Return the claimed epsilon, which is the proved one unless the authors claim otherwise."""
        return self.epsilon_proved if self.epsilon_claimed is None else self.epsilon_claimed

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; rationals are strings, so that nothing is rounded."""
        raw = {key: str(v) if isinstance(v, Fraction) else v for key, v in asdict(self).items()}
        return raw | {"epsilon_proved": show(self.epsilon_proved)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Charge:
        """Read a charge, and refuse one whose stated epsilon is not what its numbers give."""
        names = {f.name for f in fields(cls)}
        if set(raw) != names | {"epsilon_proved"}:
            raise UserError(
                f"a charge has the fields {', '.join(sorted(names))}, got {', '.join(sorted(raw))}"
            )
        try:
            values = {key: raw[key] for key in names}
            for key in ("sensitivity", "scale", "delta", "epsilon_claimed"):
                values[key] = None if values[key] is None else Fraction(values[key])
            charge = cls(**values)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise UserError(f"a charge cannot be read: {error}") from None
        if show(charge.epsilon_proved) != raw["epsilon_proved"]:
            raise UserError(
                f"charge {charge.what!r} states epsilon {raw['epsilon_proved']}, its numbers give "
                f"{show(charge.epsilon_proved)}"
            )
        return charge


@dataclass(frozen=True)
class Totals:
    """The cost of several charges together, claimed and proved.

    Attributes
    ----------
    epsilon_claimed, epsilon_proved : what the method's authors claim, and what is proved; infinite where
        nothing is.
    delta : for which the epsilons hold.
    neighbours : the relation of all charges.
    unproved : why nothing is proved, where that is so.
    """

    epsilon_claimed: Epsilon
    epsilon_proved: Epsilon
    delta: Fraction
    neighbours: str
    unproved: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the stable keys that every report uses."""
        return {
            "epsilon_claimed": number(self.epsilon_claimed),
            "epsilon_proved": number(self.epsilon_proved),
            "delta": float(self.delta),
            "neighbours": self.neighbours,
            "unproved": list(self.unproved),
        }

    def sentence(self) -> str:
        """Say claimed and proved together."""
        delta = f", delta {float(self.delta):g}" if self.delta else ""
        why = f" ({'; '.join(self.unproved)})" if self.unproved else ""
        return (
            f"epsilon claimed {show(self.epsilon_claimed)}, proved {show(self.epsilon_proved)}"
            f"{delta}, neighbours {self.neighbours}{why}"
        )


def compose(charges: Iterable[Charge], delta: Fraction | None = None) -> Totals:
    """Compose charges.

    Parameters
    ----------
    delta : where the epsilon of Gaussian noise is read off; the largest delta of the charges when not given.

    Formal guarantees
    -----------------
    Pure charges add exactly (basic composition). Gaussian charges compose to one Gaussian mechanism,
    mu^2 = sum mu_i^2 (Dong, Roth, Su 2022), which has an analytic epsilon at every delta. The delta of a
    charge says where its epsilon was read off, not what the mechanism is, so charges of different deltas
    compose. The two groups add by basic composition. All hold for adaptively chosen mechanisms. Charges for
    different neighbouring relations do not compose here and are refused.
    """
    charges = list(charges)
    relations = {c.neighbours for c in charges}
    gaussian = [c for c in charges if c.mechanism == "gaussian"]
    if not charges:
        raise UserError("there is no charge to add up; a release must hold at least one")
    if len(relations) > 1:
        raise UserError(
            f"charges for different neighbouring relations do not add up: {', '.join(sorted(relations))}"
        )
    if delta is None:
        delta = max((c.delta for c in gaussian), default=Fraction(0))
    elif gaussian and delta < SMALLEST_DELTA:
        raise UserError(f"Gaussian noise has no epsilon at delta {float(delta):g}; give a larger delta")
    unproved = tuple(dict.fromkeys(c.unproved for c in charges if c.unproved))
    delta = delta if gaussian else Fraction(0)
    proved: Epsilon = math.inf
    if not unproved:
        proved = sum((c.loss for c in charges if c.mechanism != "gaussian"), Fraction(0))
        if gaussian:
            proved += gaussian_epsilon(root_up(sum((c.loss**2 for c in gaussian), Fraction(0))), delta)
    if all(c.epsilon_claimed is None for c in charges):
        claimed = proved
    else:
        parts = [c.claimed for c in charges]
        claimed = (
            math.inf if any(math.isinf(p) for p in parts) else sum((Fraction(p) for p in parts), Fraction(0))
        )
    return Totals(claimed, proved, delta, relations.pop(), unproved)


def left_over(
    budget: Fraction, budget_delta: Fraction, charges: Iterable[Charge], delta: Fraction = Fraction(0)
) -> Fraction:
    """Return the largest epsilon, in multiples of 10^-6, that one more release can have within a budget.

    Parameters
    ----------
    budget, budget_delta : the total budget.
    charges : those made so far.
    delta : of the next release; 0 for pure epsilon.

    Formal guarantees
    -----------------
    The charges of a release of that epsilon (pure ones for delta 0, Gaussian ones otherwise) compose with
    the given ones to something within the budget: what is left of Gaussian noise is what is left of mu^2.
    """
    charges, step = list(charges), 10**_DIGITS
    if delta > budget_delta or any(c.unproved or c.delta > budget_delta for c in charges):
        return Fraction(0)
    noisy = sum((c.loss**2 for c in charges if c.mechanism == "gaussian"), Fraction(0))
    rest = budget - sum((c.loss for c in charges if c.mechanism != "gaussian"), Fraction(0))
    if not delta:
        rest -= gaussian_epsilon(root_up(noisy), budget_delta) if noisy else 0
        return max(Fraction(math.floor(rest * step), step), Fraction(0))
    if rest <= 0:
        return Fraction(0)
    try:
        unspent = gaussian_mu(rest, budget_delta) ** 2 - noisy
    except UserError:  # too little is left for any Gaussian noise
        return Fraction(0)
    if unspent <= 0:
        return Fraction(0)
    mu = Fraction(math.isqrt(math.floor(unspent * 10**24)), 10**12)
    # slightly below the epsilon of that mu, so that noise calibrated to it has a smaller mu
    return max(gaussian_epsilon(mu, delta) - Fraction(1, step), Fraction(0)) if mu else Fraction(0)
