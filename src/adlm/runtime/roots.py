"""Exact arithmetic: square roots of rationals that stay bounds, and functions to any number of digits."""

from __future__ import annotations

import math
import threading
from fractions import Fraction

import mpmath

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
