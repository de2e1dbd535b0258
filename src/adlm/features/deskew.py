"""Deskewing: the slant of handwriting depends on the writer, not on the character, so it is removed.

A row at height y from the ink's centre moves by y times the slope: the covariance of columns and rows over
the variance of rows. Between pixels the ink is interpolated; beyond the edge it is cut off.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from adlm.runtime.compiled import Compiled, Floats

STEEPEST = 1.0  # columns per row; steeper slants are clipped
FLATTEST = 1.0  # least standard deviation of the ink's height, in rows
FAINTEST = 1e-3  # least ink


def deskew(images: Tensor) -> Tensor:
    """Shift the rows of images (n, H, W) so that columns and rows of the ink are uncorrelated."""
    _, height, width = images.shape
    rows = torch.arange(height, dtype=images.dtype, device=images.device) - (height - 1) / 2
    columns = torch.arange(width, dtype=images.dtype, device=images.device) - (width - 1) / 2
    ink = images.sum(2)
    mass = ink.sum(1).clamp_min(FAINTEST)
    y = rows - (ink @ rows / mass)[:, None]
    spread = (ink * y * y).sum(1).clamp_min(0).maximum(mass * FLATTEST**2)
    slope = (((images @ columns) * y).sum(1) / spread).clamp(-STEEPEST, STEEPEST)
    shift = slope[:, None] * y
    floor = shift.floor()
    first = (torch.arange(1, width + 1, device=images.device) + floor.long()[:, :, None]).clamp(0, width + 1)
    padded = functional.pad(images, (1, 2))
    near, far = padded.gather(2, first), padded.gather(2, first + 1)
    return near + (shift - floor)[:, :, None] * (far - near)


def _deskew(images: Floats, height: int, width: int, out: Floats) -> None:
    """Write the deskewed images (n, H, W), all flat, one by one; sums are doubles, pixel by pixel."""
    for start in range(0, len(images), height * width):
        mass = moment = 0.0
        for y in range(height):
            ink = 0.0
            for x in range(width):
                ink += np.float64(images[start + y * width + x])
            mass += ink
            moment += ink * (y - (height - 1) / 2)
        mass = max(mass, FAINTEST)
        middle = moment / mass + (height - 1) / 2
        spread = covariance = 0.0
        for y in range(height):
            ink = across = 0.0
            for x in range(width):
                value = np.float64(images[start + y * width + x])
                ink += value
                across += value * (x - (width - 1) / 2)
            spread += ink * (y - middle) * (y - middle)
            covariance += across * (y - middle)
        slope = min(max(covariance / max(spread, mass * FLATTEST**2), -STEEPEST), STEEPEST)
        for y in range(height):
            shift = slope * (y - middle)
            floor = math.floor(shift)
            share, row = np.float32(shift - floor), start + y * width
            for x in range(width):
                at = min(max(x + floor, -1), width)
                near = images[row + at] if 0 <= at < width else np.float32(0.0)
                far = images[row + at + 1] if at + 1 < width else np.float32(0.0)
                out[row + x] = near + share * (far - near)


deskew_images = Compiled(_deskew)


def deskewed(images: Floats) -> Floats:
    """The same as `deskew` up to rounding, image by image in a compiled loop."""
    out = np.empty_like(images)
    deskew_images(images.reshape(-1), images.shape[1], images.shape[2], out.reshape(-1))
    return out
