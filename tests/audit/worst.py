"""The worst neighbours of every subject, searched for once and shared by the tests."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

from adlm.audit.replay import Subject, Worst, worst_neighbours
from adlm.audit.subjects import subjects
from adlm.privacy.noise import Source

ALL = subjects()
NAMES = [subject.label for subject in ALL]
TRIED = 16  # pairs of neighbours


def worst_of(subject: Subject, weaken: Fraction = Fraction(1)) -> Worst:
    """Return the worst pairs of a subject, with a share of its noise."""
    return _worst(subject.label, weaken)


@cache
def _worst(label: str, weaken: Fraction) -> Worst:
    subject = replace(ALL[NAMES.index(label)], weaken=weaken)
    return worst_neighbours(subject, Source.seeded_with(7), evaluations=TRIED)
