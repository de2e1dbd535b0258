"""The interface of an engine, which reads private records, stores them, and runs passes over them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.curator.passes import Records
from adlm.errors import UserError
from adlm.public.domain import Domain
from adlm.public.domain.table import TableDomain
from adlm.public.features import Features
from adlm.readers.input_pieces import InputPieces

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
        from adlm.engines.local import LocalEngine

        yield LocalEngine(device, cache=cache)
        return
    from adlm.engines.ray_engine import RayEngine

    cluster = RayEngine(address)
    try:
        yield cluster
    finally:
        cluster.close()
