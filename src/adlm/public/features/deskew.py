"""Deskewing: the slant of handwriting depends on the writer, not on the character, so it is removed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

STEEPEST = 1.0  # columns per row; steeper slants are clipped
FLATTEST = 1.0  # least standard deviation of the ink's height, in rows


def deskew(images: Tensor) -> Tensor:
    """Shift the rows of images (n, H, W) so that columns and rows of the ink are uncorrelated.

    A row at height y from the ink's centre moves by y times the slope: the covariance of columns and rows
    over the variance of rows. Between pixels the ink is interpolated; beyond the edge it is cut off.
    """
    _, height, width = images.shape
    rows = torch.arange(height, dtype=images.dtype, device=images.device) - (height - 1) / 2
    columns = torch.arange(width, dtype=images.dtype, device=images.device) - (width - 1) / 2
    ink = images.sum(2)
    mass = ink.sum(1).clamp_min(1e-3)
    y = rows - (ink @ rows / mass)[:, None]
    spread = (ink * y * y).sum(1).clamp_min(0).maximum(mass * FLATTEST**2)
    slope = (((images @ columns) * y).sum(1) / spread).clamp(-STEEPEST, STEEPEST)
    shift = slope[:, None] * y
    floor = shift.floor()
    first = (torch.arange(1, width + 1, device=images.device) + floor.long()[:, :, None]).clamp(0, width + 1)
    padded = functional.pad(images, (1, 2))
    near, far = padded.gather(2, first), padded.gather(2, first + 1)
    return near + (shift - floor)[:, :, None] * (far - near)
