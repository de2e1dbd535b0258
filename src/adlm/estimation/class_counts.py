"""Class counts and class offsets from noisy counts.

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
CLEAR_COUNTS = 4.0  # standard deviations of noise in a uniform share above which counts are used as they are


def posterior_counts(counts: Sequence[float], spread: float) -> list[float] | None:
    """Return the posterior mean of class counts, given their noise; None where the noise is small.

    The prior of each count is exponential with the uniform share as its mean, so the posterior is a normal
    distribution truncated at zero. Pure noise then gives uniform shares; a count far above its noise hardly
    changes.

    Parameters
    ----------
    counts : of M classes, in any unit.
    spread : standard deviation of their noise, in the same unit.
    """
    uniform = sum(counts) / len(counts)
    if spread * CLEAR_COUNTS <= uniform or spread <= 0:
        return None
    uniform = max(uniform, 1e-9 * spread)
    posterior = [spread * _mean_above_zero(count / spread - spread / uniform) for count in counts]
    total = sum(posterior)
    return [count * uniform * len(counts) / total for count in posterior]


def _mean_above_zero(middle: float) -> float:
    """Mean of a normal variable with standard deviation 1, given that it is positive."""
    if middle < -8.0:  # expansion of the tail, where erfc loses precision
        return (1 - 2 / middle**2 + 10 / middle**4) / -middle
    return middle + math.sqrt(2 / math.pi) * math.exp(-middle * middle / 2) / math.erfc(
        -middle / math.sqrt(2)
    )


def plausible_counts(counts: Integers, spread: float) -> Integers:
    """Shrink released class counts, (M,), together; where noise is small they do not change.

    Parameters
    ----------
    counts : in any unit.
    spread : standard deviation of their noise, in the same unit.
    """
    together = posterior_counts([int(count) for count in counts], spread)
    return counts if together is None else np.array([round(count) for count in together], dtype=np.int64)


def class_offsets(counts: Integers, spread: float = 0.0) -> Reals:
    """Return log class shares from released counts, (M,), in any unit, on a grid of 2^-10.

    A class has at least a fiftieth of a uniform share, whatever its noisy count. `spread` is the standard
    deviation of the noise, see `plausible_counts`.
    """
    counts = plausible_counts(counts, spread)
    total = int(np.maximum(counts, 1).sum())
    least = max(1, total // (50 * len(counts)))
    clamped = [max(int(count), least) for count in counts]
    return np.array([round(GRID * math.log(count / sum(clamped))) / GRID for count in clamped])


def offset_moves(counts: Reals, predicted: Reals, spread: float) -> Reals:
    """Return log(counts / predicted) for each class, shrunk by the noise, on a grid: (M,), mean 0.

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
