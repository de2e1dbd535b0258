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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from adlm.data.images import Piece
from adlm.data.persons import chosen
from adlm.data.reading import read_piece
from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.engine.local import Engine, part_of
from adlm.engine.passes import Part, Parts, Records, Totals, blocks_of
from adlm.engine.records import FeatureMap
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
    logging.getLogger("ray").setLevel(logging.CRITICAL)


# ---- Tasks on the workers of a Ray cluster. Nothing here logs, and errors are returned, not raised.
#
# A traceback of a worker ends in the cluster's logs, and an error sentence may quote a private cell. So
# sentences are returned to the driver as values.


@dataclass(frozen=True)
class Refusal:
    """An error in the input, as a sentence."""

    sentence: str


def versions() -> dict[str, str]:
    """Versions of the libraries that affect results."""
    return {
        "adlm": __version__,
        "numpy": np.__version__,
        "torch": str(torch.__version__),
        "pyarrow": pa.__version__,
        "python": platform.python_version(),
    }


def read_blocks(piece: Piece, declared: TableDomain, block_bytes: int) -> Iterator[Any]:
    """Read a piece as blocks of about `block_bytes`, each preceded by its number of records and bytes read.

    Where records belong to persons, the last two arrays of a block are digests of persons and of records. A
    row that cannot be read ends the piece with a refusal.
    """
    waiting: list[Part] = []
    taken = 0
    try:
        for batch in read_piece(piece, declared):
            digests = () if batch.persons is None or batch.digests is None else (batch.persons, batch.digests)
            waiting.append((*part_of(batch), *digests))
            taken += batch.raw.size
            if sum(array.nbytes for part in waiting for array in part) >= block_bytes:
                yield sum(len(part[0]) for part in waiting), taken
                yield joined(waiting)
                waiting, taken = [], 0
        if waiting:
            yield sum(len(part[0]) for part in waiting), taken
            yield joined(waiting)
    except UserError as error:
        yield Refusal(str(error))


def joined(parts: Sequence[Part]) -> Part:
    """Concatenate parts."""
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def shares_of(block: Part, shares: int) -> tuple[Part, ...]:
    """Split a block by persons."""
    share = block[-2][:, 0] % np.uint64(shares)
    return tuple(tuple(array[share == at] for array in block) for at in range(shares))


def choose(most: int, *blocks: Part) -> tuple[Part, int]:
    """Keep at most `most` records of each person of a share, without their digests; and count them."""
    *arrays, persons, digests = joined(blocks)
    keep = chosen(persons, digests, most)
    return tuple(array[keep] for array in arrays), int(keep.sum())


def called(work: Callable[[Part], Any], block: Part) -> Any:
    """Run a pass over a block: what it gives, or a refusal."""
    torch.set_num_threads(1)
    try:
        return work(block)
    except UserError as error:
        return Refusal(str(error))


def called_to_keep(work: Callable[[Part], tuple[Part, Totals]], block: Part) -> tuple[Part, Totals | Refusal]:
    """Do the same for a pass that stores a part."""
    made = called(work, block)
    return ((), made) if isinstance(made, Refusal) else made


# ---- The engine of a cluster: tasks read blocks and sum over them.
#
# Records and what is stored of them lie in Ray's object store and, when that is full, in its spill folder.
# The driver holds references to them and sums. A cluster that is started here keeps all its files in a
# folder that only its owner can read, and which is removed at the end. Its servers listen on the loopback
# interface alone, unless the user sets RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1, by which Ray opens them to
# other machines.

BLOCK_BYTES = 1 << 23  # of a block of stored records
SHARE_ROWS = 1 << 20  # records of the persons that one task sorts
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

    def stored(self, parts: Sequence[Part]) -> Parts:
        """Put records of this process into the object store, in blocks."""
        kept = []
        for part in parts:
            each = max(1, sum(array.nbytes for array in part) // max(1, len(part[0])))
            for block in blocks_of(part, max(1, BLOCK_BYTES // each)):
                kept.append(Kept(self._ray.put(block), len(block[0])))
        return RayParts(self, kept)

    def read_pieces(self, pieces: Sequence[Piece], declared: TableDomain) -> Parts:
        """Read files on the workers, and store their records in the object store."""
        kept: list[Kept] = []
        with progress.amounts(sum(piece.size for piece in pieces), "reading") as advance:
            for part, size in self._read(pieces, declared):
                kept.append(part)
                advance(size, part.rows)
        if declared.person is not None and kept:
            kept = self._bounded(kept, declared.contributions)
        return RayParts(self, kept)

    def _read(self, pieces: Sequence[Piece], table: TableDomain) -> Iterator[tuple[Kept, int]]:
        """Run a task for each piece, and yield its blocks as they finish, with the approximate bytes read.

        An error is raised at the end: the first one, in the order of the files.
        """
        remote = self._ray.remote(num_cpus=1, max_retries=RETRIES, num_returns="streaming")(read_blocks)
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
        """Split blocks into shares of the persons, and keep at most `most` records of each person."""
        shares = max(1, -(-sum(part.rows for part in kept) // SHARE_ROWS))
        split = self._ray.remote(max_retries=RETRIES, num_returns=shares)(shares_of)
        chosen = self._ray.remote(max_retries=RETRIES, num_returns=2)(choose)
        rows = [split.remote(part.ref, shares) for part in kept] if shares > 1 else []
        of_shares = zip(*rows, strict=True) if shares > 1 else [[part.ref for part in kept]]
        made = [chosen.remote(most, *blocks) for blocks in of_shares]
        counted = [Kept(ref, self._get(count)) for ref, count in made]
        return [part for part in counted if part.rows]

    def features(self, records: Records, domain: Domain, features: Features) -> Records:
        """Compute features on the workers; on GPUs if there are any."""
        cards = int(self._ray.cluster_resources().get("GPU", 0))
        device = "cuda" if cards else "cpu"
        with progress.bar(records.rows, "features", "records") as advance:
            work = FeatureMap(domain, features, device, torch.get_num_threads())
            return records.keep(work, advance)[0]

    def processors(self) -> int:
        """Return the number of processors of the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def run(self, function: Any, parts: Sequence[Kept], returns: int, work: Any) -> Iterator[Any]:
        """Run a task for each part, a few at a time; yield results as they finish, with the part's index."""
        cards = 1 if getattr(getattr(work, "keywords", {}).get("function"), "device", "cpu") == "cuda" else 0
        remote = self._ray.remote(
            num_cpus=1, num_gpus=cards, max_retries=RETRIES, retry_exceptions=False, num_returns=returns
        )(function)
        sent = self._ray.put(work)
        waiting: dict[Any, tuple[int, Any]] = {}
        most = WAITING * self.processors()
        try:
            for number, part in enumerate(parts):
                if len(waiting) >= most:
                    yield from self._ready(waiting)
                refs = remote.remote(sent, part.ref)
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


class RayParts(Parts):
    """Parts in a cluster's object store."""

    def __init__(self, engine: RayEngine, kept: Sequence[Kept]) -> None:
        self._engine, self.blocks = engine, list(kept)
        self.rows = sum(part.rows for part in kept)

    def sums(self, work: Callable[[Part], Totals]) -> Iterator[tuple[int, Totals]]:
        """Sum on the workers; the driver merges the sums of parts."""
        for number, _, sums in self._engine.run(called, self.blocks, 1, work):
            yield self.blocks[number].rows, sums

    def kept(self, work: Callable[[Part], tuple[Part, Totals]]) -> Generator[tuple[int, Totals], None, Parts]:
        """Sum, and store parts in the object store."""
        kept: dict[int, Kept] = {}
        for number, refs, sums in self._engine.run(called_to_keep, self.blocks, 2, work):
            kept[number] = Kept(refs[0], self.blocks[number].rows)
            yield kept[number].rows, sums
        return RayParts(self._engine, [kept[number] for number in sorted(kept)])

    def close(self) -> None:
        """Drop the references, so that the object store and its spill folder are emptied."""
        self.blocks = []
