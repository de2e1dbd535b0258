"""Rows of private CSV files: the declared dialect, whole lines, errors with row numbers."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc
from pyarrow import csv as arrow_csv

from adlm.data.files import UNREADABLE, DataFile, Raw, check_header, explain, opened
from adlm.domain.table import TableDomain
from adlm.errors import UserError

# ---- Rows of a CSV file: where each one ends, and whether it is valid, without inference from records.
#
# A row is a line, whatever its cells hold: an unclosed quote ends with its line and cannot swallow the rows
# after it. Only a file that is declared to have `newlines_in_values` has rows of several lines. A row must
# have as many cells as the header (or the domain) has columns, and quotes only around whole cells, doubled
# inside them; any other row is bad. No bad row is ever dropped: it is an error, or a record of missing
# values.

DELIMITERS = (",", ";", "\t", "|")
LONGEST = 1 << 26  # bytes of a row
_LF, _CR = 10, 13
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Dialect:
    """The dialect of a CSV file; `header` has the names of its header row, if it has one."""

    delimiter: str
    quote: str
    columns: int
    header: tuple[str, ...] = ()
    newlines_in_values: bool = False


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a file.

    Attributes
    ----------
    data : the bytes of the valid rows, each with its line end.
    whole : (n,) whether each row is valid.
    cells : (n,) how many cells each row has; -1 where a quote is out of place.
    blank : (n,) which rows are lines without any character.
    """

    data: bytes
    whole: NDArray[np.bool_]
    cells: NDArray[np.int64]
    blank: NDArray[np.bool_]

    def upto(self, n: int) -> Rows:
        """The first n rows, if they include all valid ones."""
        return Rows(self.data, self.whole[:n], self.cells[:n], self.blank[:n])


class Lines:
    """A stream of bytes, read in blocks of rows; its first lines can be read one by one."""

    def __init__(self, path: object, stream: Any, block: int) -> None:
        self.path, self._stream, self._block = path, stream, block
        self._rest = b""
        while len(self._rest) < len(_BOM) and (more := self._read()):
            self._rest += more
        if self._rest[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise UserError(f"{path} is UTF-16 text; save it with UTF-8 encoding")
        self._rest = self._rest.removeprefix(_BOM)

    def _read(self) -> bytes:
        return bytes(self._stream.read(self._block))

    def header(self, comment: str | None) -> str:
        """Read the first line that is neither empty nor a comment."""
        while True:
            line = self._line()
            if not line:
                raise UserError(f"{self.path}: the file is empty; give at least one record")
            try:
                text = line.decode("utf-8").rstrip("\r\n").replace("\0", "")
            except UnicodeDecodeError:
                raise UserError(
                    f"{self.path}, first line: the text is not UTF-8; save it with UTF-8 encoding"
                ) from None
            if text.strip() and not (comment and text.startswith(comment)):
                return text

    def skip_comments(self, comment: str) -> None:
        """Skip the lines at the top that start with a mark. A record could start with it too."""
        while (line := self._line()) and line.startswith(comment.encode()):
            pass
        self._rest = line + self._rest

    def _line(self) -> bytes:
        """Read one line with its end; empty at the end of the file."""
        while True:
            found = [at for at in (self._rest.find(b"\n"), self._rest.find(b"\r")) if at >= 0]
            end = min(found, default=-1)
            if 0 <= end < len(self._rest) - 1 or len(self._rest) > LONGEST:
                break
            more = self._read()  # a line feed may follow a carriage return
            if not more:
                end = end if end >= 0 else len(self._rest) - 1
                break
            self._rest += more
        end += self._rest[end : end + 2] == b"\r\n"
        line, self._rest = self._rest[: end + 1], self._rest[end + 1 :]
        return line

    def rows(self, dialect: Dialect) -> Iterator[Rows]:
        """Yield the remaining rows, block by block."""
        more = True
        while more:
            new = self._read()
            more = bool(new)
            data = self._rest + new
            if not more and data and data[-1:] not in (b"\n", b"\r"):
                data += b"\n"
            ends = _row_ends(np.frombuffer(data, np.uint8), dialect, last=not more)
            taken = int(ends[-1]) + 1 if len(ends) else 0
            self._rest = data[taken:]
            if taken:
                yield _checked(data[:taken], ends, dialect)
            if len(self._rest) > LONGEST:
                raise UserError(
                    f"{self.path}: a row is longer than {LONGEST >> 20} MiB; is it a CSV file, with every "
                    "quote closed?"
                )
        if self._rest:  # a quote was opened and never closed
            yield Rows(b"", np.zeros(1, np.bool_), np.full(1, -1), np.zeros(1, np.bool_))


def _row_ends(data: NDArray[np.uint8], dialect: Dialect, *, last: bool) -> NDArray[np.intp]:
    """Find where rows end: at a line feed, or at a carriage return without one."""
    ends = np.flatnonzero(data == _LF)
    returns = np.flatnonzero(data == _CR)
    if len(returns):
        known = returns[returns < len(data) - 1]
        lone = known[data[known + 1] != _LF]
        if last and returns[-1] == len(data) - 1:
            lone = np.append(lone, returns[-1])
        ends = np.sort(np.concatenate([ends, lone]))
    if dialect.newlines_in_values and dialect.quote:
        quotes = np.flatnonzero(data == ord(dialect.quote))
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return ends


def _checked(raw: bytes, ends: NDArray[np.intp], dialect: Dialect) -> Rows:
    """Count the cells of rows that end at the given bytes, and keep the valid ones."""
    data = np.frombuffer(raw, np.uint8)
    starts = np.concatenate([np.zeros(1, np.intp), ends[:-1] + 1])
    stops = ends - ((data[ends] == _LF) & (ends > starts) & (data[ends - 1] == _CR))
    between = np.flatnonzero(data == ord(dialect.delimiter))
    cells = np.diff(np.searchsorted(between, ends), prepend=0) + 1
    if dialect.quote and dialect.quote.encode() in raw:
        quotes = np.flatnonzero(data == ord(dialect.quote))
        each = np.diff(np.searchsorted(quotes, ends), prepend=0)  # quotes of each row
        row = np.repeat(np.arange(len(ends)), each)
        opens = (np.arange(len(quotes)) - np.repeat(np.cumsum(each) - each, each)) % 2 == 0
        # delimiters between an opening and a closing quote are text
        before = np.searchsorted(between, quotes)
        inside = np.bincount(row, np.where(opens, -before, before), minlength=len(ends))
        placed = _placed(data, quotes, opens, starts[row], stops[row], dialect)
        cells = np.where(each % 2 == 1, -1, cells - inside.astype(np.int64))
        cells[row[~placed]] = -1
    valid = cells == dialect.columns
    good = raw if valid.all() else data[np.repeat(valid, ends - starts + 1)].tobytes()
    return Rows(good, valid, cells, stops == starts)


def _placed(
    data: NDArray[np.uint8],
    quotes: NDArray[np.intp],
    opens: NDArray[np.bool_],
    starts: NDArray[np.intp],
    stops: NDArray[np.intp],
    dialect: Dialect,
) -> NDArray[np.bool_]:
    """Whether each quote opens or closes a cell of its row, or is doubled."""
    quote, delimiter = ord(dialect.quote), ord(dialect.delimiter)
    previous, following = data[quotes - 1], data[quotes + 1]
    first = (quotes == starts) | (previous == delimiter) | (previous == quote)
    last = (quotes + 1 == stops) | (following == delimiter) | (following == quote)
    return np.asarray(np.where(opens, first, last), dtype=np.bool_)


def dialect_of(lines: Lines, table: TableDomain) -> Dialect:
    """Return the dialect of a file: as declared, or inferred from its header row, or the default.

    Without a header row nothing is inferred from the file, because its first line is a private record.
    """
    if not table.header:
        return Dialect(
            table.delimiter or ",",
            '"' if table.quote is None else table.quote,
            len(table.columns),
            newlines_in_values=table.newlines_in_values,
        )
    line = lines.header(table.comment)
    quote = table.quote if table.quote is not None else "'" if line.startswith("'") else '"'
    names = {column.name for column in table.columns}

    def known(delimiter: str) -> int:
        return sum(cell.strip() in names for cell in split(line, delimiter, quote))

    delimiter = table.delimiter or max((mark for mark in DELIMITERS if mark != quote), key=known)
    header = tuple(split(line, delimiter, quote))
    return Dialect(delimiter, quote, len(header), header, table.newlines_in_values)


def split(line: str, delimiter: str, quote: str) -> list[str]:
    """Split a header row into cells."""
    if not quote:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, quotechar=quote), [])
    except csv.Error as error:
        raise UserError(f"the header row cannot be read ({error})") from None


# ---- Rows of private CSV files: the declared dialect, whole lines, errors with row numbers.

BLOCK = 1 << 20  # bytes parsed at once


@dataclass(frozen=True)
class CsvPiece:
    """A whole CSV file."""

    file: DataFile
    size: int = 0

    def raw(
        self,
        table: TableDomain,
        wanted: Sequence[str],
        rows: int,
        *,
        lenient: bool = False,
        block: int | None = None,
    ) -> Iterator[Raw]:
        """Yield columns as Arrow arrays of texts.

        Parameters
        ----------
        table : the declared columns and dialect.
        wanted : names of columns.
        rows : how many at a time, at most.
        lenient, block : as in `reading.read_batches`.
        """
        decimals = table.decimal == ","
        commas = {c.name for c in table.columns if decimals and c.kind in ("numeric", "target")}
        file = self.file
        try:
            with opened(file) as (stream, place):
                lines = Lines(file, stream, block or BLOCK)
                dialect = dialect_of(lines, table)
                names = [name.strip() for name in dialect.header] or [column.name for column in table.columns]
                check_header(file, names, wanted, shown=False)
                if lenient and table.comment and not table.header:
                    lines.skip_comments(table.comment)
                first, before = 1, 0
                for part in _valid_rows(file, table, dialect, lines, lenient):
                    cells = _parsed(file, part, dialect, [names.index(name) for name in wanted])
                    for start in range(0, len(part.whole), rows):
                        columns = {
                            name: _utf8(file, name, column.slice(start, rows), first + start)
                            for name, column in zip(wanted, cells, strict=True)
                        }
                        for name in commas.intersection(columns):
                            columns[name] = pc.replace_substring(columns[name], ",", ".")
                        count, now = min(rows, len(part.whole) - start), place()
                        yield Raw(columns, count, f"{file}, row", first + start, size=now - before)
                        before = now
                    first += len(part.whole)
        except UNREADABLE as error:
            raise UserError(f"{file}: {explain(error)}") from None


def _valid_rows(
    path: DataFile, table: TableDomain, dialect: Dialect, lines: Lines, lenient: bool
) -> Iterator[Rows]:
    """Yield a file's rows; a bad one is an error, unless declared to be a record of missing values.

    A table has two columns or more, so an empty line is a bad row, also at the end of the file: if it were
    skipped there, a last record that is replaced by an empty line would change the number of records.
    """
    first, empty = 1, 0
    for block in lines.rows(dialect):
        if table.bad_rows == "missing":
            yield block
            continue
        last = len(block.whole)
        if lenient:
            last = int(np.max(np.flatnonzero(~block.blank), initial=-1)) + 1
        if empty and last:
            raise UserError(f"{path}: row {first - empty} is empty; remove the line")
        for row in np.flatnonzero(~block.whole[:last])[:1]:
            why = "is empty; remove the line" if block.blank[row] else None
            why = why or _reason(int(block.cells[row]), table, dialect)
            raise UserError(f"{path}: row {first + row} {why}")
        empty += len(block.whole) - last
        first += len(block.whole)
        if last:
            yield block.upto(last)


def _reason(cells: int, table: TableDomain, dialect: Dialect) -> str:
    if cells < 0:
        return (
            f"has a quote {dialect.quote} that is left open or inside a cell; close it, double it, or "
            'declare quote = "" in the domain if quotes are plain text'
        )
    hint = ""
    if not table.header and table.comment:
        hint = "; comment lines of a file without a header row are not skipped, remove them"
    elif not table.header and table.delimiter is None and cells == 1:
        hint = "; declare delimiter in the domain if it is not a comma"
    return f"has {cells} cells, {dialect.columns} are expected{hint}"


def _parsed(path: DataFile, block: Rows, dialect: Dialect, wanted: Sequence[int]) -> list[Any]:
    """Parse valid rows, and insert an empty row for each bad one."""
    names = [str(at) for at in range(dialect.columns)]
    if not block.data:
        return [pa.nulls(len(block.whole), pa.binary()) for _ in wanted]
    table = arrow_csv.read_csv(
        pa.py_buffer(block.data),
        read_options=arrow_csv.ReadOptions(
            use_threads=False, block_size=len(block.data) + 1, column_names=names
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote or False,
            newlines_in_values=dialect.newlines_in_values,
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            include_columns=[str(at) for at in dict.fromkeys(wanted)],
            strings_can_be_null=False,
        ),
    )
    if table.num_rows != block.whole.sum():
        raise UserError(f"{path}: the file cannot be read (its rows are not those of a CSV file)")
    columns = [table.column(str(at)) for at in wanted]
    if block.whole.all():
        return columns
    places = pa.array(np.cumsum(block.whole) - 1, mask=~block.whole)
    return [column.take(places) for column in columns]


def _utf8(path: DataFile, name: str, cells: Any, first: int) -> Any:
    try:
        return cells.cast(pa.string())
    except pa.ArrowInvalid:
        for row, cell in enumerate(cells.to_pylist()):
            try:
                (cell or b"").decode("utf-8")
            except UnicodeDecodeError:
                raise UserError(
                    f"{path}, row {first + row}, column {name!r}: the text is not UTF-8; "
                    "save the file with UTF-8 encoding"
                ) from None
        raise
