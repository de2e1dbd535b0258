"""Trials are run once, kept at once, and gone on from after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.experiments.trials import TRIALS_FILE, Outcome, Trial, read, run

from adlm.errors import UserError
from benchmarks import environment

GRID = [Trial("any", "digits", epsilon, seed=seed) for epsilon in ("0.5", "1") for seed in range(3)]


def perform(trial: Trial) -> Outcome:
    return {"accuracy": float(trial.epsilon) / 2 + trial.seed / 100}


def test_every_setting_of_a_cell_has_a_part_in_its_name_and_noise() -> None:
    trial = Trial("a", "digits", "0.5", "1e-5", 1, {"n": 10})
    changed = [
        replace(trial, method="b"), replace(trial, data="mnist"), replace(trial, epsilon="1"),
        replace(trial, delta="0"), replace(trial, seed=2), replace(trial, settings={"n": 11}),
    ]  # fmt: skip
    assert len({c.key for c in (trial, *changed)}) == 7
    assert len({c.entropy for c in (trial, *changed)}) == 7


def test_results_come_in_the_order_of_the_cells_and_are_kept(tmp_path: Path) -> None:
    done = run(GRID, tmp_path, perform)
    assert [item.trial for item in done] == GRID
    assert {item.trial.key for item in read(tmp_path / TRIALS_FILE)} == {trial.key for trial in GRID}
    assert done[4].outcome["accuracy"] == 0.51


def test_finished_cells_are_not_run_again_and_need_resume(tmp_path: Path) -> None:
    run(GRID[:4], tmp_path, perform)
    with pytest.raises(UserError, match="holds 4 finished trials; add --resume"):
        run(GRID, tmp_path, perform)
    seen: list[Trial] = []

    def noted(trial: Trial) -> Outcome:
        seen.append(trial)
        return perform(trial)

    assert len(run(GRID, tmp_path, noted, resume=True)) == 6
    assert seen == GRID[4:]


def test_a_line_cut_short_is_dropped_and_its_cell_run_again(tmp_path: Path) -> None:
    run(GRID[:2], tmp_path, perform)
    path = tmp_path / TRIALS_FILE
    text = path.read_text()
    path.write_text(text[:-20])
    assert len(read(path)) == 1
    run(GRID[:3], tmp_path, perform, resume=True)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == [trial.key for trial in GRID[:3]]


def test_cells_that_rest_on_something_else_by_now_are_run_again(tmp_path: Path) -> None:
    run(GRID[:3], tmp_path, perform)
    seen: list[Trial] = []

    def noted(trial: Trial) -> Outcome:
        seen.append(trial)
        return perform(trial)

    run(GRID[:3], tmp_path, noted, resume=True, current=lambda done: done.trial.seed != 1)
    assert seen == [GRID[1]]


def test_processes_share_the_work(tmp_path: Path) -> None:
    done = run(GRID, tmp_path, process, jobs=2)
    assert len({item.outcome["process"] for item in done}) == 2
    assert os.getpid() not in {item.outcome["process"] for item in done}


def process(trial: Trial) -> Outcome:
    time.sleep(0.2)
    return {"accuracy": 0.5, "process": os.getpid()}


SLOW = """
import sys, time
from pathlib import Path
from benchmarks.experiments.trials import Trial, run

def perform(trial):
    time.sleep(0.1)
    return {"accuracy": 0.5}

run([Trial("any", "digits", "1", seed=seed) for seed in range(100)], Path(sys.argv[1]), perform)
"""


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path)], env=environment())
    path = tmp_path / TRIALS_FILE
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not path.exists() or path.read_text().count("\n") < 3):
        time.sleep(0.02)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    kept = read(path)
    assert 3 <= len(kept) < 100
    trials = [Trial("any", "digits", "1", seed=seed) for seed in range(len(kept) + 2)]
    done = run(trials, tmp_path, perform, resume=True)
    assert [item.outcome["accuracy"] for item in done[: len(kept)]] == [0.5] * len(kept)
    assert len(done) == len(kept) + 2
