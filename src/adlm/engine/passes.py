"""Passes over private records: `partial(part) -> integers`, exact sums, and the parts kept between passes."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import mmap
import os
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from functools import partial as bind
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from platformdirs import user_cache_dir
from threadpoolctl import ThreadpoolController

from adlm.errors import UserError
from adlm.runtime import progress
from adlm.runtime.machine import keep_freed

# ---- Sums of integers that are exact whatever the number of records: two limbs of 32 and 64 bits.
#
# Numbers below 2^47 are added, so a sum over up to 2^16 records (`passes.PART_ROWS`) fits in 64 bits. The
# sum over all records need not: products of clipped records reach 2^63 with 2^23 records. Here a sum is
# high * 2^32 + low with 0 <= low < 2^32, so that it is exact up to 2^95. Proof: docs/proof-moments.md.

Integers = NDArray[np.int64]
LIMB = 32
_MASK = (1 << LIMB) - 1
MOST = 1 << 62  # what is released fits in 64 bits, with room for one addition


@dataclass(frozen=True, eq=False)
class Total:
    """An exact sum of arrays of 64-bit integers."""

    high: Integers
    low: Integers

    @classmethod
    def of(cls, values: Integers) -> Total:
        """Split an array into two limbs."""
        return cls(values >> LIMB, values & _MASK)

    def __add__(self, other: Total) -> Total:
        low = self.low + other.low
        return Total(self.high + other.high + (low >> LIMB), low & _MASK)

    def integers(self) -> NDArray[Any]:
        """Return the sum: 64-bit integers where they hold it, else Python's."""
        if self.high.size == 0 or int(np.abs(self.high).max()) < MOST >> LIMB:
            return np.asarray((self.high << LIMB) | self.low)
        return np.asarray(self.high.astype(object) * (1 << LIMB) + self.low.astype(object))


Totals = tuple[Total, ...]


def merge(left: Totals | None, right: Totals) -> Totals:
    """Add the sums of two parts; None is the sum of no parts."""
    return right if left is None else tuple(a + b for a, b in zip(left, right, strict=True))


def added(parts: Iterable[Totals]) -> Totals | None:
    """Add the sums of all parts, in any order."""
    total: Totals | None = None
    for part in parts:
        total = merge(total, part)
    return total


def clamped(noisy: NDArray[Any]) -> Integers:
    """Return noisy sums as 64-bit integers, clipped at +-2^62.

    Only noisy numbers are clipped, so this costs no privacy; it has no effect with up to 10^10 records.
    """
    if noisy.dtype != object:
        return np.asarray(noisy, dtype=np.int64)
    return np.asarray(np.clip(noisy, -MOST, MOST).astype(np.int64))


def halved(noisy: NDArray[Any]) -> tuple[Integers, int]:
    """Return noisy products as 64-bit integers, and the even number of bits dropped to make them fit.

    The number of bits is a function of the noisy products, so this costs no privacy. It is 0 up to 2^22
    records.
    """
    if noisy.dtype != object:
        return np.asarray(noisy, dtype=np.int64), 0
    largest = max((abs(int(value)) for value in noisy.flat), default=0)
    bits = max(0, largest.bit_length() - MOST.bit_length() + 1)
    bits += bits % 2
    return np.asarray((noisy >> bits).astype(np.int64)), bits


# ---- Passes over private records: `partial(part) -> integers`, and `merge`.
#
# A pass is a function of a part of the records and of public or released numbers, which are sent along with
# it (the means, the basis, the head of a gradient round). Sums are exact integers, so neither the order of
# the parts, nor their number, nor the machines that hold them affect the result. The caller adds noise to
# the sum, once. A function that is sent to workers has no access to noise, ledgers or budgets.

Part = tuple[NDArray[Any], ...]
Transform = Callable[[Part], Part]
Partial = Callable[[Part], tuple[Integers, ...]]
Keep = Callable[[Part], tuple[Part, tuple[Integers, ...]]]
Batches = Callable[[], Iterable[tuple[Any, NDArray[np.int64]]]]  # called once a pass over the records
Chain = tuple[Transform, ...]

ROWS = 1 << 12  # most records worked on at once: sums of doubles are exact
BLOCK_ROWS = 1 << 11  # worked on at once, unless a pass sets `block_rows`; threads wait less with more
KEPT_ROWS = 1 << 13  # stored at once: a few MB, whose memory the C library hands out again
PART_ROWS = 1 << 16  # records whose sum is kept in 64 bits; see `totals`
MOST_THREADS = 8


class Parts(ABC):
    """Parts of the records, on any machine.

    `rows` is the number of records if it is known before a pass, else 0; it is used to show progress.
    """

    rows: int = 0

    @abstractmethod
    def sums(self, work: Callable[[Part], Totals]) -> Iterator[tuple[int, Totals]]:
        """Yield the number of records of each part, and what `work` makes of it, in any order."""

    @abstractmethod
    def kept(self, work: Callable[[Part], tuple[Part, Totals]]) -> Generator[tuple[int, Totals], None, Parts]:
        """Do the same, and return the parts that `work` gives; they stay where they are."""

    def close(self) -> None:
        """Let go of what was stored."""
        return None


class LocalParts(Parts):
    """Parts on this machine, processed by a few threads."""

    @abstractmethod
    def loaders(self) -> Iterable[Callable[[], Part]]:
        """Functions that load a part each; called for each pass."""

    def sums(self, work: Callable[[Part], Totals]) -> Iterator[tuple[int, Totals]]:
        """Sum part by part."""
        return self._run(lambda part: (len(part[0]), work(part)))

    def kept(self, work: Callable[[Part], tuple[Part, Totals]]) -> Generator[tuple[int, Totals], None, Parts]:
        """Store parts in memory or in a file."""
        store = PartStore()
        for pieces in self._run(lambda part: [work(piece) for piece in blocks_of(part, KEPT_ROWS)]):
            for part, totals in pieces:
                store.append(part)
                yield len(part[0]), totals
        return store

    def _run(self, work: Callable[[Part], Any]) -> Iterator[Any]:
        """Process each part; a single part is not worth a thread."""
        loaders = iter(self.loaders())
        first, second = next(loaders, None), next(loaders, None)
        if first is None:
            return
        if second is None:
            with _one_thread_each():
                only = work(first())
            yield only
            return
        waiting: deque[Future[Any]] = deque()
        threads = threads_here()
        # OpenMP's number of threads is set per thread, and new threads start with that of the machine.
        started = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        with _one_thread_each(), started as pool:
            try:
                for loader in itertools.chain((first, second), loaders):
                    if len(waiting) > 2 * threads:
                        yield waiting.popleft().result()
                    waiting.append(pool.submit(lambda load: work(load()), loader))
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for left in waiting:
                    left.cancel()


class BatchParts(LocalParts):
    """Parts of batches that a function yields, the same ones in each pass; `rows` records, if known."""

    def __init__(self, batches: Callable[[], Iterable[Sequence[Any]]], rows: int = 0) -> None:
        self._batches, self.rows = batches, rows

    def loaders(self) -> Iterator[Callable[[], Part]]:
        """Functions that return a part each."""
        for batch in self._batches():
            for part in blocks_of(tuple(map(np.asarray, batch)), PART_ROWS):
                yield bind(_itself, part)


def _itself(part: Part) -> Part:
    return part


class Records:
    """Private records in parts, on any machine. Passes read them; no record is ever returned.

    Parameters
    ----------
    parts : where they are.
    chain : transforms of a block of records before it is summed.
    """

    rows = 0

    def __init__(self, parts: Parts, chain: Chain = ()) -> None:
        self.parts, self.chain, self.rows = parts, chain, parts.rows

    @classmethod
    def of_batches(cls, batches: Batches, rows: int = 0) -> Records:
        """Records that a function yields in batches of features and codes, the same ones in each pass."""
        return cls(BatchParts(batches, rows))

    def total(self, partial: Partial, advance: progress.Advance | None = None) -> Totals | None:
        """Sum `partial` over all parts; None if there are no records.

        Parameters
        ----------
        partial : takes (n, ...) arrays of up to ROWS records; its result depends on them and on public or
            released numbers alone. Its `block_rows`, if any, is its preferred number of records.
        advance : called with the number of records done.
        """
        total: Totals | None = None
        for rows, sums in self.parts.sums(bind(sum_part, chain=self.chain, partial=partial)):
            total = merge(total, sums)
            if advance is not None:
                advance(rows)
        return total

    def keep(self, function: Keep, advance: progress.Advance | None = None) -> tuple[Records, Totals | None]:
        """Sum in one pass, and store the result of `function` for every part for later passes."""
        total: Totals | None = None
        passed = self.parts.kept(bind(keep_part, chain=self.chain, function=function))
        while True:
            try:
                rows, sums = next(passed)
            except StopIteration as done:
                return Records(done.value), total
            total = merge(total, sums)
            if advance is not None:
                advance(rows)

    def count(self) -> int:
        """Return the number of records, by a pass if it is not known."""
        total = None if self.rows else self.total(lambda part: (np.array([len(part[0])]),))
        return self.rows if total is None else int(total[0].integers()[0])

    def mapped(self, transform: Transform) -> Records:
        """Return the records after `transform`, which is applied in each pass."""
        return Records(self.parts, (*self.chain, transform))

    def close(self) -> None:
        """Let go of what was stored."""
        self.parts.close()


def threads_here() -> int:
    """Return the number of threads that a pass may use."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(here, MOST_THREADS)


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limit libraries to one thread inside each of ours."""
    importlib.import_module("scipy.linalg.cython_blas")  # of compiled loops: only what is loaded is limited
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _pools(len(sys.modules)).limit(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=1)
def _pools(modules: int) -> ThreadpoolController:
    """Find the libraries with threads; again when more modules are loaded. It takes milliseconds."""
    del modules
    return ThreadpoolController()


def blocks_of(part: Part, rows: int = BLOCK_ROWS) -> Iterator[Part]:
    """Split a part into blocks that fit into a CPU cache."""
    for start in range(0, len(part[0]), rows):
        yield tuple(array[start : start + rows] for array in part)


def sum_part(part: Part, chain: Chain, partial: Partial) -> Totals:
    """Sum a partial over a part of any number of records, block by block.

    64-bit integers hold the sum of PART_ROWS records. A part of an engine can have more.
    """
    totals: Totals | None = None
    keep_freed()
    with torch.inference_mode():
        for piece in blocks_of(part, PART_ROWS):
            sums: tuple[Integers, ...] | None = None
            for block in blocks_of(piece, getattr(partial, "block_rows", BLOCK_ROWS)):
                for transform in chain:
                    block = transform(block)
                found = partial(block)
                sums = found if sums is None else tuple(a + b for a, b in zip(sums, found, strict=True))
            assert sums is not None
            totals = merge(totals, tuple(Total.of(np.asarray(array, dtype=np.int64)) for array in sums))
    assert totals is not None
    return totals


def keep_part(part: Part, chain: Chain, function: Keep) -> tuple[Part, Totals]:
    """Return the stored form of a part, and its partial sums."""
    kept: list[Part] = []

    def partial(block: Part) -> tuple[Integers, ...]:
        made, sums = function(block)
        kept.append(made)
        return sums

    totals = sum_part(part, chain, partial)
    return tuple(np.concatenate(arrays) for arrays in zip(*kept, strict=True)), totals


def as_records(given: Records | Batches) -> Records:
    """Return records as they are, or from batches."""
    return given if isinstance(given, Records) else Records.of_batches(given)


# ---- Parts of private records, stored between passes: in memory if few, else in a file.
#
# The file is private data: only its owner can read it, and it has no name in the file system, so that it is
# removed with the process, however that ends. It is mapped into memory, whose pages the system takes back
# when others need them.

MOST_BYTES = 1 << 28  # kept in memory
ALIGNED = 64  # bytes between which arrays begin in the file
PIECE_BYTES, PIECE_ROWS = 1 << 22, 1 << 10  # read at once: this many bytes, but at least this many rows


def private_folder() -> Path:
    """Return the folder for files made of private records; ADLM_CACHE moves it."""
    return Path(os.environ.get("ADLM_CACHE") or user_cache_dir("adlm")) / "private-features"


@dataclass(frozen=True)
class _Written:
    """Location of an array in the file."""

    at: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class PartStore(LocalParts):
    """Append-only parts, each a tuple of arrays of one length.

    Parameters
    ----------
    most_bytes : above this, parts are kept in a file.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._bytes, self._end = most_bytes, 0, 0
        self._parts: list[tuple[NDArray[Any] | _Written, ...]] = []
        self._file: IO[bytes] | None = None
        self._mapped: mmap.mmap | None = None
        self._lock = threading.Lock()
        self.rows = 0

    def __len__(self) -> int:
        return len(self._parts)

    def append(self, part: Part) -> None:
        """Store a part, in pieces that fit a processor's shared cache."""
        each = sum(array.nbytes for array in part) // max(1, len(part[0]))
        count = max(PIECE_ROWS, PIECE_BYTES // max(1, each))
        for start in range(0, max(1, len(part[0])), count):
            self._append(tuple(array[start : start + count] for array in part))

    def _append(self, part: Part) -> None:
        self.rows += len(part[0])
        self._bytes += sum(array.nbytes for array in part)
        if self._file is None and self._bytes > self._most:
            folder = private_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # it lives as long as the store
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self._parts = [self._write(kept) for kept in self._parts]  # type: ignore[arg-type]
        self._parts.append(part if self._file is None else self._write(part))

    def _write(self, part: Part) -> tuple[_Written, ...]:
        assert self._file is not None
        written = []
        for array in part:
            contiguous = np.ascontiguousarray(array)
            try:
                self._end += self._file.write(bytes(-self._end % ALIGNED))
                data = memoryview(contiguous.reshape(-1).view(np.uint8).data)
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                raise UserError(
                    f"what is kept of the records cannot be written to {private_folder()} "
                    f"({error.strerror or error}); free room there, or set ADLM_CACHE to another folder"
                ) from None
            written.append(_Written(self._end, contiguous.dtype, contiguous.shape))
            self._end += contiguous.nbytes
        return tuple(written)

    def read(self, index: int) -> Part:
        """Return a part; several threads may do so at once. It stays mapped for the next pass."""
        part = tuple(self._array(a) if isinstance(a, _Written) else a for a in self._parts[index])
        self._parts[index] = part
        return part

    def _array(self, written: _Written) -> NDArray[Any]:
        """Return an array of the file, which is mapped into memory as a whole: nothing is copied.

        One mapping serves all arrays, since each one holds a file descriptor open.
        """
        assert self._file is not None
        count = int(np.prod(written.shape))
        if not count:
            return np.empty(written.shape, dtype=written.dtype)
        with self._lock:
            if self._mapped is None or len(self._mapped) < self._end:
                try:
                    self._mapped = mmap.mmap(self._file.fileno(), self._end)
                except (OSError, ValueError) as error:
                    raise UserError(
                        f"what was kept of the records cannot be read back ({error}); release again"
                    ) from None
            mapped = self._mapped
        values = np.frombuffer(mapped, dtype=written.dtype, count=count, offset=written.at)
        return values.reshape(written.shape)

    def loaders(self) -> Iterator[Callable[[], Part]]:
        """Functions that read a part each."""
        return (bind(self.read, index) for index in range(len(self)))

    def close(self) -> None:
        """Free everything, and remove the file."""
        self._parts, self._mapped = [], None
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        self.close()
