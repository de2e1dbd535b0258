"""What an engine does: it reads private records, keeps them, and goes over them in passes."""

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
    """Reads records once and keeps what passes need of them.

    Formal guarantees
    -----------------
    What is kept of a record depends on that record and on declarations alone, and which of a person's records
    are kept depends on that person's records alone. So all engines keep the same records, and every sum over
    them is the same integers. An engine never sees a source of noise, a ledger or a budget.
    """

    name: str
    reads_files = False  # whether `features` takes files of images or vectors that are not yet read

    @abstractmethod
    def table(self, source: Path | str, table: TableDomain) -> Records:
        """Read the files of a table: parts of an array a column, as `compact` gives it, and class codes."""

    @abstractmethod
    def features(
        self,
        x: NDArray[Any] | InputPieces,
        codes: NDArray[np.int64] | None,
        domain: Domain,
        features: Features,
    ) -> Records:
        """Take public features: parts of (n, width) features and class codes.

        Parameters
        ----------
        x : (n, *shape) records in memory, or files that `reads_files` allows to be given unread.
        codes : (n,) classes; None for files, which have their own.
        domain : of the records.
        features : the public map.
        """

    @abstractmethod
    def described(self) -> Mapping[str, Any]:
        """Say what the engine is, for a line of the certificate that its digest does not cover."""

    def close(self) -> None:
        """Let go of everything that was kept."""
        return None


@contextlib.contextmanager
def open_engine(
    engine: Engine | str = "local", address: str | None = None, *, device: str = "cpu", cache: bool = False
) -> Iterator[Engine]:
    """Open an engine by name for a while; one that is open already is left open.

    Parameters
    ----------
    engine : `local`, `ray`, or an engine.
    address : of a Ray cluster: `auto` is the one that this machine belongs to. Without it a cluster of this
        machine alone is started, and stopped at the end.
    device, cache : of the local engine: where features of images are taken, and whether to keep them on disk.
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

    made = RayEngine(address)
    try:
        yield made
    finally:
        made.close()
