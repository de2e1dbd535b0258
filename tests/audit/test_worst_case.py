"""The search knows no formula, and finds the proved bound to within one per cent where it is tight."""

from __future__ import annotations

import pytest

from adlm.audit.finding import HOLDS
from adlm.audit.subject import Subject
from adlm.audit.subjects import subjects
from adlm.audit.worst_case import report, worst_neighbours
from adlm.curator.noise import Source

TIGHT = [s for s in subjects() if s.tight]


@pytest.mark.parametrize("subject", TIGHT, ids=[s.label for s in TIGHT])
def test_search_attains_the_bound_and_nothing_exceeds_it(subject: Subject) -> None:
    worst = worst_neighbours(subject, Source.seeded_with(7), evaluations=30)
    assert worst.comparison.within
    assert 0.99 <= worst.used(subject) <= 1
    finding = report(subject, worst, 30)
    assert finding.verdict == HOLDS or float(finding.claimed) < float(finding.proved)


def test_relevance_is_bounded_but_not_attained_by_this_network() -> None:
    subject = next(s for s in subjects() if s.name == "relevance, d/n")
    worst = worst_neighbours(subject, Source.seeded_with(7), evaluations=30)
    assert worst.comparison.within
    assert worst.used(subject) > 0.3
