"""Build the weights of a prior projection: ``python -m adlm.features.priors.build drawn``.

The file is shipped with the package; this command rebuilds it from its seed, in about two minutes on one
core. It reads no data.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.features.base import unit_norm
from adlm.features.prior import SIZE, WEIGHTS, NormedScattering
from adlm.features.priors import fisher, shapes, strokes
from adlm.features.priors.weights import write_weights

Draw = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Recipe:
    """Recipe of a prior: the random process, its numbers of classes and records, and the width."""

    draw: Draw
    classes: int
    per_class: int
    width: int
    ridge: float = 0.3
    temper: float = 0.0
    deskewed: bool = False
    seed: int = 0


RECIPES: dict[str, Recipe] = {
    "drawn": Recipe(strokes.draw, classes=3250, per_class=16, width=800, deskewed=True),
    "garments": Recipe(shapes.draw, classes=1700, per_class=14, width=600, temper=0.12),
}


def build(recipe: Recipe, *, check_classes: int = 600) -> dict[str, Tensor]:
    """Draw the classes, find the directions, and describe fresh classes in them.

    Returns
    -------
    centre (p,), projection (p, width) in 16 bits, and the statistics of fresh synthetic records.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    transform = NormedScattering(SIZE, deskewed=recipe.deskewed)
    images, _ = recipe.draw(recipe.classes, recipe.per_class, generator)
    moments = fisher.class_statistics(_in_batches(transform, images), recipe.per_class)
    fitted = fisher.directions([moments], recipe.width, ridge=recipe.ridge, temper=recipe.temper)
    projection = (fitted.projection / fitted.projection.abs().max()).half().contiguous()
    # Statistics come from classes that the directions were not fitted to, through the stored, rounded map.
    images, _ = recipe.draw(check_classes, recipe.per_class, generator)
    z = unit_norm((_in_batches(transform, images) - fitted.mean) @ projection.float())
    prior = fisher.prior_statistics(z, recipe.per_class)
    return {
        "centre": fitted.mean,
        "projection": projection,
        "typical": prior.typical,
        "weight": prior.weight,
        "within": (prior.within * recipe.width).half(),
        "mean": prior.mean,
    }


def _in_batches(transform: NormedScattering, images: Tensor, rows: int = 1024) -> Tensor:
    return torch.cat([transform(images[i : i + rows]) for i in range(0, len(images), rows)])


def main(arguments: list[str] | None = None) -> None:
    """Build one prior and write its weights file."""
    parser = argparse.ArgumentParser(prog="python -m adlm.features.priors.build", description=__doc__)
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, help="file to write; by default the one inside the package")
    options = parser.parse_args(arguments)
    path = options.out or WEIGHTS / f"{options.name}.safetensors"
    if path.is_dir():
        raise UserError(f"--out must name a file to write (got the folder {path})")
    write_weights(path, build(RECIPES[options.name]))
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
