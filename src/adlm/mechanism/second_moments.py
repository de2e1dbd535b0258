"""The second stage of a moment release: covariance around the class means already released.

A record minus the noisy mean of its class is shorter than the record, so that its products need less noise;
and their sum, the covariance within classes, is what a discriminant needs. The basis of this stage depends
on released numbers alone. Proofs: docs/proof-moments.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from adlm.engine.passes import MOST, Part
from adlm.errors import UserError
from adlm.model.estimates import Moments, class_means
from adlm.privacy.accounting import Mechanism
from adlm.privacy.clipping import EXACT_ROWS, Clip, Reals
from adlm.privacy.noise import Source

Integers = npt.NDArray[np.int64]
Batch = tuple[npt.ArrayLike, npt.NDArray[np.int64]]  # (n, width) features, (n,) class codes
Outside = tuple[Reals, Clip, Clip]  # (k, k - q) directions, the clips inside and outside
Basis = Literal["leading", "means"]
Around = Literal["origin", "means"]
GRID = 2.0**20  # steps of a record and of a direction: k products of them add up below 2^53
DIAGONAL, OFF_DIAGONAL = 5, 7  # integer weights of a triangle's entries: 7 / 5 is just below sqrt(2)


@dataclass(frozen=True)
class CrossMoments:
    """Products of the directions between class means with everything outside the basis.

    Attributes
    ----------
    inside, outside : clip norms of a record along those directions, and outside the basis.
    share : of the second stage's budget.
    """

    inside: float
    outside: float
    share: Fraction


@dataclass(frozen=True)
class Second:
    """Which second moments to release: of z @ basis, q numbers a record.

    Attributes
    ----------
    basis : `leading` takes the first q coordinates; `means` the span of the class means as already released,
        then the leading coordinates made orthogonal to it, so that stage two covers the directions between
        classes.
    around : `origin`, or `means`: each record less the released mean of its class.
    clip_norm : clip norm of the q numbers.
    scales : (q,) relative noise scales of the coordinates; None: identical.
    cross : with basis and around `means`, products with what lies outside the basis.
    """

    q: int
    basis: Basis = "leading"
    clip_norm: float = 1.0
    scales: tuple[float, ...] | None = None
    around: Around = "origin"
    cross: CrossMoments | None = None

    def __post_init__(self) -> None:
        if self.cross is not None and (self.basis, self.around) != ("means", "means"):
            raise UserError("products with what lies outside the basis need basis and around 'means'")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        cross = self.cross and {
            "inside": self.cross.inside,
            "outside": self.cross.outside,
            "share": str(self.cross.share),
        }
        return {
            "q": self.q,
            "basis": self.basis,
            "level": self.clip_norm,
            "around": self.around,
            "cross": cross,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Second:
        """Read what `to_dict` wrote."""
        cross = raw["cross"]
        return cls(
            int(raw["q"]),
            raw["basis"],
            float(raw["level"]),
            around=raw["around"],
            cross=cross
            and CrossMoments(float(cross["inside"]), float(cross["outside"]), Fraction(cross["share"])),
        )

    @property
    def later(self) -> bool:
        """Whether a second pass over the records is needed, after class means are released."""
        return "means" in (self.basis, self.around)

    def cross_clips(self, along: int = 1, off_diagonal: int = 1) -> tuple[Clip, Clip]:
        """The clips of `along` numbers between the means and of `off_diagonal` numbers outside the basis."""
        assert self.cross is not None
        return (
            Clip("l2", (1.0,) * along, self.cross.inside),
            Clip("l2", (1.0,) * off_diagonal, self.cross.outside),
        )


def triangle_sensitivity(clip: Clip, neighbours: str) -> Fraction:
    """Return the L2 distance of neighbours' weighted triangles: 5 on the diagonal, 7 off it.

    25 D_jj^2 + 49 D_jm^2 (j < m) is at most 25 times the squared Frobenius norm, which counts D_jm twice.
    """
    return DIAGONAL * clip.second_sensitivity(neighbours)


def cross_sensitivity(inside: Clip, outside: Clip, neighbours: str) -> Fraction:
    """Return the Frobenius distance of neighbours' cross products: |o u'| = |o| |u| for one record.

    Two records (o, u) and (-o, u) attain twice that.
    """
    one = Fraction(inside.feature_norm_bound * outside.feature_norm_bound)
    return one if neighbours == "add-remove" else 2 * one


def frame(sums: Reals, q: int) -> Reals:
    """Return (k, q) orthonormal columns: directions between released means, then leading coordinates."""
    centred = sums - sums.mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    between = directions[: min(len(sums) - 1, q)].T
    basis, _ = np.linalg.qr(np.hstack([between, np.eye(sums.shape[1], q)]))
    return np.asarray(basis[:, :q])


def second_moment_basis(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], second: Second
) -> tuple[dict[str, Reals], Outside | None]:
    """Return the centres, basis and complement of the second stage, from noisy class sums alone.

    A class mean lies in the unit ball of its features; a noisy one is projected back to it.
    """
    known: dict[str, Reals] = {}
    released = Moments.from_tensors(tensors, settings)
    sums = released.sums.numpy()
    classes, k = sums.shape
    if second.around == "means":
        means = class_means(released)
        known["centres"] = (means / means.norm(dim=1, keepdim=True).clamp_min(1.0)).numpy()
    if second.basis == "leading":
        return known, None
    known["basis"] = frame(sums, second.q)
    if second.cross is None:
        return known, None
    if second.q >= k:
        raise UserError(f"nothing lies outside {second.q} of {k} directions; leave the cross out")
    known["outside"] = frame(sums, k)[:, second.q :]
    return known, (known["outside"], *second.cross_clips(min(classes - 1, second.q), k - second.q))


def turned(rows: Reals, directions: Reals) -> Reals:
    """Return rows @ directions on a grid so coarse that every sum is exact in doubles.

    So a record's numbers do not depend on its position in a batch, or on how a library orders its sums.
    Features have norm at most 1; an entry beyond 4 is clipped.
    """
    return np.asarray(np.trunc(np.clip(rows, -4.0, 4.0) * GRID) @ np.rint(directions * GRID) / GRID**2)


@dataclass(frozen=True)
class Products:
    """Partial sums of products of clipped records: second moments, and those across the basis.

    Attributes
    ----------
    clip : of the q numbers of a record.
    centres : (M, k) what to subtract from the records of each class, or None.
    basis : (k, q), or None for the first q coordinates.
    outer : the (k, k - q) directions outside the basis, and the clips inside and outside.
    """

    clip: Clip
    centres: Reals | None = None
    basis: Reals | None = None
    outer: Outside | None = None

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Return (q, q) products and, when `outer` is given, (k - q, p) ones across."""
        z, codes = part
        q = len(self.clip.scales)
        rows = np.asarray(z, dtype=np.float64)
        if self.centres is not None:
            rows = rows[:, : self.centres.shape[1]] - self.centres[codes]
        inner = rows[:, :q] if self.basis is None else turned(rows[:, : len(self.basis)], self.basis)
        clipped = self.clip.integers(inner)
        second = products_of(clipped, clipped)
        if self.outer is None:
            return (second,)
        directions, inside, outside = self.outer
        across = outside.integers(turned(rows, directions))
        return second, products_of(across, inside.integers(inner[:, : len(inside.scales)]))


def products_of(left: Reals, right: Reals) -> Integers:
    """Return left' right, in blocks for which doubles are exact."""
    total = np.zeros((left.shape[1], right.shape[1]), dtype=np.int64)
    for start in range(0, len(left), EXACT_ROWS):
        block = slice(start, start + EXACT_ROWS)
        total += (left[block].T @ right[block]).astype(np.int64)
    return total


def noisy_triangle(
    second: npt.NDArray[Any], mechanism: Mechanism, off_diagonal: int, diagonal: int, source: Source
) -> npt.NDArray[Any]:
    """Return the upper triangle with noise: larger on the diagonal, zero below it.

    Parameters
    ----------
    second : (q, q) sums of products, in grid steps.
    mechanism : of the noise.
    off_diagonal, diagonal : noise scales, in grid steps.
    source : of the noise.
    """
    q = len(second)
    above, corner = np.triu_indices(q, 1), np.diag_indices(q)
    noisy = np.zeros_like(second)
    if mechanism == "radial":
        wide = second if np.abs(second).max(initial=0) < MOST // OFF_DIAGONAL else second.astype(object)
        row = np.concatenate([DIAGONAL * wide[corner], OFF_DIAGONAL * wide[above]])
        row = source.add(row, mechanism, off_diagonal)
        noisy = np.zeros_like(wide)
        noisy[corner], noisy[above] = row[:q] // DIAGONAL, row[q:] // OFF_DIAGONAL
        return noisy
    noisy[above] = source.add(second[above], mechanism, off_diagonal)
    noisy[corner] = source.add(second[corner], mechanism, diagonal)
    return noisy


def split(total: Fraction, second: Second) -> tuple[Fraction, Fraction]:
    """Divide the second stage's budget between the basis and the products across."""
    share = second.cross.share if second.cross else Fraction(0)
    if not 0 <= share < 1:
        raise UserError(f"the share of products across must lie in [0, 1), got {share}")
    return total * (1 - share), total * share
