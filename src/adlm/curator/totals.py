"""Sums of integers that are exact whatever the number of records: two limbs of 32 and 64 bits.

Numbers below 2^47 are added, so a sum over up to 2^16 records (`passes.PART_ROWS`) fits in 64 bits.
The sum over all records need not: products of clipped records reach 2^63 with 2^23 records. Here a sum is
high * 2^32 + low with 0 <= low < 2^32, so that it is exact up to 2^95. Proof: docs/proof-moments.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
LIMB = 32
_MASK = (1 << LIMB) - 1
MOST = 1 << 62  # what is released fits in 64 bits, with room for one addition


@dataclass(frozen=True, eq=False)
class Total:
    """An exact sum of arrays of 64-bit integers."""

    high: Integers
    low: Integers

    @classmethod
    def of(cls, values: Integers) -> Total:
        """Split an array into two limbs."""
        return cls(values >> LIMB, values & _MASK)

    def __add__(self, other: Total) -> Total:
        low = self.low + other.low
        return Total(self.high + other.high + (low >> LIMB), low & _MASK)

    def integers(self) -> npt.NDArray[Any]:
        """Return the sum: 64-bit integers where they hold it, else Python's."""
        if self.high.size == 0 or int(np.abs(self.high).max()) < MOST >> LIMB:
            return np.asarray((self.high << LIMB) | self.low)
        return np.asarray(self.high.astype(object) * (1 << LIMB) + self.low.astype(object))


Totals = tuple[Total, ...]


def merge(left: Totals | None, right: Totals) -> Totals:
    """Add the sums of two parts; None is the sum of no parts."""
    return right if left is None else tuple(a + b for a, b in zip(left, right, strict=True))


def added(parts: Iterable[Totals]) -> Totals | None:
    """Add the sums of all parts, in any order."""
    total: Totals | None = None
    for part in parts:
        total = merge(total, part)
    return total


def clamped(noisy: npt.NDArray[Any]) -> Integers:
    """Return noisy sums as 64-bit integers, clipped at +-2^62.

    Only noisy numbers are clipped, so this costs no privacy; it has no effect with up to 10^10 records.
    """
    if noisy.dtype != object:
        return np.asarray(noisy, dtype=np.int64)
    return np.asarray(np.clip(noisy, -MOST, MOST).astype(np.int64))


def halved(noisy: npt.NDArray[Any]) -> tuple[Integers, int]:
    """Return noisy products as 64-bit integers, and the even number of bits dropped to make them fit.

    The number of bits is a function of the noisy products, so this costs no privacy. It is 0 up to 2^22
    records.
    """
    if noisy.dtype != object:
        return np.asarray(noisy, dtype=np.int64), 0
    largest = max((abs(int(value)) for value in noisy.flat), default=0)
    bits = max(0, largest.bit_length() - MOST.bit_length() + 1)
    bits += bits % 2
    return np.asarray((noisy >> bits).astype(np.int64)), bits
