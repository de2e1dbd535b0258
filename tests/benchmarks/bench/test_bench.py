"""The bench gives ratios of the same round, fitted exponents, and a sentence where it cannot measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.bench.comparisons import Scale
from benchmarks.bench.ratio import Ratio, exponent, interleave, ratio
from benchmarks.bench.subjects import measure, to_the_end
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.errors import UserError
from benchmarks.bench import comparisons, engines, run, subjects, versions, wide_table


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


def test_a_subject_is_measured_in_its_own_process() -> None:
    small = measure("moments", {"n": 100, "k": 5})
    large = measure("moments", {"n": 100_000, "k": 100})
    assert small["seconds"] > 0
    assert large["peak"] - small["peak"] > 100_000 * 100 * 4 / 2  # its own vectors, at least


def test_rounds_are_measured_beside_the_way_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"with": 3.0, "without": 2.0}
    asked: dict[str, dict[str, object]] = {}

    def fake(subjects: dict[str, tuple[str, dict[str, object]]], repeats: int) -> dict[str, list[object]]:
        asked.update({name: given for name, (_, given) in subjects.items()})
        return {name: [{"seconds": figures[name], "peak": 100.0}] * repeats for name in subjects}

    monkeypatch.setattr(comparisons, "_measured", fake)
    found = comparisons.rounds(Scale(True, 2))
    assert [r.value for r in found] == [0.5]
    assert asked["without"]["allocation"] == "identical"


def test_rounds_of_a_wide_table_are_measured_beside_a_perturbed_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(name: str, given: dict[str, object]) -> dict[str, float]:
        assert name == "wide-table"
        seconds = 5.0 if given["pure"] else 4.0
        return {"seconds": seconds, "processor": 2 * seconds, "peak": float(str(given["n"]))}

    monkeypatch.setattr(wide_table, "measure", fake)
    found = wide_table.wide(Scale(True, 2))
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
        assert len(engines.of_cluster("processor")) == 1
        assert engines.of_cluster("processor")[0] > 0
        assert engines.of_cluster("peak") == []  # it is no worker
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("pure", [True, False])
def test_a_wide_table_is_released_both_ways(pure: bool) -> None:
    assert measure("wide-table", {"n": 400, "pure": pure})["seconds"] > 0


def test_a_subject_that_fails_is_told_by_name() -> None:
    with pytest.raises(RuntimeError, match="subject moments failed: KeyError"):
        measure("moments", {})


def test_noise_is_compared_with_numpy_and_opendp(monkeypatch: pytest.MonkeyPatch) -> None:
    found = comparisons.noise(Scale(quick=True, repeats=1))
    assert len(found) == 2
    assert all(entry.value is None or 0 < entry.value < 1e6 for entry in found)
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    assert "pip install opendp" in comparisons.noise(Scale(quick=True, repeats=1))[1].note


def test_epochs_are_measured_on_both_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []

    def figures(subject: str, words: dict[str, object]) -> dict[str, float]:
        given.append(words)
        opacus = 4.0 if "chunk" in words else 5.0
        seconds = {"epoch-release": 2.0, "epoch-plain": 2.0, "epoch-opacus": opacus}
        return {"seconds": seconds[subject], "peak": 8.0}

    monkeypatch.setattr(comparisons, "measure", figures)
    found = comparisons.training(Scale(quick=True, repeats=2))
    assert [entry.value for entry in found] == [1.0, 0.4, 1.0, 2.5, 0.5] * 2
    assert {(words["network"], words["batch"]) for words in given} == {("paper-mnist", 1800), ("tanh", 2048)}


def test_the_papers_networks_are_timed_with_and_without_their_normalisation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = {"ours": 3.0, "formula": 6.0, "none": 2.0}
    monkeypatch.setattr(
        comparisons, "measure", lambda subject, words: {"seconds": seconds[words["normalisation"]]}
    )
    found = comparisons.networks(Scale(quick=True, repeats=2))
    assert [entry.value for entry in found] == [2.0, 1.5] * 2


@pytest.mark.parametrize("kind", ["ours", "formula", "none"])
def test_a_step_is_timed_by_each_kind_of_normalisation(kind: str) -> None:
    given = {"network": "paper-mnist", "shape": [8, 8], "batch": 4, "normalisation": kind}
    assert measure("steps-normalised", given)["seconds"] > 0


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

    monkeypatch.setattr(comparisons, "measure", figures)
    found = comparisons.growth(Scale(quick=True, repeats=2))
    values = {entry.name.removeprefix("growth: "): entry.value for entry in found}
    assert values == {
        "record release, time over n, exponent": pytest.approx(1),
        "record release, bytes of memory for each further byte of records": pytest.approx(0.5),
        "record release, time over d, exponent": pytest.approx(1),
        "moment release, time over n, exponent": pytest.approx(1),
        "moment release, time over k, exponent": pytest.approx(2),
    }
    assert len(found[1].detail["peak_relative"]) == 3


def test_a_missing_kymatio_is_one_sentence() -> None:
    found = comparisons.featurising(Scale(quick=True, repeats=1, kymatio_python="/nowhere/python"))
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
        "command": "adlm bench", "repeats": 3, "cores": 2, "software": {"adlm": "0"},
        "ratios": [entry.to_dict() for entry in entries],
    }  # fmt: skip
    text = run.page(result)
    assert "| fast | 12 | 11 to 13 |" in text
    assert "| absent | not measured |" in text
    assert "- absent: nothing to compare with" in text
    run._draw([entries[2].to_dict()], tmp_path / "growth.svg")
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


def test_one_image_is_measured_beside_a_plain_network(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.bench import single_image

    small = {"28 x 28 grey": single_image.IMAGES["28 x 28 grey"]}
    monkeypatch.setattr(single_image, "IMAGES", small)
    beside, limit = single_image.single_image(repeats=2, asked=2)
    assert beside.value is not None
    assert beside.value > 0
    assert "VGG-11" in beside.name
    assert limit.value == pytest.approx(beside.detail["milliseconds"] / 50, rel=0.5)


def test_versions_are_compared_with_another_checkout_alone(tmp_path: Path) -> None:
    assert versions.versions(Scale(True, 1)) == []
    with pytest.raises(UserError, match="no checkout of this project"):
        versions.versions(Scale(True, 1, against=tmp_path))


def test_this_checkout_is_compared_with_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = versions._write_wide(tmp_path / "wide.parquet", 300)
    domain = versions._declared(tmp_path / "wide.toml", subjects.wide_domain().to_toml())
    trees = {"this": versions.HERE, "other": versions.HERE}
    found = versions._beside(Scale(True, 1), trees, (file, domain), "a table", "1e-5")
    assert all(one.value is not None and one.value > 0 for one in found)
    monkeypatch.setattr(versions, "HERE", tmp_path)
    with pytest.raises(UserError, match="failed"):
        versions._released(tmp_path, file, tmp_path / "missing.toml", "0")
