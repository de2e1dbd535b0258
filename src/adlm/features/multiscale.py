"""Features of photographs of 32, 64 or 96 pixels a side, grey or colour: scattering with more scales.

Scattering of the luminance (2, 3 or 4 scales), scattering of the half-size chroma, a colour histogram and a
thumbnail, all averaged over the horizontal flip, are projected on the principal directions of *procedural*
scenes of the same size, with partial whitening, and scaled to unit norm. Nothing was learnt from a
photograph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from adlm.errors import UserError
from adlm.features.colour import Colour, flip_average, halved, opponent, opponent_planes, thumbnails
from adlm.features.natural import SHIPPED_FOLDER, SceneProjection
from adlm.features.order_norms import OrderNorms
from adlm.features.resizing import Resized
from adlm.features.scattering import Pooling, Scattering, mirrored_channels
from adlm.features.threads import map_records
from adlm.runtime.compiled import Floats

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

    mirrored: Tensor

    def __init__(self, size: int, J: int, orders: int = 3) -> None:
        super().__init__()
        self.scattering = Scattering(size, J)
        counts = torch.bincount(self.scattering.orders)[:orders]
        cells = self.scattering.output[0] // 2
        self.cells, self.kept = (cells, (cells + 1) // 2), int(counts.sum())
        self.width = self.kept * cells * self.cells[1]
        mirrored = torch.from_numpy(mirrored_channels(J, self.scattering.L))
        self.register_buffer("mirrored", mirrored, persistent=False)
        kept = self.scattering.orders[: self.kept]
        self.norms = OrderNorms(kept.repeat_interleave(cells * self.cells[1]), 0.0, FLOORS, 0.0, plain=1)
        halves = np.kron(np.eye(cells), [0.5, 0.5])
        halves = np.pad(halves, [(0, 0), (0, self.scattering.output[0] - halves.shape[1])])
        pooled = [halves @ weights for weights in self.scattering.weights()]
        self.plan = self.scattering.plan_for(Pooling(pooled, pooled))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, size, size) to (n, width)."""
        return map_records(x, (self.width,), self.compiled, self.products, ROWS)

    def compiled(self, images: Floats) -> Floats:
        """Map images, one by one."""
        cells = self.plan(np.ascontiguousarray(images))
        both = (
            np.float32(0.5)
            * (cells + cells[:, self.mirrored.numpy(), :, ::-1])[:, : self.kept, :, : self.cells[1]]
        )
        return self.norms.compiled(np.ascontiguousarray(both).reshape(len(images), -1))

    def products(self, x: Tensor) -> Tensor:
        """Map all images at once, by PyTorch."""
        cells = functional.avg_pool2d(self.scattering.products(x), 2)
        both = 0.5 * (cells + cells[:, self.mirrored].flip(3))[:, : self.kept, :, : self.cells[1]]
        rows: Tensor = self.norms(both.flatten(1))
        return rows


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
        return map_records(x, (sum(self.widths),), self.compiled, self.products, ROWS)

    def compiled(self, images: Floats) -> Floats:
        """Map images, one by one."""
        if self.chroma is None or self.colour is None:
            small = thumbnails(images - np.float32(0.5), THUMBNAIL)
            return np.concatenate([self.light.compiled(images[:, 0]), small.reshape(len(images), -1)], 1)
        colours = opponent_planes(images)
        half = halved(colours)
        chroma = [self.chroma.compiled(half[:, channel]) for channel in (1, 2)]
        light = self.light.compiled(colours[:, 0] + np.float32(0.5))
        return np.concatenate([light, *chroma, self.colour.of_colours(colours)], 1)

    def products(self, x: Tensor) -> Tensor:
        """Map all images at once, by PyTorch."""
        if self.chroma is None or self.colour is None:
            small = functional.avg_pool2d(x, x.shape[-1] // THUMBNAIL)
            return torch.cat([self.light.products(x[:, 0]), flip_average(small - 0.5).flatten(1)], 1)
        colours = opponent(x)
        half = functional.avg_pool2d(colours, 2)
        chroma = [self.chroma.products(half[:, channel]) for channel in (1, 2)]
        return torch.cat([self.light.products(colours[:, 0] + 0.5), *chroma, self.colour.products(x)], 1)


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
        plain = sides == (self.size, self.size)
        self.frame = None if plain else Resized(sides, self.size, "bilinear")
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
        return self._projected(images, self._compiled, self._products)

    def _compiled(self, images: Floats) -> Floats:
        """Raw blocks of images (n, channels, H, W), one by one."""
        return self.blocks.compiled(images if self.frame is None else self.frame.compiled(images))

    def _products(self, images: Tensor) -> Tensor:
        """Raw blocks of all images at once."""
        return self.blocks.products(images if self.frame is None else self.frame(images))

    def synthetic(self, classes: int, per_class: int, seed: int) -> Tensor:
        """Draw classes of scenes and map them: (classes, per_class, width)."""
        from adlm.features.priors import scenes

        images, _ = scenes.draw(classes, per_class, torch.Generator().manual_seed(seed), self.size)
        images = images if self.channels == 3 else images.mean(1, keepdim=True)
        unresized = self
        if self.frame is not None:
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
