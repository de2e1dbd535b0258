"""Scattering of two scales, averaged over cells and over the horizontal flip.

The coefficients are those of `Scattering` (J = 2) of an image and of its mirror image, averaged over cells of
outputs, which overlap, and over the two. The mirror image is never transformed: its |x * psi_theta| is the
mirrored |x * psi_-theta| of the image. A second set of cells averages that at the mirror image's samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adlm.public.features.hartley_scattering import HartleyScattering, axis_weights, outer
from adlm.public.features.scattering import Scattering
from adlm.public.features.tents import tent_shares


def mirrored_channels(J: int, L: int) -> NDArray[np.int64]:
    """Index of each scattering channel in the mirrored image: an angle t pi / L becomes -t pi / L."""
    turned = [-angle % L for angle in range(L)]
    first = [1 + j * L + angle for j in range(J) for angle in turned]
    second, start = [], 1 + J * L
    for j in range(J - 1):
        coarser = J - 1 - j
        second += [
            start + (one * coarser + scale) * L + two
            for one in turned
            for scale in range(coarser)
            for two in turned
        ]
        start += L * coarser * L
    return np.array([0, *first, *second])


class FlipScattering(HartleyScattering):
    """Flip-averaged cells of the scattering of square images: (n, H, H) -> (n, channels, rows, left).

    Parameters
    ----------
    of : scattering of two scales. Its outputs are averaged over half as many cells a side. The left half is
        kept; the right half mirrors it, up to sampling.
    """

    own: Tensor
    mirrored: Tensor

    def __init__(self, of: Scattering) -> None:
        cells = of.output[0] // 2, (of.output[1] // 2 + 1) // 2
        super().__init__(of, *(self._pool(of, j, cells[1]) for j in range(2)))
        self.cells = cells
        start = np.arange(cells[0] * cells[1]) * self.channels
        self._keep("own", (self.places[:, None] + start).ravel())
        turned = self.places[mirrored_channels(2, of.L)]
        self._keep("mirrored", (turned[:, None] + start).ravel() + len(start) * self.channels)

    @staticmethod
    def _pool(of: Scattering, j: int, left: int) -> NDArray[np.float64]:
        """Weights of the cells of an image, then of its mirror image, at scale j: (2 cells, P, P)."""
        rows, columns = (tent_shares(len(w), len(w) // 2) @ w for w in axis_weights(of, j))
        direct = columns[:left]
        return np.concatenate([outer(rows, half) for half in (direct, direct[:, ::-1])]) / 2

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, H, H) to cells (n, channels, rows, left)."""
        cells = self.all_cells(x)
        both = cells.index_select(0, self.own) + cells.index_select(0, self.mirrored)
        return both.T.reshape(len(x), self.channels, *self.cells)
