"""Cells to numbers: how a declared column reads a value. Each number depends on its own cell alone."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from adlm.errors import UserError
from adlm.public.columns import Column, iso_day, plain_number
from adlm.public.tables import TableDomain

Codes = NDArray[np.float64]  # a position in [0, 1], or a category's number; NaN where the cell is missing


class CellError(UserError):
    """A cell that its column's declaration does not allow; `row` counts from 0 in what was given."""

    def __init__(self, column: str, row: int, reason: str) -> None:
        super().__init__(f"row {row + 1}, column {column!r}: {reason}")
        self.column, self.row, self.reason = column, row, reason


def encode_column(column: Column, values: Any, missing: tuple[str, ...]) -> NDArray[np.float32]:
    """Encode (n,) cells as (n, width) numbers in [0, 1]."""
    codes = _codes(column, values, missing, _reader(column, missing))
    gone = np.isnan(codes)
    if gone.any() and column.missing is None:
        row = int(np.flatnonzero(gone)[0])
        raise CellError(column.name, row, "the cell is missing; declare what missing means in the domain")
    out = np.zeros((len(codes), column.width), dtype=np.float32)
    if column.kind == "categorical":
        codes = np.where(gone, column.width - 1, codes)
        out[np.arange(len(codes)), codes.astype(np.intp)] = 1.0
        return out
    out[:, 0] = np.where(gone, constant(column), codes)
    if column.missing is not None:
        out[:, 1] = gone
    return out


def encode_labels(column: Column, values: Any) -> NDArray[np.int64]:
    """Codes of the label's cells, (n,)."""
    codes = _codes(column, values, (), _label_reader(column))
    if np.isnan(codes).any():
        row = int(np.flatnonzero(np.isnan(codes))[0])
        raise CellError(column.name, row, "the label is missing; remove such records first")
    return codes.astype(np.int64)


def encode_frame(table: TableDomain, frame: Any) -> NDArray[np.float32]:
    """Encode the feature columns of a DataFrame, an Arrow table or a batch: (n, width) in [0, 1]."""
    names = list(frame.column_names) if hasattr(frame, "column_names") else list(frame.columns)
    parts = []
    for column in table.features:
        if names.count(column.name) != 1:
            how = "is missing" if column.name not in names else "is there twice"
            raise UserError(f"column {column.name!r} {how}; the columns are {_some(tuple(map(str, names)))}")
        parts.append(encode_column(column, frame[column.name], table.missing))
    return np.hstack(parts)


@dataclass(frozen=True)
class Survey:
    """What a column's cells look like against its declaration: not private, for the curator's eyes."""

    cells: int
    missing: int
    outside: int  # numbers and dates beyond the bounds
    refused: dict[str, int]  # texts that the declaration does not allow, with how often each occurs


def survey_column(column: Column, values: Any, missing: tuple[str, ...]) -> Survey:
    """Count the cells that are missing, outside the bounds, or refused; nothing is raised."""
    array = _arrow(column, values)
    _check_type(column, array)
    counted = array.value_counts()
    read = _label_reader(column) if column.kind == "label" else _reader(column, missing)
    gone = outside = 0
    refused: dict[str, int] = {}
    for value, count in zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True):
        text = cell_text(value)
        if text is None or text in missing:
            gone += count
            continue
        try:
            position = read(text)
        except _RefusedError:
            refused[text] = refused.get(text, 0) + count
            continue
        if math.isnan(position):
            gone += count
            continue
        if column.kind in ("numeric", "date") and position in (0.0, 1.0):
            outside += count * (not _inside(column, text))
    return Survey(len(array), gone, outside, refused)


def _inside(column: Column, text: str) -> bool:
    return column.number(column.lower) <= _value(column, text) <= column.number(column.upper)


class _RefusedError(Exception):
    pass


def constant(column: Column) -> float:
    """Return where a missing cell is placed: at the declared constant, or at 0 beside its indicator."""
    if column.missing is None or column.missing == "category":
        return 0.0
    if column.kind in ("numeric", "date"):
        return column.position(column.number(column.missing))
    return column.levels.index(str(column.missing)) / (len(column.levels) - 1)


def _codes(column: Column, values: Any, missing: tuple[str, ...], read: Callable[[str], float]) -> Codes:
    array = _arrow(column, values)
    if column.kind == "numeric" and (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)):
        given = array.to_numpy(zero_copy_only=False)
        numbers = np.array(given, dtype=np.float64)
        if marks := marks_of(column, missing):
            as_kept = np.array([*marks])  # a mark is compared as precisely as the column keeps its numbers
            if given.dtype.kind == "f":
                with np.errstate(over="ignore"):
                    as_kept = as_kept.astype(given.dtype)
            numbers[np.isin(given, as_kept[np.isfinite(as_kept)])] = np.nan
        return _positions(column, numbers)
    _check_type(column, array)
    coded = array.dictionary_encode() if not pa.types.is_dictionary(array.type) else array
    texts = [cell_text(value) for value in coded.dictionary.to_pylist()]
    lookup = np.full(len(texts) + 1, np.nan)  # the last entry stands for null
    indices = np.asarray(coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False), dtype=np.intp)
    for code, text in enumerate(texts):
        if text is None or text in missing:
            continue
        try:
            lookup[code] = read(text)
        except _RefusedError as refused:
            rows = np.flatnonzero(indices == code)
            if rows.size:
                raise CellError(column.name, int(rows[0]), str(refused)) from None
    return np.asarray(lookup[indices])


def _arrow(column: Column, values: Any) -> Any:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pa.Array):
        return values
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError):  # a column of mixed types
        return pa.array([None if _absent(v) else str(v) for v in values], type=pa.string())


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _check_type(column: Column, array: Any) -> None:
    if pa.types.is_nested(array.type):
        reason = f"a cell holds one value, and the column's type is {array.type}; unpack it first"
        raise CellError(column.name, 0, reason)


def cell_text(value: Any) -> str | None:
    """Return the text of a cell as declarations spell it, or None if there is nothing in it."""
    if _absent(value):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").strip()
    return str(value).strip()


def _positions(column: Column, numbers: Codes) -> Codes:
    if np.isinf(numbers).any():
        row = int(np.flatnonzero(np.isinf(numbers))[0])
        raise CellError(column.name, row, "the value is infinite; values must be finite numbers")
    low, high = column.number(column.lower), column.number(column.upper)
    inside = np.clip(numbers, low, high) - low
    if column.scale == "log":
        return np.asarray(np.log1p(inside) / np.log1p(high - low))
    return np.asarray(inside / (high - low))


def _reader(column: Column, missing: tuple[str, ...]) -> Callable[[str], float]:
    """What turns the text of a cell into a code or a position in [0, 1], or NaN if it means missing."""
    match column.kind:
        case "numeric" | "date":
            marks = marks_of(column, missing)

            def place(text: str) -> float:
                value = _value(column, text)
                return math.nan if value in marks else column.position(value)

            return place
        case "categorical":
            return _category(column)
        case _:
            known = (
                column.truth() if column.kind == "boolean" else {v: i for i, v in enumerate(column.levels)}
            )
            top = max(known.values())
            folded = column.kind == "boolean" and not column.values

            def read(text: str) -> float:
                key = text.lower() if folded else text
                if key not in known:
                    raise _RefusedError(f"unknown value {text!r}; the column has {_some(tuple(known))}")
                return known[key] / top

            return read


def _label_reader(column: Column) -> Callable[[str], float]:
    names = {name: float(code) for code, name in enumerate(column.classes)}
    known = names | {text: names[name] for text, name in column.aliases}

    def read(text: str) -> float:
        if text not in known:
            raise _RefusedError(f"unknown label {text!r}; the classes are {_some(column.classes)}")
        return known[text]

    return read


def marks_of(column: Column, missing: tuple[str, ...]) -> frozenset[float]:
    """The numbers (or days) that mean missing, so that -999 is one in text, as -999.0 and as a number."""
    marks = set()
    for text in missing:
        with contextlib.suppress(_RefusedError):
            marks.add(_value(column, text))
    return frozenset(marks)


def _value(column: Column, text: str) -> float:
    """The number, or the day, that a cell's whole text is."""
    if column.kind == "date":
        return _day(column, text)
    try:
        value = plain_number(text)
    except ValueError:
        raise _RefusedError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise _RefusedError(f"{text!r} is not a finite number")
    return value


def _day(column: Column, text: str) -> int:
    try:
        if column.format:
            return datetime.datetime.strptime(text, column.format).date().toordinal()
        return iso_day(text)
    except ValueError:
        raise _RefusedError(f"{text!r} is not a date written like {column.format or '2024-05-31'}") from None


def _category(column: Column) -> Callable[[str], float]:
    (exact, ranges), rest = column.category_ranges()

    def read(text: str) -> float:
        code = exact.get(text)
        if code is None and ranges:
            try:
                whole = math.floor(plain_number(text))
            except (ValueError, OverflowError):
                whole = None
            if whole is not None:
                code = next((c for low, high, c in ranges if low <= whole <= high), None)
        if code is None:
            code = rest
        if code is None:
            raise _RefusedError(
                f"unknown category {text!r}; the column has {_some(column.categories)} "
                '(other = "NAME" in the domain would take in the rest)'
            )
        return float(code)

    return read


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
