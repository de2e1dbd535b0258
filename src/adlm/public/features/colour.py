"""Colour features: where which colours are, and a small picture."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from adlm.public.features.patches import pooling

# Rows: luminance, blue against yellow, red against green, each in [-0.5, 0.5] about grey for x in [0, 1].
_AXES = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.25, 0.25, -0.5], [0.5, -0.5, 0.0]])

NAMES = ("light", "yellow", "red")


def opponent(x: Tensor) -> Tensor:
    """Luminance and two chroma channels of RGB images (n, 3, h, w)."""
    return torch.einsum("ij,njhw->nihw", _AXES.to(x), x)


def flip_average(maps: Tensor) -> Tensor:
    """Average maps (n, c, h, w) with their mirror images and keep the left half, which holds it all."""
    half = (maps.shape[3] + 1) // 2
    return (0.5 * (maps + maps.flip(3)))[..., :half]


class Colour(nn.Module):
    """Soft colour histogram on a grid, and a thumbnail; both averaged over the horizontal flip.

    Parameters
    ----------
    bins : bins along luminance and along each chroma axis.
    grid : cells along each side of the histogram's grid.
    thumbnail : side of the thumbnail.
    """

    def __init__(self, bins: tuple[int, int, int] = (5, 5, 5), grid: int = 3, thumbnail: int = 8) -> None:
        super().__init__()
        light = (torch.arange(bins[0]) + 0.5) / bins[0]
        # Chroma of everyday pictures lies well inside its range, so its bins sit closer around grey.
        yellow, red = (torch.linspace(-0.16, 0.16, count) for count in bins[1:])
        self.register_buffer("light", light)
        self.register_buffer("yellow", yellow)
        self.register_buffer("red", red)
        self.grid = grid
        self.thumbnail = thumbnail
        left = (grid + 1) // 2
        self.widths = (bins[0] * bins[1] * bins[2] * grid * left, 3 * thumbnail * ((thumbnail + 1) // 2))
        self.width = sum(self.widths)

    def histogram(self, colours: Tensor) -> Tensor:
        """Share of each soft colour bin in each cell, square-rooted, of opponent colours (n, 3, h, w)."""
        parts = []
        for channel, name in enumerate(NAMES):
            centres = self.get_buffer(name)
            width = centres[1] - centres[0]
            value = colours[:, channel].clamp(float(centres[0]), float(centres[-1]))
            # Triangular bins: the memberships of a value sum to one.
            parts.append((1.0 - (value[:, None] - centres[:, None, None]).abs() / width).clamp_min(0.0))
        # The share of a joint bin in a cell is a product of matrices: pairs of bins times bins by cell.
        n, bins = len(colours), [len(self.get_buffer(name)) for name in NAMES]
        pool = pooling(*colours.shape[2:], self.grid).to(colours)
        pairs = (parts[0][:, :, None] * parts[1][:, None]).reshape(n, bins[0] * bins[1], -1)
        by_cell = (parts[2].flatten(2).transpose(1, 2)[..., None] * pool[:, None]).flatten(2)
        joint = (pairs @ by_cell).reshape(n, -1, self.grid, self.grid)
        return flip_average(joint).flatten(1).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        colours = opponent(x)
        small = flip_average(functional.adaptive_avg_pool2d(colours, self.thumbnail)).flatten(1)
        return torch.cat([self.histogram(colours), small], 1)
