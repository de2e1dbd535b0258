"""The machine: its devices, its memory, and blocks that fit its caches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from adlm.errors import UserError

if TYPE_CHECKING:
    import torch

# ---- Reuse of freed memory, and sizes of blocks that fit a processor's cache.

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
    most = max(16, CACHE_BYTES // (8 * max(1, width)))
    count = max(1, -(-rows // most))
    size = max(1, -(-rows // count))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


# ---- Choice of the device that tensors are computed on.

KINDS = ("cuda", "mps")


def choose_device(name: str = "auto", kinds: tuple[str, ...] = KINDS) -> torch.device:
    """Return the device of that name; `auto` is an accelerator of these kinds if there is one."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next((kind for kind in kinds if there[kind]), "cpu"))
    kind = name.partition(":")[0]
    if kind not in ("cpu", *kinds):
        allowed = ", ".join(("auto", "cpu", *kinds[:-1])) + f" or {kinds[-1]}"
        raise UserError(f"device must be {allowed}, got {name!r}")
    if kind != "cpu" and not there[kind]:
        raise UserError(f"device {kind} was asked for, but this machine has none; use --device auto")
    return torch.device(name)
