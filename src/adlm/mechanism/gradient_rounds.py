"""Gradient rounds: noisy sums of bounded per-record gradients, each at a head that was released before.

A record's share of a round is (p - y) x (c, z), an outer product of a residual and its features, both on
integer grids. Its L2 norm is bounded exactly, in integers, and depends on the record and on released numbers
alone. Proof: docs/proof-gradients.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from adlm.domain.encoding import TARGET_UNIT
from adlm.engine.passes import Part
from adlm.errors import UserError
from adlm.mechanism.stages import Run, Stage
from adlm.model.head import (
    CONFIDENCE_UNIT,
    ERROR_BOUND,
    ERROR_UNIT,
    FARTHEST,
    FEATURE_UNIT,
    GRADIENT_UNIT,
    RESIDUAL_UNIT,
    TEMPERATURES,
    WEIGHT_UNIT,
    Descent,
    GradientRounds,
    Head,
    TargetScale,
    calibrated_head,
    feature_mean,
    in_vectors,
)
from adlm.runtime import arithmetic as exact
from adlm.runtime import progress
from adlm.runtime.arithmetic import root_up
from adlm.runtime.compiled import readable
from adlm.runtime.loops import (
    softmax_gradient,
    to_grid,
    two_class_gradient,
    two_class_predicted,
    two_class_right,
)
from adlm.runtime.machine import blocks_in_cache

PROOF = "docs/proof-gradients.md"
Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Small = npt.NDArray[np.int16]
OnGrid = Reals | Small | torch.Tensor  # features in grid steps, or the result of `GradientClip.extended`

ROWS = 1 << 12  # records worked on at once: 2^12 products below 2^30 add up exactly in doubles
LARGEST_SMALL = (1 << 15) - 1  # that 16 bits hold
COMPILED_WIDTH = 1500  # most features in a compiled loop of many classes: wider products are faster in blocks
FINE = 1 << 24  # grid of p - y before it is bounded: M squares add up exactly
PROBABILITY_UNIT = 1 << 30  # grid of exp(score - largest score): M of them add up exactly


def feature_integers(z: npt.ArrayLike, constant: int = 0) -> tuple[Small, Integers]:
    """Round (n, k) features towards zero to the grid; and the squared lengths of (constant, z), (n,)."""
    values = readable(z)
    integers, squares = np.empty(values.shape, dtype=np.int16), np.empty(len(values), dtype=np.int64)
    if not to_grid(values, FEATURE_UNIT, constant, integers, squares):
        raise UserError("features hold a value that is not a finite number; check the feature map")
    return integers, squares


@dataclass(frozen=True)
class GradientClip:
    """The L2 ball of one record's gradient, on the integer grid.

    Parameters
    ----------
    clip_norm : bound on the L2 norm of (p - y) x (c, z).
    constant : c.

    Formal guarantees
    -----------------
    For any features, labels and head whatever, the integer gradient of one record, the outer product of
    `residuals` and (c, z), has L2 norm at most `bound` grid steps. Proved in docs/proof-gradients.md
    (Lemma 1).
    """

    clip_norm: float
    constant: float

    @property
    def bound(self) -> int:
        """Norm bound of a record's gradient, in grid steps."""
        return math.floor(self.clip_norm * GRADIENT_UNIT)

    @property
    def unit(self) -> int:
        """The constant coordinate, in grid steps."""
        return max(1, math.floor(self.constant * FEATURE_UNIT))

    def sensitivity(self, neighbours: str) -> Fraction:
        """Return the L2 distance of the gradient sums of neighbours, in grid steps.

        A record that is added or removed moves the sum by its own gradient. One that is replaced moves it
        by two, which may point opposite ways.
        """
        return Fraction(self.bound if neighbours == "add-remove" else 2 * self.bound)

    def extended(self, z: Reals | Small) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield (z, c, 0, ...) as doubles, a few rows at a time: as many as a CPU cache holds.

        Rows are padded with zeros to whole SIMD vectors, on which products are faster. The buffer is reused
        for the next rows.
        """
        rows, width = z.shape
        blocks = list(blocks_in_cache(rows, min(width // 2, 512)))  # fewer rows would spend more on calls
        most = max((block.stop - block.start for block in blocks), default=0)
        # torch begins arrays at a cache line
        space = torch.empty((most, in_vectors(width + 1)), dtype=torch.float64)
        space[:, width], space[:, width + 1 :] = self.unit, 0.0
        for block in blocks:
            values = space[: block.stop - block.start]
            values.numpy()[:, :width] = z[block]
            yield block, values

    def allowed(self, z: Reals | Small) -> Integers:
        """Return the largest allowed squared norm of each record's residual: (n,).

        The product with |(c, z)|^2, which is exact, then stays within the square of the bound.
        """
        squares = np.empty(len(z))
        for rows, values in self.extended(z):
            squares[rows] = torch.linalg.vecdot(values, values).numpy()  # integers: exact in any order
        return self.allowed_for(squares.astype(np.int64))

    def allowed_for(self, squares: Integers) -> Integers:
        """Return the same from the (n,) squared lengths of (c, z), in grid steps."""
        return np.asarray(self.bound**2 // squares)

    @property
    def grids(self) -> tuple[int, float, float, float, float]:
        """The constant coordinate and the grids of the numbers of a gradient, for compiled code."""
        score = 1 / (FEATURE_UNIT * WEIGHT_UNIT)
        return self.unit, score, float(PROBABILITY_UNIT), float(FINE), RESIDUAL_UNIT / FINE

    def scores(self, z: OnGrid, head: Head) -> Reals:
        """Return (n, M) scores of features on the grid: exact, as every sum stays below 2^53 steps.

        z may be the result of `extended`, and then is not extended again.
        """
        weights, classes = torch.from_numpy(head.columns), len(head.integers)
        scores = np.empty((classes, len(z)))  # class by class: later operations run along records
        blocks = [(slice(0, len(z)), z)] if isinstance(z, torch.Tensor) else self.extended(z)
        for rows, values in blocks:
            scores[:, rows] = torch.mm(values, weights).numpy().T[:classes]
        return scores.T

    def probabilities(self, z: OnGrid, head: Head, temperature: float = 1.0) -> Reals:
        """Return (n, M) predicted probabilities at a temperature, a power of two; the same in any batch."""
        scores = self.scores(z, head) / temperature
        scores -= scores.max(1)[:, None]
        probability = exact.exp(scores)
        probability *= PROBABILITY_UNIT
        np.rint(probability, out=probability)
        probability /= probability.sum(1)[:, None]  # integers: exact in any order
        return probability

    def residuals(
        self, z: Reals | Small, codes: Integers, head: Head, allowed: Integers | None = None
    ) -> Reals:
        """Return (n, M) bounded residuals p - y, integers in steps of 1 / RESIDUAL_UNIT.

        Parameters
        ----------
        z : (n, k) features in grid steps, integers.
        codes : (n,) classes; of a numeric target its positions.
        head : the head of this round.
        allowed : the result of `allowed` for z, if it is known already.
        """
        return self.shrunk(self.errors(z, codes, head), self.allowed(z) if allowed is None else allowed)

    def errors(self, z: OnGrid, codes: Integers, head: Head) -> Reals:
        """Return (n, M) residuals p - y before they are bounded, in steps of 1 / FINE."""
        probability = self.probabilities(z, head)
        classes = np.arange(probability.shape[1], dtype=codes.dtype)
        probability.T[...] -= codes == classes[:, None]
        probability *= FINE
        return np.asarray(np.rint(probability, out=probability))

    def shrunk(self, fine: Reals, allowed: Integers) -> Reals:
        """Shrink (n, M) residuals in steps of 1 / FINE to the allowed squared norms, in exact integers."""
        unit = RESIDUAL_UNIT / FINE  # a power of two
        size = np.sqrt((fine * fine).sum(1)) * unit
        shrink = np.minimum(1.0, np.sqrt(allowed.astype(np.float64)) / np.maximum(size, 1e-300)) * unit
        rows = fine * shrink[:, None]
        np.trunc(rows, out=rows)
        over = np.flatnonzero((rows * rows).sum(1) > allowed)
        while over.size:  # the root was a rounding error too large
            shrink[over] *= 1 - 2.0**-30
            rows[over] = np.trunc(fine[over] * shrink[over, None])
            over = over[(rows[over] * rows[over]).sum(1) > allowed[over]]
        return np.asarray(rows)

    def rows(self, head: Head) -> int:
        """Return how many rows a gradient has: one for each class, or for a target."""
        return len(head.integers)

    def gradient(self, z: Small, codes: Integers, head: Head, allowed: Integers | None = None) -> Integers:
        """Sum the bounded gradients of up to ROWS records: (rows, 1 + k) in steps of 1 / GRADIENT_UNIT.

        Parameters
        ----------
        z, codes, head : (n, k) features in grid steps, (n,) classes, and the head of this round.
        allowed : the result of `allowed` for z, if it is known already.
        """
        bounds = self.allowed(z) if allowed is None else allowed
        gradient_rows, width = self.rows(head), z.shape[1]
        total = np.zeros((gradient_rows, 1 + width), dtype=np.int64)
        if len(head.integers) == 2:
            two_class_gradient(z, codes, bounds, head.margin, self.grids, exact.tables(), total)
            return total
        if len(head.integers) > 2 and width <= COMPILED_WIDTH:
            columns = np.ascontiguousarray(head.columns[: width + 1, :gradient_rows])
            softmax_gradient(z, codes, bounds, columns, self.grids, exact.tables(), total)
            return total
        sums = torch.zeros((gradient_rows, in_vectors(width + 1)), dtype=torch.float64)
        for rows, values in self.extended(z):  # once for both products
            residuals = self.shrunk(self.errors(values, codes[rows], head), bounds[rows])
            sums.addmm_(torch.from_numpy(residuals.T), values)  # exact: products below 2^29, 2^12 records
        total[:, 0] = sums[:, width]
        total[:, 1:] = sums[:, :width]
        return total


MIDDLE = TargetScale(0.5, 0.25)  # placeholder where only bounds are needed, which do not depend on it


@dataclass(frozen=True)
class TargetClip(GradientClip):
    """The L2 ball of one record's gradient of the squared loss.

    Parameters
    ----------
    clip_norm : bound on the L2 norm of (w.x - t) (c, z), t in standard deviations.
    constant : c.
    scale : the released mean and spread of the target.
    error_limit : where squared errors are clipped, in units of the target's variance; a released number.

    Formal guarantees
    -----------------
    That of `GradientClip`: whatever the record and the head, the integer gradient has L2 norm at most
    `bound`.
    """

    scale: TargetScale = MIDDLE
    error_limit: float = ERROR_BOUND

    @property
    def error_unit(self) -> float:
        """Grid steps in one unit of the target's variance; the limit is always `error_bound` steps."""
        return self.error_bound / self.error_limit

    def targets(self, positions: Integers) -> Reals:
        """Return (n,) targets in standard deviations, clipped at FARTHEST."""
        return np.clip(self.scale.standardised(positions / TARGET_UNIT), -FARTHEST, FARTHEST)

    def errors(self, z: OnGrid, codes: Integers, head: Head) -> Reals:
        """Return (n, 1) errors w.x - t, in steps of 1 / FINE."""
        return np.asarray(np.rint((self.scores(z, head) - self.targets(codes)[:, None]) * FINE))

    def squared_errors(self, z: Reals, codes: Integers, head: Head) -> Integers:
        """Return (n, 2) clipped squared errors, of the head and of the mean, in steps of 1 / `error_unit`.

        A prediction is clipped to the bounds of the target. Each entry lies between 0 and
        `error_bound`.
        """
        errors = self.scale.squared_errors(self.scores(z, head)[:, 0], codes / TARGET_UNIT)
        steps = np.rint(np.minimum(errors, self.error_limit) * self.error_unit)
        return np.asarray(np.minimum(steps, self.error_bound), dtype=np.int64)

    @property
    def error_bound(self) -> int:
        """Bound of a clipped squared error, in grid steps."""
        return math.floor(ERROR_BOUND * ERROR_UNIT)

    def errors_sensitivity(self) -> Fraction:
        """Return the L2 distance of the two sums of squared errors of neighbours, under either relation.

        One record's two entries lie in [0, error_bound], and so differ from another's, or from none, by at
        most that each.
        """
        return root_up(Fraction(2 * self.error_bound**2))


# ---- Records as gradient rounds store them: features on their grid, classes, and bounds of residuals


def on_grid(z: Small, codes: Integers, clip: GradientClip) -> Part:
    """Return the stored form of records; the bound of each residual is the same in every round."""
    return z, np.asarray(codes, dtype=np.int32), clip.allowed(z)


def stored(z: npt.NDArray[Any], codes: Integers, clip: GradientClip) -> Part:
    """Return the stored form of records from their (n, k) features."""
    integers, squares = feature_integers(z, clip.unit)
    return integers, np.asarray(codes, dtype=np.int32), clip.allowed_for(squares)


@dataclass(frozen=True)
class Gridded:
    """From features to the stored form of records."""

    clip: GradientClip
    width: int

    def __call__(self, part: Part) -> Part:
        """Return the part to store."""
        return stored(np.asarray(part[0])[:, : self.width], part[1], self.clip)


@dataclass(frozen=True)
class Centred:
    """Features less a released centre, (k,), both in grid steps: exact integers of each record alone."""

    centre: Integers
    clip: GradientClip

    def __call__(self, part: Part) -> tuple[Part, tuple[Integers, ...]]:
        """Return the part to store for later passes."""
        z, codes, _ = part
        moved = np.clip(z.astype(np.int64) - self.centre, -LARGEST_SMALL, LARGEST_SMALL)
        return on_grid(moved.astype(np.int16), codes, self.clip), ()


# ---- Passes


@dataclass(frozen=True)
class RoundSum:
    """Partial sums of the gradients at a head: (rows, 1 + k)."""

    block_rows: ClassVar[int] = ROWS
    clip: GradientClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum the bounded gradients of stored records."""
        z, codes, allowed = part
        return (self.clip.gradient(z, codes, self.head, allowed),)


@dataclass(frozen=True)
class RightCount:
    """Number of records that a head classifies correctly: (1,). One record changes it by at most one."""

    block_rows: ClassVar[int] = ROWS
    clip: GradientClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        z, codes, _ = part
        if len(self.head.integers) == 2:
            right = two_class_right(z, codes, self.head.margin, self.clip.unit)
            return (np.array([right], dtype=np.int64),)
        right = self.clip.scores(z, self.head).argmax(1) == codes
        return (np.array([right.sum()], dtype=np.int64),)


@dataclass(frozen=True)
class Confidences:
    """Partial sums of correct predictions, and of confidences at each of TEMPERATURES: (1 + T,).

    The confidence of a record is its largest predicted probability less 1/M. Correct predictions are in
    steps of 1 / RESIDUAL_UNIT, confidences in steps of 1 / CONFIDENCE_UNIT.
    """

    block_rows: ClassVar[int] = ROWS
    clip: GradientClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum, each confidence rounded down."""
        z, codes, _ = part
        classes = len(self.head.integers)
        sums = [RESIDUAL_UNIT * (self.clip.scores(z, self.head).argmax(1) == codes).sum()]
        for temperature in TEMPERATURES:
            largest = self.clip.probabilities(z, self.head, temperature).max(1)
            steps = np.floor(np.maximum(largest - 1 / classes, 0.0) * CONFIDENCE_UNIT)
            sums.append(steps.sum())
        return (np.array(sums, dtype=np.int64),)


def confidences_sensitivity(classes: int) -> Fraction:
    """Return the L2 distance of neighbours' sums of `Confidences`, under either relation.

    Each entry of a record lies between 0 and its largest value, so a replaced record moves a sum no further
    than one that is added.
    """
    most = math.ceil(CONFIDENCE_UNIT * (1 - 1 / classes))
    return root_up(Fraction(RESIDUAL_UNIT**2 + len(TEMPERATURES) * most**2))


@dataclass(frozen=True)
class PredictedSum:
    """Partial sums of the probabilities that a head predicts: (M,) in steps of 1 / RESIDUAL_UNIT."""

    block_rows: ClassVar[int] = ROWS
    clip: GradientClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum probabilities, each rounded down."""
        if len(self.head.integers) == 2:
            total = np.zeros(2, dtype=np.int64)
            units, tables = self.clip.grids, exact.tables()
            two_class_predicted(part[0], self.head.margin, units, tables, RESIDUAL_UNIT, total)
            return (total,)
        probability = self.clip.probabilities(part[0], self.head)
        return (np.floor(probability * RESIDUAL_UNIT).sum(0).astype(np.int64),)


@dataclass(frozen=True)
class SquaredErrors:
    """Partial sums of the clipped squared errors of the head and of the mean: (2,)."""

    clip: TargetClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum squared errors."""
        z, positions, _ = part
        return (self.clip.squared_errors(z.astype(np.float64), positions, self.head).sum(0),)


def predicted_sensitivity(neighbours: str) -> Fraction:
    """Return the L2 distance of neighbours' sums of predicted probabilities, in steps of 1 / RESIDUAL_UNIT.

    A record's probabilities, rounded down, are non-negative and add up to at most 1, so their L2 norm is at
    most 1, and the inner product of two such vectors is not negative.
    """
    if neighbours == "add-remove":
        return Fraction(RESIDUAL_UNIT)
    return root_up(Fraction(2 * RESIDUAL_UNIT**2))


# ---- Stages


@dataclass(frozen=True, kw_only=True)
class RoundsStage(Stage):
    """All gradient rounds: each at the head that follows from the gradients released before."""

    rounds: GradientRounds
    width: int

    def run(self, run: Run, scale: Any) -> None:
        """Release the noisy gradients of all rounds, (T, rows, 1 + k), and the head that they lead to."""
        clip = clip_of(self.rounds, run.target)
        if self.rounds.centred:
            table, step = run.tensors["class_sums"], run.tensors["step"]
            centre = feature_mean(table, step, run.facts["sd_sums"])
            run.keep(run.records.keep(Centred(centre, clip))[0])
        descent = Descent(self.rounds, run.offsets, self.width)
        rows = clip.rows(descent.head())
        released = np.empty((self.times, rows, 1 + self.width), dtype=np.int64)
        with progress.bar(self.times * run.n, self.name, "records") as advance:
            for gradient in released:
                sums = run.total(RoundSum(clip, descent.head()), advance, stores=False)
                gradient[...] = self.noisy(sums[0], scale, run.source)
                descent.update(gradient)
        run.head = descent.final()
        run.tensors["gradients"] = released
        run.facts |= {"rounds": self.rounds.to_dict(), "sd_gradients": scale}


def clip_of(rounds: GradientRounds, target: TargetScale | None = None) -> GradientClip:
    """Return the clip of gradients, of the squared loss if a target was released."""
    if target is None:
        return GradientClip(rounds.clip_norm, rounds.constant)
    return TargetClip(rounds.clip_norm, rounds.constant, target)


def rounds_stage(share: Fraction, rounds: GradientRounds, width: int, neighbours: str) -> Stage:
    """Release the noisy gradients of all rounds.

    Parameters
    ----------
    share : of the budget, in mu^2.
    rounds : the public settings.
    width : number of features.
    neighbours : the relation.
    """

    def nothing(*_: Any) -> Any:
        raise AssertionError("rounds make their own passes")

    return RoundsStage(
        f"gradients of {rounds.rounds} rounds",
        share,
        "gaussian",
        clip_of(rounds).sensitivity(neighbours),
        f"{PROOF} Theorem 2",
        nothing,
        nothing,
        rounds.rounds,
        rounds=rounds,
        width=width,
    )


def predicted_stage(share: Fraction, rounds: GradientRounds, times: int, neighbours: str) -> Stage:
    """Release sums of predicted probabilities, each of which corrects the head's class offsets.

    Parameters
    ----------
    share : of the budget, in mu^2.
    rounds : the public settings.
    times : number of corrections.
    neighbours : the relation.
    """
    clip = clip_of(rounds)

    def summed(run: Run) -> PredictedSum:
        assert run.head is not None
        return PredictedSum(clip, run.head)

    def then(run: Run, row: Integers, scale: int) -> None:
        assert run.head is not None
        sums, step, sd = run.tensors["class_sums"], run.tensors["step"], run.facts["sd_sums"]
        run.head = calibrated_head(run.head, sums, step, sd, row, scale)
        earlier = [run.tensors["predicted"]] if "predicted" in run.tensors else []
        run.tensors["predicted"] = np.vstack([*earlier, row])
        run.facts["sd_predicted"] = scale

    moved, what = predicted_sensitivity(neighbours), "sums of predicted probabilities"
    return Stage(what, share, "gaussian", moved, f"{PROOF} Theorem 3", summed, then, times)


def confidence_stage(share: Fraction, rounds: GradientRounds, classes: int) -> Stage:
    """Sum correct predictions and confidences of the final head, from which its temperature follows.

    Parameters
    ----------
    share : of the budget, in mu^2.
    rounds : the public settings.
    classes : number of classes.
    """

    def summed(run: Run) -> Confidences:
        assert run.head is not None
        return Confidences(clip_of(rounds), run.head)

    def then(run: Run, sums: Integers, scale: int) -> None:
        run.tensors |= {"correct": sums[:1], "confidences": sums[1:]}
        run.facts |= {"sd_correct": scale, "correct_unit": RESIDUAL_UNIT}

    what, moved = "correct predictions and confidences", confidences_sensitivity(classes)
    return Stage(what, share, "gaussian", moved, f"{PROOF} Theorem 4", summed, then)


def correct_stage(share: Fraction, rounds: GradientRounds) -> Stage:
    """Count the records that the final head classifies correctly."""

    def summed(run: Run) -> RightCount:
        assert run.head is not None
        return RightCount(clip_of(rounds), run.head)

    def then(run: Run, correct: Integers, scale: int) -> None:
        run.tensors["correct"] = correct
        run.facts["sd_correct"] = scale

    what = "records that the head gets right"
    return Stage(what, share, "gaussian", Fraction(1), f"{PROOF} Theorem 4", summed, then)


class ErrorsStage(Stage):
    """Squared errors of the final model and of the mean, clipped as high as their noise allows."""

    def run(self, run: Run, scale: Any) -> None:
        """Choose where errors are clipped from released numbers and the noise scale, then sum them."""
        assert run.target is not None
        counted = float(run.tensors["target"].sum()) / run.facts["target_unit"]
        many = float(run.n) if run.terms.size_is_public else counted
        noise = scale / (TargetClip(1.0, 1.0).error_bound * max(many, 1.0))
        run.facts["error_limit"] = run.target.error_limit(noise)
        super().run(run, scale)


def errors_stage(share: Fraction, rounds: GradientRounds) -> Stage:
    """Sum squared errors of the final model and of the mean."""

    def clip(run: Run) -> TargetClip:
        assert run.target is not None
        return TargetClip(rounds.clip_norm, rounds.constant, run.target, run.facts["error_limit"])

    def summed(run: Run) -> SquaredErrors:
        assert run.head is not None
        return SquaredErrors(clip(run), run.head)

    def then(run: Run, errors: Integers, scale: int) -> None:
        run.tensors["errors"] = errors
        run.facts |= {"sd_errors": scale, "error_unit": clip(run).error_unit}

    what, moved = "squared errors of the model and of the mean", TargetClip(1.0, 1.0).errors_sensitivity()
    return ErrorsStage(what, share, "gaussian", moved, f"{PROOF} Theorem 4", summed, then)
