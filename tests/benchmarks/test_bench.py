"""The bench gives ratios of the same round, fitted exponents, and a sentence where it cannot measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from benchmarks.bench import Ratio, Scale, exponent, interleave, ratio
from benchmarks.bench_subjects import measure, to_the_end
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.errors import UserError
from benchmarks import bench, bench_subjects


def test_ratios_divide_figures_of_the_same_round() -> None:
    # a machine that is ten times slower in round two changes both figures, and no ratio
    found = ratio("any", [2.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    assert (found.value, found.low, found.high) == (2.0, 2.0, 3.0)


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


def test_a_subject_is_measured_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure("moments", {"n": 100_000, "k": 100})
    assert found["seconds"] > 0
    assert found["peak"] > 100_000 * 100 * 4  # its own vectors, at least
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(RuntimeError, match="subject moments failed: no message"):
        measure("moments", {})


def test_rounds_of_a_wide_table_are_measured_beside_a_perturbed_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(name: str, given: dict[str, object]) -> dict[str, float]:
        assert name == "wide-table"
        seconds = 5.0 if given["pure"] else 4.0
        return {"seconds": seconds, "processor": 2 * seconds, "peak": float(str(given["n"]))}

    monkeypatch.setattr(bench, "measure", fake)
    found = bench.wide(Scale(True, 2))
    assert [r.value for r in found] == [0.8, 0.8, 4.0]


def test_the_processes_of_a_cluster_are_told_from_others_by_its_session() -> None:
    busy = "import sys, time\nfor _ in range(3 * 10**6): pass\nprint(flush=True); time.sleep(60)"
    mine = f"session_1_{os.getpid()}/sockets"
    started = [
        subprocess.Popen([sys.executable, "-c", busy, word], stdout=subprocess.PIPE)
        for word in (mine, "session_1_0/sockets")
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        assert len(bench_subjects.of_cluster("processor")) == 1
        assert bench_subjects.of_cluster("processor")[0] > 0
        assert bench_subjects.of_cluster("peak") == []  # it is no worker
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("pure", [True, False])
def test_a_wide_table_is_released_both_ways(pure: bool) -> None:
    assert bench_subjects.release_wide_table({"n": 400, "pure": pure})["seconds"] > 0


def test_a_missing_opendp_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    own, other = bench.noise(Scale(quick=True, repeats=1))
    assert own.value is not None
    assert "pip install opendp" in other.note


def test_steps_that_are_not_made_are_added_and_nothing_else_is() -> None:
    # ten seconds, of which four for a quarter of the steps: six for the rest and sixteen for all steps
    assert to_the_end(10.0, 4.0, 0.25) == pytest.approx(22.0)
    assert to_the_end(10.0, 4.0, 1.0) == 10.0


def test_growth_is_fitted_from_one_set_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that grows as n, d = side^2 and k^2, and memory of half a byte for each byte of records."""

    def figures(subject: str, words: dict[str, int]) -> dict[str, float]:
        n, side, k = words["n"], words.get("side", 28), words.get("k", 1)
        size = n * side**2
        return {"seconds": size * k**2 * 1e-6, "input": size, "peak": 1e8 + size / 2}

    monkeypatch.setattr(bench, "measure", figures)
    found = bench.growth(Scale(quick=True, repeats=2))
    values = {entry.name.removeprefix("growth: "): entry.value for entry in found}
    assert values == {
        "record release, time over n, exponent": pytest.approx(1),
        "record release, bytes of memory for each further byte of records": pytest.approx(0.5),
        "record release, time over d, exponent": pytest.approx(1),
        "release, time over n, exponent": pytest.approx(1),
        "release, time over k, exponent": pytest.approx(2),
    }


def test_a_missing_kymatio_is_one_sentence() -> None:
    found = bench.featurising(Scale(quick=True, repeats=1, kymatio_python="/nowhere/python"))
    assert [entry.value for entry in found] == [None, None]
    assert "--kymatio-python" in found[0].note


def test_the_page_says_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    grown = {"sizes": [1, 2, 4], "relative": [1.0, 2.0, 4.0]}
    entries = [
        Ratio("fast", 12.0, 11.0, 13.0),
        Ratio("absent", None, note="nothing to compare with"),
        Ratio("growth: any, exponent", 1.0, 0.9, 1.1, detail=grown),
    ]
    result = {
        "command": "adlm bench", "date": "2026-01-01", "repeats": 3, "cores": 2, "software": {"adlm": "0"},
        "ratios": [asdict(entry) for entry in entries],
    }  # fmt: skip
    text = bench.page(result)
    assert "| fast | 12 | 11 to 13 |" in text
    assert "| absent | not measured |" in text
    assert "- absent: nothing to compare with" in text
    bench.draw([asdict(entries[2])], tmp_path / "growth.svg")
    assert (tmp_path / "growth.svg").read_bytes().startswith(b"<?xml")


def test_the_command_gives_json_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    runner = CliRunner()
    words = ["bench", "--quick", "--repeats", "1", "--only", "noise", "--out", str(tmp_path), "--json"]
    ran = runner.invoke(app, words)
    assert ran.exit_code == 0, ran.output
    printed = json.loads(ran.stdout)
    assert printed == json.loads((tmp_path / "bench.json").read_text())
    assert np.isfinite(printed["ratios"][0]["value"])
    assert isinstance(runner.invoke(app, ["bench", "--only", "magic"]).exception, UserError)
