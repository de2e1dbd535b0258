"""Statements about frames: a cell is read by itself, and no other cell's type or value changes how."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from adlm.data.reading import read_frame
from adlm.domain.columns import Column
from adlm.domain.encoding import encode_column, encode_frame, encode_labels, person_texts
from adlm.domain.table import TableDomain
from adlm.errors import UserError

AGE = Column("a", "numeric", 0, 2.0**60, scale="log", missing="category")
TOWN = Column("t", "categorical", values=("1", "2", "true"), other="rest", missing="category")
SEEN = Column("d", "date", "2020-01-01", "2020-12-31", format="%d.%m.%Y", missing="category")
YES = Column("b", "boolean", missing="category")
MISSING = ("", "?", "-99.9")
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
        return encode_column(column, values, MISSING)
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
        (SEEN, ["01.05.2020", "02.05.2020", "31.12.2020"]),
        (SEEN, [datetime.date(2020, 1, 2), datetime.date(2020, 5, 1), datetime.date(2020, 7, 1)]),
        (SEEN, [pd.Timestamp("2020-05-01"), pd.Timestamp("2020-05-02 23:30"), pd.Timestamp("2020-06-03")]),
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


@pytest.mark.parametrize("kind", [AGE, TOWN, YES, SEEN], ids=lambda c: c.kind)
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
