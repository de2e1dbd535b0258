"""Reference implementation of the features of photographs, to compare the fast one with.

A convolution, two rectified copies of it and pooling; a joint histogram of every pixel before it is
pooled; scattering of the image and then of its mirror image. The features are the same up to rounding.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from adlm.public.features.base import unit_norm
from adlm.public.features.colour import NAMES, Colour, flip_average, opponent
from adlm.public.features.colour_scattering import CHANNELS, ColourScattering
from adlm.public.features.natural import NaturalImages
from adlm.public.features.patches import Patches
from adlm.public.features.pooled_patches import CONTRAST_FLOOR
from adlm.public.features.scattering import Scattering
from adlm.public.features.tents import tent_means

ROWS = 16  # images whose patches are extracted together


def plain_features(features: NaturalImages, x: Tensor) -> Tensor:
    """Map (n, 3, 32, 32) to (n, width), as `features` does."""
    blocks = features.blocks
    assert blocks.scattering is not None  # the map that is shipped
    parts = [
        plain_patches(blocks.fine, x),
        plain_patches(blocks.coarse, functional.avg_pool2d(x, 2)),
        plain_scattering(blocks.scattering, x),
        plain_colour(blocks.colour, x),
    ]
    return unit_norm(torch.cat(parts, 1) @ features.projection - features.offset.float())


def plain_patches(patches: Patches, x: Tensor) -> Tensor:
    """Patch features by a convolution."""
    grid, features = patches.grid, []
    for part in torch.split(x, ROWS):
        d = functional.conv2d(part, patches.both) / plain_contrast(part, patches.filters.shape[-1])
        up = tent_means((d - patches.threshold).relu_(), grid)
        down = tent_means(d.neg_().sub_(patches.threshold).relu_(), grid)
        pooled = torch.stack([up, down], 1).reshape(len(part), 2, 2, -1, grid, grid)
        folded = 0.5 * (pooled[:, :, 0] + pooled[:, :, 1].flip(4))
        features.append(folded.reshape(len(part), -1).sqrt())
    return torch.cat(features)


def plain_contrast(x: Tensor, side: int) -> Tensor:
    """Standard deviation of each patch, plus a floor: (n, 1, h', w')."""
    mean = functional.avg_pool2d(x.mean(1, keepdim=True), side, 1)
    power = functional.avg_pool2d(x.square().mean(1, keepdim=True), side, 1)
    return (power - mean.square()).clamp_min(0.0).sqrt() + CONTRAST_FLOOR


def plain_scattering(scattering: ColourScattering, x: Tensor) -> Tensor:
    """Scattering of the images, then of their mirror images, 32 signals at a time."""
    of = scattering.scattering
    wide, colours = _scattering(of.shape, of.J, of.L), opponent(x)
    once, again = (tent_means(wide(c), wide.output[0] // 2) for c in (colours, colours.flip(3)))
    both = 0.5 * (once + again)[..., : scattering.left]
    return scattering.normed(both.reshape(len(x), CHANNELS, of.channels, -1))


@cache
def _scattering(shape: tuple[int, int], J: int, L: int) -> Scattering:
    return Scattering(shape, J, L)


def plain_colour(colour: Colour, x: Tensor) -> Tensor:
    """Joint histogram of every pixel, then pooled; and the thumbnail."""
    colours, parts = opponent(x), []
    for channel, name in enumerate(NAMES):
        centres = colour.get_buffer(name)
        value = colours[:, channel].clamp(float(centres[0]), float(centres[-1]))
        width = centres[1] - centres[0]
        parts.append((1.0 - (value[:, None] - centres[:, None, None]).abs() / width).clamp_min(0.0))
    joint = torch.einsum("nahw,nbhw,nchw->nabchw", *parts).flatten(1, 3)
    pooled = flip_average(functional.adaptive_avg_pool2d(joint, colour.grid)).flatten(1).sqrt()
    small = flip_average(functional.adaptive_avg_pool2d(colours, colour.thumbnail)).flatten(1)
    return torch.cat([pooled, small], 1)
