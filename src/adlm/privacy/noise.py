"""Exact samplers of Laplace, Gaussian and radial noise on the integers, and their random bits."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from adlm.errors import UserError
from adlm.privacy.accounting import Mechanism
from adlm.runtime.arithmetic import MP, MPMATH_LOCK
from adlm.runtime.machine import keep_freed

# ---- Random bits, and Bernoulli trials that compare them with a probability to as many digits as needed.


class RandomBits:
    """Uniform random bytes: AES-256 in counter mode.

    `system()` is keyed by the operating system and is the only source that gives privacy.
    `seeded_with(seed)` is reproducible; every release made with it must be stamped `NOT PRIVATE: seeded`.
    """

    def __init__(self, key: bytes, *, seeded: bool) -> None:
        self.seeded = seeded
        self._start(key)

    def _start(self, key: bytes) -> None:
        self._pid = os.getpid()
        self._stream = Cipher(AES(key), CTR(bytes(16))).encryptor()

    @classmethod
    def system(cls) -> Self:
        """Return a source keyed with 256 bits from the operating system."""
        return cls(os.urandom(32), seeded=False)

    @classmethod
    def seeded_with(cls, seed: int) -> Self:
        """Return a source that depends on the seed alone. Its noise gives no privacy."""
        return cls(hashlib.sha256(f"adlm seeded noise {seed}".encode()).digest(), seeded=True)

    def octets(self, count: int) -> npt.NDArray[np.uint8]:
        """Return `count` uniform bytes."""
        if os.getpid() != self._pid:  # a forked child must not repeat its parent's noise
            if self.seeded:
                raise UserError(
                    "a seeded noise source cannot be shared by forked processes; make one in each"
                )
            self._start(os.urandom(32))
        return np.frombuffer(self._stream.update(bytes(count)), dtype=np.uint8)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return `count` uniform 64-bit words."""
        return self.octets(8 * count).view(np.uint64)

    def permutation(self, count: int) -> npt.NDArray[np.intp]:
        """Return the numbers below `count` in an order that is exactly uniform: that of distinct words."""
        words = self.words(count)
        while len(np.unique(words)) < count:
            words = self.words(count)
        return np.argsort(words)


@dataclass(frozen=True)
class Probability:
    """A transcendental probability, given by a function that evaluates it to any precision."""

    evaluate: Callable[[Any], Any]  # from mpmath's functions at the precision in force to a number

    def digits(self, bits: int) -> int:
        """Return floor(p 2^bits), raising the working precision until the floor is certain."""
        extra = 64
        while True:
            with MPMATH_LOCK, MP.workprec(bits + extra):
                scaled = MP.ldexp(self.evaluate(MP), bits)
                low = int(MP.floor(scaled - MP.ldexp(1, -extra // 2)))
                high = int(MP.floor(scaled + MP.ldexp(1, -extra // 2)))
            if low == high:
                return low
            extra *= 2


@dataclass
class Trials:
    """A row of independent Bernoulli trials, each with its own probability, drawn for many lanes at once."""

    probabilities: tuple[Probability, ...]
    _limbs: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    _octet: npt.NDArray[np.uint8] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)  # threads share the cached digits

    def first_octet(self) -> npt.NDArray[np.uint8]:
        """Return the first eight binary digits of every probability, (trials,)."""
        if self._octet is None:
            self._octet = np.array([p.digits(8) for p in self.probabilities], dtype=np.uint8)
        return self._octet

    def limb(self, index: int) -> npt.NDArray[np.uint64]:
        """Return binary digits 8 + 64 index .. 8 + 64 (index + 1) of every probability, (trials,)."""
        mask = (1 << 64) - 1
        with self._lock:
            while len(self._limbs) <= index:
                bits = 8 + 64 * (len(self._limbs) + 1)
                found = [p.digits(bits) & mask for p in self.probabilities]
                self._limbs.append(np.array(found, dtype=np.uint64))
            return self._limbs[index]

    def draw(self, lanes: int, source: RandomBits) -> npt.NDArray[np.bool_]:
        """Return (trials, lanes) outcomes: whether the uniform real with these random digits is below p."""
        octets = source.octets(len(self.probabilities) * lanes).reshape(-1, lanes)
        first = self.first_octet()[:, None]
        outcome = octets < first
        tied = np.flatnonzero(octets == first)
        index = 0
        while tied.size:  # 1 in 256 after the first byte, 1 in 2^72 after the first word
            threshold = self.limb(index)[tied // lanes]
            words = source.words(tied.size)
            outcome.flat[tied] = words < threshold
            tied = tied[words == threshold]
            index += 1
        return outcome


# ---- Exact samplers of Laplace, Gaussian and radial noise on the integers.
#
# Floating-point samplers leave gaps in the support of their output, and an attacker who looks at the low
# bits can distinguish neighbouring inputs (Mironov 2012; the audit shows it). Here every draw is an
# integer, and its distribution is exact: each Bernoulli trial compares fresh random bits with the binary
# digits of its probability, to as many digits as needed to distinguish them. The bits are AES-256 in
# counter mode, keyed by the operating system.
#
# A mechanism chooses a grid, so that its values are integers and the scale is a number of grid steps.
#
# Formal guarantees
# -----------------
# `laplace`: Pr[k] = tanh(1/2s) exp(-|k|/s), exactly; integer vectors at L1 distance D get a likelihood
# ratio of at most exp(D/s). `gaussian`: the normal law of standard deviation s, rounded to the nearest
# integer; for integer inputs this is the continuous Gaussian mechanism followed by rounding, so every bound
# that holds for that mechanism holds here. `radial`: the same for density exp(-|x|_2 / s) on every row;
# integer tables whose rows differ by D in sum of L2 norms get a likelihood ratio of at most exp(D/s).

__all__ = ["Scale", "Source"]

Scale = int | Fraction
Integers = npt.NDArray[np.int64]

_LANES = 1 << 15  # draws made together; small enough for their bytes to stay in the processor's cache
_MAX_SCALE = 1 << 55  # the largest digit of a draw must fit in 63 bits
_WHOLE = 24  # integer parts of a normal draw that are tried together
_ALL = slice(None)
_TAIL = 91  # digits stop where exp(-2^i / s) < exp(-91) < 2^-131; the rest is drawn exactly, and never


def _checked(scale: Scale) -> Fraction:
    if isinstance(scale, float):
        raise UserError(f"noise scale must be an int or a Fraction, not the float {scale!r}")
    exact = Fraction(scale)
    if not 0 < exact <= _MAX_SCALE:
        raise UserError(f"noise scale must lie in (0, 2^55] grid steps, got {scale}; choose a coarser grid")
    return exact


@lru_cache(maxsize=64)
def _geometric_trials(scale: Fraction) -> Trials:
    """Return the trials [digit 0, digit 1, ..., anything above].

    The binary digits of a geometric variable G, Pr[G = g] = (1 - q) q^g with q = exp(-1/s), are independent,
    and digit i is one with probability 1 / (1 + exp(2^i / s)). What is above 2^I is again geometric.
    """
    digits = max(1, math.ceil(math.log2(_TAIL * scale)))
    bits = [Probability(partial(_digit, scale, i)) for i in range(digits)]
    above = Probability(lambda mp: mp.exp(-mp.ldexp(_inverse(mp, scale), digits)))
    return Trials((*bits, above))


@lru_cache(maxsize=64)
def _zero_trial(scale: Fraction) -> Trials:
    return Trials((Probability(lambda mp: mp.tanh(_inverse(mp, scale) / 2)),))


def _digit(scale: Fraction, i: int, mp: Any) -> Any:
    return 1 / (1 + mp.exp(mp.ldexp(_inverse(mp, scale), i)))


def _inverse(mp: Any, scale: Fraction) -> Any:
    return mp.mpf(scale.denominator) / scale.numerator  # 1/s under the precision in force


def _assemble(bits: npt.NDArray[np.bool_]) -> Integers:
    """Assemble (digits, lanes) binary digits, least significant first, into (lanes,) integers."""
    planes = bits.view(np.uint8)
    drawn = np.zeros(bits.shape[1], dtype=np.int64)
    for start in reversed(range(0, len(planes), 8)):
        octet = np.zeros(bits.shape[1], dtype=np.uint8)
        for plane in planes[start : start + 8][::-1]:
            octet += octet
            octet |= plane
        drawn <<= 8
        drawn |= octet
    return drawn


def _geometric(lanes: int, scale: Fraction, source: RandomBits) -> Integers:
    """Draw G >= 0 with Pr[G = g] proportional to exp(-g/s)."""
    trials = _geometric_trials(scale)
    outcome = trials.draw(lanes, source)
    drawn = _assemble(outcome[:-1])
    for lane in np.flatnonzero(outcome[-1]):  # less than once in 2^131 draws
        higher = 1
        while Trials(trials.probabilities[-1:]).draw(1, source)[0, 0]:
            higher += 1
        drawn[lane] += higher << (len(outcome) - 1)
    return drawn


def _signed(magnitude: Integers, source: RandomBits) -> Integers:
    """Give every magnitude a fair sign."""
    sign = np.unpackbits(source.octets((magnitude.size + 7) // 8), count=magnitude.size).astype(np.int64)
    return magnitude * (1 - 2 * sign)


class _Uniform:
    """Uniform reals in (0, 1), whose 64-bit digits are drawn when first needed."""

    def __init__(
        self, count: int, source: RandomBits, digits: list[npt.NDArray[np.uint64]] | None = None
    ) -> None:
        self._count, self._source = count, source
        self._digits = [source.words(count)] if digits is None else digits

    def take(self, lanes: npt.NDArray[np.intp]) -> _Uniform:
        """Return the chosen ones, which must not be read through this object any more."""
        return _Uniform(lanes.size, self._source, [digit[lanes] for digit in self._digits])

    def digit(self, index: int) -> npt.NDArray[np.uint64]:
        while len(self._digits) <= index:
            self._digits.append(self._source.words(self._count))
        return self._digits[index]

    def below(self, other: _Uniform, lanes: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Compare each of these with `other[lanes]`."""
        result = self.digit(0) < other.digit(0)[lanes]
        tied = np.flatnonzero(self.digit(0) == other.digit(0)[lanes])
        index = 1
        while tied.size:
            mine, theirs = self.digit(index)[tied], other.digit(index)[lanes[tied]]
            result[tied] = mine < theirs
            tied = tied[mine == theirs]
            index += 1
        return result


def _even_chain(
    x: _Uniform, lanes: npt.NDArray[np.intp], quadratic: bool, source: RandomBits
) -> npt.NDArray[np.bool_]:
    """Accept lane i with probability exp(-x_i), or exp(-x_i^2 / 2) if quadratic (von Neumann 1951).

    The chain x > u1 > u2 > ... has length at least m with probability x^m / m!; if each link also needs
    v < x and a coin, (x^2/2)^m / m!. The length is even with probability the alternating sum.
    """
    even = np.ones(lanes.size, dtype=np.bool_)
    alive = np.arange(lanes.size)
    previous, where = x, lanes
    while alive.size:
        link = _Uniform(alive.size, source)
        holds = link.below(previous, where)
        if quadratic:
            holds &= _Uniform(alive.size, source).below(x, lanes[alive])
            holds &= source.octets(alive.size) < 128
        even[alive[holds]] ^= True
        alive, previous, where = alive[holds], link, np.flatnonzero(holds)
    return even


def _hazard(k: int) -> Probability:
    """Pr[integer part = k | at least k] when Pr[k] is proportional to exp(-k^2/2)."""

    def evaluate(mp: Any) -> Any:
        first = mp.exp(-mp.mpf(k * k) / 2)
        total, term, j = first, first, k
        while term > total * mp.eps / 16:
            j += 1
            term = mp.exp(-mp.mpf(j * j) / 2)
            total += term
        return first / total

    return Probability(evaluate)


@lru_cache(maxsize=1)
def _whole_part_trials() -> Trials:
    """Trials whose first success is the integer part of |Y| before rejection."""
    return Trials(tuple(_hazard(k) for k in range(_WHOLE)))


def _whole_parts(count: int, source: RandomBits) -> Integers:
    outcome = _whole_part_trials().draw(count, source)
    failures = np.zeros(count, dtype=np.uint8)  # before the first success; faster than argmax
    for success in outcome[::-1]:
        failures += 1
        failures *= ~success
    whole = failures.astype(np.int64)
    for lane in np.flatnonzero(whole == _WHOLE):  # |Y| >= 24: less than once in 2^400 draws
        while not Trials((_hazard(int(whole[lane])),)).draw(1, source)[0, 0]:
            whole[lane] += 1
    return whole


def _half_normal(count: int, source: RandomBits) -> tuple[Integers, _Uniform]:
    """Draw |Y| = k + x for standard normal Y by exact rejection (after Karney 2016)."""
    whole = _whole_parts(count, source)
    x = _Uniform(count, source)
    accepted = _even_chain(x, np.arange(count), True, source)  # exp(-x^2/2)
    for power in range(1, int(whole.max(initial=0)) + 1):  # exp(-k x), a factor exp(-x) at a time
        lanes = np.flatnonzero(accepted & (whole >= power))
        accepted[lanes] = _even_chain(x, lanes, False, source)
    kept = np.flatnonzero(accepted)
    return whole[kept], x.take(kept)


def _exponential(count: int, source: RandomBits) -> tuple[Integers, _Uniform]:
    """Draw standard exponentials k + x: the integer part is geometric, and x is accepted with exp(-x)."""
    x = _Uniform(count, source)
    kept = np.flatnonzero(_even_chain(x, np.arange(count), False, source))
    return _geometric(kept.size, Fraction(1), source), x.take(kept)


_Sampler = Callable[[int, RandomBits], tuple[Integers, _Uniform]]  # returns k and x, fewer than requested


class _Reals:
    """Exact non-negative reals k + x from a rejection sampler, with any number of digits."""

    def __init__(self, count: int, draw: _Sampler, source: RandomBits) -> None:
        self._parts: list[tuple[Integers, _Uniform, int]] = []
        filled = 0
        while filled < count:
            whole, x = draw(min(_LANES, int(1.7 * (count - filled)) + 16), source)
            used = min(whole.size, count - filled)
            self._parts.append((whole, x, used))
            filled += used

    def digits(self, limbs: int) -> tuple[npt.NDArray[Any], ...]:
        """Return k and `limbs` 64-bit digits of x, (count,) each."""
        none = (np.empty(0, dtype=np.int64), *(np.empty(0, dtype=np.uint64) for _ in range(limbs)))
        parts = [(k[:n], *(x.digit(i)[:n] for i in range(limbs))) for k, x, n in self._parts]
        return tuple(np.concatenate(arrays) for arrays in zip(none, *parts, strict=True))

    def fixed(self, limbs: int, lanes: slice | npt.NDArray[np.intp] = _ALL) -> npt.NDArray[np.object_]:
        """Return floor(value 2^(64 limbs)) as Python integers; the value is below that plus one."""
        value, *digits = (each[lanes].astype(object) for each in self.digits(limbs))
        for digit in digits:
            value = (value << 64) + digit
        return value


def _nearest(numerator: Any, denominator: Any) -> Any:
    """Round non-negative fractions to the nearest integer."""
    return (2 * numerator + denominator) // (2 * denominator)


def _product(whole: Integers, digit: npt.NDArray[np.uint64], scale: int) -> tuple[Integers, Integers]:
    """Round (k + x) s to the nearest integers by the first 64-bit digit of x.

    Also returns the lanes in which further digits decide: they add less than s to the 64 fractional digits
    of x s, so these are the lanes that lie less than s below a half.
    """
    mask = (1 << 32) - 1
    upper, lower = digit >> 32, digit & mask
    middle = upper * (scale & mask) + (lower * (scale & mask) >> 32)  # none of these sums reaches 2^64
    above = upper * (scale >> 32) + (middle >> 32) + (((middle & mask) + lower * (scale >> 32)) >> 32)
    behind = digit * scale  # modulo 2^64
    nearest = whole * scale + above.view(np.int64) + (behind >> 63).view(np.int64)
    return nearest, np.flatnonzero((behind < 1 << 63) & (behind >= (1 << 63) - scale))


class Source(RandomBits):
    """Random bits, and exact noise on the integers from them.

    The audit's tap is a subclass: mechanisms draw all noise through the three methods of their `Source`.
    """

    def laplace(self, shape: int | tuple[int, ...], scale: Scale) -> Integers:
        """Draw from the discrete Laplace law Pr[k] = tanh(1/2s) exp(-|k|/s), exactly.

        The work per draw does not depend on the value drawn, except for comparisons past their first byte,
        whose number is independent of the outcome.
        """
        exact = _checked(scale)
        size = math.prod(shape) if isinstance(shape, tuple) else shape
        out = np.empty(size, dtype=np.int64)
        keep_freed()
        for start in range(0, size, _LANES):
            stop = min(start + _LANES, size)
            block = _signed(_geometric(stop - start, exact, self) + 1, self)
            block[_zero_trial(exact).draw(stop - start, self)[0]] = 0
            out[start:stop] = block
        return out.reshape(shape)

    def gaussian(self, shape: int | tuple[int, ...], scale: Scale) -> Integers:
        """Draw from the normal law of standard deviation `scale`, rounded to the nearest integer."""
        exact = _checked(scale)
        size = math.prod(shape) if isinstance(shape, tuple) else shape
        normal = _Reals(size, _half_normal, self)
        nearest, open_lanes = np.empty(size, dtype=np.int64), np.arange(size)
        if exact.denominator == 1:  # one digit settles almost all draws
            whole, first = normal.digits(1)
            nearest, open_lanes = _product(whole, first, exact.numerator)
        limbs = 1
        while True:  # once, or twice where a draw lies within 2^-64 of a boundary
            limbs += 1
            value, unit = normal.fixed(limbs, open_lanes), exact.denominator << (64 * limbs)
            low = _nearest(value * exact.numerator, unit)
            if (low == _nearest((value + 1) * exact.numerator, unit)).all():
                nearest[open_lanes] = low
                return _signed(nearest, self).reshape(shape)

    def radial(self, rows: int, width: int, scale: Scale) -> Integers:
        """Draw (rows, width) integers, each row of density exp(-|x|_2 / s) on R^width, rounded.

        The K-norm mechanism of the Euclidean ball (Hardt and Talwar 2010): a uniform direction and a
        Gamma(width) radius. Directions and radii are exact reals; their product is enclosed between two
        rationals, which are refined until both round to the same integer.
        """
        exact = _checked(scale)
        normal = _Reals(rows * width, _half_normal, self)
        lengths = _Reals(rows * width, _exponential, self)
        limbs = 2
        while True:
            limbs += 1
            g = normal.fixed(limbs).reshape(rows, width)
            radius = lengths.fixed(limbs).reshape(rows, width).sum(1)
            low, high = np.empty_like(g), np.empty_like(g)
            for row in range(rows):
                shortest = math.isqrt(sum(v * v for v in g[row]))
                longest = math.isqrt(sum((v + 1) * (v + 1) for v in g[row])) + 1
                unit = exact.denominator << (64 * limbs)
                low[row] = _nearest(g[row] * (radius[row] * exact.numerator), longest * unit)
                most = (radius[row] + width) * exact.numerator
                high[row] = _nearest((g[row] + 1) * most, shortest * unit)
            if (low == high).all():
                return _signed(low.ravel().astype(np.int64), self).reshape(rows, width)

    def choose(self, scores: Integers, scale: Scale) -> int:
        """Return an index with probability proportional to exp(score / scale): the exponential mechanism.

        Exact, by rejection: an index is drawn uniformly, and accepted with probability
        exp(-(largest - score) / scale), which is that of a geometric variable reaching an integer.

        Parameters
        ----------
        scores : (n,) integers.
        scale : such that neighbours whose scores differ by at most D have a log-likelihood ratio of range
            2 D / scale.
        """
        exact = _checked(scale)
        behind = int(scores.max()) - scores.astype(np.int64)
        count = len(behind)
        while True:
            words = self.words(2 * count + 64)
            index = (words[words < (1 << 64) // count * count] % count).astype(np.int64)
            accepted = np.flatnonzero(_geometric(len(index), exact, self) >= behind[index])
            if accepted.size:
                return int(index[accepted[0]])

    def draw(self, mechanism: Mechanism, shape: tuple[int, ...], scale: Scale) -> Integers:
        """Draw noise of a mechanism by its name; for `radial` the last axis is the width of a row."""
        if mechanism == "radial":
            rows = self.radial(math.prod(shape[:-1]), shape[-1], scale)
            return rows if rows.shape == shape else rows.reshape(shape)
        return (self.laplace if mechanism == "laplace" else self.gaussian)(shape, scale)

    def add(self, values: Integers, mechanism: Mechanism, scale: Scale) -> Integers:
        """Return integers of any shape with noise; they are one row for `radial`."""
        row = values.reshape(1, -1)
        return np.asarray((row + self.draw(mechanism, row.shape, scale)).reshape(values.shape))
