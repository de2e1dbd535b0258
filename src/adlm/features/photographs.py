"""Features of photographs: patches, scattering and colour, on principal directions of synthetic scenes.

- `Patches`: a whitened dictionary of small colour patches, rectified, pooled and square-rooted.
- `FlipScattering`: scattering of luminance and chroma, for texture and shape.
- `Colour`: a colour histogram on a grid, and a thumbnail.

All are averaged over an image and its mirror image. They are projected on the principal directions of
*procedural* scenes with partial whitening, and scaled to unit norm: nothing was learnt from a photograph.
Images of other sizes are resized to 32 pixels a side; grey ones get three equal channels. Each block has two
forms: compiled loops, image by image, and PyTorch (`products`) for gradients, accelerators and ONNX files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from adlm.errors import UserError
from adlm.features.base import Features, PriorStatistics, narrow
from adlm.features.linear import Directions, Resized, both_sides, exact_unit_norm, map_records
from adlm.features.scattering import (
    CHANNELS,
    ORDERS,
    OrderNorms,
    Pooling,
    Scattering,
    mirrored_channels,
)
from adlm.runtime.compiled import LANES, Compiled, Floats, Lanes, every, fused, larger, load, numbers, store

WEIGHTS = Path(__file__).parent / "weights"
ROWS = 16  # images that a thread takes
CONTRAST_FLOOR = 10.0 / 255.0  # added to a patch's standard deviation: flat patches stay near zero
ATOMS = 2 * LANES  # of patches, in two registers
PLACES = 3  # next to each other, whose responses are computed together
KINDS = 4  # responses of an atom and of its mirror image, above the threshold and below minus it
NOTHING = 1e-30  # a variance: a root has no gradient at zero
# Added to a record's norm within an order of scattering, so that a flat image's rounding errors stay small.
FLOORS = (0.05, 0.1, 0.1)
AXES = ("light", "yellow", "red")  # of colours
BINS, GRID, THUMBNAIL = 5, 3, 8  # along each axis of a histogram; cells along each side; side of a thumbnail
SIZE = 32  # images of other sizes are resized to this
COLOUR = (3, SIZE, SIZE)
# Coordinates for gradient rounds: per unit of signal, and at least; fixed on held-out training images.
ROUNDS_COORDINATES, ROUNDS_FEWEST = 0.13, 200
# Averages over many patches are nearly normal; fixed on the last 8,000 training images of CIFAR-10.
TEMPERATURE = 2.6

# ---- Cells that overlap ----
#
# With hard edges, a shift of an image by a pixel or two moves much from one cell to another. On held-out
# photographs overlap was worth as much as averaging the features of five shifted images.


@cache
def tent_shares(size: int, cells: int) -> NDArray[np.float64]:
    """Weights (cells, size) of places along an axis, of sum 1 in each cell.

    They fall linearly from the centre of a cell to that of the next and are constant beyond the outermost.
    """
    place = np.clip((2 * np.arange(size) + 1) * cells - size, 0, 2 * size * (cells - 1))
    weights = np.maximum(2.0 * size - np.abs(place - 2 * size * np.arange(cells)[:, None]), 0.0)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def tent_means(maps: Tensor, grid: int) -> Tensor:
    """Average maps (..., h, w) over a grid of overlapping cells: (..., grid, grid)."""
    rows, columns = (torch.from_numpy(tent_shares(int(side), grid)).to(maps) for side in maps.shape[-2:])
    return rows @ (maps @ columns.T)


# ---- Patches ----
#
# A patch x is centred and scaled by its own contrast, whitened (ZCA), and compared with unit vectors d of a
# dictionary: relu(d.x - t) and relu(-d.x - t) are averaged over a grid of cells that overlap, and the square
# root taken. After Coates, Lee and Ng (2011); here the dictionary is learnt from procedural images, never
# from records.
#
# The dictionary holds each atom with its mirror image, so the average over an image and its horizontal flip
# costs one convolution only: the flip's response is the mirrored atom's response in the mirrored cell. A
# filter has the same product with a patch as its halves, the filter plus and minus its mirror image, have
# with the patch plus and minus its own, at half the work: d.p is the sum of both products, and that of the
# mirrored filter their difference.
#
# A compiled loop takes image by image, with atoms in the lanes of two vector registers and three places next
# to each other.


def symmetric_halves(filters: Tensor) -> Tensor:
    """Halves of filters (atoms, c, side, side), to be multiplied with sums and differences of columns.

    (2, columns * c * side, atoms): of the filter plus its mirror image, then of the difference.
    """
    side = filters.shape[-1]
    columns = (side + 1) // 2
    mirrored = filters.flip(3)
    # The middle column of an odd side is its own mirror image, and counts twice.
    share = [0.25 if 2 * column + 1 == side else 0.5 for column in range(columns)]
    both = torch.stack([filters + mirrored, filters - mirrored])[..., :columns] * filters.new_tensor(share)
    return both.permute(0, 4, 3, 2, 1).reshape(2, -1, len(filters)).contiguous()


def _contrast(image: Floats, start: int, shape: NDArray[np.int64], s: Floats, at: NDArray[np.int64]) -> None:
    """Write one over the standard deviation of each patch, plus a floor, to (h', wide) places of `s`.

    The variance is the same about any grey level, and loses fewer digits about a middle one.
    """
    channels, side, height, width = shape[0], shape[3], shape[1] - shape[3] + 1, shape[2]
    wide, sums, squares = shape[5], at[1], at[2]
    count = np.float32(channels * side * side)
    for y in range(height):
        for x in range(0, width, LANES):
            total, square = every(np.float32(0.0)), every(np.float32(0.0))
            for c in range(channels):
                for row in range(y, y + side):
                    value = load(image, start + (c * shape[1] + row) * width + x) - every(np.float32(0.5))
                    total, square = total + value, fused(value, value, square)
            store(s, sums + x, total)
            store(s, squares + x, square)
        for x in range(width - side + 1):
            mean = power = np.float32(0.0)
            for i in range(x, x + side):
                mean += s[sums + i]
                power += s[squares + i]
            variance = max(power - mean * mean / count, np.float32(0.0)) / count
            s[at[0] + y * wide + x] = np.float32(1.0) / (np.sqrt(variance) + np.float32(CONTRAST_FLOOR))


def _columns(
    image: Floats, start: int, y: int, shape: NDArray[np.int64], s: Floats, at: NDArray[np.int64]
) -> None:
    """Write sums, then differences, of mirrored columns of the patches of a row, over their contrast.

    (2, entries of half a patch, wide).
    """
    channels, height, width, side, wide = shape[0], shape[1], shape[2], shape[3], shape[5]
    half, k = (side + 1) // 2 * channels * side, 0
    for column in range((side + 1) // 2):
        for row in range(y, y + side):
            for c in range(channels):
                line = start + (c * height + row) * width
                for x in range(0, wide, LANES):
                    scale = load(s, at[0] + y * wide + x)
                    left, right = load(image, line + x + column), load(image, line + x + side - 1 - column)
                    store(s, at[3] + k * wide + x, (left + right) * scale)
                    store(s, at[3] + (half + k) * wide + x, (left - right) * scale)
                k += 1


def _split(s: Floats, place: int, even: Lanes, odd: Lanes, threshold: Lanes) -> None:
    """Write what an atom, and its mirror image, respond beyond the threshold, above it and below."""
    straight, mirrored, zero = even + odd, even - odd, every(np.float32(0.0))
    below = zero - threshold
    store(s, place, larger(straight - threshold, zero))
    store(s, place + ATOMS, larger(mirrored - threshold, zero))
    store(s, place + 2 * ATOMS, larger(below - straight, zero))
    store(s, place + 3 * ATOMS, larger(below - mirrored, zero))


def _respond(
    s: Floats, x: int, depth: int, wide: int, at: NDArray[np.int64], halves: Floats, w: int, threshold: Lanes
) -> None:
    """Write responses of ATOMS atoms at three places: (PLACES, KINDS, ATOMS) from at[4] on."""
    # Sums e and o of the even and the odd halves, in two registers each, at three places.
    zero = every(np.float32(0.0))
    e0, e1, e2, f0, f1, f2 = zero, zero, zero, zero, zero, zero
    o0, o1, o2, p0, p1, p2 = zero, zero, zero, zero, zero, zero
    even, odd = at[3] + x, at[3] + depth * wide + x
    for k in range(depth):
        i = w + k * 2 * ATOMS
        u, v = load(halves, i), load(halves, i + LANES)
        a = every(s[even + k * wide])
        e0, f0 = fused(a, u, e0), fused(a, v, f0)
        a = every(s[even + k * wide + 1])
        e1, f1 = fused(a, u, e1), fused(a, v, f1)
        a = every(s[even + k * wide + 2])
        e2, f2 = fused(a, u, e2), fused(a, v, f2)
        u, v = load(halves, i + ATOMS), load(halves, i + ATOMS + LANES)
        a = every(s[odd + k * wide])
        o0, p0 = fused(a, u, o0), fused(a, v, p0)
        a = every(s[odd + k * wide + 1])
        o1, p1 = fused(a, u, o1), fused(a, v, p1)
        a = every(s[odd + k * wide + 2])
        o2, p2 = fused(a, u, o2), fused(a, v, p2)
    _split(s, at[4], e0, o0, threshold)
    _split(s, at[4] + LANES, f0, p0, threshold)
    _split(s, at[4] + KINDS * ATOMS, e1, o1, threshold)
    _split(s, at[4] + KINDS * ATOMS + LANES, f1, p1, threshold)
    _split(s, at[4] + 2 * KINDS * ATOMS, e2, o2, threshold)
    _split(s, at[4] + 2 * KINDS * ATOMS + LANES, f2, p2, threshold)


def _pool_row(
    s: Floats, x: int, row: int, across: Floats, grid: int, wide: int, at: NDArray[np.int64]
) -> None:
    """Add responses at three places to the cells of a row, (grid, above and below, ATOMS) from `row` on.

    Those of a mirrored atom are added to the mirrored cell.
    """
    for cell in range(grid):
        own, other = cell * wide + x, (grid - 1 - cell) * wide + x
        if across[own] + across[own + 2] + across[other] + across[other + 2] == 0:
            continue  # too far away; weights of a cell are those of neighbouring places
        a, b, c = every(across[own]), every(across[own + 1]), every(across[own + 2])
        d, e, f = every(across[other]), every(across[other + 1]), every(across[other + 2])
        for lanes in range(0, 2 * ATOMS, LANES):
            place, to = at[4] + lanes // ATOMS * 2 * ATOMS + lanes % ATOMS, row + cell * 2 * ATOMS + lanes
            first = fused(a, load(s, place), load(s, to))
            first = fused(d, load(s, place + ATOMS), first)
            place += KINDS * ATOMS
            first = fused(b, load(s, place), first)
            first = fused(e, load(s, place + ATOMS), first)
            place += KINDS * ATOMS
            first = fused(c, load(s, place), first)
            store(s, to, fused(f, load(s, place + ATOMS), first))


def _patch_features(
    images: Floats,
    halves: Floats,
    tables: tuple[Floats, Floats],
    shape: NDArray[np.int64],
    s: Floats,
    out: Floats,
) -> None:
    """Write flip-averaged patch features (n, 2, atoms, grid * grid) of images (n, c, h, w), all flat.

    Parameters
    ----------
    images : with some numbers more at the end.
    halves : (atoms / ATOMS, entries of half a patch, 2, ATOMS).
    tables : (grid, h') and (grid, wide) weights of rows and of columns in the cells.
    shape : c, h, w, side of a patch, grid, places in a row rounded up, atoms; then places in `s`: of the
        contrast, two sums, columns, responses, cells of a row, and cells.
    s : to work on; its first number is the threshold.
    out : flat.
    """
    channels, height, width, side = shape[0], shape[1], shape[2], shape[3]
    grid, wide, atoms = shape[4], shape[5], shape[6]
    at, plan = numbers(shape[7:]), numbers(shape)
    pixels, work, weights = numbers(images), numbers(s), numbers(halves)
    down, across = numbers(tables[0]), numbers(tables[1])
    tall, depth = height - side + 1, (side + 1) // 2 * channels * side
    panels = (atoms + ATOMS - 1) // ATOMS
    cell_size = 2 * ATOMS
    for n in range(len(images) // (channels * height * width)):
        start, cells = n * channels * height * width, at[6]
        _contrast(pixels, start, plan, work, at)
        for i in range(cells, cells + panels * grid * grid * cell_size, LANES):
            store(work, i, every(np.float32(0.0)))
        for y in range(tall):
            _columns(pixels, start, y, plan, work, at)
            for panel in range(panels):
                for i in range(at[5], at[5] + grid * cell_size, LANES):
                    store(work, i, every(np.float32(0.0)))
                for x in range(0, width - side + 1, PLACES):
                    _respond(work, x, depth, wide, at, weights, panel * depth * cell_size, every(work[0]))
                    _pool_row(work, x, at[5], across, grid, wide, at)
                for a in range(grid):
                    weight = every(down[a * tall + y])
                    for i in range(0, grid * cell_size, LANES):
                        to = cells + (panel * grid + a) * grid * cell_size + i
                        store(work, to, fused(weight, load(work, at[5] + i), load(work, to)))
        for sign in range(2):
            for atom in range(atoms):
                for cell in range(grid * grid):
                    place = (
                        cells + (atom // ATOMS * grid * grid + cell) * cell_size + sign * ATOMS + atom % ATOMS
                    )
                    out[((n * 2 + sign) * atoms + atom) * grid * grid + cell] = np.sqrt(work[place])


patch_features = Compiled(_patch_features)


class Patches(nn.Module):
    """Flip-averaged patch features of images (n, c, h, w) -> (n, 2 * atoms * cells * cells).

    Parameters
    ----------
    filters : (atoms, c, side, side).
    threshold : t in relu(+-d.x - t).
    grid : cells along each side of the pooling grid; they overlap.
    """

    filters: Tensor
    both: Tensor

    def __init__(self, filters: Tensor, threshold: float = 0.5, grid: int = 3) -> None:
        super().__init__()
        self.register_buffer("filters", filters)
        self.register_buffer("both", torch.cat([filters, filters.flip(3)]), persistent=False)
        self.threshold, self.grid = threshold, grid
        self.width = 2 * len(filters) * grid * grid
        halves = symmetric_halves(filters).numpy()
        padded = np.zeros((*halves.shape[:2], -(-len(filters) // ATOMS) * ATOMS), np.float32)
        padded[..., : len(filters)] = halves
        panels = padded.reshape(2, halves.shape[1], -1, ATOMS).transpose(2, 1, 0, 3)
        self.panels = np.ascontiguousarray(panels).reshape(-1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, c, h, w) to (n, 2 * atoms * cells * cells)."""
        return map_records(x, (self.width,), self.compiled, self.products, ROWS)

    def compiled(self, images: Floats) -> Floats:
        """Map images, one by one."""
        n, channels, height, width = images.shape
        side, grid = self.filters.shape[-1], self.grid
        tall, places = height - side + 1, width - side + 1
        wide = -(-(places + PLACES - 1) // LANES) * LANES
        depth = (side + 1) // 2 * channels * side
        across = np.zeros((grid, wide), np.float32)
        across[:, :places] = tent_shares(places, grid) / 2
        down = tent_shares(tall, grid)
        rooms = (
            tall * wide,
            width + LANES,
            width + LANES,
            2 * depth * wide,
            PLACES * KINDS * ATOMS,
            grid * 2 * ATOMS,
            len(self.panels) // depth * grid * grid,
        )
        places_of = LANES + np.array([0, *np.cumsum(rooms)])
        s = np.zeros(places_of[-1] + LANES, np.float32)
        s[0] = self.threshold
        shape = np.array(
            [channels, height, width, side, grid, wide, len(self.filters), *places_of[:-1]], np.int64
        )
        read = np.zeros(images.size + 2 * LANES + side, np.float32)
        read[: images.size] = images.reshape(-1)
        out = np.empty((n, self.width), np.float32)
        tables = np.ascontiguousarray(down, np.float32).reshape(-1), across.reshape(-1)
        patch_features(read, self.panels, tables, shape, s, out.reshape(-1))
        return out

    def products(self, x: Tensor) -> Tensor:
        """Map all images at once, by a convolution."""
        side = self.filters.shape[-1]
        mean = functional.avg_pool2d(x.mean(1, keepdim=True), side, 1)
        power = functional.avg_pool2d(x.square().mean(1, keepdim=True), side, 1)
        contrast = (power - mean.square()).clamp_min(NOTHING).sqrt() + CONTRAST_FLOOR
        # The filters sum to zero, so the patch's mean needs no subtracting.
        beyond = functional.softshrink(functional.conv2d(x, self.both) / contrast, self.threshold)
        both = [tent_means(part.clamp_min(0.0), self.grid) for part in (beyond, -beyond)]
        halves = torch.stack(both, 1).reshape(-1, 2, 2, len(self.filters), self.grid, self.grid)
        return (0.5 * (halves[:, :, 0] + halves[:, :, 1].flip(4))).flatten(1).sqrt()


# ---- Scattering over the flip ----


class FlipScattering(nn.Module):
    """Scattering averaged over overlapping cells and the flip, each order square-rooted and normed.

    The mirror image is not transformed: its |x * psi_theta| is the mirrored |x * psi_-theta| of the image. A
    second set of cells averages that, with moduli read where the mirror image is sampled. Only the left half
    of the cells is kept: the right half mirrors it. (n, SIZE, SIZE) to (n, width).
    """

    def __init__(self) -> None:
        super().__init__()
        self.scattering = Scattering(SIZE)
        outputs = self.scattering.output[0]
        self.cells = outputs // 2, (outputs // 2 + 1) // 2
        self.width = CHANNELS * math.prod(self.cells)
        self.mirrored = mirrored_channels()
        orders = ORDERS.repeat_interleave(math.prod(self.cells))
        self.norms = OrderNorms(orders, 0.0, FLOORS, 0.0, plain=1)
        rows, columns = [], []
        for j, weights in enumerate(self.scattering.weights()):
            cells = tent_shares(outputs, self.cells[0]) @ weights
            own = np.zeros((self.cells[1], self.scattering.padded))
            own[:, :: 2**j] = cells[: self.cells[1]] / 2
            rows.append(cells)
            columns.append(np.concatenate([own, own[:, ::-1]]))
        self.plan = self.scattering.plan_for(Pooling(rows, columns, denser=1))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, SIZE, SIZE) to (n, width)."""
        return map_records(x, (self.width,), self.compiled, self.products, ROWS)

    def compiled(self, images: Floats) -> Floats:
        """Map images, one by one."""
        cells, left = self.plan(images), self.cells[1]
        both = cells[..., :left] + cells[..., left:].take(self.mirrored, 1)
        return self.norms.compiled(both.reshape(len(images), -1))

    def products(self, x: Tensor) -> Tensor:
        """Map all images at once, by PyTorch."""
        own, other = (tent_means(self.scattering.products(view), self.cells[0]) for view in (x, x.flip(2)))
        rows: Tensor = self.norms((0.5 * (own + other)[..., : self.cells[1]]).flatten(1))
        return rows


# ---- Colour ----


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


def thumbnails(maps: Floats) -> Floats:
    """Averages of maps (n, c, h, w) over the cells of a thumbnail and over the flip: (n, c, side, left)."""
    places = (torch.eye(side)[None, None] for side in maps.shape[2:])
    rows, columns = (functional.adaptive_avg_pool2d(p, (THUMBNAIL, int(p.shape[3])))[0, 0] for p in places)
    return both_sides(maps, rows.numpy(), flip_average(columns.T[None, None])[0, 0].T.numpy())


class Colour(nn.Module):
    """Soft colour histogram on a grid, and a thumbnail; both averaged over the horizontal flip."""

    channel: Tensor
    centres: Tensor
    steepness: Tensor
    lowest: Tensor
    highest: Tensor

    def __init__(self) -> None:
        super().__init__()
        light = (torch.arange(BINS) + 0.5) / BINS
        # Chroma of natural images lies well inside its range, so its bins sit closer around grey.
        chroma = torch.tensor([0.32 * i / (BINS - 1) - 0.16 for i in range(BINS)])
        axes = torch.stack([light, chroma, chroma])
        for name, axis in zip(AXES, axes, strict=True):
            self.register_buffer(name, axis.clone())
        channel = torch.arange(3).repeat_interleave(BINS)
        self.register_buffer("channel", channel, persistent=False)
        self.register_buffer("centres", axes.flatten()[:, None], persistent=False)
        steepness = (1 / (axes[:, 1] - axes[:, 0]))[channel, None]
        self.register_buffer("steepness", steepness, persistent=False)
        self.register_buffer("lowest", axes[:, :1].clone(), persistent=False)
        self.register_buffer("highest", axes[:, -1:].clone(), persistent=False)
        self.widths = BINS**3 * GRID * ((GRID + 1) // 2), 3 * THUMBNAIL * ((THUMBNAIL + 1) // 2)
        self.width = sum(self.widths)

    def compiled(self, images: Floats) -> Floats:
        """Map RGB images, one by one."""
        return self.of_colours(opponent_planes(images))

    def of_colours(self, colours: Floats) -> Floats:
        """Map opponent colours (n, 3, h, w), one by one: (n, width)."""
        n, _, height, width = colours.shape
        axes = [self.get_buffer(name).numpy() for name in AXES]
        ends = np.array([[axis[0], axis[-1], 1 / (axis[1] - axis[0])] for axis in axes], np.float32)
        weights = np.zeros((height * width, LANES), np.float32)  # lanes are cells, at most eight
        cells = folded_pooling(height, width, GRID).numpy()
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
        thumbnail = thumbnails(colours)
        return np.concatenate([histogram, thumbnail.reshape(n, -1)], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map RGB images (n, 3, h, w) to (n, width)."""
        return map_records(x, (self.width,), self.compiled, self.products, ROWS)

    def histogram(self, colours: Tensor) -> Tensor:
        """Share of each soft colour bin in each cell, square-rooted, of opponent colours (n, 3, h, w)."""
        # Triangular bins, all three channels at once: the memberships of a value sum to one.
        values = colours.flatten(2).clamp(self.lowest, self.highest).index_select(1, self.channel)
        members = (1.0 - (values - self.centres).abs() * self.steepness).clamp_min(0.0)
        light, yellow, red = torch.split(members, BINS, 1)
        # The share of a joint bin in a cell is a product of matrices: pairs of bins times bins by cell.
        height, width = (int(side) for side in colours.shape[2:])  # constants of a traced graph
        cells = folded_pooling(height, width, GRID).to(colours)
        pairs, by_cell = (
            (light[:, :, None] * yellow[:, None]).flatten(1, 2),
            (red[:, :, None] * cells).flatten(1, 2),
        )
        return torch.bmm(pairs, by_cell.transpose(1, 2)).sqrt().flatten(1)

    def products(self, x: Tensor) -> Tensor:
        """Map all images at once, by PyTorch."""
        colours = opponent(x)
        height, width = (int(side) for side in colours.shape[2:])
        small = colours.flatten(2) @ folded_pooling(height, width, THUMBNAIL).to(colours).T
        return torch.cat([self.histogram(colours), small.flatten(1)], 1)


# ---- Raw blocks, projected ----


class Blocks(nn.Module):
    """Raw blocks of `NaturalImages` side by side: (n, 3, 32, 32) -> (n, sum of `widths`).

    Fine patches, patches of the half-size image, scattering of each opponent channel, and colour.

    Parameters
    ----------
    fine, coarse : (atoms, 3, side, side) patch filters for the image and for the half-size image.
    """

    def __init__(self, fine: Tensor, coarse: Tensor) -> None:
        super().__init__()
        self.fine, self.coarse, self.colour = Patches(fine), Patches(coarse), Colour()
        self.scattering = FlipScattering()
        self.widths = self.fine.width, self.coarse.width, 3 * self.scattering.width, *self.colour.widths

    def forward(self, x: Tensor) -> Tensor:
        """Join the blocks."""
        return map_records(x, (sum(self.widths),), self.compiled, self.products, ROWS)

    def compiled(self, images: Floats) -> Floats:
        """Map images, one by one."""
        colours = opponent_planes(images)
        scattered = self.scattering.compiled(colours.reshape(-1, SIZE, SIZE)).reshape(len(images), -1)
        fine, coarse = self.fine.compiled(images), self.coarse.compiled(halved(images))
        return np.concatenate([fine, coarse, scattered, self.colour.of_colours(colours)], 1)

    def products(self, x: Tensor) -> Tensor:
        """Map all images at once, by PyTorch."""
        scattered = self.scattering.products(opponent(x).flatten(0, 1)).reshape(-1, self.widths[2])
        fine, coarse = self.fine.products(x), self.coarse.products(functional.avg_pool2d(x, 2))
        return torch.cat([fine, coarse, scattered, self.colour.products(x)], 1)


def expand(weights: Mapping[str, Tensor]) -> Tensor:
    """The projection (d, k) of a weights file: 8-bit integers with one scale a row and one a column."""
    rows, columns = weights["projection.rows"], weights["projection.columns"]
    return weights["projection"].float() * rows[:, None] * columns


def restore_prior(weights: Mapping[str, Tensor]) -> PriorStatistics:
    """The prior of a weights file; the covariance is stored as half a correlation matrix."""
    spread = weights["prior.spread"]
    rows, columns = torch.triu_indices(len(spread), len(spread), 1)
    correlation = torch.zeros(len(spread), len(spread))
    correlation[rows, columns] = weights["prior.correlation"].float()
    correlation = correlation + correlation.T + torch.eye(len(spread))
    return PriorStatistics(
        typical=weights["prior.typical"],
        weight=weights["prior.weight"],
        within=correlation * spread * spread[:, None],
        mean=weights["prior.mean"],
        temperature=TEMPERATURE,
    )


class NaturalImages(Features):
    """Public features of grey or colour photographs in [0, 1], of any size and aspect.

    Projections of raw blocks on the principal directions of procedural scenes.

    Parameters
    ----------
    shape : of one record: (H, W), (1, H, W) or (3, H, W).
    width : coordinates to keep, the leading ones of synthetic scenes; all of them if None.
    """

    projection: Tensor
    mean: Tensor
    offset: Tensor
    scale: Tensor
    columns: Tensor
    # Photographs are far more varied than procedural scenes; fixed on the same images as TEMPERATURE.
    class_separation = 0.42

    def __init__(self, shape: tuple[int, ...] = COLOUR, width: int | None = None) -> None:
        super().__init__()
        self.shape = tuple(int(side) for side in shape)
        self.channels, sides = image_shape(self.shape)
        self.frame = None if sides == (SIZE, SIZE) else Resized(sides, SIZE, "bilinear")
        stored = load_file(WEIGHTS / "natural-32.safetensors")
        self.blocks = Blocks(stored["fine"].float(), stored["coarse"].float())
        projection = expand(stored)
        most = projection.shape[1]
        self.width = most if width is None else width
        if not 1 <= self.width <= most:
            raise UserError(f"features of photographs have 1 to {most} coordinates (got width {width})")
        self.register_buffer("projection", projection[:, : self.width].contiguous())
        self.register_buffer("mean", stored["mean"].float())
        self.register_buffer("scale", stored["projection.rows"].float(), persistent=False)
        self.register_buffer("columns", stored["projection.columns"][: self.width].double(), persistent=False)
        self.directions = Directions(stored["projection"][:, : self.width])
        # Not in the fingerprint: a product's last bits depend on the machine, its factors do not.
        self.register_buffer("offset", self.mean.double() @ self.projection.double(), persistent=False)
        self.prior = narrow(restore_prior(stored), self.width)

    def rounds_width(self, signal: float) -> int:
        """Return how many leading coordinates suit gradient rounds of that signal."""
        return min(self.width, max(ROUNDS_FEWEST, math.floor(ROUNDS_COORDINATES * signal)))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width), rows of unit L2 norm."""
        if tuple(x.shape[1:]) != self.shape:
            raise UserError(
                f"the feature map was built for records of shape {self.shape}, channels first "
                f"(got {tuple(x.shape[1:])})"
            )
        images = x.reshape(-1, self.channels, *self.shape[-2:])
        return exact_unit_norm(self.directions.of(images, self._compiled, self._products) * self.columns)

    def _compiled(self, images: Floats) -> Floats:
        """Centred and scaled blocks of images (n, channels, H, W), one by one."""
        framed = images if self.frame is None else self.frame.compiled(images)
        rows = self.blocks.compiled(framed if self.channels == 3 else framed.repeat(3, 1))
        rows -= self.mean.cpu().numpy()
        rows *= self.scale.cpu().numpy()
        return rows

    def _products(self, images: Tensor) -> Tensor:
        """Centred and scaled blocks of all images at once."""
        framed = images if self.frame is None else self.frame(images)
        return (self.blocks.products(framed.expand(-1, 3, -1, -1)) - self.mean) * self.scale

    def synthetic(self, classes: int, per_class: int, seed: int) -> Tensor:
        """Draw classes of scenes and map them: (classes, per_class, width)."""
        from adlm.features.priors import scenes

        images, _ = scenes.draw(classes, per_class, torch.Generator().manual_seed(seed))
        images = images if self.channels == 3 else images.mean(1, keepdim=True)
        plain = self if self.frame is None else NaturalImages((self.channels, SIZE, SIZE), self.width)
        with torch.inference_mode():
            parts = [plain(part.reshape(-1, *plain.shape)) for part in torch.split(images, 100)]
        return torch.cat(parts).reshape(classes, per_class, -1)

    def spec(self) -> dict[str, Any]:
        """Describe the map, with its shape if it is not that of colour images of 32 pixels a side."""
        shape = {} if self.shape == COLOUR else {"shape": list(self.shape)}
        return {"name": "natural", "width": self.width, "weights": "natural-32"} | shape


def image_shape(shape: tuple[int, ...]) -> tuple[int, tuple[int, int]]:
    """Channels, and height and width, of records of an image's shape."""
    if len(shape) == 2:
        return 1, (shape[0], shape[1])
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[0], (shape[1], shape[2])
    raise UserError(f"images have the shape (H, W), (1, H, W) or (3, H, W) (got {shape})")
