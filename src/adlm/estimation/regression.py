"""The linear model of a numeric target: a public function of released numbers.

Positions of the target between its declared bounds are centred and scaled by the released counts of its bins.
The model is that of gradient rounds or of the perturbed loss (`gradient_head`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

BINS = 16  # intervals between the bounds; their ends are the knots of piecewise-linear bins
FARTHEST = 3.0  # standard deviations at which a target is clipped when a model is trained
LEAST_SPREAD = 0.01  # of the declared range
ERROR_BOUND = 4.0  # squared errors are clipped no lower than that, in units of the target's variance
CHECK_NOISE = 0.01  # noise on a mean squared error up to which squared errors are clipped higher
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

    def error_limit(self, noise: float) -> float:
        """Return where squared errors are clipped: as high as CHECK_NOISE allows, and never beyond any error.

        Parameters
        ----------
        noise : standard deviation of the noise on a mean squared error, in units of the bound of one error.
        """
        farthest = 1 / self.spread**2  # of a prediction from a target, both within the target's bounds
        return min(max(ERROR_BOUND, CHECK_NOISE / noise), max(ERROR_BOUND, farthest))

    def beyond(self, limit: float) -> Reals:
        """Return (BINS + 1,) how much of the mean's squared error a clip at `limit` takes, at each bin."""
        return np.maximum(self.standardised(np.arange(BINS + 1) / BINS) ** 2 - limit, 0.0)

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
