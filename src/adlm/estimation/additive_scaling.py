"""Class offsets and one temperature for an additive model, from noisy sums over the records.

The sum of columns' scores is badly calibrated, and noise in many tables adds up to spurious class offsets.
Bias-corrected temperature scaling needs M + 2 numbers a step: the predicted share of each class, and the
first and second derivative of the loss in the log temperature. Each record adds bounded integers. Everything
else reads released numbers alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adlm.estimation.additive import softmax
from adlm.estimation.class_counts import GRID, offset_moves

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

UNIT = 1 << 14  # grid steps in a probability of one
BOUND = UNIT // 2  # of a record's derivatives in the log temperature, in grid steps
FACTOR_UNIT = 1 << 20
LONGEST = 1.0  # step of the log temperature


@dataclass(frozen=True)
class Scaling:
    """Logits are `offsets` plus e^`log_factor` times an additive score.

    Attributes
    ----------
    offsets : (M,) logits of the classes where the score is zero.
    log_factor : minus the log of the temperature.
    """

    offsets: Reals
    log_factor: float = 0.0

    @property
    def factor(self) -> float:
        """The factor of scores: one over the temperature."""
        return round(math.exp(self.log_factor) * FACTOR_UNIT) / FACTOR_UNIT

    def shares_of(self, scores: Reals, codes: npt.NDArray[np.int64]) -> Integers:
        """Return each record's contribution to the sums of a step: (n, M + 2) integers.

        The first M are its predicted probabilities, rounded down. Then come the derivatives of its log
        likelihood in the log of the factor: the first within +-BOUND, and minus the second (less the term of
        the first) in [0, BOUND].

        Parameters
        ----------
        scores : (n, M) additive scores.
        codes : (n,) classes.
        """
        part = scores * self.factor
        probability = softmax(part + self.offsets)
        mean, square = probability[:, 0] * part[:, 0], probability[:, 0] * part[:, 0] ** 2
        for c in range(1, probability.shape[1]):  # in the order of the classes: the same bits in any batch
            mean = mean + probability[:, c] * part[:, c]
            square = square + probability[:, c] * part[:, c] ** 2
        slope = np.trunc((part[np.arange(len(codes)), codes] - mean) * UNIT)
        curvature = np.floor((square - mean**2) * UNIT)
        rows = np.concatenate(
            [
                np.floor(probability * UNIT),
                np.clip(slope, -BOUND, BOUND)[:, None],
                np.clip(curvature, 0, BOUND)[:, None],
            ],
            axis=1,
        )
        return np.asarray(rows.astype(np.int64))

    def moved(self, released: Integers, counts: Reals, spread: float) -> Scaling:
        """Take a step along released sums.

        Parameters
        ----------
        released : (M + 2,) noisy sums of `shares_of`.
        counts : (M,) class counts, in records, released before.
        spread : standard deviation of the noise on the sums, in records.
        """
        sums, spread = released.astype(np.float64) / UNIT, max(spread, 1.0)
        offsets = self.offsets + offset_moves(counts, sums[:-2], spread)
        step = float(sums[-2]) / (max(float(sums[-1]), 0.0) + 2 * spread)
        log_factor = self.log_factor + min(max(step, -LONGEST), LONGEST)
        return Scaling(offsets, round(log_factor * GRID) / GRID)
