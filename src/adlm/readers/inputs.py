"""Records of files of images or vectors as arrays: batch by batch, or all at once."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from adlm.errors import UserError
from adlm.public.domain.inputs import ImageInput, InputDomain
from adlm.public.domain.values import CellError
from adlm.readers.contributions import chosen, person_digests, record_digests
from adlm.readers.images import ImageError, pixels_of, pixels_of_array
from adlm.readers.input_files import items_of
from adlm.readers.input_items import Item
from adlm.runtime import progress

BATCH = 256  # records decoded together; no record depends on it
MOST_BYTES = 1 << 29  # kept in memory
SECONDS = 5.0  # between two lines of progress


@dataclass(frozen=True, eq=False)
class InputBatch:
    """A batch of records.

    Attributes
    ----------
    x : (n, *shape) bytes of images, or (n, size) float32 vectors.
    y : (n,) class codes; empty if labels were not requested.
    names : of the records, for messages.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    names: tuple[str, ...]


def input_batches(
    path: Path | str, declared: InputDomain, *, labels: bool = True, bounded: bool = True, rows: int = BATCH
) -> Iterator[InputBatch]:
    """Read the records of a file or a folder, a few at a time.

    Parameters
    ----------
    path : see `adlm.readers.input_files`.
    declared : the domain of the records.
    labels : whether to read labels, which every record must then have.
    bounded : if persons are declared, keep only the declared number of records of each person: those with
        the smallest digests, as tables do (`adlm.readers.contributions`). The files are then read twice.
    rows : most records of a batch; no record depends on it.

    Formal guarantees
    -----------------
    A record's numbers and its label depend on that record (an image file, a row, an entry) and on the
    declaration. Which of a person's records are kept depends on that person's records alone, not on the
    order or the files.
    """
    persons = bounded and declared.person is not None
    keep = _kept(path, declared, labels=labels, rows=rows) if persons else None
    start = 0
    for part in _parts(path, declared, labels=labels, persons=persons, rows=rows):
        selected = part if keep is None else list(itertools.compress(part, keep[start : start + len(part)]))
        start += len(part)
        if selected:
            yield _batch(selected, declared)


def _kept(path: Path | str, declared: InputDomain, *, labels: bool, rows: int) -> NDArray[np.bool_]:
    """Mask of the records to keep of each person, in the public order: (n,)."""
    assert declared.person is not None
    persons, records = [], []
    for part in _parts(path, declared, labels=labels, persons=True, rows=rows):
        try:
            persons.append(person_digests(declared.person, [item.person for item in part]))
        except CellError as error:
            raise UserError(f"{part[error.row].name}: {error.reason}") from None
        batch = _batch(part, declared)
        records.append(record_digests(persons[-1], [batch.x, batch.y] if labels else [batch.x]))
    if not persons:
        return np.zeros(0, dtype=np.bool_)
    return chosen(np.concatenate(persons), np.concatenate(records), declared.person.records)


def _parts(
    path: Path | str, declared: InputDomain, *, labels: bool, persons: bool, rows: int
) -> Iterator[list[Item]]:
    items = items_of(Path(path), declared, labels=labels, persons=persons)
    while part := list(itertools.islice(items, rows)):
        yield part


def _batch(part: list[Item], declared: InputDomain) -> InputBatch:
    """Decode some records, each by itself."""
    with warnings.catch_warnings(), ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")  # a library's warnings about metadata, which do not affect the record
        x = np.stack(list(pool.map(lambda item: decoded(item, declared), part)))
    codes = [item.label for item in part if item.label is not None]
    return InputBatch(x, np.array(codes, dtype=np.int64), tuple(item.name for item in part))


def decoded(item: Item, declared: InputDomain) -> NDArray[Any]:
    """Return the numbers of one record."""
    settings = declared.input
    if isinstance(settings, ImageInput):
        try:
            if isinstance(item.value, np.ndarray):
                return pixels_of_array(item.value, settings.shape, settings.fit)
            if not isinstance(item.value, bytes | Path):
                raise ImageError("it holds numbers, not the bytes of an image file")
            return pixels_of(item.value, settings.shape, settings.fit)
        except ImageError as error:
            raise UserError(f"{item.name}: {error}") from None
    try:
        vector = np.asarray(item.value, dtype=np.float64)
    except (ValueError, TypeError):
        raise UserError(f"{item.name}: a vector is a list of numbers") from None
    if isinstance(item.value, bytes) or vector.shape != (settings.size,):
        raise UserError(f"{item.name}: a vector must have {settings.size} numbers (got shape {vector.shape})")
    single = vector.astype(np.float32)
    if not np.isfinite(single).all():
        raise UserError(f"{item.name}: a vector must hold finite numbers of single precision")
    return single


def read_inputs(
    path: Path | str, declared: InputDomain, *, bounded: bool = True
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Read all labelled records: (n, *shape) and (n,) class codes.

    Large data sets are stored in an unnamed temporary file, which only its owner can read and which is
    removed with the process.
    """
    kept = _Store()
    codes = []
    last = time.monotonic()
    for batch in input_batches(path, declared, bounded=bounded):
        kept.append(batch.x)
        codes.append(batch.y)
        if time.monotonic() - last > SECONDS:
            last = time.monotonic()
            progress.say(f"reading: {sum(map(len, codes))} records")
    if not codes:
        raise UserError(f"{path} holds no records; give at least one")
    return kept.array(), np.concatenate(codes)


class _Store:
    """Append-only rows of one shape, in memory if few, else in an unnamed temporary file."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._blocks: list[NDArray[Any]] = []
        self._most, self._bytes, self._rows = most_bytes, 0, 0
        self._file: IO[bytes] | None = None

    def append(self, block: NDArray[Any]) -> None:
        self._bytes += block.nbytes
        self._rows += len(block)
        self._shape, self._type = block.shape[1:], block.dtype
        if self._file is None and self._bytes > self._most:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the array
            for early in self._blocks:
                self._write(early)
            self._blocks = []
        if self._file is None:
            self._blocks.append(block)
        else:
            self._write(block)

    def _write(self, block: NDArray[Any]) -> None:
        assert self._file is not None
        try:
            self._file.write(np.ascontiguousarray(block).tobytes())
        except OSError as error:
            raise UserError(
                f"the records cannot be kept in {tempfile.gettempdir()} ({error.strerror or error}); free "
                "room there, or set TMPDIR to another folder"
            ) from None

    def array(self) -> NDArray[Any]:
        if self._file is None:
            return np.concatenate(self._blocks)
        self._file.flush()
        shape = (self._rows, *self._shape)
        with self._file:  # the map outlives it
            return np.asarray(np.memmap(self._file, dtype=self._type, mode="r", shape=shape))
