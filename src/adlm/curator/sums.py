"""Sums of clipped records by class, in exact integers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from adlm.curator import loops
from adlm.curator.clipping import EXACT_ROWS, Reals

Integers = npt.NDArray[np.int64]


def add_class_sums(table: Integers, rows: Reals, codes: Integers, count: int) -> None:
    """Add records to a table of class sums, in blocks for which doubles are exact.

    Parameters
    ----------
    table : (M, 1 + k), changed in place: `count` for each record of a class, then sums of its rows.
    rows : (n, k) clipped records in grid steps, integers as doubles.
    codes : (n,) classes.
    count : increment of a class's count for one record, in grid steps.
    """
    known = len(codes) and codes.min() >= 0 and codes.max() < len(table)  # compiled code checks no index
    if known and loops.add_class_sums.pays(len(rows)):
        loops.add_class_sums(table, rows, codes, count)
        return
    for start in range(0, len(rows), EXACT_ROWS):
        block, labels = rows[start : start + EXACT_ROWS], codes[start : start + EXACT_ROWS]
        member = np.zeros((len(block), len(table)))
        member[np.arange(len(block)), labels] = 1.0
        table[:, 1:] += (member.T @ block).astype(np.int64)
        table[:, 0] += count * member.sum(0).astype(np.int64)
