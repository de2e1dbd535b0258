"""Class counts that noise has driven apart: how far they may be believed.

Post-processing of released counts, for curator and analyst alike; the same bits on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

GRID = 1024  # steps in one unit of a log share
CLEAR_COUNTS = 4.0  # uniform shares of this many standard deviations leave no doubt of class counts


def posterior_counts(counts: Sequence[float], spread: float) -> list[float] | None:
    """Return what class counts may be believed to be, given their noise; None where that is small.

    Counts are not negative. Before any is seen, each is taken to follow an exponential law around a uniform
    share; the mean of what noise leaves possible is a normal law's, cut off at nought. Noise alone then
    gives uniform shares, and a count that is clear of its noise stands.

    Parameters
    ----------
    counts : of M classes, in any unit.
    spread : standard deviation of their noise, in the same unit.
    """
    uniform = sum(counts) / len(counts)
    if spread * CLEAR_COUNTS <= uniform or spread <= 0:
        return None
    uniform = max(uniform, 1e-9 * spread)
    believed = [spread * _mean_above_zero(count / spread - spread / uniform) for count in counts]
    total = sum(believed)
    return [count * uniform * len(counts) / total for count in believed]


def _mean_above_zero(middle: float) -> float:
    """Mean of a normal law with standard deviation 1, given that it is positive."""
    if middle < -8.0:  # the tail's expansion: erfc runs out of digits far below
        return (1 - 2 / middle**2 + 10 / middle**4) / -middle
    return middle + math.sqrt(2 / math.pi) * math.exp(-middle * middle / 2) / math.erfc(
        -middle / math.sqrt(2)
    )


def plausible_counts(counts: Integers, spread: float) -> Integers:
    """Pull released class counts, (M,), together; where noise is small they stand as they are.

    Parameters
    ----------
    counts : in any unit.
    spread : standard deviation of their noise, in the same unit.
    """
    together = posterior_counts([int(count) for count in counts], spread)
    return counts if together is None else np.array([round(count) for count in together], dtype=np.int64)


def class_offsets(counts: Integers, spread: float = 0.0) -> Reals:
    """Return log class shares from released counts, (M,), in any unit, on a grid of 2^-10.

    A class counts for at least a fiftieth of a uniform share, whatever noise says. `spread` is the standard
    deviation of the noise, see `plausible_counts`.
    """
    counts = plausible_counts(counts, spread)
    total = int(np.maximum(counts, 1).sum())
    least = max(1, total // (50 * len(counts)))
    clamped = [max(int(count), least) for count in counts]
    return np.array([round(GRID * math.log(count / sum(clamped))) / GRID for count in clamped])


def offset_moves(counts: Reals, predicted: Reals, spread: float) -> Reals:
    """Return log(counts / predicted) for each class, held back by the noise, on a grid: (M,), mean 0.

    It is one step of iterative scaling, which brings predicted class shares closer to those of the records.

    Parameters
    ----------
    counts, predicted : (M,) class counts, and sums of predicted probabilities, in records.
    spread : standard deviation of the noise on their difference, at least 1.
    """
    moved = [
        math.log((max(float(count), 0.0) + spread) / (max(float(sum_), 0.0) + spread))
        for count, sum_ in zip(counts, predicted, strict=True)
    ]
    middle = sum(moved) / len(moved)
    return np.array([round(GRID * (value - middle)) / GRID for value in moved])
