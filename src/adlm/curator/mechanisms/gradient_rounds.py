"""Gradient rounds: noisy sums of bounded per-record gradients, each at a head that was released before.

A record's share of a round is (p - y) x (c, z), an outer product of a residual and its features, both on
integer grids. Its L2 norm is bounded exactly, in integers, and depends on the record and on released numbers
alone. Proof: docs/proof-gradients.md.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits

from adlm.curator.feature_store import FeatureStore
from adlm.curator.noise import Source
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
class GradientPass:
    """A pass over all records, block by block. Integers add up, so neither order nor threads matter."""

    z: Small
    codes: Integers
    clip: GradientClip
    allowed: Integers

    @classmethod
    def over(cls, z: Small, codes: Integers, clip: GradientClip) -> GradientPass:
        """Prepare passes: what each record's residual is allowed is the same in every round."""
        parts = [clip.allowed(z[i : i + ROWS].astype(np.float64)) for i in range(0, len(codes), ROWS)]
        return cls(z, codes, clip, np.concatenate(parts))

    def sum(self, head: Head, threads: int = 1) -> Integers:
        """Sum the bounded gradients at a head: (M, 1 + k)."""

        def part(start: int) -> Integers:
            block = slice(start, start + ROWS)
            return self.clip.gradient(self.z[block], self.codes[block], head, self.allowed[block])

        starts = range(0, len(self.codes), ROWS)
        total = np.zeros((len(head.integers), 1 + self.z.shape[1]), dtype=np.int64)
        with one_core_each(), ThreadPoolExecutor(max(1, min(threads, len(starts)))) as pool:
            for piece in pool.map(part, starts):
                total += piece
        return total


@contextlib.contextmanager
def one_core_each() -> Iterator[None]:
    """Let the threads that start while this lasts work with one core each."""
    own = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(own)


def run_rounds(
    store: FeatureStore,
    plan: GradientRounds,
    offsets: Reals,
    law: tuple[Mechanism, int],
    source: Source,
    clip: GradientClip | None = None,
) -> Integers:
    """Release the noisy gradients of all rounds: (T, M, 1 + k).

    The charge must be in the ledger before this is called. Each head is made of released gradients alone.

    Parameters
    ----------
    store : (n, k) features on the grid, and (n,) classes.
    offsets : (M,) log class shares, from released counts.
    law : `gaussian` or `radial` noise, and its scale in grid steps.
    clip : what bounds a gradient; that of classes when not given.
    """
    z, codes = store.arrays()
    over = GradientPass.over(z, codes, clip or GradientClip(plan.clip_norm, plan.constant))
    descent = Descent(plan, offsets, z.shape[1])
    released = np.empty((plan.rounds, len(offsets), 1 + z.shape[1]), dtype=np.int64)
    threads = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 8)
    with progress.bar(plan.rounds, "gradient rounds", "rounds") as advance:
        for gradient in released:
            total = over.sum(descent.head(), threads)
            gradient[...] = source.add(total, *law)
            descent.update(gradient)
            advance(1)
    return released


def predicted_sensitivity(neighbours: str) -> Fraction:
    """Return the L2 distance of neighbours' sums of predicted probabilities, in steps of 1 / RESIDUAL_UNIT.

    A record's probabilities, rounded down, are non-negative and add up to at most 1, so their L2 norm is at
    most 1, and the inner product of two such vectors is not negative.
    """
    if neighbours == "add-remove":
        return Fraction(RESIDUAL_UNIT)
    return root_up(Fraction(2 * RESIDUAL_UNIT**2))


def sum_predicted(store: FeatureStore, head: Head, plan: GradientRounds) -> Integers:
    """Sum the probabilities that a head predicts: (M,) in steps of 1 / RESIDUAL_UNIT."""
    z, codes = store.arrays()
    clip, total = GradientClip(plan.clip_norm, plan.constant), np.zeros(len(head.integers), dtype=np.int64)
    for start in range(0, len(codes), ROWS):
        chance = clip.chances(z[start : start + ROWS].astype(np.float64), head)
        total += np.floor(chance * RESIDUAL_UNIT).sum(0).astype(np.int64)
    return total


def count_correct(store: FeatureStore, head: Head, plan: GradientRounds) -> Integers:
    """Count the records that a head gets right: (1,). One record changes it by at most one."""
    z, codes = store.arrays()
    clip, right = GradientClip(plan.clip_norm, plan.constant), 0
    for start in range(0, len(codes), ROWS):
        block = slice(start, start + ROWS)
        right += int((clip.scores(z[block].astype(np.float64), head).argmax(1) == codes[block]).sum())
    return np.array([right], dtype=np.int64)
