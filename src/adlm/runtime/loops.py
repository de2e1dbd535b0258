"""The passes' innermost loops, to be compiled (`runtime.compiled`); their slow twins are in the tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.runtime.compiled import Compiled

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
LANES = 8  # partial sums of NumPy's pairwise summation
AT_ONCE, IN_CACHE = 256, 1 << 17  # most records whose features, and doubles that, stay in a core's cache
LEAF = 128  # terms that it adds up without splitting them further


@cache
def summation_order(width: int) -> Integers:
    """Return how NumPy adds up `width` numbers: (leaves, 3) first and last term, sums merged afterwards."""
    leaves: list[list[int]] = []

    def split(start: int, stop: int) -> None:
        if stop - start <= LEAF:
            leaves.append([start, stop, 0])
            return
        half = (stop - start) // 2
        half -= half % LANES
        split(start, start + half)
        split(start + half, stop)
        leaves[-1][2] += 1

    split(0, width)
    return np.array(leaves, dtype=np.int64)


def _clip_rows(
    values: npt.NDArray[Any],
    steps: Reals,
    bound: int,
    absolute: bool,
    farthest: float,
    order: Integers,
    out: Reals,
) -> bool:
    """Shrink (n, k) rows into a ball and round them towards zero; False if a value is not finite.

    Parameters
    ----------
    values : (n, k) rows.
    steps : (k,) grid steps.
    bound : norm of the ball, in grid steps.
    absolute : whether the norm is L1, else L2.
    farthest : where values are cut off, in grid steps: what is beyond is as far outside as any.
    order : what `summation_order` returns for k.
    out : (n, k) integers as doubles.
    """
    square, near = float(bound) * float(bound), bound * (1 - 2.0**-20)
    terms, partial, lanes = np.empty(len(steps)), np.empty(len(order) + 1), np.empty(LANES)
    for row in range(len(values)):
        source, target = values[row], out[row]
        finite = True
        for j in range(len(steps)):
            finite &= abs(source[j]) < np.inf
            target[j] = min(max(source[j] / steps[j], -farthest), farthest)
        if not finite:
            return False
        if absolute:
            for j in range(len(steps)):
                terms[j] = abs(target[j])
        else:
            for j in range(len(steps)):
                terms[j] = target[j] * target[j]
        height = 0
        for leaf in range(len(order)):
            start, stop, merges = order[leaf, 0], order[leaf, 1], order[leaf, 2]
            whole, total = start + (stop - start) // LANES * LANES, 0.0
            if whole > start:
                for lane in range(LANES):
                    lanes[lane] = terms[start + lane]
                for j in range(start + LANES, whole, LANES):
                    for lane in range(LANES):
                        lanes[lane] += terms[j + lane]
                total = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
                total += (lanes[4] + lanes[5]) + (lanes[6] + lanes[7])
            for j in range(whole, stop):
                total += terms[j]
            partial[height] = total
            height += 1
            for _ in range(merges):
                height -= 1
                partial[height - 1] += partial[height]
        size = partial[0] if absolute else np.sqrt(partial[0])
        if size <= near:  # rounding towards zero never raises a norm
            for j in range(len(steps)):
                target[j] = np.trunc(target[j])
            continue
        shrink = min(1.0, bound / max(size, 1e-300))
        for j in range(len(steps)):
            terms[j] = target[j]
            target[j] = np.trunc(terms[j] * shrink)
        while True:
            length = 0.0  # of integers: exact
            for j in range(len(steps)):
                length += abs(target[j]) if absolute else target[j] * target[j]
            if length <= (bound if absolute else square):
                break
            shrink *= 1 - 2.0**-30  # the float norm was a rounding error too small
            for j in range(len(steps)):
                target[j] = np.trunc(terms[j] * shrink)
    return True


def _add_class_sums(table: Integers, rows: Reals, codes: npt.NDArray[Any], count: int) -> None:
    """Add (n, k) clipped records to the (M, 1 + k) sums of their classes."""
    width = rows.shape[1]
    for row in range(len(rows)):
        sums = table[codes[row]]
        sums[0] += count
        for j in range(width):
            sums[1 + j] += np.int64(rows[row, j])


def _to_grid(
    values: npt.NDArray[Any], unit: int, constant: int, out: npt.NDArray[np.int16], squares: Integers
) -> bool:
    """Round (n, k) features towards zero to a grid of 1 / `unit`; False if one is not a finite number.

    `squares` gets the squared lengths of the rows with the constant coordinate, in grid steps.
    """
    for row in range(len(values)):
        source, target, square = values[row], out[row], np.int64(constant * constant)
        finite = True
        for j in range(len(source)):
            finite &= abs(source[j]) < np.inf
            integer = np.int16(min(max(float(source[j]), -1.0), 1.0) * unit)
            target[j] = integer
            square += np.int64(integer) * np.int64(integer)
        if not finite:
            return False
        squares[row] = square
    return True


def _exponential(x: float, table: Reals, series: Reals) -> Any:
    """e^x of one number, by the operations of `runtime.arithmetic.exp`."""
    nearest = np.rint(x * -256.0)
    rest = x + nearest * (1 / 256.0)
    factor = (rest * series[0] + series[1]) * rest
    return table[int(nearest)] * (((factor + series[2]) * rest + series[3]) * rest + series[4])


def _two_class_gradient(
    z: npt.NDArray[np.int16],
    codes: npt.NDArray[Any],
    allowed: Integers,
    weights: npt.NDArray[Any],
    units: tuple[int, float, float, float, float],
    exponential: tuple[Reals, Reals],
    total: Integers,
) -> None:
    """Add the bounded gradients of two classes, or of the second alone, to (1 or 2, 1 + k) sums.

    Parameters
    ----------
    z, codes, allowed : as records are stored for gradient rounds.
    weights : (1 + k,) weights of the second class less those of the first, in grid steps.
    units : the constant coordinate; the grids of a score, of a probability, of a residual before it is
        bounded and, in units of that, after.
    exponential : the table and the coefficients of `runtime.arithmetic.exp`.
    total : where to add.
    """
    unit, score, probability, fine, coarse = units
    table, series = exponential
    width, first, least = z.shape[1], 2 - len(total), -(len(table) - 1) / 256.0
    margins, residuals = np.empty(AT_ONCE), np.empty((2, AT_ONCE))
    sums, over = np.zeros(1 + width, dtype=np.int64), np.zeros(1 + width, dtype=np.int64)
    for start in range(0, len(z), AT_ONCE):
        rows = min(AT_ONCE, len(z) - start)
        for i in range(rows):
            values, margin = z[start + i], np.int64(weights[0]) * unit
            for j in range(width):
                margin += np.int64(values[j]) * np.int64(weights[1 + j])
            margins[i] = margin * score
        for i in range(rows):
            rest = max(-abs(margins[i]), least)
            # of the class with the smaller score
            less = np.rint(_exponential(rest, table, series) * probability)
            both = less + probability
            is_second = 1.0 if codes[start + i] == 1 else 0.0
            second = (probability if margins[i] >= 0 else less) / both - is_second
            one = (less if margins[i] >= 0 else probability) / both - (1.0 - is_second)
            second = np.rint(second * fine)
            one = np.rint(one * fine) if first == 0 else 0.0
            size = np.sqrt(one * one + second * second) * coarse
            shrink = min(1.0, np.sqrt(float(allowed[start + i])) / max(size, 1e-300)) * coarse
            margins[i], residuals[0, i], residuals[1, i] = shrink, one, second
        for i in range(rows):
            one, second, shrink = residuals[0, i], residuals[1, i], margins[i]
            left, right = np.trunc(one * shrink), np.trunc(second * shrink)
            while left * left + right * right > allowed[start + i]:  # the root was a rounding error too large
                shrink *= 1 - 2.0**-30
                left, right = np.trunc(one * shrink), np.trunc(second * shrink)
            values, residual = z[start + i], np.int64(np.int32(right))
            sums[0] += residual * unit
            for j in range(width):
                sums[1 + j] += residual * np.int64(values[j])
            residual = np.int64(np.int32(left + right))
            if first == 0 and residual != 0:  # residuals are opposite but for rounding
                over[0] += residual * unit
                for j in range(width):
                    over[1 + j] += residual * np.int64(values[j])
    for j in range(1 + width):
        total[1 - first, j] += sums[j]
        if first == 0:
            total[0, j] += over[j] - sums[j]


def _softmax_gradient(
    z: npt.NDArray[np.int16],
    codes: npt.NDArray[Any],
    allowed: Integers,
    weights: Reals,
    units: tuple[int, float, float, float, float],
    exponential: tuple[Reals, Reals],
    total: Integers,
) -> None:
    """Add the bounded gradients of M classes to (M, 1 + k) sums.

    Products of matrices are of integers below 2^53, and so exact.

    Parameters
    ----------
    z, codes, allowed, units, exponential, total : as for `_two_class_gradient`.
    weights : (k + 1, M) weights of (z, constant) that give scores.
    """
    unit, _, probability, fine, coarse = units
    table, series = exponential
    width, classes, least = z.shape[1], len(total), -(len(table) - 1) / 256.0
    at_once = max(32, min(AT_ONCE, IN_CACHE // (width + 1)))
    extended, residuals = np.empty((at_once, width + 1)), np.empty((at_once, classes))
    extended[:, width] = unit
    for start in range(0, len(z), at_once):
        rows = min(at_once, len(z) - start)
        for i in range(rows):
            for j in range(width):
                extended[i, j] = z[start + i, j]
        scores = np.dot(extended[:rows], weights)
        for i in range(rows):
            given, target, code = scores[i], residuals[i], codes[start + i]
            top = given[0]
            for m in range(1, classes):
                top = max(top, given[m])
            both = 0.0
            for m in range(classes):
                rest = max(given[m] - top, least)
                target[m] = np.rint(_exponential(rest, table, series) * probability)
                both += target[m]
            square = 0.0
            for m in range(classes):
                target[m] = np.rint((target[m] / both - (1.0 if code == m else 0.0)) * fine)
                square += target[m] * target[m]
            most, size = float(allowed[start + i]), np.sqrt(square) * coarse
            shrink = min(1.0, np.sqrt(most) / max(size, 1e-300)) * coarse
            while True:
                square = 0.0
                for m in range(classes):
                    bounded = np.trunc(target[m] * shrink)
                    square += bounded * bounded
                if square <= most:
                    break
                shrink *= 1 - 2.0**-30  # the root was a rounding error too large
            for m in range(classes):
                target[m] = np.trunc(target[m] * shrink)
        sums = np.dot(residuals[:rows].T, extended[:rows])
        for m in range(classes):
            total[m, 0] += np.int64(sums[m, width])
            for j in range(width):
                total[m, 1 + j] += np.int64(sums[m, j])


def _two_class_right(
    z: npt.NDArray[np.int16], codes: npt.NDArray[Any], weights: npt.NDArray[Any], unit: int
) -> int:
    """Count the records of two classes that a head gets right; `weights` are as for a gradient."""
    right = 0
    for row in range(len(z)):
        margin = np.int64(weights[0]) * unit
        for j in range(z.shape[1]):
            margin += np.int64(z[row, j]) * np.int64(weights[1 + j])
        right += (margin > 0) == (codes[row] == 1)
    return right


def _two_class_predicted(
    z: npt.NDArray[np.int16],
    weights: npt.NDArray[Any],
    units: tuple[int, float, float, float, float],
    exponential: tuple[Reals, Reals],
    grid: int,
    total: Integers,
) -> None:
    """Add the probabilities of two classes, each rounded down to a grid, to (2,) sums in grid steps.

    Parameters
    ----------
    z, weights, units, exponential : as for `_two_class_gradient`.
    grid : grid steps in a probability of 1.
    total : where to add.
    """
    unit, score, probability, _, _ = units
    table, series = exponential
    least = -(len(table) - 1) / 256.0
    for row in range(len(z)):
        values, margin = z[row], np.int64(weights[0]) * unit
        for j in range(z.shape[1]):
            margin += np.int64(values[j]) * np.int64(weights[1 + j])
        rest = max(-abs(margin * score), least)
        # of the class with the smaller score
        less = np.rint(_exponential(rest, table, series) * probability)
        both = less + probability
        larger = 1 if margin >= 0 else 0
        total[larger] += np.int64(np.floor(probability / both * grid))
        total[1 - larger] += np.int64(np.floor(less / both * grid))


clip_rows = Compiled(_clip_rows)
to_grid = Compiled(_to_grid)
add_class_sums = Compiled(_add_class_sums)
softmax_gradient = Compiled(_softmax_gradient)
two_class_gradient = Compiled(_two_class_gradient)
two_class_predicted = Compiled(_two_class_predicted)
two_class_right = Compiled(_two_class_right)
