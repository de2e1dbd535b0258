"""Write the figures that `adlm ui` comes with, from the results of experiments and by simulation.

python -m benchmarks.experiments.page_figures results              # measured.json, from the results
python -m benchmarks.experiments.page_figures results --forecasts  # and forecasts.json; takes minutes
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import adlm.ui
from adlm.domain import NEIGHBOURS
from adlm.errors import UserError
from adlm.mechanism.forecast import forecast
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from adlm.ui.choices import DELTAS, EPSILONS, PRECOMPUTED, Budget, Choice, named, plan_of, settings_of
from adlm.ui.figures import MEASURED

HERE = Path(adlm.ui.__file__).parent
# Curves that are shown next to a forecast.
OURS = ("moments-pure", "moments", "moments-add-remove")
DPSGD = ("psgd-linear", "psgd-linear-replace-one", "psgd-tanh", "psgd-abadi")


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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experiments.page_figures", description=__doc__
    )
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
