"""Square roots of rationals, rounded up or down, so that bounds stay bounds."""

from __future__ import annotations

import math
from fractions import Fraction


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
