"""Keep freed memory for the next block of the same work."""

from __future__ import annotations

from functools import cache

import numpy as np


@cache
def keep_freed() -> None:
    """Let the C library keep what is freed between blocks, instead of returning it to the system.

    GNU's keeps up to twice the largest block that it ever mapped and freed, at most 32 MiB. Without it half
    the time of a loop over blocks of a few MB goes into clearing the same pages again for every block. Other
    libraries do not mind.
    """
    np.empty(31 << 20, dtype=np.uint8)
