"""A cell is read by itself, and means the same in a frame, in CSV, in Parquet and in memory."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.declared import AGE_COLUMN, DOSE, ILL, MISSING, SEEN

from adlm.data.drafts import check, peek
from adlm.data.reading import read_batches, read_frame
from adlm.domain import encoding
from adlm.domain.columns import Column, plain_number
from adlm.domain.encoding import (
    CellError,
    encode_column,
    encode_frame,
    encode_labels,
    numbers_in,
    person_texts,
)
from adlm.domain.table import TableDomain
from adlm.errors import UserError

AGE = Column("a", "numeric", 0, 2.0**60, scale="log", missing="category")
TOWN = Column("t", "categorical", values=("1", "2", "true"), other="rest", missing="category")
DAY = Column("d", "date", "2020-01-01", "2020-12-31", format="%d.%m.%Y", missing="category")
YES = Column("b", "boolean", missing="category")
MARKS = ("", "?", "-99.9")
ODD: list[Any] = [
    None, "?", "", "x", "1.0", "True", True, 1, 2, 2.5, 2.0, np.float32(-99.9), 2**53 + 1, 2**70,
    float("nan"), decimal.Decimal("2.50"), np.int8(1), datetime.date(2020, 5, 1), pd.NA,
    datetime.datetime(2020, 5, 1, 7), pd.Timestamp("2020-05-01 10:00", tz="Europe/Berlin"),
    pd.NaT, "1e3", [1], b"2", b"\xff", 1 + 2j,
]  # fmt: skip
FRAMES: dict[str, Callable[[list[Any]], Any]] = {
    "pandas": pd.Series,
    "object": lambda cells: pd.Series(cells, dtype=object),
    "converted": lambda cells: pd.Series(cells).convert_dtypes(),
    "arrow": lambda cells: pd.Series(cells).convert_dtypes(dtype_backend="pyarrow"),
    "category": lambda cells: pd.Series(cells).astype("category"),
    "two parts": lambda cells: pd.concat([pd.Series(cells[:2]), pd.Series(cells[2:])]),
    "numpy": np.array,
    "list": list,
    "pyarrow": pa.array,
}


def made(make: Callable[[list[Any]], Any], cells: list[Any]) -> Any:
    """The column, or None if the library itself refuses such cells."""
    try:
        return make(cells)
    except (TypeError, ValueError, OverflowError, NotImplementedError, pa.ArrowException):
        return None


def read(column: Column, values: Any) -> np.ndarray | None:
    try:
        return encode_column(column, values, MARKS)
    except UserError:
        return None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (AGE, [3, 2**53 + 1, 17]),
        (AGE, [0.1, 2.5, 1e15]),
        (AGE, [np.float32(-99.9), np.float32(0.1), np.float32(7)]),
        (AGE, ["0.1", "2.50", "17"]),
        (TOWN, ["1", "2", "1.0"]),
        (TOWN, [1, 2, 3]),
        (TOWN, [1.0, 2.0, 3.0]),
        (TOWN, [True, False, True]),
        (TOWN, [decimal.Decimal("1"), decimal.Decimal("2"), decimal.Decimal("1")]),
        (DAY, ["01.05.2020", "02.05.2020", "31.12.2020"]),
        (DAY, [datetime.date(2020, 1, 2), datetime.date(2020, 5, 1), datetime.date(2020, 7, 1)]),
        (DAY, [pd.Timestamp("2020-05-01"), pd.Timestamp("2020-05-02 23:30"), pd.Timestamp("2020-06-03")]),
        (YES, [True, False, True]),
        (YES, [1, 0, 1]),
        (YES, ["yes", "No", "1"]),
    ],
)
def test_no_odd_cell_changes_how_the_others_are_read(frame: str, column: Column, cells: list[Any]) -> None:
    """For every kind of frame: replace one cell, and the others give the same numbers or an error."""
    whole = read(column, made(FRAMES[frame], cells))
    compared = 0
    for odd in ODD:
        for place in range(3):
            values = made(FRAMES[frame], [odd if i == place else cell for i, cell in enumerate(cells)])
            other = read(column, values) if values is not None else None
            if whole is not None and other is not None:
                keep = [i for i in range(3) if i != place]
                assert np.array_equal(other[keep], whole[keep]), (odd, place)
                compared += 1
    assert compared > 3 or whole is None


@pytest.mark.parametrize("kind", ["categorical", "person", "label", "ordinal"])
def test_a_number_that_is_not_whole_by_type_is_refused_where_texts_are_read(kind: str) -> None:
    settings: dict[str, dict[str, Any]] = {
        "categorical": {"values": ("1", "2")}, "ordinal": {"values": ("1", "2")},
        "label": {"classes": ("1", "2")}, "person": {},
    }  # fmt: skip
    column = Column("c", kind, **settings[kind])

    def told(values: Any) -> None:
        if kind == "person":
            person_texts(column, values)
        elif kind == "label":
            encode_labels(column, values)
        else:
            encode_column(column, values, ())

    for values in ([1, 2], ["1", "2"], pd.Series([1, 2], dtype="Int64"), pa.array(["1", "2"])):
        told(values)
    for values in (
        [1, 2.0], np.array([2.0, 1.0]), pd.Series([1, 2.0, None]), pa.array([2.0]),
        [decimal.Decimal(1)], pd.Series([1.0, 2.0]).astype("category"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"column 'c': the number .* read the column as text \(dtype=str"):
            told(values)


def test_persons_with_large_ids_are_not_merged_beside_a_missing_cell() -> None:
    table = TableDomain(
        (Column("id", "person"), AGE, Column("y", "label", classes=("no", "yes"))), missing=("", "?")
    )
    ids = [2**53, 2**53 + 1, 2**53 + 2]

    def people(names: Sequence[object]) -> pd.DataFrame:
        return pd.DataFrame({"id": names, AGE.name: [1] * len(names)})

    assert len(read_frame(people(ids), table, ["no"] * 3)) == 3
    with pytest.raises(UserError, match=r"column 'id': the number .* read the column as text"):
        read_frame(people([*ids, None]), table, ["no"] * 4)
    for nobody in ("?", " ", None):
        with pytest.raises(UserError, match="row 4, column 'id': the person is not named"):
            read_frame(people([*map(str, ids), nobody]), table, ["no"] * 4)


@pytest.mark.parametrize("kind", [AGE, TOWN, YES, DAY], ids=lambda c: c.kind)
def test_a_column_in_chunks_reads_like_one_in_a_piece(kind: Column) -> None:
    texts = {"numeric": ["1", "2"], "categorical": ["1", "2"], "boolean": ["no", "yes"]}
    part = pa.array(texts.get(kind.kind, ["01.05.2020", "02.05.2020"]))
    expected = np.vstack([encode_column(kind, part, ())] * 2)
    for chunks in (
        pa.chunked_array([part, part]), pa.chunked_array([part, part]).dictionary_encode(),
        pd.concat([pd.Series(part.to_pylist())] * 2),
        pd.concat([pd.Series(part.to_pylist(), dtype="category")] * 2),
    ):  # fmt: skip
        assert np.array_equal(encode_column(kind, chunks, ()), expected)
    assert encode_column(kind, pa.chunked_array([], pa.string()), ()).shape == (0, kind.width)


def test_a_category_that_nobody_has_is_not_read() -> None:
    cells = pd.Series(["1", "2"]).astype(pd.CategoricalDtype(["2", "never", 2.5, "1"]))
    column = Column("t", "categorical", values=("1", "2"))
    assert encode_column(column, cells, ()).tolist() == [[1, 0], [0, 1]]


def test_a_record_reads_alike_alone_and_among_many() -> None:
    """Logarithms too: vectorised ones may round by a number's place."""
    values = np.random.default_rng(0).lognormal(3, 3, 5000)
    frame = pd.DataFrame({"a": values})
    table = TableDomain((AGE, Column("y", "label", classes=("no", "yes"))))
    whole = encode_frame(table, frame)
    for rows in (1, 3, 7, 64):
        parts = [encode_frame(table, frame.iloc[i : i + rows]) for i in range(0, 700, rows)]
        assert np.array_equal(np.vstack(parts)[:700], whole[:700])
    assert np.array_equal(encode_frame(table, pd.DataFrame({"a": [str(v) for v in values]})), whole)


# ---- Numbers in texts: read at once, they are what each cell is when it is read by itself


TEXT_MARKS = ("", "?", "NA", "NaN", "nan", "null", "-999", "0.1")
COLUMNS = (
    Column("v", "numeric", -5.0, 10.0),
    Column("v", "numeric", -5.0, 10.0, missing="category"),
    Column("v", "numeric", 0.0, 1e9, scale="log", missing=3.0),
)
ODD_TEXTS = [
    *["+1", " 1", "1 ", "\t2\n", "1_000", "nan(1)", "inf", "-Infinity", "1e999", "1e-999", "-0", "-0.0"],
    *["", "x", "NA", "-999", "-999.0", "0.1", "0.10000000149011612", "٣", "1,5", "0x10", "1e", ".", "5."],
    *[".5", "1e+05", "2.4703282292062328e-324", "9" * 400, "0." + "0" * 400 + "1", "\u00a07\u00a0", "１"],
]
DIGITS = st.text("0123456789+-.eE _x", max_size=12)
CELLS = st.lists(
    st.one_of(
        st.sampled_from(ODD_TEXTS), st.floats().map(repr), st.integers().map(str), DIGITS, st.text(max_size=4)
    ),
    min_size=1,
    max_size=12,
)


def one_by_one(column: Column, cells: list[str], missing: tuple[str, ...]) -> list[float] | tuple[int, str]:
    """The slow twin: a row of numbers, or the first row that is refused, with the reason."""
    found = []
    for row, cell in enumerate(cells):
        try:
            found.append(float(encoding._value_codes(column, pa.array([cell]), missing)[0]))
        except CellError as error:
            return row, error.reason
    return found


@given(st.sampled_from(COLUMNS), CELLS, st.booleans())
@example(COLUMNS[0], ["1", "x", "2"], False)
@example(COLUMNS[1], ["-999", "0.10000000149011612", " 0.1", "3"], True)
def test_texts_read_at_once_are_texts_read_one_by_one(
    column: Column, cells: list[str], chunked: bool
) -> None:
    expected = one_by_one(column, cells, TEXT_MARKS)
    texts = pa.array(cells, pa.string())
    if chunked:
        texts = pa.chunked_array([texts.slice(0, 1), texts.slice(1)])
    if isinstance(expected, tuple):
        with pytest.raises(CellError) as refused:
            encoding._codes(column, texts, TEXT_MARKS)
        assert (refused.value.row, refused.value.reason) == expected
    else:
        found = encoding._codes(column, texts, TEXT_MARKS)
        assert np.array_equal(found, np.array(expected), equal_nan=True)


@given(CELLS)
def test_a_plainly_written_number_is_the_one_that_python_reads(cells: list[str]) -> None:
    for cell, number in zip(cells, numbers_in(pa.array(cells, pa.string())), strict=True):
        if not math.isnan(number):
            assert plain_number(cell) == number


def test_one_odd_cell_leaves_the_others_to_be_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work for each cell is for odd ones alone: the others never reach the slow reader."""
    seen: list[int] = []
    slow = encoding._value_codes

    def counted(column: Column, values: pa.Array, missing: tuple[str, ...]) -> object:
        seen.append(len(values))
        return slow(column, values, missing)

    monkeypatch.setattr(encoding, "_value_codes", counted)
    encoding._codes(COLUMNS[1], pa.array(["1.5", "NA", " 2", *map(str, range(1000))]), TEXT_MARKS)
    assert seen == [2]


def test_what_is_kept_of_a_column_expands_to_its_encoding() -> None:
    columns = (
        (Column("c", "categorical", values=("a", "b"), missing="category"), ["a", "?", "b"]),
        (Column("o", "ordinal", values=("l", "m", "h"), missing="m"), ["h", "?", "l"]),
        (COLUMNS[1], ["-5", "?", "-0.0"]),
        (Column("w", "categorical", values=tuple(map(str, range(300)))), ["7", "299", "0"]),
    )
    for column, cells in columns:
        kept = encoding.compact(column, pa.array(cells), ("?",))
        assert kept.ndim == 1
        assert np.array_equal(encoding.expand(column, kept), encoding.encode_column(column, cells, ("?",)))
        assert encoding.expand(column, kept).shape == (3, column.width)
    all_kept = [encoding.compact(column, pa.array(cells), ("?",)) for column, cells in columns]
    side_by_side = np.hstack(
        [encoding.expand(column, kept) for (column, _), kept in zip(columns, all_kept, strict=True)]
    )
    assert np.array_equal(encoding.expanded([column for column, _ in columns], all_kept), side_by_side)
    with pytest.raises(UserError, match="the cell is missing"):
        encoding.compact(COLUMNS[0], pa.array(["1", "?"]), ("?",))


# ---- Cells: a value means the same in CSV, in Parquet and in memory, and all of it is read


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
