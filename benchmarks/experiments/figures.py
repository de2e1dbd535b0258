"""Figures of a summary, as small, reproducible SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.drawing import new, save
from benchmarks.experiments.tabulate import STEPS
from benchmarks.experiments.tabulate import epsilon as shown

_COLOURS = {
    "moments-pure": "#1b7837",
    "moments": "#1f4e9c",
    "moments-add-remove": "#6f9bd8",
    "psgd-linear": "#b35806",
    "psgd-linear-replace-one": "#e08214",
    "psgd-tanh": "#d6604d",
    "psgd-abadi": "#762a83",
    "adlm": "#c51b7d",
    "ilm": "#888888",
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
    "adlm-moments": "#1f4e9c",
    "ilm-moments": "#888888",
    "adlm-moments-pure": "#1f4e9c",
    "ilm-moments-pure": "#888888",
}
_FLAT = {"no-noise": ("-.", "#444444"), "ceiling": ("--", "#444444"), "prior": (":", "#444444")}


def names(summary: Mapping[str, Any], folder: Path, curves: Sequence[str] = (), kept: str = "") -> list[Path]:
    """Paths of the figures of a summary, as `draw` writes them.

    Parameters
    ----------
    summary : of the experiment.
    folder : of the figures.
    curves : epsilons with a figure over training steps.
    kept : end of the files' names.
    """
    alone = {kind: kind for kind in ("epochs", "search", "allocation", "ablation")}.get(summary["kind"])
    if alone:
        return [folder / f"{alone}.svg"]
    steps = [folder / f"steps-epsilon-{epsilon}{kept}.svg" for epsilon in curves]
    return [folder / f"accuracy{kept}.svg", *steps]


def draw(summary: Mapping[str, Any], folder: Path, curves: Sequence[str] = (), kept: str = "") -> list[Path]:
    """Draw the figures for the kind of experiment; return the files, whose names end in `kept`.

    Parameters
    ----------
    summary, folder, curves, kept : as for `names`.
    """
    kind = summary["kind"]
    if kind == "epochs":
        return [save(_epochs(summary), folder / "epochs.svg")]
    if kind == "search":
        return [save(_search(summary), folder / "search.svg")]
    if kind == "allocation":
        return [save(_allocation(summary), folder / "allocation.svg")]
    if kind == "ablation":
        return [save(_ablation(summary), folder / "ablation.svg")]
    made = [save(_over_epsilon(summary), folder / f"accuracy{kept}.svg")]
    for epsilon in curves:
        figure = _over_steps(summary, float(epsilon))
        if figure is not None:
            made.append(save(figure, folder / f"steps-epsilon-{epsilon}{kept}.svg"))
    return made


def _log_axis(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic x axis with ticks at the measured values, in plain numbers."""
    axes.set_xscale("log")
    ticks = sorted(set(values))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)


def _curve(rows: Sequence[Mapping[str, Any]], method: str) -> list[Mapping[str, Any]]:
    return sorted((row for row in rows if row["method"] == method), key=lambda row: float(row["epsilon"]))


def _legend(row: Mapping[str, Any], claimed: bool) -> str:
    """A curve's label with the meaning of its epsilon."""
    if not claimed:
        label = str(row["label"])
        return label if row["neighbours"] in label else f"{label} ({row['neighbours']})"
    if row["epsilon_proved"] == row["epsilon_claimed"]:
        return f"{row['label']}: epsilon claimed and proved"
    proved = row["epsilon_proved"]
    label = "none proved" if proved is None else f"proved {shown(proved / row['epsilon_claimed'])} times that"
    return f"{row['label']}: epsilon claimed, {label}"


def _over_epsilon(summary: Mapping[str, Any]) -> Any:
    rows, paper = summary["rows"], summary["kind"] == "paper"
    figure, axes = new(7.0, 5.4 if paper else 4.6)
    for method in dict.fromkeys(row["method"] for row in rows):
        curve = _curve(rows, method)
        if method in _FLAT:
            style, colour = _FLAT[method]
            label = f"{curve[0]['label']}: {100 * curve[0]['accuracy']:.1f}"
            axes.axhline(100 * curve[0]["accuracy"], ls=style, lw=1, color=colour, label=label)
        elif method.startswith("plan"):
            colour = _COLOURS["moments-pure" if method == "plan-pure" else "moments"]
            x, y = [row["epsilon"] for row in curve], [100 * row["accuracy"] for row in curve]
            axes.plot(x, y, ls=":", lw=1, color=colour, alpha=0.7, label=curve[0]["label"])
        else:
            x = [row["epsilon"] if paper else row["epsilon_proved"] for row in curve]
            y, error = [100 * r["accuracy"] for r in curve], [100 * (r["sd"] or 0) for r in curve]
            label = _legend(curve[-1], paper)
            axes.errorbar(x, y, error, marker="o", ms=3, lw=1.4, color=_COLOURS.get(method), label=label)
    _published(axes, summary["published"], separate=paper)
    if not paper:  # the prior alone, far below, has its figure in the legend
        shown = [row["accuracy"] for row in rows if row["method"] != "prior"]
        shown += [entry["accuracy"] for entry in summary["published"]]
        if shown:
            axes.set_ylim(100 * min(shown) - 2, min(100.5, 100 * max(shown) + 2))
    _log_axis(axes, [row["epsilon"] for row in rows if row["epsilon"]])
    axes.set_xlabel("epsilon (claimed for the record releases)" if paper else "proved epsilon")
    return _labelled(figure, axes, summary["title"], columns=1 if paper else 2)


def _labelled(figure: Any, axes: Any, title: str, *, columns: int) -> Any:
    """A figure of accuracies with its title, and the legend below it."""
    axes.set_ylabel("test accuracy, %")
    axes.set_title(title, fontsize=9)
    figure.legend(fontsize=7, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _published(axes: Any, figures: Sequence[Mapping[str, Any]], *, separate: bool) -> None:
    """Marks for published figures; one for each method, or one for each source."""
    names = [f"{f['what']} ({f['source']})" if separate else f["source"] for f in figures]
    for mark, name in zip("x+1234*dDsv^", dict.fromkeys(names), strict=False):
        own = [figure for figure, its in zip(figures, names, strict=True) if its == name]
        x, y = [figure["epsilon"] for figure in own], [100 * figure["accuracy"] for figure in own]
        axes.plot(
            x,
            y,
            mark,
            ms=6,
            color="#666666",
            ls=":" if separate else "",
            lw=0.8,
            label=f"published, as stated: {name}",
        )


def _over_steps(summary: Mapping[str, Any], epsilon: float) -> Any | None:
    """Accuracy over training steps; methods without training, or that pay for each step, are lines."""
    rows = [row for row in summary["rows"] if row["epsilon"] == epsilon or row["method"] == "no-noise"]
    rows = [
        {key: value for key, value in row.items() if key != "history" or row["method"] != "psgd-abadi"}
        for row in rows
    ]
    if not any("history" in row and row["epsilon"] == epsilon for row in rows):
        return None
    figure, axes = new(6.4, 5.4)
    for row in rows:
        colour = _COLOURS.get(row["method"])
        if "history" in row:
            x, y = [point[0] for point in row["history"]], [100 * point[1] for point in row["history"]]
            axes.plot(x, y, marker="o", ms=3, lw=1.4, color=colour, label=_at(row))
        else:
            axes.axhline(100 * row["accuracy"], ls="--", lw=1, color=colour, label=_at(row))
    axes.set_xlabel("training steps")
    return _labelled(
        figure, axes, f"{summary['title'].split(':')[0]}, epsilon {epsilon:g} as claimed", columns=1
    )


def _ablation(summary: Mapping[str, Any]) -> Any:
    """Accuracy over training steps for each change, with the published figures."""
    figure, axes = new(6.4, 5.4)
    for row in summary["rows"]:
        x, y = [point[0] for point in row["history"]], [100 * point[1] for point in row["history"]]
        axes.plot(x, y, marker="o", ms=2, lw=1.2, label=row["label"])
    for entry in summary["published"]:
        label = f"published, as stated: {entry['what']} ({entry['source']})"
        axes.axhline(100 * entry["accuracy"], ls=":", lw=1, color="#666666", label=label)
    _log_axis(axes, STEPS)
    axes.set_xlabel("training steps, each with a noise image of its own")
    return _labelled(figure, axes, summary["title"], columns=1)


def _at(row: Mapping[str, Any]) -> str:
    if row["epsilon_claimed"] is None:
        return str(row["label"])
    proved = "none proved" if row["epsilon_proved"] is None else f"proved {shown(row['epsilon_proved'])}"
    return f"{row['label']}: claimed {row['epsilon_claimed']:.3g}, {proved}"


def _epochs(summary: Mapping[str, Any]) -> Any:
    figure, axes = new()
    right = axes.twinx()
    for row in summary["rows"]:
        colour = _COLOURS.get(row["method"])
        x = [point[0] for point in row["history"]]
        axes.plot(x, [100 * p[1] for p in row["history"]], marker="o", ms=3, color=colour, label=row["label"])
        spent = [p[2] for p in row["history"]]
        right.plot(x, spent, ls=":", color=colour, label=f"{row['label']}: epsilon")
    _log_axis(axes, [point[0] for row in summary["rows"] for point in row["history"]])
    right.set_yscale("log")
    label = {shown(point[2]): point[2] for row in summary["rows"] for point in row["history"]}
    right.set_yticks(list(label.values()), list(label))
    right.set_yticks([], minor=True)
    axes.set_xlabel("epochs")
    right.set_ylabel("proved epsilon (dotted)")
    return _labelled(figure, axes, summary["title"], columns=2)


def _search(summary: Mapping[str, Any]) -> Any:
    figure, axes = new(7.0, 2.8)
    points: list[tuple[str, float, str]] = []
    for row in summary["rows"]:
        spent, trials = f"epsilon {shown(row['epsilon_proved'])}", f"{row['trials']:.0f} trials"
        if row["method"] == "search-release":
            points += [
                (f"release: chosen of {trials} ({spent} for all)", row["accuracy"], "#1f4e9c"),
                (f"release: median trial ({spent} for all)", row["median_trial"], "#1f4e9c"),
                (f"release: closed form, no search ({spent})", row["closed_form"], "#1f4e9c"),
            ]
        else:
            every = shown(row["epsilon_all_trials"])
            alone = f"DP-SGD: one trial ({spent}; {every} for {trials})"
            points += [
                (alone, row["accuracy_one_trial"], "#b35806"),
                (f"DP-SGD: each of {trials} ({spent} for all)", row["accuracy"], "#b35806"),
            ]
    for place, (_, accuracy, colour) in enumerate(points):
        axes.plot(100 * accuracy, -place, "o", color=colour)
        figure_at = (100 * accuracy, -place)
        axes.annotate(f"{figure_at[0]:.1f}", figure_at, (6, -2.5), textcoords="offset points", fontsize=7)
    axes.set_yticks([-place for place in range(len(points))], [name for name, *_ in points], fontsize=7)
    axes.set_ylim(0.6 - len(points), 0.6)
    axes.margins(x=0.15)
    axes.set_xlabel("test accuracy, %")
    axes.set_title(summary["title"], fontsize=9)
    return figure


def _allocation(summary: Mapping[str, Any]) -> Any:
    figure, axes = new()
    for epsilon in sorted({row["epsilon"] for row in summary["rows"]}):
        for method, style in (
            ("ilm-moments", "--"),
            ("adlm-moments", "-"),
            ("ilm-moments-pure", ":"),
            ("adlm-moments-pure", "-."),
        ):
            rows = [r for r in summary["rows"] if r["method"] == method and r["epsilon"] == epsilon]
            rows.sort(key=lambda row: row["k"])
            y, error = [100 * r["accuracy"] for r in rows], [100 * (r["sd"] or 0) for r in rows]
            label = f"{rows[0]['label']}, epsilon {epsilon:g}" if rows else ""
            axes.errorbar([r["k"] for r in rows], y, error, ls=style, marker="o", ms=3, label=label)
    axes.set_xlabel("k, coordinates whose class sums are released")
    return _labelled(figure, axes, summary["title"], columns=2)
