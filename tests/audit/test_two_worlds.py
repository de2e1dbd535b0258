"""Two worlds: bounds stay below what is proved, come close where it is tight, and catch half of the noise.

At the audit's own level a sound mechanism fails a test here with probability at most 10^-5. Where a bound
must also come close, the level is 5% as that part of the statement asks; the seed is fixed there.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from tests.audit.weakened import Weakened

from adlm.audit.finding import VIOLATED
from adlm.audit.side_by_side import side_by_side
from adlm.audit.subject import Subject
from adlm.audit.subjects import DELTA, of_moments, subjects
from adlm.audit.two_worlds import curve, log_ratio, two_worlds, whole_releases, whole_scores
from adlm.audit.worst_case import worst_neighbours
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.noise import Source

ALL = [s for s in subjects() if s.tight]

BUDGETS = pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(2)])


@BUDGETS
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_released_class_sums_are_attacked_to_nine_tenths_of_their_epsilon(
    relation: str, epsilon: Fraction
) -> None:
    """A hundred thousand runs of each world, from the records to the released number."""
    finding = side_by_side(epsilon, Fraction(0), relation, 100_000, Source.seeded_with(5), alpha=0.05)
    assert finding.runs == 100_000
    assert float(finding.proved) == pytest.approx(float(epsilon), rel=1e-5)
    assert 0.9 * float(epsilon) <= finding.lower <= float(finding.proved)


@BUDGETS
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_released_gaussian_class_sums_are_attacked_to_nine_tenths_of_their_epsilon(
    relation: str, epsilon: Fraction
) -> None:
    """At epsilon 1/2 worlds are much alike: 10^5 runs prove 0.93 of it, give or take 0.04."""
    finding = side_by_side(epsilon, DELTA, relation, 100_000, Source.seeded_with(5), alpha=0.05)
    assert finding.delta == float(DELTA)
    assert 0.9 * float(epsilon) <= finding.lower <= float(finding.proved)


def test_half_the_noise_shows_in_the_released_numbers() -> None:
    weak = Weakened(Source.seeded_with(7), Fraction(1, 2))
    finding = side_by_side(Fraction(1, 2), Fraction(0), "add-remove", 100_000, weak)
    assert finding.verdict == VIOLATED


@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(1), Fraction(2)])
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_laplace_in_one_dimension_is_attacked_to_nine_tenths_of_its_epsilon(
    relation: str, epsilon: Fraction
) -> None:
    """The same from what replay found to go into the noise, where the search looked for the neighbours."""
    design = MomentConfig(epsilon, Fraction(0), 1, 1.0, constant=0.0)
    subject = of_moments("one sum", design, relation, (0,))
    source = Source.seeded_with(5)
    worst = worst_neighbours(subject, source, evaluations=10)
    finding = two_worlds(subject, worst, 100_000, source, alpha=0.05)
    assert 0.9 * float(epsilon) <= finding.lower <= float(epsilon)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_gaussian_in_one_dimension_is_attacked_to_nine_tenths_of_its_epsilon(relation: str) -> None:
    subject = next(s for s in ALL if s.label == f"one class sum, Gaussian, {relation}")
    source = Source.seeded_with(6)
    worst = worst_neighbours(subject, source, evaluations=10)
    finding = two_worlds(subject, worst, 100_000, source, alpha=0.05)
    assert 0.9 * float(finding.proved) <= finding.lower <= float(finding.proved)


@pytest.mark.parametrize("subject", ALL, ids=[s.label for s in ALL])
def test_no_mechanism_of_the_product_is_flagged(subject: Subject) -> None:
    source = Source.seeded_with(7)
    worst = worst_neighbours(subject, source, evaluations=10)
    runs = 500 if "radial" in subject.name else 10_000
    assert two_worlds(subject, worst, runs, source).verdict != VIOLATED


def test_half_of_the_noise_is_flagged() -> None:
    source = Source.seeded_with(7)
    for name in ("one class sum, Laplace", "one class sum, Gaussian", "second moments, Laplace"):
        subject = next(s for s in ALL if s.name == name and s.neighbours == "add-remove")
        weak = replace(subject, weaken=Fraction(1, 2))
        worst = worst_neighbours(weak, source, evaluations=10)
        assert two_worlds(weak, worst, 50_000, source).verdict == VIOLATED


def test_whole_releases_give_the_same_answer_as_noise_in_blocks() -> None:
    """Four hundred whole releases of each world prove about what noise in blocks proves."""
    subject = of_moments(
        "one sum", MomentConfig(Fraction(2), Fraction(0), 1, 1.0, constant=0.0), "add-remove", (0,)
    )
    source = Source.seeded_with(8)
    worst = worst_neighbours(subject, source, evaluations=10)
    whole = whole_releases(subject, worst, 400, source, alpha=0.05)
    blocks = two_worlds(subject, worst, 400, source, alpha=0.05)
    assert 0.5 < whole.lower <= 2
    assert abs(whole.lower - blocks.lower) < 0.8
    assert whole.rung == "two worlds, whole release"


def test_a_release_in_stages_is_attacked_whole_with_the_inputs_that_it_would_have_had() -> None:
    """Noise that follows a first release: each run is replayed on the neighbour, and no faults are found."""
    subject = next(s for s in ALL if s.label == "private relevance, Laplace, replace-one")
    source = Source.seeded_with(9)
    worst = worst_neighbours(subject, source, evaluations=10)
    one, two = whole_scores(subject, worst, 20, source)
    most = float(worst.comparison.epsilon())
    assert max(abs(one).max(), abs(two).max()) <= most * (1 + 1e-6)
    assert one.mean() - two.mean() > 0.5  # scores speak for the world that they come from


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
