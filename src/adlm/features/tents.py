"""Averages over a grid of cells that overlap: a place's weight falls linearly from one cell to the next.

With hard edges, a shift of an image by a pixel or two moves much from one cell to another. On held-out
photographs overlap was worth as much as averaging the features of five shifted images.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@cache
def tents(size: int, cells: int) -> NDArray[np.float64]:
    """Weights (cells, size) of places along an axis: 2 size at the centre of a cell, 0 at that of the next.

    They fall linearly between centres and are constant beyond the outermost. All are integers, so their sums
    are exact.
    """
    place = np.clip((2 * np.arange(size) + 1) * cells - size, 0, 2 * size * (cells - 1))
    distance = np.abs(place - 2 * size * np.arange(cells)[:, None])
    return np.asarray(np.maximum(2.0 * size - distance, 0.0))


def tent_shares(size: int, cells: int) -> NDArray[np.float64]:
    """Return the same weights (cells, size), normalised to sum 1 in each cell."""
    weights = tents(size, cells)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def tent_means(maps: Tensor, grid: int) -> Tensor:
    """Average maps (..., h, w) over a grid of overlapping cells: (..., grid, grid)."""
    rows, columns = (torch.from_numpy(tent_shares(int(side), grid)).to(maps) for side in maps.shape[-2:])
    return rows @ (maps @ columns.T)
