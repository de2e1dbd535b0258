"""The samplers have the laws they claim. Each randomised test states its false-alarm rate."""

from __future__ import annotations

import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adlm.errors import UserError
from adlm.privacy import noise
from adlm.privacy.accounting import gaussian_delta
from adlm.privacy.noise import Probability, Source, Trials

FALSE_ALARM = 1e-6  # of each chi-square test below
DRAWS = 100_000


def exp_bounds(x: Fraction, terms: int = 120) -> tuple[Fraction, Fraction]:
    """A slow twin of exp for 0 <= x <= 8 in rationals: partial sum, and the same plus a bound on the rest."""
    total, term = Fraction(0), Fraction(1)
    for i in range(1, terms):
        total, term = total + term, term * x / i
    return total, total + 2 * term


@pytest.mark.parametrize("scale", [Fraction(1, 4), Fraction(1), Fraction(7, 3), Fraction(40)])
def test_digit_probabilities_agree_with_rational_arithmetic(scale: Fraction) -> None:
    trials = noise._geometric_trials(scale)
    for i, probability in enumerate(trials.probabilities[:-1]):
        x = Fraction(2**i) / scale
        if x > 8:
            continue
        low, high = exp_bounds(x)
        digits = probability.digits(136)
        assert Fraction(digits, 1 << 136) <= 1 / (1 + low)
        assert Fraction(digits + 1, 1 << 136) >= 1 / (1 + high)


class Scripted(Source):
    """A source that plays given bytes, then zeros."""

    def __init__(self, script: bytes) -> None:
        super().__init__(bytes(32), seeded=True)
        self.script = script

    def octets(self, count: int) -> npt.NDArray[np.uint8]:
        out, self.script = self.script[:count], self.script[count:]
        return np.frombuffer(out.ljust(count, b"\0"), dtype=np.uint8)


@given(shared=st.integers(0, 17), rest=st.binary(min_size=32, max_size=32))
def test_a_trial_compares_as_many_digits_as_it_takes(shared: int, rest: bytes) -> None:
    """The uniform real shares `shared` bytes with p, so ties at every depth are exercised."""
    p = Probability(lambda mp: mp.exp(-1))
    digits = p.digits(8 * 40).to_bytes(40, "big")
    uniform = (digits[:shared] + rest)[:17]
    words = uniform[:1] + b"".join(uniform[1 + 8 * i : 9 + 8 * i][::-1] for i in range(2))
    expected = int.from_bytes(uniform, "big") < int.from_bytes(digits[:17], "big")
    if uniform == digits[:17]:
        return  # then the script's zeros decide: below, unless p ends in zeros here
    assert Trials((p,)).draw(1, Scripted(words))[0, 0] == expected


def test_equal_digits_ask_for_more() -> None:
    p = Probability(lambda mp: mp.exp(-1))
    digits = p.digits(8 * 17).to_bytes(17, "big")
    words = digits[:1] + digits[1:9][::-1] + digits[9:17][::-1]
    assert Trials((p,)).draw(1, Scripted(words))[0, 0]  # followed by zeros, so below p


def test_threads_compute_the_same_digits_as_one_thread() -> None:
    """mpmath's precision is global: without a lock, one thread changes it under another's computation."""
    tails = [p for s in (3, 40, 1000) for p in noise._geometric_trials(Fraction(s)).probabilities]
    depths = (8, 72, 136, 1032)
    alone = [p.digits(bits) for bits in depths for p in tails]
    mu, epsilon = Fraction(1, 3), Fraction(1)
    delta = gaussian_delta(mu, epsilon)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(p.digits, bits) for _ in range(3) for bits in depths for p in tails]
            others = [pool.submit(gaussian_delta, mu, epsilon) for _ in range(20)]
            assert [job.result() for job in jobs] == 3 * alone
            assert {job.result() for job in others} == {delta}
    finally:
        sys.setswitchinterval(interval)


def laplace_cdf(k: npt.NDArray[np.int64], scale: float) -> npt.NDArray[np.float64]:
    """Pr[X <= k], from summing the geometric series of the mass function."""
    q = math.exp(-1 / scale)
    tail = np.exp(-np.abs(k) / scale) / (1 + q)
    return np.where(k < 0, tail, 1 - q * tail)


def gaussian_cdf(k: npt.NDArray[np.int64], scale: float) -> npt.NDArray[np.float64]:
    return np.asarray(stats.norm.cdf((k + 0.5) / scale))


LAWS = {"laplace": (Source.laplace, laplace_cdf), "gaussian": (Source.gaussian, gaussian_cdf)}
SCALES = [Fraction(s) for s in ("1/4", "1/2", "1", "10/3", "1000", 2**21 + 1, 2**45)]


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_draws_have_the_exact_mass(law: str, scale: Fraction) -> None:
    draw, cdf = LAWS[law]
    sample = draw(Source.seeded_with(7), DRAWS, scale)
    s = float(scale)
    edges = (
        np.unique(np.round(np.linspace(-4 * s, 4 * s, 41)).astype(np.int64)) if s > 1 else np.arange(-3, 3)
    )
    mass = np.diff(np.concatenate([[0.0], cdf(edges, s), [1.0]]))
    cells = np.bincount(np.searchsorted(edges, sample, side="left"), minlength=len(edges) + 1)
    keep = mass * DRAWS > 8
    observed, expected = cells[keep], mass[keep] * DRAWS
    rest = DRAWS - observed.sum(), DRAWS - expected.sum()
    statistic = ((observed - expected) ** 2 / expected).sum()
    if rest[1] > 8:
        statistic += (rest[0] - rest[1]) ** 2 / rest[1]
    assert stats.chi2.sf(statistic, keep.sum()) > FALSE_ALARM


@pytest.mark.parametrize("width", [1, 2, 9])
def test_radial_noise_has_a_gamma_radius_and_a_uniform_direction(width: int) -> None:
    """Kolmogorov-Smirnov against both laws; the grid is too fine to matter. False-alarm rate 1e-6 each."""
    rows = Source.seeded_with(7).radial(4000, width, 1 << 40) / 2.0**40
    radius = np.linalg.norm(rows, axis=1)
    assert stats.kstest(radius, stats.gamma(width).cdf).pvalue > FALSE_ALARM
    if width > 1:
        cosine_squared = (rows[:, 0] / radius) ** 2
        assert stats.kstest(cosine_squared, stats.beta(0.5, (width - 1) / 2).cdf).pvalue > FALSE_ALARM
        assert abs(stats.spearmanr(radius, cosine_squared).statistic) < 5 / math.sqrt(4000)


def test_radial_noise_of_one_coordinate_is_rounded_laplace_noise() -> None:
    sample, scale = Source.seeded_with(7).radial(20_000, 1, 3)[:, 0], 3.0
    edges = np.arange(-12, 12)
    cdf = np.where(edges < 0, np.exp((edges + 0.5) / scale) / 2, 1 - np.exp(-(edges + 0.5) / scale) / 2)
    mass = np.diff(np.concatenate([[0.0], cdf, [1.0]]))
    cells = np.bincount(np.searchsorted(edges, sample), minlength=len(mass))
    assert stats.chisquare(cells, mass * len(sample)).pvalue > FALSE_ALARM


@given(st.integers(0, 30), st.integers(0, 2**64 - 1), st.integers(1, 2**55), st.integers(-2, 2))
def test_one_digit_rounds_a_product_or_leaves_it_open(k: int, digit: int, scale: int, off: int) -> None:
    at_a_half = ((2 * (digit % scale) + 1) << 63) // scale + off  # x s is about a whole number and a half
    for first in (digit, min(max(at_a_half, 0), 2**64 - 1)):
        low, high = ((2 * ((k << 64) + x) * scale + 2**64) >> 65 for x in (first, first + 1))
        nearest, still_open = noise._product(np.array([k]), np.array([first], dtype=np.uint64), scale)
        assert still_open.size or (int(nearest[0]) == low == high)
        assert not still_open.size or ((first + 1) * scale - (1 << 63)) % 2**64 <= scale


def test_a_normal_draw_beyond_24_deviations_is_not_lost() -> None:
    """Bits that fail every trial below 24 and pass the next one: that happens once in 2^400 draws."""
    ties = int((noise._whole_part_trials().first_octet() == 255).sum())
    script = Scripted(b"\xff" * (noise._WHOLE + 8 * ties) + b"\x00")
    assert noise._whole_parts(1, script).tolist() == [noise._WHOLE]


@pytest.mark.parametrize("law", LAWS)
def test_low_bits_of_wide_noise_are_fair(law: str) -> None:
    """Holes in the support would show here. Eight bits, false-alarm rate 1e-6 each."""
    sample = LAWS[law][0](Source.seeded_with(7), DRAWS, 1 << 40)
    for bit in range(8):
        ones = int(((sample >> bit) & 1).sum())
        assert stats.binomtest(ones, DRAWS).pvalue > FALSE_ALARM


def slow_discrete_laplace(scale: int, rng: np.random.Generator) -> int:
    """Canonne, Kamath, Steinke 2020, Algorithm 2, on rationals: the slow twin."""

    def bernoulli_exp(gamma: Fraction) -> bool:  # gamma in [0, 1]
        k = 1
        while rng.integers(0, gamma.denominator * k) < gamma.numerator:
            k += 1
        return k % 2 == 1

    while True:
        u = int(rng.integers(0, scale))
        if not bernoulli_exp(Fraction(u, scale)):
            continue
        v = 0
        while bernoulli_exp(Fraction(1)):
            v += 1
        x = u + scale * v
        negative = bool(rng.integers(0, 2))
        if not (negative and x == 0):
            return -x if negative else x


def assert_same_law(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> None:
    edges = np.quantile(np.concatenate([a, b]), np.linspace(0.05, 0.95, 19))
    table = np.stack([np.bincount(np.searchsorted(edges, s), minlength=20) for s in (a, b)])
    assert stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue > FALSE_ALARM


def test_agrees_with_a_slow_twin() -> None:
    rng = np.random.default_rng(1)
    twin = np.array([slow_discrete_laplace(5, rng) for _ in range(4000)])
    assert_same_law(twin, Source.seeded_with(7).laplace(40_000, 5))


def test_agrees_with_opendp() -> None:
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    mechanism = dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), scale=20.0)
    assert_same_law(np.array(mechanism([0] * 20_000)), Source.seeded_with(7).laplace(40_000, 20))


def test_a_seed_repeats_and_the_system_does_not() -> None:
    first, second = (Source.seeded_with(7).laplace(100, 1 << 30) for _ in range(2))
    assert (first == second).all()
    assert Source.seeded_with(7).seeded
    assert not Source.system().seeded
    assert (Source.system().laplace(100, 1 << 30) != Source.system().laplace(100, 1 << 30)).any()


def test_a_forked_child_does_not_repeat_its_parent() -> None:
    source = Source.system()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, source.octets(32).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 32) != source.octets(32).tobytes()


@pytest.mark.parametrize("scale", [0, -1, Fraction(-1, 2), 1 << 60])
def test_impossible_scales_are_refused(scale: int) -> None:
    with pytest.raises(UserError, match="noise scale must lie in"):
        Source.system().laplace(1, scale)


def test_a_float_scale_is_refused() -> None:
    with pytest.raises(UserError, match="not the float"):
        Source.system().gaussian(1, 1.5)  # type: ignore[arg-type]
