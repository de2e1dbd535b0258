"""The odds that a report speaks of are bounds, and bounds that are attained."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from typer.testing import CliRunner

from adlm.audit.statistics import Finding
from adlm.cli.app import app
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.privacy.accounting import Charge, Totals, TradeOff, compose, gaussian_delta, gaussian_mu
from adlm.privacy.certificate import charge_table
from adlm.report import sections as attacker

epsilons = st.floats(1e-3, 8)
rates = st.floats(0, 1)
DELTA = Fraction(1, 10**5)


def charge(loss: Fraction, mechanism: str = "laplace", **other: Any) -> Charge:
    delta = DELTA if mechanism.startswith("gaussian") else Fraction(0)
    fields: dict[str, Any] = {"neighbours": "replace-one", "delta": delta} | other
    return Charge("sums", mechanism, sensitivity=loss, scale=Fraction(1), proof="a theorem", **fields)  # type: ignore[arg-type]


def gaussian(epsilon: int, neighbours: str = "replace-one", **other: Any) -> Totals:
    """The cost of Gaussian noise that has this epsilon at delta 1e-5."""
    mu = gaussian_mu(Fraction(epsilon), DELTA)
    return compose([charge(mu, "gaussian", neighbours=neighbours, **other)])


def pure(epsilon: float, neighbours: str = "replace-one", **other: Any) -> Totals:
    return compose([charge(Fraction(epsilon), neighbours=neighbours, **other)])


@pytest.mark.parametrize(("epsilon", "guess"), [(1, 0.553), (3, 0.640), (8, 0.798)])
def test_the_best_guess_at_gaussian_noise_is_that_of_its_mu(epsilon: int, guess: float) -> None:
    """Read off (epsilon, delta), it would be 73.1, 95.3 and 99.97 %."""
    totals = gaussian(epsilon)
    assert totals.trade_off is not None
    assert totals.trade_off.best_guess() == pytest.approx(guess, abs=5e-4)
    assert f"at most {guess:.1%} of the time" in attacker.meaning(totals)
    assert f"(mu {totals.mu})" in totals.sentence()
    assert "mean mu" in attacker.explanation(totals)


@settings(max_examples=25)
@given(st.floats(0.01, 6), st.floats(1e-4, 1 - 1e-4))
def test_the_curve_of_gaussian_noise_is_the_normal_tests(mu: float, false_alarms: float) -> None:
    """The most powerful test of N(0, 1) against N(mu, 1), by Neyman and Pearson."""
    assert TradeOff(mu=mu).detection(false_alarms) == pytest.approx(norm.sf(norm.isf(false_alarms) - mu))


@settings(max_examples=10)
@given(st.floats(0.05, 3), st.floats(0.05, 3), st.sampled_from([0.0, 1e-5, 1e-2]), st.floats(-4, 4))
def test_a_mixture_has_the_curve_of_randomised_response_beside_a_normal_draw(
    mu: float, epsilon: float, delta: float, level: float
) -> None:
    """A slow twin: delta(level) of the product of both, by summing its density ratio on a grid."""
    x = np.linspace(-12, mu + 12, 40_001)
    step, up = x[1] - x[0], 1 / (1 + math.exp(-epsilon))
    p = np.concatenate([up * norm.pdf(x, mu), (1 - up) * norm.pdf(x, mu)]) * step * (1 - delta)
    q = np.concatenate([(1 - up) * norm.pdf(x), up * norm.pdf(x)]) * step * (1 - delta)
    slow = delta + float(np.maximum(p - math.exp(level) * q, 0).sum())
    bound = TradeOff(mu, epsilon, delta)
    # no test exceeds it, and the likelihood-ratio test at this level attains it
    for false_alarms in (0.001, 0.05, 0.3, 0.9):
        assert bound.detection(false_alarms) - math.exp(level) * false_alarms <= slow + 1e-4
    false_alarms, true_alarms = bound._alarms(level)
    assert true_alarms - math.exp(level) * false_alarms == pytest.approx(
        slow, abs=1e-4 * (1 + math.exp(level))
    )


@settings(max_examples=25)
@given(st.floats(0.05, 3), st.floats(0, 4))
def test_mu_and_the_guarantee_belong_to_one_curve(mu: float, level: float) -> None:
    delta = float(gaussian_delta(Fraction(mu), Fraction(level)))
    false_alarms, true_alarms = TradeOff(mu=mu)._alarms(level)
    assert true_alarms - math.exp(level) * false_alarms == pytest.approx(delta, abs=1e-9)


def test_pure_epsilon_multiplies_odds_by_its_exponential() -> None:
    assert TradeOff(epsilon=math.log(3)).odds_factor(0.01) == pytest.approx(3)
    assert attacker.posterior(0.5, 3) == pytest.approx(0.75)
    assert attacker.posterior(0.01, 3) == pytest.approx(0.03 / 1.02)


@settings(max_examples=25)
@given(epsilons, st.floats(1e-9, 0.1))
def test_randomised_response_attains_the_best_guess(epsilon: float, delta: float) -> None:
    """The truth with probability e^eps / (1 + e^eps), and outright with probability delta."""
    honest = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert TradeOff(epsilon=epsilon).best_guess() == pytest.approx(honest)
    assert TradeOff(epsilon=epsilon, delta=delta).best_guess() == pytest.approx(delta + (1 - delta) * honest)


@settings(max_examples=25)
@given(epsilons, st.sampled_from([0.0, 1e-5, 1e-2]), rates, st.sampled_from([0.0, 0.7]))
def test_detection_is_what_both_bounds_allow_and_no_less_than_guessing(
    epsilon: float, delta: float, false_alarms: float, mu: float
) -> None:
    true_alarms = TradeOff(mu, epsilon, delta).detection(false_alarms)
    if not mu:
        assert true_alarms <= math.exp(epsilon) * false_alarms + delta + 1e-12
        assert 1 - false_alarms <= math.exp(epsilon) * (1 - true_alarms) + delta + 1e-9
    assert true_alarms >= false_alarms - 1e-9
    assert true_alarms >= TradeOff(epsilon=epsilon, delta=delta).detection(false_alarms) - 1e-9


@pytest.mark.parametrize(
    ("epsilon", "words"), [(0.001, "1.0010-fold"), (1, "2.72-fold"), (1e4, "millionfold")]
)
def test_the_words_say_the_factor(epsilon: float, words: str) -> None:
    assert words in attacker.explanation(pure(epsilon))


def test_the_words_name_what_the_relation_protects() -> None:
    """Two values of a record are two steps apart under add-remove, so epsilon does not bound that guess."""
    present = attacker.explanation(pure(1, "add-remove"))
    assert "that it is among the records" in present
    assert "test for the presence of one record falls" in present
    assert "may cost twice as much" in present
    replaced = attacker.explanation(pure(1))
    assert "has two hypotheses about it" in replaced
    assert "test for the values of one record falls" in replaced
    assert "twice" not in replaced
    assert "a test with a 1% false-alarm rate" in attacker.explanation(gaussian(1))


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_the_words_speak_of_persons_where_persons_are_protected(neighbours: str) -> None:
    words = attacker.explanation(pure(1, neighbours, contributions=8))
    assert "all records but those of one person" in words
    assert "of one person falls into the shaded region" in words
    assert "one record" not in words


def test_mu_stands_beside_every_epsilon_of_gaussian_noise() -> None:
    """Of each charge and of all together, in the tables of every command and file."""
    one, two = charge(Fraction(3, 5), "gaussian"), charge(Fraction(4, 5), "gaussian")
    headings, rows = charge_table([one, two, charge(Fraction(1))])
    assert [row[headings.index("mu")] for row in rows] == ["0.6", "0.8", ""]
    assert compose([one, two]).mu == "1"
    assert "mu" not in charge_table([charge(Fraction(1))])[0]
    assert replace(one, unproved="no reason").mu == ""
    listed = charge_table([one, replace(two, contributions=3)], units=True)
    assert [row[-1] for row in listed[1]] == ["record", "person (at most 3 records)"]
    found = Finding("replay", "x", "add-remove", Fraction(3), Fraction(3), 1.0, 1.0, 1, mu=0.75)
    assert "3 (mu 0.75)" in found.row()


def test_gaussian_noise_in_a_loss_is_not_called_pure() -> None:
    """Its curve of delta over epsilon is composed; it is not that of a mu."""
    totals = compose([charge(Fraction(1, 2), "gaussian-label")])
    assert totals.trade_off is not None
    assert not totals.trade_off.is_pure
    assert "from a test with a 1% false-alarm rate" in attacker.meaning(totals)
    assert "in a loss" in totals.mu_or_why_not()
    assert pure(1).mu_or_why_not() == "none: pure epsilon"
    assert gaussian(1).mu_or_why_not() == gaussian(1).mu
    assert compose([charge(Fraction(1), unproved="no reason")]).mu_or_why_not() == "none proved"


@pytest.mark.parametrize(("delta", "shown"), [("1e-5", True), ("0", False)])
def test_a_plan_prints_mu_beside_epsilon(tmp_path: Path, delta: str, shown: bool) -> None:
    column, label = Column("a", "numeric", 0, 1), Column("y", "label", classes=("no", "yes"))
    (tmp_path / "t.toml").write_text(TableDomain((column, label)).to_toml())
    options = ["--domain", str(tmp_path / "t.toml"), "--size", "100", "--epsilon", "1", "--delta", delta]
    printed = CliRunner().invoke(app, ["plan", *options]).stdout
    assert ("0.2681" in printed) is shown  # Phi(mu/2 - 1/mu) - e Phi(-mu/2 - 1/mu) = 1e-5
