"""Pairs are tested over all budgets and, for the paper, at each; figures say whose epsilon is what."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.experiments.catalogue import named
from benchmarks.experiments.readme import rewritten
from benchmarks.experiments.summary import summarise
from benchmarks.experiments.tabulate import page
from benchmarks.experiments.trials import Done, Trial
from scipy import stats

from benchmarks.experiments import figures

READ = "AdLM, the authors' reading: one noise image a batch, redrawn"
ACCURACY = {
    ("adlm-shared", "0.5"): 0.10,
    ("adlm-shared", "8"): 0.60,
    ("psgd-abadi", "0.5"): 0.80,
    ("psgd-abadi", "8"): 0.58,
}


def done(method: str, epsilon: str, seed: int) -> Done:
    accuracy = ACCURACY[method, epsilon] + 0.01 * np.random.default_rng([seed, len(method)]).normal()
    proved = 72.6 * float(epsilon) if method == "adlm-shared" else float(epsilon)
    outcome: dict[str, object] = {
        "accuracy": accuracy,
        "epsilon_claimed": float(epsilon),
        "epsilon_proved": proved,
    }
    outcome |= {
        "delta": 0.0,
        "neighbours": "replace-one",
        "seconds": 1.0,
        "history": [[1, 0.1], [10, accuracy]],
    }
    return Done(Trial(method, "mnist", epsilon, seed=seed), outcome)


@pytest.fixture(scope="module")
def summary() -> dict[str, object]:
    every = [done(method, epsilon, seed) for method, epsilon in ACCURACY for seed in range(3)]
    return summarise(named("paper-mnist"), every, preset="quick", command="any")


def test_what_holds_at_one_budget_is_tested_there_and_not_only_over_all(summary: dict[str, object]) -> None:
    tests = summary["tests"]
    assert isinstance(tests, list)
    assert [test["over"] for test in tests] == [
        "epsilon 0.5, 8; 3 seeds", "epsilon 0.5; 3 seeds", "epsilon 8; 3 seeds",
    ]  # fmt: skip
    assert [test["pairs"] for test in tests] == [6, 3, 3]
    a, b = ([done(m, "0.5", s).outcome["accuracy"] for s in range(3)] for m in ("adlm-shared", "psgd-abadi"))
    assert tests[1]["p"] == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert tests[1]["difference"] < -0.6
    assert tests[1]["p"] < 0.05
    assert abs(tests[2]["difference"]) < 0.05
    assert tests[2]["found"] in page(summary)


def test_a_page_can_quote_the_tests(summary: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    text = rewritten("<!-- results: summary.json tests -->\n<!-- /results -->", tmp_path)
    lines = text.splitlines()[1:-1]
    assert len(lines) == 3
    assert lines[0].startswith(f"- {READ} against DP-SGD, settings of Abadi et al.")
    assert lines[1].endswith("a significant difference (epsilon 0.5; 3 seeds)")


def test_a_page_tells_how_sure_models_are_against_how_right(tmp_path: Path) -> None:
    every = [done("adlm-shared", epsilon, seed) for epsilon in ("0.5", "8") for seed in range(2)]
    for item, gap in zip(every[:2], (0.02, 0.04), strict=True):
        item.outcome["calibration_error"] = gap
    every[2].outcome["calibration_error"] = 0.01  # its twin has none: a mean of some would be of the best
    found = summarise(named("paper-mnist"), every, preset="quick", command="any")
    (tmp_path / "summary.json").write_text(json.dumps(found))
    text = rewritten("<!-- results: summary.json calibration -->\n<!-- /results -->", tmp_path)
    assert text.splitlines()[1:-1] == [
        "| calibration error, points, at epsilon | 0.5 |",
        "| --- | ---: |",
        f"| {READ} | 3.0 |",
    ]
    assert text.splitlines()[3] in page(found | {"kind": "frontier"})


def test_the_legend_says_which_epsilon_is_claimed_and_which_is_proved(
    summary: dict[str, object], tmp_path: Path
) -> None:
    made = figures.draw(summary, tmp_path, curves=("0.5",))
    assert [path.name for path in made] == ["accuracy.svg", "steps-epsilon-0.5.svg"]
    over_epsilon, over_epochs = (path.read_text() for path in made)
    assert f"{READ}: epsilon claimed, proved 72.6 times that" in over_epsilon
    assert "DP-SGD, settings of Abadi et al.: epsilon claimed and proved" in over_epsilon
    assert "as stated: AdLM (Phan, Wu, Hu, Dou 2017 (corrected version))" in over_epsilon
    assert (
        "AdLM, the authors' reading: one noise image a batch, redrawn: claimed 0.5, proved 36.3"
        in over_epochs
    )
