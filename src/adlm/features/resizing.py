"""Resize images by products with a matrix on both sides: in a compiled loop, or by PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adlm.runtime.compiled import LANES, Compiled, Floats, every, fused, load, numbers, store

GRID = float(1 << 22)  # steps in one unit of a weight: a library's last bits are gone


def weights(size: int, to: int, mode: str) -> Tensor:
    """Matrix of resizing along one side, with antialiasing: (to, size)."""
    lines = torch.eye(size).reshape(size, 1, size, 1).expand(-1, -1, -1, size)  # images that vary downwards
    resized = functional.interpolate(lines, (to, to), mode=mode, antialias=True)
    return (resized[:, 0, :, 0].T.double() * GRID).round().div(GRID).float().contiguous()


class Resized(nn.Module):
    """Images (n, ..., H, W) of another size, cut to [0, 1] and framed: (n, ..., side, side).

    Parameters
    ----------
    shape : H and W.
    inner : side that images are resized to.
    mode : of the interpolation.
    margin : pixels of zeros on every side; `side` is `inner` and twice the margin.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, shape: tuple[int, int], inner: int, mode: str, margin: int = 0) -> None:
        super().__init__()
        self.inner, self.margin = inner, margin
        self.register_buffer("rows", weights(shape[0], inner, mode), persistent=False)
        self.register_buffer("columns", weights(shape[1], inner, mode), persistent=False)

    def compiled(self, images: Floats) -> Floats:
        """Resize images, one by one."""
        resized = np.clip(both_sides(images, self.rows.numpy(), self.columns.numpy()), 0, 1)
        return np.pad(resized, [(0, 0)] * (images.ndim - 2) + [(self.margin,) * 2] * 2)

    def forward(self, x: Tensor) -> Tensor:
        """Resize images by PyTorch."""
        return functional.pad((self.rows @ x @ self.columns.T).clamp(0, 1), [self.margin] * 4)


def both_sides(maps: Floats, rows: Floats, columns: Floats) -> Floats:
    """Products rows @ map @ columns' of maps (..., H, W), with weights (a, H) and (b, W): (..., a, b)."""
    height, width = maps.shape[-2:]
    wide = -(-len(columns) // LANES) * LANES
    across = np.zeros((width, wide), np.float32)
    across[:, : len(columns)] = columns.T
    out = np.empty((*maps.shape[:-2], len(rows), wide), np.float32)
    spare = np.empty(height * wide, np.float32)
    flat = np.ascontiguousarray(maps).reshape(-1)
    multiply_both(
        flat,
        np.ascontiguousarray(rows).reshape(-1),
        across.reshape(-1),
        height,
        width,
        out.reshape(-1),
        spare,
    )
    return out[..., : len(columns)]


def _multiply_both(
    maps: Floats, rows: Floats, columns: Floats, height: int, width: int, out: Floats, spare: Floats
) -> None:
    """Write products on both sides, one map after the other: along rows, eight columns at a time, then down.

    Parameters
    ----------
    maps, out : (n, H, W) and (n, a, b), flat; b is a multiple of eight.
    rows, columns : (a, H) and (W, b) weights, flat.
    height, width : H and W.
    spare : (H, b) to work on.
    """
    tall, wide = len(rows) // height, len(columns) // width
    count = len(maps) // (height * width)
    across, down, line_sums, written = numbers(columns), numbers(rows), numbers(spare), numbers(out)
    for n in range(count):
        for y in range(height):
            line = (n * height + y) * width
            for x in range(0, wide, LANES):
                total = every(np.float32(0.0))
                for i in range(width):
                    total = fused(every(maps[line + i]), load(across, i * wide + x), total)
                store(line_sums, y * wide + x, total)
        for a in range(tall):
            for x in range(0, wide, LANES):
                total = every(np.float32(0.0))
                for i in range(height):
                    total = fused(every(down[a * height + i]), load(line_sums, i * wide + x), total)
                store(written, (n * tall + a) * wide + x, total)


multiply_both = Compiled(_multiply_both)
