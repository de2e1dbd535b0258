"""Scattering of luminance and chroma: texture and shape of colour images, averaged over the flip."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from adlm.public.features.colour import opponent
from adlm.public.features.scattering import Scattering

CHANNELS = 3
# Added to a record's norm within a channel and order, so that a flat image's rounding errors stay small.
_FLOORS = (0.05, 0.1, 0.1)


class ColourScattering(nn.Module):
    """Scattering of each opponent channel, square-rooted, normed within each channel and order.

    The scattering is averaged over blocks of 2 x 2 outputs and over the image and its horizontal flip; the
    left half of the cells then holds it all but for the sampling, which is not quite symmetric.

    Parameters
    ----------
    size : side of the images (n, 3, size, size).
    J, L : scales and angles of the scattering.
    """

    def __init__(self, size: int = 32, J: int = 2, L: int = 8) -> None:
        super().__init__()
        # An image's signals at a time: what fits in a core's cache is fastest.
        self.scattering = Scattering((size, size), J, L, rows=2 * CHANNELS)
        self.orders = self.scattering.orders
        rows, columns = (side // 2 for side in self.scattering.output)
        self.left = (columns + 1) // 2
        self.width = CHANNELS * self.scattering.channels * rows * self.left

    def _cells(self, colours: Tensor) -> Tensor:
        return functional.avg_pool2d(self.scattering(colours), 2)

    def forward(self, x: Tensor) -> Tensor:
        """Map RGB images (n, 3, size, size) to (n, width)."""
        colours = opponent(x)
        signals = torch.stack([colours, colours.flip(3)], 1)  # an image's six side by side: one block
        cells = self._cells(signals.flatten(0, 1))
        both = cells.view(len(x), 2, *cells.shape[1:]).mean(1)
        return self.normed(both)

    def normed(self, both: Tensor) -> Tensor:
        """Root, centre and norm each channel and order of flip-averaged cells: (n, width)."""
        maps = both[..., : self.left].reshape(len(both), CHANNELS, len(self.orders), -1)
        parts = []
        for channel in range(CHANNELS):
            for order, floor in enumerate(_FLOORS):
                part = maps[:, channel, self.orders == order].flatten(1)
                part = part if order == 0 else part.clamp_min(0.0).sqrt()
                part = part - part.mean(1, keepdim=True)
                parts.append(part / (torch.linalg.vector_norm(part, dim=1, keepdim=True) + floor))
        return torch.cat(parts, 1)
