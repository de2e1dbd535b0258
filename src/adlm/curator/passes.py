"""Passes over private records: `partial(part) -> integers`, and `merge`.

A pass is a function of a part of the records and of public or released numbers, which are sent along with it
(the means, the basis, the head of a gradient round). Sums are exact integers, so neither the order of the
parts, nor their number, nor the machines that hold them affect the result. The caller adds noise to the sum,
once. A function that is sent to workers has no access to noise, ledgers or budgets.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial as bind
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from adlm.curator.totals import Total, Totals, merge
from adlm.runtime import progress
from adlm.runtime.memory import keep_freed
from adlm.runtime.part_store import Part, PartStore

Integers = NDArray[np.int64]
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


class Records(ABC):
    """Private records in parts, on any machine. Passes read them; no record is ever returned.

    `rows` is their number if it is known before a pass, else 0; it is used only to show progress.
    """

    rows: int = 0

    @abstractmethod
    def total(self, partial: Partial, advance: progress.Advance | None = None) -> Totals | None:
        """Sum `partial` over all parts; None if there are no records.

        Parameters
        ----------
        partial : takes (n, ...) arrays of up to ROWS records; its result depends on them and on public or
            released numbers alone. Its `block_rows`, if any, is its preferred number of records.
        advance : called with the number of records done.
        """

    @abstractmethod
    def keep(self, function: Keep, advance: progress.Advance | None = None) -> tuple[Records, Totals | None]:
        """Sum in one pass, and store the result of `function` for every part for later passes."""

    @abstractmethod
    def mapped(self, transform: Transform) -> Records:
        """Return the records after `transform`, which is applied in each pass."""

    def close(self) -> None:
        """Let go of what was kept."""
        return None


def threads_here() -> int:
    """Return the number of threads that a pass may use."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(here, MOST_THREADS)


class LocalRecords(Records):
    """Records on this machine; parts are processed by a few threads.

    Parameters
    ----------
    loaders : returns functions that load a part each, called for each pass.
    chain : transforms of a part before it is summed.
    store : the store of the parts, if any.
    """

    def __init__(
        self,
        loaders: Callable[[], Iterable[Callable[[], Part]]],
        chain: Chain = (),
        store: PartStore | None = None,
    ) -> None:
        self._loaders, self._chain, self._store = loaders, chain, store
        self.rows = 0 if store is None else store.rows

    @classmethod
    def of_store(cls, store: PartStore) -> LocalRecords:
        """Records in a store."""
        return cls(lambda: (bind(store.read, i) for i in range(len(store))), store=store)

    @classmethod
    def of_batches(cls, batches: Batches) -> LocalRecords:
        """Records that come in batches of features and class codes, the same ones in each pass."""

        def loaders() -> Iterator[Callable[[], Part]]:
            for z, codes in batches():
                arrays = (np.asarray(z), np.asarray(codes))
                for start in range(0, len(codes), PART_ROWS):
                    part = tuple(array[start : start + PART_ROWS] for array in arrays)
                    yield bind(_itself, part)

        return cls(loaders)

    def total(self, partial: Partial, advance: progress.Advance | None = None) -> Totals | None:
        """Sum over all parts."""
        total: Totals | None = None

        def work(part: Part) -> tuple[int, Totals]:
            return len(part[0]), sum_part(part, self._chain, partial)

        for rows, sums in self._run(work):
            total = merge(total, sums)
            if advance is not None:
                advance(rows)
        return total

    def keep(self, function: Keep, advance: progress.Advance | None = None) -> tuple[Records, Totals | None]:
        """Sum over all parts, and store them."""
        store, total = PartStore(), None

        def work(part: Part) -> list[tuple[Part, Totals]]:
            return [keep_part(piece, self._chain, function) for piece in blocks_of(part, KEPT_ROWS)]

        for pieces in self._run(work):
            for kept, sums in pieces:
                store.append(kept)
                total = merge(total, sums)
                if advance is not None:
                    advance(len(kept[0]))
        return LocalRecords.of_store(store), total

    def mapped(self, transform: Transform) -> Records:
        """Add a step before every pass."""
        return LocalRecords(self._loaders, (*self._chain, transform), self._store)

    def close(self) -> None:
        """Let go of what was kept."""
        if self._store is not None:
            self._store.close()

    def _run(self, work: Callable[[Part], Any]) -> Iterator[Any]:
        """Process each part; a single part is not worth a thread."""
        loaders = iter(self._loaders())
        first = next(loaders, None)
        if first is None:
            return
        second = next(loaders, None)
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
            waiting.extend(pool.submit(_loaded, work, loader) for loader in (first, second))
            try:
                for loader in loaders:
                    if len(waiting) > 2 * threads:
                        yield waiting.popleft().result()
                    waiting.append(pool.submit(_loaded, work, loader))
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for left in waiting:
                    left.cancel()


def _itself(part: Part) -> Part:
    return part


def _loaded(work: Callable[[Part], Any], loader: Callable[[], Part]) -> Any:
    return work(loader())


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limit libraries to one thread inside each of ours."""
    importlib.import_module("scipy.linalg.cython_blas")  # of compiled loops: only what is loaded is limited
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


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
    return given if isinstance(given, Records) else LocalRecords.of_batches(given)
