"""Writing leans, and which way it leans says who wrote, not what was written: stand it up."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

STEEPEST = 1.0  # columns for a row, beyond which a drawing is not taken to lean
FLATTEST = 1.0  # rows: ink that is spread less than this in height has no direction to lean in


def deskew(images: Tensor) -> Tensor:
    """Shift the rows of images (n, H, W) so that columns and rows of the ink are uncorrelated.

    A row at height y from the ink's centre moves by y times slope, the slope being the covariance of columns
    and rows over the variance of rows (as characters have been normalised since the first readers of
    cheques). Between pixels the ink is interpolated; what leaves the image is cut off.
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
    whole = shift.floor()
    first = (torch.arange(1, width + 1, device=images.device) + whole.long()[:, :, None]).clamp(0, width + 1)
    padded = functional.pad(images, (1, 2))
    near, far = padded.gather(2, first), padded.gather(2, first + 1)
    return near + (shift - whole)[:, :, None] * (far - near)
