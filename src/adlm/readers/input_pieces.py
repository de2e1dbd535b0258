"""Files of images or vectors in pieces, each for one worker to read and decode.

The driver lists image files without reading them; of Parquet files it reads the number of rows. Where persons
are declared, the driver reads all, because the choice of a person's records needs digests of decoded ones.
A piece is read in its file's order, and each record depends on itself and on the declaration alone, so it
does not matter which worker reads which piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from adlm.errors import UserError
from adlm.public.domain.inputs import InputDomain
from adlm.readers.input_files import items_of
from adlm.readers.input_items import Columns, Item
from adlm.readers.input_tables import rows_of
from adlm.readers.inputs import InputBatch, decoded
from adlm.readers.table_csv import check_header
from adlm.readers.tables import PARQUET
from adlm.readers.text_files import short

FILES = 2048  # image files of a piece
GROUP_ROWS = 1 << 14  # rows of a piece of a Parquet file, unless a row group has more


@dataclass(frozen=True, eq=False)
class InputPiece:
    """Records for one worker: image files with their labels, or row groups of a Parquet file.

    Attributes
    ----------
    items : image files, unless the piece is of a Parquet file.
    path, groups, first : that file, its row groups, and the number of rows before them.
    rows : number of records.
    """

    rows: int
    items: tuple[Item, ...] = ()
    path: Path | None = None
    groups: range = range(0)
    first: int = 0


@dataclass(frozen=True, eq=False)
class InputPieces:
    """All records of a file or a folder, unread."""

    pieces: tuple[InputPiece, ...]
    declared: InputDomain

    def __len__(self) -> int:
        return sum(piece.rows for piece in self.pieces)


def input_pieces(path: Path | str, declared: InputDomain) -> InputPieces | None:
    """Split image files or Parquet files into pieces; None for arrays, Arrow files and records of persons."""
    place = Path(path)
    if declared.person is not None:
        return None
    files = _parquet_files(place)
    if files:
        listed = list(_row_groups(files, Columns.of(declared, labels=True, persons=False)))
    elif declared.is_image and _names_images(place):
        listed = list(_cut(items_of(place, declared, labels=True, persons=False)))
    else:
        return None
    pieces = InputPieces(tuple(listed), declared)
    if not len(pieces):
        raise UserError(f"{path} holds no records; give at least one")
    return pieces


def batches_of(piece: InputPiece, declared: InputDomain, rows: int) -> Iterator[InputBatch]:
    """Read and decode a piece, at most so many records at a time."""
    if piece.path is None:
        items = iter(piece.items)
    else:
        columns = Columns.of(declared, labels=True, persons=False)
        items = rows_of(piece.path, columns, piece.groups, piece.first)
    while part := list(islice(items, rows)):
        x = np.stack([decoded(item, declared) for item in part])
        codes = np.array([item.label for item in part], dtype=np.int64)
        yield InputBatch(x, codes, tuple(item.name for item in part))


def _parquet_files(place: Path) -> list[Path]:
    """Return the Parquet files of a path, if it has no other data."""
    if place.is_file():
        return [place] if place.suffix.lower() in PARQUET else []
    if not place.is_dir() or (place / "state.json").is_file() or (place / "dataset_dict.json").is_file():
        return []
    inside = [
        entry for entry in sorted(place.iterdir()) if entry.is_file() and not entry.name.startswith(".")
    ]
    tables = [entry for entry in inside if entry.suffix.lower() in PARQUET]
    return tables if not any(entry.suffix.lower() in (".arrow", ".feather") for entry in inside) else []


def _names_images(place: Path) -> bool:
    """Whether a path is a folder of image files, or a list of their names."""
    if place.is_dir():
        unsplit = (".npy", ".arrow", ".feather")
        special = any((place / name).is_file() for name in ("state.json", "dataset_dict.json"))
        return not special and not any(entry.suffix.lower() in unsplit for entry in place.iterdir())
    return place.name.lower().endswith((".csv", ".tsv", ".csv.gz"))


def _row_groups(files: Sequence[Path], columns: Columns) -> Iterator[InputPiece]:
    for path in files:
        try:
            with parquet.ParquetFile(path) as file:
                check_header(path, file.schema_arrow.names, columns.names)
                sizes = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} is not a whole Parquet or Arrow file ({short(error)})") from None
        start, first, rows = 0, 0, 0
        for at, size in enumerate(sizes):
            if rows and rows + size > GROUP_ROWS:
                yield InputPiece(rows, path=path, groups=range(start, at), first=first)
                start, first, rows = at, first + rows, 0
            rows += size
        yield InputPiece(rows, path=path, groups=range(start, len(sizes)), first=first)


def _cut(items: Iterator[Item]) -> Iterator[InputPiece]:
    while part := tuple(islice(items, FILES)):
        yield InputPiece(len(part), items=part)
