"""The audit of releases for a numeric target: controls are caught, the product is not."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from adlm.audit.finding import Finding
from adlm.audit.replay import replay
from adlm.audit.subjects import DELTA, of_target
from adlm.audit.target_controls import TARGETS, _found, _pair
from adlm.audit.worst_case import report, worst_neighbours
from adlm.curator.noise import Source
from adlm.public.domain import NEIGHBOURS


@pytest.mark.parametrize("control", TARGETS, ids=lambda control: control.__name__)
def test_a_wrong_release_for_a_target_is_caught(control: Callable[[int, Source], Finding]) -> None:
    found = control(1, Source.system())
    assert found.lower > float(found.claimed)
    assert found.passed


def test_the_release_as_it_is_passes_where_the_controls_fail() -> None:
    assert _found("as it is", "", Source.system()).lower == 0.0
    comparison = replay(of_target("as it is", DELTA, "replace-one"), *_pair(), Source.system())
    assert comparison.within
    used = comparison.powers[2] / comparison.charges[2].loss ** 2
    assert used > Fraction(1, 2)  # the pair is nearly the worst: so half of the noise cannot be missed


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("method", ["rounds", "moments"])
@pytest.mark.parametrize("delta", [Fraction(0), DELTA])
def test_no_neighbours_that_a_search_finds_exceed_the_charges(
    neighbours: str, method: str, delta: Fraction
) -> None:
    subject = of_target("numeric target", delta, neighbours, method=method)
    worst = worst_neighbours(subject, Source.system(), evaluations=8)
    assert report(subject, worst, 8).passed
