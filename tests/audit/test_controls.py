"""Every control is caught: what is wrong on purpose is reported as violated, with a bound above its claim."""

from __future__ import annotations

import pytest

from adlm.audit.controls import SINGLE, Control, halved
from adlm.audit.finding import CAUGHT
from adlm.audit.input_controls import INPUTS
from adlm.audit.replay import declared
from adlm.audit.worst_case import report, worst_neighbours
from adlm.curator.noise import Source


@pytest.mark.parametrize("control", [*SINGLE, *INPUTS], ids=lambda control: control.__name__)
def test_control_is_caught(control: Control) -> None:
    finding = control(2000, Source.seeded_with(7))
    assert finding.verdict == CAUGHT
    assert finding.lower > float(finding.claimed)


@pytest.mark.parametrize("subject", halved(), ids=lambda s: s.label)
def test_half_the_noise_is_caught_exactly_by_replay(subject) -> None:  # type: ignore[no-untyped-def]
    worst = worst_neighbours(subject, Source.seeded_with(7), evaluations=12)
    finding = report(subject, worst, 12)
    assert not worst.comparison.within
    assert finding.fault
    over = max(
        float(power / declared(charge))
        for charge, power in zip(worst.comparison.charges, worst.comparison.powers, strict=True)
    )
    assert over > 1.9
