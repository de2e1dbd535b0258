"""Every control is caught: what is wrong on purpose is reported as violated, with a bound above its claim.

The quick form of `adlm audit --controls`, with all of its controls, and the broken variants that live in the
tests alone. Noise is seeded: what is caught today is caught tomorrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from tests.audit.broken_variants import (
    INPUTS,
    ROUNDS,
    SYNTHETIC,
    TARGETS,
    of_target,
    target_found,
    target_pair,
)
from tests.audit.worst import ALL, NAMES, TRIED, worst_of

from adlm.audit.attacks import distinguish
from adlm.audit.replay import Subject, declared, replay, report
from adlm.audit.runner import CONTROLS, Control
from adlm.audit.statistics import CAUGHT, VIOLATED, Finding
from adlm.privacy.noise import Source

LEVEL, RUNS, MINIMA = 1e-3, 20_000, 150
HALF = Fraction(1, 2)


@pytest.mark.parametrize("control", [*CONTROLS, *INPUTS], ids=lambda control: control.__name__)
def test_control_is_caught(control: Control) -> None:
    finding = control(2000, Source.seeded_with(7))
    assert finding.verdict == CAUGHT
    assert finding.lower > float(finding.claimed)


@pytest.mark.parametrize("control", [*ROUNDS, *TARGETS, *SYNTHETIC], ids=lambda control: control.__name__)
def test_a_patched_mechanism_is_caught_by_replay(control: Callable[[int, Source], Finding]) -> None:
    found = control(1, Source.system())
    assert found.verdict == CAUGHT
    assert found.lower > float(found.claimed)


@pytest.mark.parametrize("subject", ALL, ids=NAMES)
def test_half_the_noise_is_caught_in_every_part_of_every_mechanism(subject: Subject) -> None:
    """By the outputs alone, with the likelihood ratio of the whole vector; and exactly, by replay."""
    source, weak = Source.seeded_with(7), replace(subject, weaken=HALF)
    worst = worst_of(subject, HALF)
    charges = worst[None].comparison.charges
    for charge in weak.charges:
        found = distinguish(weak, worst[charge], charge, RUNS, source, alpha=LEVEL, minima=MINIMA)
        assert found.verdict == VIOLATED, (found.mechanism, found.note)
        if charge not in weak.losses and "choice" not in charges[charge].what:
            assert worst[charge].comparison.powers[charge] > declared(charges[charge]), charges[charge].what
    assert report(weak, worst, TRIED).fault or weak.losses


def test_the_release_for_a_target_passes_where_its_broken_variants_fail() -> None:
    assert target_found("as it is", "", Source.system()).lower == 0.0
    comparison = replay(of_target("as it is"), *target_pair(), Source.system())
    assert comparison.within
    used = comparison.powers[2] / comparison.charges[2].loss ** 2
    assert used > Fraction(1, 2)  # the pair is nearly the worst: so half of the noise cannot be missed
