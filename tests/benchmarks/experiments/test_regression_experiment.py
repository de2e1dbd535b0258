"""The experiment on numeric targets: its splits, its page, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.experiments.regression_split import load, with_target
from benchmarks.experiments.table_split import domain_file

from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from benchmarks.experiments import regression


def test_sides_of_a_split_are_encoded_alike_and_apart() -> None:
    split = load("load_diabetes", Path("nowhere"))
    assert len(split.y) == 331
    assert len(split.truth) == 111
    assert split.x.shape[1] == split.test.shape[1] == 10
    assert split.x.min() >= 0
    assert split.x.max() <= 1
    values = split.values(np.concatenate([split.y, split.truth]))
    assert values.min() >= 25
    assert values.max() <= 350
    assert split.y.max() <= TARGET_UNIT


def test_the_example_of_days_in_hospital_is_the_table_with_another_answer() -> None:
    plain, days = (
        TableDomain.load(domain_file("diabetes130")),
        TableDomain.load(domain_file("time-in-hospital")),
    )
    assert with_target(plain, "time_in_hospital") == days
    assert days.target is not None
    assert days.domain.target == (1, 14)


def test_it_runs_resumes_and_quotes_its_page(tmp_path: Path) -> None:
    rows = regression.run(tmp_path, names=("load_diabetes",), epsilons=("3",), releases=2)
    assert [row.method for row in rows] == [regression.RIDGE, regression.BOOSTING] + [regression.OURS] * 2
    assert 0.2 < rows[0].r2 < 0.5
    again = regression.run(tmp_path, names=("load_diabetes",), epsilons=("3",), releases=2, resume=True)
    assert again == rows  # noise is fresh, so anything made anew would differ
    page = (tmp_path / "regression.md").read_text(encoding="utf-8")
    assert "adlm experiment regression --releases 2" in page
    table = regression.quoted(tmp_path / "regression.jsonl", ["load_diabetes", "r2"])
    assert table.startswith("| method | noise | measure | eps 3 |")
    assert len(table.splitlines()) == 6
    with pytest.raises(UserError, match="is quoted by"):
        regression.quoted(tmp_path / "regression.jsonl", ["load_diabetes", "accuracy"])


def test_unknown_data_and_a_python_without_diffprivlib_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="numbers are predicted on"):
        regression.run(tmp_path, names=("wine",))
    split = load("load_diabetes", tmp_path)
    with pytest.raises(UserError, match="environment of its own"):
        regression.diffprivlib_linear(split, "1", 1, "/no/such/python")
