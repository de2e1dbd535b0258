"""Means, standard deviations and t-tests over trials, with effect sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Comparison:
    """A paired t-test of one method against another.

    Attributes
    ----------
    difference : mean of first minus second, in accuracy.
    low, high : 95% confidence interval of it.
    p : two-sided; None where every difference is the same.
    effect : Cohen's d of the differences, their mean over their standard deviation.
    pairs : trials with equal epsilon and seed that both methods have.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float | None
    effect: float | None
    pairs: int

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    def sentence(self) -> str:
        """The result in words."""
        if self.p is None:
            return (
                f"{self.first} and {self.second} differ by {100 * self.difference:+.2f} points in every pair"
            )
        verdict = "a significant" if self.p < 0.05 else "no significant"
        return (
            f"{self.first} against {self.second}: {100 * self.difference:+.2f} points "
            f"({100 * self.low:+.2f} to {100 * self.high:+.2f}), p = {self.p:.2g}, d = {self.effect:.2f}, "
            f"{self.pairs} pairs: {verdict} difference"
        )


def compare(first: str, second: str, a: Sequence[float], b: Sequence[float]) -> Comparison | None:
    """Compare paired accuracies; None when there are fewer than two pairs.

    Parameters
    ----------
    first, second : names of the methods.
    a, b : their accuracies, seed by seed.
    """
    if len(a) != len(b):
        raise ValueError(f"pairs need as many of one as of the other, got {len(a)} and {len(b)}")
    if len(a) < 2:
        return None
    d = np.asarray(a) - np.asarray(b)
    mean, sd = float(d.mean()), float(d.std(ddof=1))
    if sd == 0:
        return Comparison(first, second, mean, mean, mean, None, None, len(d))
    half = float(stats.t.ppf(0.975, len(d) - 1)) * sd / math.sqrt(len(d))
    p = float(stats.ttest_rel(a, b).pvalue)
    return Comparison(first, second, mean, mean - half, mean + half, p, mean / sd, len(d))


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation, or None for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
