"""The public figures that come with the package: measured, published by others, and simulated."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from adlm.domain import NEIGHBOURS
from adlm.errors import UserError
from adlm.mechanism.forecast import forecast
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from adlm.ui import TITLES as TITLES
from adlm.ui.choices import DELTAS, EPSILONS, PRECOMPUTED, Budget, Choice, named, plan_of, settings_of

# ---- The experiments by name: their titles, for the command line and for the pages of results.


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

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Row:
    """One method of a source on one data set.

    Attributes
    ----------
    accuracies : accuracy by epsilon, as its authors state it; or one of them by `average`.
    status : `claimed` by its authors, `reproduced` by others, or `disputed` since.
    relation, delta, seeds, public_data : as the source states them; None or empty where it does not.
    link : where the figures come from.
    average_over : the smallest and the largest epsilon of an average.
    """

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
            Published(self.data, float(e), a, self.what, self.source, self.status, self.relation)
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
#     python -m adlm.ui.figures results              # write measured.json from the results
#     python -m adlm.ui.figures results --forecasts  # and forecasts.json, by simulating every budget

MEASURED = "measured.json"
HERE = Path(__file__).parent
# Curves that are shown next to a forecast.
OURS = ("moments-pure", "moments", "moments-add-remove")
DPSGD = ("psgd-linear", "psgd-linear-replace-one", "psgd-tanh", "psgd-abadi")


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


def from_results(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Collect the curves of the frontier experiments."""
    curves = {}
    for choice in named():
        path = results / f"frontier-{choice.key}" / "summary.json"
        if not path.is_file():
            raise UserError(f"there is no {path}; run adlm experiment frontier-{choice.key} first")
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        curves[choice.key] = [_series(rows, name) for name in (*OURS, *DPSGD) if _rows(rows, name)]
    return curves


def _rows(rows: list[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    return sorted((r for r in rows if r["method"] == method), key=lambda r: float(r["epsilon"]))


def _series(rows: list[dict[str, Any]], method: str) -> dict[str, Any]:
    own = _rows(rows, method)
    return {
        "method": method,
        "family": "ours" if method in OURS else "dp-sgd",
        "label": own[0]["label"],
        "delta": own[0]["delta"],
        "neighbours": own[0]["neighbours"],
        "points": [
            {
                "epsilon": row["epsilon"],
                "accuracy": round(row["accuracy"], 5),
                "sd": None if row["sd"] is None else round(row["sd"], 5),
                "seeds": row["seeds"],
            }
            for row in own
        ],
    }


def forecasts_of_page(old: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Simulate every budget of the page; yield all forecasts after each data set.

    Parameters
    ----------
    old : earlier forecasts; those with the current features and plans are reused.
    """
    forecasts = dict(old)
    budgets = [Budget(e, d, relation) for d in DELTAS for relation in NEIGHBOURS for e in EPSILONS]
    for choice in named():
        before = old.get(choice.key, {})
        features = choice.features.fingerprint()
        same = (before.get("n"), before.get("features")) == (choice.n, features)
        curves: dict[str, dict[str, Any]] = {}
        with progress.bar(len(budgets), f"simulations for {choice.key}", "simulations") as advance:
            for b in budgets:
                kept = before["curves"].get(b.curve, {}).get(b.epsilon) if same else None
                curves.setdefault(b.curve, {})[b.epsilon] = _forecast(choice, b, kept)
                advance(1)
        forecasts[choice.key] = {"n": choice.n, "features": features, "curves": curves}
        yield forecasts


def _forecast(choice: Choice, budget: Budget, kept: list[Any] | None) -> list[Any]:
    """Return accuracy, spread and the settings that they depend on."""
    settings = settings_of(plan_of(choice, choice.n, budget, rounds=False))
    if kept is not None and kept[2:] == settings:
        return kept
    one = forecast(
        choice.features, choice.n, len(choice.classes), budget.epsilon, budget.delta, budget.neighbours
    )
    return [round(one.accuracy, 5), round(one.spread, 5), *settings]


def main(words: list[str]) -> int:
    """Write the files that come with the package."""
    parser = argparse.ArgumentParser(prog="python -m adlm.ui.figures", description=__doc__)
    parser.add_argument("results", type=Path, help="the folder of results")
    parser.add_argument("--forecasts", action="store_true", help="simulate what is not kept; takes minutes")
    parser.add_argument("--anew", action="store_true", help="with --forecasts: keep nothing")
    given = parser.parse_args(words)
    progress.enable()
    try:
        _write(MEASURED, from_results(given.results))
        if given.forecasts:
            old = {} if given.anew else json.loads((HERE / PRECOMPUTED).read_text(encoding="utf-8"))
            for forecasts in forecasts_of_page(old):
                _write(PRECOMPUTED, forecasts)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _write(name: str, value: object) -> None:
    text = json.dumps(value, indent=None, separators=(",", ":"), sort_keys=True)
    write_file(HERE / name, text.replace("]},", "]},\n").encode() + b"\n", what=name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
