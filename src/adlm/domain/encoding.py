"""Encoding of declared columns as numbers. Each number depends on its own cell alone."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from adlm.domain.columns import Column, iso_day, plain_number
from adlm.domain.domain import show
from adlm.domain.table import TableDomain
from adlm.domain.values import (
    CellError,
    ColumnValues,
    RefusedError,
    cell_text,
    column_values,
    day_in,
    is_text,
    number_in,
    numbers_in,
    numbers_of,
    text_in,
)
from adlm.errors import UserError

Compact = NDArray[Any]  # float32 positions, or integer codes of categories
TARGET_UNIT = 1 << 20  # grid steps between the bounds of a target
_BOUNDED = ("numeric", "date", "target")
Codes = NDArray[np.float64]  # a position in [0, 1], or a category's number; NaN where the cell is missing


def encode_column(column: Column, values: Any, missing: tuple[str, ...]) -> NDArray[np.float32]:
    """Encode (n,) cells as (n, width) numbers in [0, 1]."""
    return expand(column, compact(column, values, missing))


def compact(column: Column, values: Any, missing: tuple[str, ...]) -> Compact:
    """Read (n,) cells as one number each, for storage: a category's code, or a position in [0, 1].

    A missing cell is the last category, or at -1.
    """
    codes = _codes(column, values, missing)
    is_missing = np.isnan(codes)
    if is_missing.any() and column.missing is None:
        row = int(np.flatnonzero(is_missing)[0])
        raise CellError(column.name, row, "the cell is missing; declare what missing means in the domain")
    if column.kind == "categorical":
        return np.where(is_missing, column.width - 1, codes).astype(
            np.uint8 if column.width <= 256 else np.int32
        )
    return (np.where(is_missing, -1.0, codes) + 0.0).astype(np.float32)  # no negative zero


def expand(column: Column, kept: Compact) -> NDArray[np.float32]:
    """Expand the output of `compact` to the (n, width) numbers of a column."""
    return expanded((column,), (kept,))


def expanded(columns: Sequence[Column], kept: Sequence[Compact]) -> NDArray[np.float32]:
    """Expand the outputs of `compact` of several columns to their numbers, side by side."""
    widths = [column.width for column in columns]
    out = np.zeros((len(kept[0]), sum(widths)), dtype=np.float32)
    stop = 0
    for column, cells, width in zip(columns, kept, widths, strict=True):
        start, stop = stop, stop + width
        if column.kind == "categorical":
            out[np.arange(len(cells)), start + cells.astype(np.intp)] = 1.0
        elif column.missing is None:
            out[:, start] = cells
        else:
            is_missing = cells < 0
            out[:, start] = np.where(is_missing, np.float32(constant(column)), cells)
            out[:, start + 1] = is_missing
    return out


def encode_labels(column: Column, values: Any, missing: tuple[str, ...] = ()) -> NDArray[np.int64]:
    """Codes of the label's cells, (n,); `missing` has texts that mean missing, if the label allows that."""
    return _answers(column, values, missing).astype(np.int64)


def encode_target(column: Column, values: Any, missing: tuple[str, ...] = ()) -> NDArray[np.int64]:
    """Positions of the target's cells between its bounds, (n,) integers from 0 to TARGET_UNIT.

    `missing` has texts that mean missing, if the target declares a replacement.
    """
    return np.rint(_answers(column, values, missing) * TARGET_UNIT).astype(np.int64)


def _answers(column: Column, values: Any, missing: tuple[str, ...]) -> Codes:
    """Codes of a label or a target, with the declared replacement of missing cells."""
    if column.missing is None:
        codes = _codes(column, values, ())
        if np.isnan(codes).any():
            row = int(np.flatnonzero(np.isnan(codes))[0])
            raise CellError(column.name, row, f"the {column.kind} is missing; remove such records first")
        return codes
    codes = _codes(column, values, missing)
    if column.kind == "label":
        return np.where(np.isnan(codes), column.classes.index(str(column.missing)), codes)
    return np.where(np.isnan(codes), column.position(column.number(column.missing)), codes)


def encode_answer(table: TableDomain, values: Any) -> NDArray[np.int64]:
    """Encode the label or target of a table, (n,): class codes, or positions of the target."""
    encode = encode_labels if table.target is None else encode_target
    return encode(table.answer, values, table.missing)


def encode_frame(table: TableDomain, frame: Any) -> NDArray[np.float32]:
    """Encode the feature columns of a DataFrame, an Arrow table or a batch: (n, width) in [0, 1]."""
    names = column_names(frame)
    parts = []
    for column in table.features:
        if names.count(column.name) != 1:
            how = "is missing" if column.name not in names else "is there twice"
            raise UserError(f"column {column.name!r} {how}; the columns are {_some(tuple(map(str, names)))}")
        parts.append(encode_column(column, frame[column.name], table.missing))
    return np.hstack(parts)


class Frame(dict[str, Any]):
    """Columns by name: a minimal data frame."""

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return list(self)


def column_names(frame: Any) -> list[Any]:
    """Names of the columns of a DataFrame, an Arrow table or a batch."""
    return list(frame.column_names) if hasattr(frame, "column_names") else list(frame.columns)


@dataclass(frozen=True)
class Survey:
    """Counts of a column's cells that its declaration does not cover. Not private: for the curator only."""

    cells: int
    missing: int
    outside: int  # numbers and dates beyond the bounds
    refused: dict[str, int]  # texts that the declaration does not allow, with how often each occurs


def survey_column(column: Column, values: Any, missing: tuple[str, ...]) -> Survey:
    """Count the cells that are missing, outside the bounds, or refused; only a nested type is an error."""
    cells = _column_values(column, values)
    counts = np.bincount(cells.rows, minlength=len(cells.distinct)).tolist()
    read = _reader(column, missing)
    absent = outside = 0
    refused: dict[str, int] = {}
    for cell, count in zip(cells.distinct, counts, strict=True):
        try:
            code = math.nan if cell is None else read(cell)
        except RefusedError:
            text = str(cell_text(cell))
            refused[text] = refused.get(text, 0) + count
            continue
        if math.isnan(code):
            absent += count
        elif column.kind in _BOUNDED and code in (0.0, 1.0):
            low, high = column.number(column.lower), column.number(column.upper)
            outside += count * (not low <= _value(column, cell) <= high)
    return Survey(len(cells.rows), absent, outside, {text: n for text, n in refused.items() if n})


def constant(column: Column) -> float:
    """Return the position of a missing cell: the declared constant's, or 0 with an indicator."""
    if column.missing is None or column.missing == "category":
        return 0.0
    if column.kind in ("numeric", "date"):
        return column.position(column.number(column.missing))
    return column.levels.index(str(column.missing)) / (len(column.levels) - 1)


def _codes(column: Column, values: Any, missing: tuple[str, ...]) -> Codes:
    """Read each cell by itself; a column of numbers at once, with the same result."""
    if column.kind in ("numeric", "target"):
        numbers = numbers_of(values)
        if numbers is not None:
            return _positions(column, _marked(column, numbers, missing))
        if is_text(values):
            return _number_texts(column, values, missing)
    return _value_codes(column, values, missing)


def _marked(column: Column, numbers: Codes, missing: tuple[str, ...]) -> Codes:
    """Replace the numbers that mean missing by NaN."""
    if marks := marks_of(column, missing):
        numbers[np.isin(numbers, sorted(marks))] = np.nan
    return numbers


def _number_texts(column: Column, texts: Any, missing: tuple[str, ...]) -> Codes:
    """Read plain numbers at once, and every other cell by itself."""
    numbers = numbers_in(texts)
    odd = np.flatnonzero(np.isnan(numbers))
    codes = _positions(column, _marked(column, numbers, missing))
    if odd.size:
        try:
            codes[odd] = _value_codes(column, texts.take(pa.array(odd)), missing)
        except CellError as error:
            raise CellError(column.name, int(odd[error.row]), error.reason) from None
    return codes


def _value_codes(column: Column, values: Any, missing: tuple[str, ...]) -> Codes:
    """Read each distinct cell once, by the declared kind."""
    cells = _column_values(column, values)
    read = _reader(column, missing)
    lookup = np.full(len(cells.distinct), np.nan)
    for code, cell in enumerate(cells.distinct):
        try:
            lookup[code] = math.nan if cell is None else read(cell)
        except RefusedError as refused:
            rows = np.flatnonzero(cells.rows == code)
            if rows.size:  # a pandas category may occur in no row
                raise CellError(column.name, int(rows[0]), str(refused)) from None
    return np.asarray(lookup[cells.rows])


def _column_values(column: Column, values: Any) -> ColumnValues:
    try:
        return column_values(values)
    except RefusedError as refused:
        raise CellError(column.name, 0, str(refused)) from None


def _positions(column: Column, numbers: Codes) -> Codes:
    """Positions of numbers, by operations whose rounding does not depend on the place in an array."""
    if np.isinf(numbers).any():
        row = int(np.flatnonzero(np.isinf(numbers))[0])
        raise CellError(column.name, row, "the value is infinite; values must be finite numbers")
    low, high = column.number(column.lower), column.number(column.upper)
    inside = np.clip(numbers, low, high) - low
    if column.scale == "log":  # a vectorised logarithm may round by place; `Column.position` does not
        top = math.log1p(high - low)
        return np.array([math.log1p(value) / top for value in inside.tolist()], dtype=np.float64)
    return np.asarray(inside / (high - low))


def _reader(column: Column, missing: tuple[str, ...]) -> Callable[[Any], float]:
    """Return a function from a cell to a code or a position in [0, 1], or NaN if it means missing."""
    if column.kind in _BOUNDED:
        marks = marks_of(column, missing)

        def place(cell: Any) -> float:
            if isinstance(cell, str) and cell in missing:
                return math.nan
            value = _value(column, cell)
            return math.nan if value in marks else column.position(value)

        return place
    of_text = {"categorical": _category, "label": _label_reader}.get(column.kind, _level)(column)

    def read(cell: Any) -> float:
        text = text_in(column, cell)
        return math.nan if text in missing else of_text(text)

    return read


def _level(column: Column) -> Callable[[str], float]:
    codes = column.truth() if column.kind == "boolean" else {v: i for i, v in enumerate(column.levels)}
    top = max(codes.values())
    folded = column.kind == "boolean" and not column.values

    def read(text: str) -> float:
        key = text.lower() if folded else text
        if key not in codes:
            raise RefusedError(f"unknown value {text!r}; the column has {_some(tuple(codes))}")
        return codes[key] / top

    return read


def _label_reader(column: Column) -> Callable[[str], float]:
    names = {name: float(code) for code, name in enumerate(column.classes)}
    codes = names | {text: names[name] for text, name in column.aliases}

    def read(text: str) -> float:
        if text not in codes:
            raise RefusedError(f"unknown label {text!r}; the classes are {_some(column.classes)}")
        return codes[text]

    return read


def marks_of(column: Column, missing: tuple[str, ...]) -> frozenset[float]:
    """The numbers (or days) that mean missing: -999 as a text, as -999.0 and as a number.

    A mark that is rounded in single precision counts in that form too, in a column of any type.
    """
    marks = set()
    for text in missing:
        with contextlib.suppress(RefusedError), np.errstate(over="ignore"):
            value = _value(column, text)
            marks |= {value, float(np.float32(value))}
    return frozenset(mark for mark in marks if math.isfinite(mark))


def _value(column: Column, cell: Any) -> float:
    """Read a cell as a number, or as a day."""
    if column.kind == "date":
        day = day_in(cell)
        return day if day is not None else _day(column, text_in(column, cell))
    try:
        value = plain_number(cell) if isinstance(cell, str) else number_in(cell)
    except ValueError:
        raise RefusedError(f"{_shown(cell)} is not a number") from None
    if not math.isfinite(value):
        raise RefusedError(f"{_shown(cell)} is not a finite number")
    return value


def _shown(cell: Any) -> str:
    return show(cell) if not isinstance(cell, str) else repr(cell)


def _day(column: Column, text: str) -> int:
    try:
        if column.format:
            return datetime.datetime.strptime(text, column.format).date().toordinal()
        return iso_day(text)
    except ValueError:
        raise RefusedError(f"{text!r} is not a date written like {column.format or '2024-05-31'}") from None


def _category(column: Column) -> Callable[[str], float]:
    (exact, ranges), rest = column.category_ranges()

    def read(text: str) -> float:
        code = exact.get(text)
        if code is None and ranges:
            try:
                integer = math.floor(plain_number(text))
            except (ValueError, OverflowError):
                integer = None
            if integer is not None:
                code = next((c for low, high, c in ranges if low <= integer <= high), None)
        if code is None:
            code = rest
        if code is None:
            raise RefusedError(
                f"unknown category {text!r}; the column has {_some(column.categories)} "
                '(other = "NAME" in the domain would cover all others)'
            )
        return float(code)

    return read


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
