"""Colour features: a colour histogram on a grid, and a thumbnail.

Each has two forms: compiled loops, image by image, and PyTorch for gradients, accelerators and ONNX files.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from adlm.features.resizing import both_sides
from adlm.features.threads import map_records
from adlm.runtime.compiled import LANES, Compiled, Floats, every, fused, load, numbers, store

NAMES = ("light", "yellow", "red")
ROWS = 32  # images that a thread takes


def opponent(x: Tensor) -> Tensor:
    """Luminance, blue against yellow and red against green of RGB images (n, 3, h, w) in [0, 1].

    Both chroma channels lie in [-0.5, 0.5] about grey.
    """
    red, green, blue = x[:, :1], x[:, 1:2], x[:, 2:]
    return torch.cat([(red + green + blue) / 3, (red + green) / 4 - blue / 2, (red - green) / 2], 1)


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


def _opponents(images: Floats, pixels: int, out: Floats) -> None:
    """Write luminance and two chroma channels of RGB images (n, 3, pixels), all flat."""
    third, quarter, half = np.float32(1 / 3), np.float32(0.25), np.float32(0.5)
    for start in range(0, len(images), 3 * pixels):
        for i in range(start, start + pixels):
            red, green, blue = images[i], images[i + pixels], images[i + 2 * pixels]
            out[i] = (red + green + blue) * third
            out[i + pixels] = (red + green) * quarter - blue * half
            out[i + 2 * pixels] = (red - green) * half


def _halve(images: Floats, side: int, out: Floats) -> None:
    """Write averages of two by two pixels of images (n, side, side), all flat; the side is even."""
    quarter, half = np.float32(0.25), side // 2
    for row in range(len(images) // (2 * side)):
        for x in range(half):
            a = 2 * row * side + 2 * x
            b = a + side
            out[row * half + x] = ((images[a] + images[a + 1]) + (images[b] + images[b + 1])) * quarter


def _histograms(
    colours: Floats,
    pixels: int,
    axes: Floats,
    bins: NDArray[np.int64],
    weights: Floats,
    out: Floats,
    s: Floats,
) -> None:
    """Write shares of the soft bins (n, bins, cells), square-rooted, of opponent colours (n, 3, pixels).

    Parameters
    ----------
    colours, out : flat.
    pixels : of an image.
    axes : first and last centre of each axis, and bins per unit.
    bins : along each axis, then the number of cells.
    weights : (pixels, lanes) of each pixel in each cell.
    s : (bins, lanes) to work on.
    """
    joint, cells, one = bins[0] * bins[1] * bins[2], bins[3], np.float32(1.0)
    shares, by_cell = numbers(s), numbers(weights)
    for n in range(len(colours) // (3 * pixels)):
        for place in range(0, joint * LANES, LANES):
            store(shares, place, every(np.float32(0.0)))
        for i in range(pixels):
            weight, base, stride = load(by_cell, i * LANES), 0, joint
            f0 = f1 = f2 = np.float32(0.0)
            d0 = d1 = d2 = 0
            for axis in range(3):
                value = min(max(colours[(3 * n + axis) * pixels + i], axes[3 * axis]), axes[3 * axis + 1])
                position = (value - axes[3 * axis]) * axes[3 * axis + 2]
                lower = min(int(position), bins[axis] - 2)
                stride //= bins[axis]
                base += lower * stride
                f0, f1, f2 = f1, f2, min(position - np.float32(lower), one)
                d0, d1, d2 = d1, d2, stride
            for corner in range(8):
                a, b, c = corner >> 2, (corner >> 1) & 1, corner & 1
                share = (f0 if a else one - f0) * (f1 if b else one - f1) * (f2 if c else one - f2)
                place = (base + a * d0 + b * d1 + c * d2) * LANES
                store(shares, place, fused(every(share), weight, load(shares, place)))
        for place in range(joint):
            for cell in range(cells):
                out[(n * joint + place) * cells + cell] = np.sqrt(shares[place * LANES + cell])


opponents = Compiled(_opponents)
halve = Compiled(_halve)
histograms = Compiled(_histograms)


def opponent_planes(images: Floats) -> Floats:
    """The same as `opponent`, image by image: (n, 3, h, w)."""
    out = np.empty_like(images)
    opponents(images.reshape(-1), images.shape[2] * images.shape[3], out.reshape(-1))
    return out


def halved(images: Floats) -> Floats:
    """Averages of two by two pixels of square images (..., h, h)."""
    side = images.shape[-1]
    out = np.empty((*images.shape[:-2], side // 2, side // 2), np.float32)
    halve(images.reshape(-1), side, out.reshape(-1))
    return out


def thumbnails(maps: Floats, grid: int) -> Floats:
    """Averages of maps (n, c, h, w) over the cells of a grid and over the flip: (n, c, grid, left)."""
    places = (torch.eye(side)[None, None] for side in maps.shape[2:])
    rows, columns = (functional.adaptive_avg_pool2d(p, (grid, int(p.shape[3])))[0, 0] for p in places)
    return both_sides(maps, rows.numpy(), flip_average(columns.T[None, None])[0, 0].T.numpy())


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

    def compiled(self, images: Floats) -> Floats:
        """Map RGB images, one by one."""
        return self.of_colours(opponent_planes(images))

    def of_colours(self, colours: Floats) -> Floats:
        """Map opponent colours (n, 3, h, w), one by one: (n, width)."""
        n, _, height, width = colours.shape
        axes = [self.get_buffer(name).numpy() for name in NAMES]
        ends = np.array([[axis[0], axis[-1], 1 / (axis[1] - axis[0])] for axis in axes], np.float32)
        weights = np.zeros((height * width, LANES), np.float32)  # lanes are cells
        cells = folded_pooling(height, width, self.grid).numpy()
        weights[:, : len(cells)] = cells.T
        bins = np.array([*(len(axis) for axis in axes), len(cells)])
        histogram = np.empty((n, self.widths[0]), np.float32)
        s = np.empty(int(bins[:3].prod()) * LANES, np.float32)
        histograms(
            colours.reshape(-1),
            height * width,
            ends.reshape(-1),
            bins,
            weights.reshape(-1),
            histogram.reshape(-1),
            s,
        )
        thumbnail = thumbnails(colours, self.thumbnail)
        return np.concatenate([histogram, thumbnail.reshape(n, -1)], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map RGB images (n, 3, h, w) to (n, width)."""
        return map_records(x, (self.width,), self.compiled, self.products, ROWS)

    def histogram(self, colours: Tensor) -> Tensor:
        """Share of each soft colour bin in each cell, square-rooted, of opponent colours (n, 3, h, w)."""
        # Triangular bins, all three channels at once: the memberships of a value sum to one.
        bins = [len(self.get_buffer(name)) for name in NAMES]
        values = colours.flatten(2).clamp(self.lowest, self.highest).index_select(1, self.channel)
        members = (1.0 - (values - self.centres).abs() * self.steepness).clamp_min(0.0)
        light, yellow, red = torch.split(members, bins, 1)
        # The share of a joint bin in a cell is a product of matrices: pairs of bins times bins by cell.
        height, width = (int(side) for side in colours.shape[2:])  # constants of a traced graph
        cells = folded_pooling(height, width, self.grid).to(colours)
        pairs, by_cell = (
            (light[:, :, None] * yellow[:, None]).flatten(1, 2),
            (red[:, :, None] * cells).flatten(1, 2),
        )
        return torch.bmm(pairs, by_cell.transpose(1, 2)).sqrt().flatten(1)

    def products(self, x: Tensor) -> Tensor:
        """Map all images at once, by PyTorch."""
        colours = opponent(x)
        height, width = (int(side) for side in colours.shape[2:])
        small = colours.flatten(2) @ folded_pooling(height, width, self.thumbnail).to(colours).T
        return torch.cat([self.histogram(colours), small.flatten(1)], 1)
