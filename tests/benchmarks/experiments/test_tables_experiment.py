"""Statements about the comparison on tables."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from benchmarks.experiments.rows import write_rows
from benchmarks.experiments.table_methods import (
    OURS,
    PENALTIES,
    diffprivlib_logistic,
    diffprivlib_name,
    dp_ebm,
)

from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.model.metrics import Measures, measure
from benchmarks.experiments import table_methods, table_split, tables

DATA = Path(os.environ.get("ADLM_DATA", "data"))


def made(data: str, method: str, noise: str, epsilon: str | None, *figures: float, runs: int) -> tables.Row:
    accuracy, accuracy_sd, auc, auc_sd = figures
    return tables.Row(
        data=data, method=method, noise=noise, epsilon=epsilon, runs=runs,
        accuracy=accuracy, accuracy_sd=accuracy_sd, auc=auc, auc_sd=auc_sd,
    )  # fmt: skip


@pytest.mark.skipif(not (DATA / "adult").is_dir(), reason="Adult is not in ADLM_DATA")
def test_one_release_of_adult_is_as_accurate_as_published(tmp_path: Path) -> None:
    """Releases have a standard deviation of 0.1 points."""
    rows = tables.run(tmp_path, data=DATA, names=("adult",), epsilons=("3",), releases=1, compare=False)
    ours = {row.noise: row for row in rows if row.method == OURS}
    assert 100 * ours["delta 1e-5"].accuracy > 85.2
    assert 100 * ours["pure"].accuracy > 84.7
    kept = [json.loads(line) for line in (tmp_path / "tables.jsonl").read_text().splitlines()]
    assert [row["method"] for row in kept] == [row.method for row in rows]
    assert "| adlm, replace-one | pure | accuracy | 8" in (tmp_path / "tables.md").read_text()


@pytest.mark.skipif(not (DATA / "diabetes130").is_dir(), reason="Diabetes-130 is not in ADLM_DATA")
def test_no_patient_is_on_both_sides_of_the_split() -> None:
    with table_split.sides_of("diabetes130", DATA) as (train, test):
        sides = [{line.split(",")[1] for line in path.read_text().splitlines()[1:]} for path in (train, test)]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 71518
    assert len(sides[1]) == 71518 // 5


def small(name: str = "adult") -> table_split.Split:
    table = TableDomain((Column("a", "numeric", 0, 1), Column("y", "label", classes=("n", "y"))))
    x = np.random.default_rng(0).random((400, 1)).astype(np.float32)
    y = (x[:, 0] > 0.5).astype(np.int64)
    return table_split.Split(name, table, x[:300], y[:300], x[300:], y[300:])


def test_what_was_measured_is_kept_when_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "load", lambda name, _: small(name))
    given = {"names": ("adult",), "epsilons": ("1", "3"), "releases": 2, "compare": False}
    first = tables.run(tmp_path, **given)  # type: ignore[arg-type]
    lines = (tmp_path / "tables.jsonl").read_text().splitlines()
    (tmp_path / "tables.jsonl").write_text("\n".join(lines[:2]))  # as if stopped after two cells
    again = tables.run(tmp_path, **given, resume=True)  # type: ignore[arg-type]
    assert again[:2] == first[:2]
    assert [row.case for row in again] == [row.case for row in first]
    more = tables.run(tmp_path, **given | {"releases": 3}, resume=True)  # type: ignore[arg-type]
    assert {row.runs for row in more} == {3}  # other cells than those that were kept
    (tmp_path / "tables.jsonl").write_text("{")
    with pytest.raises(UserError, match="cannot be resumed from"):
        tables.run(tmp_path, **given, resume=True)  # type: ignore[arg-type]


def test_the_validation_split_is_of_training_records_alone() -> None:
    whole = small()
    part = whole.validation()
    assert sorted(np.concatenate([part.x, part.test])[:, 0]) == sorted(whole.x[:, 0])
    assert (len(part.y), len(part.truth)) == (225, 75)


FAKE = """
import json, sys, numpy as np
folder, epsilon, c, runs = sys.argv[2:]
x, y = np.load(folder + "/x.npy"), np.load(folder + "/y.npy")
assert np.linalg.norm(x, axis=1).max() <= 1 + 1e-6
weight = x[y == 1].mean(0) - x[y == 0].mean(0)
print("chatter")
print(json.dumps([{"weight": (100 * weight).tolist(), "bias": 0.0}] * int(runs)))
"""


def interpreter(folder: Path, text: str) -> Path:
    """A program that runs a script in place of the one that it is given."""
    script, python = folder / "fake.py", folder / "python"
    script.write_text(text)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    python.chmod(0o755)
    return python


def test_another_interpreter_gets_the_indicators_and_its_weights_are_measured_here(tmp_path: Path) -> None:
    python = interpreter(tmp_path, FAKE)
    found = diffprivlib_logistic(small(), "1", PENALTIES[0], 2, str(python))
    assert len(found) == 2
    assert found[0].accuracy > 0.9
    with pytest.raises(UserError, match="cannot be run"):
        diffprivlib_logistic(small(), "1", "1", 1, str(tmp_path / "none"))
    python.write_text("#!/bin/sh\necho ModuleNotFoundError: No module named diffprivlib >&2; exit 1\n")
    with pytest.raises(UserError, match=r"No module named diffprivlib.*pip install diffprivlib"):
        diffprivlib_logistic(small(), "1", "1", 1, str(python))


FAKE_EBM = """
import json, sys, numpy as np
folder, epsilon, delta, runs = sys.argv[2:]
x, test, y = (np.load(folder + "/" + name + ".npy") for name in ("x", "test", "y"))
kinds = json.load(open(folder + "/kinds.json"))
assert delta == "1e-5" and len(kinds) == x.shape[1] == test.shape[1]
places = [x[:, i] for i, kind in enumerate(kinds) if kind == "continuous"]
assert all(np.nanmin(place) >= 0 and np.nanmax(place) <= 1 for place in places)
for run in range(int(runs)):
    np.save(folder + f"/p{run}.npy", np.tile([1 - y.mean(), y.mean()], (len(test), 1)))
"""


def test_another_interpreter_gets_the_columns_and_its_probabilities_are_measured_here(tmp_path: Path) -> None:
    python = interpreter(tmp_path, FAKE_EBM)
    found = dp_ebm(small(), "1", 2, str(python))
    assert [m.auc for m in found] == [0.5, 0.5]
    python.write_text("#!/bin/sh\necho ModuleNotFoundError: No module named interpret >&2; exit 1\n")
    with pytest.raises(UserError, match=r"No module named interpret.*pip install interpret"):
        dp_ebm(small(), "1", 1, str(python))


def test_kept_cells_of_other_tables_outlive_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = made("texture", OURS, "pure", "1", 0.8, 0.01, 0.9, 0.01, runs=1)
    write_rows(tmp_path / "tables.jsonl", [later])
    monkeypatch.setattr(tables, "load", lambda name, place: small() if name == "adult" else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tables.run(
            tmp_path, names=("adult", "texture"), epsilons=("1",), releases=1, compare=False, resume=True
        )
    kept = tables.read(tmp_path / "tables.jsonl")
    assert later in kept
    assert len(kept) > 1


def test_every_row_keeps_what_is_in_its_line() -> None:
    row = made("adult", diffprivlib_name("1"), "pure", "1", 0.8, 0.01, 0.9, 0.01, runs=10)
    assert tables.Row(**json.loads(json.dumps(asdict(row)))) == row
    assert "| diffprivlib logistic regression, C 1 (its default) | pure | accuracy | 80.00 (1.00) |" in (
        tables.markdown([row])
    )


def test_the_committed_table_is_what_its_rows_give() -> None:
    results = Path(__file__).parents[3] / "results"
    rows = tables.read(results / "tables.jsonl")
    assert (results / "tables.md").read_text(encoding="utf-8") == tables.markdown(rows)
    assert {row.runs for row in rows if row.method == OURS} == {tables.RELEASES}
    assert {row.method for row in rows} >= {diffprivlib_name(c) for c in PENALTIES}


def test_a_page_quotes_one_data_set_and_one_measure(tmp_path: Path) -> None:
    row = made("adult, validation", OURS, "pure", "1", 0.8, 0.01, 0.9, 0.01, runs=10)
    (tmp_path / "tables.jsonl").write_text(json.dumps(asdict(row)))
    text = tables.quoted(tmp_path / "tables.jsonl", ["adult-validation", "auc"])
    assert text.splitlines()[2:] == [f"| {OURS} | pure | auc | 0.9000 (0.0100) |"]
    with pytest.raises(UserError, match="one of adult-validation and one of accuracy, auc"):
        tables.quoted(tmp_path / "tables.jsonl", ["adult"])


def test_dpsgd_is_tuned_on_training_records_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus")
    whole, seen = small(), []

    def run(split: table_split.Split, epsilon: str, choice: object, *, seed: int) -> Measures:
        seen.append((split.name, choice))
        probabilities = np.full((len(split.truth), 2), 0.5)
        if choice == ("plain", (0.5, 60.0), (0.3, 4.0)):  # the one that predicts
            probabilities = np.eye(2)[split.truth]
        return measure(probabilities, split.truth)

    monkeypatch.setattr(table_methods, "_dpsgd", run)
    measured = table_methods.dpsgd_tuned(whole, "1", 2)
    assert [m.accuracy for m in measured] == [1.0, 1.0]
    tuned, reported = seen[:24], seen[24:]
    assert {name for name, _ in tuned} == {whole.validation().name}
    assert len({choice for _, choice in tuned}) == 24
    assert reported == [(whole.name, ("plain", (0.5, 60.0), (0.3, 4.0)))] * 2
