"""Products of rows with fixed directions, by a compiled loop with one order of additions for every entry.

An entry of the product is the sum over p of x_p w_pk, each term fused, from the first to the last. Blocks
only say which entries are computed next to each other, so neither the number of rows nor a row's place
shows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from adlm.features.threads import map_records
from adlm.runtime.compiled import LANES, Compiled, Floats, Lanes, every, fused, load, numbers, store

PANEL = 2 * LANES  # directions side by side
TILE = 6  # rows that are multiplied together: their sums fill the registers
DEPTH = 256  # entries of a row at a time: those of a panel, and of all rows, stay in a core's caches
ROWS = 240  # that a thread takes at most: a panel is read once for all of them
FEW = 16  # records that are mapped to rows together


def _tile(
    x: Floats, a: int, p: int, panels: Floats, w: int, depth: int, out: Floats, o: int, width: int
) -> None:
    """Add the products of `TILE` rows with a panel, over `depth` entries, to what was added before."""
    s0, t0, s1, t1 = load(out, o), load(out, o + LANES), load(out, o + width), load(out, o + width + LANES)
    o2, o4 = o + 2 * width, o + 4 * width
    s2, t2, s3, t3 = (
        load(out, o2),
        load(out, o2 + LANES),
        load(out, o2 + width),
        load(out, o2 + width + LANES),
    )
    s4, t4, s5, t5 = (
        load(out, o4),
        load(out, o4 + LANES),
        load(out, o4 + width),
        load(out, o4 + width + LANES),
    )
    for i in range(depth):
        u, v = load(panels, w + i * PANEL), load(panels, w + i * PANEL + LANES)
        c = every(x[a + i])
        s0, t0 = fused(c, u, s0), fused(c, v, t0)
        c = every(x[a + p + i])
        s1, t1 = fused(c, u, s1), fused(c, v, t1)
        c = every(x[a + 2 * p + i])
        s2, t2 = fused(c, u, s2), fused(c, v, t2)
        c = every(x[a + 3 * p + i])
        s3, t3 = fused(c, u, s3), fused(c, v, t3)
        c = every(x[a + 4 * p + i])
        s4, t4 = fused(c, u, s4), fused(c, v, t4)
        c = every(x[a + 5 * p + i])
        s5, t5 = fused(c, u, s5), fused(c, v, t5)
    _both(out, o, s0, t0)
    _both(out, o + width, s1, t1)
    _both(out, o2, s2, t2)
    _both(out, o2 + width, s3, t3)
    _both(out, o4, s4, t4)
    _both(out, o4 + width, s5, t5)


def _both(out: Floats, o: int, s: Lanes, t: Lanes) -> None:
    store(out, o, s)
    store(out, o + LANES, t)


def _multiply(x: Floats, p: int, panels: Floats, out: Floats, width: int) -> None:
    """Write rows (n, p) times directions to (n, width), all flat; n is a multiple of `TILE`.

    `panels` are (width / PANEL, p, PANEL).
    """
    rows, size = len(x) // p, len(out)
    left, right, sums = numbers(x), numbers(panels), numbers(out)
    for place in range(0, size, LANES):
        store(sums, place, every(np.float32(0.0)))
    for start in range(0, p, DEPTH):
        depth = min(DEPTH, p - start)
        for k in range(0, width, PANEL):
            for row in range(0, rows, TILE):
                a, w, o = row * p + start, k * p + start * PANEL, row * width + k
                _tile(left, a, p, right, w, depth, sums, o, width)


multiply = Compiled(_multiply)


class Directions(nn.Module):
    """Product of rows (n, p) with fixed directions (p, k): (n, k).

    Parameters
    ----------
    directions : (p, k).
    """

    weights: Tensor

    def __init__(self, directions: Tensor) -> None:
        super().__init__()
        # Not in the fingerprint: it is derived from what is.
        self.register_buffer("weights", directions.float().contiguous(), persistent=False)
        p, k = directions.shape
        padded = np.zeros((p, -(-k // PANEL) * PANEL), np.float32)
        padded[:, :k] = self.weights.numpy()
        self.panels = np.ascontiguousarray(padded.reshape(p, -1, PANEL).transpose(1, 0, 2)).reshape(-1)

    def forward(self, rows: Tensor, width: int | None = None) -> Tensor:
        """Return rows (n, p) times the first `width` directions; all of them if None."""
        return self.of(rows, lambda block: block, lambda block: block, width)

    def of(
        self,
        x: Tensor,
        compiled: Callable[[Floats], Floats],
        batched: Callable[[Tensor], Tensor],
        width: int | None = None,
    ) -> Tensor:
        """Map records to rows, and return the rows times directions: (n, width).

        Parameters
        ----------
        x : records.
        compiled, batched : both forms of the map to rows (n, p), as `map_records` takes them.
        width : how many directions; all of them if None.
        """
        p, most = self.weights.shape
        kept = most if width is None else width
        wide = -(-kept // PANEL) * PANEL

        def work(block: Floats) -> Floats:
            # Few records at a time: what they are mapped to is still in a core's cache when it is copied.
            rows = np.zeros((-(-len(block) // TILE) * TILE, p), np.float32)
            for start in range(0, len(block), FEW):
                rows[start : min(start + FEW, len(block))] = compiled(block[start : start + FEW])
            out = np.empty((len(rows), wide), np.float32)
            multiply(rows.reshape(-1), p, self.panels, out.reshape(-1), wide)
            return out[: len(block), :kept]

        share = -(-len(x) // torch.get_num_threads())
        return map_records(
            x, (kept,), work, lambda block: batched(block) @ self.weights[:, :kept], min(ROWS, max(share, 1))
        )
