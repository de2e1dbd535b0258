"""The bench gives ratios of the same round, fitted exponents, and a sentence where it cannot measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adlm.bench import comparisons, conduct
from adlm.bench.comparisons import Scale
from adlm.bench.ratio import Ratio, exponent, interleave, ratio
from adlm.bench.subjects import measure
from adlm.cli.app import app
from adlm.errors import UserError


def test_ratios_divide_figures_of_the_same_round() -> None:
    # a machine that is ten times slower in round two changes both figures, and no ratio
    found = ratio("any", [2.0, 20.0, 3.0], [1.0, 10.0, 1.0], sense="at most", asked=2.5)
    assert (found.value, found.low, found.high) == (2.0, 2.0, 3.0)
    assert found.met is True
    assert Ratio("any", 4.0, sense="at least", asked=5).met is False
    assert Ratio("any", None, note="absent", sense="at least", asked=5).met is None


def test_repeats_are_interleaved() -> None:
    order: list[str] = []

    def note(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = interleave({"a": lambda: note("a"), "b": lambda: note("b")}, 3)
    assert order == ["a", "b"] * 3
    assert found == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_is_the_power(power: float) -> None:
    sizes = [100.0, 200.0, 400.0]
    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power, abs=1e-9)


def test_a_subject_is_measured_in_its_own_process() -> None:
    small = measure("moments", {"n": 100, "k": 5})
    large = measure("moments", {"n": 100_000, "k": 100})
    assert small["seconds"] > 0
    assert large["peak"] - small["peak"] > 100_000 * 100 * 4 / 2  # its own vectors, at least


def test_a_subject_that_fails_is_told_by_name() -> None:
    with pytest.raises(RuntimeError, match="subject moments failed: KeyError"):
        measure("moments", {})


def test_noise_is_compared_with_numpy_and_opendp(monkeypatch: pytest.MonkeyPatch) -> None:
    found = comparisons.noise(Scale(quick=True, repeats=1))
    assert [entry.asked for entry in found] == [0.2, 100]
    assert all(entry.value is None or 0 < entry.value < 1e6 for entry in found)
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    assert "pip install opendp" in comparisons.noise(Scale(quick=True, repeats=1))[1].note


def test_a_missing_kymatio_is_one_sentence() -> None:
    found = comparisons.featurising(Scale(quick=True, repeats=1, kymatio_python="/nowhere/python"))
    assert [entry.value for entry in found] == [None, None]
    assert "--kymatio-python" in found[0].note


def test_the_page_says_what_was_asked_and_what_was_not_measured(tmp_path: Path) -> None:
    grown = {"sizes": [1, 2, 4], "relative": [1.0, 2.0, 4.0]}
    entries = [
        Ratio("fast", 12.0, 11.0, 13.0, "at least", 10.0),
        Ratio("absent", None, note="nothing to compare with"),
        Ratio("growth: any, exponent", 1.0, 0.9, 1.1, detail=grown),
    ]
    result = {
        "command": "adlm bench", "repeats": 3, "cores": 2, "software": {"adlm": "0"},
        "ratios": [entry.to_dict() for entry in entries],
    }  # fmt: skip
    text = conduct.page(result)
    assert "| fast | 12 | 11 to 13 | at least 10 | yes |" in text
    assert "| absent | not measured |" in text
    assert "- absent: nothing to compare with" in text
    assert conduct._picture([entries[2].to_dict()]).startswith(b"<?xml")


def test_the_command_gives_json_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    runner = CliRunner()
    words = ["bench", "--quick", "--repeats", "1", "--only", "noise", "--out", str(tmp_path), "--json"]
    ran = runner.invoke(app, words)
    assert ran.exit_code == 0, ran.output
    printed = json.loads(ran.stdout)
    assert printed == json.loads((tmp_path / "bench.json").read_text())
    assert np.isfinite(printed["ratios"][0]["value"])
    assert isinstance(runner.invoke(app, ["bench", "--only", "magic"]).exception, UserError)
