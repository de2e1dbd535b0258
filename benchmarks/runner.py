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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from adlm.errors import UserError
from adlm.mechanism.planner import Plan
from adlm.runtime import progress
from adlm.runtime.artefact import canonical, sha256, write_file
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
    current: Callable[[Line], bool] = lambda _: True,
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
    current : whether a finished line still holds; others are measured again.
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
            elif not current(known[name]):
                yield name, measure

    for line in _made(missing(), jobs):
        _append(path, line)
        known[key(line)] = line
        progress.say(say(line))
    write_lines(path, known.values())
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

FIELDS = ("data", "method", "noise", "epsilon")
NOISES = (("pure", "0"), ("delta 1e-5", "1e-5"))
OLDER = "earlier mechanism"
Measured = dict[str, float]


def row_key(row: Line) -> str:
    """What is measured by a row, without what was found."""
    return json.dumps([row[name] for name in FIELDS])


class Case(NamedTuple):
    """What one row measures.

    Attributes
    ----------
    method, noise, epsilon : of the row; epsilon is None without privacy.
    runs : of which the row has means.
    measured : measures all runs.
    mechanism : that the row depends on, by `mechanism`; empty for other people's.
    """

    method: str
    noise: str
    epsilon: str | None
    runs: int
    measured: Callable[[], list[Measured]]
    mechanism: str = ""


def run_rows(
    path: Path,
    names: Iterable[str],
    load: Callable[[str, Path], Any],
    cases: Callable[[Any], Iterable[tuple[Any, ...]]],
    *,
    resume: bool,
    data: Path | None = None,
) -> list[Line]:
    """Measure every case of every data set; a row has mean and standard deviation of each measure over runs.

    Parameters
    ----------
    path : file of rows.
    names, load : data sets, and the function that reads one from the folder of data.
    cases : `Case`s of a data set.
    resume : as for `run`; rows of another number of runs or of an earlier mechanism are measured again.
    data : the folder; the one that ADLM_DATA names when not given.
    """
    place = data or Path(os.environ.get("ADLM_DATA", "data"))
    wanted: dict[str, Line] = {}

    def work() -> Iterator[tuple[str, Work]]:
        for name in names:
            split = load(name, place)
            progress.say(f"{name}: {len(split.y)} records to train on, {len(split.truth)} to test")
            for case in (Case(*each) for each in cases(split)):
                row = {"data": split.name, "method": case.method, "noise": case.noise}
                row |= {"epsilon": case.epsilon, "runs": case.runs}
                if case.mechanism:
                    row["mechanism"] = case.mechanism
                wanted[row_key(row)] = row
                yield row_key(row), partial(_row, row, case.measured)

    def current(line: Line) -> bool:
        row = wanted[row_key(line)]
        return (line["runs"], line.get("mechanism")) == (row["runs"], row.get("mechanism"))

    return run(path, work(), row_key, resume=resume, current=current, say=_sentence)


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
    kinds = dict.fromkeys((row["method"], row["noise"], is_older(row)) for row in rows)
    for method, noise, older in kinds:
        kind = (method, noise, older)
        group = {row["epsilon"]: row for row in rows if (row["method"], row["noise"], is_older(row)) == kind}
        method += f" ({OLDER})" if older else ""
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
GOLDEN = {  # seeded releases of tests/test_golden.py, by what a plan is for and its method
    ("array", "class sums"): "digits",
    ("array", "perturbed loss"): "digits, perturbed loss",
    ("array", "gradient rounds"): "digits, delta",
    ("table", "perturbed loss"): "table",
    ("table", "gradient rounds"): "table, rounds",
}
RESTS_ON = {  # by the beginning of a path below `results`, where lines do not say their mechanism
    "paper": ("records",),
    "kinds": ("records",),
    "what-is-proved": ("records",),
}


@lru_cache(maxsize=1)
def golden() -> Mapping[str, str]:
    """Digests of seeded releases, which change when a mechanism does."""
    text = (ROOT / "tests" / "test_golden.py").read_text(encoding="utf-8")
    return dict(re.findall(r'"([^"]+)": "([0-9a-f]{64})"', text))


def mechanism(plan: Plan) -> str:
    """Name the mechanism that a measurement depends on: digests of a seeded release and of the plan."""
    settings = plan.to_dict() | {"reasons": None}
    name = GOLDEN["array" if plan.form is None else "table", plan.method]
    return f"{golden()[name][:12]}-{sha256(canonical(settings))[:8]}"


def is_older(line: Mapping[str, Any]) -> bool:
    """Whether a line of ours was measured with another mechanism than today's."""
    named = str(line.get("mechanism", ""))[:12]
    return bool(named) and not any(digest.startswith(named) for digest in golden().values())


def record(path: Path, command: str) -> None:
    """Note in `figures.toml` which command measured lines of a file of results, and when.

    Files elsewhere are not noted.
    """
    if not path.resolve().is_relative_to(FIGURES.parent):
        return
    name = path.resolve().relative_to(FIGURES.parent).as_posix()
    known, digests = tomllib.loads(FIGURES.read_text(encoding="utf-8")), golden()
    rests = next((releases for start, releases in RESTS_ON.items() if name.startswith(start)), ())
    entry = known.setdefault(name, {})
    entry["commands"] = entry.get("commands", {}) | {command: time.strftime("%Y-%m-%d")}
    if rests:
        entry["releases"] = {release: digests[release][:12] for release in rests}
    write_file(FIGURES, tomli_w.dumps(dict(sorted(known.items()))).encode(), what="list of figures")
