"""Keep freed memory for the next block of the same work, and blocks in a processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

CACHE_BYTES = 1 << 19  # of one array of doubles; a few of them are in use at once


@cache
def keep_freed() -> None:
    """Let the C library keep what is freed between blocks, instead of returning it to the system.

    GNU's keeps up to twice the largest block that it ever mapped and freed, at most 32 MiB. Without it half
    the time of a loop over blocks of a few MB goes into clearing the same pages again for every block. Other
    libraries do not mind.
    """
    np.empty(31 << 20, dtype=np.uint8)


def blocks_in_cache(rows: int, width: int) -> Iterator[slice]:
    """Cut so many rows of so many doubles into blocks of about one size that stay in a core's own cache."""
    count = max(1, -(-rows // rows_in_cache(width)))
    size = max(1, -(-rows // count))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def rows_in_cache(width: int) -> int:
    """Return how many rows of so many doubles to work on at once, so that they stay in a core's own cache."""
    return max(16, CACHE_BYTES // (8 * max(1, width)))
