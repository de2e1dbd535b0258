"""Readers that are wrong on purpose: in each, one record changes how others are read. All must be caught.

None of this is reachable from the rest of the package.
"""

from __future__ import annotations

import csv
import gzip
import math
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv
from tests.audit.reading import Read, Reader, finding, product, rows_of, search
from tests.audit.reading_cases import Form, Written, frames, text_files

from adlm.audit.statistics import Finding
from adlm.data.csv import DELIMITERS
from adlm.data.reading import read_batches
from adlm.domain.columns import Column
from adlm.domain.encoding import Frame, encode_frame, encode_labels, plain
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.privacy.noise import Source

CASES = 300
LIMIT = 5


def _encoded(table: TableDomain, columns: dict[str, Any]) -> Read:
    y = encode_labels(table.label, columns[table.label.name], table.missing)
    return Read(tuple(rows_of(encode_frame(table, Frame(columns)), y)))


def type_of_the_column(written: Written) -> Read:
    """One Arrow type for a whole column; all of its cells become strings if there is none."""
    frame = written.frame

    def texts(column: Column) -> list[str | None]:
        try:
            cells = pa.array(list(frame[column.name]), from_pandas=True).to_pylist()
            return [_spelt(cell) for cell in cells]
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return [None if plain(cell) is None else str(cell) for cell in frame[column.name]]

    return _encoded(written.table, {c.name: texts(c) for c in written.table.columns})


def _spelt(cell: Any) -> str | None:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _lines(written: Written) -> list[str]:
    assert written.file is not None
    raw = written.file.read_bytes()
    raw = gzip.decompress(raw) if written.file.suffix == ".gz" else raw
    return raw.decode("utf-8", "replace").removeprefix("\ufeff").removesuffix("\n").split("\n")


def _lenient(lines: list[str], table: TableDomain, delimiter: str, quote: str) -> Read:
    """Let a CSV library split rows and drop empty lines by its defaults."""
    names = [column.name for column in table.columns]
    try:
        read = arrow_csv.read_csv(
            pa.py_buffer("\n".join(lines).encode()),
            read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=arrow_csv.ParseOptions(
                delimiter=delimiter, quote_char=quote, newlines_in_values=True
            ),
            convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
    except pa.ArrowException as error:
        raise UserError(f"the file cannot be read ({error})") from None
    return _encoded(table, {name: read.column(name) for name in names})


def dialect_of_a_record(written: Written) -> Read:
    """Delimiter and quote inferred from the first line of a file without a header row."""
    lines, table = _lines(written), written.table
    quote = "'" if lines[0].startswith("'") else '"'

    def misfit(delimiter: str) -> int:
        cells = next(csv.reader(lines[:1], delimiter=delimiter, quotechar=quote), [])
        return abs(len(cells) - len(table.columns))

    return _lenient(lines, table, min(DELIMITERS, key=misfit), quote)


def open_quote(written: Written) -> Read:
    """Rows that end where quotes are balanced: an open quote absorbs the rows after it."""
    return _lenient(_lines(written)[1:], written.table, ",", '"')


def comment_anywhere(written: Written) -> Read:
    """Lines that start with the comment mark dropped, anywhere in the file."""
    lines = [line for line in _lines(written)[1:] if not line.startswith("#")]
    return _lenient(lines, written.table, ",", '"')


def batch_maximum(written: Written) -> Read:
    """Features divided by the largest of their batch."""
    assert written.file is not None
    rows: list[bytes] = []
    for batch in read_batches(written.file, written.table, rows=3):
        rows.extend(rows_of(batch.x / np.maximum(batch.x.max(0), np.float32(1e-6)), batch.y))
    return Read(tuple(rows))


def first_records(written: Written) -> Read:
    """A window of the first records: if one is removed, another enters."""
    return Read(product(written).rows[:LIMIT])


def printed_number(written: Written) -> Read:
    """The number of records kept, printed, where a person may have several."""
    read = product(written)
    return Read(read.rows, str(len(read.rows)).encode())


_CSV: Form = partial(text_files, usual=True, header=True, relation="replace-one")
WRONG: dict[str, tuple[Form, Reader]] = {
    "types inferred from a column": (frames, type_of_the_column),
    "dialect found in a record": (
        partial(text_files, usual=True, header=False, relation="replace-one"),
        dialect_of_a_record,
    ),
    "a quote that takes rows in": (
        partial(text_files, usual=True, quoted="none", header=True, relation="replace-one"),
        open_quote,
    ),
    "a comment that hides a record": (_CSV, comment_anywhere),
    "features that depend on the batch": (_CSV, batch_maximum),
    "a window of the first records": (
        partial(text_files, usual=True, header=True, relation="add-remove"),
        first_records,
    ),
    "the exact number of several records a person": (
        partial(text_files, usual=True, header=True, relation="persons"),
        printed_number,
    ),
}


def _control(name: str, runs: int, source: Source) -> Finding:
    del runs, source  # the search is exact, and draws no noise
    form, reader = WRONG[name]
    return finding(name, search(form, reader, CASES, until_found=True), control=True)


READING = tuple(partial(_control, name) for name in WRONG)
