"""Tables of a summary in Markdown: rows are methods, columns are epsilons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STEPS = (1_000, 2_000, 4_000, 5_000, 7_000, 10_000)  # of an ablation
TRIED = (400, 1_000, 1_600, 2_000, 4_000, 5_000, 10_000, 20_000)  # of trials


def table(summary: Mapping[str, Any]) -> str:
    """The main table of an experiment."""
    makers = {"epochs": _epochs, "search": _search, "allocation": _allocation, "ablation": _ablation}
    return makers.get(str(summary["kind"]), _over_epsilon)(summary)


def page(summary: Mapping[str, Any]) -> str:
    """A page with the table, the tests and how to run it again."""
    lines = [f"# {summary['title']}", "", table(summary), ""]
    if summary["tests"]:
        lines += ["Paired t-tests:", "", tests(summary), ""]
    if summary["kind"] == "frontier" and any("calibration_error" in row for row in summary["rows"]):
        lines += ["Calibration error, mean gap between confidence and accuracy over 15 bins:", ""]
        lines += [calibration(summary), ""]
    if summary["published"] and summary["kind"] in ("paper", "frontier"):
        lines += ["Published, as their authors state it:", ""]
        lines += [
            f"- {p['what']}: {100 * p['accuracy']:.2f} at epsilon {p['epsilon']:g} ({p['source']})"
            for p in summary["published"]
        ]
        lines.append("")
    sizes = {row.get("n") for row in summary["rows"]}
    if len(sizes) == 1 and None not in sizes:
        lines += [f"Every method was given the first {sizes.pop():,} training records.", ""]
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


def tests(summary: Mapping[str, Any]) -> str:
    """Results of the t-tests, a line for each."""
    return "\n".join(f"- {test['found']} ({test['over']})" for test in summary["tests"])


def calibration(summary: Mapping[str, Any]) -> str:
    """Mean gap between confidence and accuracy: rows are methods, columns are epsilons."""
    rows = [row for row in summary["rows"] if "calibration_error" in row and row["epsilon"]]
    epsilons = sorted({row["epsilon"] for row in rows})
    body = []
    for label in dict.fromkeys(row["label"] for row in rows):
        own = {row["epsilon"]: row["calibration_error"] for row in rows if row["label"] == label}
        body.append([label, *(percent(own.get(e)) for e in epsilons)])
    return grid(["calibration error, points, at epsilon", *(f"{e:g}" for e in epsilons)], body)


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


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---", *("---:" for _ in headings[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (headings, rule, *rows))


def _over_epsilon(summary: Mapping[str, Any]) -> str:
    rows = summary["rows"]
    epsilons = sorted({row["epsilon"] for row in rows if row["epsilon"]})
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = {row["epsilon"]: row for row in rows if row["method"] == method}
        some = next(iter(own.values()))
        if set(own) == {0.0}:  # without an epsilon: the same everywhere
            cells = [percent(some["accuracy"], some["sd"])] + [""] * (len(epsilons) - 1)
        else:
            cells = [_with_proved(own.get(e)) for e in epsilons]
        body.append(
            [f"{some['label']} ({some['neighbours']})" if some["epsilon_proved"] else some["label"], *cells]
        )
    return grid(["accuracy, % at epsilon", *(f"{e:g}" for e in epsilons)], body)


def _with_proved(row: Mapping[str, Any] | None) -> str:
    """An accuracy, and the proved epsilon where it differs from the column's."""
    if row is None:
        return ""
    shown, proved = percent(row["accuracy"], row["sd"]), row["epsilon_proved"]
    if row["method"].startswith("plan") or (proved is not None and proved <= 1.001 * row["epsilon"]):
        return shown
    return f"{shown} (none proved)" if proved is None else f"{shown} (proved {epsilon(proved)})"


def _ablation(summary: Mapping[str, Any]) -> str:
    """Rows are changes, columns are numbers of steps at which most of them were measured."""
    body = []
    for row in summary["rows"]:
        points = {int(point[0]): float(point[1]) for point in row["history"]}
        body.append([row["label"], *(percent(points.get(step)) for step in STEPS)])
    return grid(["accuracy, % after steps", *(f"{step:,}" for step in STEPS)], body)


def trials(path: Path) -> str:
    """Trials of a file, one a line, over the numbers of steps of `TRIED` at which any was measured."""
    finished = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    measured = {int(step) for trial in finished for step, _ in trial["history"]}
    steps = [step for step in TRIED if step in measured]
    body = []
    for trial in finished:
        points = {int(step): float(accuracy) for step, accuracy in trial["history"]}
        body.append([trial["what"], *(percent(points.get(step)) for step in steps)])
    return grid(["accuracy, % after steps", *(f"{step:,}" for step in steps)], body)


def _epochs(summary: Mapping[str, Any]) -> str:
    epochs = [int(point[0]) for point in summary["rows"][0]["history"]]
    body = []
    for row in summary["rows"]:
        points = {int(point[0]): point for point in row["history"]}
        cells = [f"{percent(points[e][1])} at {epsilon(points[e][2])}" if e in points else "" for e in epochs]
        body.append([f"{row['label']} ({row['neighbours']})", *cells])
    return grid(["accuracy, % at proved epsilon, after epochs", *(f"{e:,}" for e in epochs)], body)


def _search(summary: Mapping[str, Any]) -> str:
    body = []
    for row in summary["rows"]:
        trials, spent = f"{row['trials']:.0f}", epsilon(row["epsilon_proved"])
        if row["method"] == "search-release":
            body.append([f"release: chosen of {trials} trials", percent(row["accuracy"], row["sd"]), spent])
            body.append(["release: median trial", percent(row["median_trial"]), spent])
            body.append(["release: closed form, no search", percent(row["closed_form"]), spent])
        else:
            every = epsilon(row["epsilon_all_trials"])
            body.append(["DP-SGD: one trial", percent(row["accuracy_one_trial"]), spent])
            body.append([f"DP-SGD: {trials} trials, the same noise", "", every])
            body.append(
                [f"DP-SGD: {trials} trials within the budget", percent(row["accuracy"], row["sd"]), spent]
            )
    return grid(["what", "accuracy, %", "epsilon proved"], body)


def pure_suffix(delta: float) -> str:
    """Suffix of the methods of an allocation when epsilon is pure."""
    return "" if delta else "-pure"


def place(k: int, epsilon: float, delta: float) -> str:
    """The width and budget at which allocations were compared, in words."""
    return f"k = {k}, epsilon {epsilon:g}" + (f", delta {delta:g}" if delta else ", pure")


def _allocation(summary: Mapping[str, Any]) -> str:
    rows = {(row["method"], row["k"], row["epsilon"]): row for row in summary["rows"]}
    places = sorted({(row["delta"], row["k"], row["epsilon"]) for row in summary["rows"]})
    tests = {test["over"]: test for test in summary["tests"]}
    body = []
    for delta, k, e in places:
        over, suffix = place(k, e, delta), pure_suffix(delta)
        test = tests.get(over)
        same, own = (rows.get((f"{name}-moments{suffix}", k, e)) for name in ("ilm", "adlm"))
        body.append(
            [
                over,
                percent(same["accuracy"], same["sd"]) if same else "",
                percent(own["accuracy"], own["sd"]) if own else "",
                f"{100 * test['difference']:+.2f}" if test else "",
                f"{test['p']:.1g}" if test and test["p"] is not None else "",
            ]
        )
    return grid(["class sums of k coordinates", "identical, %", "by relevance, %", "difference", "p"], body)
