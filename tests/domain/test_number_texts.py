"""Statements about numbers in texts: read at once, they are what each cell is when it is read by itself."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adlm.domain import encoding
from adlm.domain.columns import Column, plain_number
from adlm.domain.encoding import CellError, numbers_in
from adlm.errors import UserError

MISSING = ("", "?", "NA", "NaN", "nan", "null", "-999", "0.1")
COLUMNS = (
    Column("v", "numeric", -5.0, 10.0),
    Column("v", "numeric", -5.0, 10.0, missing="category"),
    Column("v", "numeric", 0.0, 1e9, scale="log", missing=3.0),
)
ODD = [
    *["+1", " 1", "1 ", "\t2\n", "1_000", "nan(1)", "inf", "-Infinity", "1e999", "1e-999", "-0", "-0.0"],
    *["", "x", "NA", "-999", "-999.0", "0.1", "0.10000000149011612", "٣", "1,5", "0x10", "1e", ".", "5."],
    *[".5", "1e+05", "2.4703282292062328e-324", "9" * 400, "0." + "0" * 400 + "1", "\u00a07\u00a0", "１"],
]
DIGITS = st.text("0123456789+-.eE _x", max_size=12)
CELLS = st.lists(
    st.one_of(
        st.sampled_from(ODD), st.floats().map(repr), st.integers().map(str), DIGITS, st.text(max_size=4)
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
    expected = one_by_one(column, cells, MISSING)
    texts = pa.array(cells, pa.string())
    if chunked:
        texts = pa.chunked_array([texts.slice(0, 1), texts.slice(1)])
    if isinstance(expected, tuple):
        with pytest.raises(CellError) as refused:
            encoding._codes(column, texts, MISSING)
        assert (refused.value.row, refused.value.reason) == expected
    else:
        found = encoding._codes(column, texts, MISSING)
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
    encoding._codes(COLUMNS[1], pa.array(["1.5", "NA", " 2", *map(str, range(1000))]), MISSING)
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
