"""Work that is measured in a separate process, for its own peak memory.

`python -m benchmarks.bench_subjects NAME '{"n": 1800}'` prints one JSON object with `seconds` and `peak`, the
process's largest resident set in bytes.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from benchmarks import dpsgd, environment

Given = dict[str, Any]
Figures = dict[str, Any]


def measure(name: str, given: Given) -> Figures:
    """Run a subject in a new process and return its figures."""
    words = [sys.executable, "-m", "benchmarks.bench_subjects", name, json.dumps(given)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the bench's subject {name} failed: {last}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _noise_images(given: Given) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Random images of MNIST's size: speed does not depend on their content."""
    chance = np.random.default_rng(0)
    side = int(given.get("side", 28))
    x = chance.integers(0, 256, (given["n"], side, side), dtype=np.uint8)
    return x, chance.integers(0, 10, (given["n"],), dtype=np.int64)


def _domain(given: Given) -> Any:
    from adlm.domain import Domain

    side = int(given.get("side", 28))
    return Domain((side, side), 0, 255, tuple(map(str, range(10))))


def _settings(batch: int) -> Any:
    from adlm.paper.release import Settings

    return Settings(Fraction(1), Fraction(1, 2), batch, Fraction(9800), "given", 25, "identical")


def pipeline_release(given: Given) -> Figures:
    """From a data set's files to an evaluated model, by a release."""
    from adlm.data import datasets
    from adlm.mechanism.privatise import privatise
    from adlm.model.fit import fit

    start, used = time.perf_counter(), time.process_time()
    train, test = datasets.load(given["data"], "train"), datasets.load(given["data"], "test")
    if "at" in given:  # after the data set was found, which may be in the usual cache
        os.environ["ADLM_CACHE"] = given["at"]
    release = privatise(
        train.x[: given["n"]],
        train.y[: given["n"]],
        domain=train.domain,
        epsilon=given["epsilon"],
        delta="1e-5",
        cache=given["cache"],
        allocation=given.get("allocation"),  # class sums alone, without gradient rounds
    )
    accuracy = float((fit(release).predict(test.x) == test.y).mean())
    return {
        "seconds": time.perf_counter() - start,
        "processor": time.process_time() - used,
        "accuracy": accuracy,
    }


def pipeline_opacus(given: Given) -> Figures:
    """The same by DP-SGD on the tanh network, to its own best accuracy; or some epochs, to be multiplied."""
    import torch

    from adlm.data import datasets

    start, used = time.perf_counter(), time.process_time()
    train, test = datasets.load(given["data"], "train"), datasets.load(given["data"], "test")
    x, y = torch.from_numpy(train.domain.scale(train.x[: given["n"]])), train.y[: given["n"]]
    torch.manual_seed(0)
    network = dpsgd.tanh(train.domain.shape, len(train.domain.classes))
    certificate = dpsgd.certify(dpsgd.TANH, len(x), given["epsilon"])
    settings, share = dpsgd.TANH, 1.0
    if given["epochs"] is not None:
        settings = replace(dpsgd.TANH, epochs=given["epochs"])
        steps = settings.steps(len(x))
        share, certificate = steps / certificate.steps, replace(certificate, steps=steps)
    began, before = time.perf_counter(), time.process_time()
    trained = dpsgd.follow(network, x, y, settings, certificate)
    training, processor = time.perf_counter() - began, time.process_time() - before
    accuracy = dpsgd.accuracy(trained.network, torch.from_numpy(test.domain.scale(test.x)), test.y)
    return {
        "seconds": to_the_end(time.perf_counter() - start, training, share),
        "processor": to_the_end(time.process_time() - used, processor, share),
        "accuracy": accuracy,
    }


def to_the_end(seconds: float, training: float, share: float) -> float:
    """Extrapolate the time of work of which only a share of training was done; steps take equal time."""
    return seconds + training * (1 / share - 1)


def release_records_to_disk(given: Given) -> Figures:
    """Write a record release to a folder."""
    from adlm.paper.release import PrivateRecords
    from adlm.paper.release import release as release_records
    from adlm.privacy.ledger import Ledger
    from adlm.privacy.noise import Source

    x, y = _noise_images(given)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        made = release_records(
            PrivateRecords(x, y, _domain(given)),
            _settings(1800),
            relevance=None,
            ledger=Ledger(),
            source=Source.system(),
        )
        made.save(Path(folder) / "release")
        return {"seconds": time.perf_counter() - start, "input": x.nbytes}


def release_moments_of(given: Given) -> Figures:
    """Class sums of vectors in memory."""
    from adlm.domain import Domain
    from adlm.features.base import Identity
    from adlm.mechanism.planner import Plan
    from adlm.mechanism.privatise import release_by_plan
    from adlm.privacy.accounting import Budget
    from adlm.privacy.ledger import Ledger
    from adlm.privacy.noise import Source

    k = given["k"]
    chance = np.random.default_rng(0)
    y = chance.integers(0, 10, (given["n"],), dtype=np.int64)
    z = chance.normal(size=(given["n"], k)).astype(np.float32)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    plan = Plan("class sums", 10, k, "gaussian")
    domain = Domain((k,), 0, 1, tuple(map(str, range(10))))
    features = Identity((k,))

    def release(rows: int) -> float:
        start = time.perf_counter()
        release_by_plan(
            lambda: [(z[i : i + 4000], y[i : i + 4000]) for i in range(0, rows, 4000)],
            domain,
            plan=plan,
            budget=Budget.of(1, "1e-5"),
            features=features,
            ledger=Ledger(),
            source=Source.system(),
        )
        return time.perf_counter() - start

    release(min(100, len(z)))  # warm-up: imports and calibration are not part of growth
    return {"seconds": release(len(z))}


COLUMNS = 10
EPSILON = "1"
BLOCK = 200_000
DOMAIN = "".join(f'[columns.v{i}]\nkind = "numeric"\nlower = 0\nupper = 100\n' for i in range(COLUMNS)) + (
    '[columns.y]\nkind = "label"\nclasses = ["no", "yes"]\n'
)


def write_numbers(folder: Path, rows: int, kinds: tuple[str, ...]) -> dict[str, Path]:
    """Write tables of ten numeric columns, the same ones in each kind of file, a block at a time."""
    chance = np.random.default_rng(0)
    files = {kind: folder / f"{rows}.{kind}" for kind in kinds}
    writers: dict[str, Any] = {}
    for start in range(0, rows, BLOCK):
        size = min(BLOCK, rows - start)
        x = chance.normal(50, 15, (size, COLUMNS)).round(6)
        y = np.where(x[:, 0] + x[:, 1] - x[:, 2] + chance.normal(0, 10, size) > 50, "yes", "no")
        table = pa.table({f"v{i}": x[:, i] for i in range(COLUMNS)} | {"y": y})
        for kind, file in files.items():
            if kind not in writers:
                make: Callable[..., Any] = arrow_csv.CSVWriter if kind == "csv" else parquet.ParquetWriter
                writers[kind] = make(file, table.schema)
            writers[kind].write_table(table)
    for writer in writers.values():
        writer.close()
    return files


def release_numbers(given: Given) -> Figures:
    """Release a table of numbers: read once and stored, or read again cell by cell in each pass.

    `mechanism` is `rounds` (with delta) or `perturbed loss` (pure epsilon, the default). `processor` has
    the CPU seconds of this process and of the cluster's, for a machine that is not idle. `threads` limits the
    threads of this process, Arrow included; Ray does the same to its workers.
    """
    from adlm import privatise
    from adlm.data.reading import read_batches
    from adlm.domain import encoding
    from adlm.domain.table import TableDomain
    from adlm.engine import passes

    threads = given.get("threads")
    if threads:
        setattr(passes, "threads_here", lambda: int(threads))  # noqa: B010
        pa.set_cpu_count(int(threads))
        torch.set_num_threads(int(threads))
    table = TableDomain.from_toml(DOMAIN)
    if given.get("engine") == "ray":
        return _by_ray(given, table)
    source: Any = given["file"]
    if given.get("each_pass"):
        setattr(encoding, "is_text", lambda values: False)  # noqa: B010
        source = lambda: ((b.x, b.y) for b in read_batches(given["file"], table))  # noqa: E731
    start, used = time.perf_counter(), time.process_time()
    made = privatise(source, domain=table, epsilon=EPSILON, seed=1, delta=_delta(given))
    return {
        "seconds": time.perf_counter() - start,
        "processor": time.process_time() - used,
        "digest": made.certificate.digest,
    }


def _delta(given: Given) -> str:
    return "1e-5" if given.get("mechanism") == "rounds" else "0"


def _by_ray(given: Given, table: Any) -> Figures:
    from adlm import privatise
    from adlm.engine.ray import RayEngine

    start = time.perf_counter()
    engine = RayEngine(workers=given["workers"], store_bytes=given.get("store", 2 << 30))
    try:
        begun, used = time.perf_counter(), time.process_time() + sum(of_cluster("processor"))
        made = privatise(
            given["file"], domain=table, epsilon=EPSILON, seed=1, engine=engine, delta=_delta(given)
        )
        done = time.perf_counter()
        return {
            "seconds": done - begun,
            "processor": time.process_time() + sum(of_cluster("processor")) - used,
            "started": begun - start,
            "digest": made.certificate.digest,
            "workers_peak": max(of_cluster("peak"), default=0),
        }
    finally:
        engine.close()


def of_cluster(what: str) -> list[float]:
    """Return the resources used by the processes of this process's Ray cluster.

    `processor` is the CPU seconds of all of them; `peak` the largest resident sizes of workers, in bytes.
    """
    values, session = [], f"_{os.getpid()}/"
    tick = os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            after = (folder / "stat").read_text().rpartition(")")[2].split()
            own, parent = _command(folder), _command(Path("/proc", after[1]))
            worker = "raylet" in parent and session in parent
            if not (worker or (what == "processor" and session in own)):
                continue
            if what == "processor":
                values.append((int(after[11]) + int(after[12])) / tick)
            else:
                status = (folder / "status").read_text().splitlines()
                values.append(
                    float(next(line for line in status if line.startswith("VmHWM:")).split()[1]) * 1024
                )
        except (OSError, StopIteration, IndexError):
            continue
    return values


def _command(process: Path) -> str:
    return (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", "/")


WIDE = (10, 44, 7)  # numeric and boolean columns, classes


def wide_domain() -> Any:
    """Declare a synthetic table of 54 columns and 7 classes."""
    from adlm.domain.columns import Column
    from adlm.domain.table import TableDomain

    numeric, boolean, classes = WIDE
    columns = [Column(f"x{i}", "numeric", 0, 1) for i in range(numeric)]
    columns += [Column(f"b{i}", "boolean") for i in range(boolean)]
    return TableDomain((*columns, Column("y", "label", classes=tuple(f"c{i}" for i in range(classes)))))


def wide_batches(rows: int) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
    """Yield the rows of that table, a batch at a time: values, and positions of classes."""
    numeric, boolean, classes = WIDE
    chance = np.random.default_rng(0)
    for start in range(0, rows, 8192):
        size = min(8192, rows - start)
        y = chance.integers(0, classes, size)
        x = chance.random((size, numeric + boolean), dtype=np.float32)
        x[:, :numeric] = 0.7 * x[:, :numeric] + 0.3 * (y[:, None] == np.arange(numeric) % classes)
        x[:, numeric:] = x[:, numeric:] < 0.1
        yield x, y


def release_wide_table(given: Given) -> Figures:
    """Release a synthetic table of 54 columns and 7 classes: by gradient rounds, or a perturbed loss.

    Batches are generated in each pass, so that memory is that of the release alone.
    """
    from adlm.mechanism.privatise import privatise

    rows = int(given["n"])
    start, used = time.perf_counter(), time.process_time()
    privatise(
        lambda: wide_batches(rows),
        domain=wide_domain(),
        epsilon="1",
        delta="0" if given["pure"] else "1e-5",
        size=rows,
    )
    return {"seconds": time.perf_counter() - start, "processor": time.process_time() - used}


SUBJECTS: dict[str, Callable[[Given], Figures]] = {
    "pipeline-release": pipeline_release,
    "pipeline-opacus": pipeline_opacus,
    "records": release_records_to_disk,
    "moments": release_moments_of,
    "numbers": release_numbers,
    "wide-table": release_wide_table,
}


def main(words: list[str]) -> None:
    """Run a subject and print its figures with the process's peak memory."""
    figures = SUBJECTS[words[0]](json.loads(words[1]))
    print(json.dumps(figures | {"peak": peak_memory()}))


def peak_memory() -> int:
    """Return the largest resident size of this process in bytes.

    On Linux `ru_maxrss` starts from the size of the parent process, so this process's own high-water mark is
    read where there is one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
