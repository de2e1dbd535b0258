"""Regression: `AdLMRegressor`'s release against ridge regression and gradient boosting without privacy, and
diffprivlib's linear regression.

The rule's constants were fixed on held-out quarters of training records (and of all of `load_diabetes`, and
of another draw of `make_friedman1`); test records are used only here.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adlm.domain.encoding import TARGET_UNIT
from adlm.errors import UserError
from adlm.mechanism.privatise import privatise
from adlm.model.fit import fit
from adlm.model.metrics import NumericMeasures, measure_values
from adlm.runtime.artefact import write_file
from benchmarks.experiments.regression_split import NAMES, TargetSplit, load
from benchmarks.experiments.rows import (
    NOISES,
    Case,
    Result,
    cases_of,
    chosen,
    mean_and_sd,
    read_rows,
    rows_table,
    run_rows,
)

EPSILONS = ("0.5", "1", "3")
RELEASES = 5
FILE = "regression.jsonl"
OURS = "adlm, replace-one"
RIDGE, BOOSTING = "ridge regression, no privacy", "gradient boosting, no privacy"
DIFFPRIVLIB = "diffprivlib linear regression"
MEASURES = {"r2": "R2", "rmse": "RMSE", "mae": "MAE"}


@dataclass(frozen=True, kw_only=True)
class Row(Result):
    """One method on one data set at one budget: means over runs, and standard deviations."""

    r2: float
    r2_sd: float
    rmse: float
    rmse_sd: float
    mae: float
    mae_sd: float
    told_mean: int = 0  # runs that fell back to the mean, by their released check


Work = Callable[[], tuple[list[NumericMeasures], int]]


def run(
    out: Path,
    *,
    data: Path | None = None,
    names: tuple[str, ...] = NAMES,
    epsilons: tuple[str, ...] = EPSILONS,
    releases: int = RELEASES,
    diffprivlib: str | None = None,
    resume: bool = False,
) -> list[Row]:
    """Measure every method; write `regression.jsonl` and `regression.md` to a folder.

    Parameters
    ----------
    out : the folder.
    data : where the data sets are; ADLM_DATA when not given.
    names, epsilons : which data sets and budgets.
    releases : runs of each private method.
    diffprivlib : a Python that has diffprivlib; without it that library is left out.
    resume : keep what the folder holds of the same cases, and go on.
    """
    cases = partial(_cases, epsilons=epsilons, releases=releases, diffprivlib=diffprivlib)
    work = cases_of(names, load, data, cases, _row)
    rows = run_rows(out / FILE, work, Row, _sentence, resume=resume)
    write_file(out / "regression.md", markdown(rows).encode(), what="table of results")
    return rows


def _sentence(row: Row) -> str:
    return f"{row.data}, {row.method}, {row.noise} {row.epsilon}: R2 {row.r2:.4f}"


def _cases(
    split: TargetSplit, epsilons: tuple[str, ...], releases: int, diffprivlib: str | None
) -> Iterator[tuple[Case, Work]]:
    for method in (RIDGE, BOOSTING):
        yield Case(split.name, method, "none", None, 1), partial(without_privacy, split, method)
    for noise, delta in NOISES:
        for e in epsilons:
            yield Case(split.name, OURS, noise, e, releases), partial(ours, split, e, delta, releases)
    if diffprivlib is not None:
        for e in epsilons:
            yield (
                Case(split.name, DIFFPRIVLIB, "pure", e, releases),
                partial(diffprivlib_linear, split, e, releases, diffprivlib),
            )


def ours(split: TargetSplit, epsilon: str, delta: str, releases: int) -> tuple[list[NumericMeasures], int]:
    """Fresh releases with the system's noise, which cannot be reproduced; their mean is reported.

    Parameters
    ----------
    split : the table.
    epsilon, delta : the budget.
    releases : number of releases.
    """
    batches = split.batches()
    measures, drowned, truth = [], 0, split.values(split.truth)
    for _ in range(releases):
        model = fit(privatise(lambda: batches, domain=split.table, epsilon=epsilon, delta=delta))
        drowned += "warning" in model.training
        measures.append(measure_values(model.values(split.test), truth))
    return measures, drowned


def without_privacy(split: TargetSplit, method: str) -> tuple[list[NumericMeasures], int]:
    """Ridge regression, or gradient boosting, on the encoded columns."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge

    model: Any = Ridge(alpha=1.0) if method == RIDGE else HistGradientBoostingRegressor(random_state=0)
    model.fit(split.x, split.values(split.y))
    return [measure_values(model.predict(split.test), split.values(split.truth))], 0


def diffprivlib_linear(
    split: TargetSplit, epsilon: str, runs: int, python: str
) -> tuple[list[NumericMeasures], int]:
    """diffprivlib's linear regression on the encoded columns, in its own environment.

    Columns and target are passed in a temporary folder that only its owner can read; weights are returned.
    Predictions are clipped to the bounds of the target, as ours are.

    Parameters
    ----------
    split : the table.
    epsilon : the budget.
    runs : how many.
    python : the interpreter.
    """
    script = Path(__file__).with_name("diffprivlib_linear.py")
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", split.x.astype(np.float64))
        np.save(Path(folder) / "y.npy", split.y / TARGET_UNIT)
        words = [python, str(script), folder, epsilon, str(runs)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
            raise UserError(
                f"{python} cannot fit diffprivlib's linear regression ({said}); give an environment of its "
                "own (pip install diffprivlib==0.6.6 scikit-learn==1.6.1)"
            ) from None
    low, high = split.table.domain.target or (0.0, 1.0)
    measures = []
    for model in json.loads(done.stdout.strip().splitlines()[-1]):
        position = split.test @ np.array(model["weight"]) + model["bias"]
        values = low + (high - low) * np.clip(position, 0.0, 1.0)
        measures.append(measure_values(values, split.values(split.truth)))
    return measures, 0


def _row(case: Case, measured: Work) -> Row:
    measures, drowned = measured()
    figures: dict[str, Any] = {}
    for kind in MEASURES:
        figures[kind], figures[f"{kind}_sd"] = mean_and_sd([float(getattr(m, kind) or 0.0) for m in measures])
    return Row(**asdict(case), **figures, told_mean=drowned)


def read(path: Path) -> list[Row]:
    """Read rows that a run wrote."""
    return read_rows(path, Row)


def markdown(rows: list[Row]) -> str:
    """The comparison as one Markdown table for each data set."""
    theirs = " --diffprivlib-python PATH" if any(r.method == DIFFPRIVLIB for r in rows) else ""
    names = list(dict.fromkeys(row.data for row in rows))
    most = {name: max(row.runs for row in rows if row.data == name) for name in names}
    runs = max(most.values(), default=RELEASES)
    fewer = "".join(f", of {n} for {name}" for name, n in most.items() if n != runs)
    command = f"adlm experiment regression --releases {runs}{theirs}"
    parts = [
        f"# Numbers to predict\n\nMade by `{command}`. Mean (standard deviation) of {runs} fresh releases"
        f"{fewer}, on test records. R2 is the share of the variance explained: 0 is what the mean of the "
        "test records gets, and below it a model is worse. Ridge regression (penalty 1), gradient boosting "
        "and diffprivlib read the encoded columns, in [0, 1]. Our relation is replace-one; diffprivlib "
        "states none. Its predictions are clipped to the target's bounds, as ours are. The rule's constants "
        "were fixed on held-out quarters of training records; for `load_diabetes`, which has no split of "
        "its own, on quarters of all of its records, so that its rows are no test of the rule.\n"
    ]
    for name in names:
        parts.append(f"\n## {name}\n\n{grid([row for row in rows if row.data == name])}")
    return "".join(parts)


def grid(rows: list[Row], measures: tuple[str, ...] = tuple(MEASURES)) -> str:
    """One table: a line for each method and measure, a column for each budget."""
    drowned = [f"epsilon {r.epsilon}, {r.noise}: {r.told_mean} of {r.runs}" for r in rows if r.told_mean]
    said = f"\nFound no better than the mean, and replaced by it: {'; '.join(drowned)}.\n" if drowned else ""
    return rows_table(rows, {kind: MEASURES[kind] for kind in measures}, _shown) + said


def quoted(path: Path, words: list[str]) -> str:
    """The table of one data set and one measure, such as `diabetes130 r2`, for a page to quote."""
    return grid(chosen(path, read(path), words, MEASURES), (words[1],)).split("\n\n")[0].rstrip()


def _shown(row: Row, kind: str) -> str:
    value, spread = getattr(row, kind), getattr(row, f"{kind}_sd")
    return f"{value:.4g}" + (f" ({spread:.2g})" if row.runs > 1 else "")
