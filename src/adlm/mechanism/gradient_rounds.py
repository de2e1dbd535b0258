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

from adlm.engine.passes import LocalRecords, Part, PartStore, Records, clamped
from adlm.errors import UserError
from adlm.model.head import (
    FEATURE_UNIT,
    GRADIENT_UNIT,
    RESIDUAL_UNIT,
    WEIGHT_UNIT,
    Descent,
    GradientRounds,
    Head,
    in_vectors,
)
from adlm.privacy.accounting import Mechanism
from adlm.privacy.noise import Source
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
from adlm.runtime.machine import blocks_in_cache, rows_in_cache

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Small = npt.NDArray[np.int16]
OnGrid = Reals | Small | torch.Tensor  # features in grid steps, or the result of `GradientClip.extended`

ROWS = 1 << 12  # records worked on at once: 2^12 products below 2^30 add up exactly in doubles
LARGEST_SMALL = (1 << 15) - 1  # that 16 bits hold
COMPILED_WIDTH = 1500  # most features in a compiled loop of many classes: wider products are faster in blocks
FINE = 1 << 24  # grid of p - y before it is bounded: M squares add up exactly
PROBABILITY_UNIT = 1 << 30  # grid of exp(score - largest score): M of them add up exactly


def feature_integers(z: npt.ArrayLike) -> Small:
    """Round (n, k) features towards zero to the grid."""
    values = np.asarray(z)
    out = np.empty(values.shape, dtype=np.int16)
    count = rows_in_cache(values.shape[1])
    for start in range(0, len(values), count):
        block = np.clip(values[start : start + count], -1.0, 1.0)
        if not np.isfinite(values[start : start + count]).all():
            raise UserError("features hold a value that is not a finite number; check the feature map")
        out[start : start + count] = block * FEATURE_UNIT  # a power of two; rounds towards zero
    return out


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

    def probabilities(self, z: OnGrid, head: Head) -> Reals:
        """Return (n, M) predicted probabilities, the same in any batch."""
        scores = self.scores(z, head)
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
        if len(head.integers) == 2 and two_class_gradient.pays(len(z)):
            two_class_gradient(z, codes, bounds, head.margin, self.grids, exact.tables(), total)
            return total
        if len(head.integers) > 2 and width <= COMPILED_WIDTH and softmax_gradient.pays(len(z)):
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


def clip_of(rounds: GradientRounds) -> GradientClip:
    """Return the clip that gradient rounds are planned with."""
    return GradientClip(rounds.clip_norm, rounds.constant)


@dataclass(frozen=True)
class RoundSum:
    """Partial sums of the gradients at a head: (rows, 1 + k)."""

    block_rows: ClassVar[int] = ROWS
    clip: GradientClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum the bounded gradients of records from `on_grid`."""
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
        if len(self.head.integers) == 2 and two_class_right.pays(len(z)):
            right = two_class_right(z, codes, self.head.margin, self.clip.unit)
            return (np.array([right], dtype=np.int64),)
        right = self.clip.scores(z, self.head).argmax(1) == codes
        return (np.array([right.sum()], dtype=np.int64),)


@dataclass(frozen=True)
class PredictedSum:
    """Partial sums of the probabilities that a head predicts: (M,) in steps of 1 / RESIDUAL_UNIT."""

    block_rows: ClassVar[int] = ROWS
    clip: GradientClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum probabilities, each rounded down."""
        if len(self.head.integers) == 2 and two_class_predicted.pays(len(part[0])):
            total = np.zeros(2, dtype=np.int64)
            units, tables = self.clip.grids, exact.tables()
            two_class_predicted(part[0], self.head.margin, units, tables, RESIDUAL_UNIT, total)
            return (total,)
        probability = self.clip.probabilities(part[0], self.head)
        return (np.floor(probability * RESIDUAL_UNIT).sum(0).astype(np.int64),)


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


@dataclass(frozen=True)
class GradientRecords:
    """Records as gradient rounds store them: features on their grid, classes, and bounds of residuals.

    Integers add up, so neither order, nor threads, nor machines matter.
    """

    records: Records
    clip: GradientClip
    width: int
    n: int

    @classmethod
    def of(cls, z: Small, codes: Integers, clip: GradientClip) -> GradientRecords:
        """Store records that are in memory."""
        store = PartStore()
        store.append(on_grid(z, codes, clip))
        return cls(LocalRecords.of_store(store), clip, z.shape[1], len(codes))

    def gradient(self, head: Head, advance: progress.Advance | None = None) -> npt.NDArray[Any]:
        """Sum the bounded gradients at a head: (rows, 1 + k)."""
        total = self.records.total(RoundSum(self.clip, head), advance)
        assert total is not None
        return total[0].integers()

    def around(self, centre: Integers) -> GradientRecords:
        """Return records with features less a released centre, (k,) in grid steps; these are closed."""
        kept, _ = self.records.keep(Centred(centre, self.clip))
        self.records.close()
        return GradientRecords(kept, self.clip, self.width, self.n)

    def predicted(self, head: Head) -> npt.NDArray[Any]:
        """Sum the probabilities that a head predicts: (M,) in steps of 1 / RESIDUAL_UNIT."""
        total = self.records.total(PredictedSum(self.clip, head))
        assert total is not None
        return total[0].integers()

    def correct(self, head: Head) -> npt.NDArray[Any]:
        """Count the records that a head classifies correctly: (1,)."""
        total = self.records.total(RightCount(self.clip, head))
        assert total is not None
        return total[0].integers()


def on_grid(z: Small, codes: Integers, clip: GradientClip) -> Part:
    """Return the stored form of records; the bound of each residual is the same in every round."""
    return z, np.asarray(codes, dtype=np.int32), clip.allowed(z)


def stored(z: npt.NDArray[Any], codes: Integers, clip: GradientClip) -> Part:
    """Return the stored form of records from their (n, k) features."""
    if readable(z) and to_grid.pays(len(z)):
        integers, squares = np.empty(z.shape, dtype=np.int16), np.empty(len(z), dtype=np.int64)
        if to_grid(z, FEATURE_UNIT, clip.unit, integers, squares):
            return integers, np.asarray(codes, dtype=np.int32), clip.allowed_for(squares)
    return on_grid(feature_integers(z), codes, clip)


def run_rounds(
    kept: GradientRecords,
    plan: GradientRounds,
    offsets: Reals,
    noise: tuple[Mechanism, int],
    source: Source,
) -> Integers:
    """Release the noisy gradients of all rounds: (T, M, 1 + k), or (T, 1, 1 + k) where one row is enough.

    The charge must be in the ledger before this is called. Heads are computed from released gradients alone.

    Parameters
    ----------
    kept : the records.
    plan : the rounds.
    offsets : (M,) log class shares, from released counts.
    noise : `gaussian` or `radial` noise, and its scale in grid steps.
    source : where noise comes from.
    """
    descent = Descent(plan, offsets, kept.width)
    rows = kept.clip.rows(descent.head())
    released = np.empty((plan.rounds, rows, 1 + kept.width), dtype=np.int64)
    with progress.bar(plan.rounds * kept.n, f"{plan.rounds} gradient rounds", "records") as advance:
        for gradient in released:
            total = kept.gradient(descent.head(), advance)
            gradient[...] = clamped(source.add(total, *noise))
            descent.update(gradient)
    return released


def predicted_sensitivity(neighbours: str) -> Fraction:
    """Return the L2 distance of neighbours' sums of predicted probabilities, in steps of 1 / RESIDUAL_UNIT.

    A record's probabilities, rounded down, are non-negative and add up to at most 1, so their L2 norm is at
    most 1, and the inner product of two such vectors is not negative.
    """
    if neighbours == "add-remove":
        return Fraction(RESIDUAL_UNIT)
    return root_up(Fraction(2 * RESIDUAL_UNIT**2))
