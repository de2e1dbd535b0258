"""Tables: Adult and Diabetes-130, ours beside models without privacy and DP-SGD, at the same epsilon.

Settings: the domain files come from published documentation; the rule's thresholds, the smoothing and the
settings of DP-SGD were fixed on development splits of the *training* records (three quarters to train, one
quarter to look at). Test records are read here, to be measured, and nowhere else.
"""

from __future__ import annotations

import csv
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adlm import progress
from adlm.analyst import tables as additive_models
from adlm.analyst.metrics import Measures, measure
from adlm.artefact import write_file
from adlm.curator.tables import read_batches
from adlm.errors import UserError
from adlm.privatise_table import privatise_encoded
from adlm.public.features.tabular import TabularFeatures
from adlm.public.tables import TableDomain

COMMAND = "adlm experiment tables"
EPSILONS = ("0.1", "0.5", "1", "3")
RELEASES = 10
TARGETS = {
    ("adult", "pure"): {"0.1": 80.5, "0.5": 83.2, "1": 84.2, "3": 85.0},
    ("adult", "delta 1e-5"): {"0.1": 82.0, "0.5": 84.7, "1": 85.1, "3": 85.5},
    ("diabetes130", "delta 1e-5"): {"0.5": 0.02, "1": 0.015, "3": 0.01},  # AUC below logistic regression
}
OURS = "adlm, replace-one"
LOGISTIC, BOOSTING = "logistic regression, no privacy", "gradient boosting, no privacy"
DPSGD = "DP-SGD logistic regression, add-remove"


@dataclass(frozen=True, eq=False)
class Split:
    """Encoded records of both sides of a split, (n, width), with class codes."""

    name: str
    table: TableDomain
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    test: NDArray[np.float32]
    truth: NDArray[np.int64]

    def cells(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cells of both sides, for the models that ours is compared with."""
        features = TabularFeatures(self.table)
        with torch.inference_mode():
            train, test = (features(torch.from_numpy(x)) / features.unit for x in (self.x, self.test))
        return train.numpy(), test.numpy()


@dataclass(frozen=True)
class Row:
    """One method on one data set at one budget."""

    data: str
    method: str
    noise: str
    epsilon: str | None
    accuracy: float
    accuracy_sd: float
    auc: float
    auc_sd: float
    runs: int


def domain_file(name: str) -> Path:
    """The committed domain file of a data set."""
    here = Path(str(files("adlm"))).parents[1] / "examples" / f"{name}.toml"
    if not here.is_file():
        raise UserError(f"the domain file {here} is missing; run from a checkout of the source")
    return here


def load(name: str, data: Path) -> Split:
    """Read a data set, split it, and keep a person's share to what the domain allows."""
    table = TableDomain.load(domain_file(name))
    with _sides(name, data) as (train, test):
        x, y = _read(train, table)
        held, truth = _read(test, table)
    return Split(name, table, x, y, held, truth)


def _read(path: Path, table: TableDomain) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    batches = list(read_batches(path, table))
    return np.concatenate([b.x for b in batches]), np.concatenate([b.y for b in batches])


@contextmanager
def _sides(name: str, data: Path) -> Iterator[tuple[Path, Path]]:
    """Give the files of training and test records: Adult's own, Diabetes-130 split by patient."""
    folder = data / name
    if not folder.is_dir():
        raise UserError(f"{name} is not in {data}; set ADLM_DATA to a folder that holds {name}/")
    if name == "adult":
        yield folder / "adult.data.gz", folder / "adult.test.gz"
        return
    with tempfile.TemporaryDirectory() as made, zipfile.ZipFile(folder / "dataset_diabetes.zip") as archive:
        sides = Path(made) / "train.csv", Path(made) / "test.csv"
        member = next(m for m in archive.namelist() if m.endswith("diabetic_data.csv"))
        header, *lines = archive.read(member).decode().splitlines(keepends=True)
        at = next(csv.reader([header])).index("patient_nbr")
        patients = list(dict.fromkeys(line.split(",")[at] for line in lines))
        # one patient in five, drawn once: the same that development never looked at
        order = np.random.default_rng(1).permutation(len(patients))
        held = {patients[i] for i in order[: len(patients) // 5]}
        for path, test in zip(sides, (False, True), strict=True):
            mine = [line for line in lines if (line.split(",")[at] in held) == test]
            path.write_text(header + "".join(mine), encoding="utf-8")
        yield sides


def run(
    out: Path,
    *,
    data: Path | None = None,
    names: tuple[str, ...] = ("adult", "diabetes130"),
    epsilons: tuple[str, ...] = EPSILONS,
    releases: int = RELEASES,
    compare: bool = True,
) -> list[Row]:
    """Measure every method, or ours alone; write `tables.jsonl` and `tables.md` to a folder."""
    place = data or Path(os.environ.get("ADLM_DATA", "data"))
    rows: list[Row] = []
    for name in names:
        split = load(name, place)
        progress.say(f"{name}: {len(split.y)} records to train on, {len(split.truth)} to test")
        if compare:
            rows += _without_privacy(split)
        for noise, delta in (("pure", "0"), ("delta 1e-5", "1e-5")):
            for epsilon in epsilons:
                rows.append(_ours(split, noise, epsilon, delta, releases))
                progress.say(_sentence(rows[-1]))
        if compare:
            for epsilon in epsilons:
                rows.append(_dpsgd(split, epsilon, min(releases, 3)))
                progress.say(_sentence(rows[-1]))
    lines = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    write_file(out / "tables.jsonl", lines.encode(), what="results")
    write_file(out / "tables.md", markdown(rows).encode(), what="table of results")
    return rows


def _row(split: Split, method: str, noise: str, epsilon: str | None, found: list[Measures]) -> Row:
    accuracy, auc = [m.accuracy for m in found], [m.auc or 0.5 for m in found]
    spread = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in (accuracy, auc)]
    return Row(split.name, method, noise, epsilon, float(np.mean(accuracy)), spread[0], float(np.mean(auc)),
               spread[1], len(found))  # fmt: skip


def _sentence(row: Row) -> str:
    return (
        f"{row.data}, {row.method}, {row.noise} {row.epsilon}: accuracy {row.accuracy:.4f}, AUC {row.auc:.4f}"
    )


def _ours(split: Split, noise: str, epsilon: str, delta: str, releases: int) -> Row:
    """Fresh releases with the system's noise: none of them can be repeated, so the mean is what counts."""
    batches = [(split.x[i : i + 8192], split.y[i : i + 8192]) for i in range(0, len(split.y), 8192)]
    found = []
    for _ in range(releases):
        release = privatise_encoded(lambda: batches, split.table, epsilon=epsilon, delta=delta)
        found.append(measure(additive_models.train(release).probabilities(split.test), split.truth))
    return _row(split, OURS, noise, epsilon, found)


def _without_privacy(split: Split) -> list[Row]:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    cells, held = split.cells()
    makers: tuple[tuple[str, Callable[[], Any], Any, Any], ...] = (
        (LOGISTIC, lambda: LogisticRegression(max_iter=2000), cells, held),
        (BOOSTING, lambda: HistGradientBoostingClassifier(random_state=0), split.x, split.test),
    )
    rows = []
    for method, make, x, test in makers:
        found = measure(make().fit(x, split.y).predict_proba(test), split.truth)
        rows.append(_row(split, method, "none", None, [found]))
        progress.say(_sentence(rows[-1]))
    return rows


def _dpsgd(split: Split, epsilon: str, runs: int) -> Row:
    from adlm.baselines import dpsgd
    from adlm.baselines.networks import linear

    # the best of four settings on the development split of Adult, stated whole so that nothing moves them
    settings = dpsgd.Settings(
        DPSGD, 2048, 12, 1.0, 4.0, momentum=0.9, chunk=4096, source="cells of this package"
    )
    features = TabularFeatures(split.table)
    with torch.inference_mode():
        z, test = (features(torch.from_numpy(x)) for x in (split.x, split.test))
    found = []
    for seed in range(runs):
        torch.manual_seed(seed)
        network = linear(features.width, len(split.table.label.classes))
        trained = dpsgd.train(network, z.clone(), split.y, settings, epsilon=epsilon, seed=seed)
        with torch.inference_mode():
            found.append(measure(trained.network(test).double().softmax(1).numpy(), split.truth))
    return _row(split, DPSGD, "delta 1e-5", epsilon, found)


def markdown(rows: list[Row]) -> str:
    """The comparison as one Markdown table for each data set."""
    parts = [
        f"# Tables\n\nMade by `{COMMAND}`. Accuracy in per cent and AUC: mean (standard deviation) of "
        "fresh releases. DP-SGD's relation is add-remove, where a replaced record counts about twice.\n"
    ]
    for name in dict.fromkeys(row.data for row in rows):
        mine = [row for row in rows if row.data == name]
        epsilons = [e for e in dict.fromkeys(row.epsilon for row in mine) if e is not None]
        heads = " | ".join(f"eps {e}" for e in epsilons)
        parts.append(f"\n## {name}\n\n| method | noise | measure | {heads} |\n")
        parts.append("| --- | --- | --- |" + " --- |" * len(epsilons) + "\n")
        for method, noise in dict.fromkeys((row.method, row.noise) for row in mine):
            group = {row.epsilon: row for row in mine if (row.method, row.noise) == (method, noise)}
            for kind, factor, digits in (("accuracy", 100, 2), ("auc", 1, 4)):
                cells = [_cell(group.get(e, group.get(None)), kind, factor, digits) for e in epsilons]
                parts.append(f"| {method} | {noise} | {kind} | " + " | ".join(cells) + " |\n")
        parts.append(_verdicts(name, mine))
    return "".join(parts)


def _cell(row: Row | None, kind: str, factor: float, digits: int) -> str:
    if row is None:
        return ""
    value, spread = factor * getattr(row, kind), factor * getattr(row, f"{kind}_sd")
    return f"{value:.{digits}f}" + (f" ({spread:.{digits}f})" if row.runs > 1 else "")


def _verdicts(name: str, rows: list[Row]) -> str:
    """Say whether the aims were met."""
    lines = []
    base = next((row.auc for row in rows if row.method == LOGISTIC), None)
    for row in rows:
        aim = TARGETS.get((name, row.noise), {}).get(row.epsilon or "")
        if row.method != OURS or aim is None:
            continue
        if name == "adult":
            met, said = 100 * row.accuracy >= aim, f"accuracy {100 * row.accuracy:.2f}, aim {aim}"
        else:
            gap = (base or 0.0) - row.auc
            met, said = gap <= aim, f"AUC {gap:.4f} below logistic regression, aim at most {aim}"
        lines.append(f"- {row.noise}, epsilon {row.epsilon}: {said}: {'met' if met else 'missed'}\n")
    return "\n" + "".join(lines) if lines else ""


if __name__ == "__main__":
    progress.enable()
    run(Path("results"))
