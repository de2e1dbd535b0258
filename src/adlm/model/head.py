"""The linear head of a release: a public function of released numbers, bit for bit the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.errors import UserError
from adlm.model.estimates import offset_moves, plausible_counts

# ---- The linear head of a release with gradient rounds: a public function of the released gradients.
#
# The curator needs the head of round t to compute the gradients of that round; the analyst recomputes it
# from the file. Both use `Descent`. All of it is element-wise arithmetic in doubles on released integers,
# so it is the same to the last bit on every machine.

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

FEATURE_UNIT = 1 << 14  # grid steps in one unit of a feature
RESIDUAL_UNIT = 1 << 14  # grid steps in one unit of p - y
GRADIENT_UNIT = FEATURE_UNIT * RESIDUAL_UNIT
WEIGHT_UNIT = 1 << 20  # grid steps in one unit of a weight
# |weight| WEIGHT_UNIT times the length of z, at most 2 FEATURE_UNIT around a mean, stays below 2^53, with the
# root of k that turns a bound on each weight into one on their length, for k below 2^14.
LARGEST_WEIGHT = 1 << 11
VECTOR = 8  # doubles
CONFIDENCE_UNIT = RESIDUAL_UNIT // 2  # grid steps in one unit of a confidence
TEMPERATURES = (4.0, 2.0, 1.0, 0.5)  # at which a release sums confidences; powers of two, falling


@dataclass(frozen=True)
class GradientRounds:
    """Public settings of gradient rounds.

    Attributes
    ----------
    rounds : number of noisy gradients released.
    clip_norm : L2 bound on one record's gradient (p - y) x (constant, z).
    step : learning rate on the mean gradient.
    momentum : share of the previous step that is kept.
    constant : the extra coordinate that carries the bias.
    average : share of the rounds, the last ones, whose heads are averaged.
    size : public number of records that turns a sum into a mean.
    centred : whether z is centred at its mean, estimated from the released class sums.
    """

    rounds: int
    clip_norm: float
    step: float
    size: int
    momentum: float = 0.9
    constant: float = 0.25
    average: float = 0.25
    centred: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.size < 1:
            raise UserError(f"rounds and size must be at least 1, got {self.rounds} and {self.size}")
        if not (0 < self.clip_norm < 2 and 0 < self.constant <= 1 and self.step > 0):
            raise UserError(
                "gradient rounds need a clip norm in (0, 2), a constant in (0, 1] and a positive step, got "
                f"{self.clip_norm}, {self.constant} and {self.step}"
            )
        if not (0 <= self.momentum < 1 and 0 < self.average <= 1):
            raise UserError(
                f"momentum must lie in [0, 1) and average in (0, 1], got {self.momentum} and {self.average}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> GradientRounds:
        """Read what `to_dict` wrote."""
        try:
            return cls(**raw)
        except TypeError as error:
            raise UserError(f"the settings of gradient rounds cannot be read: {error}") from None


@dataclass(frozen=True)
class Head:
    """A linear classifier, or the linear model of a numeric target (M = 1), on the grid.

    Attributes
    ----------
    integers : (M, 1 + k) weights in steps of 1 / WEIGHT_UNIT, integers as doubles; the first column
        multiplies the constant.
    constant : the extra coordinate.
    """

    integers: Reals
    constant: float

    @cached_property
    def columns(self) -> Reals:
        """(k + 1, M) weights of (z, constant), padded for SIMD, that give scores of z in grid steps."""
        classes, width = self.integers.shape
        columns = np.zeros((in_vectors(width), in_vectors(classes)))
        columns[: width - 1, :classes] = self.integers[:, 1:].T
        columns[width - 1, :classes] = self.integers[:, 0]
        columns *= 1 / (FEATURE_UNIT * WEIGHT_UNIT)  # a power of two
        return columns

    @cached_property
    def margin(self) -> npt.NDArray[np.int32] | Integers:
        """(1 + k,) weights of the second of two classes less those of the first, in grid steps.

        They nearly always fit 32 bits, of which products are faster.
        """
        margin: Integers = (self.integers[1] - self.integers[0]).astype(np.int64)
        return margin if np.abs(margin).max() >= 1 << 31 else margin.astype(np.int32)

    @property
    def weight(self) -> Reals:
        """Weights of the features, (M, k)."""
        return np.asarray(self.integers[:, 1:] / WEIGHT_UNIT)

    @property
    def bias(self) -> Reals:
        """Biases, (M,)."""
        return np.asarray(self.integers[:, 0] * (self.constant / WEIGHT_UNIT))

    def uncentred(self, centre: Integers) -> Head:
        """The same scores as a function of z, from a head for z less a centre, (k,)."""
        moved = self.integers[:, 1:] @ centre.astype(np.float64)  # integers below 2^53
        integers = self.integers.copy()
        integers[:, 0] -= np.rint(moved / (FEATURE_UNIT * self.constant))
        return Head(integers, self.constant)


def in_vectors(count: int) -> int:
    """Round a number of doubles up to full SIMD vectors, on which products are faster."""
    return -(-count // VECTOR) * VECTOR


class Descent:
    """Gradient descent with momentum on released gradients, from zero weights and class offsets.

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
        """The head for the next gradient."""
        return _on_grid(self._weights, self.plan.constant)

    def update(self, gradient: Integers) -> None:
        """Take a step along a released gradient sum, (M, 1 + k) in steps of 1 / GRADIENT_UNIT.

        Adding a constant to all class scores changes nothing, so the mean over classes, which is pure noise,
        is subtracted; not so for the one score of a numeric target.
        """
        centred = gradient.astype(np.float64)
        if len(gradient) > 1:
            centred -= gradient.sum(0).astype(np.float64) / len(gradient)
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


def feature_mean(class_sums: Integers, step: Reals, sd: float) -> Integers:
    """Return the mean of the features from released class sums, (k,), in steps of 1 / FEATURE_UNIT.

    It is shrunk towards zero by the noise's part of its energy, so that pure noise gives zero. Elementary
    operations on integers and doubles alone: the same to the last bit on every machine.

    Parameters
    ----------
    class_sums : (M, 1 + k) released counts and sums.
    step : (1 + k,) their grid steps.
    sd : standard deviation of the noise on each of them, in grid steps.
    """
    total = np.zeros(len(step))
    for row in class_sums:  # one after the other: in doubles, the order would matter
        total += row.astype(np.float64)
    total *= step
    mean = total[1:] / max(float(total[0]), 1.0)
    noise = math.fsum((math.sqrt(len(class_sums)) * sd * step[1:] / max(float(total[0]), 1.0)) ** 2)
    shrinkage = max(0.0, 1 - noise / max(math.fsum(mean**2), 1e-300))
    return np.asarray(np.trunc(np.clip(mean * shrinkage, -1.0, 1.0) * FEATURE_UNIT), dtype=np.int64)


def calibrated_head(
    head: Head, class_sums: Integers, step: Reals, sd: float, predicted: Integers, sd_predicted: float
) -> Head:
    """Move the class offsets of a head so that predicted shares come closer to those of the records.

    Clipped gradients underestimate rare classes, whose records are clipped most. One step of iterative
    scaling, log(counts / predicted), corrects this; differences within the noise are left.

    Parameters
    ----------
    head : the head that predicted.
    class_sums, step, sd : (M, 1 + k) released counts and sums, their grid steps, and their noise.
    predicted : (M,) released sums of its predicted probabilities, in steps of 1 / RESIDUAL_UNIT.
    sd_predicted : standard deviation of their noise.
    """
    unit = float(step[0])
    counts = plausible_counts(class_sums[:, 0], sd).astype(np.float64) * unit
    other = sd_predicted / RESIDUAL_UNIT
    spread = math.sqrt((sd * unit) * (sd * unit) + other * other)
    steps = offset_moves(counts, predicted.astype(np.float64) / RESIDUAL_UNIT, max(spread, 1.0))
    integers = head.integers.copy()
    integers[:, 0] += np.rint(steps * (WEIGHT_UNIT / head.constant))
    limit = float(LARGEST_WEIGHT * WEIGHT_UNIT)
    return Head(np.clip(integers, -limit, limit), head.constant)


def tempered_head(
    head: Head, correct: Integers, confidences: Integers, sd: float, class_sums: Integers, step: Reals
) -> Head:
    """Divide the scores of a head by the temperature at which its mean confidence is its accuracy.

    Clipped gradients hold back the records that are wrong, which makes a model too sure. Differences within
    the noise are left. Single operations of IEEE arithmetic alone: the same bits on every machine.

    Parameters
    ----------
    head : the head whose confidences were summed.
    correct : (1,) released sum, in steps of 1 / RESIDUAL_UNIT.
    confidences : (T,) released sums at TEMPERATURES, in steps of 1 / CONFIDENCE_UNIT.
    sd : standard deviation of the noise on each of them, in steps.
    class_sums, step : (M, 1 + k) released counts and sums, and their grid steps.
    """
    total = 0.0
    for count in class_sums[:, 0]:
        total += float(count) * float(step[0])
    mean_chance = max(total, 1.0) / len(class_sums)
    sums = [float(c) / CONFIDENCE_UNIT + mean_chance for c in confidences]
    right = float(correct[0]) / RESIDUAL_UNIT
    noise = math.sqrt((sd / RESIDUAL_UNIT) ** 2 + (sd / CONFIDENCE_UNIT) ** 2)
    apart = sums[TEMPERATURES.index(1.0)] - right
    kept = noise * noise / max(apart * apart, 1e-300)  # of the difference, by which noise explains it
    if kept >= 1:
        return head
    wanted, inverse = right + kept * apart, [1 / temperature for temperature in TEMPERATURES]
    factor = inverse[0] if wanted <= sums[0] else inverse[-1]
    for low, high, below, above in zip(sums, sums[1:], inverse, inverse[1:], strict=False):
        if low < wanted <= high:
            factor = below + (above - below) * ((wanted - low) / (high - low))
            break
    limit = float(LARGEST_WEIGHT * WEIGHT_UNIT)
    return Head(np.clip(np.rint(head.integers * factor), -limit, limit), head.constant)


def final_head(gradients: Integers, plan: GradientRounds, offsets: Reals) -> Head:
    """Compute the head of a release from its (T, M, 1 + k) gradients."""
    descent = Descent(plan, offsets, gradients.shape[2] - 1)
    for gradient in gradients:
        descent.update(gradient)
    return descent.final()


def objective_head(weights: Integers, offsets: Reals, constant: float) -> Head:
    """Return the linear classifier, or linear model, of a perturbed objective.

    Parameters
    ----------
    weights : (rows, 1 + k) released weights in steps of 1 / WEIGHT_UNIT; one row for two classes.
    offsets : (M,) log class shares from released counts; (1,) zero for a target.
    constant : the coordinate that carries the intercept.
    """
    rows = weights.astype(np.float64)
    if len(offsets) == 2:
        half = np.floor(rows / 2)
        rows = np.concatenate([half - rows, half])
    rows = rows.copy()
    rows[:, 0] += np.rint(offsets * (WEIGHT_UNIT / constant))
    limit = float(LARGEST_WEIGHT * WEIGHT_UNIT)
    return Head(np.clip(rows, -limit, limit), constant)


def _on_grid(weights: Reals, constant: float) -> Head:
    return Head(np.rint(weights * WEIGHT_UNIT), constant)


# ---- The linear model of a numeric target: a public function of released numbers.
#
# Positions of the target between its declared bounds are centred and scaled by the released counts of its
# bins. The model is that of gradient rounds or of the perturbed loss (`gradient_head`).


BINS = 16  # intervals between the bounds; their ends are the knots of piecewise-linear bins
FARTHEST = 3.0  # standard deviations at which a target is clipped when a model is trained
LEAST_SPREAD = 0.01  # of the declared range
ERROR_BOUND = 4.0  # squared errors are clipped no lower than that, in units of the target's variance
ERROR_UNIT = 1 << 16  # grid steps in one squared standard deviation, where errors are clipped at ERROR_BOUND
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
        total = sum(values)
        shares = simplex(np.array([v / total if total > 0 else 1 / len(values) for v in values]))
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

    def squared_errors(self, predicted: Reals, position: Reals) -> Reals:
        """Return (n, 2) squared errors of predictions, clipped to the bounds of the target, and of the mean.

        Parameters
        ----------
        predicted : (n,) in standard deviations from the mean.
        position : (n,) true positions in [0, 1].
        """
        truth = self.standardised(position)
        low, high = (float(v) for v in self.standardised(np.array([0.0, 1.0])))
        wrong = np.clip(predicted, low, high) - truth
        return np.stack([wrong * wrong, truth * truth], 1)


def simplex(values: Reals, total: float = 1.0) -> Reals:
    """Return the nearest non-negative numbers with a given sum."""
    falling = np.sort(values)[::-1]
    over = np.cumsum(falling) - total
    last = int(np.flatnonzero(falling - over / np.arange(1, len(values) + 1) > 0)[-1])
    return np.asarray(np.maximum(values - over[last] / (last + 1), 0))
