"""Tables from elsewhere become a domain file and two sides, which the comparison reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.experiments.table_split import load
from benchmarks.keel_tables import column, rows_of, write

from adlm.errors import UserError


def test_a_column_is_declared_by_rounded_bounds_or_by_its_categories() -> None:
    assert column(["3", "17.5", "84"]) == {"kind": "numeric", "lower": 0.0, "upper": 90.0}
    assert column(["2", "2"]) == {"kind": "numeric", "lower": 2.0, "upper": 3.0}
    assert column(["-0.2", "<null>"])["missing"] == "?"
    assert column(["b", "a", "?"]) == {"kind": "categorical", "values": ["a", "b"], "missing": "category"}


def test_a_class_of_one_record_is_left_out() -> None:
    assert rows_of("1, a\n2,a\n\n3,b\n") == [["1", "a"], ["2", "a"]]


def test_what_is_written_is_read_by_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    rows = [[str(i), "ab"[i % 2], "no" if i < 50 else "yes"] for i in range(100)]
    write("made", rows, tmp_path / "tables")
    split = load("made", tmp_path)
    assert len(split.y) == 80
    assert len(split.truth) == 20
    both = np.concatenate([split.x[:, 0], split.test[:, 0]])
    np.testing.assert_allclose(np.sort(both), np.arange(100) / 100, atol=1e-6)
    np.testing.assert_array_equal(split.y == 1, split.x[:, 0] >= 0.5 - 1e-6)
    with pytest.raises(UserError, match=r"there is no other\.toml in .*tables; set ADLM_DATA"):
        load("other", tmp_path)
