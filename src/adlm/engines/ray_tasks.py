"""Tasks on the workers of a Ray cluster. Nothing here logs, and errors are returned, not raised.

A traceback of a worker ends in the cluster's logs, and an error sentence may quote a private cell. So
sentences are returned to the driver as values.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from adlm.curator.featurise import featurise
from adlm.curator.passes import Chain, Keep, Partial, keep_part, sum_part
from adlm.curator.totals import Totals
from adlm.errors import UserError
from adlm.public.domain import Domain
from adlm.public.domain.table import TableDomain
from adlm.public.features import Features
from adlm.readers.contributions import chosen
from adlm.readers.input_pieces import InputPieces, batches_of
from adlm.readers.tables import Piece, read_compact
from adlm.runtime.part_store import Part
from adlm.version import __version__

PERSON, RECORD, SHARE = ("person high", "person low"), "record", "share"


@dataclass(frozen=True)
class Refusal:
    """An error in the input, as a sentence."""

    sentence: str


def refusals_class() -> Any:
    """Return an actor's class that collects the errors of a read; each has the index of its piece.

    A class inside a function is pickled by value, so that its worker need not import this package.
    """

    class Refusals:
        def __init__(self) -> None:
            self._found: dict[int, str] = {}

        def add(self, piece: int, sentence: str) -> None:
            self._found.setdefault(piece, sentence)

        def first(self) -> str | None:
            return self._found[min(self._found)] if self._found else None

    return Refusals


def versions() -> dict[str, str]:
    """Versions of the libraries that affect results."""
    return {
        "adlm": __version__,
        "numpy": np.__version__,
        "torch": str(torch.__version__),
        "pyarrow": pa.__version__,
        "python": platform.python_version(),
    }


def read_piece(piece: Piece, table: TableDomain, block_bytes: int) -> Iterator[Any]:
    """Read a piece of a table, as blocks of an array per column, class codes and digests of persons.

    Each block is preceded by its number of records and the approximate bytes read; a row that cannot be read
    ends the piece with a refusal.

    Parameters
    ----------
    piece : what to read.
    table : the declared columns.
    block_bytes : approximate size of a block.
    """
    waiting: list[pa.Table] = []
    taken = 0
    try:
        for batch in read_compact(piece, table):
            arrays = {str(at): array for at, array in enumerate(batch.columns)}
            arrays["y"] = batch.y.astype(np.int32)
            if batch.persons is not None and batch.records is not None:
                arrays |= {name: batch.persons[:, at] for at, name in enumerate(PERSON)}
                arrays[RECORD] = batch.records
            waiting.append(pa.table({name: pa.array(np.ascontiguousarray(a)) for name, a in arrays.items()}))
            taken += batch.size
            if sum(part.nbytes for part in waiting) >= block_bytes:
                yield from _block(waiting, taken)
                waiting, taken = [], 0
        yield from _block(waiting, taken)
    except UserError as error:
        yield Refusal(str(error))


def _block(parts: Sequence[pa.Table], taken: int) -> Iterator[Any]:
    if parts:
        block = pa.concat_tables(parts).combine_chunks()
        yield block.num_rows, taken
        yield block


def with_share(block: pa.Table, shares: int) -> pa.Table:
    """Add a column with each record's share of the persons."""
    share = block[PERSON[0]].to_numpy() % np.uint64(shares)
    return block.append_column(SHARE, pa.array(share.astype(np.int64)))


def choose(group: pa.Table, most: int) -> pa.Table:
    """Keep at most `most` records of each person of a share."""
    persons = np.stack([group[name].to_numpy() for name in PERSON], 1)
    keep = chosen(persons, group[RECORD].to_numpy(), most)
    return group.drop_columns([*PERSON, RECORD, SHARE]).filter(pa.array(keep))


def arrays_of(block: pa.Table | Part) -> Part:
    """Return the arrays of a block, without the digests of persons."""
    if isinstance(block, tuple):
        return block
    names = [name for name in block.column_names if name not in (*PERSON, RECORD, SHARE)]
    if not any(isinstance(kind, pa.BaseExtensionType) for kind in block.schema.types):
        return tuple(np.concatenate([np.from_dlpack(c) for c in block[name].chunks]) for name in names)
    from ray.data.block import BlockAccessor  # features: a vector in each cell

    columns = BlockAccessor.for_block(block.select(names)).to_numpy(names)
    return tuple(columns[name] for name in names)


def sum_block(block: pa.Table | Part, chain: Chain, partial: Partial) -> Totals | Refusal:
    """Sum a block by a partial function."""
    torch.set_num_threads(1)
    try:
        return sum_part(arrays_of(block), chain, partial)
    except UserError as error:
        return Refusal(str(error))


def keep_block(block: pa.Table | Part, chain: Chain, function: Keep) -> tuple[Part, Totals | Refusal]:
    """Return the stored part of a block, and its sums."""
    torch.set_num_threads(1)
    try:
        return keep_part(arrays_of(block), chain, function)
    except UserError as error:
        return (), Refusal(str(error))


class FeatureActor:
    """A worker that holds a map of public features, and applies it to chunks of records.

    Parameters
    ----------
    features, domain : the map, and the declared domain of the records.
    device : where the map runs.
    threads : of the driver, so that the same operations run in the same order.
    """

    def __init__(self, features: Features, domain: Domain, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._features, self._domain, self._device = features, domain, device

    def __call__(
        self, numbers: dict[str, NDArray[np.int64]], chunks: Sequence[Any] | InputPieces, refusals: Any
    ) -> Iterator[dict[str, Any]]:
        """Compute features of chunks of arrays, or of pieces of files, given by their indices."""
        import ray

        for number in numbers["id"].tolist():
            try:
                if isinstance(chunks, InputPieces):
                    rows = max(1, 1024 // self._features.batch) * self._features.batch
                    for batch in batches_of(chunks.pieces[number], chunks.declared, rows):
                        yield self._mapped(batch.x, batch.y)
                else:
                    yield self._mapped(*ray.get(chunks[number]))
            except UserError as error:
                ray.get(refusals.add.remote(number, str(error)))

    def _mapped(self, x: NDArray[Any], codes: NDArray[np.int64]) -> dict[str, Any]:
        return {"0": featurise(x, self._domain, self._features, device=self._device), "y": codes}
