"""Tables with classes and with numeric targets: ours beside models without privacy, DP-SGD, diffprivlib and
interpret.

The domain files come from published documentation. Constants of the planner and settings of the others were
fixed on validation splits of the *training* records; test records are used only here.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.data.reading import read_batches
from adlm.domain.columns import Column
from adlm.domain.encoding import TARGET_UNIT, Frame, encode_frame, encode_target
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features.tables import indicators, is_ordered
from adlm.mechanism.privatise import plan_release, privatise
from adlm.model.fit import fit
from adlm.model.metrics import measure, measure_values
from adlm.privacy.accounting import parse_delta, parse_epsilon
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from benchmarks import MAKE, ROOT, dpsgd, in_environment
from benchmarks.runner import (
    NOISES,
    Case,
    Line,
    Measured,
    mechanism,
    read_lines,
    record,
    row_key,
    rows_table,
    run_rows,
    write_lines,
)

BATCH = 8192
OURS, OURS_ADDED = "adlm, replace-one", "adlm, add-remove"
LOGISTIC, BOOSTING = "logistic regression, no privacy", "gradient boosting, no privacy"
DPSGD = "DP-SGD logistic regression tuned for the table, add-remove"
EBM = "DP-EBM of interpret"
RIDGE = "ridge regression, no privacy"
DIFFPRIVLIB = "diffprivlib linear regression"
PENALTIES = ("1", "0.1", "0.01")  # diffprivlib's C: its default, and two that did better in validation
MEASURES = {  # factor and digits that they are shown with
    "accuracy": (100.0, 2),
    "auc": (1.0, 4),
    "balanced accuracy": (100.0, 2),
    "log loss": (1.0, 3),
}
NUMERIC = {"r2": (1.0, 4), "rmse": (1.0, 4), "mae": (1.0, 4)}
METHODS = ("public", "pure", "delta", "dp-sgd", "interpret", "diffprivlib")  # of tables with classes
CLASSES_FILE, NUMERIC_FILE = "tables.jsonl", "regression.jsonl"

# ---- public features for other methods, and data sets, encoded by their domain files and split

BINS = 12  # of a numeric column


def even_bins(table: TableDomain, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Indicators of categories and cuts, evenly spaced piecewise-linear bins of numbers, as (n, width).

    They need no released counts, so that other methods can be given them.
    """
    parts, start, records = {}, 0, torch.from_numpy(x)
    for column in table.features:
        cells = records[:, start : start + column.width]
        start += column.width
        if is_ordered(column) and not column.cuts:
            bins = min(BINS, len(column.levels)) if column.kind == "ordinal" else BINS
            part = (1 - (cells[:, :1] * (bins - 1) - torch.arange(bins)).abs()).clamp_min(0)
            if column.missing is not None:
                part = torch.cat([part * (1 - cells[:, 1:2]), cells[:, 1:2]], 1)
        else:
            part = indicators(column, cells.double()).float()
        parts[column.name] = part
    pairs = [(parts[a].unsqueeze(2) * parts[b].unsqueeze(1)).flatten(1) for a, b in table.crosses]
    return np.asarray(torch.cat([*parts.values(), *pairs], 1).numpy())


DECLARED_HERE = ("adult", "diabetes130")  # data sets whose domain files are in `examples`
TARGETS = ("diabetes130", "adult-age", "satimage-pixel", "friedman1", "load_diabetes")
# Round figures about what such measurements can be; the published description bounds none of them.
DIABETES_LOWER = (19, 1, 15, 60, 90, 40, 20, 1.5, 3, 50)
DIABETES_UPPER = (80, 2, 45, 140, 310, 250, 100, 10, 6.5, 130)


@dataclass(frozen=True, eq=False)
class Split:
    """Encoded records of both sides of a split, (n, width), with class codes or positions of the target."""

    name: str
    table: TableDomain
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    test: NDArray[np.float32]
    truth: NDArray[np.int64]

    def batches(self) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """The training records, a batch at a time."""
        return [(self.x[i : i + BATCH], self.y[i : i + BATCH]) for i in range(0, len(self.y), BATCH)]

    def validation(self) -> Split:
        """Three quarters of the training records to train on, and the last quarter to choose settings by."""
        order = np.random.default_rng(5).permutation(len(self.y))
        fit, held = np.split(order, [3 * len(order) // 4])
        name = f"{self.name}, validation"
        return Split(name, self.table, self.x[fit], self.y[fit], self.x[held], self.y[held])

    def features(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Indicators of categories and bins, of both sides, scaled so that no row is longer than 1."""
        unit = np.float32(1 / math.sqrt(len(self.table.features) + len(self.table.crosses)))
        return even_bins(self.table, self.x) * unit, even_bins(self.table, self.test) * unit

    def columns(self) -> tuple[NDArray[np.float64], NDArray[np.float64], list[str]]:
        """One number a column, of both sides, and what it is.

        `continuous`: the position between the declared bounds, NaN where missing. `nominal`: a code.
        """
        sides: list[NDArray[np.float64]] = []
        for side in (self.x, self.test):
            parts, start = [], 0
            for column in self.table.features:
                values = side[:, start : start + column.width].astype(np.float64)
                start += column.width
                if column.kind == "categorical":
                    parts.append(values.argmax(1).astype(np.float64))
                elif column.missing is None:
                    parts.append(values[:, 0])
                else:
                    parts.append(np.where(values[:, 1] > 0, np.nan, values[:, 0]))
            sides.append(np.stack(parts, 1))
        kinds = ["nominal" if c.kind == "categorical" else "continuous" for c in self.table.features]
        return sides[0], sides[1], kinds

    def values(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Targets in their own units."""
        low, high = self.table.domain.target or (0.0, 1.0)
        return np.asarray(low + (high - low) * (positions / TARGET_UNIT))


def domain_file(name: str) -> Path:
    """The committed domain file of a data set."""
    return ROOT / "examples" / f"{name}.toml"


def load(name: str, data: Path) -> Split:
    """Read a data set, split it, and limit each person's records as the domain declares.

    Any other table comes with its domain file and its split, in the folder `tables`: NAME.toml,
    NAME-train.csv and NAME-test.csv.
    """
    if name not in DECLARED_HERE:
        return _of_files(name, name, _declared(name, data), data)
    table = TableDomain.load(domain_file(name))
    with sides_of(name, data) as (train, test):
        return Split(name, table, *_read(train, table), *_read(test, table))


def _declared(name: str, data: Path) -> TableDomain:
    file = data / "tables" / f"{name}.toml"
    if not file.is_file():
        raise UserError(
            f"there is no {file.name} in {file.parent}; set ADLM_DATA to a folder with tables/{name}.toml, "
            f"tables/{name}-train.csv and tables/{name}-test.csv"
        )
    return TableDomain.load(file)


def _of_files(name: str, stem: str, table: TableDomain, data: Path) -> Split:
    sides = [_read(data / "tables" / f"{stem}-{side}.csv", table) for side in ("train", "test")]
    return Split(name, table, *sides[0], *sides[1])


def _read(path: Path, table: TableDomain) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    batches = list(read_batches(path, table, lenient=True))  # Adult has a comment and empty last lines
    return np.concatenate([b.x for b in batches]), np.concatenate([b.y for b in batches])


@contextmanager
def sides_of(name: str, data: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the files of training and test records: Adult's own, Diabetes-130 split by patient."""
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
            side = [line for line in lines if (line.split(",")[at] in held) == test]
            path.write_text(header + "".join(side), encoding="utf-8")
        yield sides


def with_target(table: TableDomain, name: str) -> TableDomain:
    """Declare a numeric column to be the target, in place of the label."""
    columns = []
    for column in table.columns:
        if column.name == name:
            columns.append(Column(name, "target", column.lower, column.upper))
        else:
            columns.append(Column(column.name, "ignored") if column.kind == "label" else column)
    crosses = tuple(pair for pair in table.crosses if name not in pair)
    return replace(table, columns=tuple(columns), crosses=crosses)


def load_target(name: str, data: Path) -> Split:
    """Read or draw a data set with a numeric target, and split it.

    `diabetes130`: days in hospital, one encounter a patient. `adult-age`: age without the label.
    `satimage-pixel`: the 17th column from the others. `friedman1` and `load_diabetes` are of scikit-learn.
    """
    from sklearn import datasets

    if name == "friedman1":
        x, y = datasets.make_friedman1(25_000, n_features=10, noise=1.0, random_state=1)
        return _of_arrays(name, x, y, [(0.0, 1.0)] * 10, (-5.0, 35.0), np.arange(25_000), 20_000)
    if name == "load_diabetes":
        x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
        order = np.random.default_rng(5).permutation(len(y))
        bounds = [(float(a), float(b)) for a, b in zip(DIABETES_LOWER, DIABETES_UPPER, strict=True)]
        return _of_arrays(name, x, y, bounds, (25.0, 350.0), order, 3 * len(y) // 4)
    if name == "satimage-pixel":
        plain = _declared("satimage", data)
        return _of_files(name, "satimage", with_target(plain, plain.features[16].name), data)
    if name not in TARGETS:
        raise UserError(f"numbers are predicted on {', '.join(TARGETS)} (got {name!r})")
    if name == "adult-age":
        of, table = "adult", with_target(TableDomain.load(domain_file("adult")), "age")
    else:
        of, table = name, TableDomain.load(domain_file("time-in-hospital"))
    with sides_of(of, data) as (train, test):
        return Split(name, table, *_read(train, table), *_read(test, table))


def _of_arrays(
    name: str,
    x: NDArray[Any],
    y: NDArray[Any],
    bounds: list[tuple[float, float]],
    target: tuple[float, float],
    order: NDArray[np.int64],
    train: int,
) -> Split:
    """Declare columns and target of arrays, encode them, and use the first `train` of an order to train."""
    columns = [Column(f"x{j}", "numeric", *pair) for j, pair in enumerate(bounds)]
    answer = Column("y", "target", *target)
    table = TableDomain((*columns, answer))
    encoded = encode_frame(table, Frame({f"x{j}": x[:, j] for j in range(x.shape[1])}))
    positions = encode_target(answer, y)
    fit, held = order[:train], order[train:]
    return Split(name, table, encoded[fit], positions[fit], encoded[held], positions[held])


# ---- methods for classes


def measured(probabilities: NDArray[Any], truth: NDArray[np.int64]) -> Measured:
    """The measures of probabilities (n, classes)."""
    found = measure(probabilities, truth)
    of = {"balanced accuracy": found.balanced_accuracy, "log loss": found.log_loss}
    return {"accuracy": found.accuracy, "auc": found.auc or 0.5} | of


def ours(split: Split, epsilon: str, delta: str, releases: int) -> list[Measured]:
    """Fresh releases with the system's noise, which cannot be reproduced; their mean is reported.

    Under add-remove the number of records serves as the public guess.
    """
    table, batches, found = split.table, split.batches(), []
    for _ in range(releases):
        release = privatise(lambda: batches, domain=table, epsilon=epsilon, delta=delta, size=len(split.y))
        found.append(measured(fit(release).probabilities(split.test), split.truth))
    return found


def without_privacy(split: Split, method: str) -> list[Measured]:
    """Logistic regression on the indicators, or gradient boosting on the encoded columns."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    model: Any = HistGradientBoostingClassifier(random_state=0)
    x, test = split.x, split.test
    if method == LOGISTIC:
        x, test = (even_bins(split.table, side) for side in (split.x, split.test))
        model = LogisticRegression(max_iter=2000)
    return [measured(model.fit(x, split.y).predict_proba(test), split.truth)]


# What DP-SGD is tuned over: columns, share of the records in a batch with epochs, clip norm with rate.
COLUMNS = ("binned", "plain")
BATCHES = ((1 / 4, 20.0), (1 / 16, 10.0), (1 / 2, 60.0))
STEPS = ((1.0, 0.25), (1.0, 1.0), (1.0, 4.0), (0.3, 1.0), (0.3, 4.0), (0.3, 16.0))
KEPT = 4  # of the twelve settings at the first batch that are tried at the others
Choice = tuple[str, tuple[float, float], tuple[float, float]]


def dpsgd_tuned(split: Split, epsilon: str, runs: int) -> list[Measured]:
    """DP-SGD with Opacus, its settings chosen for this table and budget on held-out training records.

    The best of 20 settings by the sum of accuracy and AUC, with delta 1e-5 under add-remove. The choice costs
    privacy that is not charged, which favours DP-SGD.
    """
    validation = split.validation()

    def tried(choices: Iterable[Choice]) -> list[tuple[float, Choice]]:
        found = []
        for choice in choices:
            trial = dpsgd_run(validation, epsilon, choice, seed=0)
            found.append((trial["accuracy"] + trial["auc"], choice))
        return sorted(found, reverse=True)

    scores = tried((columns, BATCHES[0], step) for columns in COLUMNS for step in STEPS)
    leading = [(columns, step) for _, (columns, _, step) in scores[:KEPT]]
    scores += tried((columns, batch, step) for columns, step in leading for batch in BATCHES[1:])
    best = max(scores)[1]
    return [dpsgd_run(split, epsilon, best, seed=seed) for seed in range(runs)]


def dpsgd_run(split: Split, epsilon: str, choice: Choice, *, seed: int) -> Measured:
    """One run of DP-SGD on indicators (`binned`), or on one number a column in [-1, 1] (`plain`)."""
    columns, (share, epochs), (clip, rate) = choice
    n = len(split.y)
    settings = dpsgd.Settings(
        DPSGD, max(1, round(share * n)), epochs, clip, rate, momentum=0.9, chunk=4096, ghost=True
    )
    if columns == "binned":
        x, test = (torch.from_numpy(side) for side in split.features())
    else:
        x, test = (torch.from_numpy(2 * s - 1) / np.sqrt(s.shape[1]) for s in (split.x, split.test))
    certificate = dpsgd.certify(settings, n, epsilon)
    torch.manual_seed(seed)
    network = dpsgd.linear(x.shape[1], len(split.table.label.classes))
    trained = dpsgd.follow(network, x.clone(), split.y, settings, certificate, seed=seed)
    with torch.inference_mode():
        return measured(trained.network(test).double().softmax(1).numpy(), split.truth)


def diffprivlib_name(penalty: str) -> str:
    """The name of diffprivlib's rows for one C."""
    return f"diffprivlib logistic regression, C {penalty}" + (" (its default)" if penalty == "1" else "")


def diffprivlib_logistic(split: Split, epsilon: str, penalty: str, runs: int, python: str) -> list[Measured]:
    """diffprivlib's logistic regression on the same indicators."""
    x, test = split.features()
    arrays = {"x": x.astype(np.float64), "y": split.y}
    models = in_environment(python, "diffprivlib_logistic", epsilon, penalty, str(runs), arrays=arrays)
    found = []
    for model in models:
        chance = 0.5 * (1 + np.tanh((test @ model[:-1] + model[-1]) / 2))
        found.append(measured(np.stack([1 - chance, chance], 1), split.truth))
    return found


def dp_ebm(split: Split, epsilon: str, runs: int, python: str) -> list[Measured]:
    """interpret's explainable boosting machine with privacy, on the columns; settings are its defaults."""
    x, test, kinds = split.columns()
    arrays = {"x": x, "test": test, "y": split.y, "kinds.json": json.dumps(kinds)}
    found = in_environment(python, "interpret_boosting", epsilon, "1e-5", str(runs), arrays=arrays)
    return [measured(probabilities, split.truth) for probabilities in found]


# ---- methods for numeric targets


def values_measured(values: NDArray[Any], split: Split) -> Measured:
    """R2 and errors of predicted values, in the units of the target."""
    found = measure_values(values, split.values(split.truth))
    return {name: float(getattr(found, name) or 0.0) for name in NUMERIC}


def ours_numeric(split: Split, epsilon: str, delta: str, releases: int) -> list[Measured]:
    """Fresh releases with the system's noise."""
    batches, found = split.batches(), []
    for _ in range(releases):
        model = fit(privatise(lambda: batches, domain=split.table, epsilon=epsilon, delta=delta))
        found.append(values_measured(model.values(split.test), split))
    return found


def numeric_without_privacy(split: Split, method: str) -> list[Measured]:
    """Ridge regression, or gradient boosting, on the encoded columns."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge

    model: Any = Ridge(alpha=1.0) if method == RIDGE else HistGradientBoostingRegressor(random_state=0)
    model.fit(split.x, split.values(split.y))
    return [values_measured(model.predict(split.test), split)]


def diffprivlib_linear(split: Split, epsilon: str, runs: int, python: str) -> list[Measured]:
    """diffprivlib's linear regression on the encoded columns; predictions are clipped, as ours are."""
    records = np.column_stack([split.x.astype(np.float64), split.y / TARGET_UNIT])
    models = in_environment(python, "diffprivlib_linear", epsilon, str(runs), arrays={"records": records})
    low, high = split.table.domain.target or (0.0, 1.0)
    positions = [np.clip(split.test @ model[:-1] + model[-1], 0.0, 1.0) for model in models]
    return [values_measured(low + (high - low) * position, split) for position in positions]


# ---- comparisons


def run(
    out: Path,
    *,
    data: Path | None = None,
    names: Iterable[str] = DECLARED_HERE,
    epsilons: Iterable[str] = ("0.1", "0.5", "1", "3"),
    releases: int = 10,
    methods: Iterable[str] = METHODS,
    pythons: Mapping[str, str] | None = None,
    resume: bool = False,
    command: str = "adlm experiment tables",
) -> list[Line]:
    """Compare methods on tables with classes; write `tables.jsonl` and `tables.md` to a folder.

    Parameters
    ----------
    out : the folder of results.
    data : the folder that holds the data sets; the one that ADLM_DATA names when not given.
    names, epsilons : data sets and budgets.
    releases : fresh releases for each figure; three at most of what takes long.
    methods : of `METHODS`.
    pythons : for `diffprivlib` and `interpret`, a Python that has it; without one that library is left out.
    resume : keep the rows of the file that are of today's mechanism, and measure the others.
    command : that is noted in `results/figures.toml`.
    """
    given, few, chosen = dict(pythons or {}), min(releases, 3), tuple(methods)
    if unknown := set(chosen) - set(METHODS):
        raise UserError(f"methods must be of {', '.join(METHODS)} (got {', '.join(sorted(unknown))})")

    def cases(split: Split) -> Iterator[Case]:
        for method in (LOGISTIC, BOOSTING) if "public" in chosen else ():
            yield Case(method, "none", None, 1, partial(without_privacy, split, method))
        for e in epsilons if "pure" in chosen else ():
            yield _own(split, OURS, "pure", e, "0", releases, ours)
        if "delta" in chosen:
            for e in epsilons:
                yield _own(split, OURS, "delta 1e-5", e, "1e-5", releases, ours)
            added = replace(split, table=replace(split.table, neighbours="add-remove"))
            for e in epsilons:
                yield _own(added, OURS_ADDED, "delta 1e-5", e, "1e-5", few, ours)
        for e in epsilons if "dp-sgd" in chosen else ():
            yield Case(DPSGD, "delta 1e-5", e, few, partial(dpsgd_tuned, split, e, few))
        if len(split.table.label.classes) > 2:  # both libraries support only two classes
            return
        for e in epsilons if "interpret" in chosen and "interpret" in given else ():
            yield Case(EBM, "delta 1e-5", e, few, partial(dp_ebm, split, e, few, given["interpret"]))
        for c in PENALTIES if "diffprivlib" in chosen and "diffprivlib" in given else ():
            for e in epsilons:
                work = partial(diffprivlib_logistic, split, e, c, releases, given["diffprivlib"])
                yield Case(diffprivlib_name(c), "pure", e, releases, work)

    rows = run_rows(out / CLASSES_FILE, names, load, cases, resume=resume, data=data)
    for library in ("diffprivlib", "interpret"):
        if library in chosen and library not in given:
            progress.say(
                f"{library} is left out: it needs an environment of its own ({MAKE[library]}), named by "
                f"--{library}-python"
            )
    write_page(out / CLASSES_FILE)
    record(out / CLASSES_FILE, command)
    return rows


def _own(
    split: Split,
    method: str,
    noise: str,
    epsilon: str,
    delta: str,
    releases: int,
    measure: Callable[[Split, str, str, int], list[Measured]],
) -> Case:
    """A case of ours, which names the mechanism that it depends on."""
    plan = plan_release(split.table, len(split.y), parse_epsilon(epsilon), parse_delta(delta))
    work = partial(measure, split, epsilon, delta, releases)
    return Case(method, noise, epsilon, releases, work, mechanism(plan))


def run_numeric(
    out: Path,
    *,
    data: Path | None = None,
    names: Iterable[str] = TARGETS,
    epsilons: Iterable[str] = ("0.5", "1", "3"),
    releases: int = 5,
    diffprivlib: str | None = None,
    resume: bool = False,
    command: str = "adlm experiment regression",
) -> list[Line]:
    """Compare methods on numeric targets; write `regression.jsonl` and `regression.md` to a folder.

    Parameters
    ----------
    out, data, names, epsilons, releases, resume, command : as for `run`.
    diffprivlib : a Python that has diffprivlib; without it that library is left out.
    """

    def cases(split: Split) -> Iterator[Case]:
        for method in (RIDGE, BOOSTING):
            yield Case(method, "none", None, 1, partial(numeric_without_privacy, split, method))
        for noise, delta in NOISES:
            for e in epsilons:
                yield _own(split, OURS, noise, e, delta, releases, ours_numeric)
        for e in epsilons if diffprivlib else ():
            work = partial(diffprivlib_linear, split, e, releases, str(diffprivlib))
            yield Case(DIFFPRIVLIB, "pure", e, releases, work)

    rows = run_rows(out / NUMERIC_FILE, names, load_target, cases, resume=resume, data=data)
    write_page(out / NUMERIC_FILE)
    record(out / NUMERIC_FILE, command)
    return rows


_CLASSES = (
    "# Tables\n\n"
    "Made by `adlm experiment tables`. Accuracies in per cent, AUC and log loss on test records: mean "
    "(standard deviation) over {runs} fresh releases, over 3 where the relation is add-remove, under which a "
    "replaced record counts about twice. DP-SGD has the best of 20 settings of batch, epochs, clip "
    "norm, rate, and plain or binned columns, chosen for the table and the budget on a held-out "
    "quarter of the training records; that choice is not charged. diffprivlib states no relation; the "
    "paper that its logistic regression cites (Chaudhuri et al., 2011) replaces one record. interpret "
    "states none either; its noise is scaled to one record, with 3 runs for a figure. All of them but "
    "gradient boosting and DP-EBM read public features of the same columns.\n"
)
_NUMERIC = (
    "# Numeric targets\n\n"
    "Made by `adlm experiment regression`. Mean (standard deviation) over {runs} fresh releases or "
    "fewer, on test records. R2 is the share of the variance explained: 0 is what the mean of the "
    "test records gets, and below it a model is worse. Ridge regression (penalty 1), gradient "
    "boosting and diffprivlib read the encoded columns, in [0, 1]. Our relation is replace-one; "
    "diffprivlib states none. Its predictions are clipped to the target's bounds, as ours are. "
    "Constants of the planner were fixed on held-out quarters of training records; for "
    "`load_diabetes`, which has no split of its own, on quarters of all of its records, so that its "
    "rows are no test of them.\n"
)


def write_page(path: Path) -> None:
    """Write the page of a file of rows beside it, in the order of data sets and methods."""
    rows = read_lines(path)
    order = {name: at for at, name in enumerate(dict.fromkeys(row["data"] for row in rows))}
    rows.sort(key=lambda row: (order[row["data"]], *_rank(row["method"], row["noise"]), row["epsilon"] or ""))
    write_lines(path, {row_key(row): row for row in rows}.values())
    write_file(path.with_suffix(".md"), page(path.name, rows).encode(), what="table of results")


def _rank(method: str, noise: str) -> tuple[int, int]:
    order = (LOGISTIC, RIDGE, BOOSTING, OURS, OURS_ADDED, DPSGD, EBM, *map(diffprivlib_name, PENALTIES))
    return order.index(method) if method in order else len(order), ("none", "pure", "delta 1e-5").index(noise)


def page(file: str, rows: list[Line]) -> str:
    """The rows of a file as one Markdown table for each data set."""
    text, measures = (_CLASSES, MEASURES) if file == CLASSES_FILE else (_NUMERIC, NUMERIC)
    parts = [text.format(runs=max((row["runs"] for row in rows), default=0))]
    for name in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == name]
        parts.append(f"\n## {name}\n\n{rows_table(own, measures)}")
    return "".join(parts)
