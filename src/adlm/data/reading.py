"""Private records in batches: a CSV, Parquet or Arrow file, a folder, images, vectors or a data frame.

Rows are counted from 1 in each file, without the header; every row is a record or an error, and none is
dropped. Memory holds one batch; if records belong to persons, it also holds 24 bytes for each record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.data.arrow import GROUP_ROWS, pieces_of_arrow
from adlm.data.csv import CsvPiece
from adlm.data.files import DataFile, Raw, find_files
from adlm.data.images import Piece, decoded, input_pieces, label_codes
from adlm.data.persons import Digests, chosen_in_parts, person_digests, record_digests
from adlm.domain.encoding import CellError, Compact, column_names, compact, encode_answer, expanded
from adlm.domain.table import TableDomain
from adlm.errors import UserError

MOST_ROWS, LEAST_ROWS = 1 << 16, 256  # of a batch
BATCH_BYTES = 1 << 22  # of images or vectors in a batch


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of records.

    Attributes
    ----------
    columns : for each column that a model reads an (n,) array of positions in [0, 1] or of codes (`compact`);
        of images an (n, *shape) array of bytes, of vectors an (n, size) array.
    y : (n,) class codes, or positions of a numeric target; empty if labels were not requested.
    persons, digests : (n, 2) and (n,) digests of persons and of records, where records are bounded by person.
    raw : the rows as they are written.
    declared : the domain.
    """

    columns: tuple[Compact, ...]
    y: NDArray[np.int64]
    persons: Digests | None
    digests: Digests | None
    raw: Raw
    declared: TableDomain

    def __len__(self) -> int:
        return len(self.columns[0])

    @cached_property
    def x(self) -> NDArray[Any]:
        """The records: (n, width) float32 in [0, 1] of a table, (n, *shape) of images or vectors."""
        if self.declared.input is not None:
            return self.columns[0]
        return expanded(self.declared.features, self.columns)

    @property
    def names(self) -> list[str]:
        """How messages and predictions name the records, unless some were left out."""
        return [self.raw.where(row) for row in range(self.raw.rows)]

    def selected(self, keep: NDArray[np.bool_]) -> Batch:
        """The records of a mask."""
        columns = tuple(column[keep] for column in self.columns)
        return replace(self, columns=columns, y=self.y[keep] if len(self.y) else self.y)


def pieces_of(
    source: DataFile | Path | str,
    declared: TableDomain,
    *,
    labels: bool = True,
    persons: bool = True,
    keep: Sequence[str] = (),
) -> list[Piece]:
    """Split files into pieces, each to be read by one worker; of Parquet files the schema is read.

    Parameters
    ----------
    source : a file, a folder or a glob, here or at an address (s3://, gs://); of images or vectors see
        `adlm.data.images`.
    declared : the domain of the records.
    labels, persons : whether labels and persons are needed.
    keep : further columns, which are read and not encoded.
    """
    wanted = _wanted(declared, labels=labels, persons=persons, keep=keep)
    if declared.input is not None and "://" not in str(source):
        return list(input_pieces(Path(str(source)), declared, wanted))
    most = GROUP_ROWS if declared.input is not None else None
    pieces: list[Piece] = []
    for file in (source,) if isinstance(source, DataFile) else find_files(source):
        pieces += [CsvPiece(file, file.size)] if file.is_text else pieces_of_arrow(file, wanted, most)
    return pieces


def _wanted(declared: TableDomain, *, labels: bool, persons: bool, keep: Sequence[str] = ()) -> list[str]:
    """Names of the columns to read: those of the records, the label, the person, and further ones."""
    given = (declared.input,) if declared.input is not None else declared.features
    names = [column.name for column in given] + ([declared.answer.name] if labels else [])
    names += [declared.person.name] if persons and declared.person is not None else []
    return [*names, *(name for name in keep if name not in names)]


def read_piece(
    piece: Piece,
    declared: TableDomain,
    *,
    labels: bool = True,
    persons: bool = True,
    keep: Sequence[str] = (),
    lenient: bool = False,
    rows: int | None = None,
    block: int | None = None,
) -> Iterator[Batch]:
    """Read a piece, batch by batch, as `read_batches`; `batch.raw.cells` has the columns to `keep`."""
    if rows is None:
        rows = MOST_ROWS
        if declared.input is not None:
            each = int(np.prod(declared.input.shape)) * (1 if declared.is_image else 4)
            rows = min(MOST_ROWS, max(LEAST_ROWS, BATCH_BYTES // each))
    wanted = _wanted(declared, labels=labels, persons=persons, keep=keep)
    if isinstance(piece, CsvPiece):
        raws = piece.raw(declared, wanted, rows, lenient=lenient, block=block)
    else:
        raws = piece.raw(declared, wanted, rows)
    for raw in raws:
        if raw.rows:
            yield encoded(raw, declared, labels=labels, persons=persons)


def encoded(raw: Raw, declared: TableDomain, *, labels: bool = True, persons: bool = True) -> Batch:
    """Encode rows as they are written, each by itself; an error names its row and its column."""
    person, given = declared.person if persons else None, declared.input
    y = np.zeros(0, np.int64)
    try:
        who = None if person is None else person_digests(person, raw.cells[person.name], declared.missing)
        columns: tuple[Compact, ...]
        if given is not None:
            if labels:
                y = label_codes(declared.label, raw.cells[declared.label.name], raw.class_names)
            columns = (decoded(given, raw.cells[given.name]),)
        else:
            columns = tuple(compact(c, raw.cells[c.name], declared.missing) for c in declared.features)
            if labels:
                y = encode_answer(declared, raw.cells[declared.answer.name])
    except CellError as error:
        column = "" if given is not None else f", column {error.column!r}"
        raise UserError(f"{raw.where(error.row)}{column}: {error.reason}") from None
    digests = None if who is None else record_digests(who, (*columns, *([y] if labels else [])))
    return Batch(columns, y, who, digests, raw, declared)


def read_batches(
    path: DataFile | Path | str,
    declared: TableDomain,
    *,
    labels: bool = True,
    bounded: bool = True,
    lenient: bool = False,
    rows: int | None = None,
    block: int | None = None,
) -> Iterator[Batch]:
    """Read the records of a file, of a folder or of a glob, batch by batch.

    Parameters
    ----------
    path : see `pieces_of`.
    declared : the domain of the records.
    labels : whether labels are needed; not for prediction.
    bounded : whether to keep at most the declared number of records of each person: those with the smallest
        digests (`adlm.data.persons`), over all files. Files are then read twice.
    lenient : for reading without privacy alone: whether to skip lines at the top of a CSV file without a
        header row that start with the declared comment mark, and empty lines at the end of a file. Either
        could be a record too.
    rows, block : most records of a batch, and bytes of a CSV file parsed at once; no record depends on them.

    Formal guarantees
    -----------------
    A record's numbers and its label depend on that record (a line, a row, an image file, an entry) and on the
    declaration; the header row of a CSV file and the schema of a Parquet file are public. Each row is one
    record or an error. Which of a person's records are kept depends on that person's records alone, so
    replacing one person changes at most `declared.contributions` of the records read.
    """
    bounded = bounded and declared.person is not None
    pieces = pieces_of(path, declared, labels=labels, persons=bounded)

    def batches() -> Iterator[Batch]:
        for piece in pieces:
            yield from read_piece(
                piece, declared, labels=labels, persons=bounded, lenient=lenient, rows=rows, block=block
            )

    if not bounded:
        yield from batches()
        return
    pairs = [(b.persons, b.digests) for b in batches() if b.persons is not None and b.digests is not None]
    keep = chosen_in_parts(lambda: pairs, sum(len(some) for some, _ in pairs), declared.contributions)
    done = 0
    for batch in batches():
        selected = keep[done : done + len(batch)]
        done += len(batch)
        if selected.any():
            yield batch.selected(selected)


def read_frame(frame: Any, declared: TableDomain, y: Any = None) -> Batch:
    """Read a data frame or an Arrow table as one batch, with a bounded number of records of each person.

    Parameters
    ----------
    frame : with a column for each one that is declared.
    declared : the domain of the records.
    y : n labels; None if the frame has the label's column.

    Formal guarantees
    -----------------
    Those of `read_batches`; a row of the frame is a record.
    """
    names = column_names(frame)
    cells: dict[str, Any] = {}
    for name in _wanted(declared, labels=y is None, persons=True):
        if names.count(name) != 1:
            raise UserError(_absent(name, declared, [str(one) for one in names]))
        cells[name] = frame[name]
    rows = len(next(iter(cells.values())))
    if y is not None:
        if len(np.shape(y)) != 1:
            raise UserError(f"labels must be a list of one per record, shape (n,) (got shape {np.shape(y)})")
        if len(y) != rows:
            raise UserError(f"there must be one label for each record, got {rows} and {len(y)}")
        cells[declared.answer.name] = y
    batch = encoded(Raw(cells, rows), declared)
    if batch.persons is None or batch.digests is None:
        return batch
    pair = batch.persons, batch.digests
    return batch.selected(chosen_in_parts(lambda: [pair], rows, declared.contributions))


def _absent(name: str, declared: TableDomain, names: list[str]) -> str:
    """A sentence about a column that a frame lacks, or has twice."""
    if name in names:
        how = "is there twice"
    elif name == declared.answer.name:
        return f"the frame has no column {name!r}; add it, or give the labels as y"
    elif declared.person is not None and name == declared.person.name:
        return f"the domain bounds records by person, but there is no column {name!r}; add it"
    else:
        how = "is missing"
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"column {name!r} {how}; the columns are {shown}"


def read_all(
    path: Path | str, declared: TableDomain, *, bounded: bool = True
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Read all labelled records into memory: (n, *shape) and (n,) class codes; see `read_batches`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from adlm.data.reading import read_all
    >>> from adlm.domain.columns import Column
    >>> from adlm.domain.table import TableDomain
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "patients.csv"
    >>> _ = file.write_text("age,ill\\n20,no\\n60,yes\\n")
    >>> age, ill = Column("age", "numeric", 0, 80), Column("ill", "label", classes=("no", "yes"))
    >>> read_all(file, TableDomain((age, ill)))
    (array([[0.25],
           [0.75]], dtype=float32), array([0, 1]))
    """
    batches = list(read_batches(path, declared, bounded=bounded))
    if not batches:
        raise UserError(f"{path} holds no records; give at least one")
    return np.concatenate([batch.x for batch in batches]), np.concatenate([batch.y for batch in batches])
