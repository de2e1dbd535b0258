"""Private tables read in batches: CSV and Parquet, whatever their size, with every mistake named.

Rows are counted from 1, without the header. Memory holds one batch; if records belong to persons, it also
holds how many records of each person were seen, and moves that to a temporary file when there are many.
"""

from __future__ import annotations

import contextlib
import csv
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from adlm.curator.persons import Persons
from adlm.errors import UserError
from adlm.public.encoding import CellError, encode_column, encode_labels
from adlm.public.tables import TableDomain

ROWS = 8192
BLOCK = 1 << 20  # bytes parsed at once; Arrow reads some 32 blocks ahead, whatever the size of the file
DELIMITERS = (",", ";", "\t", "|")
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, eq=False)
class Encoded:
    """A batch of encoded records.

    Attributes
    ----------
    x : (n, width) float32 in [0, 1].
    y : (n,) class codes; empty when labels were not asked for.
    first : the number of the first row of the batch in the file.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    first: int


def read_batches(
    path: Path | str, table: TableDomain, *, labels: bool = True, bounded: bool = True, rows: int = ROWS
) -> Iterator[Encoded]:
    """Encode a file's records, batch by batch.

    Parameters
    ----------
    labels : whether the label is needed; a file to predict has none.
    bounded : whether to keep at most the declared number of records of each person: the first ones in the
        order of the file.

    Formal guarantees
    -----------------
    An encoded record depends on its own cells and on the declaration. Which of a person's records are kept
    depends on that person's records alone, so replacing one person changes at most `table.contributions`
    records of what is read.
    """
    path = Path(path)
    wanted = [c.name for c in table.features] + ([table.label.name] if labels else [])
    person = table.person if bounded else None
    if person is not None:
        wanted.append(person.name)
    first = 1
    with contextlib.ExitStack() as stack:
        seen = stack.enter_context(Persons(person.name, person.records)) if person is not None else None
        for batch in raw_batches(path, table, wanted, rows):
            with told(path, first):
                if seen is not None and person is not None:
                    keep = seen.keep(batch[person.name])
                    size = len(keep)
                else:
                    keep, size = None, len(batch[wanted[0]])
                x = np.hstack([encode_column(c, batch[c.name], table.missing) for c in table.features])
                y = encode_labels(table.label, batch[table.label.name]) if labels else np.zeros(0, np.int64)
            if keep is not None:
                x, y = x[keep], y[keep] if labels else y
            if len(x):
                yield Encoded(x, y, first)
            first += size


@contextlib.contextmanager
def told(path: Path, first: int) -> Iterator[None]:
    """Tell a mistake in a cell with the file and its row."""
    try:
        yield
    except CellError as error:
        raise UserError(f"{path}, row {first + error.row}, column {error.column!r}: {error.reason}") from None


def raw_batches(
    path: Path, table: TableDomain, wanted: Sequence[str], rows: int = ROWS
) -> Iterator[dict[str, Any]]:
    """Give the wanted columns of a file as Arrow arrays, a few rows at a time."""
    if not path.is_file():
        raise UserError(f"there is no file {path}; give a CSV or Parquet file")
    if path.suffix.lower() in PARQUET:
        yield from _parquet(path, wanted, rows)
    else:
        yield from _csv(path, table, wanted, rows)


def _parquet(path: Path, wanted: Sequence[str], rows: int) -> Iterator[dict[str, Any]]:
    try:
        with parquet.ParquetFile(path) as file:
            check_header(path, file.schema_arrow.names, wanted)
            for batch in file.iter_batches(batch_size=rows, columns=list(wanted)):
                yield {name: batch.column(name) for name in wanted}
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a whole Parquet file ({_first_line(error)})") from None


def check_header(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a file with a missing or doubled column."""
    for name in wanted:
        if name not in names:
            have = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            raise UserError(f"{path} has no column {name!r}; its columns are {have}")
        if list(names).count(name) > 1:
            raise UserError(f"{path} has the column {name!r} twice; remove or rename one")


def _csv(path: Path, table: TableDomain, wanted: Sequence[str], rows: int) -> Iterator[dict[str, Any]]:
    dialect = sniff(path, table)
    ragged: list[str] = []

    def invalid(row: Any) -> str:
        ragged.append(f"row {_row(row.number, table.header)} has {row.actual_columns} cells, "
                      f"{row.expected_columns} are expected")  # fmt: skip
        return "error"

    names = [column.name for column in table.columns]
    try:
        with opened(path, table.comment) as stream:
            reader = arrow_csv.open_csv(
                stream,
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, block_size=BLOCK, column_names=None if table.header else names
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=dialect.delimiter,
                    quote_char=dialect.quote,
                    newlines_in_values=True,
                    invalid_row_handler=invalid,
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={name: pa.binary() for name in (dialect.header or names)},
                    strings_can_be_null=False,
                ),
            )
            header = [name.strip() for name in reader.schema.names]
            check_header(path, header, wanted)
            at = {name: header.index(name) for name in wanted}
            first = 1
            for block in reader:
                for start in range(0, block.num_rows, rows):
                    part = block.slice(start, rows)
                    yield {name: _utf8(path, name, part.column(at[name]), first + start) for name in wanted}
                first += block.num_rows
    except (pa.ArrowException, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: {ragged[0] if ragged else _explain(error)}") from None


def _row(number: int | None, header: bool) -> str:
    return "?" if number is None else str(number - 1 if header else number)


def _utf8(path: Path, name: str, cells: Any, first: int) -> Any:
    try:
        return cells.cast(pa.string())
    except pa.ArrowInvalid:
        for row, cell in enumerate(cells.to_pylist()):
            try:
                cell.decode("utf-8")
            except UnicodeDecodeError:
                raise UserError(
                    f"{path}, row {first + row}, column {name!r}: the text is not UTF-8; "
                    "save the file with UTF-8 encoding"
                ) from None
        raise


def _explain(error: BaseException) -> str:
    text = _first_line(error)
    if "Empty CSV" in text:
        return "the file is empty; give at least one record"
    return f"the file cannot be read ({text})"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written."""

    delimiter: str
    quote: str
    header: tuple[str, ...]


def sniff(path: Path, table: TableDomain) -> Dialect:
    """Find the delimiter that brings out the declared columns best; nothing is guessed from the values."""
    names = {column.name for column in table.columns}
    line = first_line(path, table.comment)
    quote = "'" if line.startswith("'") else '"'

    def cells(delimiter: str) -> list[str]:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, quotechar=quote), [])]

    def fit(delimiter: str) -> int:
        row = cells(delimiter)
        return sum(cell in names for cell in row) if table.header else -abs(len(row) - len(table.columns))

    best = max(DELIMITERS, key=fit)
    raw = tuple(next(csv.reader([line], delimiter=best, quotechar=quote), [])) if table.header else ()
    return Dialect(best, quote, raw)


def first_line(path: Path, comment: str | None) -> str:
    """Return the first line that is neither empty nor a comment."""
    try:
        with opened(path, comment) as stream:
            text = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(_Raw(stream))
            start = text.readline(1 << 20)
            while start and not start.strip():
                start = text.readline(1 << 20)
    except (pa.ArrowException, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: {_explain(error)}") from None
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{path} is UTF-16 text; save it with UTF-8 encoding")
    if not start.strip():
        raise UserError(f"{path}: the file is empty; give at least one record")
    try:
        return start.removeprefix(b"\xef\xbb\xbf").decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise UserError(f"{path}, first line: the text is not UTF-8; save it with UTF-8 encoding") from None


@contextlib.contextmanager
def opened(path: Path, comment: str | None = None) -> Iterator[Any]:
    """Open a file for reading bytes, unpacking it if its name says that it is compressed."""
    with contextlib.ExitStack() as stack:
        stream: Any
        suffix = path.suffix.lower()
        if suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            members = [m for m in archive.namelist() if m.lower().endswith((".csv", ".tsv", ".txt"))]
            if len(members) != 1:
                raise UserError(f"{path} holds {len(members)} text files; unpack it and name the one to read")
            stream = stack.enter_context(archive.open(members[0]))
        elif suffix in COMPRESSED:
            stream = stack.enter_context(pa.input_stream(str(path), compression=COMPRESSED[suffix]))
        else:
            stream = stack.enter_context(path.open("rb"))
        yield io.BufferedReader(_Uncommented(stream, comment.encode())) if comment else stream


class _Raw(io.RawIOBase):
    """An Arrow stream as a raw Python stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Uncommented(io.RawIOBase):
    """A stream without the lines that start with a comment mark."""

    def __init__(self, stream: Any, mark: bytes) -> None:
        self._lines: IO[bytes] = io.BufferedReader(_Raw(stream))
        self._mark, self._rest = mark, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            line = self._lines.readline()
            if not line:
                return 0
            self._rest = b"" if line.startswith(self._mark) else line
        data, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def read_labelled(path: Path | str, spec: Mapping[str, Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read a whole file of labelled records for the features that a certificate describes.

    Every record is read, whoever's it is: this is for evaluation, which is not private.
    """
    table = table_of(spec)
    batches = list(read_batches(path, table, bounded=False))
    if not batches:
        raise UserError(f"{path} holds no records; give at least one")
    return np.concatenate([b.x for b in batches]), np.concatenate([b.y for b in batches])


def table_of(spec: Mapping[str, Any]) -> TableDomain:
    """Return the declared table inside the description of a model's features."""
    if spec.get("name") != "tabular":
        raise UserError("this model was not made from a table; it cannot read a CSV or Parquet file")
    return TableDomain.from_dict(spec["table"])
