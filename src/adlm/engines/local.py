"""The engine of one machine: threads, and an unnamed temporary file for what does not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.curator.featurise import featurise
from adlm.curator.passes import LocalRecords, Records, threads_here
from adlm.engines.engine import Engine
from adlm.public.domain import Domain
from adlm.public.domain.table import TableDomain
from adlm.public.features import Features
from adlm.readers.contributions import Digests, chosen_in_parts
from adlm.readers.input_pieces import InputPieces
from adlm.readers.tables import pieces_of, read_compact
from adlm.runtime import progress
from adlm.runtime.part_store import PartStore

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
