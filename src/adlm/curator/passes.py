"""Passes over private records: `partial(part) -> integers`, and `merge`.

A pass is a function of a part of the records and of public or released numbers, which are sent along with it
(the means, the basis, the head of a gradient round). Integers are added up by whoever has them, so neither
the order of the parts, nor their number, nor the machines they lie on can be seen in the sum. Noise is drawn
by the caller, once, from the sum. A function that is sent to workers knows nothing of noise, ledgers or
budgets.
"""

from __future__ import annotations

import contextlib
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
BLOCK_ROWS = 1 << 9  # worked on at once, to stay in a processor's cache, unless a pass asks for more
PART_ROWS = 1 << 16  # records of a part
MOST_THREADS = 8


class Records(ABC):
    """Private records in parts, wherever they are. Passes go over them; none of them is ever given out.

    `rows` is their number where that is known before a pass, else 0; it is for showing progress alone.
    """

    rows: int = 0

    @abstractmethod
    def total(self, partial: Partial, advance: progress.Advance | None = None) -> Totals | None:
        """Add up what `partial` gives of every part; None if there are no records.

        Parameters
        ----------
        partial : takes (n, ...) arrays of up to ROWS records; what it gives for records depends on them and
            on public or released numbers alone. Its `block_rows`, if it has one, says how many suit it.
        advance : is told how many records are done.
        """

    @abstractmethod
    def keep(self, function: Keep, advance: progress.Advance | None = None) -> tuple[Records, Totals | None]:
        """Add up in one pass, and keep what `function` makes of every part for later passes."""

    @abstractmethod
    def mapped(self, transform: Transform) -> Records:
        """Return the records as `transform` gives them, anew in each pass."""

    def close(self) -> None:
        """Let go of what was kept."""
        return None


def threads_here() -> int:
    """Return how many threads a pass may use."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(here, MOST_THREADS)


class LocalRecords(Records):
    """Records on this machine; parts are worked on by a few threads.

    Parameters
    ----------
    loaders : gives functions that load a part each, anew for each pass.
    chain : what is done to a part before it is added up.
    store : what holds the parts, if anything does.
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
        """Records that are kept."""
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
        """Add up."""
        found: Totals | None = None

        def work(part: Part) -> tuple[int, Totals]:
            return len(part[0]), sum_part(part, self._chain, partial)

        for rows, sums in self._run(work):
            found = merge(found, sums)
            if advance is not None:
                advance(rows)
        return found

    def keep(self, function: Keep, advance: progress.Advance | None = None) -> tuple[Records, Totals | None]:
        """Add up and keep."""
        store, found = PartStore(), None
        for kept, sums in self._run(lambda part: keep_part(part, self._chain, function)):
            store.append(kept)
            found = merge(found, sums)
            if advance is not None:
                advance(len(kept[0]))
        return LocalRecords.of_store(store), found

    def mapped(self, transform: Transform) -> Records:
        """Add a step before every pass."""
        return LocalRecords(self._loaders, (*self._chain, transform), self._store)

    def close(self) -> None:
        """Let go of what was kept."""
        if self._store is not None:
            self._store.close()

    def _run(self, work: Callable[[Part], Any]) -> Iterator[Any]:
        """Do the work for each part; a single part is not worth a thread."""
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
        # OpenMP has a number of threads for each thread, and new ones start with that of the machine.
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
    """Keep libraries from using further threads inside each of ours."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def blocks_of(part: Part, rows: int = BLOCK_ROWS) -> Iterator[Part]:
    """Cut a part into blocks that fit into a processor's cache."""
    for start in range(0, len(part[0]), rows):
        yield tuple(array[start : start + rows] for array in part)


def sum_part(part: Part, chain: Chain, partial: Partial) -> Totals:
    """Add up what a partial gives of a part, block by block."""
    found: tuple[Integers, ...] | None = None
    keep_freed()
    with torch.inference_mode():
        for block in blocks_of(part, getattr(partial, "block_rows", BLOCK_ROWS)):
            for transform in chain:
                block = transform(block)
            sums = partial(block)
            found = sums if found is None else tuple(a + b for a, b in zip(found, sums, strict=True))
    assert found is not None
    return tuple(Total.of(np.asarray(array, dtype=np.int64)) for array in found)


def keep_part(part: Part, chain: Chain, function: Keep) -> tuple[Part, Totals]:
    """Return what is kept of a part, and what it adds to the sums."""
    kept: list[Part] = []

    def partial(block: Part) -> tuple[Integers, ...]:
        made, sums = function(block)
        kept.append(made)
        return sums

    totals = sum_part(part, chain, partial)
    return tuple(np.concatenate(arrays) for arrays in zip(*kept, strict=True)), totals


def as_records(given: Records | Batches) -> Records:
    """Return records, whichever way they are given."""
    return given if isinstance(given, Records) else LocalRecords.of_batches(given)
