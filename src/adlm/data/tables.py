"""Private tables read in batches: CSV, Parquet, data frames, and the bounded records of a person."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from adlm.data.csv import BLOCK, check_header, read_csv
from adlm.data.files import DataFile, data_file, find_files, short
from adlm.domain.columns import Column
from adlm.domain.encoding import Compact, column_names, compact, encode_answer, encode_frame, expanded
from adlm.domain.table import TableDomain
from adlm.domain.values import CellError, person_texts
from adlm.errors import UserError
from adlm.features import TABLES

# ---- Bounded contributions: at most a few records of each person, chosen by that person's records alone.
#
# The rule: of a person's records, those with the smallest digests are kept, as many as the domain declares.
# A digest is the BLAKE2b hash of the person's name and of the encoded record. So the choice depends neither
# on other persons, nor on the files, nor on the order of reading. Records with the same digest are encoded
# alike, so it does not matter which of them is kept.

Digests = NDArray[np.uint64]
AT_ONCE = 1 << 22  # records whose digests are sorted at once; about 100 MB


def person_digests(column: Column, names: Any, missing: tuple[str, ...] = ()) -> Digests:
    """Return (n, 2) integers: a 128-bit digest of the person of each record."""
    texts = person_texts(column, names, missing)
    if "" in texts:
        raise CellError(column.name, texts.index(""), "the person is not named; every record needs one")
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64).reshape(-1, 2)


def record_digests(persons: Digests, columns: Sequence[NDArray[Any]]) -> Digests:
    """Return (n,) digests of records, from the (n,) or (n, m) array of each column."""
    parts = [persons, *columns]
    flat = [np.ascontiguousarray(part.reshape(len(part), -1)).view(np.uint8) for part in parts]
    rows = np.hstack([part.reshape(len(persons), -1) for part in flat])
    width = rows.shape[1]
    data = rows.tobytes()
    digests = b"".join(
        hashlib.blake2b(data[at : at + width], digest_size=8).digest() for at in range(0, len(data), width)
    )
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def chosen(persons: Digests, records: Digests, most: int) -> NDArray[np.bool_]:
    """Mask of the records to keep, (n,): of each person the `most` with the smallest digests."""
    order = np.lexsort((records, persons[:, 1], persons[:, 0]))
    sorted_persons = persons[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (sorted_persons[1:] != sorted_persons[:-1]).any(1)
    starts = np.flatnonzero(new)
    place = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    keep = np.zeros(len(order), dtype=np.bool_)
    keep[order[place < most]] = True
    return keep


def chosen_in_parts(
    parts: Sequence[tuple[Digests, Digests]] | Any, total: int, most: int, at_once: int = AT_ONCE
) -> NDArray[np.bool_]:
    """The same for parts of a large data set, a share of the persons at a time.

    Parameters
    ----------
    parts : digests of persons and of records, part by part; iterated several times.
    total : number of records.
    most : records of a person to keep.
    at_once : about how many records are sorted at a time; the result does not depend on it.
    """
    shares = max(1, -(-total // at_once))
    keep = np.zeros(total, dtype=np.bool_)
    for share in range(shares):
        rows, persons, records = [], [], []
        first = 0
        for some, digests in _pairs(parts):
            of_share = np.flatnonzero(some[:, 0] % np.uint64(shares) == share)
            rows.append(first + of_share)
            persons.append(some[of_share])
            records.append(digests[of_share])
            first += len(some)
        if rows:
            indices = np.concatenate(rows)
            keep[indices[chosen(np.concatenate(persons), np.concatenate(records), most)]] = True
    return keep


def _pairs(parts: Any) -> Iterable[tuple[Digests, Digests]]:
    pairs: Iterable[tuple[Digests, Digests]] = parts() if callable(parts) else parts
    return pairs


# ---- Data frames with private records, encoded by their declared domain.

ROWS = 8192
EncodedRecords = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def kept_records(
    table: TableDomain, frame: Any, codes: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.bool_]:
    """Mask of the records to keep: a few of each person, as declared; all without a person column.

    The rule is that of files (`contributions`); `codes` are the (n,) classes of the records.
    """
    if table.person is None:
        return np.ones(len(frame), dtype=np.bool_)
    name = table.person.name
    if name not in column_names(frame):
        raise UserError(f"the domain bounds records by person, but there is no column {name!r}; add it")
    persons = person_digests(table.person, frame[name], table.missing)
    columns = [compact(column, frame[column.name], table.missing) for column in table.features]
    digests = record_digests(persons, columns if codes is None else [*columns, codes])
    return chosen(persons, digests, table.contributions)


def frame_reader(frame: Any, labels: Any, table: TableDomain) -> Callable[[], Iterable[EncodedRecords]]:
    """Encode a frame's records; labels default to its label column.

    Formal guarantees
    -----------------
    An encoded record depends on its own row and on the declaration. Which of a person's records are kept
    depends on that person's records alone.
    """
    if labels is None:
        name = table.answer.name
        if name not in column_names(frame):
            raise UserError(f"the frame has no column {name!r}; add it, or give the labels as y")
        labels = frame[name]
    if len(labels) != len(frame):
        raise UserError(f"there must be one label for each record, got {len(frame)} and {len(labels)}")
    codes = encode_answer(table, labels)
    keep = kept_records(table, frame, codes)
    x, y = encode_frame(table, frame)[keep], codes[keep]
    return lambda: ((x[i : i + ROWS], y[i : i + ROWS]) for i in range(0, len(y), ROWS))


# ---- Private tables read in batches: CSV and Parquet of any size, with precise errors.
#
# Rows are counted from 1 in each file, without the header; every row is a record, and none is dropped.
# Memory holds one batch; if records belong to persons, it also holds 24 bytes for each record.


ROWS_KEPT = 1 << 16  # of a stored batch, a few numbers a record
GROUP_BYTES = 1 << 27  # largest piece of a Parquet file, unless one row group is larger


@dataclass(frozen=True, eq=False)
class Encoded:
    """A batch of encoded records.

    Attributes
    ----------
    x : (n, width) float32 in [0, 1].
    y : (n,) class codes, or positions of a numeric target; empty if labels were not requested.
    first : the number of the first row of the batch in the file.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    first: int


@dataclass(frozen=True)
class Piece:
    """A file, or some row groups of a Parquet file, to be read by one worker.

    Attributes
    ----------
    groups : first and last (exclusive) of the row groups; None for the whole file.
    first : number of the first row in the file.
    size : approximate bytes.
    """

    file: DataFile
    groups: tuple[int, int] | None = None
    first: int = 1
    size: int = 0


@dataclass(frozen=True, eq=False)
class CompactBatch:
    """A batch of stored records: a number for each column.

    Attributes
    ----------
    columns : the output of `compact` for each feature column, (n,) each.
    y : (n,) class codes; empty if labels were not requested.
    persons, records : digests, (n, 2) and (n,), where records are bounded by person.
    first : the number of the first row of the batch in the file.
    size : approximate bytes of the file that were read for it.
    """

    columns: tuple[Compact, ...]
    y: NDArray[np.int64]
    persons: Digests | None
    records: Digests | None
    first: int
    size: int

    def __len__(self) -> int:
        return len(self.columns[0])


def pieces_of(source: DataFile | Path | str, table: TableDomain) -> tuple[Piece, ...]:
    """Split files into pieces: one for a text file, one for some row groups of a Parquet file."""
    files = (source,) if isinstance(source, DataFile) else find_files(source)
    wanted = _wanted(table, labels=True, persons=True)
    pieces: list[Piece] = []
    for file in files:
        pieces += _groups(file, wanted) if file.is_parquet else [Piece(file, size=file.size)]
    return tuple(pieces)


def _groups(file: DataFile, wanted: Sequence[str]) -> list[Piece]:
    with _parquet_file(file) as opened_file:
        check_header(file, opened_file.schema_arrow.names, wanted)
        about = opened_file.metadata
        sizes = [about.row_group(i) for i in range(about.num_row_groups)]
    pieces, start, first, rows, size = [], 0, 1, 0, 0
    for at, group in enumerate(sizes):
        if size and size + group.total_byte_size > GROUP_BYTES:
            pieces.append(Piece(file, (start, at), first, size))
            start, first, rows, size = at, first + rows, 0, 0
        rows, size = rows + group.num_rows, size + group.total_byte_size
    return [*pieces, Piece(file, (start, len(sizes)), first, size)]


def read_batches(
    path: DataFile | Path | str,
    table: TableDomain,
    *,
    labels: bool = True,
    bounded: bool = True,
    lenient: bool = False,
    rows: int = ROWS,
    block: int | None = None,
) -> Iterator[Encoded]:
    """Encode the records of a file, of a folder or of a glob, batch by batch.

    Parameters
    ----------
    path : a file, a folder or a glob, here or on another file system (see `find_files`).
    table : the declared table.
    labels : whether the label is needed; not for prediction.
    bounded : whether to keep at most the declared number of records of each person: those with the smallest
        digests (see `contributions`), over all files. Files are then read twice.
    lenient : for reading without privacy alone: whether to skip lines at the top of a file without a header
        row that start with the declared comment mark, and empty lines at the end of a file. Either could be
        a record too.
    rows, block : most records of a batch, and bytes of a CSV file parsed at once; no record depends on them.

    Formal guarantees
    -----------------
    An encoded record depends on its own row (a line, see `csv_rows`) and on the declaration; the header row
    of a CSV file and the schema of a Parquet file are public. Each row is one record or an error. Which of a
    person's records are kept depends on that person's records alone, so replacing one person changes at most
    `table.contributions` of the records read.
    """
    files = (path,) if isinstance(path, DataFile) else find_files(path)

    def batches(persons: bool) -> Iterator[CompactBatch]:
        for file in files:
            yield from read_compact(
                Piece(file), table, labels=labels, persons=persons, lenient=lenient, rows=rows, block=block
            )

    keep = None
    if bounded and table.person is not None:
        digests = [(batch.persons, batch.records) for batch in batches(persons=True)]
        keep = chosen_in_parts(
            digests, sum(len(some) for some, _ in digests if some is not None), table.contributions
        )
    done = 0
    for batch in batches(persons=False):
        x, y = expanded(table.features, batch.columns), batch.y
        if keep is not None:
            selected = keep[done : done + len(batch)]
            x, y = x[selected], y[selected] if labels else y
        done += len(batch)
        if len(x):
            yield Encoded(x, y, batch.first)


def read_compact(
    piece: Piece,
    table: TableDomain,
    *,
    labels: bool = True,
    persons: bool = True,
    lenient: bool = False,
    rows: int = ROWS_KEPT,
    block: int | None = None,
) -> Iterator[CompactBatch]:
    """Read a piece, batch by batch, as stored records.

    Parameters
    ----------
    piece : what to read.
    table : the declared table.
    labels : whether the label is needed.
    persons : whether to give digests, where the table names persons.
    lenient, rows, block : as in `read_batches`.
    """
    wanted = _wanted(table, labels=labels, persons=persons)
    person = table.person if persons else None
    first = piece.first
    for batch, size in _raw(piece, table, wanted, rows, lenient=lenient, block=block):
        with naming_records(piece.file, first):
            who = None if person is None else person_digests(person, batch[person.name], table.missing)
            columns = tuple(compact(c, batch[c.name], table.missing) for c in table.features)
            y = encode_answer(table, batch[table.answer.name]) if labels else np.zeros(0, np.int64)
        records = None if who is None else record_digests(who, (*columns, *([y] if labels else [])))
        if len(columns[0]):
            yield CompactBatch(columns, y, who, records, first, size)
        first += len(columns[0])


def _wanted(table: TableDomain, *, labels: bool, persons: bool) -> list[str]:
    names = [c.name for c in table.features] + ([table.answer.name] if labels else [])
    return [*names, table.person.name] if persons and table.person is not None else names


def file_reader(
    path: Path | str, table: TableDomain
) -> Callable[[], Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]]:
    """Return a function that reads a file's encoded records in batches, from the start at each call."""
    return lambda: ((batch.x, batch.y) for batch in read_batches(path, table))


@contextlib.contextmanager
def naming_records(path: DataFile | Path, first: int) -> Iterator[None]:
    """Add the file and the row to an error in a cell."""
    try:
        yield
    except CellError as error:
        raise UserError(f"{path}, row {first + error.row}, column {error.column!r}: {error.reason}") from None


def raw_batches(
    path: DataFile | Path,
    table: TableDomain,
    wanted: Sequence[str],
    rows: int = ROWS,
) -> Iterator[dict[str, Any]]:
    """Yield columns of a file as Arrow arrays, a few rows at a time.

    Parameters
    ----------
    path : the file.
    table : the declared columns and dialect.
    wanted : names of columns.
    rows : how many at a time, at most.
    """
    return (batch for batch, _ in _raw(Piece(data_file(path)), table, wanted, rows))


def _raw(
    piece: Piece,
    table: TableDomain,
    wanted: Sequence[str],
    rows: int,
    *,
    lenient: bool = False,
    block: int | None = None,
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield columns as Arrow arrays, with the approximate number of bytes read."""
    if piece.file.is_parquet:
        return _parquet(piece, wanted, rows)
    return read_csv(piece.file, table, wanted, rows, lenient, block or BLOCK)


@contextlib.contextmanager
def _parquet_file(file: DataFile) -> Iterator[Any]:
    try:
        with file.open() as stream, parquet.ParquetFile(stream) as opened_file:
            yield opened_file
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} is not a whole Parquet file ({short(error)})") from None


def _parquet(piece: Piece, wanted: Sequence[str], rows: int) -> Iterator[tuple[dict[str, Any], int]]:
    with _parquet_file(piece.file) as file:
        check_header(piece.file, file.schema_arrow.names, wanted)
        every = range(file.metadata.num_row_groups)
        groups = list(every if piece.groups is None else range(*piece.groups))
        count = max(1, sum(file.metadata.row_group(at).num_rows for at in groups))
        size = piece.size or piece.file.size
        for batch in file.iter_batches(batch_size=rows, row_groups=groups, columns=list(wanted)):
            yield {name: batch.column(name) for name in wanted}, size * batch.num_rows // count


def read_labelled(path: Path | str, spec: Mapping[str, Any]) -> Iterator[Encoded]:
    """Read a file of labelled records, batch by batch, for the features that a certificate describes.

    Contributions are not bounded: this is for evaluation, which is not private.
    """
    return read_batches(path, table_of(spec), bounded=False, lenient=True)


def table_of(spec: Mapping[str, Any]) -> TableDomain:
    """Return the declared table inside the description of a model's features."""
    if spec.get("name") not in TABLES:
        raise UserError("this model was not made from a table; it cannot read a CSV or Parquet file")
    return TableDomain.from_dict(spec["table"])
