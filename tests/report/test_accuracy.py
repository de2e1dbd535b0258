"""The report's part on accuracy."""

from __future__ import annotations

from adlm.model.closed_form import NOISE_EXCEEDS_SIGNAL as DROWNED
from adlm.report.results import accuracy
from adlm.report.subject import Trained


def shown(training: dict[str, object]) -> str:
    section = accuracy([Trained("M", training, {}, None, ())], ["no", "yes"])
    assert section is not None
    return str(section.body)


def test_the_report_says_when_noise_drowned_a_model() -> None:
    assert DROWNED in shown({"network": "linear", "warning": DROWNED})
    assert "noise" not in shown({"network": "linear"})
