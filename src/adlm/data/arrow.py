"""Parquet and Arrow files, in pieces of some row groups."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from adlm.data.files import DataFile, Raw, check_header, short
from adlm.domain.table import TableDomain
from adlm.errors import UserError

GROUP_BYTES = 1 << 27  # largest piece of a Parquet file, unless one row group is larger
GROUP_ROWS = 1 << 14  # most images or vectors of a piece


@dataclass(frozen=True)
class ArrowPiece:
    """A file of Arrow's own format, or some row groups of a Parquet file.

    Attributes
    ----------
    groups : first and last (exclusive) of the row groups.
    first : number of the first row in the file.
    size : approximate bytes.
    """

    file: DataFile
    groups: tuple[int, int] = (0, 0)
    first: int = 1
    size: int = 0

    def raw(self, declared: TableDomain, wanted: Sequence[str], rows: int) -> Iterator[Raw]:
        """Yield its rows, at most `rows` at a time."""
        first = self.first
        with opened_arrow(self.file) as (schema, file):
            check_header(self.file, schema.names, wanted)
            names = None
            if declared.input is not None and declared.label.name in wanted:
                names = class_names(schema, declared.label.name)
            if isinstance(file, parquet.ParquetFile):
                about, groups = file.metadata, range(*self.groups)
                count = max(1, sum(about.row_group(at).num_rows for at in groups))
                batches = file.iter_batches(batch_size=rows, row_groups=list(groups), columns=list(wanted))
            else:
                number = getattr(file, "num_record_batches", None)  # None of a stream
                parts = file if number is None else map(file.get_batch, range(number))
                batches = (b.slice(at, rows) for b in parts for at in range(0, b.num_rows, rows))
                count = 0
            for batch in batches:
                cells = {name: batch.column(name) for name in wanted}
                size = self.size * batch.num_rows // count if count else batch.nbytes
                yield Raw(cells, batch.num_rows, f"{self.file}, row", first, size=size, class_names=names)
                first += batch.num_rows


@contextlib.contextmanager
def opened_arrow(file: DataFile) -> Iterator[tuple[pa.Schema, Any]]:
    """Open a Parquet or Arrow file; yields its schema and its reader."""
    try:
        with file.open() as stream:
            if file.is_parquet:
                with parquet.ParquetFile(stream) as opened:
                    yield opened.schema_arrow, opened
                return
            try:
                reader = pa.ipc.open_file(stream)
            except pa.ArrowInvalid:
                stream.seek(0)
                reader = pa.ipc.open_stream(stream)
            yield reader.schema, reader
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} is not a whole Parquet or Arrow file ({short(error)})") from None


def pieces_of_arrow(file: DataFile, wanted: Sequence[str], most_rows: int | None = None) -> list[ArrowPiece]:
    """Split a file into pieces, after a look at its schema.

    Parameters
    ----------
    file, wanted : the file, and the columns that it must have.
    most_rows : of a piece, unless a row group has more.
    """
    with opened_arrow(file) as (schema, opened):
        check_header(file, schema.names, wanted)
        if not isinstance(opened, parquet.ParquetFile):
            return [ArrowPiece(file, size=file.size)]
        sizes = [opened.metadata.row_group(at) for at in range(opened.metadata.num_row_groups)]
    pieces, start, first, rows, size = [], 0, 1, 0, 0
    for at, group in enumerate(sizes):
        full = size + group.total_byte_size > GROUP_BYTES
        if rows and (full or (most_rows is not None and rows + group.num_rows > most_rows)):
            pieces.append(ArrowPiece(file, (start, at), first, size))
            start, first, rows, size = at, first + rows, 0, 0
        rows, size = rows + group.num_rows, size + group.total_byte_size
    return [*pieces, ArrowPiece(file, (start, len(sizes)), first, size)]


def class_names(schema: pa.Schema, label: str) -> list[str] | None:
    """Names of integer labels in the schema of a file of `datasets`."""
    try:
        names = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, ValueError, TypeError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None
