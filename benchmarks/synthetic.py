"""Synthetic tables: ours beside MST and AIM, and beside a release that draws no records.

A model is trained on drawn records and tested on real ones that no release has read. Our settings were chosen
on the last quarter of the training records of Adult, satimage, ring and segment; nothing was tuned for MST
and AIM. Everything is add-remove, which MST and AIM are made for.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from adlm.domain.columns import Column
from adlm.domain.encoding import encode_answer, encode_frame
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.mechanism.privatise import privatise
from adlm.model.fit import fit
from adlm.model.metrics import measure
from adlm.model.synthetic import Grid, decoded, synthesise, write
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from benchmarks.runner import (
    FIELDS,
    NOISES,
    Case,
    Line,
    Measured,
    read_lines,
    record,
    row_key,
    rows_table,
    run_rows,
    write_lines,
)
from benchmarks.runner import run as run_lines
from benchmarks.tables import Split, even_bins, load

FILE = "synthetic.jsonl"
NAMES = ("adult", "diabetes130", "satimage", "optdigits", "segment", "spambase", "ring", "texture")
ORDER = REAL, DIRECT, OURS, MST, AIM = "real records", "adlm, no draws", "adlm synth", "MST", "AIM"
ROWS = (10_000, 40_000)  # drawn: as many as there are records, within these bounds
BINS = 32  # of a bounded column for MST and AIM
SHARED = 16  # bins of a bounded column where distributions are compared
SETS = 60  # pairs, and triples, of columns that are compared
MBI = "mbi==2.0.0"
MEASURES = {  # factor and digits that they are shown with
    "boosting accuracy": (100.0, 2),
    "boosting auc": (1.0, 4),
    "logistic accuracy": (100.0, 2),
    "logistic auc": (1.0, 4),
    "own model accuracy": (100.0, 2),
    "own model auc": (1.0, 4),
    "tv 1": (100.0, 2),
    "tv 2": (100.0, 2),
    "tv 3": (100.0, 2),
    "seconds": (1.0, 0),
    "seconds of the release": (1.0, 1),
    "rows drawn a second": (1.0, 0),
}
SPEED = "a million rows"
SPEED_ROWS, SPEED_DRAWN, SPEED_COLUMNS = 1_000_000, 500_000, 7


def run(
    out: Path,
    *,
    data: Path | None = None,
    names: Iterable[str] = NAMES,
    epsilons: Iterable[str] = ("0.5", "1", "3"),
    releases: int = 3,
    others: int = 1,
    python: str | None = None,
    speed: bool = False,
    validation: bool = False,
    resume: bool = False,
    command: str = "adlm experiment synthetic",
) -> list[Line]:
    """Measure every method, or ours alone; write `synthetic.jsonl` and `synthetic.md` to a folder.

    Parameters
    ----------
    out : the folder of results.
    data : the folder that holds the data sets; the one that ADLM_DATA names when not given.
    names, epsilons : data sets and budgets.
    releases : for each figure of ours; 0 leaves them out.
    others : for each figure of MST and AIM, which take minutes for one; 0 leaves them out.
    python : of an environment that has mbi; made in `out/venv-mbi` when not given.
    speed : also time the release of a million rows of 15 columns from a CSV file, and draws from it.
    validation : measure on the last quarter of the training records, to choose settings by.
    resume : keep the rows of `synthetic.jsonl`, and measure the cases that it has not.
    command : that is noted in `results/figures.toml`.
    """
    theirs = (python or environment(Path("out/venv-mbi"))) if others else ""

    def split_of(name: str, place: Path) -> Split:
        split = load(name, place)
        return split.validation() if validation else split

    def cases(split: Split) -> Iterator[Case]:
        yield Case(REAL, "none", None, 1, lambda: [scored(split, split.x, split.y)])
        for method in (DIRECT, OURS) if releases else ():
            for noise, delta in NOISES:
                for e in epsilons:
                    work = partial(_ours, split, e, delta, releases, draws=method == OURS)
                    yield Case(method, noise, e, releases, work)
        for method in (MST, AIM) if others else ():
            for e in epsilons:
                work = partial(_theirs, split, method, e, others, theirs)
                yield Case(method, "delta 1e-5", e, others, work)

    rows = run_rows(out / FILE, names, split_of, cases, resume=resume, data=data)
    if speed:
        row: Line = dict(zip(FIELDS, (SPEED, OURS, "delta 1e-5", "1"), strict=True)) | {"runs": 1}
        work = [(row_key(row), lambda: row | {"measures": {k: [v, 0.0] for k, v in timed().items()}})]
        rows += run_lines(out / FILE, work, row_key, resume=resume)
    write_page(out / FILE)
    record(out / FILE, command)
    return rows


def environment(folder: Path) -> str:
    """Return the Python of an environment that has mbi; make it where there is none."""
    python = folder / "bin" / "python"
    if not python.exists():
        progress.say(f"making {folder} with {MBI}")
        venv.create(folder, with_pip=True)
        made = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", MBI], capture_output=True, text=True
        )
        if made.returncode:
            last = (made.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(
                f"mbi cannot be installed in {folder} ({last}); give --mbi-python, or --ours-alone"
            )
    return str(python)


# ---- what is measured


def scored(split: Split, x: NDArray[np.float32], y: NDArray[np.int64]) -> Measured:
    """Train on records, test on real test records, and compare distributions with real training records."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    found: Measured = {}
    for name, model, train, test in (
        ("boosting", HistGradientBoostingClassifier(random_state=0), x, split.test),
        (
            "logistic",
            LogisticRegression(max_iter=300),
            even_bins(split.table, x),
            even_bins(split.table, split.test),
        ),
    ):
        odds = np.zeros((len(test), len(split.table.label.classes)))
        if len(np.unique(y)) == 1:
            odds[:, y[0]] = 1
        else:
            model.fit(train, y)
            odds[:, model.classes_] = model.predict_proba(test)
        measures = measure(odds, split.truth)
        found |= {f"{name} accuracy": measures.accuracy, f"{name} auc": measures.auc or 0.5}
    return found | distances(split.table, (split.x, split.y), (x, y))


Side = tuple[NDArray[np.float32], NDArray[np.int64]]


def distances(table: TableDomain, real: Side, drawn: Side) -> Measured:
    """Mean total variation of one, two and three columns (the label is one), in bins of equal width.

    All columns, and `SETS` pairs and triples that are the same for all methods.
    """
    (one, sizes), (two, _) = coded(table, *real, SHARED), coded(table, *drawn, SHARED)
    rng = np.random.default_rng(0)
    found = {}
    for many in (1, 2, 3):
        sets = list(itertools.combinations(range(len(sizes)), many))
        if many > 1 and len(sets) > SETS:
            sets = [sets[at] for at in rng.choice(len(sets), SETS, replace=False)]
        gaps = []
        for columns in sets:
            shape = tuple(sizes[list(columns)])
            shares = [
                np.bincount(
                    np.ravel_multi_index(tuple(side[:, columns].T), shape), minlength=int(np.prod(shape))
                )
                / len(side)
                for side in (one, two)
            ]
            gaps.append(np.abs(shares[0] - shares[1]).sum() / 2)
        found[f"tv {many}"] = float(np.mean(gaps))
    return found


def coded(
    table: TableDomain, x: NDArray[np.float32], y: NDArray[np.int64], bins: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (n, columns + 1) codes of encoded records and their label, and the number of codes of each."""
    parts, sizes, stop = [], [], 0
    for column in table.features:
        start, stop = stop, stop + column.width
        grid, values = Grid.of(column), x[:, start:stop]
        if grid.edges and len(grid.edges) - 1 > bins:
            codes = np.clip((values[:, 0] * bins).astype(np.int64), 0, bins - 1)
            missing = grid.has_missing and values[:, 1] > 0.5
            parts.append(np.where(missing, bins, codes))
            sizes.append(bins + grid.has_missing)
        else:
            parts.append(grid.cells(values))
            sizes.append(grid.size)
    return np.stack([*parts, y], 1), np.array([*sizes, len(table.label.classes)])


def _records(table: TableDomain, codes: NDArray[np.int64], bins: int, rng: np.random.Generator) -> pa.Table:
    """Return records of codes, uniform within a bin; the other direction of `coded`."""
    kept: list[NDArray[Any]] = []
    for at, column in enumerate(table.features):
        grid = Grid.of(column)
        if grid.edges and len(grid.edges) - 1 > bins:
            place = (codes[:, at] + rng.random(len(codes))) / bins
            kept.append(np.where(codes[:, at] == bins, -1.0, place).astype(np.float32))
        else:
            kept.append(grid.positions(codes[:, at], rng))
    return decoded(table, kept, codes[:, -1], rng)


def _encoded(table: TableDomain, records: pa.Table) -> Side:
    return encode_frame(table, records), encode_answer(table, records[table.answer.name])


def _rows(split: Split) -> int:
    return int(np.clip(len(split.y), *ROWS))


def _ours(split: Split, epsilon: str, delta: str, runs: int, draws: bool) -> list[Measured]:
    """Fresh releases with the system's noise: of kind synthetic, or the usual ones."""
    table, batches = replace(split.table, neighbours="add-remove"), split.batches()
    out = []
    for at in range(runs):
        start = time.process_time()
        release = privatise(
            lambda: batches,
            domain=table,
            epsilon=epsilon,
            delta=delta,
            size=len(split.y),
            kind="synthetic" if draws else "moments",
        )
        if not draws:
            seconds = time.process_time() - start
            found = measure(fit(release).probabilities(split.test), split.truth)
            own = {"own model accuracy": found.accuracy, "own model auc": found.auc or 0.5}
            out.append(own | {"seconds": seconds})
            continue
        records = synthesise(release, _rows(split), seed=at)
        seconds = time.process_time() - start
        out.append(scored(split, *_encoded(table, records)) | {"seconds": seconds})
    return out


def _theirs(split: Split, method: str, epsilon: str, runs: int, python: str) -> list[Measured]:
    """MST or AIM, in an environment with mbi; codes go there in a folder that only its owner can read."""
    script = Path(__file__).with_name("mbi_synthesis.py")
    codes, sizes = coded(split.table, split.x, split.y, BINS)
    out = []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder) / "codes.npy", codes)
            np.save(Path(folder) / "sizes.npy", sizes)
            words = [python, str(script), method, folder, epsilon, "1e-5", str(_rows(split)), str(seed)]
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise UserError(f"{method} failed ({last}); give another --mbi-python, or --others 0")
            drawn = np.load(Path(folder) / "drawn.npy")
        records = _records(split.table, drawn, BINS, rng)
        seconds = float(done.stdout.split()[-1])
        out.append(scored(split, *_encoded(split.table, records)) | {"seconds": seconds})
    return out


def timed() -> Measured:
    """Processor seconds of a release from a CSV file, and rows drawn into another one in a second."""
    rng, names = np.random.default_rng(0), [f"v{at}" for at in range(20)]
    label = rng.integers(0, 2, SPEED_ROWS)
    frame: dict[str, Any] = {"y": pa.array(["no", "yes"]).take(pa.array(label))}
    columns = [Column("y", "label", classes=("no", "yes"))]
    for at in range(SPEED_COLUMNS):
        numbers = np.clip(rng.normal(40 + 8 * label, 20), 0, 100).round(2)
        codes = rng.integers(0, len(names), SPEED_ROWS) * rng.integers(1 - label, 2)
        frame |= {f"n{at}": numbers, f"c{at}": pa.array(names).take(pa.array(codes))}
        columns += [Column(f"n{at}", "numeric", 0, 100), Column(f"c{at}", "categorical", values=tuple(names))]
    table = TableDomain(tuple(columns), neighbours="add-remove")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.csv"
        csv.write_csv(pa.table(frame), file)
        start = time.process_time()
        release = privatise(file, domain=table, epsilon="1", delta="1e-5", kind="synthetic", size=SPEED_ROWS)
        made = time.process_time()
        write(release, SPEED_DRAWN, Path(folder) / "drawn.csv")
        drawn = time.process_time() - made
    return {"seconds of the release": made - start, "rows drawn a second": SPEED_DRAWN / drawn}


# ---- the page


def write_page(path: Path) -> None:
    """Sort the rows of a file by data set, method and budget, and write their page beside it."""
    rows = read_lines(path)
    rows.sort(key=lambda r: (r["data"], ORDER.index(r["method"]), r["noise"], r["epsilon"] or ""))
    write_lines(path, rows)
    write_file(path.with_suffix(".md"), page(rows).encode(), what="table of results")


def means(rows: Sequence[Line]) -> str:
    """A table of means over the data sets that every method was measured on, at each budget."""
    lines = []
    for e in dict.fromkeys(row["epsilon"] for row in rows if row["epsilon"] is not None):
        groups: dict[tuple[str, str], dict[str, Line]] = {}
        for row in rows:
            if row["epsilon"] == e:
                groups.setdefault((row["method"], row["noise"]), {})[row["data"]] = row
        common = set.intersection(*(set(group) for group in groups.values()))
        for (method, noise), group in groups.items():
            cells = []
            for kind, (factor, digits) in MEASURES.items():
                found = [group[n]["measures"][kind][0] for n in common if kind in group[n]["measures"]]
                cells.append(f"{factor * np.mean(found):.{digits}f}" if found else "")
            lines.append(f"| {e} | {method} | {noise} | {len(common)} | {' | '.join(cells)} |")
    heads = f"| epsilon | method | noise | tables | {' | '.join(MEASURES)} |"
    return "\n".join([heads, "|" + " --- |" * (4 + len(MEASURES)), *lines]) + "\n"


def page(rows: Sequence[Line]) -> str:
    """The comparison as one Markdown table for each data set, and the means over them."""
    parts = [
        "# Synthetic tables\n\n"
        f"Made by `adlm experiment synthetic`. Models are trained on {ROWS[0]:,} to {ROWS[1]:,} drawn "
        "records and tested on real ones; mean (standard deviation) over releases, add-remove, delta "
        "1e-5 unless pure. `adlm, no draws` is the model of a usual release of the same budget. "
        "Accuracy and total variation are in per cent; total variation is that to the real training "
        f"records, of all columns and of {SETS} pairs and {SETS} triples, the label among them, in "
        f"{SHARED} bins of equal width. Seconds are processor time of release and draws; those of {SPEED} "
        "of 15 columns are from one CSV file to another. MST and AIM get "
        f"{BINS} bins of equal width for each bounded column, not tuned. Both are written from their "
        "papers on the inference of mbi 2.0.0 and are not their authors' code; AIM's workload is every "
        "pair of columns with the label, with at most 16 rounds for each column; a round chooses from 80 "
        "random candidates, and the model has at most 2 MB."
        "\n\n## Means over tables\n\n",
        means([row for row in rows if row["method"] != REAL]),
    ]
    for name in dict.fromkeys(row["data"] for row in rows):
        parts.append(f"\n## {name}\n\n{rows_table([r for r in rows if r['data'] == name], MEASURES)}")
    return "".join(parts)
