"""`adlm release` of this version against that of another checkout, on the same files, in turn."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adlm.errors import UserError
from adlm.runtime import progress
from benchmarks.bench.engines import DOMAIN, write_numbers
from benchmarks.bench.ratio import Ratio, column, interleave, ratio
from benchmarks.bench.subjects import WIDE, wide_batches, wide_domain

if TYPE_CHECKING:
    from benchmarks.bench.comparisons import Scale

HERE = Path(__file__).resolve().parents[2]
MOST_TIME = 3600  # seconds that a release may take


def versions(scale: Scale) -> list[Ratio]:
    """A table of 54 columns, and one of ten numeric columns, from Parquet files."""
    if scale.against is None:
        progress.say("bench: versions: left out; it needs another checkout, by --against PATH")
        return []
    trees = {"this": HERE, "other": checkout(scale.against)}
    ratios: list[Ratio] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = 20_000 if scale.quick else 460_000
        wide = (
            _write_wide(place / "wide.parquet", rows),
            _declared(place / "wide.toml", wide_domain().to_toml()),
        )
        what = f"{rows:,} rows of 54 columns, delta 1e-5"
        ratios += _beside(scale, trees, wide, what, "1e-5")
        rows = 20_000 if scale.quick else 5_000_000
        numbers = write_numbers(place, rows, ("parquet",))["parquet"], _declared(place / "n.toml", DOMAIN)
        for delta, kind in (("1e-5", "delta 1e-5"), ("0", "pure epsilon")):
            what = f"{rows:,} rows of ten numeric columns, {kind}"
            ratios += _beside(scale, trees, numbers, what, delta)
    return ratios


def checkout(path: Path) -> Path:
    """Return the folder of another checkout, and refuse any other folder."""
    if not (path / "src" / "adlm" / "__init__.py").is_file():
        raise UserError(
            f"{path} is no checkout of this project: it has no src/adlm; "
            "make one with `git worktree add PATH COMMIT`"
        )
    return path.resolve()


def _beside(
    scale: Scale,
    trees: dict[str, Path],
    files: tuple[Path, Path],
    what: str,
    delta: str,
    here: tuple[str, ...] = (),
) -> list[Ratio]:
    """Release one file by both versions, in turn; `here` are options of this version alone."""
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}

    def run(name: str) -> float:
        result = _released(trees[name], *files, delta, here if name == "this" else ())
        figures[name].append(result)
        progress.say(
            f"bench: {what}, {name} version: {result['seconds']:.1f} s, {result['processor']:.1f} processor s"
        )
        return float(result["seconds"])

    interleave({name: lambda name=name: run(name) for name in trees}, scale.repeats)  # type: ignore[misc]
    seconds, used = column(figures, "seconds"), column(figures, "processor")
    detail = {"seconds": seconds, "processor": used}
    name = f"release of {what}: this version over the other"
    return [
        ratio(f"{name}, time", seconds["this"], seconds["other"], detail=detail),
        ratio(f"{name}, processor seconds", used["this"], used["other"], detail=detail),
    ]


def _released(
    tree: Path, file: Path, domain: Path, delta: str, options: tuple[str, ...] = ()
) -> dict[str, float]:
    """Run `adlm release` of a checkout on a file, and time it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "release"
        words = [sys.executable, "-m", "adlm", "release", str(file), "--domain", str(domain)]
        words += ["--epsilon", "1", "--delta", delta, "--out", str(out), "--ledger", f"{folder}/ledger.jsonl"]
        words += options
        environment = os.environ | {"PYTHONPATH": str(tree / "src")}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            words, cwd=tree, env=environment, capture_output=True, text=True, timeout=MOST_TIME, check=False
        )
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode or not out.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"`adlm release` of {tree} failed: {last}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "processor": used}


def _declared(file: Path, domain: str) -> Path:
    file.write_text(domain)
    return file


def _write_wide(file: Path, rows: int) -> Path:
    """Write the table of 54 columns, a batch at a time."""
    numeric, boolean, classes = WIDE
    fields = {f"x{i}": pa.float64() for i in range(numeric)} | {f"b{i}": pa.bool_() for i in range(boolean)}
    schema = pa.schema(fields | {"y": pa.string()})
    names = np.array([f"c{i}" for i in range(classes)])
    with pq.ParquetWriter(file, schema) as writer:
        for x, y in wide_batches(rows):
            values: list[Any] = [x[:, i].astype(np.float64) for i in range(numeric)]
            values += [x[:, numeric + i] > 0 for i in range(boolean)]
            writer.write_table(pa.table([*values, names[y]], schema=schema))
    return file
