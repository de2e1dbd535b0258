"""One run with many canaries bounds epsilon from below, on a release and on models trained on it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from tests.audit.weakened import Weakened

from adlm.audit.canaries import canary_design, guess, model_scores, one_run, plant, release_scores
from adlm.audit.finding import HOLDS, VIOLATED
from adlm.curator.noise import Source


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
