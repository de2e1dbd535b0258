"""The interface of an engine, and the engine of one machine."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adlm.data.images import Piece
from adlm.data.persons import Digests, chosen_in_parts
from adlm.data.reading import Batch, pieces_of, read_frame, read_piece
from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.engine.passes import BatchParts, LocalParts, Part, Parts, PartStore, Records, threads_here
from adlm.engine.records import Expanded, featurised
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

    def read(self, source: Any, domain: Domain | TableDomain, y: Any = None) -> Records:
        """Read records of any form: parts of an (n, ...) array and (n,) codes, or positions of a target.

        A table's records are encoded, (n, width) in [0, 1]; images, vectors and arrays are in the units of
        their domain.

        Parameters
        ----------
        source : files (see `adlm.data.reading.pieces_of`), a data frame, or an array. A function is called
            once a pass and yields batches of encoded records with their codes.
        domain : of the records.
        y : n labels of an array, or of a data frame that does not have them.
        """
        if isinstance(domain, Domain):
            x, codes = np.asarray(source), domain.encode_labels(y)
            if len(x) != len(codes):
                raise UserError(f"there must be one label for each record, got {len(x)} and {len(codes)}")
            return Records(self.stored([(x, codes)]))
        if isinstance(source, Path | str) and y is None:
            parts = self.read_pieces(pieces_of(source, domain), domain)
        elif hasattr(source, "columns") and domain.input is None:
            parts = self.stored([part_of(read_frame(source, domain, y))])
        elif y is not None:
            raise UserError("y must be None: labels are read from the files, or come with a reader's batches")
        elif callable(source) and domain.input is None:
            local = isinstance(self, LocalEngine)
            return Records.of_batches(source) if local else Records(self.stored(list(source())))
        else:
            what = (
                "a file or a folder"
                if domain.input
                else "a file, a data frame or a reader of encoded batches"
            )
            raise UserError(f"records of this domain are {what}, got {type(source).__name__}")
        return Records(parts, (Expanded(domain),) if domain.input is None else ())

    @abstractmethod
    def stored(self, parts: Sequence[Part]) -> Parts:
        """Store records of this process."""

    @abstractmethod
    def read_pieces(self, pieces: Sequence[Piece], declared: TableDomain) -> Parts:
        """Read files and store their records, at most the declared number of each person."""

    @abstractmethod
    def features(self, records: Records, domain: Domain, features: Features) -> Records:
        """Compute public features: parts of (n, width) features and class codes.

        Parameters
        ----------
        records : in the units of their domain.
        domain : of the records.
        features : the public map.
        """

    @abstractmethod
    def described(self) -> Mapping[str, Any]:
        """Describe the engine, for a line of the certificate that its digest does not cover."""

    def close(self) -> None:
        """Free everything that was stored."""
        return None


def part_of(batch: Batch) -> Part:
    """What is stored of a batch; of a table, codes of four bytes."""
    return (*batch.columns, batch.y if batch.declared.input is not None else batch.y.astype(np.int32))


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

    def stored(self, parts: Sequence[Part]) -> Parts:
        """Records in memory stay where they are."""
        return BatchParts(lambda: parts, sum(len(part[0]) for part in parts))

    def read_pieces(self, pieces: Sequence[Piece], declared: TableDomain) -> Parts:
        """Read files once, and store their records in memory or in an unnamed temporary file."""
        store, digests = PartStore(), PartStore()
        with progress.amounts(sum(piece.size for piece in pieces), "reading") as advance:
            for piece in pieces:
                for batch in read_piece(piece, declared):
                    store.append(part_of(batch))
                    if batch.persons is not None and batch.digests is not None:
                        digests.append((batch.persons, batch.digests))
                    advance(batch.raw.size, len(batch))
        return store if declared.person is None else _bounded(store, digests, declared.contributions)

    def features(self, records: Records, domain: Domain, features: Features) -> Records:
        """Compute features part by part; the map may use several threads itself."""
        store, parts = PartStore(), records.parts
        assert isinstance(parts, LocalParts)
        with progress.bar(records.rows, "features", "records") as advance:
            for load in parts.loaders():
                x, codes = load()
                z = featurised(x, domain, features, self.device, self.cache, advance)
                store.append((z, codes))
        return Records(store)

    def described(self) -> Mapping[str, Any]:
        """Name the engine and its threads."""
        return {"name": self.name, "threads": threads_here()}


def _bounded(store: PartStore, digests: PartStore, most: int) -> PartStore:
    """Keep at most so many records of each person."""

    def pairs() -> Iterator[tuple[Digests, Digests]]:
        for load in digests.loaders():
            persons, records = load()
            yield persons, records

    keep = chosen_in_parts(pairs, digests.rows, most)
    kept, done = PartStore(), 0
    for load in store.loaders():
        part = load()
        selected = keep[done : done + len(part[0])]
        done += len(selected)
        if selected.any():
            kept.append(tuple(array[selected] for array in part))
    store.close()
    digests.close()
    return kept
