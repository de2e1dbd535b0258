"""Epochs and trials are free on a release and cost DP-SGD: shown on a small data set."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from benchmarks.experiments.catalogue import named
from benchmarks.experiments.registry import perform
from benchmarks.experiments.summary import summarise
from benchmarks.experiments.trials import Done, Trial

from benchmarks.baselines import dpsgd
from benchmarks.experiments import figures, tabulate

HEAD = asdict(replace(dpsgd.LINEAR, batch=256, epochs=4, rate=5.0))
N = 1437


def done(method: str, **settings: object) -> Done:
    trial = Trial(method, "digits", "2", "1e-5", 0, settings)
    return Done(trial, perform(trial) | {"seconds": 1.0})


def test_epsilon_is_flat_for_a_release_and_grows_for_dp_sgd(tmp_path: Path) -> None:
    shown = [1, 4]
    ours = done("epochs-release", n=N, shown=shown, draws=500, hidden=16, batch=100, rate=1e-3)
    settings = {key: value for key, value in HEAD.items() if key != "epochs"}
    theirs = done("epochs-psgd", **settings, n=N, shown=shown, budget_epochs=2)
    assert ours.outcome["certificate_unchanged"] is True
    assert len({point[2] for point in ours.outcome["history"]}) == 1
    (_, _, first), (_, _, last) = theirs.outcome["history"]
    assert first < 2 < last
    summary = summarise(named("epochs"), [ours, theirs], preset="quick", command="any")
    assert f"at {tabulate.epsilon(last)}" in tabulate.table(summary)
    assert [path.name for path in figures.draw(summary, tmp_path)] == ["epochs.svg"]


def test_trials_are_chosen_without_the_test_split_and_cost_dp_sgd_its_budget(tmp_path: Path) -> None:
    ours = done("search-release", n=N, draws=300, trials=4)
    theirs = done("search-psgd", **HEAD, n=N, trials=50, within=HEAD | {"epochs": 2})
    found = ours.outcome
    assert found["worst_trial"] <= found["accuracy"] <= found["best_trial"]
    assert found["epsilon_proved"] <= 2
    assert theirs.outcome["epsilon_all_trials"] > 3 * 2
    assert theirs.outcome["epsilon_share_of_a_trial"] < 1
    assert theirs.outcome["epsilon_proved"] == pytest.approx(2, rel=0.01)
    summary = summarise(named("search"), [ours, theirs], preset="quick", command="any")
    assert "DP-SGD: 50 trials within the budget" in tabulate.table(summary)
    assert [path.name for path in figures.draw(summary, tmp_path)] == ["search.svg"]
