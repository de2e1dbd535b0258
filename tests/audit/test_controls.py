"""Every control is caught: what is wrong on purpose is reported as violated, with a bound above its claim.

The quick form of `adlm audit --controls`, with all of its controls, and the broken variants that live in the
tests alone. Noise is seeded: what is caught today is caught tomorrow.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from tests.audit.broken_variants import INPUTS, ROUNDS, TARGETS, target_found, target_pair

from adlm.audit.attacks import distinguish
from adlm.audit.controls import CONTROLS, Control, halved
from adlm.audit.replay import declared, replay, report, worst_neighbours
from adlm.audit.statistics import CAUGHT, VIOLATED, Finding
from adlm.audit.subjects import Subject, of_target, subjects
from adlm.privacy.noise import Source

LEVEL, RUNS, NEIGHBOURS_TRIED = 1e-3, 20_000, 16
HALVED = halved()


@pytest.mark.parametrize("control", [*CONTROLS, *INPUTS], ids=lambda control: control.__name__)
def test_control_is_caught(control: Control) -> None:
    finding = control(2000, Source.seeded_with(7))
    assert finding.verdict == CAUGHT
    assert finding.lower > float(finding.claimed)


@pytest.mark.parametrize("control", [*ROUNDS, *TARGETS], ids=lambda control: control.__name__)
def test_a_patched_mechanism_is_caught_by_replay(control: Callable[[int, Source], Finding]) -> None:
    found = control(1, Source.system())
    assert found.verdict == CAUGHT
    assert found.lower > float(found.claimed)


def test_every_mechanism_has_a_control_with_half_of_its_noise() -> None:
    assert [s.label for s in HALVED] == [f"half the noise: {s.label}" for s in subjects()]


@pytest.mark.parametrize("subject", HALVED, ids=[s.label for s in HALVED])
def test_half_the_noise_is_caught_in_every_part_of_every_mechanism(subject: Subject) -> None:
    """By the outputs alone, with the likelihood ratio of the whole vector; and exactly, by replay."""
    source = Source.seeded_with(7)
    worst = worst_neighbours(subject, source, evaluations=NEIGHBOURS_TRIED)
    charges = worst[None].comparison.charges
    for focus, charge in enumerate(charges):
        runs = RUNS // 5 if charge.mechanism == "radial" else RUNS  # slow to draw
        found = distinguish(subject, worst[focus], runs, source, focus=focus, alpha=LEVEL)
        assert found.verdict == VIOLATED, found.mechanism
        comparison = worst[focus].comparison
        assert comparison.powers[focus] > declared(charge), charge.what
    assert report(subject, worst, NEIGHBOURS_TRIED).fault


def test_the_release_for_a_target_passes_where_its_broken_variants_fail() -> None:
    assert target_found("as it is", "", Source.system()).lower == 0.0
    comparison = replay(of_target("as it is", "replace-one"), *target_pair(), Source.system())
    assert comparison.within
    used = comparison.powers[2] / comparison.charges[2].loss ** 2
    assert used > Fraction(1, 2)  # the pair is nearly the worst: so half of the noise cannot be missed
