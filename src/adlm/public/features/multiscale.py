"""Features of photographs of 32, 64 or 96 pixels a side, grey or colour: scattering with more scales.

Scattering of the luminance (2, 3 or 4 scales), scattering of the half-size chroma, a colour histogram and a
thumbnail, all averaged over the horizontal flip, are projected on the principal directions of *procedural*
scenes of the same size, with partial whitening, and scaled to unit norm. Nothing was learnt from a
photograph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from adlm.errors import UserError
from adlm.public.features.colour import Colour, flip_average, opponent
from adlm.public.features.flip_scattering import mirrored_channels
from adlm.public.features.natural import SHIPPED_FOLDER, SceneProjection
from adlm.public.features.scattering import Scattering
from adlm.public.features.threads import map_blocks_threaded

SCALES = {32: 2, 64: 3, 96: 4}  # side in pixels: scales J of its scattering
WIDTH = 600
ROWS = 16  # images in a batch
THUMBNAIL = 8
# Added to a record's norm within an order, so that a flat image's rounding errors stay small.
FLOORS = (0.05, 0.1, 0.1)


class ScatteringCells(nn.Module):
    """Scattering, averaged over 2 x 2 outputs and over the flip, each order square-rooted and normed.

    The flip costs nothing: the scattering of a mirrored image is the mirrored one with mirrored angles, up
    to sampling, which is not quite symmetric.

    Parameters
    ----------
    size : side of the images (n, size, size).
    J : number of scales.
    orders : how many orders are kept: 2 leaves out the second.
    """

    def __init__(self, size: int, J: int, orders: int = 3) -> None:
        super().__init__()
        self.scattering = Scattering((size, size), J)
        self.counts = torch.bincount(self.scattering.orders).tolist()
        self.kept = orders
        cells = self.scattering.output[0] // 2
        self.left = (cells + 1) // 2
        self.width = sum(self.counts[:orders]) * cells * self.left
        mirrored = torch.from_numpy(mirrored_channels(J, self.scattering.L))
        self.register_buffer("mirrored", mirrored, persistent=False)

    mirrored: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, size, size) to (n, width)."""
        cells = functional.avg_pool2d(self.scattering(x), 2)
        both = 0.5 * (cells + cells[:, self.mirrored].flip(3))[..., : self.left]
        parts = []
        for order, block in enumerate(torch.split(both, self.counts, 1)[: self.kept]):
            flat = (block if order == 0 else block.clamp_min(0.0).sqrt()).flatten(1)
            flat = flat - flat.mean(1, keepdim=True)
            parts.append(flat / (torch.linalg.vector_norm(flat, dim=1, keepdim=True) + FLOORS[order]))
        return torch.cat(parts, 1)


class MultiscaleBlocks(nn.Module):
    """The raw blocks side by side: (n, channels, size, size) to (n, sum of `widths`).

    Parameters
    ----------
    size : side of the images, one of `SCALES`.
    colour : whether they have three channels, red, green and blue, or one.
    """

    def __init__(self, size: int, colour: bool) -> None:
        super().__init__()
        self.light = ScatteringCells(size, SCALES[size])
        self.chroma = ScatteringCells(size // 2, SCALES[size] - 1, orders=2) if colour else None
        self.colour = Colour(thumbnail=THUMBNAIL) if colour else None
        thumbnail = THUMBNAIL * ((THUMBNAIL + 1) // 2)
        self.widths: tuple[int, ...] = (self.light.width, thumbnail)
        if self.chroma is not None and self.colour is not None:
            self.widths = (self.light.width, 2 * self.chroma.width, *self.colour.widths)

    def forward(self, x: Tensor) -> Tensor:
        """Join the blocks."""
        if self.chroma is None or self.colour is None:
            small = functional.avg_pool2d(x, x.shape[-1] // THUMBNAIL)
            return torch.cat([self.light(x[:, 0]), flip_average(small - 0.5).flatten(1)], 1)
        colours = opponent(x)
        half = functional.avg_pool2d(colours, 2)
        chroma = [self.chroma(half[:, channel]) for channel in (1, 2)]
        return torch.cat([self.light(colours[:, 0] + 0.5), *chroma, self.colour(x)], 1)


def weights_name(size: int, colour: bool) -> str:
    """Name of the shipped weights of a size."""
    return f"scenes-{size}-{'rgb' if colour else 'grey'}"


def nearest_size(side: int) -> int:
    """The side to resize images to: the largest shipped one that is not larger, else the smallest."""
    return max((size for size in SCALES if size <= side), default=min(SCALES))


class MultiscaleImages(SceneProjection):
    """Public features of grey or colour photographs in [0, 1], of any size and aspect.

    Parameters
    ----------
    shape : of one record: (H, W), (1, H, W) or (3, H, W). Images whose sides are not those of a shipped map
        (32, 64 or 96) are resized to the largest one that is not larger than their shorter side, at least 32.
    width : coordinates to keep, the leading ones of synthetic scenes.
    """

    batch = 128

    def __init__(self, shape: tuple[int, ...], width: int | None = None) -> None:
        super().__init__()
        self.shape = tuple(int(side) for side in shape)
        channels, sides = image_shape(self.shape)
        self.channels, self.size = channels, nearest_size(min(sides))
        self.resized = sides != (self.size, self.size)
        stored = load_file(SHIPPED_FOLDER / f"{weights_name(self.size, channels == 3)}.safetensors")
        self.blocks = MultiscaleBlocks(self.size, channels == 3)
        self._load_projection(stored, width, "features of photographs")

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width), rows of unit L2 norm."""
        if tuple(x.shape[1:]) != self.shape:
            raise UserError(
                f"the feature map was built for records of shape {self.shape} (got {tuple(x.shape[1:])})"
            )
        images = x.reshape(-1, self.channels, *self.shape[-2:])
        out = images.new_empty(len(images), len(self.scale), dtype=torch.float32)
        map_blocks_threaded(lambda part, mine: mine.copy_(self.scaled_blocks(part)), images, out, ROWS)
        return self._projected(out)

    def scaled_blocks(self, images: Tensor) -> Tensor:
        """Raw blocks of images (n, channels, H, W), in the units of the stored projection."""
        if self.resized:
            sides = (self.size, self.size)
            images = functional.interpolate(images, sides, mode="bilinear", antialias=True).clamp(0, 1)
        scaled: Tensor = self.blocks(images) * self.scale
        return scaled

    def synthetic(self, classes: int, per_class: int, seed: int) -> Tensor:
        """Draw classes of scenes and map them: (classes, per_class, width)."""
        from adlm.public.priors import scenes

        images, _ = scenes.draw(classes, per_class, torch.Generator().manual_seed(seed), self.size)
        images = images if self.channels == 3 else images.mean(1, keepdim=True)
        unresized = self
        if self.resized:
            unresized = MultiscaleImages((self.channels, self.size, self.size), self.width)
        with torch.inference_mode():
            parts = [unresized(part.reshape(-1, *unresized.shape)) for part in torch.split(images, 100)]
        return torch.cat(parts).reshape(classes, per_class, -1)

    def spec(self) -> dict[str, Any]:
        """Describe the map."""
        return {"name": "multiscale", "shape": list(self.shape), "width": self.width}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> MultiscaleImages:
        """Make it from its description."""
        return cls(tuple(spec["shape"]), int(spec["width"]))


def image_shape(shape: tuple[int, ...]) -> tuple[int, tuple[int, int]]:
    """Channels, and height and width, of records of an image's shape."""
    if len(shape) == 2:
        return 1, (shape[0], shape[1])
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[0], (shape[1], shape[2])
    raise UserError(f"images have the shape (H, W), (1, H, W) or (3, H, W) (got {shape})")
