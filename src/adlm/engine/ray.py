"""The engine of a cluster: Ray tasks read blocks of private records and sum over them."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from adlm.data.images import InputPieces, batches_of
from adlm.data.tables import Piece, chosen, pieces_of, read_compact
from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.engine.local import Engine
from adlm.engine.passes import (
    Chain,
    Keep,
    Part,
    Partial,
    Records,
    Totals,
    Transform,
    keep_part,
    merge,
    sum_part,
)
from adlm.engine.records import featurise
from adlm.errors import UserError
from adlm.features import Features
from adlm.runtime import progress
from adlm.runtime.artefact import is_alive
from adlm.version import __version__

# ---- A Ray cluster on this machine: its folder, its size, its network, and clean-up after killed drivers.

STORE_SHARE = 0.3  # of the free memory, for the object store of a local cluster
FOLDER = "adlm-ray-"  # followed by the id of the process that started the cluster
LONGEST = 15  # characters of the temporary folder: a socket's path has at most 107
ANSWER_SECONDS = 10.0
OPEN = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # Ray's own setting: 1 lets other machines reach a cluster, 0 not
_HOST_PORT = re.compile(r"(?:ray://)?([^:/]+):([0-9]+)")


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Let servers that Ray starts inside listen on the loopback interface alone; not if OPEN is set.

    By Ray's default on Linux they listen on all interfaces, and whoever reaches them can run code.
    """
    if OPEN in os.environ:
        yield
        return
    from ray._private import ray_constants  # it has read the variable when Ray was imported

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER, os.environ[OPEN] = False, "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(OPEN, None)


def knock(address: str) -> None:
    """Raise OSError if no server listens at HOST:PORT; Ray would retry for minutes."""
    match = _HOST_PORT.fullmatch(address)
    if match is not None:
        with socket.create_connection((match[1], int(match[2])), timeout=ANSWER_SECONDS):
            pass


def short_folder() -> Path:
    """Return the temporary folder, or a shorter one if paths of sockets in it would be too long."""
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= LONGEST else Path("/tmp")


def remove_left_behind() -> int:
    """Remove the folders of clusters whose driver was killed; return their number."""
    count = 0
    for folder in short_folder().glob(f"{FOLDER}*"):
        number = folder.name.removeprefix(FOLDER).partition("-")[0]
        if number.isdecimal() and not is_alive(int(number)) and folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
            count += 1
    return count


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_for_store() -> int:
    """Return a share of the free memory, at least Ray's minimum."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        free = 1 << 31
    return max(100 << 20, int(STORE_SHARE * free))


def quiet() -> None:
    """Silence Ray's messages."""
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


# ---- Tasks on the workers of a Ray cluster. Nothing here logs, and errors are returned, not raised.
#
# A traceback of a worker ends in the cluster's logs, and an error sentence may quote a private cell. So
# sentences are returned to the driver as values.

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


# ---- The engine of a cluster: tasks read blocks and sum over them; Ray Data groups persons and maps
# features.
#
# Records and what is stored of them lie in Ray's object store and, when that is full, in its spill folder.
# The driver holds references to them and sums. A cluster that is started here keeps all its files in a
# folder that only its owner can read, and which is removed at the end. Its servers listen on the loopback
# interface alone, unless the user sets RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1, by which Ray opens them to
# other machines.

BLOCK_BYTES = 1 << 23  # of a block of stored records
GROUP_ROWS = 1 << 20  # records of the persons that one group-by task sorts
RETRIES = 10  # of a task whose worker or node was lost
WAITING = 4  # tasks in the queue for each processor
INSTALL = "the engine ray needs Ray; install it with: pip install 'adlm[ray]'"


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UserError(INSTALL) from None
    return ray


@dataclass(frozen=True)
class Kept:
    """A part in the object store: a reference, and its number of records."""

    ref: Any
    rows: int


class RayEngine(Engine):
    """Passes on a Ray cluster.

    Parameters
    ----------
    address : of the cluster; `auto` is the one that this machine belongs to. None starts one on this machine,
        unless this process is connected to one already.
    workers : processors of a local cluster; by default all.
    store_bytes : size of its object store.
    """

    name = "ray"
    reads_files = True

    def __init__(
        self, address: str | None = None, *, workers: int | None = None, store_bytes: int | None = None
    ) -> None:
        self._ray = _ray()
        self._folder: Path | None = None
        self._network = contextlib.ExitStack()
        self._started = False
        if not self._ray.is_initialized():
            self._connect(address, workers, store_bytes)
        elif address is not None:
            raise UserError("this process is connected to a Ray cluster already; leave the address out")
        quiet()
        self._check_versions()

    def _connect(self, address: str | None, workers: int | None, store_bytes: int | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # workers have the priority of this process
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            remove_left_behind()
            prefix = f"{FOLDER}{os.getpid()}-"
            self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=short_folder()))  # has mode 0700
            inner = str(self._folder / "r")  # Ray makes its folder readable by everyone
            options |= {
                "num_cpus": workers or processors(),
                "include_dashboard": False,
                "object_store_memory": store_bytes or memory_for_store(),
                "_temp_dir": inner,
                "object_spilling_directory": str(self._folder),
            }
        else:
            options["address"] = address
        try:
            if address is None:
                self._network.enter_context(loopback_only())
            else:
                knock(address)
            self._ray.init(**options)
        except Exception as error:  # a timeout at the start is a bare Exception
            self.close()
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            place = "could be started here" if address is None else f"answers at {address}"
            raise UserError(
                f"no Ray cluster {place} ({reason}); check the address, or use --engine local"
            ) from None
        self._started = True
        here = str(self._ray.util.get_node_ip_address())
        if address is None and os.environ.get(OPEN) == "0" and not ip_address(here).is_loopback:
            self.close()
            raise UserError(
                f"this version of Ray would start a cluster that other machines can reach (at {here}); use "
                f"--engine local, start a cluster with ray start and give its address, or set {OPEN}=1"
            )

    def _check_versions(self) -> None:
        """Refuse workers with other versions, whose results could differ."""
        here = versions()
        function = self._ray.remote(num_cpus=0)(versions)
        there = self._get(function.options(scheduling_strategy="SPREAD").remote())
        if there != here:
            raise UserError(
                f"the cluster's workers have {there}, this process has {here}; install the same on both"
            )

    def table(self, source: Path | str, table: TableDomain) -> Records:
        """Read files on the workers, and store their records in the object store."""
        pieces = pieces_of(source, table)
        kept: list[Kept] = []
        with progress.amounts(sum(piece.size for piece in pieces), "reading") as advance:
            for part, size in self._read(pieces, table):
                kept.append(part)
                advance(size, part.rows)
        if table.person is not None and kept:
            kept = self._bounded(kept, table.contributions)
        return RayRecords(self, kept)

    def _read(self, pieces: Sequence[Piece], table: TableDomain) -> Iterator[tuple[Kept, int]]:
        """Run a task for each piece, and yield its blocks as they finish, with the approximate bytes read.

        An error is raised at the end: the first one, in the order of the files.
        """
        remote = self._ray.remote(num_cpus=1, max_retries=RETRIES, num_returns="streaming")(read_piece)
        declared, left = self._ray.put(table), deque(enumerate(pieces))
        reading: dict[Any, int] = {}
        refused: dict[int, str] = {}
        try:
            while left or reading:
                while left and len(reading) < WAITING * self.processors():
                    number, piece = left.popleft()
                    reading[remote.remote(piece, declared, BLOCK_BYTES)] = number
                for stream in self._ray.wait(list(reading), num_returns=1, fetch_local=False)[0]:
                    message = self._get(next(stream, None))
                    if message is None:
                        del reading[stream]
                    elif isinstance(message, Refusal):
                        refused[reading[stream]] = message.sentence
                    else:
                        yield Kept(next(stream), message[0]), message[1]
        except Exception as error:
            raise self._sentence(error) from None
        if refused:
            raise UserError(refused[min(refused)])

    def _bounded(self, kept: Sequence[Kept], most: int) -> list[Kept]:
        """Group records by person, a share of the persons in each group, and keep at most `most` of each."""
        shares = max(1, -(-sum(part.rows for part in kept) // GROUP_ROWS))
        data = self._quiet_data().from_arrow_refs([part.ref for part in kept])
        grouped = data.map_batches(
            with_share, batch_format="pyarrow", batch_size=None, fn_args=(shares,)
        ).groupby("share", num_partitions=min(shares, 2 * self.processors()))
        chosen = grouped.map_groups(choose, batch_format="pyarrow", fn_args=(most,))
        return [Kept(ref, rows) for ref, rows, _ in self._blocks(chosen)]

    def features(
        self,
        x: NDArray[Any] | InputPieces,
        codes: NDArray[np.int64] | None,
        domain: Domain,
        features: Features,
    ) -> Records:
        """Compute features by actors, each of which loads the map once; on GPUs if there are any.

        Pieces of files are read and decoded by the actors.

        Parameters
        ----------
        x, codes : records and their class codes, or pieces of files and None.
        domain : to scale the records by.
        features : the public map.
        """
        chunks = x if isinstance(x, InputPieces) else self._chunks(np.asarray(x), codes, features)
        count = len(chunks.pieces) if isinstance(chunks, InputPieces) else len(chunks)
        refusals = self._refusals()
        cards = int(self._ray.cluster_resources().get("GPU", 0))
        most = max(1, min(count, cards or self.processors()))
        data = self._data(count).map_batches(
            FeatureActor,
            batch_size=1,
            batch_format="numpy",
            concurrency=(1, most),
            num_gpus=1 if cards else 0,
            num_cpus=1,
            fn_constructor_args=(features, domain, "cuda" if cards else "cpu", torch.get_num_threads()),
            fn_args=(chunks, refusals),
        )
        kept = []
        with progress.bar(len(x), "features", "records") as advance:
            for ref, rows, _ in self._blocks(data):
                kept.append(Kept(ref, rows))
                advance(rows)
        self._raise_refusals(refusals)
        return RayRecords(self, kept)

    def _chunks(
        self, records: NDArray[Any], codes: NDArray[np.int64] | None, features: Features
    ) -> list[Any]:
        """Put an array into the object store, in chunks of whole batches, as on one machine."""
        assert codes is not None
        size = max(1, 4096 // features.batch) * features.batch
        starts = range(0, len(records), size)
        return [self._ray.put((records[i : i + size], codes[i : i + size])) for i in starts]

    def _quiet_data(self) -> Any:
        """Return Ray Data, silenced and with our block size; importing it is slow."""
        try:
            import ray.data
        except ImportError:
            raise UserError(INSTALL) from None
        context = ray.data.DataContext.get_current()
        context.target_max_block_size = BLOCK_BYTES
        context.enable_progress_bars = False
        context.enable_rich_progress_bars = False
        context.print_on_execution_start = False
        context.use_ray_tqdm = False
        context.log_internal_stack_trace_to_stdout = False
        context.execution_options.verbose_progress = False
        quiet()
        return ray.data

    def _data(self, parts: int) -> Any:
        """Return a Ray data set of the indices of parts, one a block."""
        return self._quiet_data().range(parts, override_num_blocks=parts)

    def _blocks(self, data: Any) -> Iterator[tuple[Any, int, int]]:
        """Run a Ray data set, and yield references to its blocks with their rows and bytes as they finish."""
        try:
            for bundle in data.iter_internal_ref_bundles():
                for ref, about in zip(bundle.block_refs, bundle.metadata, strict=True):
                    if about.num_rows:
                        yield ref, int(about.num_rows), int(about.size_bytes or 0)
        except Exception as error:
            raise self._sentence(error) from None

    def _refusals(self) -> Any:
        return self._ray.remote(num_cpus=0)(refusals_class()).remote()

    def _raise_refusals(self, refusals: Any) -> None:
        """Raise the first error in a file, in the order of the files."""
        found = self._get(refusals.first.remote())
        if found is not None:
            raise UserError(found)

    def processors(self) -> int:
        """Return the number of processors of the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def run(self, function: Any, parts: Sequence[Kept], returns: int, *given: Any) -> Iterator[Any]:
        """Run a task for each part, a few at a time; yield results as they finish, with the part's index."""
        remote = self._ray.remote(
            num_cpus=1, max_retries=RETRIES, retry_exceptions=False, num_returns=returns
        )(function)
        sent = [self._ray.put(value) for value in given]
        waiting: dict[Any, tuple[int, Any]] = {}
        most = WAITING * self.processors()
        try:
            for number, part in enumerate(parts):
                if len(waiting) >= most:
                    yield from self._ready(waiting)
                refs = remote.remote(part.ref, *sent)
                refs = refs if returns > 1 else [refs]
                waiting[refs[-1]] = (number, refs)
            while waiting:
                yield from self._ready(waiting)
        finally:
            for _, refs in waiting.values():
                self._ray.cancel(refs[-1], force=False)

    def _ready(self, waiting: dict[Any, tuple[int, Any]]) -> Iterator[Any]:
        done, _ = self._ray.wait(list(waiting), num_returns=1)
        for ref in done:
            number, refs = waiting.pop(ref)
            value = self._get(ref)
            if isinstance(value, Refusal):
                raise UserError(value.sentence)
            yield number, refs, value

    def _get(self, ref: Any) -> Any:
        try:
            return None if ref is None else self._ray.get(ref)
        except Exception as error:
            raise self._sentence(error) from None

    def _sentence(self, error: BaseException) -> BaseException:
        """Turn an error of Ray into one sentence, without data of a worker."""
        if isinstance(error, UserError) or not isinstance(error, Exception):
            return error
        name = type(getattr(error, "cause", None) or error).__name__
        return UserError(
            f"the Ray cluster could not finish its work ({name}); see that its nodes are up and have memory "
            "and disk to spare, then release again, or use --engine local"
        )

    def described(self) -> Mapping[str, Any]:
        """Name the engine, its version and its processors."""
        return {"name": self.name, "ray": str(self._ray.__version__), "workers": self.processors()}

    def close(self) -> None:
        """Leave the cluster, or stop it and remove its files if it was started here."""
        if self._started:
            self._ray.shutdown()
            self._started = False
        self._network.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class RayRecords(Records):
    """Records in a cluster's object store."""

    def __init__(self, engine: RayEngine, parts: Sequence[Kept], chain: Chain = ()) -> None:
        self._engine, self._parts, self._chain = engine, list(parts), chain
        self.rows = sum(part.rows for part in parts)

    def total(self, partial: Partial, advance: progress.Advance | None = None) -> Totals | None:
        """Sum on the workers; the driver merges the sums of parts."""
        totals: Totals | None = None
        for number, _, sums in self._engine.run(sum_block, self._parts, 1, self._chain, partial):
            totals = merge(totals, sums)
            if advance is not None:
                advance(self._parts[number].rows)
        return totals

    def keep(self, function: Keep, advance: progress.Advance | None = None) -> tuple[Records, Totals | None]:
        """Sum, and store the function's output in the object store."""
        totals: Totals | None = None
        kept: dict[int, Kept] = {}
        for number, refs, sums in self._engine.run(keep_block, self._parts, 2, self._chain, function):
            totals = merge(totals, sums)
            kept[number] = Kept(refs[0], self._parts[number].rows)
            if advance is not None:
                advance(kept[number].rows)
        return RayRecords(self._engine, [kept[number] for number in sorted(kept)]), totals

    def mapped(self, transform: Transform) -> Records:
        """Add a step before every pass."""
        return RayRecords(self._engine, self._parts, (*self._chain, transform))

    def close(self) -> None:
        """Drop the references, so that the object store and its spill folder are emptied."""
        self._parts = []
