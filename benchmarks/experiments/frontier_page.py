"""Published figures and ours: one table and one picture for each data set (docs/frontier.md).

python -m benchmarks.experiments.frontier_page results   # draw the pictures
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adlm.errors import UserError
from adlm.ui import figures as published
from benchmarks.drawing import new, save
from benchmarks.experiments.tabulate import grid, percent

DPSGD = ("psgd-linear", "psgd-linear-replace-one")
OURS = ("moments-pure", "moments", "moments-add-remove", *DPSGD)
OUR_EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)
LEAST_RELEASES = 5  # of a figure of ours; figures with fewer stay in `results/`
FEATURES = "none; features from random processes"
HEADINGS = ("method", "from", "status", "relation", "delta", "seeds", "public data")
PICTURE = "published.svg"
MARKS = {"claimed": ("x", "#666666"), "reproduced": ("o", "#0f766e"), "disputed": ("v", "#b42318")}
LINES = {
    "moments-pure": "#1f4e9c",
    "moments": "#2f8f4e",
    "moments-add-remove": "#7a3f9c",
    "psgd-linear": "#b35806",
    "psgd-linear-replace-one": "#e08214",
}


def table(summary: Mapping[str, Any]) -> str:
    """Return every published figure of a data set and ours, in Markdown."""
    others = published.rows_of(summary["data"])
    stated = {float(e) for row in others for e in row.accuracies if e != published.AVERAGE}
    epsilons = sorted(stated | set(OUR_EPSILONS))
    body = [_ours(summary, method, epsilons) for method in OURS if _rows(summary, method)]
    body += [_theirs(row, epsilons) for row in others]
    averages = any(published.AVERAGE in row.accuracies for row in others)
    headings = [*HEADINGS, *(f"ε {e:g}" for e in epsilons), *(["average"] if averages else [])]
    made = grid(headings, [row if averages else row[: len(headings)] for row in body])
    sources = dict.fromkeys(f"{row.source}: {row.link}" for row in others)
    return "\n".join([made, "", "Sources: " + ". ".join(sources) + "."])


def _rows(summary: Mapping[str, Any], method: str) -> list[Mapping[str, Any]]:
    least = 1 if method in DPSGD else LEAST_RELEASES
    rows = [r for r in summary["rows"] if r["method"] == method and r["seeds"] >= least]
    return sorted(rows, key=lambda r: float(r["epsilon"]))


def _ours(summary: Mapping[str, Any], method: str, epsilons: Sequence[float]) -> list[str]:
    own = {float(row["epsilon"]): row for row in _rows(summary, method)}
    kept = [own[e] for e in epsilons if e in own]
    seeds = sorted({int(row["seeds"]) for row in kept})
    some = next(iter(own.values()))
    shown = [percent(own[e]["accuracy"], own[e]["sd"]) if e in own else "" for e in epsilons]
    name = some["label"] if method in DPSGD else f"**{some['label']}**"
    return [
        name,
        "`results/`",
        "measured here",
        some["neighbours"],
        _delta(some["delta"]),
        " to ".join(str(s) for s in dict.fromkeys((seeds[0], seeds[-1]))),
        FEATURES,
        *shown,
        "",
    ]


def _theirs(row: published.Row, epsilons: Sequence[float]) -> list[str]:
    by = {float(e): a for e, a in row.accuracies.items() if e != published.AVERAGE}
    shown = [f"{100 * by[e]:.4g}" if e in by else "" for e in epsilons]
    average = row.accuracies.get(published.AVERAGE)
    unknown = "not stated"
    return [
        row.what,
        row.source,
        f"**{row.status}**" if row.status == "disputed" else row.status,
        row.relation or unknown,
        unknown if row.delta is None else _delta(row.delta),
        unknown if row.seeds is None else str(row.seeds),
        row.public_data or unknown,
        *shown,
        "" if average is None else f"{100 * average:.4g}",
    ]


def _delta(delta: float) -> str:
    return f"{delta:g}" if delta else "0"


def draw(summary: Mapping[str, Any], folder: Path) -> Path:
    """Draw our curves and marks for published figures."""
    figure, axes = new(7.4, 5.4)
    values, ticks = [], set(OUR_EPSILONS)
    for method in OURS:
        rows = _rows(summary, method)
        if not rows:
            continue
        x, y = [row["epsilon"] for row in rows], [100 * row["accuracy"] for row in rows]
        error = [100 * (row["sd"] or 0) for row in rows]
        label = f"{rows[0]['label']} ({rows[0]['neighbours']})"
        style = "--" if method in DPSGD else "-"
        axes.errorbar(x, y, error, ls=style, marker=".", lw=1.5, color=LINES[method], label=label)
        values += y
        ticks |= set(x)
    for status, (mark, colour) in MARKS.items():
        for public in (False, True):
            rows_of = [r for r in published.rows_of(summary["data"]) if r.status == status]
            rows_of = [r for r in rows_of if _photographs(r) == public]
            points = [f for row in rows_of for f in row.figures()]
            if not points:
                continue
            x, y = [f.epsilon for f in points], [100 * f.accuracy for f in points]
            face = "none" if public and mark != "x" else colour
            label = f"published, {status}" + (" (other people's photographs used)" if public else "")
            edge = "+" if public and mark == "x" else mark
            axes.plot(x, y, edge, ms=6, color=colour, mfc=face, label=label)
            values += y
            ticks |= set(x)
    for row in published.rows_of(summary["data"]):
        if row.average_over:
            height = 100 * row.accuracies[published.AVERAGE]
            axes.hlines(height, *row.average_over, ls=":", color="#666666")
            axes.annotate(
                row.what.split(",")[0],
                (row.average_over[0], height),
                (0, 2),
                textcoords="offset points",
                fontsize=6,
                color="#666666",
            )
            values.append(height)
    axes.set_xscale("log")
    axes.set_xticks(sorted(ticks), [f"{t:g}" for t in sorted(ticks)], fontsize=7)
    axes.set_xticks([], minor=True)
    axes.set_ylim(max(0, min(values) - 2), min(100.5, max(values) + 2))
    axes.set_xlabel("epsilon: proved for ours, as stated for theirs")
    axes.set_ylabel("test accuracy, %")
    figure.legend(fontsize=7, loc="outside lower center", ncols=2, frameon=False)
    return save(figure, folder / PICTURE)


def _photographs(row: published.Row) -> bool:
    """Whether public photographs were used besides the private images."""
    return row.public_data not in ("", "none", "images of random processes")


def main(words: list[str]) -> int:
    """Draw the pictures of all data sets."""
    if len(words) != 1:
        print("usage: python -m benchmarks.experiments.frontier_page RESULTS", file=sys.stderr)
        return 2
    try:
        for data in published.DATA:
            folder = Path(words[0]) / f"frontier-{data}"
            draw(json.loads((folder / "summary.json").read_text(encoding="utf-8")), folder)
    except (OSError, ValueError, UserError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
