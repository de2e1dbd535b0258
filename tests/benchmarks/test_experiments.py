"""Experiments measure what they say: on small data, from cells to tables and figures."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.catalogue import EXPERIMENTS, METHODS, named, perform, run_experiment
from benchmarks.commands import experiment
from benchmarks.pages import page, table
from benchmarks.paper import READINGS
from benchmarks.trials import LABELS, Done, Trial, compare, summarise
from scipy import stats
from typer.testing import CliRunner

from adlm.errors import UserError
from benchmarks import dpsgd, images, pages


def test_every_method_of_an_experiment_has_a_label_and_a_function() -> None:
    groups = [group for e in EXPERIMENTS.values() for group in (*e.quick, *e.full)]
    assert {group.method for group in groups} == set(LABELS)
    assert all(group.method in METHODS or "reading" in group.settings_at("1") for group in groups)


def test_every_setting_of_a_trial_has_a_part_in_its_name_and_noise() -> None:
    trial = Trial("a", "digits", "0.5", "1e-5", 1, {"n": 10})
    changed = [
        replace(trial, method="b"), replace(trial, data="mnist"), replace(trial, epsilon="1"),
        replace(trial, delta="0"), replace(trial, seed=2), replace(trial, settings={"n": 11}),
    ]  # fmt: skip
    assert len({c.key for c in (trial, *changed)}) == 7
    assert len({c.entropy for c in (trial, *changed)}) == 7


def test_a_release_from_kept_features_is_the_one_that_privatise_makes() -> None:
    from adlm.mechanism.privatise import privatise

    part, trial = images.split("digits", "train"), Trial("moments-pure", "digits", "1")
    own = images.release_of(trial, images.ReleaseRequest())
    usual = privatise(part.x, part.y, domain=images.domain("digits"), epsilon="1", seed=trial.entropy)
    assert own.certificate.charges == usual.certificate.charges
    assert own.certificate.features == usual.certificate.features
    np.testing.assert_allclose(own.moments().sums, usual.moments().sums, atol=1e-3)


def test_the_moment_release_learns_and_the_prior_alone_does_not() -> None:
    learnt = perform(Trial("moments", "digits", "4", "1e-5"))
    assert learnt["accuracy"] > 0.8
    assert learnt["epsilon_proved"] <= 4
    ceiling = perform(Trial("ceiling", "digits", "0"))["accuracy"]
    assert ceiling >= learnt["accuracy"] - 0.02
    nothing = np.mean([perform(Trial("prior", "digits", "0", seed=s))["accuracy"] for s in range(4)])
    assert nothing < 0.3  # a tenth, if the draws are even


def test_a_release_that_says_nobody_is_there_leaves_a_guess() -> None:
    settings = {"neighbours": "add-remove"}
    trials = [Trial("moments-add-remove", "digits", "0.001", "1e-5", seed, settings) for seed in range(4)]
    accuracies = [perform(trial)["accuracy"] for trial in trials]
    assert 0.1 in accuracies  # one of four is below zero all but once in 16
    assert max(accuracies) < 0.4


def test_cells_take_other_epsilons_seeds_and_methods() -> None:
    trials = named("frontier-mnist").trials(
        "quick", epsilons=["0.7"], seeds=2, methods=["moments", "ceiling"]
    )
    assert [(c.method, c.epsilon, c.seed) for c in trials] == [
        ("moments", "0.7", 0), ("moments", "0.7", 1), ("ceiling", "0", 0), ("ceiling", "0", 1),
    ]  # fmt: skip
    with pytest.raises(UserError, match="has no method 'magic'"):
        named("epochs").trials("quick", methods=["magic"])
    with pytest.raises(UserError, match="preset must be one of quick, full"):
        named("epochs").trials("slow")
    with pytest.raises(UserError, match="there is no experiment 'nothing'"):
        named("nothing")


def test_the_recommended_dp_sgd_trains_longer_where_the_budget_is_larger() -> None:
    trials = named("paper-mnist").trials("full", methods=["psgd-abadi"], seeds=1)
    assert {c.epsilon: c.settings["epochs"] for c in trials} == {"0.25": 10, "0.5": 10, "2": 40, "8": 40}
    (small, large) = named("frontier-mnist").trials(
        "quick", methods=["psgd-abadi"], seeds=1, epsilons=["0.5", "8"]
    )
    assert (small.settings["epochs"], large.settings["epochs"]) == (10, 40)


@pytest.mark.parametrize("name", ["paper-mnist", "paper-cifar10"])
def test_the_methods_of_the_paper_have_seeds_enough_for_a_test_at_each_budget(name: str) -> None:
    trials = named(name).trials("quick", methods=["adlm-shared", "ilm-shared", "psgd-abadi"])
    tested = {c.epsilon for c in trials if c.method == "psgd-abadi"}
    places = {(c.method, c.epsilon) for c in trials if c.epsilon in tested}
    assert len(places) == 3 * len(tested) > 0
    assert all(sum((c.method, c.epsilon) == place for c in trials) >= 3 for place in places)


@pytest.mark.parametrize("name", ["paper-mnist", "paper-cifar10"])
@pytest.mark.parametrize("preset", ["quick", "full"])
def test_every_reading_of_the_paper_is_run_with_its_control(name: str, preset: str) -> None:
    trials = named(name).trials(preset)
    assert {c.settings["reading"] for c in trials if "reading" in c.settings} == set(READINGS)
    read = {c.settings["network"] for c in trials if "network" in c.settings}
    assert len(read) == 1  # the control and DP-SGD train the network that the readings train


def test_a_paired_t_test_is_scipy_s_and_knows_the_size_of_the_effect() -> None:
    a, b = [0.91, 0.93, 0.95, 0.92], [0.90, 0.91, 0.92, 0.92]
    found = compare("a", "b", a, b)
    assert found is not None
    assert found.p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert found.effect == pytest.approx(np.mean(np.subtract(a, b)) / np.std(np.subtract(a, b), ddof=1))
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert compare("a", "b", [0.5], [0.4]) is None


def test_an_experiment_writes_its_folder_and_goes_on(tmp_path: Path) -> None:
    options = {"epsilons": ["1", "4"], "seeds": 2, "out": tmp_path, "jobs": 1}
    first = run_experiment("frontier-digits", methods=["moments"], **options)  # type: ignore[arg-type]
    whole = run_experiment("frontier-digits", methods=["moments", "moments-pure"], resume=True, **options)  # type: ignore[arg-type]
    assert whole["rows"][-2:] == first["rows"]
    folder = tmp_path / "frontier-digits"
    assert json.loads((folder / "summary.json").read_text()) == whole
    assert (folder / "accuracy.svg").read_text().startswith("<?xml")
    assert (folder / "accuracy.svg").stat().st_size < 100_000
    text = (folder / "README.md").read_text()
    assert "adlm experiment frontier-digits --preset quick --epsilons 1,4 --seeds 2 --methods moments" in text
    assert table(whole) in page(whole)


def test_a_cell_is_run_once_however_many_groups_of_a_preset_ask_for_it() -> None:
    for preset in ("quick", "full"):
        cells = EXPERIMENTS["paper-mnist"].trials(preset, methods=["adlm-shared"], epsilons=["0.5"], seeds=1)
        assert len(cells) == 1


def test_the_page_of_finished_cells_is_made_without_running_any(tmp_path: Path) -> None:
    options = {"epsilons": ["1", "4"], "methods": ["moments"], "out": tmp_path}
    with pytest.raises(UserError, match="holds no finished trial"):
        run_experiment("frontier-digits", jobs=0, **options)  # type: ignore[arg-type]
    one = options | {"epsilons": ["4"]}
    first = run_experiment("frontier-digits", seeds=1, jobs=1, **one)  # type: ignore[arg-type]
    found = run_experiment("frontier-digits", seeds=1, jobs=0, **options)  # type: ignore[arg-type]
    assert found["rows"] == first["rows"]
    assert found["finished"] == "1 of 2 trials"
    assert "Finished so far: 1 of 2 trials." in (tmp_path / "frontier-digits" / "README.md").read_text()


def test_the_command_line_lists_runs_and_refuses(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = json.loads(runner.invoke(experiment, ["list", "--json"]).stdout)
    assert [e["name"] for e in listed["experiments"]] == list(EXPERIMENTS)
    words = [
        "frontier-digits",
        "--methods",
        "moments",
        "--epsilons",
        "2",
        "--seeds",
        "1",
        "--out",
        str(tmp_path),
    ]
    ran = runner.invoke(experiment, [*words, "--jobs", "1", "--json"])
    assert ran.exit_code == 0, ran.output
    row = json.loads(ran.stdout)["rows"][0]
    assert {"accuracy", "epsilon_claimed", "epsilon_proved", "delta", "neighbours"} <= set(row)
    again = runner.invoke(experiment, [*words, "--jobs", "1"])
    assert isinstance(again.exception, UserError)
    bad = runner.invoke(experiment, ["frontier-digits", "--epsilons", "-1", "--out", str(tmp_path)])
    assert isinstance(bad.exception, UserError)


def test_epsilon_is_flat_for_a_release_and_grows_for_dp_sgd(tmp_path: Path) -> None:
    def done(method: str, **settings: object) -> Done:
        trial = Trial(method, "digits", "2", "1e-5", 0, settings)
        return Done(trial, perform(trial) | {"seconds": 1.0})

    shown = [1, 4]
    ours = done("epochs-release", n=1437, shown=shown, draws=500, hidden=16, batch=100, rate=1e-3)
    settings = asdict(replace(dpsgd.LINEAR, batch=256, rate=5.0))
    del settings["epochs"]
    theirs = done("epochs-psgd", **settings, n=1437, shown=shown, budget_epochs=2)
    assert ours.outcome["certificate_unchanged"] is True
    assert len({point[2] for point in ours.outcome["history"]}) == 1
    (_, _, first), (_, _, last) = theirs.outcome["history"]
    assert first < 2 < last
    summary = summarise(named("epochs"), [ours, theirs], preset="quick", command="any")
    assert f"at {pages.epsilon(last)}" in table(summary)
    assert [path.name for path in pages.draw(summary, tmp_path)] == ["epochs.svg"]
