"""Canaries bound epsilon from one run; membership inference sees memorising, and nothing where nothing is."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from tests.audit.weakened import Weakened

from adlm.audit.membership import (
    Advantage,
    attack,
    canary_design,
    dp_sgd_epsilon,
    grows,
    guess,
    likelihood_ratio_advantage,
    model_scores,
    one_run,
    plant,
    release_scores,
    synthetic_pool,
)
from adlm.audit.statistics import HOLDS, VIOLATED
from adlm.privacy.noise import Source


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_a_release_holds_and_the_bound_is_worth_something(relation: str) -> None:
    planted = plant(canary_design(200), relation, 10, np.random.default_rng(0), Source.seeded_with(7))
    finding = one_run(planted, release_scores(planted, relation), "release")
    assert finding.verdict == HOLDS
    assert finding.lower > 0.3


def test_a_release_with_a_quarter_of_the_noise_is_caught_in_one_run() -> None:
    weak = Weakened(Source.seeded_with(7), Fraction(1, 4))
    planted = plant(canary_design(200), "add-remove", 10, np.random.default_rng(0), weak)
    assert one_run(planted, release_scores(planted, "add-remove"), "release").verdict == VIOLATED


def test_training_a_hundred_times_longer_gives_nothing_away() -> None:
    """The bound after 100 epochs stays below what is proved, and the guesses are no better than by chance.

    Right guesses are compared at four standard deviations of a difference of two binomials.
    """
    planted = plant(canary_design(100), "replace-one", 10, np.random.default_rng(3), Source.seeded_with(3))
    short, long = (guess(model_scores(planted, epochs), planted.coins, 0.4) for epochs in (1, 100))
    assert long[0] - short[0] < 4 * np.sqrt(2 * long[1] / 4)
    assert one_run(planted, model_scores(planted, 100), "model").verdict == HOLDS


def test_guesses_are_counted_by_hand() -> None:
    coins = np.array([[True, False], [True, False]])
    assert guess(np.array([[2.0, -1.0], [0.1, 0.2]]), coins, 0.5) == (2, 2)
    assert guess(np.array([[-2.0, 1.0], [0.1, 0.2]]), coins, 0.5) == (0, 2)


def members(shadows: int, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.random((shadows, n)) < 0.5


def test_scores_that_shift_for_members_give_a_large_advantage() -> None:
    rng = np.random.default_rng(0)
    inside = members(40, 200, rng)
    scores = rng.normal(size=(40, 200)) + rng.normal(size=200) + 3.0 * inside
    found = likelihood_ratio_advantage(scores, inside, 1)
    assert found.value > 0.8
    assert found.margin < 0.05


def test_scores_without_signal_give_none() -> None:
    rng = np.random.default_rng(1)
    inside = members(40, 200, rng)
    found = likelihood_ratio_advantage(rng.normal(size=(40, 200)), inside, 1)
    assert abs(found.value) < 4 / 1.96 * found.margin


def test_growth_is_judged_by_confidence_intervals() -> None:
    assert grows([Advantage(1, 0.0, 0.05), Advantage(100, 0.4, 0.05)])
    assert not grows([Advantage(1, 0.0, 0.05), Advantage(100, 0.08, 0.05)])


def test_training_on_records_memorises_and_training_on_a_release_does_not() -> None:
    """Eight shadow models each, with seeds: a demonstration that the attack can tell."""
    pool, source = synthetic_pool(n=100), Source.seeded_with(1)
    plain = attack(pool, 8, source, epsilon=None)
    private = attack(pool, 8, source, epsilon=Fraction(1), drawn=200)
    assert plain[1].value > plain[0].value + 0.1
    assert not grows(private)
    assert private[1].value < plain[1].value - 0.1


def test_dp_sgd_spends_more_with_every_epoch() -> None:
    one = dp_sgd_epsilon(1)
    assert one == pytest.approx(1, abs=2e-3)
    assert dp_sgd_epsilon(100) > 5
