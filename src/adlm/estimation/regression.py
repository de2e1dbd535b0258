"""The linear model of a numeric target: a public function of released numbers.

Positions of the target between its declared bounds are centred and scaled by the released counts of its bins.
The model is that of gradient rounds (`gradient_head`), or ridge regression on released second moments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adlm.estimation.gradient_head import LARGEST_WEIGHT, WEIGHT_UNIT, Head

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

BINS = 16  # intervals between the bounds; their ends are the knots of piecewise-linear bins
FARTHEST = 3.0  # standard deviations at which a target is clipped when a model is trained
LEAST_SPREAD = 0.01  # of the declared range
PENALTY = 1.5  # of ridge regression, over the expected largest eigenvalue of the noise
ERROR_BOUND = 4.0  # squared errors are clipped there, in units of the target's variance
_GRID = 1 << 12


@dataclass(frozen=True)
class TargetScale:
    """Mean and standard deviation of a target, both as shares of the range between its bounds."""

    mean: float
    spread: float

    @classmethod
    def of(cls, counts: npt.ArrayLike) -> TargetScale:
        """Estimate it from noisy counts of the BINS + 1 bins, on a grid: the same on every machine.

        Piecewise-linear bins add up to the mean exactly. Counts are projected on the simplex first.
        """
        values = [float(v) for v in np.asarray(counts, dtype=np.float64)]
        shares = _simplex(
            [v / sum(values) for v in values] if sum(values) > 0 else [1 / len(values)] * len(values)
        )
        at = [i / BINS for i in range(BINS + 1)]
        mean = math.fsum(s * a for s, a in zip(shares, at, strict=True))
        square = math.fsum(s * (a - mean) ** 2 for s, a in zip(shares, at, strict=True))
        spread = max(math.sqrt(square), LEAST_SPREAD)
        return cls(round(mean * _GRID) / _GRID, max(round(spread * _GRID), 1) / _GRID)

    def standardised(self, position: Reals) -> Reals:
        """Return positions in [0, 1] in standard deviations from the mean, elementwise."""
        return np.asarray((position - self.mean) / self.spread)


def _simplex(shares: list[float]) -> list[float]:
    """Return the nearest point of the simplex in Euclidean distance."""
    falling, total, shift = sorted(shares, reverse=True), 0.0, 0.0
    for count, share in enumerate(falling, start=1):
        total += share
        if share > (total - 1) / count:
            shift = (total - 1) / count
    return [max(share - shift, 0.0) for share in shares]


def ridge_head(second: Reals, sd: float, constant: float, weight: float) -> Head:
    """Ridge regression on noisy second moments of (constant, z, weight t / FARTHEST).

    Parameters
    ----------
    second : (k + 2, k + 2) symmetric, noisy.
    sd : standard deviation of the noise off its diagonal; the penalty follows from it.
    constant : the coordinate that carries the intercept.
    weight : of the standardised target t.

    The penalty is about the largest eigenvalue of the noise. Negative eigenvalues, which no sum of squares
    has, are set to zero.
    """
    values, vectors = np.linalg.eigh(second[:-1, :-1])
    along = vectors.T @ second[:-1, -1]
    penalty = PENALTY * sd * math.sqrt(2 * len(second))
    weights = vectors @ (along / (np.maximum(values, 0.0) + penalty)) * (FARTHEST / weight)
    return Head(np.rint(np.clip(weights, -LARGEST_WEIGHT, LARGEST_WEIGHT) * WEIGHT_UNIT)[None], constant)
