"""The public figures that come with the package: measured here, and published by others."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

# ---- Accuracies published by others, for comparison with those measured here: `published.toml`.

FILE = "published.toml"
STATUSES = ("claimed", "reproduced", "disputed")
DATA = ("mnist", "fashion-mnist", "cifar10")
PAPER = "arXiv:1709.05750"
AVERAGE = "average"  # in place of an epsilon: over several


@dataclass(frozen=True)
class Published:
    """One figure from a paper; epsilon is as its authors state it."""

    data: str
    epsilon: float
    accuracy: float
    what: str
    source: str
    status: str = "claimed"
    relation: str = ""
    delta: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Row:
    """One method of a source on one data set."""

    data: str
    what: str
    source: str
    link: str
    status: str
    relation: str
    delta: float | None
    seeds: int | None
    public_data: str
    accuracies: Mapping[str, float]
    average_over: tuple[float, ...] = ()

    def figures(self) -> tuple[Published, ...]:
        """Return the figures that are for a single epsilon."""
        return tuple(
            Published(self.data, float(e), a, self.what, self.source, self.status, self.relation, self.delta)
            for e, a in self.accuracies.items()
            if e != AVERAGE
        )


@lru_cache(maxsize=1)
def rows() -> tuple[Row, ...]:
    """Return everything that is in the file, in its order."""
    text = (resources.files("adlm.ui") / FILE).read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    return tuple(
        Row(
            data,
            row["what"],
            raw["sources"][row["source"]]["name"],
            raw["sources"][row["source"]]["link"],
            row["status"],
            row.get("relation", ""),
            row.get("delta"),
            row.get("seeds"),
            row.get("public_data", ""),
            {e: round(a / 100, 6) for e, a in row[data].items()},
            tuple(map(float, row.get("average_over", ()))),
        )
        for row in raw["rows"]
        for data in DATA
        if data in row
    )


def rows_of(data: str) -> tuple[Row, ...]:
    """Return the methods that are published for a data set."""
    return tuple(row for row in rows() if row.data == data)


def of(data: str) -> tuple[Published, ...]:
    """Return every published figure of a data set that has an epsilon."""
    return tuple(figure for row in rows_of(data) for figure in row.figures())


def of_paper(data: str) -> tuple[Published, ...]:
    """Return the figures of the paper that is reproduced here: its own and its baselines'."""
    return tuple(f for row in rows_of(data) if row.link == PAPER for f in row.figures())


# ---- The public figures that come with the package: measured, published by others, and simulated.
#
# `measured.json` and `forecasts.json` are written by `python -m benchmarks.pages --ui`.

MEASURED = "measured.json"


@lru_cache(maxsize=1)
def measured() -> Mapping[str, Any]:
    """Return the measured curves by data set."""
    curves: dict[str, Any] = json.loads((resources.files("adlm.ui") / MEASURED).read_text(encoding="utf-8"))
    return curves


def reference_curves(data: str) -> dict[str, Any]:
    """Return the measured and published figures of a data set, for the page."""
    return {
        "measured": measured().get(data, []),
        "published": [figure.to_dict() for figure in of(data)],
    }
