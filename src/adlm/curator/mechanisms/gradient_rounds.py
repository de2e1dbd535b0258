"""Gradient rounds: noisy sums of bounded per-record gradients, each at a head that was released before.

A record's share of a round is (p - y) x (c, z), an outer product of a residual and its features, both on
integer grids. Its L2 norm is bounded exactly, in integers, and depends on the record and on released numbers
alone. Proof: docs/proof-gradients.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.curator.noise import Source
from adlm.curator.passes import LocalRecords, Records
from adlm.curator.totals import clamped
from adlm.errors import UserError
from adlm.estimation import exact
from adlm.estimation.gradient_head import (
    FEATURE_UNIT,
    GRADIENT_UNIT,
    RESIDUAL_UNIT,
    WEIGHT_UNIT,
    Descent,
    GradientRounds,
    Head,
)
from adlm.privacy.accounting import Mechanism, root_up
from adlm.runtime import progress
from adlm.runtime.part_store import Part, PartStore

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Small = npt.NDArray[np.int16]

ROWS = 1 << 12  # records worked on at once: 2^12 products below 2^29 add up exactly in doubles
FINE = 1 << 24  # grid of p - y before it is bounded: M squares add up exactly
CHANCE_UNIT = 1 << 30  # grid of exp(score - largest score): M of them add up exactly


def feature_integers(z: npt.ArrayLike) -> Small:
    """Round (n, k) features towards zero to the grid."""
    values = np.asarray(z)
    out = np.empty(values.shape, dtype=np.int16)
    for start in range(0, len(values), ROWS):
        block = values[start : start + ROWS].astype(np.float64)
        if not np.isfinite(block).all():
            raise UserError("features hold a value that is not a finite number; check the feature map")
        out[start : start + ROWS] = np.trunc(np.clip(block, -1.0, 1.0) * FEATURE_UNIT)
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

    def allowed(self, z: Reals) -> Integers:
        """Return what the squared norm of each record's residual may be: (n,).

        The product with |(c, z)|^2, which is exact, then stays within the square of the bound.
        """
        return np.asarray(self.bound**2 // ((z * z).sum(1).astype(np.int64) + self.unit**2))

    def scores(self, z: Reals, head: Head) -> Reals:
        """Return (n, M) scores of features on the grid: exact, for every sum stays below 2^53 steps."""
        scores = _product(z, head.integers[:, 1:].T)
        scores += self.unit * head.integers[:, 0]
        scores *= 1 / (FEATURE_UNIT * WEIGHT_UNIT)  # a power of two
        return np.asarray(scores)

    def chances(self, z: Reals, head: Head) -> Reals:
        """Return (n, M) predicted probabilities, the same in any batch."""
        scores = self.scores(z, head)
        scores -= np.ascontiguousarray(scores.T).max(0)[:, None]  # faster than along short rows
        chance = np.rint(exact.exp(scores) * CHANCE_UNIT)
        chance /= _row_sums(chance)[:, None]
        return np.asarray(chance)

    def residuals(self, z: Reals, codes: Integers, head: Head, allowed: Integers | None = None) -> Reals:
        """Return (n, M) bounded residuals p - y, whole numbers of steps of 1 / RESIDUAL_UNIT.

        Parameters
        ----------
        z : (n, k) features in grid steps, whole numbers as doubles.
        codes : (n,) classes; of a numeric target its positions.
        head : the head of this round.
        allowed : what `allowed` gives for z, if it is known already.
        """
        return self.shrunk(self.errors(z, codes, head), self.allowed(z) if allowed is None else allowed)

    def errors(self, z: Reals, codes: Integers, head: Head) -> Reals:
        """Return (n, M) residuals p - y before they are bounded, in steps of 1 / FINE."""
        chance = self.chances(z, head)
        chance[np.arange(len(codes)), codes] -= 1.0
        return np.asarray(np.rint(chance * FINE))

    def shrunk(self, fine: Reals, allowed: Integers) -> Reals:
        """Shrink (n, M) residuals in steps of 1 / FINE to the allowed squared norms, in exact integers."""
        size = np.sqrt(_row_sums(fine * fine)) * (RESIDUAL_UNIT / FINE)
        shrink = np.minimum(1.0, np.sqrt(allowed.astype(np.float64)) / np.maximum(size, 1e-300))
        fine = fine * (RESIDUAL_UNIT / FINE)
        rows = np.trunc(fine * shrink[:, None])
        over = np.flatnonzero(_row_sums(rows * rows) > allowed)
        while over.size:  # the root was a rounding error too large
            shrink[over] *= 1 - 2.0**-30
            rows[over] = np.trunc(fine[over] * shrink[over, None])
            over = over[(rows[over] * rows[over]).sum(1) > allowed[over]]
        return np.asarray(rows)

    def gradient(self, z: Small, codes: Integers, head: Head, allowed: Integers | None = None) -> Integers:
        """Sum the bounded gradients of up to ROWS records: (M, 1 + k) in steps of 1 / GRADIENT_UNIT.

        Parameters
        ----------
        z, codes, head : (n, k) features in grid steps, (n,) classes, and the head of this round.
        allowed : what `allowed` gives for z, if it is known already.
        """
        values = z.astype(np.float64)
        rows = self.residuals(values, codes, head, allowed)
        total = np.empty((rows.shape[1], 1 + values.shape[1]), dtype=np.int64)
        total[:, 0] = self.unit * rows.sum(0).astype(np.int64)
        total[:, 1:] = _product(rows.T, values).astype(np.int64)
        return total


def _row_sums(whole: Reals) -> Reals:
    """Sum short rows of whole numbers: a product, which is exact here and faster than NumPy's sum."""
    return np.asarray(whole @ np.ones(whole.shape[1]))


def _product(a: Reals, b: Reals) -> Reals:
    """Multiply matrices whose products and sums are exact: PyTorch is faster than NumPy on narrow ones."""
    return np.asarray((torch.from_numpy(a) @ torch.from_numpy(b)).numpy())


@dataclass(frozen=True)
class RoundSum:
    """What a part adds to the gradients at a head: (M, 1 + k)."""

    clip: GradientClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum the bounded gradients of records that `on_grid` kept."""
        z, codes, allowed = part
        return (self.clip.gradient(z, codes, self.head, allowed),)


@dataclass(frozen=True)
class RightCount:
    """How many records of a part a head gets right: (1,). One record changes it by at most one."""

    clip: GradientClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        z, codes, _ = part
        right = self.clip.scores(z.astype(np.float64), self.head).argmax(1) == codes
        return (np.array([right.sum()], dtype=np.int64),)


@dataclass(frozen=True)
class PredictedSum:
    """What a part adds to the probabilities that a head predicts: (M,) in steps of 1 / RESIDUAL_UNIT."""

    clip: GradientClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum probabilities, each rounded down."""
        chance = self.clip.chances(part[0].astype(np.float64), self.head)
        return (np.floor(chance * RESIDUAL_UNIT).sum(0).astype(np.int64),)


@dataclass(frozen=True)
class GradientRecords:
    """Records as gradient rounds keep them: features on their grid, classes, and what residuals are allowed.

    Integers add up, so neither order, nor threads, nor machines matter.
    """

    records: Records
    clip: GradientClip
    width: int
    n: int

    @classmethod
    def of(cls, z: Small, codes: Integers, clip: GradientClip) -> GradientRecords:
        """Keep records that are in memory."""
        store = PartStore()
        store.append(on_grid(z, codes, clip))
        return cls(LocalRecords.of_store(store), clip, z.shape[1], len(codes))

    def gradient(self, head: Head, advance: progress.Advance | None = None) -> npt.NDArray[Any]:
        """Sum the bounded gradients at a head: (M, 1 + k)."""
        total = self.records.total(RoundSum(self.clip, head), advance)
        assert total is not None
        return total[0].integers()

    def predicted(self, head: Head) -> npt.NDArray[Any]:
        """Sum the probabilities that a head predicts: (M,) in steps of 1 / RESIDUAL_UNIT."""
        total = self.records.total(PredictedSum(self.clip, head))
        assert total is not None
        return total[0].integers()

    def correct(self, head: Head) -> npt.NDArray[Any]:
        """Count the records that a head gets right: (1,)."""
        total = self.records.total(RightCount(self.clip, head))
        assert total is not None
        return total[0].integers()


def on_grid(z: Small, codes: Integers, clip: GradientClip) -> Part:
    """Return what is kept of records: what each residual is allowed is the same in every round."""
    allowed = [clip.allowed(z[i : i + ROWS].astype(np.float64)) for i in range(0, len(codes), ROWS)]
    return z, np.asarray(codes, dtype=np.int32), np.concatenate(allowed)


def run_rounds(
    kept: GradientRecords,
    plan: GradientRounds,
    offsets: Reals,
    law: tuple[Mechanism, int],
    source: Source,
) -> Integers:
    """Release the noisy gradients of all rounds: (T, M, 1 + k).

    The charge must be in the ledger before this is called. Each head is made of released gradients alone.

    Parameters
    ----------
    kept : the records.
    plan : the rounds.
    offsets : (M,) log class shares, from released counts.
    law : `gaussian` or `radial` noise, and its scale in grid steps.
    source : where noise comes from.
    """
    descent = Descent(plan, offsets, kept.width)
    released = np.empty((plan.rounds, len(offsets), 1 + kept.width), dtype=np.int64)
    with progress.bar(plan.rounds * kept.n, f"{plan.rounds} gradient rounds", "records") as advance:
        for gradient in released:
            total = kept.gradient(descent.head(), advance)
            gradient[...] = clamped(source.add(total, *law))
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
