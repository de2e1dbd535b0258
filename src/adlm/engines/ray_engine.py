"""The engine of a cluster: tasks read blocks and sum over them; Ray Data groups persons and maps features.

Records and what is stored of them lie in Ray's object store and, when that is full, in its spill folder. The
driver holds references to them and sums. A cluster that is started here keeps all its files in a folder that
only its owner can read, and which is removed at the end. Its servers listen on the loopback interface alone,
unless the user sets RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1, by which Ray opens them to other machines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.curator.passes import Chain, Keep, Partial, Records, Transform
from adlm.curator.totals import Totals, merge
from adlm.engines import ray_tasks as tasks
from adlm.engines.engine import Engine
from adlm.engines.ray_cluster import (
    FOLDER,
    OPEN,
    knock,
    loopback_only,
    memory_for_store,
    processors,
    quiet,
    remove_left_behind,
    short_folder,
)
from adlm.errors import UserError
from adlm.public.domain import Domain
from adlm.public.domain.table import TableDomain
from adlm.public.features import Features
from adlm.readers.input_pieces import InputPieces
from adlm.readers.tables import Piece, pieces_of
from adlm.runtime import progress

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
        here = tasks.versions()
        function = self._ray.remote(num_cpus=0)(tasks.versions)
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
        remote = self._ray.remote(num_cpus=1, max_retries=RETRIES, num_returns="streaming")(tasks.read_piece)
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
                    elif isinstance(message, tasks.Refusal):
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
            tasks.with_share, batch_format="pyarrow", batch_size=None, fn_args=(shares,)
        ).groupby("share", num_partitions=min(shares, 2 * self.processors()))
        chosen = grouped.map_groups(tasks.choose, batch_format="pyarrow", fn_args=(most,))
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
            tasks.FeatureActor,
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
        return self._ray.remote(num_cpus=0)(tasks.refusals_class()).remote()

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
            if isinstance(value, tasks.Refusal):
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
        for number, _, sums in self._engine.run(tasks.sum_block, self._parts, 1, self._chain, partial):
            totals = merge(totals, sums)
            if advance is not None:
                advance(self._parts[number].rows)
        return totals

    def keep(self, function: Keep, advance: progress.Advance | None = None) -> tuple[Records, Totals | None]:
        """Sum, and store the function's output in the object store."""
        totals: Totals | None = None
        kept: dict[int, Kept] = {}
        for number, refs, sums in self._engine.run(tasks.keep_block, self._parts, 2, self._chain, function):
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
