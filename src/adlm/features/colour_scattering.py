"""Scattering of luminance and chroma: texture and shape of colour images, averaged over the flip."""

from __future__ import annotations

import math

from torch import Tensor, nn

from adlm.features.colour import opponent, opponent_planes
from adlm.features.order_norms import OrderNorms
from adlm.features.scattering import ROWS, FlipScattering
from adlm.features.threads import map_records
from adlm.runtime.compiled import Floats

CHANNELS = 3
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

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.scattering = FlipScattering(size)
        self.orders = self.scattering.orders
        count = math.prod(self.scattering.cells)
        self.width = CHANNELS * self.scattering.channels * count
        self.norms = OrderNorms(self.orders.repeat_interleave(count), 0.0, FLOORS, 0.0, plain=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map RGB images (n, 3, size, size) to (n, width)."""
        return map_records(x, (self.width,), self.compiled, self.products, ROWS)

    def compiled(self, images: Floats) -> Floats:
        """Map images, one by one."""
        return self.of_colours(opponent_planes(images))

    def of_colours(self, colours: Floats) -> Floats:
        """Map opponent colours (n, 3, size, size), one by one."""
        cells = self.scattering.compiled(colours.reshape(-1, *colours.shape[2:]))
        return self.norms.compiled(cells.reshape(len(cells), -1)).reshape(len(colours), -1)

    def products(self, x: Tensor) -> Tensor:
        """Map all images at once, by PyTorch."""
        cells = self.scattering.both(opponent(x).flatten(0, 1))
        rows: Tensor = self.norms(cells.flatten(1))
        return rows.reshape(-1, self.width)
