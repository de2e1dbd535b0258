"""The linear head of a release with gradient rounds: a public function of the released gradients.

The curator needs the head of round t to compute the gradients of that round; the analyst computes it anew
from the file. Both use `Descent`. All of it is element-wise arithmetic in doubles on released integers, so
it is the same to the last bit on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adlm.errors import UserError
from adlm.public.planning.rounds import GradientRounds

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

FEATURE_UNIT = 1 << 14  # grid steps in one unit of a feature
RESIDUAL_UNIT = 1 << 14  # grid steps in one unit of p - y
GRADIENT_UNIT = FEATURE_UNIT * RESIDUAL_UNIT
WEIGHT_UNIT = 1 << 20  # grid steps in one unit of a weight
LARGEST_WEIGHT = 1 << 12  # |weight| WEIGHT_UNIT FEATURE_UNIT sqrt(k) stays below 2^53 for k below 2^14


@dataclass(frozen=True)
class Head:
    """A linear classifier on the grid.

    Attributes
    ----------
    integers : (M, 1 + k) weights in steps of 1 / WEIGHT_UNIT, whole numbers as doubles; the first column
        multiplies the constant.
    constant : the coordinate beside z.
    """

    integers: Reals
    constant: float

    @property
    def weight(self) -> Reals:
        """Weights of the features, (M, k)."""
        return np.asarray(self.integers[:, 1:] / WEIGHT_UNIT)

    @property
    def bias(self) -> Reals:
        """Biases, (M,)."""
        return np.asarray(self.integers[:, 0] * (self.constant / WEIGHT_UNIT))


class Descent:
    """Gradient descent with momentum on released gradients, from zero weights and given class offsets.

    Parameters
    ----------
    plan : the public settings.
    offsets : (M,) log class shares, from released counts; the bias starts there.
    width : number k of features.
    """

    def __init__(self, plan: GradientRounds, offsets: Reals, width: int) -> None:
        self.plan = plan
        self._weights = np.zeros((len(offsets), 1 + width))
        self._weights[:, 0] = np.asarray(offsets, dtype=np.float64) / plan.constant
        self._velocity = np.zeros_like(self._weights)
        self._sum = np.zeros_like(self._weights)
        self._first = plan.rounds - max(1, round(plan.average * plan.rounds))
        self._done = 0

    def head(self) -> Head:
        """The head at which the next gradient is taken."""
        return _on_grid(self._weights, self.plan.constant)

    def update(self, gradient: Integers) -> None:
        """Take a step along a released gradient sum, (M, 1 + k) in steps of 1 / GRADIENT_UNIT.

        Scores matter up to what they have in common, so the mean over classes, noise alone, is taken away.
        """
        centred = gradient.astype(np.float64) - gradient.sum(0).astype(np.float64) / len(gradient)
        self._velocity *= self.plan.momentum
        self._velocity += centred * (1 / (GRADIENT_UNIT * float(self.plan.size)))
        self._weights = self._weights - self.plan.step * self._velocity
        np.clip(self._weights, -LARGEST_WEIGHT, LARGEST_WEIGHT, out=self._weights)
        if self._done >= self._first:
            self._sum += self._weights
        self._done += 1

    def final(self) -> Head:
        """The head of the release: the average of the last rounds' weights."""
        if self._done != self.plan.rounds:
            raise UserError(f"the release has {self._done} gradients, its settings say {self.plan.rounds}")
        return _on_grid(self._sum / (self.plan.rounds - self._first), self.plan.constant)


def class_offsets(counts: Integers) -> Reals:
    """Return log class shares from released counts, (M,), in any unit, on a grid of 2^-10.

    A class counts for at least a fiftieth of an even share, whatever noise says.
    """
    total = int(np.maximum(counts, 1).sum())
    least = max(1, total // (50 * len(counts)))
    kept = [max(int(count), least) for count in counts]
    return np.array([round(1024 * math.log(count / sum(kept))) / 1024 for count in kept])


def final_head(gradients: Integers, plan: GradientRounds, offsets: Reals) -> Head:
    """Compute the head of a release from its (T, M, 1 + k) gradients."""
    descent = Descent(plan, offsets, gradients.shape[2] - 1)
    for gradient in gradients:
        descent.update(gradient)
    return descent.final()


def _on_grid(weights: Reals, constant: float) -> Head:
    return Head(np.rint(weights * WEIGHT_UNIT), constant)
