"""One small table of accuracy for the README: ours and DP-SGD on every data set, from `results/`."""

from __future__ import annotations

import json
from pathlib import Path

from adlm.errors import UserError
from benchmarks.experiments.table_methods import DPSGD, DPSGD_REPLACED, OURS, OURS_ADDED
from benchmarks.experiments.tables import read
from benchmarks.experiments.tabulate import grid

EPSILONS = ("0.1", "0.5", "1", "3", "8")
IMAGES = {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist", "CIFAR-10": "cifar10"}
# label of a row, its method in the frontier experiments, and its method in the tables
ROWS = (
    ("DP-SGD, add-remove", "psgd-linear", DPSGD),
    ("ours, add-remove", "moments-add-remove", OURS_ADDED),
    ("DP-SGD, replace-one", "psgd-linear-replace-one", DPSGD_REPLACED),
    ("ours, replace-one", "moments", OURS),
)
Accuracies = dict[tuple[str, str], float]  # by method and epsilon


def overview(results: Path) -> str:
    """Return accuracy at delta 1e-5, in per cent: means over releases or runs."""
    curves = {name: _frontier(results / f"frontier-{key}" / "summary.json") for name, key in IMAGES.items()}
    rows = read(results / "tables.jsonl")
    curves["Adult"] = {
        (row.method, row.epsilon or ""): row.accuracy
        for row in rows
        if row.data == "adult" and row.noise == "delta 1e-5"
    }
    lines = []
    for name, accuracies in curves.items():
        for label, *methods in ROWS:
            values = [
                next((accuracies[m, e] for m in methods if (m, e) in accuracies), None) for e in EPSILONS
            ]
            shown = ["" if value is None else f"{100 * value:.1f}" for value in values]
            lines.append([name if label == ROWS[0][0] else "", label, *shown])
    return grid(["accuracy, %", "at epsilon", *EPSILONS], lines)


def _frontier(path: Path) -> Accuracies:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError) as error:
        raise UserError(f"the results {path} cannot be read ({error}); run the experiment first") from None
    return {(row["method"], f"{float(row['epsilon']):g}"): row["accuracy"] for row in rows}
