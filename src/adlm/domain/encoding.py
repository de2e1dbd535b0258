"""Encoding of declared columns as numbers: each number depends on its own cell alone.

Libraries give each column one type, and one value can change it: a missing value turns integers into
floats, a text turns numbers into objects. So nothing is inferred here. The rules of reading give the same
result for every type that can hold a value. Where no such rule exists (is 1.0 in a categorical column "1" or
"1.0"?) the value is refused.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import math
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from adlm.domain.columns import BOUNDED, Column, day_of, iso_day, plain_number
from adlm.domain.domain import show
from adlm.domain.table import TableDomain
from adlm.errors import UserError

# ---- The cells of a column, one by one, whatever type a library gave the column.

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


# ---- Cells as numbers: a position in [0, 1], or the code of a category.

Compact = NDArray[Any]  # float32 positions, or integer codes of categories
TARGET_UNIT = 1 << 20  # grid steps between the bounds of a target
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

    def __add__(self, other: Survey) -> Survey:
        both = dict(Counter(self.refused) + Counter(other.refused))
        return Survey(
            self.cells + other.cells, self.missing + other.missing, self.outside + other.outside, both
        )


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
        elif column.kind in BOUNDED and code in (0.0, 1.0):
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
    if column.kind in BOUNDED:
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
