"""Features of natural colour images: patches, scattering and colour, projected by synthetic scenes.

Five blocks (fine patches, patches of the half-size image, colour scattering, colour histogram, thumbnail),
all averaged over the horizontal flip, are projected on the principal directions of *procedural* scenes with
partial whitening, and scaled to unit norm. Nothing in the map was learnt from a photograph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from adlm.errors import UserError
from adlm.public.features.base import Features, PriorStatistics
from adlm.public.features.colour import Colour
from adlm.public.features.colour_scattering import ColourScattering
from adlm.public.features.exact import ExactDirections, exact_unit_norm
from adlm.public.features.narrowed import narrow
from adlm.public.features.patches import Patches
from adlm.public.features.threads import map_blocks_threaded

SIZE = 32
ROWS = 8  # images in a batch
# Coordinates for gradient rounds: per unit of signal, and at least; fixed on held-out training images.
ROUNDS_COORDINATES, ROUNDS_FEWEST = 0.13, 200
LONGEST = 2.0**12  # bound on a scaled entry of a block: far above that of any image
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
        return torch.cat([block(x) for block, _ in self.passes()], 1)

    def passes(self) -> list[tuple[Callable[[Tensor], Tensor], int]]:
        """Maps to blocks that lie side by side, with their widths; colour is one of them."""
        blocks = (self.fine, self._half_size, self.scattering, self.colour)
        return list(zip(blocks, (*self.widths[:3], self.colour.width), strict=True))

    def _half_size(self, x: Tensor) -> Tensor:
        block: Tensor = self.coarse(functional.avg_pool2d(x, 2))
        return block


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
            f"use {SHIPPED!r} or build a file with `python -m adlm.public.priors.natural`"
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
        self.directions = ExactDirections(stored["projection"][:, : self.width], LONGEST)
        # Not in the fingerprint: a product's last bits depend on the machine, its factors do not.
        self.register_buffer("offset", self.mean.double() @ self.projection.double(), persistent=False)
        self.prior = narrow(restore_prior(stored), self.width)

    def _projected(self, rows: Tensor) -> Tensor:
        """Project scaled blocks, (n, sum of widths), to unit vectors: (n, width)."""
        return exact_unit_norm(self.directions(rows) * self.columns - self.offset)


class NaturalImages(SceneProjection):
    """Public features of RGB images (n, 3, 32, 32) in [0, 1].

    Parameters
    ----------
    width : coordinates to keep, the leading ones of synthetic scenes; all of them if None.
    weights : ``"natural-32"``, which comes with the package, or the path of a file built by
        `adlm.public.priors.natural`.
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
        rows, start = x.new_empty(len(x), len(self.scale), dtype=torch.float32), 0
        # Block by block over all images: the filters of a block stay in a core's cache.
        for block, width in self.blocks.passes():
            own = slice(start, start := start + width)
            map_blocks_threaded(partial(_scaled, block, self.scale[own]), x, rows[:, own], ROWS)
        return self._projected(rows)

    def synthetic(self, classes: int, per_class: int, seed: int) -> Tensor:
        """Draw classes of scenes and map them: (classes, per_class, width)."""
        from adlm.public.priors import scenes

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


def _scaled(block: Callable[[Tensor], Tensor], scale: Tensor, x: Tensor, out: Tensor) -> None:
    """Fill `out` with a block of features of images, scaled."""
    out.copy_(block(x) * scale)
