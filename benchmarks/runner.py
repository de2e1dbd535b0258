"""One runner of measurements: each is made once, written as a line of JSON, and kept when a run is resumed.

A line is written and synced before the next measurement starts, so that a killed run can be resumed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from adlm.errors import UserError
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from benchmarks import ROOT

Line = dict[str, Any]
Work = Callable[[], Line]


def read_lines(path: Path) -> list[Line]:
    """Read finished measurements; none where there is no file, and an incomplete last line is dropped."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            lines.append(json.loads(text))
        except ValueError:
            progress.say(f"{path}: line {number} is not complete and is left out")
    return lines


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """Write measurements, atomically."""
    write_file(path, "".join(json.dumps(line) + "\n" for line in lines).encode(), what="results")


def run(
    path: Path,
    work: Iterable[tuple[str, Work]],
    key: Callable[[Line], str],
    *,
    resume: bool,
    jobs: int = 1,
    say: Callable[[Line], str] = str,
) -> list[Line]:
    """Make the measurements that `path` does not hold, and return all of them in the order given.

    Lines of other measurements stay in the file, before the new ones.

    Parameters
    ----------
    work : keys, and functions that measure; with several jobs, such as other processes can import.
    key : of a finished line.
    resume : keep finished lines; without it, a file that has some of these measurements is refused.
    jobs : processes; each makes one measurement at a time with one thread.
    say : a finished line in a sentence.
    """
    known = {key(line): line for line in read_lines(path)}
    write_lines(path, known.values())  # complete lines only
    order: list[str] = []

    def missing() -> Iterator[tuple[str, Work]]:
        for name, measure in work:
            order.append(name)
            if name not in known:
                yield name, measure
            elif not resume:
                raise UserError(
                    f"{path} holds {len(known)} measurements; add --resume to keep them, or remove it"
                )

    for line in _made(missing(), jobs):
        _append(path, line)
        known[key(line)] = line
        progress.say(say(line))
    return [known[name] for name in order]


def _append(path: Path, line: Line) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}; free space, and go on with --resume"
        ) from error


def _made(work: Iterator[tuple[str, Work]], jobs: int) -> Iterator[Line]:
    if jobs <= 1:
        yield from (measure() for _, measure in work)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_single_thread) as pool:
        futures = [pool.submit(measure) for _, measure in list(work)]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _single_thread() -> None:
    import torch

    torch.set_num_threads(1)


# ---- rows of a comparison: a method on a data set at a budget, with its runs

FIELDS = ("data", "method", "noise", "epsilon", "runs")
NOISES = (("pure", "0"), ("delta 1e-5", "1e-5"))
Measured = dict[str, float]


def row_key(row: Line) -> str:
    """What is measured by a row, without what was found."""
    return json.dumps([row[name] for name in FIELDS])


Case = tuple[
    str, str, str | None, int, Callable[[], list[Measured]]
]  # method, noise, epsilon, runs, function


def run_rows(
    path: Path,
    names: Iterable[str],
    load: Callable[[str, Path], Any],
    cases: Callable[[Any], Iterable[Case]],
    *,
    resume: bool,
    data: Path | None = None,
) -> list[Line]:
    """Measure every case of every data set; a row has mean and standard deviation of each measure over runs.

    Parameters
    ----------
    path : file of rows.
    names, load : data sets, and the function that reads one from the folder of data.
    cases : of a data set.
    resume : as for `run`.
    data : the folder; the one that ADLM_DATA names when not given.
    """
    place = data or Path(os.environ.get("ADLM_DATA", "data"))

    def work() -> Iterator[tuple[str, Work]]:
        for name in names:
            split = load(name, place)
            progress.say(f"{name}: {len(split.y)} records to train on, {len(split.truth)} to test")
            for method, noise, epsilon, runs, measured in cases(split):
                row = dict(zip(FIELDS, (split.name, method, noise, epsilon, runs), strict=True))
                yield row_key(row), partial(_row, row, measured)

    return run(path, work(), row_key, resume=resume, say=_sentence)


def _row(row: Line, measured: Callable[[], list[Measured]]) -> Line:
    runs = measured()
    return row | {"measures": {name: mean_and_sd([run[name] for run in runs]) for name in runs[0]}}


def mean_and_sd(values: Sequence[float]) -> list[float]:
    """Mean and standard deviation; 0 for the deviation of a single value."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return [round(float(np.mean(values)), 6), round(spread, 6)]


def _sentence(row: Line) -> str:
    found = ", ".join(f"{name} {mean:.4f}" for name, (mean, _) in row["measures"].items())
    return f"{row['data']}, {row['method']}, {row['noise']} {row['epsilon']}: {found}"


def shown(row: Line, measure: str, factor: float, digits: int) -> str:
    """Mean, and standard deviation of several runs, as text; empty where it was not measured."""
    if measure not in row["measures"]:
        return ""
    mean, spread = (factor * value for value in row["measures"][measure])
    return f"{mean:.{digits}f}" + (f" ({spread:.{digits}f})" if row["runs"] > 1 else "")


def rows_table(rows: Sequence[Line], measures: dict[str, tuple[float, int]]) -> str:
    """One table: a line for each method and measure, a column for each budget.

    Parameters
    ----------
    rows : of one data set.
    measures : names, with the factor and the digits that they are shown with.
    """
    epsilons = [e for e in dict.fromkeys(row["epsilon"] for row in rows) if e is not None]
    heads = " | ".join(f"eps {e}" for e in epsilons)
    lines = [f"| method | noise | measure | {heads} |", "| --- | --- | --- |" + " --- |" * len(epsilons)]
    for method, noise in dict.fromkeys((row["method"], row["noise"]) for row in rows):
        group = {row["epsilon"]: row for row in rows if (row["method"], row["noise"]) == (method, noise)}
        for name, (factor, digits) in measures.items():
            found = [group.get(e, group.get(None)) for e in epsilons]
            cells = ["" if row is None else shown(row, name, factor, digits) for row in found]
            if any(cells):
                lines.append(f"| {method} | {noise} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def quoted(path: Path, words: Sequence[str], measures: dict[str, tuple[float, int]]) -> str:
    """The table of one data set and one measure, such as `adult accuracy`, for a page to quote."""
    rows = read_lines(path)
    names = {row["data"]: row["data"] for row in rows}
    if len(words) != 2 or words[0] not in names or words[1] not in measures:
        known = f"one of {', '.join(names)} and one of {', '.join(measures)}"
        raise UserError(f"{path} is quoted by {known} (got {' '.join(words)!r})")
    own = [row for row in rows if row["data"] == words[0]]
    return rows_table(own, {words[1]: measures[words[1]]}).rstrip()


# ---- which command made which file

FIGURES = ROOT / "results" / "figures.toml"
RESTS_ON = {  # by the beginning of a path below `results`: seeded releases of tests/test_golden.py
    "paper": ("records", "digits, perturbed loss", "digits, delta"),
    "frontier": ("digits", "digits, perturbed loss", "digits, delta"),
    "epochs": ("digits, delta",),
    "allocation": ("digits", "digits, delta"),
    "kinds": ("records",),
    "what-is-proved": ("records",),
    "bench": (),
    "": ("table", "table, rounds"),
}


def golden() -> dict[str, str]:
    """Digests of seeded releases, which change when a mechanism does."""
    text = (ROOT / "tests" / "test_golden.py").read_text(encoding="utf-8")
    return dict(re.findall(r'"([^"]+)": "([0-9a-f]{64})"', text))


def record(path: Path, command: str) -> None:
    """Note in `figures.toml` that a command made a file of results now, with the mechanisms of now.

    Files elsewhere are not noted.
    """
    if not path.resolve().is_relative_to(FIGURES.parent):
        return
    name = path.resolve().relative_to(FIGURES.parent).as_posix()
    known, digests = tomllib.loads(FIGURES.read_text(encoding="utf-8")), golden()
    rests = next(releases for start, releases in RESTS_ON.items() if name.startswith(start))
    known[name] = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "releases": {release: digests[release][:12] for release in rests},
    }
    write_file(FIGURES, tomli_w.dumps(dict(sorted(known.items()))).encode(), what="list of figures")
