"""Tables and figures of results: pages of experiments, blocks of README and docs, figures of `adlm ui`.

A block stands between `<!-- results: PATH WORDS -->` and `<!-- /results -->`; the path is relative to the
page. `summary.json` gives the table of an experiment, with words the rows of those methods alone, or one of
`tests`, `calibration` and `published`; `bench.json` the table of the bench; `tables.jsonl` and
`regression.jsonl` with a data set and a measure one table; `kinds.jsonl` its table; `.txt` what a command
printed; a folder with the word `overview` one small table of all data sets. `results/figures.toml` says which
command makes each file.

    python -m benchmarks.pages                    # write the blocks of README.md and docs, and published.svg
    python -m benchmarks.pages --check            # exit 1 if a block would change
    python -m benchmarks.pages --ui               # write measured.json of `adlm ui`, from the results
    python -m benchmarks.pages --ui --forecasts   # and forecasts.json; takes minutes
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import adlm.ui
from adlm.domain import NEIGHBOURS
from adlm.errors import UserError
from adlm.mechanism.forecast import forecast
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from adlm.ui import figures as published
from adlm.ui.choices import DELTAS, EPSILONS, PRECOMPUTED, Budget, Choice, named, plan_of, settings_of
from adlm.ui.figures import MEASURED
from benchmarks import ROOT, runner, tables

Summary = Mapping[str, Any]
OURS = ("moments-pure", "moments", "moments-add-remove")
LINEAR = ("psgd-linear", "psgd-linear-replace-one")
COLOURS = {
    "moments-pure": "#1b7837",
    "moments": "#1f4e9c",
    "moments-add-remove": "#6f9bd8",
    "psgd-linear": "#b35806",
    "psgd-linear-replace-one": "#e08214",
    "psgd-tanh": "#d6604d",
    "psgd-abadi": "#762a83",
    "adlm-shared": "#c51b7d",
    "ilm-shared": "#f1b6da",
    "ilm-shared-total": "#de77ae",
    "ilm-shared-own-labels": "#fdae61",
    "adlm-one-image": "#80cdc1",
    "ilm-one-image": "#a6611a",
    "adlm-own-once": "#444444",
    "ilm-own-once": "#888888",
    "ilm-own-redrawn": "#bbbbbb",
    "epochs-release": "#1f4e9c",
    "epochs-psgd": "#b35806",
}
FLAT = {"no-noise": ("-.", "#444444"), "ceiling": ("--", "#444444"), "prior": (":", "#444444")}

# ---- text


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---", *("---:" for _ in headings[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (headings, rule, *rows))


def percent(accuracy: float | None, sd: float | None = None) -> str:
    """An accuracy as a table shows it."""
    if accuracy is None:
        return ""
    return f"{100 * accuracy:.1f}" if sd is None else f"{100 * accuracy:.1f} ± {100 * sd:.1f}"


def epsilon(value: float | None) -> str:
    """An epsilon in three figures, or to the unit where it is large; none proved is infinite."""
    if value is None:
        return "∞"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def name_of(row: Mapping[str, Any]) -> str:
    """The label of a row, which says whether its mechanism is older than today's."""
    return f"{row['label']}, {runner.OLDER}" if runner.is_older(row) else str(row["label"])


def table(summary: Summary) -> str:
    """The main table of an experiment."""
    return {"epochs": _epochs, "allocation": _allocation}.get(str(summary["kind"]), _over_epsilon)(summary)


def _over_epsilon(summary: Summary) -> str:
    rows = summary["rows"]
    epsilons = sorted({row["epsilon"] for row in rows if row["epsilon"]})
    body = []
    for method in dict.fromkeys((row["method"], runner.is_older(row)) for row in rows):
        own = {row["epsilon"]: row for row in rows if (row["method"], runner.is_older(row)) == method}
        some = next(iter(own.values()))
        if set(own) == {0.0}:  # without an epsilon: the same everywhere
            cells = [percent(some["accuracy"], some["sd"])] + [""] * (len(epsilons) - 1)
        else:
            cells = [_with_proved(own.get(e)) for e in epsilons]
        label = f"{name_of(some)} ({some['neighbours']})" if some["epsilon_proved"] else some["label"]
        body.append([label, *cells])
    return grid(["accuracy, % at epsilon", *(f"{e:g}" for e in epsilons)], body)


def _with_proved(row: Mapping[str, Any] | None) -> str:
    """An accuracy, and the proved epsilon where it differs from the column's."""
    if row is None:
        return ""
    shown, proved = percent(row["accuracy"], row["sd"]), row["epsilon_proved"]
    if row["method"].startswith("plan") or (proved is not None and proved <= 1.001 * row["epsilon"]):
        return shown
    return f"{shown} (none proved)" if proved is None else f"{shown} (proved {epsilon(proved)})"


def _epochs(summary: Summary) -> str:
    epochs = [int(point[0]) for point in summary["rows"][0]["history"]]
    body = []
    for row in summary["rows"]:
        points = {int(point[0]): point for point in row["history"]}
        cells = [f"{percent(points[e][1])} at {epsilon(points[e][2])}" if e in points else "" for e in epochs]
        body.append([f"{row['label']} ({row['neighbours']})", *cells])
    return grid(["accuracy, % at proved epsilon, after epochs", *(f"{e:,}" for e in epochs)], body)


def _allocation(summary: Summary) -> str:
    rows = {(row["method"], row["k"], row["epsilon"]): row for row in summary["rows"]}
    tests = {(t["first"].endswith("pure"), t["k"], t["epsilons"][0]): t for t in summary["tests"]}
    body = []
    for delta, k, e in sorted({(row["delta"], row["k"], row["epsilon"]) for row in summary["rows"]}):
        suffix, test = "" if delta else "-pure", tests.get((not delta, k, e))
        pair = [rows.get((f"{name}-moments{suffix}", k, e)) for name in ("ilm", "adlm")]
        body.append(
            [
                f"k = {k}, epsilon {e:g}" + (f", delta {delta:g}" if delta else ", pure"),
                *("" if row is None else percent(row["accuracy"], row["sd"]) for row in pair),
                f"{100 * test['difference']:+.2f}" if test else "",
                f"{test['p']:.1g}" if test and test["p"] is not None else "",
            ]
        )
    return grid(["class sums of k coordinates", "identical, %", "by relevance, %", "difference", "p"], body)


def tests(summary: Summary) -> str:
    """Paired t-tests: a row for each pair of methods, a column for each budget and for all of them."""
    every = summary["tests"]
    budgets = sorted({tuple(test["epsilons"]) for test in every if len(test["epsilons"]) == 1})
    body = []
    for first, second in dict.fromkeys((test["first"], test["second"]) for test in every):
        own = {tuple(t["epsilons"]): t for t in every if (t["first"], t["second"]) == (first, second)}
        together = max(own, key=len)
        cells = [_difference(own[budget]) if budget in own else "" for budget in budgets]
        over = ", ".join(f"{e:g}" for e in together)
        body.append([f"{first}, minus {second}", *cells, f"{_difference(own[together])}, over {over}"])
    heads = [f"at {budget[0]:g}" for budget in budgets]
    return grid(["difference in points (95 % interval), pairs, p", *heads, "all budgets"], body)


def _difference(test: Mapping[str, Any]) -> str:
    low, high = (f"{100 * test[key]:+.1f}" for key in ("low", "high"))
    p = "" if test["p"] is None else f", p {test['p']:.2g}"
    return f"{100 * test['difference']:+.1f} ({low} to {high}), {test['pairs']}{p}"


def calibration(summary: Summary) -> str:
    """Mean gap between confidence and accuracy: rows are methods, columns are epsilons."""
    rows = [row for row in summary["rows"] if "calibration_error" in row and row["epsilon"]]
    epsilons = sorted({row["epsilon"] for row in rows})
    body = []
    for label in dict.fromkeys(map(name_of, rows)):
        own = {row["epsilon"]: row["calibration_error"] for row in rows if name_of(row) == label}
        body.append([label, *(percent(own.get(e)) for e in epsilons)])
    return grid(["calibration error, points, at epsilon", *(f"{e:g}" for e in epsilons)], body)


def write_page(folder: Path, curves: Sequence[str] = ()) -> None:
    """Write README.md of an experiment's folder: its summaries, with links to their figures."""
    parts = []
    for suffix in ("", "-full"):
        file = folder / f"summary{suffix}.json"
        if file.exists():
            summary = json.loads(file.read_text(encoding="utf-8"))
            there = [path for path, _ in _figures(summary, folder, curves, suffix) if path.exists()]
            parts.append(page(summary) + "\n" + "\n".join(f"![{p.stem}]({p.name})" for p in there) + "\n")
    write_file(folder / "README.md", "\n".join(parts).encode(), what="table")


def page(summary: Summary) -> str:
    """A page with the table, the tests and how to run it again."""
    lines = [f"# {summary['title']}", "", table(summary), ""]
    if summary["tests"] and summary["kind"] != "allocation":
        lines += ["Paired t-tests:", "", tests(summary), ""]
    if summary["kind"] == "frontier" and any("calibration_error" in row for row in summary["rows"]):
        lines += ["Calibration error, mean gap between confidence and accuracy over 15 bins:", ""]
        lines += [calibration(summary), ""]
    if summary["published"]:
        lines += ["Published, as their authors state it:", ""]
        lines += [
            f"- {p['what']}: {100 * p['accuracy']:.2f} at epsilon {p['epsilon']:g} ({p['source']})"
            for p in summary["published"]
        ]
        lines.append("")
    if "finished" in summary:
        lines += [f"Finished so far: {summary['finished']}.", ""]
    if "earlier" in summary:
        lines += [f"By an earlier version of the public features: {summary['earlier']}.", ""]
    software = ", ".join(f"{name} {version}" for name, version in summary["software"].items())
    lines += [
        f"Run again: `{summary['command']}`",
        "",
        f"{summary['seconds']:.0f} seconds of work in all, {summary['cores']} cores; {software}. "
        "Accuracy is on the public test split, mean and standard deviation over seeds.",
    ]
    return "\n".join(lines) + "\n"


# ---- figures


def new(width: float = 6.4, height: float = 4.2) -> tuple[Any, Any]:
    """Return a figure and its axes."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.grid(True, alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, path: Path) -> Path:
    """Write a figure as a reproducible SVG file and return its path."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "adlm", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    write_file(path, buffer.getvalue(), what="figure")
    return path


def draw(summary: Summary, folder: Path, curves: Sequence[str] = (), suffix: str = "") -> list[Path]:
    """Draw the figures for the kind of experiment; return the files, whose names end in `suffix`.

    `curves` are epsilons with a figure over training steps.
    """
    made = [(path, make()) for path, make in _figures(summary, folder, curves, suffix)]
    return [save(figure, path) for path, figure in made if figure is not None]


def _figures(summary: Summary, folder: Path, curves: Sequence[str], suffix: str) -> list[tuple[Path, Any]]:
    kind = summary["kind"]
    if kind == "epochs":
        return [(folder / "epochs.svg", lambda: _epochs_figure(summary))]
    if kind == "allocation":
        return [(folder / "allocation.svg", lambda: _allocation_figure(summary))]
    steps = [
        (folder / f"steps-epsilon-{e}{suffix}.svg", lambda e=e: _steps_figure(summary, float(e)))
        for e in curves
    ]
    return [(folder / f"accuracy{suffix}.svg", lambda: _accuracy_figure(summary)), *steps]


def _log_axis(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic x axis with ticks at the measured values, in plain numbers."""
    axes.set_xscale("log")
    ticks = sorted(set(values))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=7)
    axes.set_xticks([], minor=True)


def _curve(summary: Summary, method: str) -> list[Mapping[str, Any]]:
    rows = (row for row in summary["rows"] if row["method"] == method)
    return sorted(rows, key=lambda row: float(row["epsilon"]))


def _labelled(figure: Any, axes: Any, title: str, *, columns: int) -> Any:
    axes.set_ylabel("test accuracy, %")
    axes.set_title(title, fontsize=9)
    figure.legend(fontsize=7, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _legend(row: Mapping[str, Any], claimed: bool) -> str:
    """A curve's label with the meaning of its epsilon."""
    label = name_of(row)
    if not claimed:
        return label if row["neighbours"] in label else f"{label} ({row['neighbours']})"
    proved = row["epsilon_proved"]
    if proved == row["epsilon_claimed"]:
        return f"{label}: epsilon claimed and proved"
    words = (
        "none proved" if proved is None else f"proved {epsilon(proved / row['epsilon_claimed'])} times that"
    )
    return f"{label}: epsilon claimed, {words}"


def _accuracy_figure(summary: Summary) -> Any:
    rows, paper = summary["rows"], summary["kind"] == "paper"
    figure, axes = new(7.0, 5.4 if paper else 4.6)
    for method in dict.fromkeys(row["method"] for row in rows):
        curve = _curve(summary, method)
        y = [100 * row["accuracy"] for row in curve]
        if method in FLAT:
            style, colour = FLAT[method]
            axes.axhline(y[0], ls=style, lw=1, color=colour, label=f"{curve[0]['label']}: {y[0]:.1f}")
        elif method.startswith("plan"):
            colour = COLOURS["moments-pure" if method == "plan-pure" else "moments"]
            x = [row["epsilon"] for row in curve]
            axes.plot(x, y, ls=":", lw=1, color=colour, alpha=0.7, label=curve[0]["label"])
        else:
            x = [row["epsilon"] if paper else row["epsilon_proved"] for row in curve]
            error, label = [100 * (row["sd"] or 0) for row in curve], _legend(curve[-1], paper)
            axes.errorbar(x, y, error, marker="o", ms=3, lw=1.4, color=COLOURS.get(method), label=label)
    names = [f"{f['what']} ({f['source']})" if paper else f["source"] for f in summary["published"]]
    for mark, name in zip("x+1234*dDsv^", dict.fromkeys(names), strict=False):
        own = [f for f, its in zip(summary["published"], names, strict=True) if its == name]
        x, y = [f["epsilon"] for f in own], [100 * f["accuracy"] for f in own]
        style = ":" if paper else ""
        label = f"published, as stated: {name}"
        axes.plot(x, y, mark, ms=6, color="#666666", ls=style, lw=0.8, label=label)
    if not paper:  # the prior alone, far below, has its figure in the legend
        shown = [row["accuracy"] for row in rows if row["method"] != "prior"]
        shown += [entry["accuracy"] for entry in summary["published"]]
        if shown:
            axes.set_ylim(100 * min(shown) - 2, min(100.5, 100 * max(shown) + 2))
    _log_axis(axes, [row["epsilon"] for row in rows if row["epsilon"]])
    axes.set_xlabel("epsilon (claimed for the record releases)" if paper else "proved epsilon")
    return _labelled(figure, axes, summary["title"], columns=1 if paper else 2)


def _steps_figure(summary: Summary, at: float) -> Any | None:
    """Accuracy over training steps; methods without training, or that pay for each step, are lines."""
    rows = [row for row in summary["rows"] if row["epsilon"] == at or row["method"] == "no-noise"]
    trained = [row for row in rows if "history" in row and row["method"] != "psgd-abadi"]
    if not any(row["epsilon"] == at for row in trained):
        return None
    figure, axes = new(6.4, 5.4)
    for row in rows:
        colour, label = COLOURS.get(row["method"]), str(row["label"])
        if row["epsilon_claimed"] is not None:
            proved = row["epsilon_proved"]
            words = "none proved" if proved is None else f"proved {epsilon(proved)}"
            label = f"{label}: claimed {row['epsilon_claimed']:.3g}, {words}"
        if row in trained:
            x, y = [point[0] for point in row["history"]], [100 * point[1] for point in row["history"]]
            axes.plot(x, y, marker="o", ms=3, lw=1.4, color=colour, label=label)
        else:
            axes.axhline(100 * row["accuracy"], ls="--", lw=1, color=colour, label=label)
    axes.set_xlabel("training steps")
    title = f"{summary['title'].split(':')[0]}, epsilon {at:g} as claimed"
    return _labelled(figure, axes, title, columns=1)


def _epochs_figure(summary: Summary) -> Any:
    figure, axes = new()
    right = axes.twinx()
    points = [point for row in summary["rows"] for point in row["history"]]
    for row in summary["rows"]:
        colour, history = COLOURS.get(row["method"]), row["history"]
        x = [point[0] for point in history]
        axes.plot(x, [100 * p[1] for p in history], marker="o", ms=3, color=colour, label=row["label"])
        right.plot(x, [p[2] for p in history], ls=":", color=colour, label=f"{row['label']}: epsilon")
    _log_axis(axes, [point[0] for point in points])
    right.set_yscale("log")
    ticks = {epsilon(point[2]): point[2] for point in points}
    right.set_yticks(list(ticks.values()), list(ticks))
    right.set_yticks([], minor=True)
    axes.set_xlabel("epochs")
    right.set_ylabel("proved epsilon (dotted)")
    return _labelled(figure, axes, summary["title"], columns=2)


def _allocation_figure(summary: Summary) -> Any:
    figure, axes = new()
    styles = {"ilm-moments": "--", "adlm-moments": "-", "ilm-moments-pure": ":", "adlm-moments-pure": "-."}
    for at in sorted({row["epsilon"] for row in summary["rows"]}):
        for method, style in styles.items():
            rows = [row for row in _curve(summary, method) if row["epsilon"] == at]
            rows.sort(key=lambda row: float(row["k"]))
            y, error = [100 * r["accuracy"] for r in rows], [100 * (r["sd"] or 0) for r in rows]
            label = f"{rows[0]['label']}, epsilon {at:g}" if rows else ""
            axes.errorbar([r["k"] for r in rows], y, error, ls=style, marker="o", ms=3, label=label)
    axes.set_xlabel("k, coordinates whose class sums are released")
    return _labelled(figure, axes, summary["title"], columns=2)


# ---- published figures beside ours (docs/frontier.md)

OUR_EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)
LEAST_RELEASES = 5  # of a figure of ours; figures with fewer stay in `results/`
PICTURE = "published.svg"
NO_PHOTOGRAPHS = ("", "none", "images of random processes")  # public data without photographs
MARKS = {"claimed": ("x", "#666666"), "reproduced": ("o", "#0f766e"), "disputed": ("v", "#b42318")}


def beside_published(summary: Summary) -> str:
    """Return every published figure of a data set and ours, in Markdown."""
    others = published.rows_of(summary["data"])
    stated = {float(e) for row in others for e in row.accuracies if e != published.AVERAGE}
    epsilons = sorted(stated | set(OUR_EPSILONS))
    body = [
        _own_row(rows, method, epsilons)
        for method in (*OURS, *LINEAR)
        for rows in _enough(summary, method)
        if any(row["epsilon"] in epsilons for row in rows)
    ]
    body += [_their_row(row, epsilons) for row in others]
    headings = ["method", "from", "status", "relation", "delta", "seeds", "public data"]
    headings += [f"ε {e:g}" for e in epsilons] + ["average"]
    if not any(published.AVERAGE in row.accuracies for row in others):
        headings, body = headings[:-1], [row[:-1] for row in body]
    sources = dict.fromkeys(f"{row.source}: {row.link}" for row in others)
    return "\n".join([grid(headings, body), "", "Sources:", "", *(f"- {source}" for source in sources)])


def _enough(summary: Summary, method: str) -> list[list[Mapping[str, Any]]]:
    """The rows of a method with enough releases, those of an earlier mechanism apart."""
    least = 1 if method in LINEAR else LEAST_RELEASES
    rows = [row for row in _curve(summary, method) if row["seeds"] >= least]
    parts = [[row for row in rows if runner.is_older(row) == older] for older in (False, True)]
    return [part for part in parts if part]


def _own_row(rows: Sequence[Mapping[str, Any]], method: str, epsilons: Sequence[float]) -> list[str]:
    own = {float(row["epsilon"]): row for row in rows}
    some, seeds = next(iter(own.values())), sorted({int(own[e]["seeds"]) for e in epsilons if e in own})
    return [
        name_of(some) if method in LINEAR else f"**{name_of(some)}**",
        "`results/`",
        "measured here",
        some["neighbours"],
        f"{some['delta']:g}",
        " to ".join(str(s) for s in dict.fromkeys((seeds[0], seeds[-1]))),
        "none; features from random processes",
        *(percent(own[e]["accuracy"], own[e]["sd"]) if e in own else "" for e in epsilons),
        "",
    ]


def _their_row(row: published.Row, epsilons: Sequence[float]) -> list[str]:
    by = {float(e): a for e, a in row.accuracies.items() if e != published.AVERAGE}
    average, unknown = row.accuracies.get(published.AVERAGE), "not stated"
    return [
        row.what,
        row.source,
        f"**{row.status}**" if row.status == "disputed" else row.status,
        row.relation or unknown,
        unknown if row.delta is None else f"{row.delta:g}",
        unknown if row.seeds is None else str(row.seeds),
        row.public_data or unknown,
        *(f"{100 * by[e]:.4g}" if e in by else "" for e in epsilons),
        "" if average is None else f"{100 * average:.4g}",
    ]


def draw_published(summary: Summary, folder: Path) -> Path:
    """Draw our curves and marks for published figures."""
    figure, axes = new(7.4, 5.4)
    values, ticks = [], set(OUR_EPSILONS)
    for method in (*OURS, *LINEAR):
        for rows in _enough(summary, method):
            x, y = [row["epsilon"] for row in rows], [100 * row["accuracy"] for row in rows]
            error, style = [100 * (row["sd"] or 0) for row in rows], "--" if method in LINEAR else "-"
            label = f"{name_of(rows[0])} ({rows[0]['neighbours']})"
            axes.errorbar(x, y, error, ls=style, marker=".", lw=1.5, color=COLOURS[method], label=label)
            values += y
            ticks |= set(x)
    theirs = published.rows_of(summary["data"])
    for status, (mark, colour) in MARKS.items():
        for public in (False, True):  # whether photographs of other people were used
            own = [
                r for r in theirs if r.status == status and (r.public_data not in NO_PHOTOGRAPHS) == public
            ]
            points = [f for row in own for f in row.figures()]
            if points:
                x, y = [f.epsilon for f in points], [100 * f.accuracy for f in points]
                face = "none" if public and mark != "x" else colour
                label = f"published, {status}" + (" (other people's photographs used)" if public else "")
                axes.plot(
                    x, y, "+" if public and mark == "x" else mark, ms=6, color=colour, mfc=face, label=label
                )
                values += y
                ticks |= set(x)
    for row in theirs:
        if row.average_over:
            height, name = 100 * row.accuracies[published.AVERAGE], row.what.split(",")[0]
            axes.hlines(height, *row.average_over, ls=":", color="#666666")
            at = (row.average_over[0], height)
            axes.annotate(name, at, (0, 2), textcoords="offset points", fontsize=6, color="#666666")
            values.append(height)
    _log_axis(axes, sorted(ticks))
    axes.set_ylim(max(0, min(values) - 2), min(100.5, max(values) + 2))
    axes.set_xlabel("epsilon: proved for ours, as stated for theirs")
    return save(_labelled(figure, axes, "", columns=2), folder / PICTURE)


# ---- README

IMAGES = {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist", "CIFAR-10": "cifar10"}
# label of a row, its method in the frontier experiments, and its method in the tables
PURE = f"{tables.OURS}, pure"  # our rows of tables without delta
COMPARED = (
    ("DP-SGD, add-remove", "psgd-linear", tables.DPSGD),
    ("ours, add-remove", "moments-add-remove", tables.OURS_ADDED),
    ("DP-SGD, replace-one", "psgd-linear-replace-one", ""),
    ("ours, replace-one", "moments", tables.OURS),
    ("ours, pure epsilon, replace-one", "moments-pure", PURE),
)


OLDER_NOTE = f"{runner.OLDER.capitalize()}: measured before it, or its settings, last changed."


def overview(results: Path) -> str:
    """One small table of accuracy for the README: ours, with delta 1e-5 and pure, and DP-SGD on every set."""
    budgets, lines = ("0.1", "0.5", "1", "3", "8"), []
    curves: dict[str, dict[tuple[str, str], tuple[float, bool]]] = {}
    for name, data in IMAGES.items():
        rows = _read(results / f"frontier-{data}" / "summary.json")["rows"]
        curves[name] = {
            (row["method"], f"{row['epsilon']:g}"): (row["accuracy"], runner.is_older(row)) for row in rows
        }
    curves["Adult"] = {
        (PURE if row["noise"] == "pure" else row["method"], row["epsilon"]): (
            row["measures"]["accuracy"][0],
            runner.is_older(row),
        )
        for row in runner.read_lines(results / tables.CLASSES_FILE)
        if row["data"] == "adult"
        and (row["noise"] == "delta 1e-5" or (row["method"], row["noise"]) == (tables.OURS, "pure"))
    }
    for name, accuracies in curves.items():
        first = name
        for label, *methods in COMPARED:
            found = [next((accuracies[m, e] for m in methods if (m, e) in accuracies), None) for e in budgets]
            if any(found):
                older = f", {runner.OLDER}" if any(each and each[1] for each in found) else ""
                lines.append([first, label + older, *(percent(each and each[0]) for each in found)])
                first = ""
    made = grid(["accuracy, %", "at epsilon", *budgets], lines)
    return f"{made}\n\n{OLDER_NOTE}" if runner.OLDER in made else made


BLOCK = re.compile(r"<!-- results: (?P<path>\S+)(?P<words>[^>]*?) -->\n.*?<!-- /results -->", re.DOTALL)


def rewritten(text: str, folder: Path) -> str:
    """Return the text with every marked table rewritten from its result file."""

    def block(match: re.Match[str]) -> str:
        words = match["words"].split()
        head = " ".join([match["path"], *words])
        return f"<!-- results: {head} -->\n{_made(folder / match['path'], words)}\n<!-- /results -->"

    if text.count("<!-- results:") != len(BLOCK.findall(text)):
        raise UserError("every <!-- results: PATH --> line needs a <!-- /results --> line after it")
    return BLOCK.sub(block, text)


def _made(path: Path, words: list[str]) -> str:
    if words == ["overview"]:
        return overview(path)
    if path.name == "kinds.jsonl":
        from benchmarks.kinds import table as kinds_table

        return kinds_table(path)
    if path.suffix == ".txt":
        return f"```text\n{_text(path).rstrip()}\n```"
    if path.suffix == ".jsonl":
        numeric = path.name == tables.NUMERIC_FILE
        return runner.quoted(path, words, tables.NUMERIC if numeric else tables.MEASURES)
    found = _read(path)
    if "ratios" in found:
        from benchmarks.bench import HEADINGS, table_row

        return grid(HEADINGS, [table_row(entry) for entry in found["ratios"]])
    instead = {"tests": tests, "calibration": calibration, "published": beside_published}
    if len(words) == 1 and words[0] in instead:
        return instead[words[0]](found)
    known = {row["method"] for row in found["rows"]}
    for method in words:
        if method not in known:
            raise UserError(f"{path} has no method {method!r}; it has {', '.join(sorted(known))}")
    if words:
        found["rows"] = [row for name in words for row in found["rows"] if row["method"] == name]
    return table(found)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_text(path))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the results {path} cannot be read ({error}); run the experiment first") from None


# ---- the page of `adlm ui`

UI = Path(adlm.ui.__file__).parent


def measured_curves(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Collect the curves of the frontier experiments that are shown next to a forecast."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for choice in named():
        summary = _read(results / f"frontier-{choice.key}" / "summary.json")
        methods = [m for m in (*OURS, *LINEAR, "psgd-tanh", "psgd-abadi") if _curve(summary, m)]
        curves[choice.key] = [_series(summary, method) for method in methods]
    return curves


def _series(summary: Summary, method: str) -> dict[str, Any]:
    own = _curve(summary, method)
    points = [
        {
            "epsilon": row["epsilon"],
            "accuracy": round(row["accuracy"], 5),
            "sd": None if row["sd"] is None else round(row["sd"], 5),
            "seeds": row["seeds"],
        }
        for row in own
    ]
    kept = {name: own[0][name] for name in ("label", "delta", "neighbours")}
    return {"method": method, "family": "ours" if method in OURS else "dp-sgd", **kept, "points": points}


def forecasts_of_page(old: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Simulate every budget of the page; yield all forecasts after each data set.

    Earlier forecasts with the current features and plans are reused.
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
    """Forecast one budget: accuracy, its spread, and the settings that they depend on."""
    settings = settings_of(plan_of(choice, choice.n, budget, rounds=False))
    if kept is not None and kept[2:] == settings:
        return kept
    one = forecast(
        choice.features, choice.n, len(choice.classes), budget.epsilon, budget.delta, budget.neighbours
    )
    return [round(one.accuracy, 5), round(one.spread, 5), *settings]


def _write_ui(name: str, value: object) -> None:
    text = json.dumps(value, indent=None, separators=(",", ":"), sort_keys=True)
    write_file(UI / name, text.replace("]},", "]},\n").encode() + b"\n", what=name)


def main(words: list[str]) -> int:
    """Write blocks and pictures, check the blocks, or write the figures of the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pages", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("files", nargs="*", type=Path, help="pages; README.md and docs by default")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something would")
    parser.add_argument("--ui", action="store_true", help="write the figures of adlm ui")
    parser.add_argument("--forecasts", action="store_true", help="with --ui: simulate what is not kept")
    options = parser.parse_args(words)
    progress.enable()
    try:
        if options.ui:
            _write_ui(MEASURED, measured_curves(ROOT / "results"))
            if options.forecasts:
                for found in forecasts_of_page(json.loads((UI / PRECOMPUTED).read_text(encoding="utf-8"))):
                    _write_ui(PRECOMPUTED, found)
            return 0
        changed = False
        for file in options.files or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            text = file.read_text(encoding="utf-8")
            new_text = rewritten(text, file.parent)
            changed |= new_text != text
            if new_text != text and not options.check:
                write_file(file, new_text.encode(), what="page")
        if not options.check and not options.files:
            for path in (ROOT / "results").rglob("*.jsonl"):
                if path.name in (tables.CLASSES_FILE, tables.NUMERIC_FILE):
                    tables.write_page(path)
            for data in published.DATA:
                folder = ROOT / "results" / f"frontier-{data}"
                draw_published(_read(folder / "summary.json"), folder)
        return int(changed and options.check)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
