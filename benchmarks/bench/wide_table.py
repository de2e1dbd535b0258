"""A table of 54 columns and 7 classes: gradient rounds and a perturbed loss, measured side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adlm.runtime import progress
from benchmarks.bench.ratio import Ratio, column, interleave, ratio
from benchmarks.bench.subjects import measure

if TYPE_CHECKING:
    from benchmarks.bench.comparisons import Scale


def wide(scale: Scale) -> list[Ratio]:
    """The time and memory of gradient rounds of a table, against a perturbed loss under pure epsilon."""
    rows = 20_000 if scale.quick else 460_000
    runs = {
        "rounds": {"n": rows, "pure": False},
        "perturbed loss": {"n": rows, "pure": True},
        "quarter": {"n": rows // 4, "pure": False},
    }
    collected: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}

    def run(name: str) -> float:
        figures = measure("wide-table", runs[name])
        collected[name].append(figures)
        times = f"{figures['seconds']:.1f} s, {figures['processor']:.1f} processor seconds"
        progress.say(f"bench: table of 54 columns, {name}: {times}, {figures['peak'] / 1e6:.0f} MB")
        return float(figures["seconds"])

    interleave({name: lambda name=name: run(name) for name in runs}, scale.repeats)  # type: ignore[misc]
    seconds = column(collected, "seconds")
    used = column(collected, "processor")
    peak = column(collected, "peak")
    detail = {"rows": rows, "seconds": seconds, "processor": used}
    note = f"{rows:,} rows; processor seconds: " + ", ".join(f"{n} {min(u):.1f}" for n, u in used.items())
    return [
        ratio(
            "table of 54 columns: gradient rounds over a perturbed loss, time",
            seconds["rounds"],
            seconds["perturbed loss"],
            note=note,
            detail=detail,
        ),
        ratio("the same in processor seconds", used["rounds"], used["perturbed loss"], detail=detail),
        ratio(
            "table of 54 columns, 4 times as many rows, peak memory",
            peak["rounds"],
            peak["quarter"],
            detail=detail,
        ),
    ]
