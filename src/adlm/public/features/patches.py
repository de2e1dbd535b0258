"""Patch features: a whitened dictionary of small colour patches, rectified, pooled and square-rooted.

A patch x is centred and scaled by its own contrast, whitened (ZCA), and compared with unit vectors d of a
dictionary: relu(d.x - t) and relu(-d.x - t) are averaged over a grid of cells that overlap, and the square
root taken. After Coates, Lee and Ng (2011); here the dictionary is learnt from procedural images, never from
records.

The dictionary holds each atom with its mirror image, so the average over an image and its horizontal flip
costs one convolution only: the flip's response is the mirrored atom's response in the mirrored cell.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from adlm.public.features.pooled_patches import CONTRAST_FLOOR, pooled_patches, symmetric_halves
from adlm.public.features.tents import tent_means

RIDGE = 0.1  # of the mean variance, added before patches are whitened
ACCELERATED = 512  # images in a batch on an accelerator


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


def window_means(maps: Tensor, side: int) -> Tensor:
    """Average maps (n, c, h, w) over windows of `side` places: (n, c, h', w').

    Whole maps are added one after the other, so the order of addition is the same at every position.
    """
    for axis in (3, 2):
        count = maps.shape[axis] - side + 1
        total = maps.narrow(axis, 0, count)
        for start in range(1, side):
            total = total + maps.narrow(axis, start, count)
        maps = total / side
    return maps


class Patches(nn.Module):
    """Flip-averaged patch features of images (n, c, h, w) -> (n, 2 * atoms * cells * cells).

    Few images at a time, so that their responses stay in a core's cache until they are pooled.

    Parameters
    ----------
    filters : (atoms, c, side, side) from `learn_dictionary`.
    threshold : t in relu(+-d.x - t).
    grid : cells along each side of the pooling grid; they overlap (`tents`).
    """

    filters: Tensor
    both: Tensor
    halves: Tensor

    def __init__(self, filters: Tensor, threshold: float = 0.5, grid: int = 3) -> None:
        super().__init__()
        self.register_buffer("filters", filters)
        self.register_buffer("both", torch.cat([filters, filters.flip(3)]), persistent=False)
        self.register_buffer("halves", symmetric_halves(filters), persistent=False)
        self.threshold, self.grid = threshold, grid
        self.width = 2 * len(filters) * grid * grid

    def contrast(self, x: Tensor) -> Tensor:
        """Standard deviation of each patch, plus a floor: (n, 1, h', w')."""
        moments = torch.stack([x.mean(1), x.square().mean(1)], 1)
        mean, power = torch.split(window_means(moments, self.filters.shape[-1]), 1, 1)
        return (power - mean.square()).clamp_min(0.0).sqrt() + CONTRAST_FLOOR

    def responses(self, x: Tensor) -> Tensor:
        """d.x at each place, for each atom, then each mirrored atom: (n, h' * w', 2 * atoms)."""
        side = self.filters.shape[-1]
        # The filters sum to zero, so the patch's mean needs no subtracting.
        views = x.unfold(2, side, 1).unfold(3, side, 1).permute(0, 1, 4, 5, 2, 3)
        patches = (views / self.contrast(x)[:, :, None, None]).reshape(len(x), self.both[0].numel(), -1)
        return patches.transpose(1, 2) @ self.both.flatten(1).T

    def beyond(self, x: Tensor) -> Tensor:
        """Responses less the threshold, towards zero, as maps: (n, 2 * atoms, h', w')."""
        side = self.filters.shape[-1]
        shrunk = functional.softshrink(self.responses(x), self.threshold)
        return shrunk.transpose(1, 2).view(len(x), -1, x.shape[2] - side + 1, x.shape[3] - side + 1)

    def of(self, beyond: Tensor) -> Tensor:
        """Pool, fold and root responses beyond the threshold: (n, width)."""
        both = [tent_means(part.clamp_min(0.0), self.grid) for part in (beyond, -beyond)]
        halves = torch.stack(both, 1).reshape(-1, 2, 2, len(self.filters), self.grid, self.grid)
        return (0.5 * (halves[:, :, 0] + halves[:, :, 1].flip(4))).flatten(1).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, c, h, w) to (n, 2 * atoms * cells * cells)."""
        if x.device.type == "cpu" and not x.requires_grad:
            return self.pooled(x)
        rows = 1 if x.device.type == "cpu" else ACCELERATED
        return torch.cat([self.of(self.beyond(part)) for part in torch.split(x, rows)])

    def pooled(self, x: Tensor) -> Tensor:
        """The same as `of(beyond(x))`, image by image and in fewer passes: (n, width)."""
        side, out = self.filters.shape[-1], x.new_empty(len(x), 2, len(self.filters), self.grid**2)
        for image, mine in zip(x.contiguous(), out, strict=True):
            mine.copy_(pooled_patches(image, self.halves, side, self.threshold, self.grid))
        return out.flatten(1)
