"""The odds that a report speaks of are bounds, and bounds that are attained."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.report import attacker

epsilons = st.floats(1e-3, 8)
rates = st.floats(0, 1)


def test_pure_epsilon_multiplies_odds_by_its_exponential() -> None:
    assert attacker.odds_factor(math.log(3)) == pytest.approx(3)
    assert attacker.posterior(0.5, 3) == pytest.approx(0.75)
    assert attacker.posterior(0.01, 3) == pytest.approx(0.03 / 1.02)


@given(epsilons, st.floats(1e-9, 0.1))
def test_randomised_response_attains_the_best_guess(epsilon: float, delta: float) -> None:
    """The truth with probability e^eps / (1 + e^eps), and outright with probability delta."""
    honest = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert attacker.best_guess(epsilon) == pytest.approx(honest)
    assert attacker.best_guess(epsilon, delta) == pytest.approx(delta + (1 - delta) * honest)


@given(epsilons, st.sampled_from([0.0, 1e-5, 1e-2]), rates)
def test_detection_is_what_both_bounds_allow_and_no_less_than_guessing(
    epsilon: float, delta: float, false_alarms: float
) -> None:
    true_alarms = attacker.detection(false_alarms, epsilon, delta)
    assert true_alarms <= math.exp(epsilon) * false_alarms + delta + 1e-12
    assert 1 - false_alarms <= math.exp(epsilon) * (1 - true_alarms) + delta + 1e-9
    assert true_alarms >= false_alarms - 1e-12


@given(epsilons, st.floats(1e-9, 1e-3))
def test_an_alarm_raises_odds_by_no_more_than_its_rates_allow(epsilon: float, delta: float) -> None:
    factor = attacker.odds_factor(epsilon, delta)
    assert factor >= attacker.detection(attacker.ALARM, epsilon, delta) / attacker.ALARM - 1e-9


@given(st.floats(1e-6, 1 - 1e-6), epsilons)
def test_belief_never_falls_below_what_silence_allows(prior: float, epsilon: float) -> None:
    factor = attacker.odds_factor(epsilon)
    assert attacker.posterior(attacker.posterior(prior, factor), 1 / factor) == pytest.approx(prior, rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "words"), [(0.001, "1.0010-fold"), (1, "2.72-fold"), (1e4, "millionfold")]
)
def test_the_words_say_the_factor(epsilon: float, words: str) -> None:
    assert words in attacker.explanation(epsilon, 0.0, "replace-one")


def test_the_words_name_what_the_relation_protects() -> None:
    assert "among the records" in attacker.explanation(1, 0, "add-remove")
    assert "one thing and not another" in attacker.explanation(1, 0, "replace-one")
    assert "false in 1% of cases" in attacker.explanation(1, 1e-5, "replace-one")
