"""What was released, and what that costs: charges, their composition, the certificate.

A `Charge` is a frozen value; its meaning never changes once it is in a certificate. The epsilon of a
charge is not stated but computed from its sensitivity and scale, here and nowhere else, so that
`adlm verify` repeats the proof from the certificate alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any, Literal, get_args

from adlm.errors import UserError
from adlm.runtime.arithmetic import MP, MPMATH_LOCK, root_up

Mechanism = Literal["laplace", "radial", "gaussian", "curvature", "gaussian-label", "gaussian-target"]
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)
IN_LOSS = ("gaussian-label", "gaussian-target")  # Gaussian noise in a loss, of two classes or of a target
GAUSSIAN = ("gaussian", *IN_LOSS)
NONE_PROVED = "none proved"
SMALLEST_DELTA = Fraction(1, 10**50)  # a delta is computed to 60 digits
_DIGITS = 6  # epsilons for delta > 0 and printed ones are rounded up to 10^-6
LONGEST_NUMBER, LONGEST_OPTION = 1000, 400  # characters of a number in a file, and of a user's
LARGEST_LOSS, LARGEST_MU = 10**200, 10**6  # of a charge: far more than protects anybody
SMALLEST_EPSILON = Fraction(1, 10**9)  # of a release
SMALLEST_LOSS = Fraction(1, 10**100)
LARGEST_CONTRIBUTIONS = 10**9
MOST_TERMS = 64  # records of a person, twice where they are replaced, that noise in a loss can protect
CURVE_STEPS = 60  # points of the curve of delta over epsilon in a trade-off
MOST_CORNERS = 256  # of a composition; more are rounded up to fewer
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


def show_mu(mu: Epsilon) -> str:
    """Print a mu, rounded up to four digits; nothing for 0."""
    if not mu:
        return ""
    digits = max(4, 3 - math.floor(math.log10(mu)))
    return f"{float(round_up(Fraction(mu), digits)):.{digits}f}".rstrip("0").rstrip(".")


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
        raise UserError(f"{name} must be positive (got {_brief(value).strip(chr(39))})")
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

    return _smallest_epsilon(lambda epsilon: gaussian_delta(mu, epsilon), delta)


def _smallest_epsilon(curve: Callable[[Fraction], Fraction], delta: Fraction) -> Fraction:
    """Return the smallest multiple of 10^-6 at which a falling curve is at most delta."""

    def holds(steps: int) -> bool:
        return curve(Fraction(steps, 10**_DIGITS)) <= delta

    fails, high = -1, 1
    while not holds(high):
        fails, high = high, 2 * high
    while high - fails > 1:
        middle = (fails + high) // 2
        fails, high = (fails, middle) if holds(middle) else (middle, high)
    return Fraction(high, 10**_DIGITS)


def gaussian_delta(mu: Fraction, epsilon: Fraction) -> Fraction:
    """Return delta(epsilon) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), rounded up."""
    if not mu and epsilon >= 0:
        return Fraction(0)
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
class Gaussians:
    """Gaussian noise of several charges together.

    Attributes
    ----------
    square : sum of mu^2 of noise on sums.
    losses : one entry for each perturbed loss: its mechanism, the number s of gradients that may change, and
        mu^2 of the longest way they can move the loss's linear term.

    Formal guarantees
    -----------------
    delta(epsilon) is at most the sum, over the corners of the set of moves of the linear terms, of the delta
    of Gaussian noise whose mu^2 is `square` and those of the corners. Each of s gradients lies on a segment:
    from 0 to some u for a label, from -u to u for a target, |u| at most a share 1/s of the longest move. Any
    j of s labels together are a corner. A target has 2^s corners, whose mean squared length is a share 1/s of
    the longest; where delta is convex in mu^2, that is as if a share 1/s of them were longest and the others
    0. The composition may be adaptive. Proved in docs/proof-objective.md (Theorem 4).
    """

    square: Fraction = Fraction(0)
    losses: tuple[tuple[Mechanism, int, Fraction], ...] = ()

    @classmethod
    def of(cls, charges: Iterable[Charge]) -> Gaussians:
        """Collect the Gaussian noise of charges."""
        noisy = [c for c in charges if c.mechanism in GAUSSIAN]
        square = sum((c.loss**2 for c in noisy if c.mechanism == "gaussian"), Fraction(0))
        losses = tuple((c.mechanism, c.terms, c.loss**2) for c in noisy if c.mechanism in IN_LOSS)
        return cls(square, losses)

    def corners(self, epsilon: Fraction) -> dict[Fraction, Fraction]:
        """Return how many corners there are of each mu^2, at most MOST_CORNERS of these."""
        far = self.square + sum((square for _, _, square in self.losses), Fraction(0))
        convex = epsilon >= 0 and 4 * epsilon**2 >= far * (far + 4)  # of delta in mu^2, up to `far`
        found = {self.square: Fraction(1)}
        for mechanism, terms, square in self.losses:
            if mechanism == "gaussian-label":
                more = {
                    square * Fraction(j, terms) ** 2: Fraction(math.comb(terms, j)) for j in range(terms + 1)
                }
            elif convex and terms > 1:
                share = Fraction(2**terms, terms)
                more = {square: share, Fraction(0): 2**terms - share}
            else:
                more = {square: Fraction(2**terms)}
            sums: dict[Fraction, Fraction] = {}
            for (one, many), (other, times) in product(found.items(), more.items()):
                sums[one + other] = sums.get(one + other, Fraction(0)) + many * times
            found = _fewer(sums)
        return found

    def delta(self, epsilon: Fraction) -> Fraction:
        """Return a delta for which an epsilon holds, rounded up; more than 1 says nothing."""
        parts = (many * gaussian_delta(root_up(s), epsilon) for s, many in self.corners(epsilon).items())
        return sum(parts, Fraction(0))

    def epsilon(self, delta: Fraction) -> Fraction:
        """Return the smallest epsilon, in multiples of 10^-6, that holds at a delta."""
        return _gaussians_epsilon(self, delta)


@lru_cache(maxsize=256)
def _gaussians_epsilon(noise: Gaussians, delta: Fraction) -> Fraction:
    if not noise.losses:
        return gaussian_epsilon(root_up(noise.square), delta) if noise.square else Fraction(0)
    return _smallest_epsilon(noise.delta, delta)


def _fewer(corners: dict[Fraction, Fraction]) -> dict[Fraction, Fraction]:
    """Merge neighbouring corners into the longer ones until there are few enough."""
    while len(corners) > MOST_CORNERS:
        falling = sorted(corners.items(), reverse=True)
        pairs = zip(falling[::2], [*falling[1::2], (Fraction(0), Fraction(0))], strict=False)
        corners = {longer: many + more for (longer, many), (_, more) in pairs}
    return corners


@dataclass(frozen=True)
class Charge:
    """One read of private records: what was released and at what cost.

    Attributes
    ----------
    what : what was released, in words.
    mechanism : `laplace` (sensitivity in L1), `radial` (in the sum of the rows' L2 norms), `gaussian` (in
        L2), `gaussian-label` and `gaussian-target` (in L2, of the gradient of a loss of two classes or of a
        numeric target), or `curvature` of a perturbed loss: the trace of a record's Hessian over the ridge.
    neighbours : the neighbouring relation that `sensitivity` is for.
    sensitivity, scale : in the same units, normally steps of the noise grid. The proved epsilon is their
        ratio for all but Gaussian noise, and the analytic Gaussian one of their ratio for Gaussian noise
        (of `Gaussians` for Gaussian noise in a loss).
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
        from adlm.domain import NEIGHBOURS

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
        if (self.mechanism in GAUSSIAN) != (self.delta > 0) or not 0 <= self.delta < 1:
            raise UserError(f"delta is in (0, 1) for Gaussian noise and 0 for any other, got {self.delta}")
        if 0 < self.delta < SMALLEST_DELTA:
            raise UserError(f"delta of a charge must be at least {float(SMALLEST_DELTA):g}, got {self.delta}")
        most = LARGEST_MU if self.mechanism in GAUSSIAN else LARGEST_LOSS
        if not SMALLEST_LOSS <= self.loss <= most or abs(self.epsilon_claimed or Fraction(0)) > LARGEST_LOSS:
            raise UserError(
                f"sensitivity over scale of charge {_brief(self.what)} must lie between "
                f"{float(SMALLEST_LOSS):.0e} and {most:.0e}, and a claimed epsilon below {LARGEST_LOSS:.0e}"
            )
        people = self.contributions
        if not (type(people) is int and 1 <= people <= LARGEST_CONTRIBUTIONS):
            raise UserError(f"contributions of a charge must be a number of records, got {_brief(people)}")
        if self.mechanism in IN_LOSS and self.terms > MOST_TERMS:
            raise UserError(
                f"Gaussian noise in a loss protects at most {MOST_TERMS * people // self.terms} records of a "
                f"person, got {people}; bound them, or give delta 0"
            )

    @property
    def terms(self) -> int:
        """Records whose gradient may change: those of a person, twice where they are replaced."""
        return self.contributions * (1 if self.neighbours == "add-remove" else 2)

    @property
    def loss(self) -> Fraction:
        """Return sensitivity over scale: epsilon of a pure mechanism, mu of the Gaussian one."""
        return self.sensitivity / self.scale

    @property
    def epsilon_proved(self) -> Epsilon:
        """Return the epsilon that the proof gives, infinite when there is none."""
        if self.unproved:
            return math.inf
        if self.mechanism in IN_LOSS:
            return Gaussians.of([self]).epsilon(self.delta)
        return gaussian_epsilon(self.loss, self.delta) if self.mechanism == "gaussian" else self.loss

    @property
    def claimed(self) -> Epsilon:
        """Return the claimed epsilon, which is the proved one unless the authors claim otherwise."""
        return self.epsilon_proved if self.epsilon_claimed is None else self.epsilon_claimed

    @property
    def mu(self) -> str:
        """The mu of Gaussian noise on sums for people, rounded up; empty for other noise, and unproved."""
        return show_mu(self.loss) if self.mechanism == "gaussian" and not self.unproved else ""

    @property
    def unit(self) -> str:
        """What the charge protects: `record`, or `person (at most 3 records)`."""
        return unit_words(self.contributions)

    def for_person(self, contributions: int) -> Charge:
        """Return the charge for a person with more records than it was made for.

        Formal guarantees
        -----------------
        Group privacy: changing m records is ceil(m / contributions) changes of what the charge protects. A
        pure epsilon and the mu of Gaussian noise both grow by that factor (Dong, Roth, Su 2022). A perturbed
        loss has as many more corners (`Gaussians`).
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
    absent. For pure charges it is the bound of their epsilon, for Gaussian ones the exact curve of mu. With
    Gaussian noise in a loss it is that of the composed curve of delta over epsilon, which is not tight.

    Attributes
    ----------
    mu : of all Gaussian noise together; 0 if there is none.
    epsilon, delta : of everything else together.
    noise : all Gaussian noise, where some of it is in a loss; `mu` is then 0.

    Formal guarantees
    -----------------
    A mu-GDP mechanism is no easier to test than N(0, 1) against N(mu, 1) (Dong, Roth, Su 2022), an
    (epsilon, delta)-DP one no easier than randomised response that gives itself away with probability delta
    (Kairouz, Oh, Viswanath 2015). The composition, also an adaptive one, is no easier to test than both
    together, whose likelihood ratio the methods below evaluate. For every epsilon, true alarms are at most
    e^epsilon times false ones plus delta(epsilon), and the same holds for what is missed.

    Examples
    --------
    >>> from adlm.privacy.accounting import TradeOff
    >>> round(TradeOff(mu=0.268).best_guess(), 3), round(TradeOff(epsilon=1).best_guess(), 3)
    (0.553, 0.731)
    """

    mu: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0
    noise: Gaussians | None = None

    @classmethod
    def of(cls, charges: Iterable[Charge]) -> TradeOff | None:
        """Return the trade-off of charges for one unit and relation, None where nothing is proved.

        A charge that is neither pure nor Gaussian counts by its proved epsilon at its own delta.
        """
        charges, pure, missed = list(charges), Fraction(0), 1.0
        for charge in charges:
            if charge.unproved:
                return None
            if charge.mechanism not in GAUSSIAN:
                pure += Fraction(charge.epsilon_proved)
                missed *= 1 - float(charge.delta)
        noise = Gaussians.of(charges)
        if noise.losses:
            return cls(0.0, float(pure), 1 - missed, noise)
        mu = float(root_up(noise.square)) if noise.square else 0.0
        return cls(mu, float(pure), 1 - missed)

    @property
    def is_pure(self) -> bool:
        """Whether the epsilon holds for every output."""
        return not (self.mu or self.delta or self.noise)

    def best_guess(self) -> float:
        """Return the largest share of right guesses between two neighbours of equal prior probability."""
        if self.noise is None:
            return self._alarms(0.0)[1]
        return min((math.exp(e) + d) / (math.exp(e) + 1) for e, d in self._curve())

    def _curve(self) -> tuple[tuple[float, float], ...]:
        """Return some epsilons with their deltas, capped at 1."""
        assert self.noise is not None
        points = _points(self.noise)
        return tuple((self.epsilon + e, min(self.delta + d, 1.0)) for e, d in points)

    def detection(self, false_alarms: float) -> float:
        """Return the largest rate of true alarms of a test with this rate of false ones, in [0, 1]."""
        if self.noise is not None:
            bounds = (
                bound
                for e, d in self._curve()
                for bound in (math.exp(e) * false_alarms + d, 1 - (1 - false_alarms - d) / math.exp(e))
            )
            return max(0.0, min(1.0, *bounds))
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
        if self.is_pure:
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


@lru_cache(maxsize=16)
def _points(noise: Gaussians) -> tuple[tuple[float, float], ...]:
    """Return epsilons from 0 to that at a delta of 10^-12, with their deltas rounded up."""
    most = min(noise.epsilon(Fraction(1, 10**12)), Fraction(600))
    steps = (most * Fraction(i, CURVE_STEPS) ** 2 for i in range(CURVE_STEPS + 1))
    return tuple((float(e), float(noise.delta(e)) * (1 + 1e-12)) for e in steps)


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
        shown = show_mu(found.mu)
        return f"{shown} with pure epsilon {show(Fraction(found.epsilon))}" if found.epsilon else shown

    def mu_or_why_not(self) -> str:
        """Return `mu`, or why there is none."""
        found = self.trade_off
        if found is None:
            return "none proved"
        if self.mu:
            return self.mu
        return "none: pure epsilon" if found.is_pure else "none: Gaussian noise in a loss has another curve"

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
        """State the guarantee: one epsilon, or claimed and proved where they differ."""
        delta = f", delta {float(self.delta):g}" if self.delta else ""
        mu = f" (mu {self.mu})" if self.mu else ""
        why = f" ({'; '.join(self.unproved)})" if self.unproved else ""
        claimed, proved = show(self.epsilon_claimed), show(self.epsilon_proved)
        epsilon = proved if claimed == proved else f"claimed {claimed}, proved {proved}"
        per = f"per {self.unit}{self.multiplied()}{why}"
        return f"epsilon {epsilon}{delta}{mu}, neighbours {self.neighbours}, {per}"

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
    mu^2 = sum mu_i^2 (Dong, Roth, Su 2022), which has an analytic epsilon at every delta; with those in a
    loss they compose by `Gaussians`. The delta of a charge says where its epsilon was read off, not what the
    mechanism is, so charges of different deltas compose. The two groups add by basic composition. All hold
    for adaptively chosen mechanisms. Charges for different neighbouring relations do not compose here and are
    refused. The total is for the largest number of records that a charge allows one person; charges for fewer
    are multiplied (`Charge.for_person`).
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
    gaussian = [c for c in charges if c.mechanism in GAUSSIAN]
    if delta is None:
        delta = max((c.delta for c in gaussian), default=Fraction(0))
    elif gaussian and delta < SMALLEST_DELTA:
        raise UserError(f"Gaussian noise has no epsilon at delta {float(delta):g}; give a larger delta")
    unproved = tuple(dict.fromkeys(c.unproved for c in charges if c.unproved))
    delta = delta if gaussian else Fraction(0)
    proved: Epsilon = math.inf
    if not unproved:
        proved = sum((c.loss for c in charges if c.mechanism not in GAUSSIAN), Fraction(0))
        if gaussian:
            proved += Gaussians.of(gaussian).epsilon(delta)
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
    The charges of a release of that epsilon (pure ones for delta 0, Gaussian noise on sums otherwise) compose
    with the given ones to something within the budget. A perturbed loss with delta, whose curve of delta is
    another one, may be refused a little earlier: `Ledger.check` decides.
    """
    charges, step = list(charges), 10**_DIGITS
    most = max([contributions, *(c.contributions for c in charges)])
    charges, times = [c.for_person(most) for c in charges], -(-most // contributions)
    if delta > budget_delta or any(c.unproved or c.delta > budget_delta for c in charges):
        return Fraction(0)
    noisy = Gaussians.of(charges)
    rest = budget - sum((c.loss for c in charges if c.mechanism not in GAUSSIAN), Fraction(0))
    if not delta:
        rest -= noisy.epsilon(budget_delta)
        return max(Fraction(math.floor(rest / times * step), step), Fraction(0))
    if rest <= 0:
        return Fraction(0)
    if noisy.losses:
        unspent = _unspent(noisy, Fraction(math.floor(rest * step), step), budget_delta)
    else:
        try:
            unspent = gaussian_mu(rest, budget_delta) ** 2 - noisy.square
        except UserError:  # too little is left for any Gaussian noise
            return Fraction(0)
    if unspent <= 0:
        return Fraction(0)
    mu = Fraction(math.isqrt(math.floor(unspent * 10**24)), 10**12) / times
    # slightly below the epsilon of that mu, so that noise calibrated to it has a smaller mu
    return max(gaussian_epsilon(mu, delta) - Fraction(1, step), Fraction(0)) if mu else Fraction(0)


def _unspent(noise: Gaussians, epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the mu^2, in steps of 10^-12, that can be added to some noise within a budget."""
    low, high = 0, 64 * 10**12
    while high - low > 1:
        middle = (low + high) // 2
        more = replace(noise, square=noise.square + Fraction(middle, 10**12))
        low, high = (middle, high) if more.delta(epsilon) <= delta else (low, middle)
    return Fraction(low, 10**12)


# ---- A privacy budget: epsilon and delta, exact.


@dataclass(frozen=True)
class Budget:
    """The privacy budget of a data set or of one release: proved epsilon, and delta.

    Parameters
    ----------
    epsilon : positive.
    delta : at least 0 and below 1; 0 for pure epsilon.

    Examples
    --------
    >>> from adlm import Budget
    >>> Budget.of("1/3", 1e-5) == Budget.parse("1/3,1e-5")
    True
    """

    epsilon: Fraction
    delta: Fraction = Fraction(0)

    @classmethod
    def of(cls, epsilon: object, delta: object = 0) -> Budget:
        """Make a budget from numbers, or exact ones such as "1/3".

        Parameters
        ----------
        epsilon, delta : numbers, or texts such as "0.5", "1/3" and "1e-5".

        Raises
        ------
        UserError : epsilon is not a positive number, or delta does not lie in [0, 1).
        """
        exact = parse_epsilon(epsilon)
        if exact < SMALLEST_EPSILON:
            raise UserError(
                f"epsilon must be at least {float(SMALLEST_EPSILON):g} (got {_brief(epsilon)}): noise "
                "would be too large to draw"
            )
        return cls(exact, parse_delta(delta))

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a budget, "EPSILON" or "EPSILON,DELTA", as on the command line."""
        epsilon, _, delta = text.partition(",")
        return cls(parse_epsilon(epsilon, "budget"), parse_delta(delta or "0"))

    def to_dict(self) -> dict[str, str]:
        """Return epsilon and delta as strings, as on the command line."""
        return {"epsilon": show(self.epsilon), "delta": f"{float(self.delta):g}"}
