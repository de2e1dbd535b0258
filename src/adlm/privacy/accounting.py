"""What was released, and what that costs: charges, their composition, the certificate.

A `Charge` is a frozen value; its meaning never changes once it is in a certificate. The epsilon of a
charge is not stated but computed from its sensitivity and scale, here and nowhere else, so that
`adlm verify` repeats the proof from the certificate alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from adlm.errors import UserError
from adlm.runtime.roots import MP, MPMATH_LOCK, root_up

Mechanism = Literal["laplace", "radial", "gaussian", "curvature"]
MECHANISMS = ("laplace", "radial", "gaussian", "curvature")
NONE_PROVED = "none proved"
SMALLEST_DELTA = Fraction(1, 10**50)  # a delta is computed to 60 digits
_DIGITS = 6  # epsilons for delta > 0 and printed ones are rounded up to 10^-6
LONGEST_NUMBER, LONGEST_OPTION = 1000, 400  # characters of a number in a file, and of a user's
LARGEST_LOSS, LARGEST_MU = 10**200, 10**6  # of a charge: far more than protects anybody
SMALLEST_LOSS = Fraction(1, 10**100)
LARGEST_CONTRIBUTIONS = 10**9
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:/[0-9]+)?|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)")

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


def parse_exact(value: object, longest: int = LONGEST_NUMBER) -> Fraction:
    """Read a number exactly, from a decimal or a fraction of bounded length: 0.1 is one tenth.

    Parameters
    ----------
    value : a number, or a text such as "0.5", "1/3" and "1e-5".
    longest : the number of characters that it may have.

    Raises
    ------
    ValueError : it is no such number, is too long, or has an exponent of more than three digits. Such a
        number is never evaluated: 1e400000000 would not end.
    """
    text = value if isinstance(value, str) else str(value)
    if len(text) > longest or not _NUMBER.fullmatch(text.strip()):
        shown = text if len(text) <= 40 else f"{text[:20]}... of {len(text):,} characters"
        raise ValueError(
            f"a number must be a decimal or a fraction of at most {longest} characters with an "
            f"exponent of at most three digits, got {shown!r}"
        )
    return Fraction(text)


def parse_epsilon(value: object, name: str = "epsilon") -> Fraction:
    """Read a positive, finite privacy budget exactly: 0.1 is one tenth, not the nearest double.

    A value that is zero or infinite as a double is refused: nothing can be computed with it.
    """
    try:
        exact = parse_exact(value, LONGEST_OPTION)
        near = float(exact)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise UserError(f"{name} must be a positive number such as 0.5, got {_brief(value)}") from None
    if exact <= 0 or near == 0:
        raise UserError(
            f"{name} must be greater than 0, got {_brief(value)}; a smaller budget means more privacy"
        )
    return exact


def _brief(value: object) -> str:
    """Show a value in a message, shortened: it may come from a file."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}... of {len(text):,} characters"


def parse_delta(value: object) -> Fraction:
    """Read delta: 0 for pure epsilon, else a small probability below 1."""
    try:
        exact = parse_exact(value, LONGEST_OPTION)
    except (ValueError, ZeroDivisionError):
        raise UserError(f"delta must be 0 or a small probability such as 1e-5, got {_brief(value)}") from None
    if not 0 <= exact < 1:
        raise UserError(f"delta must be at least 0 and below 1, got {_brief(value)}; 0 means pure epsilon")
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
    # 80 digits after the point; those before it cancel in the difference of the two terms
    bits = 266 + int(mu).bit_length() + int(epsilon).bit_length()
    with MPMATH_LOCK, MP.workprec(bits):
        m, e = MP.mpf(mu.numerator) / mu.denominator, MP.mpf(epsilon.numerator) / epsilon.denominator
        value = MP.ncdf(m / 2 - e / m) - MP.exp(e) * MP.ncdf(-m / 2 - e / m)
        return Fraction(int(MP.ceil(value * MP.mpf(10) ** 60)), 10**60)


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
    mechanism : `laplace` (sensitivity in L1), `radial` (in the sum of the rows' L2 norms), `gaussian` (in
        L2), or `curvature` of a perturbed loss: the trace of a record's Hessian over the ridge.
    neighbours : the neighbouring relation that `sensitivity` is for.
    sensitivity, scale : in the same units, normally steps of the noise grid. The proved epsilon is their
        ratio for all but Gaussian noise, and the analytic Gaussian one of their ratio for Gaussian noise.
    delta : 0 except for Gaussian noise.
    epsilon_claimed : the epsilon that the method's authors claim for this step; None if it is the proved one.
    proof : where the bound is proved. A charge without a proof cannot be made.
    unproved : why no epsilon is proved although noise was added; empty when one is.
    contributions : the records of one person that `sensitivity` is for; 1 protects single records.
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
    contributions: int = 1

    def __post_init__(self) -> None:
        from adlm.public.domain import NEIGHBOURS

        if self.mechanism not in MECHANISMS:
            raise UserError(
                f"charge mechanism must be one of {', '.join(MECHANISMS)}, got {_brief(self.mechanism)}"
            )
        if self.neighbours not in NEIGHBOURS:
            raise UserError(
                f"neighbours must be one of {', '.join(NEIGHBOURS)}, got {_brief(self.neighbours)}"
            )
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
        most = LARGEST_MU if self.mechanism == "gaussian" else LARGEST_LOSS
        if not SMALLEST_LOSS <= self.loss <= most or abs(self.epsilon_claimed or Fraction(0)) > LARGEST_LOSS:
            raise UserError(
                f"sensitivity over scale of charge {_brief(self.what)} must lie between "
                f"{float(SMALLEST_LOSS):.0e} and {most:.0e}, and a claimed epsilon below {LARGEST_LOSS:.0e}"
            )
        people = self.contributions
        if not (type(people) is int and 1 <= people <= LARGEST_CONTRIBUTIONS):
            raise UserError(f"contributions of a charge must be a number of records, got {_brief(people)}")

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

    @property
    def unit(self) -> str:
        """What the charge protects: `record`, or `person (at most 3 records)`."""
        return unit_words(self.contributions)

    def for_person(self, contributions: int) -> Charge:
        """Return the charge for a person with more records than it was made for.

        Formal guarantees
        -----------------
        Group privacy: changing m records is ceil(m / contributions) changes of what the charge protects. A
        pure epsilon and the mu of Gaussian noise both grow by that factor (Dong, Roth, Su 2022).
        """
        times = -(-contributions // self.contributions)
        claimed = None if self.epsilon_claimed is None else self.epsilon_claimed * times
        return replace(
            self,
            sensitivity=self.sensitivity * times,
            epsilon_claimed=claimed,
            contributions=max(contributions, self.contributions),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; rationals are strings, so that nothing is rounded."""
        raw = {key: str(v) if isinstance(v, Fraction) else v for key, v in asdict(self).items()}
        if self.contributions == 1:
            del raw["contributions"]
        return raw | {"epsilon_proved": show(self.epsilon_proved)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Charge:
        """Read a charge, and refuse one whose stated epsilon is not what its numbers give."""
        names = {f.name for f in fields(cls)}
        if not isinstance(raw, Mapping) or set(raw) | {"contributions"} != names | {"epsilon_proved"}:
            raise UserError(f"a charge has the fields {', '.join(sorted(names))}, got {_brief(raw)}")
        try:
            values = {key: raw[key] for key in names if key in raw}
            for key in ("sensitivity", "scale", "delta", "epsilon_claimed"):
                values[key] = None if values[key] is None else parse_exact(values[key])
            charge = cls(**values)
        except (TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
            raise UserError(f"a charge cannot be read: {error}") from None
        if show(charge.epsilon_proved) != raw["epsilon_proved"]:
            raise UserError(
                f"charge {_brief(charge.what)} states epsilon {str(raw['epsilon_proved'])[:40]}, its numbers "
                f"give {show(charge.epsilon_proved)}"
            )
        return charge


def unit_words(contributions: int, person: bool = False) -> str:
    """Name the unit of privacy: `record`, or `person (at most 3 records)`.

    Parameters
    ----------
    contributions : the records that one person may have.
    person : whether the unit is a person even with one record.
    """
    if contributions == 1 and not person:
        return "record"
    return f"person (at most {contributions} record{'s' * (contributions != 1)})"


@dataclass(frozen=True)
class TradeOff:
    """How well any test can tell a release from its neighbour's: a bound, tight for Gaussian noise.

    The bound is that of a mu-GDP mechanism together with an (epsilon, delta)-DP one, each of which may be
    absent. For pure charges it is the bound of their epsilon, for Gaussian ones the exact curve of mu.

    Attributes
    ----------
    mu : of all Gaussian noise together; 0 if there is none.
    epsilon, delta : of everything else together.

    Formal guarantees
    -----------------
    A mu-GDP mechanism is no easier to test than N(0, 1) against N(mu, 1) (Dong, Roth, Su 2022), an
    (epsilon, delta)-DP one no easier than randomised response that gives itself away with probability delta
    (Kairouz, Oh, Viswanath 2015). The composition, also an adaptive one, is no easier to test than both
    together, whose likelihood ratio the methods below evaluate.

    Examples
    --------
    >>> from adlm.privacy.accounting import TradeOff
    >>> round(TradeOff(mu=0.268).best_guess(), 3), round(TradeOff(epsilon=1).best_guess(), 3)
    (0.553, 0.731)
    """

    mu: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    @classmethod
    def of(cls, charges: Iterable[Charge]) -> TradeOff | None:
        """Return the trade-off of charges for one unit and relation, None where nothing is proved.

        A charge that is neither pure nor Gaussian counts by its proved epsilon at its own delta.
        """
        squares, pure, missed = Fraction(0), Fraction(0), 1.0
        for charge in charges:
            if charge.unproved:
                return None
            if charge.mechanism == "gaussian":
                squares += charge.loss**2
            else:
                pure += Fraction(charge.epsilon_proved)
                missed *= 1 - float(charge.delta)
        mu = float(root_up(squares)) if squares else 0.0
        return cls(mu, float(pure), 1 - missed)

    def best_guess(self) -> float:
        """Return the largest share of right guesses between two neighbours of equal prior probability."""
        return self._alarms(0.0)[1]

    def detection(self, false_alarms: float) -> float:
        """Return the largest rate of true alarms of a test with this rate of false ones, in [0, 1]."""
        if not self.mu:
            grown = math.exp(min(self.epsilon, 700.0))
            up, down = grown * false_alarms + self.delta, 1 - (1 - false_alarms - self.delta) / grown
            return max(0.0, min(1.0, up, down))
        if false_alarms >= 1 - self.delta:
            return 1.0
        far = self.epsilon + self.mu * (self.mu + 40)  # no log-likelihood ratio is farther away in a double
        low, high = -far, far
        for _ in range(100):  # false alarms fall as the threshold rises
            middle = (low + high) / 2
            low, high = (middle, high) if self._alarms(middle)[0] > false_alarms else (low, middle)
        return self._alarms(high)[1]

    def odds_factor(self, false_alarms: float) -> float:
        """Return the largest factor of an attacker's odds after an alarm.

        Pure epsilon: e^epsilon, for every output. Otherwise a rare output can say more than that, and the
        factor is true over false alarms of the best test with this rate of false ones.
        """
        if not self.mu and not self.delta:
            return math.exp(min(self.epsilon, 700.0))
        return self.detection(false_alarms) / false_alarms

    def _alarms(self, threshold: float) -> tuple[float, float]:
        """Return false and true alarms of a test that rejects where the log-likelihood ratio is larger."""
        up = 1 / (1 + math.exp(-min(self.epsilon, 700.0)))  # the honest answer of randomised response
        half, kept = self.mu * self.mu / 2, 1 - self.delta

        def above(value: float, mean: float) -> float:
            if not self.mu:
                return 1.0 if value + mean > threshold else 0.0
            return math.erfc((threshold - value - mean) / (self.mu * math.sqrt(2))) / 2

        false = (1 - up) * above(self.epsilon, -half) + up * above(-self.epsilon, -half)
        true = up * above(self.epsilon, half) + (1 - up) * above(-self.epsilon, half)
        return kept * false, self.delta + kept * true


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
    contributions : the records of one person that are protected together.
    person : whether the unit is a person, also where each has one record.
    smallest_unit : the fewest records that one of the charges was made for.
    composed : the exact trade-off of the charges, where they are known; see `trade_off`.
    """

    epsilon_claimed: Epsilon
    epsilon_proved: Epsilon
    delta: Fraction
    neighbours: str
    unproved: tuple[str, ...] = ()
    contributions: int = 1
    person: bool = False
    smallest_unit: int = 1
    composed: TradeOff | None = None

    @property
    def unit(self) -> str:
        """The unit of privacy: `record`, or `person (at most 3 records)`."""
        return unit_words(self.contributions, self.person)

    @property
    def trade_off(self) -> TradeOff | None:
        """How well any test can tell the release from a neighbour's; None where nothing is proved."""
        if self.composed is not None or math.isinf(self.epsilon_proved):
            return self.composed
        return TradeOff(epsilon=float(self.epsilon_proved), delta=float(self.delta))

    @property
    def mu(self) -> str:
        """The mu of Gaussian noise for people, rounded up; empty where there is none."""
        found = self.trade_off
        if found is None or not found.mu:
            return ""
        digits = max(4, 3 - math.floor(math.log10(found.mu)))
        shown = f"{float(round_up(Fraction(found.mu), digits)):.{digits}f}".rstrip("0").rstrip(".")
        return f"{shown} with pure epsilon {show(Fraction(found.epsilon))}" if found.epsilon else shown

    def to_dict(self) -> dict[str, Any]:
        """Return the stable keys that every report uses."""
        return {
            "epsilon_claimed": number(self.epsilon_claimed),
            "epsilon_proved": number(self.epsilon_proved),
            "delta": float(self.delta),
            "neighbours": self.neighbours,
            "unproved": list(self.unproved),
        }

    def about_mu(self) -> str:
        """Explain epsilon, delta and mu in one sentence; empty where there is no mu."""
        found = self.trade_off
        if found is None or not found.mu:
            return ""
        further = (
            ", given one more answer of randomised response at the pure epsilon" if found.epsilon else ""
        )
        return (
            "Epsilon and delta are the guarantee; mu describes the same noise exactly: to tell the release "
            "from a neighbour's is as hard as to tell a normal draw with mean mu from one with mean 0, both "
            f"with standard deviation 1{further}."
        )

    def sentence(self) -> str:
        """Say claimed and proved together."""
        delta = f", delta {float(self.delta):g}" if self.delta else ""
        mu = f" (mu {self.mu})" if self.mu else ""
        why = f" ({'; '.join(self.unproved)})" if self.unproved else ""
        return (
            f"epsilon claimed {show(self.epsilon_claimed)}, proved {show(self.epsilon_proved)}"
            f"{delta}{mu}, neighbours {self.neighbours}, per {self.unit}{self.multiplied()}{why}"
        )

    def multiplied(self) -> str:
        """Say how charges for fewer records were counted."""
        if self.smallest_unit == self.contributions:
            return ""
        times = -(-self.contributions // self.smallest_unit)
        return f", where a charge per {unit_words(self.smallest_unit)} counts {times} times"


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
    different neighbouring relations do not compose here and are refused. The total is for the largest number
    of records that a charge allows one person; charges for fewer are multiplied (`Charge.for_person`).
    """
    charges = list(charges)
    relations = {c.neighbours for c in charges}
    if not charges:
        raise UserError("there is no charge to add up; a release must hold at least one")
    if len(relations) > 1:
        raise UserError(
            f"charges for different neighbouring relations do not add up: {', '.join(sorted(relations))}"
        )
    units = {c.contributions for c in charges}
    most = max(units)
    charges = [c.for_person(most) for c in charges]
    gaussian = [c for c in charges if c.mechanism == "gaussian"]
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
    return Totals(
        claimed,
        proved,
        delta,
        relations.pop(),
        unproved,
        contributions=most,
        person=most > 1,
        smallest_unit=min(units),
        composed=TradeOff.of(charges),
    )


def left_over(
    budget: Fraction,
    budget_delta: Fraction,
    charges: Iterable[Charge],
    delta: Fraction = Fraction(0),
    contributions: int = 1,
) -> Fraction:
    """Return the largest epsilon, in multiples of 10^-6, that one more release can have within a budget.

    Parameters
    ----------
    budget, budget_delta : the total budget.
    charges : those made so far.
    delta : of the next release; 0 for pure epsilon.
    contributions : records of one person that the next release protects together.

    Formal guarantees
    -----------------
    The charges of a release of that epsilon (pure ones for delta 0, Gaussian ones otherwise) compose with
    the given ones to something within the budget: what is left of Gaussian noise is what is left of mu^2.
    """
    charges, step = list(charges), 10**_DIGITS
    most = max([contributions, *(c.contributions for c in charges)])
    charges, times = [c.for_person(most) for c in charges], -(-most // contributions)
    if delta > budget_delta or any(c.unproved or c.delta > budget_delta for c in charges):
        return Fraction(0)
    noisy = sum((c.loss**2 for c in charges if c.mechanism == "gaussian"), Fraction(0))
    rest = budget - sum((c.loss for c in charges if c.mechanism != "gaussian"), Fraction(0))
    if not delta:
        rest -= gaussian_epsilon(root_up(noisy), budget_delta) if noisy else 0
        return max(Fraction(math.floor(rest / times * step), step), Fraction(0))
    if rest <= 0:
        return Fraction(0)
    try:
        unspent = gaussian_mu(rest, budget_delta) ** 2 - noisy
    except UserError:  # too little is left for any Gaussian noise
        return Fraction(0)
    if unspent <= 0:
        return Fraction(0)
    mu = Fraction(math.isqrt(math.floor(unspent * 10**24)), 10**12) / times
    # slightly below the epsilon of that mu, so that noise calibrated to it has a smaller mu
    return max(gaussian_epsilon(mu, delta) - Fraction(1, step), Fraction(0)) if mu else Fraction(0)
