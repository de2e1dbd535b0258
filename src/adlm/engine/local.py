"""The interface of an engine, and the engine of one machine."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.data.images import InputPieces
from adlm.data.tables import Digests, chosen_in_parts, pieces_of, read_compact
from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.engine.passes import LocalRecords, PartStore, Records, threads_here
from adlm.engine.records import featurise
from adlm.errors import UserError
from adlm.features import Features
from adlm.runtime import progress

# ---- The interface of an engine, which reads private records, stores them, and runs passes over them.

ENGINES = ("local", "ray")


class Engine(ABC):
    """Reads records once and stores what passes need of them.

    Formal guarantees
    -----------------
    What is stored of a record depends on that record and on declarations alone, and the choice of a person's
    records depends on that person's records alone. So all engines keep the same records, and every sum over
    them is the same integers. An engine has no access to noise, ledger or budget.
    """

    name: str
    reads_files = False  # whether `features` takes unread files of images or vectors

    @abstractmethod
    def table(self, source: Path | str, table: TableDomain) -> Records:
        """Read the files of a table: parts with the `compact` array of each column, and class codes."""

    @abstractmethod
    def features(
        self,
        x: NDArray[Any] | InputPieces,
        codes: NDArray[np.int64] | None,
        domain: Domain,
        features: Features,
    ) -> Records:
        """Compute public features: parts of (n, width) features and class codes.

        Parameters
        ----------
        x : (n, *shape) records in memory, or unread files if `reads_files`.
        codes : (n,) classes; None for files, which have their own.
        domain : of the records.
        features : the public map.
        """

    @abstractmethod
    def described(self) -> Mapping[str, Any]:
        """Describe the engine, for a line of the certificate that its digest does not cover."""

    def close(self) -> None:
        """Free everything that was stored."""
        return None


@contextlib.contextmanager
def open_engine(
    engine: Engine | str = "local", address: str | None = None, *, device: str = "cpu", cache: bool = False
) -> Iterator[Engine]:
    """Open an engine by name in this context; one that is already open is left open.

    Parameters
    ----------
    engine : `local`, `ray`, or an engine.
    address : of a Ray cluster: `auto` is the one that this machine belongs to. Without it a cluster is
        started on this machine, and stopped at the end.
    device, cache : of the local engine: where image features are computed, and whether to cache them on disk.
    """
    if isinstance(engine, Engine):
        yield engine
        return
    if engine not in ENGINES:
        raise UserError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == "local":
        if address is not None:
            raise UserError("a Ray address is for the engine ray; leave it out, or take --engine ray")

        yield LocalEngine(device, cache=cache)
        return
    from adlm.engine.ray import RayEngine

    cluster = RayEngine(address)
    try:
        yield cluster
    finally:
        cluster.close()


# ---- The engine of one machine: threads, and an unnamed temporary file for what does not fit into memory.

BATCH = 4096  # records whose features are summed at once


class LocalEngine(Engine):
    """Threads on this machine.

    Parameters
    ----------
    device : where image features are computed.
    cache : cache image features on disk, readable by their owner alone.
    """

    name = "local"

    def __init__(self, device: str = "cpu", *, cache: bool = False) -> None:
        self.device, self.cache = device, cache

    def table(self, source: Path | str, table: TableDomain) -> Records:
        """Read files once, and store their records in memory or in an unnamed temporary file."""
        pieces = pieces_of(source, table)
        store, digests = PartStore(), PartStore()
        with progress.amounts(sum(piece.size for piece in pieces), "reading") as advance:
            for piece in pieces:
                for batch in read_compact(piece, table):
                    store.append((*batch.columns, batch.y.astype(np.int32)))
                    if batch.persons is not None and batch.records is not None:
                        digests.append((batch.persons, batch.records))
                    advance(batch.size, len(batch))
        if table.person is None:
            return LocalRecords.of_store(store)
        return _bounded(store, digests, table.contributions)

    def features(
        self,
        x: NDArray[Any] | InputPieces,
        codes: NDArray[np.int64] | None,
        domain: Domain,
        features: Features,
    ) -> Records:
        """Compute features of all records, which are in memory.

        Parameters
        ----------
        x, codes : records and their class codes.
        domain : to scale the records by.
        features : the public map.
        """
        assert codes is not None
        assert not isinstance(x, InputPieces)
        z = featurise(x, domain, features, device=self.device, cache=self.cache)
        return LocalRecords.of_batches(
            lambda: ((z[i : i + BATCH], codes[i : i + BATCH]) for i in range(0, len(z), BATCH))
        )

    def described(self) -> Mapping[str, Any]:
        """Name the engine and its threads."""
        return {"name": self.name, "threads": threads_here()}


def _bounded(store: PartStore, digests: PartStore, most: int) -> Records:
    """Keep at most so many records of each person."""

    def pairs() -> Iterator[tuple[Digests, Digests]]:
        for index in range(len(digests)):
            persons, records = digests.read(index)
            yield persons, records

    keep = chosen_in_parts(pairs, digests.rows, most)
    kept, done = PartStore(), 0
    for index in range(len(store)):
        part = store.read(index)
        selected = keep[done : done + len(part[0])]
        done += len(selected)
        if selected.any():
            kept.append(tuple(array[selected] for array in part))
    store.close()
    digests.close()
    return LocalRecords.of_store(kept)
