"""Learn the features of natural colour images from procedural scenes: no photograph, no label, one seed.

`python -m adlm.public.priors.natural FILE --seed 0` writes the weights that the package ships.

The numbers that are choices (`SHARES`, `POWER`, `FLOOR`) were compared on a split of CIFAR-10's training
images, the last 5,000 of them counted as public; accuracy there moved by less than a point between
neighbouring choices. The patches' side, threshold and ridge were not tuned.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from adlm.public.features.base import PriorStatistics, unit_norm
from adlm.public.features.natural import SIZE, Blocks, compress, expand, store_prior
from adlm.public.features.patches import Patches, learn_dictionary
from adlm.public.features.second_layer import averaged_maps, learn_second_layer
from adlm.public.features.threads import map_blocks_threaded
from adlm.public.priors import scenes

Progress = Callable[[str, int, int], None]

# Synthetic variance given to each block: fine and coarse patches, scattering, histogram, thumbnail.
SHARES = (1.0, 1.0, 1.0, 0.3, 0.1)
# Partial whitening: coordinate j is scaled by (w_j + FLOOR w_1)^-POWER, w the synthetic variances.
POWER = 0.35
FLOOR = 1e-3
_ROWS = 500


def principal_directions(
    rows: Tensor, count: int, generator: torch.Generator, rounds: int = 3, spare: int = 60
) -> tuple[Tensor, Tensor]:
    """Leading variances (count,) and directions (d, count) of centred rows (n, d), by subspace iteration.

    Parameters
    ----------
    rows : (n, d) centred rows.
    count : directions to keep.
    generator : of the first subspace.
    rounds : of iteration.
    spare : directions beyond `count` that are carried along.
    """
    count = min(count, *rows.shape)
    guess = torch.randn((rows.shape[1], min(count + spare, *rows.shape)), generator=generator)
    for _ in range(rounds):
        guess, _ = torch.linalg.qr(rows.T @ (rows @ guess))
    inside = rows @ guess
    values, vectors = torch.linalg.eigh(inside.T @ inside / len(rows))
    leading = values.argsort(descending=True)[:count]
    return values[leading].clamp_min(0.0), guess @ vectors[:, leading]


def prior_statistics(z: Tensor, labels: Tensor) -> PriorStatistics:
    """Statistics of synthetic features z (n, k) with labels (n,), as many records in each class."""
    classes = int(labels.max()) + 1
    per_class = len(z) // classes
    means = torch.zeros((classes, z.shape[1])).index_add_(0, labels, z) / per_class
    deviation = z - means[labels]
    within = deviation.T @ deviation / (classes * max(per_class - 1, 1))
    # Class means of few records vary by chance as well: take that part off.
    between = (means.var(0) - within.diagonal() / per_class).clamp_min(0.0)
    return PriorStatistics(typical=z.abs().mean(0), weight=between, within=within, mean=z.mean(0))


def build_natural(
    seed: int = 0,
    classes: int = 1000,
    per_class: int = 12,
    atoms: int = 200,
    width: int = 1000,
    samples: int = 40_000,
    second: int = 0,
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
    second : atoms of a second layer of patches in place of scattering; 0 for scattering.
    progress : called with (what is being done, how much is done, of how much).

    Returns
    -------
    weights : what a weights file holds.
    """

    def tell(what: str) -> Callable[[int, int], None]:
        return lambda done, total: progress(what, done, total) if progress is not None else None

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        images, labels = scenes.draw(classes, per_class, generator, SIZE, tell("drawing scenes"))
        fine = learn_dictionary(
            images, 6, atoms, generator, samples=samples, progress=tell("learning fine patches")
        )
        half = functional.avg_pool2d(images, 2)
        coarse = learn_dictionary(
            half, 6, atoms, generator, samples=samples, progress=tell("learning coarse patches")
        )
        stored = {"fine": fine.half(), "coarse": coarse.half()}
        above = learn_above(Patches(stored["fine"].float()), images, second, generator) if second else None
        stored |= {f"second.{name}": value for name, value in (above or {}).items()}
        blocks = Blocks(stored["fine"].float(), stored["coarse"].float(), above)
        raw = torch.empty((len(images), sum(blocks.widths)))
        for start in range(0, len(images), _ROWS):
            part = slice(start, start + _ROWS)
            map_blocks_threaded(lambda one, mine: mine.copy_(blocks(one)), images[part], raw[part], 1)
            tell("taking features")(min(start + _ROWS, len(images)), len(images))
        mean = raw.mean(0)
        raw -= mean
        scale = torch.cat(
            [
                torch.full((part.shape[1],), math.sqrt(share / float(part.square().sum(1).mean())))
                for share, part in zip(SHARES, torch.split(raw, list(blocks.widths), dim=1), strict=True)
            ]
        )
        tell("finding principal directions")(0, 1)
        values, directions = principal_directions(raw * scale, width, generator)
        tell("finding principal directions")(1, 1)
        whiten = (values + FLOOR * values[0]) ** -POWER
        stored |= {"mean": mean} | compress(scale[:, None] * directions * whiten)
        stored |= store_prior(prior_statistics(unit_norm(raw @ expand(stored)), labels))
    return stored


def learn_above(
    fine: Patches, images: Tensor, atoms: int, generator: torch.Generator, most: int = 500
) -> dict[str, Tensor]:
    """Learn a second layer from the maps that a first layer gives on scenes, at most so many of them."""
    chosen = images[torch.randperm(len(images), generator=generator)[:most]]
    maps = torch.cat([averaged_maps(fine.beyond(part)) for part in torch.split(chosen, 1)])
    return learn_second_layer(maps, atoms, generator)


def write_natural(path: Path, seed: int = 0, second: int = 0, progress: Progress | None = None) -> None:
    """Build the weights and put them at a path, whole or not at all."""
    weights = build_natural(seed, second=second, progress=progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    save_file({name: value.contiguous() for name, value in weights.items()}, partial)
    partial.replace(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn natural-image features from procedural scenes.")
    parser.add_argument("file", type=Path, help="where to write the .safetensors file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--second", type=int, default=0, help="atoms of a second layer; 0: scattering")
    given = parser.parse_args()
    write_natural(
        given.file,
        given.seed,
        given.second,
        lambda what, done, total: print(f"\r{what}: {done}/{total}", end="", flush=True),
    )
    print()
