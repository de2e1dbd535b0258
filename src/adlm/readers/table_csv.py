"""Rows of private CSV files: the declared dialect, whole lines, errors with row numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import csv as arrow_csv

from adlm.errors import UserError
from adlm.public.domain.table import TableDomain
from adlm.readers.csv_rows import Dialect, Lines, Rows, dialect_of
from adlm.readers.files import DataFile
from adlm.readers.text_files import UNREADABLE, explain, opened

BLOCK = 1 << 20  # bytes parsed at once


def check_header(
    path: DataFile | Path, names: Sequence[str], wanted: Sequence[str], *, shown: bool = True
) -> None:
    """Refuse a file with a missing or duplicate column; its first line is not `shown` if it may be a record.

    Parameters
    ----------
    path : the file.
    names, wanted : columns it has, and those it must have.
    shown : whether a sentence may show its first line.
    """
    for name in wanted:
        if name not in names:
            have = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            hint = f"its columns are {have}" if shown else "if that line is a record, set header = false"
            where = "" if shown else " in its first line"
            raise UserError(f"{path} has no column {name!r}{where}; {hint}")
        if list(names).count(name) > 1:
            raise UserError(f"{path} has the column {name!r} twice; remove or rename one")


def read_csv(
    file: DataFile, table: TableDomain, wanted: Sequence[str], rows: int, lenient: bool, size: int
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield columns of a CSV file as Arrow arrays, with the approximate number of bytes read.

    Parameters
    ----------
    file, table : the file, and its declared columns and dialect.
    wanted : names of columns.
    rows : how many at a time, at most.
    lenient : as in `tables.read_batches`.
    size : bytes parsed at once.
    """
    with_commas = (
        {c.name for c in table.columns if c.kind in ("numeric", "target")} if table.decimal == "," else set()
    )
    try:
        with opened(file) as (stream, place):
            lines = Lines(file, stream, size)
            dialect = dialect_of(lines, table)
            names = [name.strip() for name in dialect.header] or [column.name for column in table.columns]
            check_header(file, names, wanted, shown=False)
            if lenient and table.comment and not table.header:
                lines.skip_comments(table.comment)
            first, before = 1, 0
            for block in _valid_rows(file, table, dialect, lines, lenient):
                cells = _parsed(file, block, dialect, [names.index(name) for name in wanted])
                for start in range(0, len(block.whole), rows):
                    part = {
                        name: _utf8(file, name, column.slice(start, rows), first + start)
                        for name, column in zip(wanted, cells, strict=True)
                    }
                    for name in with_commas.intersection(part):
                        part[name] = pc.replace_substring(part[name], ",", ".")
                    now = place()
                    yield part, now - before
                    before = now
                first += len(block.whole)
    except UNREADABLE as error:
        raise UserError(f"{file}: {explain(error)}") from None


def _valid_rows(
    path: DataFile, table: TableDomain, dialect: Dialect, lines: Lines, lenient: bool
) -> Iterator[Rows]:
    """Yield a file's rows; a bad one is an error, unless declared to be a record of missing values.

    A table has two columns or more, so an empty line is a bad row, also at the end of the file: if it were
    skipped there, a last record that is replaced by an empty line would change the number of records.

    Parameters
    ----------
    path, table, dialect, lines : the file, its declaration, its dialect and its lines.
    lenient : whether empty lines at the end are skipped.
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
