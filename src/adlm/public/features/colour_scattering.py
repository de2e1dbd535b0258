"""Scattering of luminance and chroma: texture and shape of colour images, averaged over the flip."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adlm.public.features.colour import opponent
from adlm.public.features.flip_scattering import FlipScattering
from adlm.public.features.order_norms import OrderNorms
from adlm.public.features.scattering import Scattering

CHANNELS = 3
TOGETHER = 2  # images whose responses stay in a core's cache
ACCELERATED = 512  # images in a batch on an accelerator
# Added to a record's norm within a channel and order, so that a flat image's rounding errors stay small.
FLOORS = (0.05, 0.1, 0.1)


class ColourScattering(nn.Module):
    """Scattering of each opponent channel, square-rooted, normed within each channel and order.

    The scattering, of two scales, is averaged over cells of its outputs and over the image and its
    horizontal flip. Only the left half of the cells is kept: the right half mirrors it, up to sampling.

    Parameters
    ----------
    size : side of the images (n, 3, size, size).
    """

    floors: Tensor

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.scattering = Scattering((size, size), 2)
        self.flipped = FlipScattering(self.scattering)
        self.orders = self.scattering.orders
        self.counts = torch.bincount(self.orders).tolist()
        self.left = self.flipped.cells[1]
        self.width = CHANNELS * self.scattering.channels * math.prod(self.flipped.cells)
        self.norms = OrderNorms(self.orders.repeat_interleave(math.prod(self.flipped.cells)))
        self.register_buffer("floors", torch.tensor(FLOORS), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map RGB images (n, 3, size, size) to (n, width)."""
        rows = TOGETHER if x.device.type == "cpu" else ACCELERATED
        parts = [self.normed(self.cells(part)) for part in torch.split(x, rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def cells(self, x: Tensor) -> Tensor:
        """Flip-averaged cells of every opponent channel: (n, 3, channels, cells)."""
        flat: Tensor = self.flipped(opponent(x).flatten(0, 1))
        return flat.view(len(x), CHANNELS, self.scattering.channels, -1)

    def normed(self, cells: Tensor) -> Tensor:
        """Root, centre and norm each channel and order of flip-averaged cells: (n, width)."""
        flat = cells.reshape(len(cells) * CHANNELS, -1)
        plain = self.counts[0] * cells.shape[3]
        roots = torch.cat([flat[:, :plain], flat[:, plain:].clamp_min(0.0).sqrt()], 1)
        centred = self.norms.centred(roots)
        scale = (self.norms.norms(centred) + self.floors).reciprocal()
        return (centred * self.norms.spread(scale)).view(len(cells), -1)
