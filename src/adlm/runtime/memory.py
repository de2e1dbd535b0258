"""Reuse of freed memory, and sizes of blocks that fit a processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

CACHE_BYTES = 1 << 19  # of one array of doubles; a few of them are in use at once


@cache
def keep_freed() -> None:
    """Let the C library keep memory freed between blocks, instead of returning it to the system.

    glibc keeps up to twice the largest block that it ever mapped and freed, at most 32 MiB. Without this,
    half the time of a loop over blocks of a few MB is spent on clearing pages. Other libraries are
    unaffected.
    """
    np.empty(31 << 20, dtype=np.uint8)


def blocks_in_cache(rows: int, width: int) -> Iterator[slice]:
    """Split `rows` rows of `width` doubles into blocks of similar size that fit a core's cache."""
    count = max(1, -(-rows // rows_in_cache(width)))
    size = max(1, -(-rows // count))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def rows_in_cache(width: int) -> int:
    """Return how many rows of `width` doubles fit a core's cache."""
    return max(16, CACHE_BYTES // (8 * max(1, width)))
