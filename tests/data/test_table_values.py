"""Statements about cells: a value means the same in CSV, in Parquet and in memory, and all of it is read."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.declared import AGE_COLUMN, DOSE, ILL, MISSING, SEEN

from adlm.data.drafts import check, peek
from adlm.data.reading import read_batches
from adlm.domain.columns import Column
from adlm.domain.encoding import encode_column, encode_frame
from adlm.domain.table import TableDomain
from adlm.errors import UserError

MISSING_TEXTS = 'missing = ["", "-999", "-99.9", "1900-01-01"]\n'
TOML = MISSING_TEXTS + AGE_COLUMN + MISSING + DOSE + "missing = 5\n" + SEEN + MISSING + ILL


@pytest.mark.parametrize("numbers", ["int64", "float64", "float32", "Int64", "object"])
def test_a_declared_code_means_missing_however_the_table_is_kept(tmp_path: Path, numbers: Any) -> None:
    table = TableDomain.from_toml(TOML)
    data = pd.DataFrame(
        {
            "age": pd.Series([-999, 50, -998]).astype(numbers),
            "dose": np.array([-99.9, 2.5, -99.0], dtype=np.float32),
            "seen": pd.to_datetime(["1900-01-01", "2020-12-31", "1900-01-02"]),
            "ill": ["no", "yes", "no"],
        }
    )
    data.to_csv(tmp_path / "a.csv", index=False)
    data.to_parquet(tmp_path / "a.parquet")
    expected = np.array([[0, 1, 0.5, 1, 0, 1], [0.5, 0, 0.25, 0, 1, 0], [0, 0, 0, 0, 0, 0]])
    for x in (
        next(read_batches(tmp_path / "a.csv", table)).x,
        next(read_batches(tmp_path / "a.parquet", table)).x,
        encode_frame(table, data),
    ):
        assert np.allclose(x, expected)
    for name in ("a.csv", "a.parquet"):
        found = check(tmp_path / name, table).columns["age"]
        assert (found.missing, found.outside) == (1, 1)


def test_a_declared_code_is_refused_where_missing_is_not_declared() -> None:
    for cells in (["7", "-999.0"], [7, -999], np.array([7, -999.0])):
        with pytest.raises(UserError, match="row 2, column 'a': the cell is missing"):
            encode_column(Column("a", "numeric", 0, 10), cells, ("-999",))


def test_a_code_too_large_for_a_columns_type_marks_nothing() -> None:
    column = Column("a", "numeric", 0, 10)
    assert encode_column(column, np.array([5], dtype=np.float32), ("1e300",)).tolist() == [[0.5]]


@pytest.mark.parametrize("text", ["2020-01-01garbage", "2020-01-01x12:00", "2020-01-01 noon", "2020-01-011"])
def test_the_whole_text_of_a_date_is_read(text: str, tmp_path: Path) -> None:
    column = Column("d", "date", "2020-01-01", "2020-12-31")
    with pytest.raises(UserError, match=f"row 1, column 'd': '{text}' is not a date"):
        encode_column(column, [text], ())
    with pytest.raises(UserError, match="dates are written like"):
        Column("d", "date", text, "2021-12-31")
    pd.DataFrame({"d": [text, "2020-05-05"], "y": ["a", "b"]}).to_csv(tmp_path / "d.csv", index=False)
    assert peek(tmp_path / "d.csv").columns[0].kind == "categorical"


@pytest.mark.parametrize(
    "times",
    [
        pa.array([0, 2**61], pa.timestamp("s")),
        pa.array([0, -(2**61)], pa.timestamp("us", "UTC")),
        pa.array([0, 2**31 - 1], pa.date32()),
        pa.array([0, 2**61], pa.timestamp("s")).dictionary_encode(),
        np.array([0, 2**61], "datetime64[s]"),
        np.array([0, 40_000], "datetime64[Y]"),
        [None, datetime.datetime(9999, 12, 31, 23, tzinfo=datetime.timezone(datetime.timedelta(hours=-9)))],
    ],
    ids=["seconds", "microseconds", "days", "coded", "NumPy", "years", "zone"],
)
def test_a_time_that_no_calendar_has_is_refused_with_its_row(times: Any) -> None:
    column = Column("seen", "date", "2020-01-01", "2020-12-31", missing="2020-02-02")
    with pytest.raises(UserError, match="row 2, column 'seen': the time is outside the years 1 to 9999"):
        encode_column(column, times, ("",))


def test_a_date_may_have_a_time_after_it() -> None:
    column = Column("d", "date", "2020-01-01", "2020-12-31")
    texts = [
        "2020-12-31",
        "2020-12-31 23:59:59",
        "2020-12-31T23:59:59.123456789",
        "2020-12-31T10:00:00+02:00",
    ]
    assert encode_column(column, texts, ()).tolist() == [[1.0]] * 4


def test_a_number_is_written_as_tables_write_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="row 1, column 'a': '1_000' is not a number"):
        encode_column(Column("a", "numeric", 0, 2000), ["1_000"], ())
    codes = Column("c", "categorical", groups=(("low", ("1..5000",)),), other="rest")
    assert encode_column(codes, ["1_000", "1000"], ()).tolist() == [[0, 1], [1, 0]]
    pd.DataFrame({"a": ["1_000", "7"], "y": ["a", "b"]}).to_csv(tmp_path / "n.csv", index=False)
    assert peek(tmp_path / "n.csv").columns[0].kind == "categorical"
