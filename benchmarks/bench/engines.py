"""Releases of tables by both engines, and by each way of reading files: measured side by side."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from adlm.runtime import progress
from benchmarks.bench.ratio import Ratio, column, interleave, ratio

if TYPE_CHECKING:
    from benchmarks.bench.comparisons import Scale

Given = dict[str, Any]
Figures = dict[str, Any]
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


def reading(scale: Scale) -> list[Ratio]:
    """Releases from CSV and from Parquet, stored numbers against cells read one by one in each pass."""
    rows = 30_000 if scale.quick else 500_000
    with tempfile.TemporaryDirectory() as folder:
        files = write_numbers(Path(folder), rows, ("csv", "parquet"))
        figures = _figures(
            {
                f"{kind}{' again' if again else ''}": {"file": str(file), "each_pass": again}
                for kind, file in files.items()
                for again in (False, True)
            },
            scale.repeats,
        )
    seconds = column(figures, "seconds")
    digests = {name: each[0]["digest"] for name, each in figures.items()}
    detail = {"rows": rows, "seconds": seconds, "same": digests["csv"] == digests["csv again"]}
    note = f"{rows:,} rows of {COLUMNS} numeric columns, epsilon {EPSILON}"
    csv, packed = seconds["csv"], seconds["parquet"]
    note += "; seconds: " + ", ".join(f"{name} {min(each):.1f}" for name, each in seconds.items())
    return [
        ratio("table from CSV over the same from Parquet", csv, packed, note=note, detail=detail),
        ratio(
            "table from Parquet, read once over read in each pass",
            packed,
            seconds["parquet again"],
            detail=detail,
        ),
        ratio(
            "table from CSV, read once over cell by cell in each pass",
            csv,
            seconds["csv again"],
            detail=detail,
        ),
    ]


def engines(scale: Scale) -> list[Ratio]:
    """The engines local and ray on the same files: time, memory of driver and workers, and the digest."""
    rows = 200_000 if scale.quick else 20_000_000
    ratios: list[Ratio] = []
    with tempfile.TemporaryDirectory() as folder:
        for mechanism, count in (("perturbed loss", rows), ("rounds", max(rows // 20, 50_000))):
            ratios += _side_by_side(Path(folder), mechanism, count, scale.repeats)
    return ratios


def _side_by_side(folder: Path, mechanism: str, rows: int, repeats: int) -> list[Ratio]:
    progress.say(f"bench: engines, {mechanism}: writing {rows:,} and {rows // 4:,} rows")
    file = str(write_numbers(folder, rows, ("parquet",))["parquet"])
    few = str(write_numbers(folder, rows // 4, ("parquet",))["parquet"])
    common: Given = {"file": file, "rows": rows, "mechanism": mechanism}
    quarter: Given = {"file": few, "rows": rows // 4, "mechanism": mechanism}
    runs: dict[str, Given] = {
        "local": common | {"threads": 1},
        "ray, 1 worker": common | {"threads": 1, "engine": "ray", "workers": 1},
        "local, a quarter": quarter | {"threads": 1},
        "ray, a quarter": quarter | {"threads": 1, "engine": "ray", "workers": 1},
        "local, 2 threads": common | {"threads": 2},
        "ray, 2 workers": common | {"threads": 1, "engine": "ray", "workers": 2},
    }
    try:
        figures = _figures(runs, repeats)
    except RuntimeError as error:
        return [Ratio(f"engine ray over local, {mechanism}", None, note=str(error))]
    digests = {each[0]["digest"] for name, each in figures.items() if "quarter" not in name}
    detail = {
        "rows": rows,
        "mechanism": mechanism,
        "seconds": column(figures, "seconds"),
        "processor": column(figures, "processor"),
        "started": {n: [f["started"] for f in e] for n, e in figures.items() if "started" in e[0]},
        "driver_peak": {name: max(f["peak"] for f in each) for name, each in figures.items()},
        "workers_peak": {
            n: max(f["workers_peak"] for f in e) for n, e in figures.items() if "started" in e[0]
        },
        "same_digest": len(digests) == 1,
    }
    equal = f"{rows:,} rows of {COLUMNS} numeric columns by {mechanism}; digests equal: {len(digests) == 1}"

    def against(name: str, one: str, other: str, what: str, note: str = "") -> Ratio:
        def values(of: str) -> list[float]:
            added = "started" if what == "seconds with start" else None
            key = "seconds" if added else what
            return [f[key] + (f.get(added, 0.0) if added else 0.0) for f in figures[of]]

        return ratio(f"{name}, {mechanism}", values(one), values(other), note=note, detail=detail)

    said = _said(detail)
    one, two, few_rows = "ray, 1 worker", "ray, 2 workers", "ray, a quarter"
    return [
        against("ray with 1 worker over local with 1 thread: time", one, "local", "seconds", said),
        against("the same with the start of the cluster", one, "local", "seconds with start", note=equal),
        against("the same in processor seconds of driver and cluster", one, "local", "processor"),
        against("ray with 2 workers over 1: time", two, one, "seconds"),
        against("ray with 2 workers over local with 2 threads: time", two, "local, 2 threads", "seconds"),
        against("local, 4 times the rows: processor seconds", "local", "local, a quarter", "processor"),
        against("ray: the driver's memory, 4 times the rows", one, few_rows, "peak"),
    ]


def _said(detail: dict[str, Any]) -> str:
    """Seconds, CPU seconds and memory of each run, in a sentence."""
    parts = []
    for name, seconds in detail["seconds"].items():
        memory = f"driver {detail['driver_peak'][name] / 1e6:.0f} MB"
        if name in detail["workers_peak"]:
            started = min(detail["started"][name])
            memory += f", a worker {detail['workers_peak'][name] / 1e6:.0f} MB, start {started:.0f} s"
        used = min(detail["processor"][name])
        parts.append(f"{name} {min(seconds):.0f} s ({used:.0f} processor s; {memory})")
    return "; ".join(parts)


def _figures(runs: dict[str, Given], repeats: int) -> dict[str, list[Figures]]:
    from benchmarks.bench.subjects import measure

    collected: dict[str, list[Figures]] = {name: [] for name in runs}

    def run(name: str) -> float:
        progress.say(f"bench: {name}: begun")
        figures = measure("numbers", runs[name])
        collected[name].append(figures)
        used = f", {figures['processor']:.1f} processor seconds" if "processor" in figures else ""
        progress.say(f"bench: {name}: {figures['seconds']:.1f} s{used}, {figures['peak'] / 1e6:.0f} MB")
        return float(figures["seconds"])

    interleave({name: lambda name=name: run(name) for name in runs}, repeats)  # type: ignore[misc]
    return collected
