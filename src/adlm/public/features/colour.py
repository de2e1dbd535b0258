"""Colour features: a colour histogram on a grid, and a thumbnail."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

# Rows: luminance, blue against yellow, red against green, each in [-0.5, 0.5] about grey for x in [0, 1].
_AXES = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.25, 0.25, -0.5], [0.5, -0.5, 0.0]])

NAMES = ("light", "yellow", "red")


def opponent(x: Tensor) -> Tensor:
    """Luminance and two chroma channels of RGB images (n, 3, h, w)."""
    return torch.matmul(_AXES.to(x), x.flatten(2)).view(x.shape)


def flip_average(maps: Tensor) -> Tensor:
    """Average maps (n, c, h, w) with their mirror images and keep the left half, which determines it."""
    half = (maps.shape[3] + 1) // 2
    return (0.5 * (maps + maps.flip(3)))[..., :half]


@cache
@torch.inference_mode(mode=False)  # the cached tensor may later need gradients
def folded_pooling(height: int, width: int, grid: int) -> Tensor:
    """Matrix (cells, height * width) that averages over the cells of a grid and over the flip."""
    places = torch.eye(height * width).reshape(-1, 1, height, width)
    return flip_average(functional.adaptive_avg_pool2d(places, grid)).flatten(1).T.contiguous()


class Colour(nn.Module):
    """Soft colour histogram on a grid, and a thumbnail; both averaged over the horizontal flip.

    Parameters
    ----------
    bins : bins along luminance and along each chroma axis.
    grid : cells along each side of the histogram's grid.
    thumbnail : side of the thumbnail.
    """

    channel: Tensor
    centres: Tensor
    steepness: Tensor
    lowest: Tensor
    highest: Tensor

    def __init__(self, bins: tuple[int, int, int] = (5, 5, 5), grid: int = 3, thumbnail: int = 8) -> None:
        super().__init__()
        light = (torch.arange(bins[0]) + 0.5) / bins[0]
        # Chroma of natural images lies well inside its range, so its bins sit closer around grey.
        yellow, red = (torch.tensor([0.32 * i / (n - 1) - 0.16 for i in range(n)]) for n in bins[1:])
        self.register_buffer("light", light)
        self.register_buffer("yellow", yellow)
        self.register_buffer("red", red)
        axes = (light, yellow, red)
        channel = torch.arange(3).repeat_interleave(torch.tensor(bins))
        steepness = torch.stack([1 / (axis[1] - axis[0]) for axis in axes])[channel]
        self.register_buffer("channel", channel, persistent=False)
        self.register_buffer("centres", torch.cat(axes)[:, None], persistent=False)
        self.register_buffer("steepness", steepness[:, None], persistent=False)
        self.register_buffer("lowest", torch.stack([axis[0] for axis in axes])[:, None], persistent=False)
        self.register_buffer("highest", torch.stack([axis[-1] for axis in axes])[:, None], persistent=False)
        self.grid = grid
        self.thumbnail = thumbnail
        left = (grid + 1) // 2
        self.widths = (bins[0] * bins[1] * bins[2] * grid * left, 3 * thumbnail * ((thumbnail + 1) // 2))
        self.width = sum(self.widths)

    def histogram(self, colours: Tensor) -> Tensor:
        """Share of each soft colour bin in each cell, square-rooted, of opponent colours (n, 3, h, w)."""
        # Triangular bins, all three channels at once: the memberships of a value sum to one.
        n, bins = len(colours), [len(self.get_buffer(name)) for name in NAMES]
        values = colours.flatten(2).clamp(self.lowest, self.highest).index_select(1, self.channel)
        members = values.sub_(self.centres).abs_().mul_(self.steepness).neg_().add_(1.0).clamp_min_(0.0)
        light, yellow, red = torch.split(members, bins, 1)
        # The share of a joint bin in a cell is a product of matrices: pairs of bins times bins by cell.
        cells = folded_pooling(*colours.shape[2:], self.grid).to(colours)
        pairs = (light[:, :, None] * yellow[:, None]).view(n, bins[0] * bins[1], -1)
        by_cell = (red[:, :, None] * cells).view(n, bins[2] * len(cells), -1)
        return torch.bmm(pairs, by_cell.transpose(1, 2)).sqrt_().view(n, -1)

    def forward(self, x: Tensor) -> Tensor:
        colours = opponent(x)
        small = colours.flatten(2) @ folded_pooling(*colours.shape[2:], self.thumbnail).to(colours).T
        return torch.cat([self.histogram(colours), small.flatten(1)], 1)
