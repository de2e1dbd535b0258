"""Patch features of one image by products of matrices: the same as `Patches`, in fewer passes.

An image of 32 pixels is so small that the overhead of an operation is about its cost. So averages over
windows, sums of mirrored columns and pooling are products with fixed matrices. Arrays as large as the
responses of all atoms are computed and pooled in bands of rows, which stay in a core's cache.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from adlm.public.features.tents import tents

CONTRAST_FLOOR = 10.0 / 255.0  # added to a patch's standard deviation: flat patches stay near zero


@cache
@torch.inference_mode(mode=False)  # the cached tensor may later need gradients
def windows(size: int, side: int, repeats: int = 1) -> Tensor:
    """Matrix (size - side + 1, repeats * size) that adds `side` neighbours, in each repeat of the axis."""
    start, place = torch.arange(size - side + 1)[:, None], torch.arange(size)
    return ((start <= place) & (place < start + side)).float().repeat(1, repeats)


@cache
@torch.inference_mode(mode=False)
def mirrored_columns(width: int, side: int) -> Tensor:
    """Matrices that add each column of a patch and the one that mirrors it, then subtract them.

    (2 * columns, width, width - side + 1), for the left columns of patches at each place.
    """
    columns, places = (side + 1) // 2, width - side + 1
    shifts = torch.stack([torch.eye(width)[:, i : i + places] for i in range(side)])
    left, right = shifts[:columns], shifts.flip(0)[:columns]
    return torch.cat([left + right, left - right])


def symmetric_halves(filters: Tensor) -> Tensor:
    """Halves of filters (atoms, c, side, side), to be multiplied with sums and differences of columns.

    (2, columns * c * side, atoms): of the filter plus its mirror image, then of the difference. A filter has
    the same product with a patch as its halves with the patch plus and minus its mirror image, at half the
    work: d.p is the sum of both products, and that of the mirrored filter their difference.
    """
    side = filters.shape[-1]
    columns = (side + 1) // 2
    mirrored = filters.flip(3)
    # The middle column of an odd side is its own mirror image, and counts twice.
    share = [0.25 if 2 * column + 1 == side else 0.5 for column in range(columns)]
    both = torch.stack([filters + mirrored, filters - mirrored])[..., :columns] * filters.new_tensor(share)
    return both.permute(0, 4, 2, 3, 1).reshape(2, -1, len(filters)).contiguous()


@cache
@torch.inference_mode(mode=False)
def mirrored_tents(height: int, width: int, grid: int, bands: int) -> tuple[Tensor, Tensor]:
    """Weights of places for atoms, then for mirrored atoms, whose cells are mirrored; and their sums.

    (bands, cells, 2 * places in a band), for bands of rows; (cells, 1).

    Parameters
    ----------
    height, width : places down and across.
    grid : cells along each side.
    bands : of rows, of equal height.
    """
    down, across = (torch.from_numpy(tents(size, grid)).float() for size in (height, width))
    direct = (down[:, None, :, None] * across[:, None, :]).reshape(grid * grid, -1)
    mirrored = direct.view(grid, grid, -1).flip(1).view(direct.shape)
    both = torch.stack([direct, mirrored], 1).view(len(direct), 2, bands, -1)
    return both.permute(2, 0, 1, 3).flatten(2).contiguous(), 2 * direct.sum(1, keepdim=True)


def inverse_contrast(image: Tensor, side: int) -> Tensor:
    """One over the standard deviation of each patch of an image (c, h, w), plus a floor: (h' * w',)."""
    channels, height, width = image.shape
    powers = image.new_empty(2, channels * height, width)
    # The variance is the same about any grey level, and loses fewer digits about a middle one.
    torch.sub(image.view(-1, width), 0.5, out=powers[0])
    torch.mul(powers[0], powers[0], out=powers[1])
    added = torch.bmm(windows(height, side, channels).expand(2, -1, -1), powers)
    total, power = torch.mm(added.view(-1, width), windows(width, side).T).chunk(2)
    count = channels * side * side
    variance = torch.addcmul(power, total, total, value=-1 / count).clamp_min_(0.0).mul_(1 / count)
    return variance.sqrt_().add_(CONTRAST_FLOOR).reciprocal_().view(-1)


def pooled_patches(image: Tensor, halves: Tensor, side: int, threshold: float, grid: int) -> Tensor:
    """Flip-averaged patch features of an image (c, h, w): (2, atoms, grid * grid).

    relu(d - t) is max(d, t) - t, so what is pooled is max(d, t) and -min(d, -t), with weights one.

    Parameters
    ----------
    image : contiguous.
    halves : of the filters, from `symmetric_halves`.
    side : of a patch, in pixels.
    threshold : t in relu(+-d.x - t).
    grid : cells along each side; they overlap (`tents`).
    """
    channels, rows, pixels = image.shape
    height, width, atoms = rows - side + 1, pixels - side + 1, halves.shape[-1]
    bands = grid if height % grid == 0 else 1
    places = height * width // bands
    contrast = inverse_contrast(image, side)
    pairs = torch.matmul(image.view(channels * rows, pixels), mirrored_columns(pixels, side))
    # Rows lie one after the other, so a window of them is one stretch of memory.
    patches = pairs.view(-1, rows * width).unfold(1, height * width, width)
    weights, total = mirrored_tents(height, width, grid, bands)
    highs, lows = sums = image.new_zeros(2, grid * grid, atoms)
    products, d = image.new_empty(2, 2, places, atoms)  # each used twice: they stay in a core's cache
    (even, odd), (straight, mirrored) = products, d
    above, below = products.view(-1, atoms), d.view(-1, atoms)
    parts, scales = torch.split(patches, places, 2), torch.split(contrast, places)
    for part, scale, pool in zip(parts, scales, weights, strict=True):
        torch.bmm((part * scale).view(2, -1, places).transpose(1, 2), halves, out=products)
        torch.add(even, odd, out=straight)
        torch.sub(even, odd, out=mirrored)
        highs.addmm_(pool, torch.clamp_min(below, threshold, out=above))
        lows.addmm_(pool, below.clamp_max_(-threshold))
    means = sums.div_(total).abs_().sub_(threshold).clamp_min_(0.0).sqrt_()
    return means.transpose(1, 2)
