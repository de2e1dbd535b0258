"""Learn the features of natural colour images from procedural scenes: no photograph, no label, one seed.

`python -m adlm.features.priors.natural FILE --seed 0` writes the weights that the package ships.

The numbers that are choices (`SHARES`, `POWER`, `FLOOR`) were compared on a split of CIFAR-10's training
images, the last 5,000 of them counted as public; accuracy there moved by less than a point between
neighbouring choices. The patches' side, threshold and ridge were not tuned.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from adlm.features.base import unit_norm
from adlm.features.natural import SIZE, Blocks, compress, expand, store_prior
from adlm.features.patches import learn_dictionary
from adlm.features.priors import scenes
from adlm.features.priors.fisher import prior_statistics
from adlm.features.priors.weights import write_weights

Progress = Callable[[str, int, int], None]

# Synthetic variance given to each block: fine and coarse patches, scattering, histogram, thumbnail.
SHARES = (1.0, 1.0, 1.0, 0.3, 0.1)
# Partial whitening: coordinate j is scaled by (w_j + FLOOR w_1)^-POWER, w the synthetic variances.
POWER = 0.35
FLOOR = 1e-3
ITERATIONS, SPARE = 3, 60  # of subspace iteration; SPARE further directions are iterated, then dropped
_ROWS = 500


def principal_directions(rows: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Leading variances (count,) and directions (d, count) of centred rows (n, d), by subspace iteration."""
    count = min(count, *rows.shape)
    guess = torch.randn((rows.shape[1], min(count + SPARE, *rows.shape)), generator=generator)
    for _ in range(ITERATIONS):
        guess, _ = torch.linalg.qr(rows.T @ (rows @ guess))
    inside = rows @ guess
    values, vectors = torch.linalg.eigh(inside.T @ inside / len(rows))
    leading = values.argsort(descending=True)[:count]
    return values[leading].clamp_min(0.0), guess @ vectors[:, leading]


def principal_weights(
    raw: Tensor, blocks: Sequence[tuple[int, float]], per_class: int, width: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Learn the linear part of a map from raw features of scenes: centre, scale, partly whiten, and a prior.

    Parameters
    ----------
    raw : (classes * per_class, d) raw features, changed in place; records of a class are adjacent.
    blocks : width of each block of features, and the synthetic variance that it is given.
    per_class : scenes of a class.
    width : coordinates to keep.
    generator : of the search for principal directions.
    """
    mean = raw.mean(0)
    raw -= mean
    parts = torch.split(raw, [size for size, _ in blocks], dim=1)
    scale = torch.cat(
        [
            torch.full((size,), math.sqrt(share / float(part.square().sum(1).mean())))
            for (size, share), part in zip(blocks, parts, strict=True)
        ]
    )
    values, directions = principal_directions(raw * scale, width, generator)
    whiten = (values + FLOOR * values[0]) ** -POWER
    stored = {"mean": mean} | compress(scale[:, None] * directions * whiten)
    return stored | store_prior(prior_statistics(unit_norm(raw @ expand(stored)), per_class))


def build_natural(
    seed: int = 0,
    classes: int = 1000,
    per_class: int = 12,
    atoms: int = 200,
    width: int = 1000,
    samples: int = 40_000,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Learn the weights of `NaturalImages` from scene classes.

    Parameters
    ----------
    seed : of every random number.
    classes, per_class : scene classes, and pictures of each.
    atoms : of each patch dictionary, mirror images not counted.
    width : coordinates to keep.
    samples : patches that each dictionary is learnt from.
    progress : called with (name of the step, done, total).

    Returns
    -------
    weights : the contents of a weights file.
    """

    def step(what: str) -> Callable[[int, int], None]:
        return lambda done, total: progress(what, done, total) if progress is not None else None

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        images, _ = scenes.draw(classes, per_class, generator, SIZE, step("drawing scenes"))
        fine = learn_dictionary(
            images, 6, atoms, generator, samples=samples, progress=step("learning fine patches")
        )
        half = functional.avg_pool2d(images, 2)
        coarse = learn_dictionary(
            half, 6, atoms, generator, samples=samples, progress=step("learning coarse patches")
        )
        stored = {"fine": fine.half(), "coarse": coarse.half()}
        blocks = Blocks(stored["fine"].float(), stored["coarse"].float())
        raw = torch.empty((len(images), sum(blocks.widths)))
        for start in range(0, len(images), _ROWS):
            part = slice(start, start + _ROWS)
            raw[part] = blocks(images[part])
            step("taking features")(min(start + _ROWS, len(images)), len(images))
        step("finding principal directions")(0, 1)
        shared = list(zip(blocks.widths, SHARES, strict=True))
        stored |= principal_weights(raw, shared, per_class, width, generator)
        step("finding principal directions")(1, 1)
    return stored


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn natural-image features from procedural scenes.")
    parser.add_argument("file", type=Path, help="where to write the .safetensors file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    def show(what: str, done: int, total: int) -> None:
        print(f"\r{what}: {done}/{total}", end="", flush=True)

    write_weights(options.file, build_natural(options.seed, progress=show))
    print()
