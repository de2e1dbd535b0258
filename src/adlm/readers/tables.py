"""Private tables read in batches: CSV and Parquet, whatever their size, with every mistake named.

Rows are counted from 1, without the header; every row is a record, and none is dropped. Memory holds one
batch; if records belong to persons, it also holds how many records of each person were seen, and moves that
to a temporary file when there are many.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from adlm.errors import UserError
from adlm.public.domain.encoding import CellError, encode_answer, encode_column
from adlm.public.domain.table import TableDomain
from adlm.public.features import TABLES
from adlm.readers.contributions import Contributions
from adlm.readers.csv_rows import Dialect, Lines, Rows, dialect_of
from adlm.readers.text_files import UNREADABLE, explain, opened, short

ROWS = 8192
BLOCK = 1 << 20  # bytes parsed at once
PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, eq=False)
class Encoded:
    """A batch of encoded records.

    Attributes
    ----------
    x : (n, width) float32 in [0, 1].
    y : (n,) class codes, or positions of a numeric target; empty when labels were not asked for.
    first : the number of the first row of the batch in the file.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    first: int


def read_batches(
    path: Path | str,
    table: TableDomain,
    *,
    labels: bool = True,
    bounded: bool = True,
    comments: bool = False,
    rows: int = ROWS,
    block: int | None = None,
) -> Iterator[Encoded]:
    """Encode a file's records, batch by batch.

    Parameters
    ----------
    labels : whether the label is needed; a file to predict has none.
    bounded : whether to keep at most the declared number of records of each person: the first ones in the
        order of the file.
    comments : whether lines at the top of a file without a header row that start with the declared mark are
        passed over. A first record could look like one, so this is for reading without privacy alone.
    rows, block : most records of a batch, and bytes of a CSV file parsed at once; no record depends on them.

    Formal guarantees
    -----------------
    An encoded record depends on its own row (a line, see `csv_rows`) and on the declaration; the header row
    of a CSV file and the schema of a Parquet file are public. Each row is one record or an error. Which of a
    person's records are kept depends on that person's records alone, so replacing one person changes at most
    `table.contributions` records of what is read.
    """
    path = Path(path)
    wanted = [c.name for c in table.features] + ([table.answer.name] if labels else [])
    person = table.person if bounded else None
    if person is not None:
        wanted.append(person.name)
    first = 1
    with contextlib.ExitStack() as stack:
        seen = stack.enter_context(Contributions(person, table.missing)) if person is not None else None
        for batch in raw_batches(path, table, wanted, rows, comments=comments, block=block):
            with naming_records(path, first):
                if seen is not None and person is not None:
                    keep = seen.keep(batch[person.name])
                    size = len(keep)
                else:
                    keep, size = None, len(batch[wanted[0]])
                x = np.hstack([encode_column(c, batch[c.name], table.missing) for c in table.features])
                y = encode_answer(table, batch[table.answer.name]) if labels else np.zeros(0, np.int64)
            if keep is not None:
                x, y = x[keep], y[keep] if labels else y
            if len(x):
                yield Encoded(x, y, first)
            first += size


def file_reader(
    path: Path | str, table: TableDomain
) -> Callable[[], Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]]:
    """Return what reads a file's encoded records and class codes in batches, from the start at each call."""
    return lambda: ((batch.x, batch.y) for batch in read_batches(path, table))


@contextlib.contextmanager
def naming_records(path: Path, first: int) -> Iterator[None]:
    """Tell a mistake in a cell with the file and its row."""
    try:
        yield
    except CellError as error:
        raise UserError(f"{path}, row {first + error.row}, column {error.column!r}: {error.reason}") from None


def raw_batches(
    path: Path,
    table: TableDomain,
    wanted: Sequence[str],
    rows: int = ROWS,
    *,
    comments: bool = False,
    block: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Give the wanted columns of a file as Arrow arrays, a few rows at a time.

    Parameters
    ----------
    path, table : the file and its declaration.
    wanted : columns.
    rows, block : records of a batch, and bytes parsed at once.
    comments : whether commented lines above the first record are passed over.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}; give a CSV or Parquet file")
    if path.suffix.lower() in PARQUET:
        yield from _parquet(path, wanted, rows)
    else:
        yield from _csv(path, table, wanted, rows, comments, block or BLOCK)


def _parquet(path: Path, wanted: Sequence[str], rows: int) -> Iterator[dict[str, Any]]:
    try:
        with parquet.ParquetFile(path) as file:
            check_header(path, file.schema_arrow.names, wanted)
            for batch in file.iter_batches(batch_size=rows, columns=list(wanted)):
                yield {name: batch.column(name) for name in wanted}
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a whole Parquet file ({short(error)})") from None


def check_header(path: Path, names: Sequence[str], wanted: Sequence[str], *, shown: bool = True) -> None:
    """Refuse a file with a missing or doubled column; its first line is not `shown` if it may be a record.

    Parameters
    ----------
    path : the file.
    names, wanted : columns it has, and those it must have.
    shown : whether a sentence may show its first line.
    """
    for name in wanted:
        if name not in names:
            have = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            naming_records = (
                f"its columns are {have}" if shown else "if that line is a record, set header = false"
            )
            where = "" if shown else " in its first line"
            raise UserError(f"{path} has no column {name!r}{where}; {naming_records}")
        if list(names).count(name) > 1:
            raise UserError(f"{path} has the column {name!r} twice; remove or rename one")


def _csv(
    path: Path, table: TableDomain, wanted: Sequence[str], rows: int, comments: bool, size: int
) -> Iterator[dict[str, Any]]:
    with_commas = (
        {c.name for c in table.columns if c.kind in ("numeric", "target")} if table.decimal == "," else set()
    )
    try:
        with opened(path) as stream:
            lines = Lines(path, stream, size)
            dialect = dialect_of(lines, table)
            names = [name.strip() for name in dialect.header] or [column.name for column in table.columns]
            check_header(path, names, wanted, shown=False)
            if comments and table.comment and not table.header:
                lines.skip_comments(table.comment)
            first = 1
            for block in _whole(path, table, dialect, lines):
                cells = _parsed(path, block, dialect, [names.index(name) for name in wanted])
                for start in range(0, len(block.whole), rows):
                    part = {
                        name: _utf8(path, name, column.slice(start, rows), first + start)
                        for name, column in zip(wanted, cells, strict=True)
                    }
                    for name in with_commas.intersection(part):
                        part[name] = pc.replace_substring(part[name], ",", ".")
                    yield part
                first += len(block.whole)
    except UNREADABLE as error:
        raise UserError(f"{path}: {explain(error)}") from None


def _whole(path: Path, table: TableDomain, dialect: Dialect, lines: Lines) -> Iterator[Rows]:
    """Give a file's rows; a bad one is an error, unless it is declared to be a record of missing values.

    A line without any cell is no record of a table, which has two columns or more: such lines may stand
    after the last record, where they end the file, and nowhere else.
    """
    first, empty = 1, 0
    for block in lines.rows(dialect):
        if table.bad_rows == "missing":
            yield block
            continue
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
        hint = "; comment lines of a file without a header row are not passed over, remove them"
    elif not table.header and table.delimiter is None and cells == 1:
        hint = "; declare delimiter in the domain if it is not a comma"
    return f"has {cells} cells, {dialect.columns} are expected{hint}"


def _parsed(path: Path, block: Rows, dialect: Dialect, wanted: Sequence[int]) -> list[Any]:
    """Parse whole rows, and put a row of nothing in the place of each bad one."""
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


def _utf8(path: Path, name: str, cells: Any, first: int) -> Any:
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


def read_labelled(path: Path | str, spec: Mapping[str, Any]) -> Iterator[Encoded]:
    """Read a file of labelled records, batch by batch, for the features that a certificate describes.

    Every record is read, whoever's it is: this is for evaluation, which is not private.
    """
    return read_batches(path, table_of(spec), bounded=False, comments=True)


def table_of(spec: Mapping[str, Any]) -> TableDomain:
    """Return the declared table inside the description of a model's features."""
    if spec.get("name") not in TABLES:
        raise UserError("this model was not made from a table; it cannot read a CSV or Parquet file")
    return TableDomain.from_dict(spec["table"])
