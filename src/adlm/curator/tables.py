"""Private tables read in batches: CSV and Parquet, whatever their size, with every mistake named.

Rows are counted from 1, without the header. Memory holds one batch; if records belong to persons, it also
holds how many records of each person were seen, and moves that to a temporary file when there are many.
"""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from adlm.curator.persons import Persons
from adlm.curator.text_files import UNREADABLE, explain, first_line, opened, short
from adlm.errors import UserError
from adlm.public.encoding import CellError, encode_column, encode_labels
from adlm.public.tables import TableDomain

ROWS = 8192
BLOCK = 1 << 20  # bytes parsed at once; Arrow reads some 32 blocks ahead, whatever the size of the file
DELIMITERS = (",", ";", "\t", "|")
PARQUET = (".parquet", ".pq")
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


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
        seen = stack.enter_context(Persons(person, table.missing)) if person is not None else None
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
        raise UserError(f"{path} is not a whole Parquet file ({short(error)})") from None


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
    with_commas = {c.name for c in table.columns if c.kind == "numeric"} if table.decimal == "," else set()
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
                    cells = {name: _utf8(path, name, part.column(at[name]), first + start) for name in wanted}
                    for name in with_commas.intersection(cells):
                        cells[name] = pc.replace_substring(cells[name], ",", ".")
                    yield cells
                first += block.num_rows
    except UNREADABLE as error:
        raise UserError(f"{path}: {_ragged(error, table.header) or explain(error)}") from None


def _ragged(error: BaseException, header: bool) -> str | None:
    """Say which row has too few or too many cells, if that is what Arrow complains of."""
    found = _RAGGED.search(str(error))
    if found is None:
        return None
    row = int(found[1]) - 1 if header else int(found[1])
    return f"row {row} has {found[3]} cells, {found[2]} are expected"


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


def read_labelled(path: Path | str, spec: Mapping[str, Any]) -> Iterator[Encoded]:
    """Read a file of labelled records, batch by batch, for the features that a certificate describes.

    Every record is read, whoever's it is: this is for evaluation, which is not private.
    """
    return read_batches(path, table_of(spec), bounded=False)


def table_of(spec: Mapping[str, Any]) -> TableDomain:
    """Return the declared table inside the description of a model's features."""
    if spec.get("name") != "tabular":
        raise UserError("this model was not made from a table; it cannot read a CSV or Parquet file")
    return TableDomain.from_dict(spec["table"])
