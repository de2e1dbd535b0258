"""Distinguishing attacks stay below what is proved, come close where it is tight, and see half the noise.

At the audit's own level a sound mechanism fails a test here with probability at most 10^-5. Where a bound
must also come close, the level is 5%; the seed is fixed there. The support attack breaks textbook
floating-point noise with 1,000 outputs and sees nothing in ours.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom
from tests.audit.worst import ALL, worst_of

from adlm.audit.attacks import (
    Law,
    canaries,
    curve,
    distinguish,
    exact_laplace,
    judge,
    log_ratio,
    low_byte,
    low_byte_scores,
    naive_laplace,
    reachable,
    released_class_sums,
    scores,
    simulated_minima,
    stated_guesses,
    support,
)
from adlm.audit.replay import Tap
from adlm.audit.statistics import CAUGHT, HOLDS, VIOLATED, guess_bound, threshold_bound
from adlm.audit.subjects import DELTA
from adlm.privacy.accounting import Charge, Mechanism
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source

EACH = pytest.mark.parametrize(
    ("relation", "epsilon"), [("replace-one", Fraction(1, 2)), ("add-remove", Fraction(2))]
)


@EACH
def test_released_class_sums_are_attacked_to_nine_tenths_of_their_epsilon(
    relation: str, epsilon: Fraction
) -> None:
    """A hundred thousand runs of each world, from the records to the released number."""
    finding = released_class_sums(epsilon, Fraction(0), relation, 100_000, Source.seeded_with(5), alpha=0.05)
    assert finding.runs == 100_000
    assert float(finding.proved) == pytest.approx(float(epsilon), rel=1e-5)
    assert 0.9 * float(epsilon) <= finding.lower <= float(finding.proved)


@EACH
def test_released_gaussian_class_sums_are_attacked_to_nine_tenths_of_their_epsilon(
    relation: str, epsilon: Fraction
) -> None:
    """At epsilon 1/2 worlds are much alike: 10^5 runs prove 0.93 of it, give or take 0.04."""
    finding = released_class_sums(epsilon, DELTA, relation, 100_000, Source.seeded_with(5), alpha=0.05)
    assert finding.delta == float(DELTA)
    assert 0.9 * float(epsilon) <= finding.lower <= float(finding.proved)


def test_half_the_noise_shows_in_the_released_numbers() -> None:
    weak = Tap(Source.seeded_with(7), Ledger(), weaken=Fraction(1, 2))
    finding = released_class_sums(Fraction(1, 2), Fraction(0), "add-remove", 100_000, weak)
    assert finding.verdict == VIOLATED


@pytest.mark.parametrize("name", ["one class sum, Laplace", "class sums, Gaussian"])
def test_sums_are_attacked_to_nine_tenths_of_their_epsilon(name: str) -> None:
    """From what replay found to go into the noise, where the search looked for the neighbours."""
    for subject in (s for s in ALL if s.name == name):
        found = distinguish(subject, worst_of(subject)[0], 0, 100_000, Source.seeded_with(6), alpha=0.05)
        assert 0.9 * float(found.proved) <= found.lower <= float(found.proved)


def law(mechanism: Mechanism, width: int, loss: float, noise: Fraction = Fraction(1)) -> Law:
    """Inputs whose distance is `loss` scales of the stated noise, on noise of a share of it."""
    scale = 10**6
    direction = np.random.default_rng(width).normal(size=width)
    order = 1 if mechanism == "laplace" else 2
    moved = np.rint(direction / np.linalg.norm(direction, order) * loss * scale)
    return Law(mechanism, scale * noise, moved, np.zeros(width), stretch=float(noise))


@pytest.mark.parametrize("width", [1, 5, 60])
@pytest.mark.parametrize("mechanism", ["laplace", "radial", "gaussian"])
def test_half_the_noise_shows_in_any_number_of_dimensions(mechanism: Mechanism, width: int) -> None:
    """The likelihood ratio of the whole vector, held against the stated noise; full noise is not flagged."""
    loss, source = 3.0, Source.seeded_with(3)
    delta = DELTA if mechanism == "gaussian" else Fraction(0)
    charge = Charge("x", mechanism, "add-remove", Fraction(3), Fraction(1), "nowhere: a test", delta)
    for noise, caught in ((Fraction(1), False), (Fraction(1, 2), True)):
        laws = (law(mechanism, width, loss, noise),)
        drawn = scores(laws, 3000, source)
        found = judge("x", "add-remove", [charge], drawn, laws)
        assert (found.verdict == VIOLATED) is caught


def test_the_bound_from_guesses_is_seldom_too_high() -> None:
    """Laplace noise in five dimensions, at the distance that is stated.

    Three hundred simulated audits at level 0.1; a correct bound fails less than once in 10^6.
    """
    source, trials, level = Source.seeded_with(6), 300, 0.1
    stated = stated_guesses((law("laplace", 5, 2.0),), np.random.default_rng(0), 0.01)
    factors = np.linspace(0, 4, 81)
    shares = [stated(factor) for factor in factors]
    drawn = scores((law("laplace", 5, 2.0),), 500 * trials, source)
    audits = zip(*(np.split(scores_, trials) for scores_ in drawn), strict=True)
    high = sum(
        guess_bound(one, two, lambda f: float(np.interp(f, factors, shares)), alpha=level) > 1
        for one, two in audits
    )
    assert high <= binom.ppf(1 - 1e-6, trials, level)


def test_a_product_of_several_laws_is_attacked_by_the_sum_of_their_ratios() -> None:
    source, half = Source.seeded_with(4), Fraction(1, 2)
    laplace, radial = (
        Charge("x", kind, "add-remove", Fraction(1), Fraction(1), "nowhere: a test")
        for kind in ("laplace", "radial")
    )
    gaussian = Charge("x", "gaussian", "add-remove", Fraction(1), Fraction(1), "nowhere: a test", DELTA)
    for noise, caught in ((Fraction(1), False), (half, True)):
        laws = (law("laplace", 8, 1, noise), law("radial", 8, 1, noise), law("gaussian", 8, 1, noise))
        found = judge("x", "add-remove", [laplace, radial, gaussian], scores(laws, 3000, source), laws)
        assert (found.verdict == VIOLATED) is caught


def test_stated_guesses_are_those_of_the_distribution() -> None:
    """Closed forms: Laplace noise in one dimension, and Gaussian noise in any. Simulated: within 0.01."""
    rng = np.random.default_rng(0)
    for loss in (0.5, 2.0):
        for kind in ("laplace", "radial"):
            share = stated_guesses((law(kind, 1, loss),), rng, 0.5)
            assert share(1.0) == pytest.approx(1 - math.exp(-loss / 2) / 2, abs=0.01)
            assert share(2.0) == pytest.approx(1 - math.exp(-loss) / 2, abs=0.01)
        assert stated_guesses((law("gaussian", 7, loss),), rng, 0.5)(1.0) == pytest.approx(
            float(ndtr(loss / 2)), abs=1e-5
        )
        drawn = scores((law("radial", 6, loss),), 20_000, Source.seeded_with(2))
        seen = (np.count_nonzero(drawn[0] > 0) + np.count_nonzero(drawn[1] < 0)) / 40_000
        assert stated_guesses((law("radial", 6, loss),), rng, 0.5)(1.0) == pytest.approx(seen, abs=0.015)


@pytest.mark.parametrize("scale", [1, 2, 11])
def test_noise_of_a_few_steps_is_held_against_noise_on_integers(scale: int) -> None:
    """A count with discrete Laplace noise is guessed as well as its epsilon allows at all.

    Held against noise on a fine grid, full noise would be flagged here.
    """
    source = Source.seeded_with(4)
    charge = Charge("x", "laplace", "add-remove", Fraction(1), Fraction(scale), "a test")
    stated = Law("laplace", Fraction(scale), np.array([1.0]), np.zeros(1))
    best = stated_guesses((stated,), np.random.default_rng(0), 0.5)(1.0)
    assert best == pytest.approx(1 / (1 + math.exp(-1 / scale)), abs=0.005)
    found = judge("x", "add-remove", [charge], scores((stated,), 200_000, source), (stated,))
    assert found.verdict == HOLDS
    half = replace(stated, scale=Fraction(scale, 2), stretch=0.5)
    found = judge("x", "add-remove", [charge], scores((half,), 100_000, source), (half,))
    assert found.verdict == VIOLATED


def test_a_choice_is_attacked_by_the_odds_of_what_was_chosen() -> None:
    source, charge = (
        Source.seeded_with(3),
        Charge("x", "laplace", "add-remove", Fraction(3), Fraction(1), "a test"),
    )
    one, two = np.array([3.0, 0.0, 1.0]), np.array([0.0, 3.0, 1.0])
    for scale, caught in ((Fraction(2), False), (Fraction(1, 2), True)):
        laws = (Law("choice", scale, one, two, float(scale / 2)),)
        found = judge("x", "add-remove", [charge], scores(laws, 1500, source), laws)
        assert (found.verdict == VIOLATED) is caught, found.note


@pytest.mark.parametrize(
    "name", ["perturbed loss of one row, radial", "perturbed loss of many rows, Laplace"]
)
def test_simulated_minima_have_no_slope_and_the_density_of_their_noise(name: str) -> None:
    subject = next(s for s in ALL if s.name == name)
    side, _ = worst_of(subject)[subject.losses[0]].comparison.minima[0]
    weights = simulated_minima(side, 2000, 1.0, np.random.default_rng(0))
    size = side.loss_of(side.slope(weights))  # of the noise that each minimum belongs to, in noise scales
    if side.objective.rows == 1:
        assert size.mean() == pytest.approx(weights.shape[2], rel=0.1)  # a gamma variable of that shape
    assert np.isfinite(side.log_density(weights)).all()


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_canaries_bound_epsilon_in_one_run_and_longer_training_gives_nothing_away(relation: str) -> None:
    found = canaries(100, relation, Source.seeded_with(7), np.random.default_rng(0))
    assert [f.verdict for f in found] == [HOLDS] * 3
    assert found[0].lower > 0.3
    short, long = (int(f.note.split()[0]) for f in found[1:])
    assert long - short < 4 * np.sqrt(2 * 400 / 4)  # four standard deviations of a difference of binomials


def test_canaries_catch_a_quarter_of_the_noise_in_one_run() -> None:
    weak = Tap(Source.seeded_with(7), Ledger(), weaken=Fraction(1, 4))
    assert canaries(200, "add-remove", weak, np.random.default_rng(0), ())[0].verdict == VIOLATED


def test_log_ratios_are_those_of_the_densities() -> None:
    one, two, seen = np.array([3.0, 0.0]), np.array([0.0, 4.0]), np.array([1.0, 1.0])
    assert float(log_ratio("laplace", Fraction(2), seen, one, two)) == (1 + 3 - 2 - 1) / 2
    assert float(log_ratio("gaussian", Fraction(2), seen, one, two)) == (1 + 9 - 4 - 1) / 8
    expected = (np.sqrt(10) - np.sqrt(5)) / 2
    assert float(log_ratio("radial", Fraction(2), seen, one, two)) == pytest.approx(expected)


def test_roc_curve_rises() -> None:
    rng = np.random.default_rng(0)
    points = curve((rng.laplace(1, 1, 5000), rng.laplace(0, 1, 5000)))
    assert all(a.fpr <= b.fpr and a.tpr <= b.tpr + 0.02 for a, b in pairwise(points))
    assert points[-1].fpr == pytest.approx(1)


@pytest.mark.parametrize("scale", [1.0, 3.7, 4.0])
def test_floating_point_laplace_is_caught_at_a_thousand(scale: float) -> None:
    finding = support(
        naive_laplace(scale, np.random.default_rng(1)), "float", 1000, scale=scale, control=True
    )
    assert finding.verdict == CAUGHT
    assert finding.lower > 2


def test_exact_noise_shows_nothing_at_a_million() -> None:
    """False alarm: at most 10^-5."""
    assert support(exact_laplace(4.0, Source.seeded_with(7)), "exact", 1_000_000).verdict == HOLDS


def test_what_the_textbook_sampler_returns_is_reachable() -> None:
    noise = naive_laplace(2.0, np.random.default_rng(0))(2000)
    assert reachable(noise, 2.0).all()
    assert reachable(noise + 1.0 - 0.5, 2.0).mean() < 0.9


def test_low_bits_of_a_sampler_that_keeps_parity_are_caught() -> None:
    """Noise that is always an even number of steps leaves the input's parity in the output."""
    rng = np.random.default_rng(2)

    def even(count: int) -> np.ndarray:
        return 2 * rng.integers(-(1 << 19), 1 << 19, count) / (1 << 20)

    scores = low_byte_scores(even, 2000, one=0.0, two=2.0**-20)
    assert threshold_bound(*scores, alpha=1e-3).value > 3
    assert set(low_byte(even(100)) & 1) == {0}
