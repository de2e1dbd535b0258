"""The loss, perturbed once: objective perturbation with a capped loss and exact noise.

    J(W) = sum_i loss(W z_i, y_i) + ridge/2 (|W|^2 + smoothness |D W|^2) + <B, W>,        W* = argmin J

D W are the differences between weights of neighbouring bins of a numeric column. B is drawn once, so the cost
does not depend on how many steps the solver takes: the paper's promise for its Step 4, with a proof
(docs/proof-objective.md). What is released is W* up to a certified error, plus a little exact noise that
hides the error.

The loss is convex, with a gradient in the scores that is bounded by `cap`:

- classes: the largest value of <p - e_y, u> + H(p) over the probabilities p for which p - e_y has quotient
  norm at most `cap`. The quotient norm is the L1 distance to the vectors with equal entries, because scores
  do not change when all of them are shifted together. Without a cap this is the cross-entropy.
- two classes: the logistic loss whose derivative is at most cap / 2, of one row of weights.
- a numeric target: Huber's loss, whose derivative is at most `cap`.

Published by Chaudhuri, Monteleoni and Sarwate (2011), Kifer, Smith and Thakurta (2012), Iyengar et al. (2019)
and Redberg, Koskela and Wang (2023), without the quotient norm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import scipy.linalg

from adlm.domain.encoding import TARGET_UNIT
from adlm.engine.passes import Part, Records
from adlm.errors import UserError
from adlm.mechanism.stages import Run, Stage, Terms, spread
from adlm.model.head import (
    ERROR_BOUND,
    ERROR_UNIT,
    FEATURE_UNIT,
    LARGEST_WEIGHT,
    WEIGHT_UNIT,
    TargetScale,
    objective_head,
)
from adlm.privacy.accounting import GAUSSIAN, Charge, Mechanism
from adlm.privacy.noise import Source
from adlm.runtime import progress
from adlm.runtime.arithmetic import root_up
from adlm.runtime.compiled import Compiled

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Small = npt.NDArray[np.int16]
Loss = Literal["classes", "target"]

PROOF = "docs/proof-objective.md"
ROWS = 1 << 12  # records of a block: their floating-point sum has a known error bound
SUM_UNIT = float(1 << 36)  # grid of the sums of blocks, which are then added exactly, in any order
GRAM_UNIT = float(1 << 20)
NOISE_STEPS = 1 << 40  # steps of the grid on which the noise of the objective is drawn, in one noise scale
FINE_UNIT = 1 << 40  # grid of the minimum before its last noise
COARSER = (FINE_UNIT // WEIGHT_UNIT).bit_length() - 1  # bits that are dropped of it after that noise
UNIT = 2.0**-53  # relative error of one rounded operation on doubles
RESIDUAL_ERROR = 2.0**-36  # least bound on the error of a residual, given its scores; `residual_error`
MANY_CLASSES = 128  # above this, the solver's tolerance grows with the number of classes
ROUNDING_SHARE = Fraction(1, 1000)  # of the stage's epsilon, for the noise that hides the solver's error
MOST_CURVATURE = Fraction(1, 2)  # largest share of the stage's epsilon that the ridge may cost
PRECISION_UNIT, MOST_PRECISION = 16, 64  # squares of weighted features add up exactly in doubles
MEMORY = 12  # pairs that L-BFGS keeps
MOST_STEPS = 1000
MOST_GRAM = 2000  # features, up to which the solver is preconditioned by their second moments


@dataclass(frozen=True)
class Objective:
    """Public settings of a perturbed objective.

    Attributes
    ----------
    loss : `classes` or `target`.
    classes : number of classes; 1 for a target.
    noise : `laplace`, best for sparse features, `radial`, best for dense ones, or `gaussian`.
    cap : bound on a record's gradient in the scores: its quotient norm, or the derivative for a target.
    ridge : coefficient of |W|^2 / 2.
    norm : bound on N(z), the norm of a record's features (with the constant) that the noise is calibrated to:
        L1 for `laplace`, else L2.
    length : bound on the L2 norm of the same.
    constant : the coordinate that carries the intercept.
    size : public number of records, which the solver's tolerance follows.
    precision : (k,) whole numbers that a feature is multiplied by in N(z), over PRECISION_UNIT: the noise on
        its weights is divided by them, so that noise follows relevance; None for identical noise.
    smoothness : penalty on squared differences between weights of neighbouring bins, over the ridge.
    runs : first feature and end of each run of neighbouring bins.
    """

    loss: Loss
    classes: int
    noise: Mechanism
    cap: float
    ridge: float
    norm: float
    length: float
    constant: float
    size: int
    precision: tuple[int, ...] | None = None
    smoothness: float = 0.0
    runs: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.smoothness <= 100 or any(not 0 <= start < stop for start, stop in self.runs):
            raise UserError(
                "an objective needs a smoothness from 0 to 100 and runs of bins (start, stop), got "
                f"{self.smoothness} and {self.runs}"
            )
        if self.precision is not None and not all(1 <= p <= MOST_PRECISION for p in self.precision):
            raise UserError(f"precisions must be whole numbers from 1 to {MOST_PRECISION}")
        if not (0 < self.cap <= 2 and self.ridge > 0 and self.norm > 0 and self.length > 0):
            raise UserError(
                "an objective needs a cap in (0, 2] and a positive ridge, norm and length, got "
                f"{self.cap}, {self.ridge}, {self.norm} and {self.length}"
            )
        if not 0 < self.constant < 2:
            raise UserError(f"the constant of an objective must lie in (0, 2), got {self.constant}")
        if self.classes < (2 if self.loss == "classes" else 1) or self.size < 1:
            raise UserError(f"an objective needs classes and records, got {self.classes} and {self.size}")

    @property
    def rows(self) -> int:
        """Rows of W: one for each class, one for two classes, one for a target."""
        return self.classes if self.classes > 2 else 1

    @property
    def gradient_bound(self) -> Fraction:
        """Bound on a record's gradient in the scores, in the norm that the noise is calibrated to."""
        return Fraction(self.cap) / 2 if self.classes == 2 else Fraction(self.cap)

    @property
    def curvature(self) -> Fraction:
        """Bound on the trace of the Hessian of the loss in the scores."""
        if self.loss == "target":
            return Fraction(1)
        if self.classes == 2:
            steepest = min(Fraction(self.cap) / 2, Fraction(1, 2))
            return steepest * (1 - steepest)
        return 1 - Fraction(1, self.classes)

    @property
    def tolerance(self) -> float:
        """Largest error of the gradient at the point that is released, from all sources."""
        return max(3e-6, 3e-11 * max(1.0, self.classes / MANY_CLASSES) * self.size)

    @property
    def norm_bound(self) -> int:
        """`norm` in grid steps of features."""
        return math.floor(self.norm * FEATURE_UNIT)

    @property
    def length_bound(self) -> int:
        """`length` in grid steps of features; never above `norm_bound` where that bounds the L2 norm too."""
        length = math.floor(self.length * FEATURE_UNIT)
        return length if self.noise == "laplace" else min(length, self.norm_bound)

    @property
    def weighting(self) -> Reals:
        """Precision of the constant and of each feature, (1 + k,), in steps of 1 / PRECISION_UNIT."""
        assert self.precision is not None
        return np.array([PRECISION_UNIT, *self.precision], dtype=np.float64)

    def penalty(self, weights: Reals) -> Reals:
        """Return the gradient of the ridge at (..., rows, 1 + k) weights."""
        out = weights.copy()
        for start, stop in self.runs:
            steps = self.smoothness * np.diff(weights[..., 1 + start : 1 + stop])
            out[..., 1 + start : stop] -= steps
            out[..., 2 + start : 1 + stop] += steps
        return np.asarray(self.ridge * out)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        precision = None if self.precision is None else list(self.precision)
        return asdict(self) | {"precision": precision, "runs": [list(run) for run in self.runs]}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Objective:
        """Read what `to_dict` wrote."""
        try:
            precision = None if raw["precision"] is None else tuple(raw["precision"])
            runs = tuple((int(start), int(stop)) for start, stop in raw["runs"])
            return cls(**raw | {"precision": precision, "runs": runs})
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the settings of an objective cannot be read: {error}") from None


@dataclass(frozen=True)
class ObjectiveNoise:
    """Noise of a calibrated objective.

    Attributes
    ----------
    scale : noise scale of the linear term, in real units; a multiple of a power of two.
    rounding : noise scale on the minimum, in steps of 1 / FINE_UNIT.
    charges : what both, and the ridge, cost.
    """

    scale: float
    rounding: int
    charges: tuple[Charge, ...]


def calibrate(
    objective: Objective,
    epsilon: Fraction,
    neighbours: str,
    contributions: int = 1,
    *,
    mu: Fraction | None = None,
    delta: Fraction = Fraction(0),
) -> ObjectiveNoise:
    """Return the smallest noise for which the objective costs at most epsilon, or mu if it is Gaussian.

    Parameters
    ----------
    objective : the public settings.
    epsilon : of the stage, for a person's records. Gaussian noise: of all stages together; the ridge and the
        error of the minimum cost a part of it.
    neighbours : the relation.
    contributions : records that one person may have.
    mu : what the longest move of the linear term may cost, if its noise is Gaussian.
    delta : at which the charge of Gaussian noise is read off.

    Formal guarantees
    -----------------
    Relation: the given one. The linear term costs r a norm / scale, where a is `gradient_bound` and r is 1
    under add-remove and 2 under replace-one; the ridge costs `curvature` length^2 / ridge; the error of the
    solver costs 2 tolerance / (ridge rounding). A person with m records multiplies the first two by m.
    Proved in docs/proof-objective.md (Theorems 1 and 2). Gaussian noise has one row: r a norm / scale is the
    mu of its longest move (Theorem 4).
    """
    if (objective.noise == "gaussian") != (mu is not None) or (mu is not None and objective.rows > 1):
        raise UserError("Gaussian noise in a loss needs delta, and two classes or a numeric target")
    times = contributions * (1 if neighbours == "add-remove" else 2)
    length = Fraction(objective.length_bound, FEATURE_UNIT)
    curvature = objective.curvature * length**2 * contributions
    error = 2 * Fraction(objective.tolerance) / Fraction(objective.ridge)
    rounding_epsilon = epsilon * ROUNDING_SHARE
    left = epsilon - rounding_epsilon - curvature / Fraction(objective.ridge)
    if left < epsilon * (1 - MOST_CURVATURE - ROUNDING_SHARE):
        raise UserError(
            f"a ridge of {objective.ridge:g} would cost more than half of the epsilon {float(epsilon):g} of "
            "the objective; give a larger ridge"
        )
    moved = times * objective.gradient_bound * Fraction(objective.norm_bound, FEATURE_UNIT)
    scale = _up(moved / (left if mu is None else mu))
    rounding = math.ceil(error * FINE_UNIT / rounding_epsilon)
    mechanism: Mechanism = objective.noise
    if mu is not None:
        mechanism = "gaussian-target" if objective.loss == "target" else "gaussian-label"
    where = "Theorem 1" if mu is None else "Theorem 4"
    stages: tuple[tuple[str, Mechanism, Fraction, Fraction, str], ...] = (
        ("noise in the loss", mechanism, moved, Fraction(scale), where),
        ("ridge of the loss", "curvature", curvature, Fraction(objective.ridge), where),
        ("error of the minimum", "radial", error, Fraction(rounding, FINE_UNIT), "Theorem 2"),
    )
    charges = tuple(
        Charge(
            what,
            kind,
            neighbours,
            most,
            size,
            f"{PROOF} {proof}",
            delta if kind in GAUSSIAN else Fraction(0),
            contributions=contributions,
        )
        for what, kind, most, size, proof in stages
    )
    return ObjectiveNoise(scale, rounding, charges)


def _up(value: Fraction) -> float:
    """Return a double that is at least a value, with few digits, so that it prints exactly."""
    grid = 2.0 ** (math.floor(math.log2(value)) - 30)
    return math.ceil(value / Fraction(grid)) * grid


# ---- records


@dataclass(frozen=True)
class Bounded:
    """Records as the solver reads them: (constant, z) on a grid, within both norm bounds, and labels.

    Formal guarantees
    -----------------
    For any features whatever, each row of integers has norm at most `norm_bound` (in the noise's norm) and L2
    norm at most `length_bound`. It is a function of the record alone. Proved in docs/proof-objective.md
    (Lemma 1).
    """

    objective: Objective
    width: int

    def __call__(self, part: Part) -> Part:
        """Return the part to store for later passes."""
        z, labels = part[0], np.asarray(part[1], dtype=np.int32)
        known = self.objective.classes  # compiled code checks no index
        if self.objective.loss == "classes" and len(labels) and not 0 <= labels.min() <= labels.max() < known:
            raise UserError(f"class codes must lie between 0 and {known - 1}; check the reader")
        return self.rows(np.asarray(z)[:, : self.width]), labels

    def rows(self, z: npt.NDArray[Any]) -> Small:
        """Shrink (n, k) features with the constant into both balls, rounded towards zero: (n, 1 + k)."""
        if not np.isfinite(z).all():
            raise UserError("features hold a value that is not a finite number; check the feature map")
        real = np.empty((len(z), 1 + self.width))
        real[:, 0] = self.objective.constant * FEATURE_UNIT
        real[:, 1:] = np.clip(z, -1.99, 1.99) * FEATURE_UNIT
        rows = np.trunc(real)
        over = np.flatnonzero(self._excess(rows) > 1)
        shrink = np.ones(len(z))
        while over.size:
            shrink[over] *= (1 - 2.0**-20) / self._excess(rows[over])
            rows[over] = np.trunc(real[over] * shrink[over, None])
            over = over[self._excess(rows[over]) > 1]
        return rows.astype(np.int16)

    def _excess(self, rows: Reals) -> Reals:
        """Return the larger of norm / bound and length / bound; above 1 exactly where a bound is exceeded."""
        squares = (rows * rows).sum(1)  # integers below 2^53: exact
        long = np.sqrt(squares / float(self.objective.length_bound**2))
        long = np.where((squares > self.objective.length_bound**2) & (long <= 1), 1 + 2.0**-40, long)
        weighted, bound = rows, self.objective.norm_bound
        if self.objective.precision is not None:
            weighted, bound = rows * self.objective.weighting, bound * PRECISION_UNIT
        if self.objective.noise == "laplace":
            return np.asarray(np.maximum(long, np.abs(weighted).sum(1) / bound))
        if self.objective.precision is None and bound >= self.objective.length_bound:
            return np.asarray(long)
        squares = (weighted * weighted).sum(1)
        cost = np.sqrt(squares / float(bound**2))
        cost = np.where((squares > bound**2) & (cost <= 1), 1 + 2.0**-40, cost)
        return np.asarray(np.maximum(long, cost))


# ---- the loss


def _cap_classes(scores: Reals, labels: npt.NDArray[np.int32], cap: float) -> None:
    """Replace scores (n, M), M > 2, by the gradients of the capped loss in them.

    The unconstrained maximum is the softmax p. With the probabilities of the other classes in falling order,
    the quotient norm of p - e_y is sum_i w_i p_i, with w_i = 2 for the first M // 2 of them, 1 for the next
    one if M is odd, and 0 for the rest. Where it exceeds the cap, the maximum is the softmax of scores less
    multiplier * w, made monotone by pooling adjacent violators; the multiplier is found by bisection.
    """
    n, classes = scores.shape
    others = classes - 1
    half = classes // 2
    order = np.empty(others, dtype=np.int64)
    value = np.empty(others)
    mean = np.empty(others)
    size = np.empty(others, dtype=np.int64)
    for i in range(n):
        row = scores[i]
        y = labels[i]
        count = 0
        for m in range(classes):
            if m != y:
                j = count
                while j > 0 and row[order[j - 1]] < row[m]:
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = m
                count += 1
        low, high, multiplier = 0.0, 0.0, 0.0
        for _ in range(300):
            pools = 0
            for j in range(others):
                weight = 2.0 if j < half else (1.0 if j == half and classes % 2 == 1 else 0.0)
                mean[pools] = row[order[j]] - multiplier * weight
                size[pools] = 1
                pools += 1
                while pools > 1 and mean[pools - 2] < mean[pools - 1]:
                    both = size[pools - 2] + size[pools - 1]
                    mean[pools - 2] = (
                        mean[pools - 2] * size[pools - 2] + mean[pools - 1] * size[pools - 1]
                    ) / both
                    size[pools - 2] = both
                    pools -= 1
            largest = max(row[y], mean[0])
            j = 0
            total = math.exp(row[y] - largest)
            for pool in range(pools):
                each = math.exp(mean[pool] - largest)
                for _ in range(size[pool]):
                    value[j] = each
                    total += each
                    j += 1
            norm = 0.0
            for j in range(others):
                weight = 2.0 if j < half else (1.0 if j == half and classes % 2 == 1 else 0.0)
                norm += weight * value[j] / total
            if multiplier == 0.0:
                if norm <= cap:
                    break
                high = 1.0
                multiplier = high
            elif low == 0.0 and multiplier == high and norm > cap:
                high *= 2.0
                multiplier = high
            else:
                if norm > cap:
                    low = multiplier
                else:
                    high = multiplier
                middle = 0.5 * (low + high)
                if norm <= cap and (middle <= low or middle >= high or high - low <= 1e-15 * high):
                    break  # on the side where the cap holds
                multiplier = middle if low < middle < high else high
        rest = 0.0
        for j in range(others):
            probability = value[j] / total
            row[order[j]] = probability
            rest += probability
        row[y] = -rest


cap_classes = Compiled(_cap_classes)


def residuals(scores: Reals, labels: npt.NDArray[Any], objective: Objective) -> Reals:
    """Return the (n, rows) gradients of the loss in the scores; the scores may be overwritten.

    Parameters
    ----------
    scores : (n, rows) scores W z.
    labels : (n,) class codes, or targets.
    objective : the public settings.

    Formal guarantees
    -----------------
    A row has quotient norm at most cap, or absolute value at most cap / 2 for two classes and cap for a
    target. Its floating-point error is at most `residual_error`, in the L1 norm.
    """
    if objective.loss == "target":
        return np.asarray(np.clip(scores - labels[:, None], -objective.cap, objective.cap))
    if objective.classes == 2:
        sign = np.where(labels == 1, 1.0, -1.0)[:, None]
        wrong = 1 / (1 + np.exp(np.clip(sign * scores, -500, 500)))
        return np.asarray(-sign * np.minimum(wrong, objective.cap / 2))
    cap_classes(scores, np.ascontiguousarray(labels, dtype=np.int32), objective.cap)
    return scores


# ---- passes


@dataclass(frozen=True)
class LossGradient:
    """Partial sums of the gradient of the loss, (rows, 1 + k), in steps of 1 / SUM_UNIT.

    Also the number of records, and that of the blocks whose sums were rounded: (2,).
    """

    block_rows: ClassVar[int] = ROWS
    objective: Objective
    weights: Reals  # (rows, 1 + k)
    offsets: Reals  # (rows,) added to the scores
    targets: Callable[[npt.NDArray[Any]], Reals] | None = None  # from stored labels to targets

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum gradients of a block; the sum is rounded once, and then exact."""
        rows, labels = part
        real = rows.astype(np.float64)
        scores = real @ (self.weights.T / FEATURE_UNIT)
        scores += self.offsets
        known = labels if self.targets is None else self.targets(labels)
        gradient = residuals(scores, known, self.objective).T @ real
        steps = np.rint(gradient * (SUM_UNIT / FEATURE_UNIT)).astype(np.int64)
        return steps, np.array([len(rows), 1], dtype=np.int64)


@dataclass(frozen=True)
class SecondMoments:
    """Partial sums of products of features, (1 + k, 1 + k), in steps of 1 / GRAM_UNIT; for the solver."""

    block_rows: ClassVar[int] = ROWS

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum products."""
        real = part[0].astype(np.float32)
        return (np.rint((real.T @ real) * (GRAM_UNIT / FEATURE_UNIT**2)).astype(np.int64),)


# ---- the minimum


def perturbed_minimum(
    records: Records,
    objective: Objective,
    noise: ObjectiveNoise,
    offsets: Reals,
    source: Source,
    width: int,
    targets: Callable[[npt.NDArray[Any]], Reals] | None = None,
) -> Integers:
    """Draw the noise of the objective, minimise it, and release the minimum.

    The charges must be in the ledger before this is called.

    Parameters
    ----------
    records : what `Bounded` stored.
    objective, noise : public settings, and their calibrated noise.
    offsets : (M,) released log class shares, added to the scores; (1,) zero for a target.
    source : of the noise.
    width : number k of features.
    targets : from stored labels to targets, if the target is numeric.

    Returns
    -------
    (rows, 1 + k) weights in steps of 1 / WEIGHT_UNIT.

    Raises
    ------
    UserError : the solver did not reach its tolerance. Nothing is released then.
    """
    shape = (objective.rows, 1 + width)
    linear, linear_error = _linear_term(objective, noise, source, shape)
    shift = offsets[1:] - offsets[:1] if objective.classes == 2 else offsets
    gram = None
    if shape[1] <= MOST_GRAM:
        total = records.total(SecondMoments())
        assert total is not None
        gram = total[0].integers().astype(np.float64) / GRAM_UNIT
    counted = [0, 0]  # records and blocks of the last pass

    def gradient(weights: Reals) -> Reals:
        summed = records.total(LossGradient(objective, weights, shift, targets))
        assert summed is not None
        counted[:] = (int(count) for count in summed[1].integers())
        sums = summed[0].integers().astype(np.float64) / SUM_UNIT
        return np.asarray(sums + objective.penalty(weights) + linear)

    def error(weights: Reals) -> float:
        n, blocks = counted
        return linear_error + gradient_error(objective, weights, shift, n, blocks)

    weights = minimise(gradient, error, objective, gram, shape)
    if objective.rows > 1:
        weights = weights - weights.mean(0)  # the noise of the mean row protects the others
    fine = np.rint(np.clip(weights, -LARGEST_WEIGHT, LARGEST_WEIGHT) * FINE_UNIT).astype(np.int64)
    noisy = source.add(fine, "radial", noise.rounding)
    return np.asarray(noisy >> COARSER, dtype=np.int64)


def _linear_term(
    objective: Objective, noise: ObjectiveNoise, source: Source, shape: tuple[int, int]
) -> tuple[Reals, float]:
    """Draw B, (rows, 1 + k), and bound the L2 distance to the real draw that it is rounded from."""
    rows, width = shape
    if objective.noise == "laplace":  # rows of one number: the density exp(-|b| / scale), rounded
        drawn = np.zeros((rows * width, 1), dtype=np.int64) + source.radial(rows * width, 1, NOISE_STEPS)
    else:
        drawn = np.zeros(shape, dtype=np.int64) + source.draw(objective.noise, shape, NOISE_STEPS)
    linear = drawn.reshape(shape).astype(np.float64) * (noise.scale / NOISE_STEPS)
    step = noise.scale / NOISE_STEPS
    if objective.precision is not None:
        linear *= PRECISION_UNIT / objective.weighting
        step *= PRECISION_UNIT
    error = math.sqrt(rows * width) * step / 2 + (rows + 6) * UNIT * float(np.linalg.norm(linear))
    if rows > 1:
        linear = linear - linear.mean(0)
    return linear, error


def residual_error(objective: Objective, scores: float) -> float:
    """Bound the L1 norm of the floating-point error of one residual, given its scores.

    Parameters
    ----------
    objective : the public settings.
    scores : bound on their absolute values.

    Formal guarantees
    -----------------
    docs/proof-objective.md (Lemma 4): pooling rounds each score at most three times a class; rounding the
    probabilities moves the multiplier, which a cap far from 0 and 2 keeps from moving them much further.
    """
    room = max(min(objective.cap, 2 - objective.cap), 1 / objective.classes)
    return max(RESIDUAL_ERROR, 16 * objective.classes * UNIT * (scores + 8) / room)


def gradient_error(objective: Objective, weights: Reals, offsets: Reals, n: int, blocks: int) -> float:
    """Bound the L2 norm of all errors between the gradient of J as computed and the point that is released.

    The rounding of that point counts by the ridge times its length. The error of the linear term is not in
    it.

    Parameters
    ----------
    objective : the public settings.
    weights : (rows, 1 + k) weights at which the gradient is computed.
    offsets : (rows,) added to the scores.
    n : number of records.
    blocks : number of blocks of records whose sums were rounded.

    Formal guarantees
    -----------------
    docs/proof-objective.md (Lemma 4): the error of a record's scores moves its residual by at most as much,
    in the L1 norm; to that come the residual's own error, those of the sums, and the rounding of the point.
    """
    reach, entries = objective.length, weights.size
    length = float(np.linalg.norm(weights))
    farthest = float(np.linalg.norm(weights, axis=1).max()) * reach + float(np.abs(offsets).max())
    scores = (int(weights.shape[1]) + 4) * UNIT * farthest
    sums = (ROWS + 4) * UNIT * 2 * objective.cap
    rounded = blocks * math.sqrt(entries) / (2 * SUM_UNIT)
    steepest = objective.ridge * (1 + 4 * objective.smoothness)
    outside = 8 * UNIT * (2 * steepest * length + 2 * n * objective.cap * reach)
    grid = objective.ridge * (math.sqrt(entries) / (2 * FINE_UNIT) + (len(weights) + 4) * UNIT * length)
    each = reach * (scores + residual_error(objective, farthest) + sums)
    return float(n * each + rounded + outside + grid)


def minimise(
    gradient: Callable[[Reals], Reals],
    error: Callable[[Reals], float],
    objective: Objective,
    gram: Reals | None,
    shape: tuple[int, int],
) -> Reals:
    """Minimise J by L-BFGS, preconditioned by the second moments of the features.

    Only gradients are used: near the minimum, values of J no longer tell points apart in floating point. A
    step is accepted where the slope along it has fallen; the slope of a convex function only rises.

    Parameters
    ----------
    gradient : of J at (rows, 1 + k) weights.
    error : bound on the floating-point error of that gradient.
    objective : the public settings; its tolerance must be reached.
    gram : (1 + k, 1 + k) second moments of the features, or None.
    shape : of the weights.
    """
    typical = float(objective.curvature) / max(1, objective.rows) if objective.loss == "classes" else 1.0
    factor = None
    if gram is not None:
        system = typical * gram + objective.penalty(np.eye(len(gram)))
        factor = scipy.linalg.cho_factor(system)

    def precondition(direction: Reals) -> Reals:
        if factor is None:
            return np.asarray(direction / (objective.ridge + typical * objective.size * objective.length**2))
        return np.asarray(scipy.linalg.cho_solve(factor, direction.T).T)

    weights = np.zeros(shape)
    slope = gradient(weights)
    pairs: deque[tuple[Reals, Reals, float]] = deque(maxlen=MEMORY)
    first = max(float(np.linalg.norm(slope)), 1e-300)
    with progress.bar(100, "perturbed loss", "% of the way to the minimum") as advance:
        shown = 0
        for _ in range(MOST_STEPS):
            size = float(np.linalg.norm(slope))
            done = min(
                100,
                int(
                    100 * math.log(first / max(size, 1e-300) + 1) / math.log(first / objective.tolerance + 2)
                ),
            )
            if done > shown:
                advance(done - shown)
                shown = done
            unsure = error(weights)
            if size + unsure <= objective.tolerance:
                return weights
            if size <= unsure and unsure >= objective.tolerance:
                break  # no step can help: far more records than `size`, or weights too long
            step = -_two_loops(slope, pairs, precondition)
            before = float((slope * step).sum())
            if before >= 0:  # a direction lost to rounding: start again from the preconditioner
                pairs.clear()
                step = -precondition(slope)
                before = float((slope * step).sum())
            moved, after = _line(gradient, weights, step, before)
            change, turn = moved - weights, after - slope
            curvature = float((change * turn).sum())
            if curvature > 0:
                pairs.append((change, turn, curvature))
            weights, slope = moved, after
    raise UserError(
        f"the loss was not minimised within {MOST_STEPS} steps to a gradient of {objective.tolerance:g} (got "
        f"{size:g}, known to within {unsure:g}); nothing was released. Give a larger ridge, fewer features, "
        "or a public size closer to the number of records"
    )


def _two_loops(
    slope: Reals, pairs: deque[tuple[Reals, Reals, float]], precondition: Callable[[Reals], Reals]
) -> Reals:
    """Return the inverse Hessian's estimate times a gradient (Nocedal and Wright, Algorithm 7.4)."""
    direction, shares = slope.copy(), []
    for change, turn, curvature in reversed(pairs):
        share = float((change * direction).sum()) / curvature
        shares.append(share)
        direction -= share * turn
    direction = precondition(direction)
    if pairs:
        change, turn, curvature = pairs[-1]
        direction *= curvature / max(float((turn * precondition(turn)).sum()), 1e-300)
    for (change, turn, curvature), share in zip(pairs, reversed(shares), strict=True):
        direction += (share - float((turn * direction).sum()) / curvature) * change
    return direction


def _line(
    gradient: Callable[[Reals], Reals], weights: Reals, step: Reals, before: float
) -> tuple[Reals, Reals]:
    """Return a point along a step where the slope has fallen to at most nine tenths, and its gradient."""
    low, high, share = 0.0, math.inf, 1.0
    slopes = (before, 0.0)
    for _ in range(40):
        moved = weights + share * step
        after = gradient(moved)
        along = float((after * step).sum())
        if abs(along) <= 0.9 * abs(before):
            break
        if along > 0:
            high, slopes = share, (slopes[0], along)
        else:
            low, slopes = share, (along, slopes[1])
        if math.isinf(high):
            share *= 2
        else:
            secant = low + (high - low) * slopes[0] / (slopes[0] - slopes[1])
            share = min(max(secant, low + 0.1 * (high - low)), high - 0.1 * (high - low))
    return moved, after


# ---- stages


@dataclass(frozen=True)
class Standardised:
    """From stored positions of a target to standard deviations from its released mean."""

    scale: TargetScale

    def __call__(self, positions: npt.NDArray[Any]) -> Reals:
        """Return (n,) targets."""
        return self.scale.standardised(np.asarray(positions) / TARGET_UNIT)


@dataclass(frozen=True, kw_only=True)
class ObjectiveStage(Stage):
    """The minimum of the perturbed loss, of records that were stored by `Bounded`."""

    objective: Objective
    width: int

    @property
    def draws(self) -> int:
        """The linear term, and the noise that hides the solver's error."""
        return 2

    def calibrated(self, loss: Fraction, terms: Terms) -> tuple[ObjectiveNoise, tuple[Charge, ...]]:
        """Return the smallest noise in the loss, and three charges: noise, ridge, error of the minimum."""
        budget, people = terms.budget, terms.contributions
        if budget.delta:
            found = calibrate(
                self.objective, budget.epsilon, terms.neighbours, people, mu=loss, delta=budget.delta
            )
        else:
            found = calibrate(self.objective, loss, terms.neighbours, people)
        return found, found.charges

    def run(self, run: Run, scale: Any) -> None:
        """Draw the noise, minimise, and release the minimum."""
        targets = None if run.target is None else Standardised(run.target)
        weights = perturbed_minimum(
            run.records, self.objective, scale, run.offsets, run.source, self.width, targets
        )
        run.head = objective_head(weights, run.offsets, self.objective.constant)
        run.tensors["weights"] = weights
        run.facts |= {"objective": self.objective.to_dict(), "noise_scale": scale.scale}


def objective_stage(share: Fraction, objective: Objective, width: int, neighbours: str) -> Stage:
    """Release the minimum of a perturbed loss.

    Parameters
    ----------
    share : of the budget.
    objective : the public settings.
    width : number of features.
    neighbours : the relation.
    """
    moved = (1 if neighbours == "add-remove" else 2) * objective.gradient_bound

    def nothing(*_: Any) -> Any:
        raise AssertionError("the solver makes its own passes")

    return ObjectiveStage(
        "perturbed loss",
        share,
        objective.noise,
        moved * Fraction(objective.norm_bound, FEATURE_UNIT),
        PROOF,
        nothing,
        nothing,
        objective=objective,
        width=width,
    )


@dataclass(frozen=True)
class Correct:
    """Number of records whose class has the largest score: (1,). One record changes it by at most one."""

    block_rows: ClassVar[int] = ROWS
    weights: Integers  # (M, 1 + k) in steps of 1 / WEIGHT_UNIT

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count correct predictions."""
        rows, labels = part
        scores = rows.astype(np.float64) @ self.weights.T.astype(np.float64)
        return (np.array([(scores.argmax(1) == labels).sum()], dtype=np.int64),)


@dataclass(frozen=True)
class SquaredErrors:
    """Partial sums of the clipped squared errors of a model and of the mean: (2,).

    Formal guarantees
    -----------------
    Each entry of a record lies between 0 and ERROR_BOUND, so that neighbours differ by at most twice that in
    the L1 norm, under either relation.
    """

    weights: Reals  # (1, 1 + k), real
    scale: TargetScale

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum squared errors."""
        rows, positions = part
        predicted = (rows.astype(np.float64) @ self.weights[0]) / FEATURE_UNIT
        errors = self.scale.squared_errors(predicted, np.asarray(positions) / TARGET_UNIT)
        steps = np.floor(np.minimum(errors, ERROR_BOUND) * ERROR_UNIT)
        return (steps.sum(0).astype(np.int64),)


def check_stage(share: Fraction, noise: Mechanism, *, target: bool) -> Stage:
    """Count the records that the released model gets right, or sum its squared errors.

    Parameters
    ----------
    share : of the budget.
    noise : `laplace` or `gaussian`.
    target : whether the target is numeric.
    """

    def counted(run: Run, correct: Integers, scale: int) -> None:
        run.tensors["correct"] = correct
        run.facts["sd_correct"] = scale * spread(noise, 1)

    def fitted(run: Run, errors: Integers, scale: int) -> None:
        run.tensors["errors"] = errors
        run.facts |= {"sd_errors": scale * spread(noise, 1), "error_unit": ERROR_UNIT}

    def correct(run: Run) -> Correct:
        assert run.head is not None
        return Correct(run.head.integers.astype(np.int64))

    def errors(run: Run) -> SquaredErrors:
        assert run.head is not None
        assert run.target is not None
        return SquaredErrors(run.head.integers / WEIGHT_UNIT, run.target)

    proof = f"{PROOF} Lemma 3"
    if not target:
        return Stage("correct predictions", share, noise, Fraction(1), proof, correct, counted)
    bound = Fraction(math.floor(ERROR_BOUND * ERROR_UNIT))
    moved = root_up(2 * bound**2) if noise == "gaussian" else 2 * bound
    what = "squared errors of the model and of the mean"
    return Stage(what, share, noise, moved, proof, errors, fitted)
