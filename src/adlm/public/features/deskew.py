"""Writing leans, and which way it leans says who wrote, not what was written: stand it up."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

STEEPEST = 1.0  # columns for a row, beyond which a drawing is not taken to lean
FLATTEST = 1.0  # rows: ink that is spread less than this in height has no direction to lean in


@cache
@torch.inference_mode(mode=False)
def _about_centre(size: int) -> Tensor:
    return torch.arange(size, dtype=torch.float32) - (size - 1) / 2


def deskew(images: Tensor) -> Tensor:
    """Shift the rows of images (n, H, W) so that columns and rows of the ink are uncorrelated.

    A row at height y from the ink's centre moves by y times slope, the slope being the covariance of columns
    and rows over the variance of rows (as characters have been normalised since the first readers of
    cheques). Between pixels the ink is interpolated; what leaves the image is cut off.
    """
    _, height, width = images.shape
    rows, columns = (_about_centre(size).to(images) for size in (height, width))
    # Ink of each row, and its moment about the middle column.
    ink, moment = (images @ torch.stack([torch.ones_like(columns), columns], 1)).unbind(2)
    mass = ink.sum(1, keepdim=True).clamp_min(1e-3)
    y = rows - (ink @ rows)[:, None] / mass
    spread = (ink * y * y).sum(1, keepdim=True).clamp_min(0).maximum(mass * FLATTEST**2)
    slope = ((moment * y).sum(1, keepdim=True) / spread).clamp(-STEEPEST, STEEPEST)
    shift = slope * y
    whole = shift.floor()
    first = (torch.arange(1, width + 1, device=images.device) + whole.long()[:, :, None]).clamp(0, width + 1)
    padded = functional.pad(images, (1, 2))
    near, far = padded.gather(2, first), padded.gather(2, first + 1)
    return near + (shift - whole)[:, :, None] * (far - near)
