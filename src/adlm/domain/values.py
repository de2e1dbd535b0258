"""The values of a column, one by one: how a value is read never depends on the others.

Libraries give each column one type, and one value can change it: a missing value turns integers into
floats, a text turns numbers into objects. So nothing is inferred here. The rules of reading give the same
result for every type that can hold a value. Where no such rule exists (is 1.0 in a categorical column "1" or
"1.0"?) the value is refused.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from adlm.domain.columns import Column, day_of
from adlm.errors import UserError

AS_TEXT = "read the column as text (dtype=str in pandas)"
_NOTHING = ("NAType", "NaTType")  # missing values of pandas, without importing it
_PLAIN_NUMBER = r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?$"
_FAR = "the time is outside the years 1 to 9999, or finer than a microsecond; give it as a date"
_PLAIN = (str, int, bool, float)  # types whose equal values are interchangeable


class RefusedError(Exception):
    """A cell that cannot be read, with the reason as a sentence."""


class CellError(UserError):
    """A cell that its column's declaration does not allow; `row` counts from 0 in the input."""

    def __init__(self, column: str, row: int, reason: str) -> None:
        reason = re.sub(r"('[^']{60})[^']{20,}'", r"\1…'", reason)  # long values are shortened
        super().__init__(f"row {row + 1}, column {column!r}: {reason}")
        self.column, self.row, self.reason = column, row, reason


@dataclass(frozen=True, eq=False)
class ColumnValues:
    """A column as its distinct cells, None for a missing one, and the index of each row's cell."""

    distinct: list[Any]
    rows: NDArray[np.intp]


def numbers_of(values: Any) -> NDArray[np.float64] | None:
    """(n,) doubles if the column's type is integer or floating-point, NaN where missing."""
    array = _typed(values)
    if isinstance(array, pa.Array | pa.ChunkedArray):
        if pa.types.is_floating(array.type) or pa.types.is_integer(array.type):
            return _doubles(array)
        return None
    if isinstance(array, np.ndarray) and array.dtype.kind in "iuf":
        return np.array(array, dtype=np.float64)
    return None


def is_text(values: Any) -> bool:
    """Whether the column is an Arrow array of texts."""
    return isinstance(values, pa.Array | pa.ChunkedArray) and (
        pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    )


def numbers_in(texts: Any) -> NDArray[np.float64]:
    """(n,) doubles of an Arrow array of texts, NaN for each cell that is not a plain number.

    Plain numbers are digits with a sign, a point and an exponent, which Arrow rounds correctly, as Python
    does. Every other cell (spaces around a number, other digits, an infinity, a missing value) is read by
    itself, so that reading a cell never depends on the others.
    """
    try:
        numbers = pc.cast(texts, pa.float64())
    except pa.ArrowInvalid:
        plain = pc.match_substring_regex(texts, _PLAIN_NUMBER)
        numbers = pc.cast(pc.if_else(plain, texts, pa.scalar(None, texts.type)), pa.float64())
    doubles = _doubles(numbers)
    doubles[np.isinf(doubles)] = np.nan
    return doubles


def _doubles(numbers: Any) -> NDArray[np.float64]:
    """(n,) doubles of an Arrow array of numbers, NaN where a cell is missing.

    `to_numpy` imports pandas if installed, which is slow, so it is used for missing cells alone.
    """
    chunks = numbers.chunks if isinstance(numbers, pa.ChunkedArray) else [numbers]
    parts = [c.to_numpy(zero_copy_only=False) if c.null_count else np.from_dlpack(c) for c in chunks]
    return np.concatenate([np.zeros(0), *parts]).astype(np.float64, copy=False)


def column_values(values: Any) -> ColumnValues:
    """Split a column into distinct cells; its type is never inferred from them."""
    array = _typed(values)
    if isinstance(array, pa.ChunkedArray):
        return _joined([_arrow_values(chunk) for chunk in array.chunks])
    if isinstance(array, pa.Array):
        return _arrow_values(array)
    if _is_category(array):
        distinct = [plain(cell) for cell in array.categories]
        codes = np.asarray(array.codes, dtype=np.intp)
        return ColumnValues([*distinct, None], np.where(codes < 0, len(distinct), codes))
    if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
        unique, rows = np.unique(array, return_inverse=True)
        return ColumnValues([plain(cell) for cell in unique.tolist()], rows.astype(np.intp).reshape(-1))
    return _listed(array.tolist() if isinstance(array, np.ndarray) else array)


def _typed(values: Any) -> Any:
    """Return the column's underlying array: NumPy, Arrow, a pandas category, or a list of Python values."""
    if isinstance(values, pa.Array | pa.ChunkedArray | list | tuple):
        return values
    if not isinstance(getattr(values, "dtype", None), np.dtype):
        inner = getattr(values, "array", values)  # a pandas Series around an extension array
        if _is_category(inner):
            return inner
        if hasattr(inner, "__arrow_array__"):
            return pa.array(inner, from_pandas=True)
        if not hasattr(values, "__array__"):
            return values
    array = np.asarray(values)
    if array.dtype.kind != "M":
        return array
    try:
        return pa.array(array, from_pandas=True)
    except pa.ArrowNotImplementedError:  # years or months
        return list(array)


def _is_category(values: Any) -> bool:
    return hasattr(values, "categories") and hasattr(values, "codes")


def _arrow_values(array: Any) -> ColumnValues:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _listed(_cells(array))
    if pa.types.is_nested(kind):
        raise RefusedError(f"a cell holds one value, and the column's type is {kind}; unpack it first")
    if pa.types.is_dictionary(kind):
        coded = array
    else:
        try:
            coded = array.dictionary_encode()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            return _listed(_cells(array))
    distinct = [plain(cell) for cell in _cells(coded.dictionary)]
    rows = coded.indices.fill_null(len(distinct)) if coded.indices.null_count else coded.indices
    return ColumnValues([*distinct, None], np.from_dlpack(rows).astype(np.intp))


def _cells(array: Any) -> list[Any]:
    """Python values of an Arrow array; a cell that Python cannot hold, such as a far time, stays Arrow's."""
    try:
        return list(array.to_pylist())
    except (OverflowError, ValueError):
        return [_cell(cell) for cell in array]


def _cell(cell: Any) -> Any:
    try:
        return cell.as_py()
    except (OverflowError, ValueError):
        return cell


def _listed(values: Iterable[Any]) -> ColumnValues:
    """Python values, unchanged; equal ones of a plain type are stored once."""
    distinct: list[Any] = []
    indices: dict[tuple[type, Any], int] = {}
    rows = []
    for value in values:
        cell = plain(value)
        key = (type(cell), cell)
        at = indices.get(key, -1) if isinstance(cell, _PLAIN) or cell is None else -1
        if at < 0:
            at = len(distinct)
            distinct.append(cell)
            if isinstance(cell, _PLAIN) or cell is None:
                indices[key] = at
        rows.append(at)
    return ColumnValues(distinct, np.array(rows, dtype=np.intp))


def _joined(parts: list[ColumnValues]) -> ColumnValues:
    distinct: list[Any] = []
    rows = [np.zeros(0, dtype=np.intp)]
    for part in parts:
        rows.append(part.rows + len(distinct))
        distinct.extend(part.distinct)
    return ColumnValues(distinct, np.concatenate(rows))


def plain(value: Any) -> Any:
    """Convert a cell to a plain Python value; None if it is empty."""
    if type(value) is str:
        return value.strip()
    if value is None or type(value).__name__ in _NOTHING:
        return None
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return None
        year = 1970 + int(value.astype("datetime64[Y]").astype(np.int64))
        return (
            value.astype("datetime64[us]").item() if datetime.MINYEAR <= year <= datetime.MAXYEAR else value
        )
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, decimal.Decimal) and value.is_nan():
        return None
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8").strip()
        except UnicodeDecodeError:
            return value
    return value.strip() if isinstance(value, str) else value


def text_in(column: Column, cell: Any) -> str:
    """Read a cell of a column whose values are texts.

    An integer is its digits. A value whose spelling depends on the column's type is refused.
    """
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        if column.kind in ("categorical", "person"):
            raise RefusedError(f"{cell} in a {column.kind} column is neither a text nor a number; {AS_TEXT}")
        return "true" if cell else "false"
    if isinstance(cell, int | uuid.UUID):
        return str(cell)
    if isinstance(cell, float | decimal.Decimal):
        if column.kind == "boolean" and not column.values and cell in (0, 1):
            return str(int(cell))
        raise RefusedError(
            f"the number {cell} in a {column.kind} column has more than one spelling, which depends on the "
            f"type that the whole column has; {AS_TEXT}"
        )
    raise _unreadable(column, cell)


def number_in(cell: Any) -> float:
    """Read a cell that is a number of any type; ValueError if it is not one."""
    if isinstance(cell, int | float | decimal.Decimal) and not isinstance(cell, bool):
        try:
            return float(cell)
        except OverflowError:
            return math.inf
    raise ValueError(cell)


def day_in(cell: Any) -> int | None:
    """Read a cell that is a date or a time; None if it is something else."""
    if isinstance(cell, datetime.datetime):
        try:
            return day_of(cell)
        except ValueError:
            raise RefusedError(_FAR) from None
    return cell.toordinal() if isinstance(cell, datetime.date) else None


def _unreadable(column: Column, cell: Any) -> RefusedError:
    if isinstance(cell, list | tuple | dict | set | np.ndarray):
        return RefusedError(f"a cell holds one value (got a {type(cell).__name__}); unpack it first")
    if isinstance(cell, pa.Scalar | np.datetime64):
        return RefusedError(_FAR)
    if isinstance(cell, bytes):
        return RefusedError("the text is not UTF-8; save it with UTF-8 encoding")
    return RefusedError(f"a {column.kind} column cannot hold a {type(cell).__name__}; {AS_TEXT}")


def cell_text(value: Any) -> str | None:
    """Format a cell as in a domain file, or None if it is empty; for drafts alone."""
    cell = plain(value)
    if cell is None:
        return None
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return cell.isoformat() if isinstance(cell, datetime.date) else str(cell)


def person_texts(column: Column, values: Any, missing: tuple[str, ...] = ()) -> list[str]:
    """Return the person of each record, (n,); empty where none is named."""
    try:
        cells = column_values(values)
    except RefusedError as refused:
        raise CellError(column.name, 0, str(refused)) from None
    names = []
    for code, cell in enumerate(cells.distinct):
        try:
            text = "" if cell is None else text_in(column, cell)
        except RefusedError as refused:
            rows = np.flatnonzero(cells.rows == code)
            if rows.size:
                raise CellError(column.name, int(rows[0]), str(refused)) from None
            text = ""
        names.append("" if text in missing else text)
    return [names[code] for code in cells.rows.tolist()]
