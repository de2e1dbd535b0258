"""Figures of the README and of the docs come from listed files of results, which say what made them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.catalogue import named
from benchmarks.pages import main, rewritten
from benchmarks.trials import Done, Trial, summarise

from adlm.errors import UserError
from adlm.ui import figures as published
from benchmarks import pages, runner

ROOT = Path(__file__).parents[2]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.exists()]
FIGURES: dict[str, Any] = tomllib.loads((ROOT / "results" / "figures.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_making_the_tables_anew_changes_nothing(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert rewritten(text, page.parent) == text, f"run: python -m benchmarks.pages {page}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_figure_of_a_page_comes_from_a_file_that_is_listed(page: Path) -> None:
    """Tables, pictures and links; a picture or a page of results is made with the rows beside it."""
    text = page.read_text(encoding="utf-8")
    named_here = re.findall(r"(?:results: |\]\()((?:\.\./)?results/[^\s)]+)", text)
    for name in named_here:
        path = (page.parent / name).resolve()
        assert path.exists(), name
        listed = [ROOT / "results" / entry for entry in FIGURES]
        assert any(path == file or file.parent == path.parent for file in listed), (
            f"{name} is not in figures.toml"
        )


@pytest.mark.parametrize("name", FIGURES)
def test_a_listed_file_is_of_the_mechanism_of_today_or_says_of_which(name: str) -> None:
    """Digests of seeded releases change when a mechanism does; running the command anew records them."""
    entry, today = FIGURES[name], runner.golden()
    assert (ROOT / "results" / name).exists()
    assert entry["commands"]
    assert all(command.startswith(("adlm ", "python -m benchmarks.")) for command in entry["commands"])
    releases = entry.get("releases", {}).items()
    other = [release for release, digest in releases if not today[release].startswith(digest)]
    assert not other or entry.get("older"), f"{other} changed: run its commands again, or remove {name}"


@pytest.mark.parametrize("name", [name for name, entry in FIGURES.items() if "releases" not in entry])
def test_every_row_of_ours_names_the_mechanism_that_it_was_measured_with(name: str) -> None:
    path = ROOT / "results" / name
    if path.suffix == ".jsonl":
        rows = [row for row in runner.read_lines(path) if row["method"].startswith("adlm")]
    else:
        kept = json.loads(path.read_text()) if path.suffix == ".json" else {}
        rows = [row for row in kept.get("rows", ()) if row["label"].startswith("adlm")]
    assert all(re.match(r"[0-9a-f]{12}(-|$)", row["mechanism"]) for row in rows)


def summary(accuracy: float) -> dict[str, Any]:
    row = {
        "method": "moments", "label": "ours", "epsilon": 0.5, "epsilon_claimed": 0.5, "epsilon_proved": 0.5,
        "delta": 1e-5, "neighbours": "replace-one", "accuracy": accuracy, "sd": 0.001, "seeds": 5,
    }  # fmt: skip
    return {"kind": "frontier", "rows": [row, row | {"method": "psgd-tanh", "label": "theirs"}]}


def page(tmp_path: Path, accuracy: float, inside: str = "old") -> Path:
    (tmp_path / "summary.json").write_text(json.dumps(summary(accuracy)))
    readme = tmp_path / "README.md"
    readme.write_text(f"Before\n<!-- results: summary.json moments -->\n{inside}\n<!-- /results -->\nAfter\n")
    return readme


def test_a_changed_result_is_noticed_and_written(tmp_path: Path) -> None:
    readme = page(tmp_path, 0.978)
    assert main([str(readme), "--check"]) == 1
    assert main([str(readme)]) == 0
    text = readme.read_text()
    assert "| ours (replace-one) | 97.8 ± 0.1 |" in text
    assert "theirs" not in text
    assert re.match(r"Before\n.*After\n", text, re.DOTALL)
    assert main([str(readme), "--check"]) == 0
    (tmp_path / "summary.json").write_text(json.dumps(summary(0.9)))
    assert main([str(readme), "--check"]) == 1


def test_a_figure_typed_by_hand_is_noticed(tmp_path: Path) -> None:
    readme = page(tmp_path, 0.978)
    main([str(readme)])
    readme.write_text(readme.read_text().replace("97.8", "99.8"))
    assert main([str(readme), "--check"]) == 1


def test_an_open_block_and_a_missing_file_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a <!-- /results --> line"):
        rewritten("<!-- results: a.json -->\n", tmp_path)
    with pytest.raises(UserError, match="run the experiment first"):
        rewritten("<!-- results: a.json -->\n<!-- /results -->", tmp_path)


# ---- t-tests, calibration and legends of a summary

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
    costs = {"epsilon_claimed": float(epsilon), "epsilon_proved": proved, "delta": 0.0}
    outcome = {"accuracy": accuracy, **costs, "neighbours": "replace-one", "seconds": 1.0}
    outcome["history"] = [[1, 0.1], [10, accuracy]]
    return Done(Trial(method, "mnist", epsilon, seed=seed), outcome)


@pytest.fixture(scope="module")
def paper() -> dict[str, Any]:
    every = [done(method, epsilon, seed) for method, epsilon in ACCURACY for seed in range(3)]
    return summarise(named("paper-mnist"), every, preset="quick", command="any")


def test_what_holds_at_one_budget_is_tested_there_and_not_only_over_all(paper: dict[str, Any]) -> None:
    tests = paper["tests"]
    assert [test["epsilons"] for test in tests] == [[0.5, 8.0], [0.5], [8.0]]
    assert [test["pairs"] for test in tests] == [6, 3, 3]
    assert tests[1]["difference"] < -0.6
    assert tests[1]["p"] < 0.05
    assert abs(tests[2]["difference"]) < 0.05
    assert pages.tests(paper) in pages.page(paper)
    heads, _, line = pages.tests(paper).splitlines()
    assert heads.endswith("| at 0.5 | at 8 | all budgets |")
    assert line.startswith(f"| {READ}, minus DP-SGD, settings of Abadi et al. | -6")
    assert line.endswith(", 6, p " + f"{tests[0]['p']:.2g}, over 0.5, 8 |")


def test_a_page_tells_how_sure_models_are_against_how_right() -> None:
    every = [done("adlm-shared", epsilon, seed) for epsilon in ("0.5", "8") for seed in range(2)]
    for item, gap in zip(every[:2], (0.02, 0.04), strict=True):
        item.outcome["calibration_error"] = gap
    every[2].outcome["calibration_error"] = 0.01  # its twin has none: a mean of some would be of the best
    found = summarise(named("paper-mnist"), every, preset="quick", command="any")
    assert pages.calibration(found).splitlines()[2:] == [f"| {READ} | 3.0 |"]


def test_the_legend_says_which_epsilon_is_claimed_and_which_is_proved(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    made = pages.draw(paper, tmp_path, curves=("0.5",))
    assert [path.name for path in made] == ["accuracy.svg", "steps-epsilon-0.5.svg"]
    over_epsilon, over_steps = (path.read_text() for path in made)
    assert f"{READ}: epsilon claimed, proved 72.6 times that" in over_epsilon
    assert "DP-SGD, settings of Abadi et al.: epsilon claimed and proved" in over_epsilon
    assert "as stated: AdLM (Phan, Wu, Hu, Dou 2017 (corrected version))" in over_epsilon
    assert f"{READ}: claimed 0.5, proved 36.3" in over_steps


# ---- published figures beside ours


def frontier(data: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / f"frontier-{data}" / "summary.json").read_text())
    return found


@pytest.mark.parametrize("data", published.DATA)
def test_every_row_has_all_columns_and_every_source_a_link(data: str) -> None:
    text = pages.beside_published(frontier(data))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    for row in published.rows_of(data):
        assert f"{row.source}: {row.link}" in text
        (line,) = (line for line in lines if line.startswith(f"| {row.what} |"))
        assert row.status in line
        assert all(f"| {100 * share:.4g} " in line for share in row.accuracies.values())


def test_ours_are_the_means_of_the_results_and_fewer_than_five_releases_are_left_out() -> None:
    found = frontier("mnist")
    (row,) = (r for r in found["rows"] if r["method"] == "moments" and r["epsilon"] == 8)
    shown = f"{100 * row['accuracy']:.1f} ± {100 * row['sd']:.1f} |"

    def line() -> str:
        lines = pages.beside_published(found).splitlines()
        return "".join(x for x in lines if x.startswith("| **adlm, delta 1e-5"))

    with_five = line().count(shown)
    assert with_five >= 1
    row["seeds"] = 4
    assert line().count(shown) == with_five - 1


def test_a_mechanism_that_is_not_of_today_has_rows_apart() -> None:
    found = summary(0.9)
    found["rows"][0]["mechanism"] = 12 * "0" + "-1"
    found["rows"].append(found["rows"][0] | {"epsilon": 1.0, "mechanism": runner.golden()["digits"][:12]})
    lines = pages.table(found).splitlines()
    assert "| ours, earlier mechanism (replace-one) | 90.0 ± 0.1 |  |" in lines
    assert "| ours (replace-one) |  | 90.0 ± 0.1 |" in lines


def test_a_picture_has_marks_for_what_is_published(tmp_path: Path) -> None:
    text = pages.draw_published(frontier("cifar10"), tmp_path).read_text()
    for words in ("published, disputed", "published, reproduced", "as stated for theirs"):
        assert words in text
