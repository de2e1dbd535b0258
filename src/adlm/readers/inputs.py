"""Records of files of images or vectors as arrays: batch by batch, or whole."""

from __future__ import annotations

import contextlib
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
from adlm.readers.contributions import Contributions
from adlm.readers.images import ImageError, pixels_of, pixels_of_array
from adlm.readers.input_files import Item, items_of
from adlm.runtime import progress

BATCH = 256  # records decoded together; no record depends on it
MOST_BYTES = 1 << 29  # kept in memory
SECONDS = 5.0  # between two lines of progress


@dataclass(frozen=True, eq=False)
class InputBatch:
    """Some records.

    Attributes
    ----------
    x : (n, *shape) bytes of images, or (n, size) float32 vectors.
    y : (n,) class codes; empty when labels were not asked for.
    names : what to call each record.
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
    declared : what every record is brought to.
    labels : whether to read labels, which every record must then have.
    bounded : if persons are declared, keep only the declared number of records of each person: the first
        ones in the public order.
    rows : most records of a batch; no record depends on it.

    Formal guarantees
    -----------------
    A record's numbers and its label depend on that record (an image file, a row, an entry) and on the
    declaration. Which of a person's records are kept depends on that person's records alone.
    """
    items = items_of(Path(path), declared, labels=labels, persons=bounded and declared.person is not None)
    with contextlib.ExitStack() as stack:
        seen = None
        if bounded and declared.person is not None:
            seen = stack.enter_context(Contributions(declared.person))
        pool = stack.enter_context(ThreadPoolExecutor(min(4, os.cpu_count() or 1)))
        while part := list(itertools.islice(items, rows)):
            if seen is not None:
                keep = seen.keep([item.person for item in part])
                part = [item for item, kept in zip(part, keep, strict=True) if kept]
            if not part:
                continue
            with warnings.catch_warnings():  # a library's own, of odd metadata: no concern of the record
                warnings.simplefilter("ignore")
                x = np.stack(list(pool.map(lambda item: decoded(item, declared), part)))
            codes = [item.label for item in part if item.label is not None]
            yield InputBatch(x, np.array(codes, dtype=np.int64), tuple(item.name for item in part))


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

    Large data sets are kept in a file without a name, which its owner alone can read and which is gone with
    the process.
    """
    kept = _Store()
    codes = []
    told = time.monotonic()
    for batch in input_batches(path, declared, bounded=bounded):
        kept.append(batch.x)
        codes.append(batch.y)
        if time.monotonic() - told > SECONDS:
            told = time.monotonic()
            progress.say(f"reading: {sum(map(len, codes))} records")
    if not codes:
        raise UserError(f"{path} holds no records; give at least one")
    return kept.array(), np.concatenate(codes)


class _Store:
    """Append-only rows of one shape, in memory while they are few and in a nameless file when many."""

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
