"""Clipping by privacy cost, in integers, and the allocation of noise over coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

from adlm.errors import UserError
from adlm.runtime.arithmetic import root_up
from adlm.runtime.compiled import readable
from adlm.runtime.loops import clip_rows, summation_order

# ---- Clip by privacy cost, in integers: the code that bounds a record is the code that states its
# sensitivity.
#
# A record's vector z is divided by a public grid step per coordinate and rounded towards zero. So noise of
# one integer scale on every coordinate is noise of a different real scale on each: the adaptive allocation.
# The cost of a record is then a norm of integers, checked exactly; floating point can cost accuracy, never
# privacy.

Norm = Literal["l1", "l2"]
RESOLUTION = 1 << 20  # the norm of a whole record in grid steps: products of two fit a double exactly
FARTHEST = 2.0**60  # grid steps
EXACT_ROWS = (
    1 << 12
)  # rows * RESOLUTION^2 <= 2^52, so a matrix product of doubles is exact integer arithmetic

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Clip:
    """A weighted norm ball for records, with a share of it set aside for the count.

    Parameters
    ----------
    norm : `l1` for Laplace noise, `l2` for radial and Gaussian noise.
    scales : (k,) relative noise scale b_j of each coordinate; larger means more noise there.
    clip_norm : records are shrunk until the norm of z_j / b_j is at most this. Public.
    constant : share of the ball that carries the count, in [0, 1); 0 when no count is released.

    Formal guarantees
    -----------------
    Every row of `integers` has norm at most `feature_norm_bound`, and with the count `record_norm_bound`, in
    exact integer arithmetic, for any input whatever. Proved in docs/proof-moments.md (Lemma 1).
    """

    norm: Norm
    scales: tuple[float, ...]
    clip_norm: float
    constant: float = 0.0

    def __post_init__(self) -> None:
        if not self.scales or not all(math.isfinite(b) and b > 0 for b in self.scales):
            raise UserError("noise scales must be positive finite numbers, one for each feature coordinate")
        if not (math.isfinite(self.clip_norm) and self.clip_norm > 0):
            raise UserError(f"the clip norm must be a positive number, got {self.clip_norm}")
        if self.clip_norm * min(self.scales) < 1e-200:
            raise UserError("noise scales or clip norm are too small to divide by; give larger ones")
        if not 0 <= self.constant < 1:
            raise UserError(f"the count's share of the clip must lie in [0, 1), got {self.constant}")

    @property
    def record_norm_bound(self) -> int:
        """Norm bound of a record with its count, in grid steps."""
        return RESOLUTION

    @property
    def count(self) -> int:
        """What a record adds to its class count, in grid steps."""
        return math.floor(self.constant * RESOLUTION)

    @property
    def feature_norm_bound(self) -> int:
        """Norm bound of a record without its count, in grid steps."""
        if self.norm == "l1":
            return self.record_norm_bound - self.count
        return math.isqrt(self.record_norm_bound**2 - self.count**2)

    @property
    def steps(self) -> Reals:
        """Real size of a grid step, (k,)."""
        return np.asarray(self.scales) * (self.clip_norm / self.feature_norm_bound)

    def integers(self, z: npt.ArrayLike) -> Reals:
        """Shrink (n, k) rows into the ball and round them towards zero: integers, as doubles."""
        values = np.asarray(z)
        if values.ndim != 2 or values.shape[1] != len(self.scales):
            raise UserError(f"features must be (n, {len(self.scales)}), got {values.shape}")
        rows, out = readable(values), np.empty(values.shape)
        absolute, order = self.norm == "l1", summation_order(values.shape[1])
        if not clip_rows(rows, self.steps, self.feature_norm_bound, absolute, FARTHEST, order, out):
            raise UserError("features hold a value that is not a finite number; check the feature map")
        return out

    def counts(self, z: npt.ArrayLike) -> Reals:
        """Return `integers` with 0 for every negative entry: rows that `counts_sensitivity` holds for."""
        rows = self.integers(z)
        return np.maximum(rows, 0.0, out=rows)

    def sums_sensitivity(self, neighbours: str) -> Fraction:
        """Return the distance of (counts, class sums) of neighbours, in this norm, in grid steps.

        Replace-one, L1: both records at most `record_norm_bound`. L2: records of different classes are
        orthogonal, so sqrt(2) of it; two of one class share their count, so 2 `feature_norm_bound`.
        """
        if neighbours == "add-remove":
            return Fraction(self.record_norm_bound)
        if self.norm == "l1":
            return Fraction(2 * self.record_norm_bound)
        return root_up(Fraction(max(2 * self.record_norm_bound**2, 4 * self.feature_norm_bound**2)))

    def counts_sensitivity(self, neighbours: str) -> Fraction:
        """Return the L2 distance of one sum, over all records, of rows without a negative entry (`counts`).

        Two such rows have an inner product of at least 0, so replacing one moves the sum by sqrt(2) bounds.
        """
        if self.norm != "l2":
            raise UserError("counts of indicators are clipped in the L2 norm")
        return (
            Fraction(self.feature_norm_bound)
            if neighbours == "add-remove"
            else root_up(Fraction(2 * self.feature_norm_bound**2))
        )

    def rows_sensitivity(self, neighbours: str) -> Fraction:
        """Return the distance of (counts, class sums) of neighbours, in the sum of the rows' L2 norms.

        A record moves one row by at most `record_norm_bound`; replacing one moves two rows by that, or one
        row by 2 `feature_norm_bound`, which is less.
        """
        if self.norm != "l2":
            raise UserError("radial noise needs records clipped in the L2 norm")
        return Fraction(self.record_norm_bound if neighbours == "add-remove" else 2 * self.record_norm_bound)

    def second_sensitivity(self, neighbours: str) -> Fraction:
        """Return the Frobenius distance of second moments of neighbours, in grid steps squared.

        It is |a|_2^2 for one record and at most sqrt(2) times that for two: their inner product only helps.
        """
        if self.norm != "l2":
            raise UserError("second moments need records clipped in the L2 norm")
        one = Fraction(self.feature_norm_bound**2)
        return one if neighbours == "add-remove" else root_up(2 * one**2)


# ---- Allocation of the budget over coordinates: identical, linear in the relevance, or optimal.
#
# Pure functions of public or already private numbers. Noise of scale b_j on coordinate j costs range_j /
# b_j, so eps_j = range_j / b_j is the coordinate's share of the budget and sum_j eps_j the whole.

ALLOCATIONS = ("identical", "linear", "optimal")
Floats = npt.NDArray[np.float64]


def noise_scales(
    allocation: str, typical: Sequence[float] | Floats, weight: Sequence[float] | Floats, *, cost: float = 1.0
) -> Floats:
    """Scales b_j under which a typical record costs ``cost``: sum_j typical_j / b_j = cost.

    Parameters
    ----------
    allocation : `identical` (one scale for all), `linear` (eps_j proportional to sqrt(weight_j), the paper's
        |R_j| with weight = R^2), or `optimal` (b_j proportional to (typical_j / weight_j)^(1/3), which
        minimises sum_j weight_j b_j^2).
    typical : (k,) typical |z_j| of a coordinate, m_j.
    weight : (k,) weight w_j of an error in the coordinate.
    cost : of the typical record.

    Returns
    -------
    (k,) scales; infinite for coordinates that are not released, which are those where typical or weight is
    zero, except that identical noise releases all.
    """
    check_allocation(allocation)
    m, w = finite_row("typical", typical), finite_row("weight", weight)
    if m.shape != w.shape:
        raise UserError(f"typical and weight must be of one length (got {m.size} and {w.size}).")
    if (m < 0).any() or (w < 0).any() or not cost > 0:
        raise UserError("typical and weight must not be negative, and cost must be positive.")
    if allocation == "identical":
        shape = np.ones_like(m)
    else:
        released = (m > 0) & (w > 0)
        if not released.any():
            raise UserError(
                "no coordinate has both size and weight, so there is nothing to give a budget to."
            )
        shape = np.full_like(m, np.inf)
        ratio = m[released] / w[released]
        shape[released] = np.cbrt(ratio) if allocation == "optimal" else m[released] / np.sqrt(w[released])
    total = float((m / shape).sum())
    if total == 0:
        raise UserError("every typical value is zero, so there is nothing to give a budget to.")
    return np.asarray(shape * (total / cost))


def check_allocation(allocation: str) -> None:
    """Refuse an allocation that is not one of `ALLOCATIONS`."""
    if allocation not in ALLOCATIONS:
        raise UserError(f"allocation must be one of {', '.join(ALLOCATIONS)} (got {allocation!r}).")


def finite_row(name: str, values: Sequence[float] | Floats) -> Floats:
    """Return values as a row of numbers; refuse any that is not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise UserError(f"{name} must be a row of finite numbers, one for each coordinate.")
    return array
