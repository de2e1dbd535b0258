"""Statements about the comparison on tables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.keel_tables import column, rows_of, write
from benchmarks.tables import OURS, diffprivlib_logistic, domain_file, dp_ebm, load, load_target, with_target

from adlm.domain.columns import Column
from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from benchmarks import runner, tables

DATA = Path(os.environ.get("ADLM_DATA", "data"))


@pytest.mark.skipif(not (DATA / "adult").is_dir(), reason="Adult is not in ADLM_DATA")
def test_one_release_of_adult_is_as_accurate_as_published(tmp_path: Path) -> None:
    """Releases have a standard deviation of 0.1 points."""
    rows = tables.run(
        tmp_path, data=DATA, names=("adult",), epsilons=("3",), releases=1, methods=("pure", "delta")
    )
    ours = {row["noise"]: row["measures"]["accuracy"][0] for row in rows if row["method"] == OURS}
    assert 100 * ours["delta 1e-5"] > 85.2
    assert 100 * ours["pure"] > 84.7
    assert "| adlm, replace-one | pure | accuracy | 8" in (tmp_path / "tables.md").read_text()


@pytest.mark.skipif(not (DATA / "diabetes130").is_dir(), reason="Diabetes-130 is not in ADLM_DATA")
def test_no_patient_is_on_both_sides_of_the_split() -> None:
    with tables.sides_of("diabetes130", DATA) as (train, test):
        sides = [{line.split(",")[1] for line in path.read_text().splitlines()[1:]} for path in (train, test)]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 71518
    assert len(sides[1]) == 71518 // 5


def small(name: str = "adult") -> tables.Split:
    table = TableDomain((Column("a", "numeric", 0, 1), Column("y", "label", classes=("n", "y"))))
    x = np.random.default_rng(0).random((400, 1)).astype(np.float32)
    y = (x[:, 0] > 0.5).astype(np.int64)
    return tables.Split(name, table, x[:300], y[:300], x[300:], y[300:])


def test_what_was_measured_is_kept_when_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "load", lambda name, _: small(name))
    given = {"names": ("adult",), "epsilons": ("1", "3"), "releases": 2, "methods": ("pure", "delta")}
    first = tables.run(tmp_path, **given)  # type: ignore[arg-type]
    lines = (tmp_path / "tables.jsonl").read_text().splitlines()
    (tmp_path / "tables.jsonl").write_text("\n".join(lines[:2]))  # as if stopped after two cells
    again = tables.run(tmp_path, **given, resume=True)  # type: ignore[arg-type]
    assert again[:2] == first[:2]
    assert list(map(runner.row_key, again)) == list(map(runner.row_key, first))
    more = tables.run(tmp_path, **given | {"releases": 3}, resume=True)  # type: ignore[arg-type]
    assert {row["runs"] for row in more} == {3}  # other rows than those that were kept


def test_the_validation_split_is_of_training_records_alone() -> None:
    whole = small()
    part = whole.validation()
    assert sorted(np.concatenate([part.x, part.test])[:, 0]) == sorted(whole.x[:, 0])
    assert (len(part.y), len(part.truth)) == (225, 75)


FAKE = """
import sys, numpy as np
name, folder, epsilon, c, runs = sys.argv[2:]
x, y = np.load(folder + "/x.npy"), np.load(folder + "/y.npy")
assert np.linalg.norm(x, axis=1).max() <= 1 + 1e-6
weight = x[y == 1].mean(0) - x[y == 0].mean(0)
np.save(folder + "/outputs.npy", [[*(100 * weight), 0.0]] * int(runs))
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
    found = diffprivlib_logistic(small(), "1", "1", 2, str(python))
    assert len(found) == 2
    assert found[0]["accuracy"] > 0.9
    with pytest.raises(UserError, match="cannot run diffprivlib"):
        diffprivlib_logistic(small(), "1", "1", 1, str(tmp_path / "none"))
    python.write_text("#!/bin/sh\necho ModuleNotFoundError: No module named diffprivlib >&2; exit 1\n")
    with pytest.raises(UserError, match=r"No module named diffprivlib.*pip install diffprivlib"):
        diffprivlib_logistic(small(), "1", "1", 1, str(python))


FAKE_EBM = """
import json, sys, numpy as np
name, folder, epsilon, delta, runs = sys.argv[2:]
x, test, y = (np.load(folder + "/" + name + ".npy") for name in ("x", "test", "y"))
kinds = json.load(open(folder + "/kinds.json"))
assert delta == "1e-5" and len(kinds) == x.shape[1] == test.shape[1]
places = [x[:, i] for i, kind in enumerate(kinds) if kind == "continuous"]
assert all(np.nanmin(place) >= 0 and np.nanmax(place) <= 1 for place in places)
np.save(folder + "/outputs.npy", np.tile([1 - y.mean(), y.mean()], (int(runs), len(test), 1)))
"""


def test_another_interpreter_gets_the_columns_and_its_probabilities_are_measured_here(tmp_path: Path) -> None:
    python = interpreter(tmp_path, FAKE_EBM)
    found = dp_ebm(small(), "1", 2, str(python))
    assert [m["auc"] for m in found] == [0.5, 0.5]
    python.write_text("#!/bin/sh\necho ModuleNotFoundError: No module named interpret >&2; exit 1\n")
    with pytest.raises(UserError, match=r"No module named interpret.*pip install interpret"):
        dp_ebm(small(), "1", 1, str(python))


def test_dpsgd_is_tuned_on_training_records_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, seen, best = small(), [], ("plain", (0.5, 60.0), (0.3, 4.0))

    def run(split: tables.Split, epsilon: str, choice: tables.Choice, *, seed: int) -> runner.Measured:
        seen.append((split.name, choice))
        accuracy = 1.0 if choice == best else 0.8 if choice[2] == best[2] else 0.5
        return {"accuracy": accuracy, "auc": 0.5}

    monkeypatch.setattr(tables, "dpsgd_run", run)
    found = tables.dpsgd_tuned(whole, "1", 2)
    assert [m["accuracy"] for m in found] == [1.0, 1.0]
    assert {name for name, _ in seen[:20]} == {whole.validation().name}
    assert len({choice for _, choice in seen[:20]}) == 20
    assert seen[20:] == [(whole.name, best)] * 2


def test_one_run_of_dpsgd_learns_on_both_kinds_of_columns() -> None:
    pytest.importorskip("opacus")
    for columns in tables.COLUMNS:
        found = tables.dpsgd_run(small(), "8", (columns, (1 / 4, 20.0), (1.0, 4.0)), seed=0)
        assert found["accuracy"] > 0.8


@pytest.mark.parametrize("name", ["tables", "small-tables/tables", "unseen-tables/tables", "regression"])
def test_a_committed_page_is_what_its_rows_give(name: str) -> None:
    path = Path(__file__).parents[2] / "results" / f"{name}.jsonl"
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    assert text == tables.page(path.name, runner.read_lines(path))


# ---- numeric targets


def test_sides_of_a_split_are_encoded_alike_and_apart() -> None:
    split = load_target("load_diabetes", Path("nowhere"))
    assert (len(split.y), len(split.truth)) == (331, 111)
    assert split.x.shape[1] == split.test.shape[1] == 10
    assert 0 <= split.x.min() <= split.x.max() <= 1
    values = split.values(np.concatenate([split.y, split.truth]))
    assert 25 <= values.min() <= values.max() <= 350
    assert split.y.max() <= TARGET_UNIT


def test_the_example_of_days_in_hospital_is_the_table_with_another_answer() -> None:
    plain = TableDomain.load(domain_file("diabetes130"))
    days = TableDomain.load(domain_file("time-in-hospital"))
    assert with_target(plain, "time_in_hospital") == days
    assert days.domain.target == (1, 14)


def test_numeric_targets_are_run_resumed_and_quoted(tmp_path: Path) -> None:
    given = {"names": ("load_diabetes",), "epsilons": ("3",), "releases": 2}
    rows = tables.run_numeric(tmp_path, **given)  # type: ignore[arg-type]
    assert [row["method"] for row in rows] == [tables.RIDGE, tables.BOOSTING, OURS, OURS]
    assert 0.2 < rows[0]["measures"]["r2"][0] < 0.5
    again = tables.run_numeric(tmp_path, **given, resume=True)  # type: ignore[arg-type]
    assert again == rows  # noise is fresh, so anything made anew would differ
    text = runner.quoted(tmp_path / "regression.jsonl", ["load_diabetes", "r2"], tables.NUMERIC)
    assert text.startswith("| method | noise | measure | eps 3 |")
    assert len(text.splitlines()) == 6
    with pytest.raises(UserError, match="is quoted by"):
        runner.quoted(tmp_path / "regression.jsonl", ["load_diabetes", "accuracy"], tables.NUMERIC)


def test_unknown_data_and_a_python_without_diffprivlib_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="numbers are predicted on"):
        tables.run_numeric(tmp_path, names=("wine",))
    with pytest.raises(UserError, match="environment of its own"):
        tables.diffprivlib_linear(load_target("load_diabetes", tmp_path), "1", 1, "/no/such/python")


# ---- tables from elsewhere


def test_a_column_is_declared_by_rounded_bounds_or_by_its_categories() -> None:
    assert column(["3", "17.5", "84"]) == {"kind": "numeric", "lower": 0.0, "upper": 90.0}
    assert column(["2", "2"]) == {"kind": "numeric", "lower": 2.0, "upper": 3.0}
    assert column(["-0.2", "<null>"])["missing"] == "?"
    assert column(["b", "a", "?"]) == {"kind": "categorical", "values": ["a", "b"], "missing": "category"}


def test_what_is_written_is_read_by_the_comparison(tmp_path: Path) -> None:
    assert rows_of("1, a\n2,a\n\n3,b\n") == [["1", "a"], ["2", "a"]]  # a class of one record is left out
    (tmp_path / "tables").mkdir()
    rows = [[str(i), "ab"[i % 2], "no" if i < 50 else "yes"] for i in range(100)]
    write("made", rows, tmp_path / "tables")
    split = load("made", tmp_path)
    assert (len(split.y), len(split.truth)) == (80, 20)
    both = np.concatenate([split.x[:, 0], split.test[:, 0]])
    np.testing.assert_allclose(np.sort(both), np.arange(100) / 100, atol=1e-6)
    np.testing.assert_array_equal(split.y == 1, split.x[:, 0] >= 0.5 - 1e-6)
    with pytest.raises(UserError, match=r"there is no other\.toml in .*tables; set ADLM_DATA"):
        load("other", tmp_path)
