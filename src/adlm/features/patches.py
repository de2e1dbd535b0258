"""Patch features: a whitened dictionary of small colour patches, rectified, pooled and square-rooted.

A patch x is centred and scaled by its own contrast, whitened (ZCA), and compared with unit vectors d of a
dictionary: relu(d.x - t) and relu(-d.x - t) are averaged over a grid of cells that overlap, and the square
root taken. After Coates, Lee and Ng (2011); here the dictionary is learnt from procedural images, never from
records.

The dictionary holds each atom with its mirror image, so the average over an image and its horizontal flip
costs one convolution only: the flip's response is the mirrored atom's response in the mirrored cell. A filter
has the same product with a patch as its halves, the filter plus and minus its mirror image, have with the
patch plus and minus its own, at half the work: d.p is the sum of both products, and that of the mirrored
filter their difference.

A compiled loop takes image by image, with 16 atoms in the lanes of two vector registers and three places next
to each other. For gradients, accelerators and ONNX files there is a convolution.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from adlm.features.tents import tent_means, tent_shares
from adlm.features.threads import map_records
from adlm.runtime.compiled import LANES, Compiled, Floats, Lanes, every, fused, larger, load, numbers, store

RIDGE = 0.1  # of the mean variance, added before patches are whitened
CONTRAST_FLOOR = 10.0 / 255.0  # added to a patch's standard deviation: flat patches stay near zero
ROWS = 16  # images that a thread takes
ATOMS = 2 * LANES  # in two registers
PLACES = 3  # next to each other, whose responses are computed together
NOTHING = 1e-30  # a variance: a root has no gradient at zero
KINDS = 4  # responses of an atom and of its mirror image, above the threshold and below minus it


def sample_patches(images: Tensor, side: int, count: int, generator: torch.Generator) -> Tensor:
    """Cut patches at random places of random images (n, c, h, w): (count, c * side * side).

    Parameters
    ----------
    images : (n, c, h, w).
    side : of a patch, in pixels.
    count : of patches.
    generator : of the draw.
    """
    n, channels, height, width = images.shape
    which = torch.randint(n, (count,), generator=generator)
    top = torch.randint(height - side + 1, (count,), generator=generator)
    left = torch.randint(width - side + 1, (count,), generator=generator)
    reach = torch.arange(side)
    rows = (top[:, None] + reach)[:, None, :, None]
    columns = (left[:, None] + reach)[:, None, None, :]
    patches = images[which[:, None, None, None], torch.arange(channels)[None, :, None, None], rows, columns]
    return patches.reshape(count, -1)


def normalise_contrast(patches: Tensor) -> Tensor:
    """Centre each patch (count, p) and divide it by its standard deviation plus a floor."""
    centred = patches - patches.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True).sqrt() + CONTRAST_FLOOR)


def mirror(patches: Tensor, side: int) -> Tensor:
    """Flip flattened patches (count, c * side * side) left to right."""
    return patches.reshape(len(patches), -1, side, side).flip(3).reshape(len(patches), -1)


def zca(patches: Tensor, ridge: float) -> Tensor:
    """Symmetric whitening matrix (p, p) of centred patches, with a ridge relative to the mean variance."""
    covariance = patches.T @ patches / len(patches)
    values, vectors = torch.linalg.eigh(covariance.double())
    floor = ridge * float(values.mean())
    whiten: Tensor = (vectors / (values.clamp_min(0.0) + floor).sqrt()) @ vectors.T
    return whiten.float()


def spherical_kmeans(
    points: Tensor,
    atoms: int,
    side: int,
    generator: torch.Generator,
    rounds: int = 12,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Cluster points (count, p) by direction, each point free to be mirrored: unit atoms (atoms, p).

    A point joins the atom with which it, or its mirror image, has the largest absolute product; the atom
    becomes the signed sum of its points (Coates and Ng, 2012), so no atom mirrors or negates another.

    Parameters
    ----------
    points : (count, p) patches.
    atoms : how many.
    side : of a patch, in pixels.
    generator : of the first atoms.
    rounds : of clustering.
    progress : called with the rounds done and all rounds.
    """
    dictionary = functional.normalize(points[torch.randperm(len(points), generator=generator)[:atoms]], dim=1)
    flipped = mirror(points, side)
    for index in range(rounds):
        both = torch.stack([points @ dictionary.T, flipped @ dictionary.T])
        strength, view = both.abs().max(0)
        best = strength.argmax(1)
        row = torch.arange(len(points))
        turned = view[row, best] > 0
        weight = both[turned.long(), row, best]
        towards = torch.where(turned[:, None], flipped, points) * weight[:, None]
        dictionary = functional.normalize(dictionary.clone().index_add_(0, best, towards), dim=1)
        if progress is not None:
            progress(index + 1, rounds)
    return dictionary


def learn_dictionary(
    images: Tensor,
    side: int,
    atoms: int,
    generator: torch.Generator,
    samples: int = 40_000,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Learn filters (atoms, c, side, side) from images (n, c, h, w); whitening is folded into them.

    Parameters
    ----------
    images : (n, c, h, w).
    side, atoms : of a filter in pixels, and how many.
    generator : of the draw.
    samples : patches.
    progress : called with the rounds done and all rounds.
    """
    patches = normalise_contrast(sample_patches(images, side, samples, generator))
    # Whitening that commutes with the mirror, so that a mirrored filter is the filter of the mirrored atom.
    whiten = zca(torch.cat([patches, mirror(patches, side)]), RIDGE)
    dictionary = spherical_kmeans(patches @ whiten, atoms, side, generator, progress=progress)
    filters = dictionary @ whiten
    filters = filters - filters.mean(1, keepdim=True)
    return filters.reshape(atoms, images.shape[1], side, side)


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
    """Write responses of 16 atoms at three places: (PLACES, KINDS, ATOMS) from at[4] on."""
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
    images : with eight numbers more at the end.
    halves : (atoms / 16, entries of half a patch, 2, 16).
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
    filters : (atoms, c, side, side) from `learn_dictionary`.
    threshold : t in relu(+-d.x - t).
    grid : cells along each side of the pooling grid; they overlap (`tents`).
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
