"""The result of a comparison: a ratio and its spread over repeats."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ratio:
    """One line of the bench.

    Attributes
    ----------
    value : median over repeats; None when it could not be measured, and `note` says why.
    low, high : smallest and largest over repeats.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def interleave(actions: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run each action in turn, `repeats` rounds, so that slow periods affect all of them equally."""
    results: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            results[name].append(action())
    return results


def ratio(
    name: str,
    above: Sequence[float],
    below: Sequence[float],
    *,
    note: str = "",
    detail: Mapping[str, Any] | None = None,
) -> Ratio:
    """Divide figures of the same round, and take the median.

    Parameters
    ----------
    name : of the ratio.
    above, below : figures of each round, in the same unit.
    note : a sentence for the table.
    detail : figures to store with it.
    """
    values = [a / b for a, b in zip(above, below, strict=True)]
    return Ratio(name, statistics.median(values), min(values), max(values), note, dict(detail or {}))


def column(found: Mapping[str, Sequence[Mapping[str, Any]]], key: str) -> dict[str, list[float]]:
    """Return one figure of every round, by name."""
    return {name: [figures[key] for figures in each] for name, each in found.items()}


def exponent(sizes: Sequence[float], figures: Sequence[float]) -> float:
    """Slope of a straight line through log figures over log sizes: 1 is linear growth."""
    slope = np.polyfit(np.log(sizes), np.log(figures), 1)[0]
    return float(slope)


def shown(value: float | None) -> str:
    """Three significant figures."""
    if value is None:
        return "not measured"
    if value == 0 or not math.isfinite(value):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
