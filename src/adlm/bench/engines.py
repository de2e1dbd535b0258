"""Releases of tables by both engines, and by the way that files are read: measured side by side."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from adlm.bench.ratio import Ratio, interleave, ratio

if TYPE_CHECKING:
    from adlm.bench.comparisons import Scale

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
    """Release a table of numbers: read once and kept, or read anew and cell by cell in each pass."""
    from adlm import privatise
    from adlm.curator import passes
    from adlm.public.domain import encoding
    from adlm.public.domain.table import TableDomain
    from adlm.readers.tables import file_reader

    threads = given.get("threads")
    if threads:
        setattr(passes, "threads_here", lambda: int(threads))  # noqa: B010
    table = TableDomain.from_toml(DOMAIN)
    start = time.perf_counter()
    if given.get("engine") == "ray":
        return _by_ray(given, table, start)
    source: Any = given["file"]
    if given.get("each_pass"):
        setattr(encoding, "is_text", lambda values: False)  # noqa: B010
        source = file_reader(given["file"], table)
    made = privatise(source, domain=table, epsilon=EPSILON, seed=1)
    return {"seconds": time.perf_counter() - start, "digest": made.certificate.digest}


def _by_ray(given: Given, table: Any, start: float) -> Figures:
    from adlm import privatise
    from adlm.engines.ray_engine import RayEngine

    engine = RayEngine(workers=given["workers"], store_bytes=given.get("store", 1 << 30))
    try:
        begun = time.perf_counter()
        made = privatise(given["file"], domain=table, epsilon=EPSILON, seed=1, engine=engine)
        done = time.perf_counter()
        return {
            "seconds": done - begun,
            "started": begun - start,
            "digest": made.certificate.digest,
            "workers_peak": workers_peak(),
        }
    finally:
        engine.close()


def workers_peak() -> int:
    """Return the largest resident size of the workers of this process's cluster, in bytes."""
    peaks = [0]
    mine = f"_{os.getpid()}/"
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            parent = next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1]
            command = Path("/proc", parent, "cmdline").read_bytes().decode(errors="replace")
            if "raylet" in command and mine in command.replace("\0", "/"):
                line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
                peaks.append(int(line.split()[1]) * 1024)
        except (OSError, StopIteration):
            continue
    return max(peaks)


def reading(scale: Scale) -> list[Ratio]:
    """Releases from CSV and from Parquet, kept numbers against cells read one by one in each pass."""
    rows = 30_000 if scale.quick else 500_000
    with tempfile.TemporaryDirectory() as folder:
        files = write_numbers(Path(folder), rows, ("csv", "parquet"))
        found = _figures(
            {
                f"{kind}{' again' if again else ''}": {"file": str(file), "each_pass": again}
                for kind, file in files.items()
                for again in (False, True)
            },
            scale.repeats,
        )
    seconds = {name: [figures["seconds"] for figures in each] for name, each in found.items()}
    digests = {name: each[0]["digest"] for name, each in found.items()}
    detail = {"rows": rows, "seconds": seconds, "same": digests["csv"] == digests["csv again"]}
    note = f"{rows:,} rows of {COLUMNS} numeric columns, epsilon {EPSILON}"
    csv, packed = seconds["csv"], seconds["parquet"]
    return [
        ratio(
            "table from CSV over the same from Parquet",
            csv,
            packed,
            sense="at most",
            asked=2,
            note=note,
            detail=detail,
        ),
        ratio(
            "table from Parquet, read once over read in each pass",
            packed,
            seconds["parquet again"],
            sense="at most",
            asked=0.5,
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
    """The engines local and ray on the same file: time, memory of driver and workers, and the digest."""
    rows = 200_000 if scale.quick else 20_000_000
    with tempfile.TemporaryDirectory() as folder:
        file = str(write_numbers(Path(folder), rows, ("parquet",))["parquet"])
        few = str(write_numbers(Path(folder), rows // 4, ("parquet",))["parquet"])
        given: dict[str, Given] = {
            "local": {"file": file, "threads": 1},
            "local, two threads": {"file": file, "threads": 2},
            "ray, 1 worker": {"file": file, "engine": "ray", "workers": 1},
            "ray, 2 workers": {"file": file, "engine": "ray", "workers": 2},
            "ray, a quarter": {"file": few, "engine": "ray", "workers": 1},
        }
        try:
            found = _figures(given, scale.repeats)
        except RuntimeError as error:
            return [Ratio("engine ray over local", None, note=str(error))]
    seconds = {name: [figures["seconds"] for figures in each] for name, each in found.items()}
    digests = {each[0]["digest"] for name, each in found.items() if name != "ray, a quarter"}
    detail = {
        "rows": rows,
        "seconds": seconds,
        "started": {n: [f["started"] for f in e] for n, e in found.items() if "started" in e[0]},
        "driver_peak": {name: max(f["peak"] for f in each) for name, each in found.items()},
        "workers_peak": {n: max(f["workers_peak"] for f in e) for n, e in found.items() if "started" in e[0]},
        "same_digest": len(digests) == 1,
    }
    note = (
        f"{rows:,} rows of {COLUMNS} numeric columns; digests equal: {len(digests) == 1}; without the start"
    )
    one, small = found["ray, 1 worker"], found["ray, a quarter"]
    return [
        ratio(
            "engine ray with 1 worker over local with 1 thread",
            seconds["ray, 1 worker"],
            seconds["local"],
            sense="at most",
            asked=1.4,
            note=note,
            detail=detail,
        ),
        ratio(
            "engine ray with 2 workers over 1",
            seconds["ray, 2 workers"],
            seconds["ray, 1 worker"],
            detail=detail,
        ),
        ratio(
            "engine ray: the driver's memory, 4 times the rows",
            [f["peak"] for f in one],
            [f["peak"] for f in small],
            sense="at most",
            asked=1.2,
            detail=detail,
        ),
    ]


def _figures(given: dict[str, Given], repeats: int) -> dict[str, list[Figures]]:
    from adlm.bench.subjects import measure

    found: dict[str, list[Figures]] = {name: [] for name in given}

    def run(name: str) -> float:
        found[name].append(measure("numbers", given[name]))
        return float(found[name][-1]["seconds"])

    interleave({name: lambda name=name: run(name) for name in given}, repeats)  # type: ignore[misc]
    return found
