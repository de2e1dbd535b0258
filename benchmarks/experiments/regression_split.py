"""Tables with a numeric target, encoded and split: for the comparison on regression.

| name | records | target | split |
| --- | --- | --- | --- |
| diabetes130 | Diabetes-130, one encounter a patient | days in hospital, 1 to 14 | one patient in five |
| adult-age | Adult without its label | age, as its domain file bounds it | its own |
| satimage-pixel | satimage without its label | its 17th column from the others | its own |
| friedman1 | scikit-learn's `make_friedman1`, 20,000 and 5,000 drawn | as made, -5 to 35 | drawn apart |
| load_diabetes | scikit-learn's `load_diabetes`, 442 records | disease progression, 25 to 350 | one in four |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.domain.columns import Column
from adlm.domain.encoding import TARGET_UNIT, Frame, encode_frame, encode_target
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from benchmarks.experiments import table_split
from benchmarks.experiments.table_split import read_side

NAMES = ("diabetes130", "adult-age", "satimage-pixel", "friedman1", "load_diabetes")
# Round figures about what such measurements can be; the published description bounds none of them.
DIABETES_LOWER = (19, 1, 15, 60, 90, 40, 20, 1.5, 3, 50)
DIABETES_UPPER = (80, 2, 45, 140, 310, 250, 100, 10, 6.5, 130)


@dataclass(frozen=True, eq=False)
class TargetSplit(table_split.EncodedSplit):
    """Encoded records of both sides of a split, in [0, 1], with positions of the target."""

    def values(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Targets in their own units."""
        low, high = self.table.domain.target or (0.0, 1.0)
        return np.asarray(low + (high - low) * (positions / TARGET_UNIT))


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


def load(name: str, data: Path) -> TargetSplit:
    """Read or draw a data set by name, and split it."""
    if name not in NAMES:
        raise UserError(f"numbers are predicted on {', '.join(NAMES)} (got {name!r})")
    if name == "friedman1":
        return _friedman()
    if name == "load_diabetes":
        return _diabetes()
    if name == "satimage-pixel":
        place = data / "tables"
        if not (place / "satimage.toml").is_file():
            raise UserError(f"satimage is not in {place}; set ADLM_DATA to a folder that holds tables/")
        plain = TableDomain.load(place / "satimage.toml")
        table = with_target(plain, plain.features[16].name)
        sides = [read_side(place / f"satimage-{side}.csv", table) for side in ("train", "test")]
        return TargetSplit(name, table, *sides[0], *sides[1])
    of = "adult" if name == "adult-age" else name
    plain = TableDomain.load(table_split.domain_file("adult" if of == "adult" else "time-in-hospital"))
    table = with_target(plain, "age") if of == "adult" else plain
    with table_split.sides_of(of, data) as (train, test):
        return TargetSplit(name, table, *read_side(train, table), *read_side(test, table))


def _friedman() -> TargetSplit:
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(25_000, n_features=10, noise=1.0, random_state=1)
    bounds = [(0.0, 1.0)] * 10
    return _of_arrays("friedman1", x, y, bounds, (-5.0, 35.0), np.arange(25_000), 20_000)


def _diabetes() -> TargetSplit:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    order = np.random.default_rng(5).permutation(len(y))
    bounds = [(float(a), float(b)) for a, b in zip(DIABETES_LOWER, DIABETES_UPPER, strict=True)]
    return _of_arrays("load_diabetes", x, y, bounds, (25.0, 350.0), order, 3 * len(y) // 4)


def _of_arrays(
    name: str,
    x: NDArray[Any],
    y: NDArray[Any],
    bounds: list[tuple[float, float]],
    target: tuple[float, float],
    order: NDArray[np.int64],
    train: int,
) -> TargetSplit:
    """Declare columns and target of arrays, encode them, and use the first `train` of an order to train."""
    columns = [Column(f"x{j}", "numeric", *pair) for j, pair in enumerate(bounds)]
    answer = Column("y", "target", *target)
    table = TableDomain((*columns, answer))
    encoded = encode_frame(table, Frame({f"x{j}": x[:, j] for j in range(x.shape[1])}))
    positions = encode_target(answer, y)
    fit, held = order[:train], order[train:]
    return TargetSplit(name, table, encoded[fit], positions[fit], encoded[held], positions[held])
