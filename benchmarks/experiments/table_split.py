"""Adult and Diabetes-130, encoded by their domain files and split: for the comparison on tables."""

from __future__ import annotations

import csv
import math
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.data.reading import read_batches
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import Features
from adlm.features.tables import indicators, is_ordered
from benchmarks import ROOT

BATCH = 8192
BINS = 12  # of a numeric column


class EvenBins(Features):
    """Indicators of categories and cuts, evenly spaced piecewise-linear bins of numbers; norms at most 1.

    They need no released counts, so that other methods can be given them.
    """

    def __init__(self, table: TableDomain) -> None:
        super().__init__()
        self.table = table
        self.unit = 1 / math.sqrt(len(table.features) + len(table.crosses))
        inputs = sum(column.width for column in table.features)
        self.width = self(torch.zeros(1, inputs)).shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs) encoded records to (n, width)."""
        parts, start = {}, 0
        for column in self.table.features:
            cells = x[:, start : start + column.width]
            start += column.width
            if is_ordered(column) and not column.cuts:
                bins = min(BINS, len(column.levels)) if column.kind == "ordinal" else BINS
                part = (1 - (cells[:, :1] * (bins - 1) - torch.arange(bins)).abs()).clamp_min(0)
                if column.missing is not None:
                    part = torch.cat([part * (1 - cells[:, 1:2]), cells[:, 1:2]], 1)
            else:
                part = indicators(column, cells.double()).float()
            parts[column.name] = part
        pairs = [(parts[a].unsqueeze(2) * parts[b].unsqueeze(1)).flatten(1) for a, b in self.table.crosses]
        return torch.cat([*parts.values(), *pairs], 1) * self.unit

    def spec(self) -> dict[str, Any]:
        """Describe the map."""
        return {"name": "even-bins", "table": self.table.to_dict()}


@dataclass(frozen=True, eq=False)
class EncodedSplit:
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


@dataclass(frozen=True, eq=False)
class Split(EncodedSplit):
    """Encoded records of both sides of a split, with class codes."""

    def validation(self) -> Split:
        """Three quarters of the training records to train on, and the last quarter to choose settings by.

        The test records are not used.
        """
        order = np.random.default_rng(5).permutation(len(self.y))
        fit, validation = np.split(order, [3 * len(order) // 4])
        return Split(
            f"{self.name}, validation",
            self.table,
            self.x[fit],
            self.y[fit],
            self.x[validation],
            self.y[validation],
        )

    def features(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Indicators of both sides, scaled so that no row is longer than 1."""
        features = EvenBins(self.table)
        with torch.inference_mode():
            train, test = (features(torch.from_numpy(x)) for x in (self.x, self.test))
        return train.numpy(), test.numpy()

    def indicators(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Indicators of both sides, unscaled: 1 where one is active."""
        unit = EvenBins(self.table).unit
        train, test = self.features()
        return train / np.float32(unit), test / np.float32(unit)

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
                else:
                    missing = (
                        values[:, 1] > 0 if column.missing is not None else np.zeros(len(values), dtype=bool)
                    )
                    parts.append(np.where(missing, np.nan, values[:, 0]))
            sides.append(np.stack(parts, 1))
        kinds = ["nominal" if c.kind == "categorical" else "continuous" for c in self.table.features]
        return sides[0], sides[1], kinds


def domain_file(name: str) -> Path:
    """The committed domain file of a data set."""
    return ROOT / "examples" / f"{name}.toml"


DECLARED_HERE = ("adult", "diabetes130")  # data sets whose domain files are in `examples`


def load(name: str, data: Path) -> Split:
    """Read a data set, split it, and limit each person's records as the domain declares.

    Any other table comes with its domain file and its split, in the folder `tables`: NAME.toml,
    NAME-train.csv and NAME-test.csv.
    """
    if name not in DECLARED_HERE:
        place = data / "tables"
        if not (place / f"{name}.toml").is_file():
            raise UserError(
                f"there is no {name}.toml in {place}; set ADLM_DATA to a folder with tables/{name}.toml, "
                f"tables/{name}-train.csv and tables/{name}-test.csv"
            )
        table = TableDomain.load(place / f"{name}.toml")
        sides = [read_side(place / f"{name}-{side}.csv", table) for side in ("train", "test")]
        return Split(name, table, *sides[0], *sides[1])
    table = TableDomain.load(domain_file(name))
    with sides_of(name, data) as (train, test):
        x, y = read_side(train, table)
        held, truth = read_side(test, table)
    return Split(name, table, x, y, held, truth)


def read_side(path: Path, table: TableDomain) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read one side of a public split: encoded records, and class codes or positions of the target."""
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
