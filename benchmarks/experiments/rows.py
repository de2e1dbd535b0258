"""Comparisons that are stored as rows, one line of JSON each: run with resume, read, tabulate, quote.

A row is the result of some runs of a method on a data set at a budget. Rows are written as they are finished,
so that an interrupted run can be resumed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from adlm.errors import UserError
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from benchmarks.experiments.table_split import EncodedSplit

NOISES = (("pure", "0"), ("delta 1e-5", "1e-5"))


@dataclass(frozen=True)
class Case:
    """A measurement to make: a method on a data set at a budget, and the number of runs."""

    data: str
    method: str
    noise: str
    epsilon: str | None
    runs: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """The fields of every row; each comparison adds its measures."""

    data: str
    method: str
    noise: str
    epsilon: str | None
    runs: int

    @property
    def case(self) -> Case:
        """The case that was measured."""
        return Case(self.data, self.method, self.noise, self.epsilon, self.runs)


R = TypeVar("R", bound=Result)
S = TypeVar("S", bound=EncodedSplit)
W = TypeVar("W")


def run_rows(
    path: Path,
    work: Iterable[tuple[Case, Callable[[], R]]],
    kind: type[R],
    sentence: Callable[[R], str],
    *,
    resume: bool,
) -> list[R]:
    """Measure the missing cases, and write each row to `path` when it is done.

    Parameters
    ----------
    path : the file of rows.
    work : cases in the order of the table, and the function that measures each.
    kind : of the rows.
    sentence : describes the result of a row, for progress.
    resume : keep the file's rows of the same cases, and measure the others.
    """
    kept = {row.case: row for row in read_rows(path, kind)} if resume else {}
    rows: list[R] = []
    for case, measured in work:
        rows.append(kept.pop(case) if case in kept else measured())
        progress.say(sentence(rows[-1]))
        write_rows(path, [*rows, *kept.values()])  # so that kept rows survive an interruption
    write_rows(path, rows)
    return rows


def cases_of(
    names: Iterable[str],
    load: Callable[[str, Path], S],
    data: Path | None,
    cases: Callable[[S], Iterable[tuple[Case, W]]],
    row: Callable[[Case, W], R],
) -> Iterator[tuple[Case, Callable[[], R]]]:
    """Yield every case of every data set with the function that measures it; data sets are read lazily.

    Parameters
    ----------
    names : of the data sets.
    load : reads one from the folder of data.
    data : that folder; the one that ADLM_DATA names when not given.
    cases : the cases of a data set, and the functions that measure them.
    row : makes a row of a case and its function.
    """
    place = data or Path(os.environ.get("ADLM_DATA", "data"))
    for name in names:
        split = load(name, place)
        progress.say(f"{name}: {len(split.y)} records to train on, {len(split.truth)} to test")
        for case, measured in cases(split):
            yield case, partial(row, case, measured)


def write_rows(path: Path, rows: Sequence[Result]) -> None:
    """Write rows, atomically."""
    write_file(path, "".join(json.dumps(asdict(row)) + "\n" for row in rows).encode(), what="results")


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Read rows that a run wrote; none where there is no file."""
    try:
        return [kind(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        raise UserError(f"{path} cannot be resumed from; remove it, or leave out --resume") from None


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; 0 for the deviation of a single value."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def rows_table(rows: Sequence[R], measures: Mapping[str, str], shown: Callable[[R, str], str]) -> str:
    """One table: a line for each method and measure, a column for each budget.

    Parameters
    ----------
    rows : of one data set.
    measures : names of measures, and their labels in the table.
    shown : a row's measure as text.
    """
    epsilons = [e for e in dict.fromkeys(row.epsilon for row in rows) if e is not None]
    heads = " | ".join(f"eps {e}" for e in epsilons)
    lines = [f"| method | noise | measure | {heads} |", "| --- | --- | --- |" + " --- |" * len(epsilons)]
    for method, noise in dict.fromkeys((row.method, row.noise) for row in rows):
        group: dict[Any, R] = {r.epsilon: r for r in rows if (r.method, r.noise) == (method, noise)}
        for kind, name in measures.items():
            cells = [group.get(e, group.get(None)) for e in epsilons]
            entries = " | ".join("" if row is None else shown(row, kind) for row in cells)
            lines.append(f"| {method} | {noise} | {name} | {entries} |")
    return "\n".join(lines) + "\n"


def chosen(path: Path, rows: Sequence[R], words: Sequence[str], measures: Iterable[str]) -> list[R]:
    """Return the rows that `DATA MEASURE` quotes; a comma in the name of a data set is a dash there.

    Parameters
    ----------
    path : the file, for the error message.
    rows : all of its rows.
    words : a data set and a measure.
    measures : the known ones.
    """
    names = {row.data.replace(", ", "-"): row.data for row in rows}
    if len(words) != 2 or words[0] not in names or words[1] not in measures:
        known = f"one of {', '.join(names)} and one of {', '.join(measures)}"
        raise UserError(f"{path} is quoted by {known} (got {' '.join(words)!r})")
    return [row for row in rows if row.data == names[words[0]]]
