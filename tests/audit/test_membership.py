"""Membership inference: sees memorising, sees nothing where nothing is, and knows what DP-SGD spends."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from adlm.audit.membership import (
    Advantage,
    attack,
    dp_sgd_epsilon,
    grows,
    likelihood_ratio_advantage,
    synthetic_pool,
)
from adlm.curator.noise import Source


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
