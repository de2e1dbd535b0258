"""An exponential that gives the same bits in every batch, thread and machine.

A library's `exp` may differ in the last bit between the vectorised body of an array and its tail,
so that a record's numbers would depend on its place in a batch. This one uses additions, multiplications,
roundings and powers of two alone, each of which IEEE 754 fixes to the last bit.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]

_LOG2_E = 1 / math.log(2.0)
_LN2_HIGH = 0.6931471803691238  # ends in zeros, so that its product with a small integer is exact
_LN2_LOW = 1.9082149292705877e-10
_EXP = tuple(1 / math.factorial(i) for i in range(11, -1, -1))
GRID = 2.0**20
LEAST = -700.0  # exponents below this give exp(LEAST)


def exp(x: Reals) -> Reals:
    """Return e^x for x <= 0, elementwise, to about 15 digits."""
    rest = np.maximum(x, LEAST)
    whole = rest * _LOG2_E
    np.rint(whole, out=whole)
    rest -= whole * _LN2_HIGH
    rest -= whole * _LN2_LOW
    power = whole.astype(np.int64)
    power += 1023  # of a double 2^whole, whose exponent is at least -1010
    power <<= 52
    value = _horner(_EXP, rest)
    value *= power.view(np.float64)
    return value


def product(rows: Reals, weights: Reals) -> Reals:
    """Return rows @ weights, both rounded to a grid of 2^-20, so that every sum of doubles is exact.

    Rows have entries in [0, 1]. The sums stay below 2^53 grid steps as long as the absolute values of a
    column of weights, each times its entry of a row, add up to less than 2^13.
    """
    whole = rows * GRID
    made = np.rint(whole, out=whole) @ np.rint(weights * GRID)
    made *= 1 / GRID**2
    return np.asarray(made)


def _horner(coefficients: tuple[float, ...], x: Reals) -> Reals:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += coefficient
    return value
