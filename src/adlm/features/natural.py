"""Features of natural colour images: patches, scattering and colour, projected by synthetic scenes.

Five blocks (fine patches, patches of the half-size image, colour scattering, colour histogram, thumbnail),
all averaged over the horizontal flip, are projected on the principal directions of *procedural* scenes with
partial whitening, and scaled to unit norm. Nothing in the map was learnt from a photograph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from adlm.errors import UserError
from adlm.features.base import Features, PriorStatistics
from adlm.features.colour import Colour, halved, opponent_planes
from adlm.features.colour_scattering import ColourScattering
from adlm.features.directions import Directions
from adlm.features.exact import exact_unit_norm
from adlm.features.narrowed import narrow
from adlm.features.patches import Patches
from adlm.features.threads import map_records
from adlm.runtime.compiled import Floats

SIZE = 32
ROWS = 8  # images in a batch
# Coordinates for gradient rounds: per unit of signal, and at least; fixed on held-out training images.
ROUNDS_COORDINATES, ROUNDS_FEWEST = 0.13, 200
SHIPPED = "natural-32"
# Averages over many patches are nearly normal; fixed on the last 8,000 training images of CIFAR-10.
TEMPERATURE = 2.6
SHIPPED_FOLDER = Path(__file__).parent / "weights"


class Blocks(nn.Module):
    """The raw blocks side by side: (n, 3, 32, 32) -> (n, sum of `widths`).

    Parameters
    ----------
    fine, coarse : (atoms, 3, side, side) patch filters for the image and for the half-size image.
    """

    def __init__(self, fine: Tensor, coarse: Tensor) -> None:
        super().__init__()
        self.fine, self.coarse, self.colour = Patches(fine), Patches(coarse), Colour()
        self.scattering = ColourScattering(SIZE)
        self.widths = (self.fine.width, self.coarse.width, self.scattering.width, *self.colour.widths)

    def forward(self, x: Tensor) -> Tensor:
        """Join the blocks."""
        return map_records(x, (sum(self.widths),), self.compiled, self.products, ROWS)

    def compiled(self, images: Floats) -> Floats:
        """Map images, one by one."""
        colours = opponent_planes(images)
        fine, coarse = self.fine.compiled(images), self.coarse.compiled(halved(images))
        blocks = (fine, coarse, self.scattering.of_colours(colours), self.colour.of_colours(colours))
        return np.concatenate(blocks, 1)

    def products(self, x: Tensor) -> Tensor:
        """Map all images at once, by PyTorch."""
        fine, coarse = self.fine.products(x), self.coarse.products(functional.avg_pool2d(x, 2))
        return torch.cat([fine, coarse, self.scattering.products(x), self.colour.products(x)], 1)


def compress(projection: Tensor, prefix: str = "projection") -> dict[str, Tensor]:
    """Store a matrix (d, k) as 8-bit integers with one scale a row and one a column.

    A rounded projection is as public as the exact one; it is only a slightly different map, a tenth the size.
    """
    rows = projection.square().mean(1).sqrt().clamp_min(1e-12)
    scaled = projection / rows[:, None]
    columns = scaled.abs().amax(0).clamp_min(1e-12) / 127.0
    steps = (scaled / columns).round().clamp(-127, 127).to(torch.int8)
    return {prefix: steps, f"{prefix}.rows": rows.float(), f"{prefix}.columns": columns.float()}


def expand(weights: Mapping[str, Tensor], prefix: str = "projection") -> Tensor:
    """Undo `compress`, up to its rounding."""
    rows, columns = weights[f"{prefix}.rows"], weights[f"{prefix}.columns"]
    return weights[prefix].float() * rows[:, None] * columns


def store_prior(prior: PriorStatistics) -> dict[str, Tensor]:
    """Pack a prior for a weights file; the covariance as half a correlation matrix in 16 bits."""
    spread = prior.within.diagonal().clamp_min(1e-12).sqrt()
    correlation = prior.within / (spread * spread[:, None])
    rows, columns = torch.triu_indices(len(spread), len(spread), 1)
    return {
        "prior.typical": prior.typical.float(),
        "prior.weight": prior.weight.float(),
        "prior.mean": prior.mean.float(),
        "prior.spread": spread.float(),
        "prior.correlation": correlation[rows, columns].half(),
    }


def restore_prior(weights: Mapping[str, Tensor]) -> PriorStatistics:
    """Undo `store_prior`, up to its rounding."""
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


def read_weights(name: str) -> dict[str, Tensor]:
    """Read weights by the name they are shipped under, or from the path of a .safetensors file."""
    path = SHIPPED_FOLDER / f"{name}.safetensors" if name == SHIPPED else Path(name)
    if not path.is_file():
        raise UserError(
            f"there are no weights of natural-image features at {path}; "
            f"use {SHIPPED!r} or build a file with `python -m adlm.features.priors.natural`"
        )
    return load_file(path)


class SceneProjection(Features):
    """Features that are projections of raw blocks on the principal directions of procedural scenes."""

    projection: Tensor
    mean: Tensor
    offset: Tensor
    scale: Tensor
    columns: Tensor
    # Photographs are far more varied than procedural scenes; fixed on the same images as TEMPERATURE.
    class_separation = 0.42

    def _load_projection(self, stored: Mapping[str, Tensor], width: int | None, what: str) -> None:
        """Keep the leading `width` directions of stored weights, all if None, and their prior."""
        projection = expand(stored)
        most = projection.shape[1]
        self.width = most if width is None else width
        if not 1 <= self.width <= most:
            raise UserError(f"{what} have 1 to {most} coordinates (got width {width})")
        self.register_buffer("projection", projection[:, : self.width].contiguous())
        self.register_buffer("mean", stored["mean"].float())
        self.register_buffer("scale", stored["projection.rows"].float(), persistent=False)
        self.register_buffer("columns", stored["projection.columns"][: self.width].double(), persistent=False)
        self.directions = Directions(stored["projection"][:, : self.width])
        # Not in the fingerprint: a product's last bits depend on the machine, its factors do not.
        self.register_buffer("offset", self.mean.double() @ self.projection.double(), persistent=False)
        self.prior = narrow(restore_prior(stored), self.width)

    def _projected(
        self, x: Tensor, compiled: Callable[[Floats], Floats], batched: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Project raw blocks of images to unit vectors: (n, width).

        Parameters
        ----------
        x : images.
        compiled, batched : both forms of what maps them to raw blocks.
        """
        mean, scale = self.mean.cpu().numpy(), self.scale.cpu().numpy()

        def centred(images: Floats) -> Floats:
            rows = compiled(images)
            rows -= mean
            rows *= scale
            return rows

        products = self.directions.of(x, centred, lambda block: (batched(block) - self.mean) * self.scale)
        return exact_unit_norm(products * self.columns)


class NaturalImages(SceneProjection):
    """Public features of RGB images (n, 3, 32, 32) in [0, 1].

    Parameters
    ----------
    width : coordinates to keep, the leading ones of synthetic scenes; all of them if None.
    weights : ``"natural-32"``, which comes with the package, or the path of a file built by
        `adlm.features.priors.natural`.
    """

    def __init__(self, width: int | None = None, weights: str = SHIPPED) -> None:
        super().__init__()
        stored = read_weights(weights)
        self.weights = weights
        self.blocks = Blocks(stored["fine"].float(), stored["coarse"].float())
        self._load_projection(stored, width, "natural-image features")

    def rounds_width(self, signal: float) -> int:
        """Return how many leading coordinates suit gradient rounds of that signal."""
        return min(self.width, max(ROUNDS_FEWEST, math.floor(ROUNDS_COORDINATES * signal)))

    def forward(self, x: Tensor) -> Tensor:
        """Map images to unit vectors: (n, 3, 32, 32) -> (n, width)."""
        if x.shape[1:] != (3, SIZE, SIZE):
            raise UserError(
                f"natural-image features take arrays of shape (n, 3, {SIZE}, {SIZE}) (got {tuple(x.shape)}); "
                "resize the images and put the channels first"
            )
        return self._projected(x, self.blocks.compiled, self.blocks.products)

    def synthetic(self, classes: int, per_class: int, seed: int) -> Tensor:
        """Draw classes of scenes and map them: (classes, per_class, width)."""
        from adlm.features.priors import scenes

        images, _ = scenes.draw(classes, per_class, torch.Generator().manual_seed(seed))
        with torch.inference_mode():
            parts = [self(images[i : i + 100]) for i in range(0, len(images), 100)]
        return torch.cat(parts).reshape(classes, per_class, -1)

    def spec(self) -> dict[str, Any]:
        """Describe the map."""
        return {"name": "natural", "width": self.width, "weights": self.weights}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> NaturalImages:
        """Make it from its description."""
        return cls(int(spec["width"]), str(spec["weights"]))
