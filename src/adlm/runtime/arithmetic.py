"""Exact arithmetic: square roots that stay bounds, and an exponential that gives the same bits everywhere."""

from __future__ import annotations

import math
import threading
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt

# ---- Exact arithmetic: square roots of rationals that stay bounds, and functions to any number of digits.

# Use: `with MPMATH_LOCK, MP.workprec(bits):`. The precision of `mpmath.mp` is one number for the process,
# and mpmath keeps constants such as log 2 in global variables: with several threads, either can change in the
# middle of a computation. This context is the library's own, and one thread at a time computes with it.
MP = mpmath.MPContext()
MPMATH_LOCK = threading.RLock()


def root_down(value: Fraction) -> Fraction:
    """Return the square root rounded down to a multiple of 10^-12."""
    step = 10**12
    return Fraction(math.isqrt(math.floor(value * step * step)), step)


def root_up(value: Fraction, digits: int = 12) -> Fraction:
    """Return the square root rounded up to a multiple of 10^-digits."""
    step = 10**digits
    scaled = math.ceil(value * step * step)
    root = math.isqrt(scaled)
    return Fraction(root if root * root >= scaled else root + 1, step)


# ---- How a release stores a symmetric matrix, such as second moments: its upper triangle, zeros below.


def symmetric(triangle: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Fill the lower half of a released upper triangle."""
    upper = triangle.astype(np.float64)
    return np.asarray(upper + np.triu(upper, 1).T)


# ---- An exponential that gives the same bits in every batch, thread and machine.
#
# A library's `exp` may differ in the last bit between the vectorised body of an array and its tail, so that
# a record's numbers would depend on its place in a batch. This one uses additions, multiplications,
# roundings and a fixed table alone; IEEE 754 fixes each of these operations to the last bit.

Reals = npt.NDArray[np.float64]

LEAST = -32.0  # exponents below this give exp(LEAST), which rounds to zero on a grid of 2^-30
_EACH = 256  # entries of the table in a step of 1
_SERIES = tuple(1 / math.factorial(i) for i in range(4, -1, -1))


def exp(x: Reals) -> Reals:
    """Return e^x for x <= 0, elementwise, to about 15 digits: a table in steps of 1/256 and a series."""
    rest = np.maximum(x, LEAST)
    nearest = rest * -_EACH
    np.rint(nearest, out=nearest)
    value = _table()[nearest.astype(np.intp)]
    nearest *= 1 / _EACH
    rest += nearest
    series = rest * _SERIES[0]
    for coefficient in _SERIES[1:-1]:
        series += coefficient
        series *= rest
    series += _SERIES[-1]
    value *= series
    return value


@cache
def tables() -> tuple[Reals, Reals]:
    """Return the table and the coefficients of `exp`, for compiled code."""
    return _table(), np.array(_SERIES)


@cache
def _table() -> Reals:
    """Return e^(-i / 256) down to e^LEAST: products of e^-integer and e^-fraction."""
    with localcontext(prec=40):
        integers = [float(Decimal(-i).exp()) for i in range(int(-LEAST) + 1)]
        fractions = [float((Decimal(-i) / _EACH).exp()) for i in range(_EACH)]
    return np.outer(integers, fractions).ravel()
