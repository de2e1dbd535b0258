"""Measurements are made once, kept at once, and gone on from after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from benchmarks.runner import Line, Work, read_lines, run

from adlm.errors import UserError
from benchmarks import environment, runner

NAMES = [f"case {at}" for at in range(6)]


def perform(name: str) -> Line:
    return {"key": name, "accuracy": int(name[-1]) / 10}


def key(line: Line) -> str:
    return str(line["key"])


def work(names: list[str]) -> Iterator[tuple[str, Work]]:
    return ((name, partial(perform, name)) for name in names)


def test_results_come_in_the_order_given_and_are_kept(tmp_path: Path) -> None:
    found = run(tmp_path / "r.jsonl", work(NAMES), key, resume=False)
    assert [line["accuracy"] for line in found] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert read_lines(tmp_path / "r.jsonl") == found


def test_what_is_finished_is_not_made_again_and_needs_resume(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = run(path, work(NAMES[:4]), key, resume=False)
    with pytest.raises(UserError, match="holds 4 measurements; add --resume"):
        run(path, work(NAMES), key, resume=False)
    path.write_text(path.read_text().replace("0.1", "0.75"))  # what is kept is not made anew
    again = run(path, work(NAMES), key, resume=True)
    assert again[1]["accuracy"] == 0.75
    assert len(again) == 6
    assert [line for line in again if line["key"] != "case 1"][:3] == [first[0], *first[2:4]]


def test_lines_of_other_measurements_stay(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    run(path, work(NAMES[:2]), key, resume=False)
    assert len(run(path, work(NAMES[4:]), key, resume=False)) == 2
    assert [line["key"] for line in read_lines(path)] == [*NAMES[:2], *NAMES[4:]]


def test_a_line_cut_short_is_dropped_and_made_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    run(path, work(NAMES[:2]), key, resume=False)
    path.write_text(path.read_text()[:-10])
    assert len(read_lines(path)) == 1
    run(path, work(NAMES[:3]), key, resume=True)
    assert [line["key"] for line in read_lines(path)] == NAMES[:3]


def process(name: str) -> Line:
    time.sleep(0.2)
    return {"key": name, "process": os.getpid()}


def test_processes_share_the_work(tmp_path: Path) -> None:
    cases = ((name, partial(process, name)) for name in NAMES)
    found = run(tmp_path / "r.jsonl", cases, key, resume=False, jobs=2)
    assert [line["key"] for line in found] == NAMES
    assert len({line["process"] for line in found} - {os.getpid()}) == 2


SLOW = """
import sys, time
from pathlib import Path
from benchmarks.runner import run

def perform(name):
    time.sleep(0.1)
    return {"key": name}

cases = ((str(at), lambda at=at: perform(str(at))) for at in range(100))
run(Path(sys.argv[1]), cases, lambda line: line["key"], resume=False)
"""


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    worker = subprocess.Popen([sys.executable, "-c", SLOW, str(path)], env=environment())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not path.exists() or path.read_text().count("\n") < 3):
        time.sleep(0.02)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    kept = read_lines(path)
    assert 3 <= len(kept) < 100
    cases = ((str(at), partial(perform, str(at))) for at in range(len(kept) + 2))
    assert len(run(path, cases, key, resume=True)) == len(kept) + 2


def test_a_row_has_means_over_runs_and_a_table_shows_them() -> None:
    row: Line = {"data": "d", "method": "m", "noise": "pure", "epsilon": "1", "runs": 2}
    row["measures"] = {"accuracy": runner.mean_and_sd([0.8, 0.9])}
    text = runner.rows_table([row], {"accuracy": (100.0, 1), "auc": (1.0, 2)})
    assert text.splitlines()[2:] == ["| m | pure | accuracy | 85.0 (7.1) |"]


def test_a_file_of_results_is_noted_with_every_command_and_the_mechanism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "FIGURES", tmp_path / "figures.toml")
    (tmp_path / "figures.toml").write_text('["kinds.jsonl".commands]\n"first" = "2026-11-16"\n')
    runner.record(tmp_path / "kinds.jsonl", "second")
    entry = tomllib.loads((tmp_path / "figures.toml").read_text())["kinds.jsonl"]
    assert list(entry["commands"]) == ["first", "second"]
    assert entry["releases"] == {"records": runner.golden()["records"][:12]}
    before = (tmp_path / "figures.toml").read_text()
    runner.record(tmp_path.parent / "elsewhere.jsonl", "any")
    assert (tmp_path / "figures.toml").read_text() == before


@dataclass
class Few:
    name: str
    y: tuple[int, ...] = (1, 0)
    truth: tuple[int, ...] = (1,)


def test_rows_of_an_earlier_mechanism_are_marked_and_measured_again(tmp_path: Path) -> None:
    path, today = tmp_path / "r.jsonl", runner.golden()["table"][:12]
    measured: list[str] = []

    def go(mechanism: str) -> Line:
        def measure() -> list[runner.Measured]:
            measured.append(mechanism)
            return [{"accuracy": 0.5}]

        cases = lambda _: [runner.Case("adlm", "pure", "1", 1, measure, mechanism)]  # noqa: E731
        (row,) = runner.run_rows(path, ["d"], lambda name, _: Few(name), cases, resume=True, data=tmp_path)
        return row

    old = go("000000000000-1")
    assert runner.is_older(old)
    assert "| adlm (earlier mechanism) | pure |" in runner.rows_table([old], {"accuracy": (100.0, 1)})
    new = go(f"{today}-1")
    assert not runner.is_older(new)
    assert read_lines(path) == [new]
    go(f"{today}-1")
    assert measured == ["000000000000-1", f"{today}-1"]


def test_the_mechanism_of_a_plan_changes_with_its_settings() -> None:
    from adlm.features.base import Identity
    from adlm.mechanism.planner import plan_arrays

    one, two = (plan_arrays(Identity((20,)), 1000, 2, e, 0.0, "replace-one") for e in (1.0, 2.0))
    assert runner.mechanism(one)[:13] == runner.golden()["digits, perturbed loss"][:12] + "-"
    assert runner.mechanism(one) != runner.mechanism(two)
