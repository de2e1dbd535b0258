"""Run the bench: a table, JSON, and a picture of growth."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from adlm.errors import UserError
from adlm.runtime import progress
from adlm.runtime.artefact import canonical, write_file
from adlm.version import __version__
from benchmarks.bench.comparisons import COMPARISONS, Scale
from benchmarks.bench.ratio import Ratio, shown
from benchmarks.drawing import new, save

BENCH, PAGE, PICTURE = "bench.json", "README.md", "growth.svg"


def run(only: Sequence[str], scale: Scale, out: Path | None, command: str) -> dict[str, Any]:
    """Run some comparisons, or all; write `bench.json`, `README.md` and `growth.svg` to a folder if given.

    Parameters
    ----------
    only : names; all when empty.
    scale : sizes of the work.
    out : the folder; None writes nothing.
    command : the command that is shown on the page.
    """
    for name in only:
        if name not in COMPARISONS:
            raise UserError(f"there is no comparison {name!r}; choose from {', '.join(COMPARISONS)}")
    ratios: list[Ratio] = []
    for name in only or COMPARISONS:
        progress.say(f"bench: {name}")
        ratios += COMPARISONS[name](scale)
    result: dict[str, Any] = {
        "command": command,
        "quick": scale.quick,
        "repeats": scale.repeats,
        "cores": os.cpu_count(),
        "software": {"adlm": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "ratios": [ratio.to_dict() for ratio in ratios],
    }
    if out is not None:
        write_file(out / BENCH, canonical(result), what="bench")
        write_file(out / PAGE, page(result).encode(), what="bench table")
        grown = [entry for entry in result["ratios"] if "relative" in entry["detail"]]
        if grown:
            _draw(grown, out / PICTURE)
    return result


def table_rows(entry: dict[str, Any]) -> list[str]:
    """A ratio as a row of a table."""
    spread = "" if entry["low"] is None else f"{shown(entry['low'])} to {shown(entry['high'])}"
    return [entry["name"], shown(entry["value"]), spread]


HEADINGS = ["what", "ratio", "spread"]


def page(result: dict[str, Any]) -> str:
    """The bench as a page."""
    lines = ["| " + " | ".join(line) + " |" for line in (HEADINGS, ["---", "---:", "---:"])]
    lines += ["| " + " | ".join(table_rows(entry)) + " |" for entry in result["ratios"]]
    notes = [f"- {entry['name']}: {entry['note']}" for entry in result["ratios"] if entry["note"]]
    software = ", ".join(f"{name} {version}" for name, version in result["software"].items())
    how = f"`{result['command']}`: median, smallest and largest of {result['repeats']} interleaved repeats"
    return "\n".join(
        ["# Bench", "", *lines, "", *notes, "", f"{how}; {result['cores']} cores; {software}.", ""]
    )


def _draw(entries: Sequence[dict[str, Any]], path: Path) -> None:
    figure, axes = new(6.0, 4.0)
    for entry in entries:
        sizes = entry["detail"]["sizes"]
        name = entry["name"].removeprefix("growth: ").removesuffix(", exponent")
        label = f"{name}: exponent {entry['value']:.2f}"
        axes.plot([s / sizes[0] for s in sizes], entry["detail"]["relative"], marker="o", ms=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("size, relative to the smallest")
    axes.set_ylabel("time, relative to the smallest")
    axes.legend(fontsize=7)
    save(figure, path)
