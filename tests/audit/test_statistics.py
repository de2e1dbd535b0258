"""The audit's own statistics: bounds that hold as often as they say, on mechanisms of known epsilon.

Each coverage test counts how often a bound lies above the truth in `TRIALS` simulated audits at level ALPHA
and fails when that count is one that a correct bound exceeds less than once in 10^6.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import beta, binom, binomtest

from adlm.audit.statistics import (
    Curve,
    clopper_pearson_lower,
    clopper_pearson_upper,
    guess_bound,
    mu_at,
    one_run_bound,
    one_run_p_value,
    right_guesses,
    threshold_bound,
)
from adlm.privacy.accounting import gaussian_epsilon

TRIALS, ALPHA = 300, 0.1
ALLOWED = int(binom.ppf(1 - 1e-6, TRIALS, ALPHA))


def test_clopper_pearson_is_the_textbook_interval() -> None:
    for k, n in ((0, 10), (3, 10), (10, 10), (417, 1000)):
        reference = binomtest(k, n).proportion_ci(0.9, "exact")
        assert float(clopper_pearson_lower(k, n, 0.05)) == pytest.approx(reference.low, abs=1e-12)
        assert float(clopper_pearson_upper(k, n, 0.05)) == pytest.approx(reference.high, abs=1e-12)
    assert float(clopper_pearson_lower(3, 10, 0.05)) == pytest.approx(beta.ppf(0.05, 3, 8))


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_threshold_bound_of_laplace_noise_rarely_exceeds_epsilon(epsilon: float) -> None:
    rng = np.random.default_rng(int(10 * epsilon))

    def bound(runs: int) -> float:
        return threshold_bound(rng.laplace(epsilon, 1, runs), rng.laplace(0, 1, runs), alpha=ALPHA).value

    assert sum(bound(1000) > epsilon for _ in range(TRIALS)) <= ALLOWED
    assert bound(100_000) > 0.85 * epsilon  # a bound that is always zero would hold too


def test_threshold_bound_of_randomised_response_rarely_exceeds_epsilon() -> None:
    rng, epsilon = np.random.default_rng(3), 1.5
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    above, values = 0, []
    for _ in range(TRIALS):
        bound = threshold_bound(rng.random(2000) < truth, rng.random(2000) < 1 - truth, alpha=ALPHA)
        above += bound.value > epsilon
        values.append(bound.value)
    assert above <= ALLOWED
    assert np.mean(values) > 0.85 * epsilon


def test_threshold_bound_with_delta_holds_for_a_mechanism_that_uses_all_of_its_delta() -> None:
    rng, epsilon, delta = np.random.default_rng(4), 1.0, 0.05
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))

    def world(sign: int) -> np.ndarray:
        answer = np.where(rng.random(2000) < truth, sign, -sign)
        return np.where(rng.random(2000) < delta, 9 * sign, answer)  # tells everything with chance delta

    above = sum(threshold_bound(world(1), world(-1), alpha=ALPHA, delta=delta).value > epsilon
                for _ in range(TRIALS))  # fmt: skip
    assert above <= ALLOWED
    blind = [threshold_bound(world(1), world(-1), alpha=ALPHA).value for _ in range(20)]
    assert np.mean(blind) > epsilon  # without its delta the same mechanism is refuted


def test_gaussian_curve_bounds_mu_and_sees_more_than_epsilon_at_delta() -> None:
    rng, mu = np.random.default_rng(5), 0.8

    def bound(runs: int, curve: Curve) -> float:
        one, two = rng.normal(mu, 1, runs), rng.normal(0, 1, runs)
        return threshold_bound(one, two, alpha=ALPHA, delta=1e-5, curve=curve).value

    assert sum(bound(1000, "gaussian") > mu for _ in range(TRIALS)) <= ALLOWED
    assert bound(100_000, "gaussian") > 0.9 * mu
    assert bound(100_000, "epsilon") < 0.9 * float(gaussian_epsilon(Fraction(4, 5), Fraction(1, 10**5)))
    assert float(mu_at(0.5, 0.5)) == 0


def test_right_guesses_bound_the_distance_with_all_runs_and_seldom_too_high() -> None:
    """For Gaussian noise on inputs `mu` standard deviations apart: the factor on a stated mu."""
    rng, mu = np.random.default_rng(8), 0.14

    def bound(runs: int, shift: float) -> float:
        one, two = (sign * shift / 2 + rng.normal(0, 1, runs) for sign in (1, -1))
        return guess_bound(one, two, lambda factor: float(ndtr(factor * mu / 2)), alpha=ALPHA)

    assert sum(bound(2000, mu) > 1 for _ in range(TRIALS)) <= ALLOWED
    found = [bound(100_000, mu) for _ in range(10)]
    assert np.mean(found) > 0.9
    assert bound(100_000, 2 * mu) > 1.5  # half of the noise
    assert guess_bound(np.zeros(100), np.zeros(100), lambda factor: 0.5 + factor, alpha=0.01) == 0


def test_a_score_of_zero_is_a_guess_at_even_odds() -> None:
    assert right_guesses(np.zeros(100)) == 50
    assert right_guesses(np.array([1.0, -1.0, 0.0, 2.0])) == 3


def test_either_tail_may_be_the_telling_one() -> None:
    """World one is a mixture that shows itself above, or below, by values that the other never takes."""
    rng = np.random.default_rng(6)
    common, rare = rng.random(4000), np.where(rng.random(4000) < 0.2, 2.0, rng.random(4000))
    assert threshold_bound(rare, common, alpha=0.01).value > 4
    assert threshold_bound(-common, -rare, alpha=0.01).value > 4


def test_perfect_separation_proves_what_the_number_of_runs_allows() -> None:
    bound = threshold_bound(np.ones(1000), np.zeros(1000), alpha=0.05)
    rate = 0.025 ** (1 / 500)  # both rates were right 500 times of 500
    assert bound.value == pytest.approx(math.log(rate / (1 - rate)), rel=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_one_run_bound_of_randomised_response_rarely_exceeds_epsilon(delta: float) -> None:
    rng, epsilon, canaries = np.random.default_rng(7), 1.0, 1000
    trials = 60 if delta else TRIALS
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    values = [
        one_run_bound(int(rng.binomial(canaries, truth)), canaries, canaries, alpha=ALPHA, delta=delta)
        for _ in range(trials)
    ]
    assert sum(v > epsilon for v in values) <= int(binom.ppf(1 - 1e-6, trials, ALPHA))
    assert np.mean(values) > 0.8 * epsilon


def test_one_run_p_value_against_direct_summation() -> None:
    m, r, v, epsilon, delta = 50, 20, 17, 0.7, 1e-3
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    pmf = [math.comb(r, i) * p**i * (1 - p) ** (r - i) for i in range(r + 1)]
    beta_ = sum(pmf[v:])
    alpha = max(sum(pmf[v - i : v]) / i for i in range(1, v + 1))
    assert one_run_p_value(v, r, m, epsilon, delta) == pytest.approx(beta_ + 2 * m * delta * alpha)
    assert one_run_p_value(v, r, m, epsilon) == pytest.approx(beta_)
    assert one_run_bound(10, 20, 20, alpha=0.05) == 0.0
