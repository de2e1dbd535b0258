"""Build the weights of the shipped feature maps from random processes: no data, no label, one seed.

    python -m benchmarks.shipped_features drawn|garments|natural-32 [--out FILE]

Drawn images have Fisher directions: variation within synthetic classes is nuisance, variation between them
may be signal. With W the within-class covariance and B the between-class scatter, the directions v of largest
v'Bv / v'Wv come first. Photographs have patch dictionaries and the principal directions of procedural scenes.

The numbers that are choices for photographs (`SHARES`, `POWER`, `FLOOR`) were compared on a split of
CIFAR-10's training images, the last 5,000 of them counted as public; accuracy there moved by less than a
point between neighbouring choices. The patches' side, threshold and ridge were not tuned.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional

from adlm.errors import UserError
from adlm.features.base import PriorStatistics, unit_norm
from adlm.features.drawn import SIZE as DRAWN_SIZE
from adlm.features.drawn import NormedScattering
from adlm.features.photographs import (
    CONTRAST_FLOOR,
    SIZE,
    WEIGHTS,
    Blocks,
    expand,
)
from adlm.features.priors import scenes, shapes, strokes
from adlm.runtime.artefact import write_file

Draw = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]
RIDGE = 0.1  # of the mean variance, added before patches are whitened
# Synthetic variance given to each block: fine and coarse patches, scattering, histogram, thumbnail.
SHARES = (1.0, 1.0, 1.0, 0.3, 0.1)
# Partial whitening: coordinate j is scaled by (w_j + FLOOR w_1)^-POWER, w the synthetic variances.
POWER = 0.35
FLOOR = 1e-3
ITERATIONS, SPARE = 3, 60  # of subspace iteration; SPARE further directions are iterated, then dropped
ROWS = 500  # images mapped together

# ---- Fisher directions ----


@dataclass(frozen=True)
class ClassStatistics:
    """First and second moments of a family of synthetic classes in p features.

    Attributes
    ----------
    mean : (p,) mean of the class centres.
    within : (p, p) covariance within classes, pooled.
    centres : (classes, p) class centres less `mean`.
    """

    mean: Tensor
    within: Tensor
    centres: Tensor


def class_statistics(features: Tensor, per_class: int) -> ClassStatistics:
    """Moments of features (classes * per_class, p) with the records of a class adjacent."""
    if per_class < 2 or len(features) % per_class:
        raise UserError(
            f"class statistics need at least 2 records a class and whole classes "
            f"(got {len(features)} records, {per_class} a class)"
        )
    records = features.view(-1, per_class, features.shape[1])
    centres = records.mean(1)
    spread = (records - centres[:, None]).flatten(0, 1)
    within = spread.T @ spread / (len(records) * (per_class - 1))
    mean = centres.mean(0)
    return ClassStatistics(mean, within, centres - mean)


def directions(
    classes: ClassStatistics, width: int, *, ridge: float = 0.3, temper: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Fisher directions (p, width), best first, of unit within-class variance plus ridge, and their spectrum.

    The spectrum (width,) is the between-class scatter along each direction, as a share of the total.

    Parameters
    ----------
    classes : statistics of the classes.
    width : directions to keep.
    ridge : relative to the mean diagonal; bounds the scale of directions in which the process varies little.
    temper : in [0, 1]; direction j is scaled by spectrum_j^(-temper / 2): real classes are broader than
        synthetic ones, most so along what best separates synthetic classes.
    """
    p, most = len(classes.mean), min(len(classes.mean), len(classes.centres) - 1)
    if not 1 <= width <= most:
        raise UserError(f"{p} features of these classes have 1 to {most} directions, got width {width}")
    within = classes.within / classes.within.diagonal().mean()
    within.diagonal().add_(ridge * within.diagonal().mean())
    root = torch.linalg.cholesky(within)
    whitened = torch.linalg.solve_triangular(root, classes.centres.T, upper=False)
    scatter = whitened / whitened.norm()
    few = scatter.shape[1] < p  # then the small Gram matrix has the same spectrum
    values, vectors = torch.linalg.eigh((scatter.T @ scatter if few else scatter @ scatter.T).double())
    order = values.argsort(descending=True)[:width]
    spectrum = values[order].clamp_min(0).float()
    axes = vectors[:, order].float()
    if few:
        axes = functional.normalize(scatter @ axes, dim=0)
    basis = torch.linalg.solve_triangular(root.T, axes, upper=True)
    # Signs of eigenvectors are arbitrary: fix them, so that the same seed gives the same map everywhere.
    largest = basis.abs().argmax(0)
    basis = basis * basis[largest, torch.arange(width)].sign()
    factor = (spectrum / spectrum[0].clamp_min(1e-12)).clamp_min(1e-3) ** (-temper / 2)
    return basis * factor, spectrum


def prior_statistics(z: Tensor, per_class: int) -> PriorStatistics:
    """Statistics of coordinates z (classes * per_class, k) of a feature map."""
    moments = class_statistics(z, per_class)
    # The scatter of centres overstates the scatter of true means by the within-class variance over m.
    between = moments.centres.var(0) - moments.within.diagonal() / per_class
    return PriorStatistics(
        typical=z.abs().mean(0), weight=between.clamp_min(0), within=moments.within, mean=moments.mean
    )


# ---- Drawn images ----


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


RECIPES: dict[str, Recipe] = {
    "drawn": Recipe(strokes.draw, classes=3250, per_class=16, width=800, deskewed=True),
    "garments": Recipe(shapes.draw, classes=1700, per_class=14, width=600, temper=0.12),
}


def build_drawn(recipe: Recipe, *, seed: int = 0, check_classes: int = 600) -> dict[str, Tensor]:
    """Draw the classes, find the directions, and describe fresh classes in them.

    Returns
    -------
    centre (p,), projection (p, width) in 16 bits, and the statistics of fresh synthetic records.
    """
    generator = torch.Generator().manual_seed(seed)
    transform = NormedScattering(DRAWN_SIZE, deskewed=recipe.deskewed)
    images, _ = recipe.draw(recipe.classes, recipe.per_class, generator)
    moments = class_statistics(_in_batches(transform, images), recipe.per_class)
    fitted, _ = directions(moments, recipe.width, ridge=recipe.ridge, temper=recipe.temper)
    projection = (fitted / fitted.abs().max()).half().contiguous()
    # Statistics come from classes that the directions were not fitted to, through the stored, rounded map.
    images, _ = recipe.draw(check_classes, recipe.per_class, generator)
    z = unit_norm((_in_batches(transform, images) - moments.mean) @ projection.float())
    prior = prior_statistics(z, recipe.per_class)
    return {
        "centre": moments.mean,
        "projection": projection,
        "typical": prior.typical,
        "weight": prior.weight,
        "within": (prior.within * recipe.width).half(),
        "mean": prior.mean,
    }


def _in_batches(transform: NormedScattering, images: Tensor, rows: int = 1024) -> Tensor:
    return torch.cat([transform(images[i : i + rows]) for i in range(0, len(images), rows)])


# ---- Patch dictionaries ----


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
    """
    dictionary = functional.normalize(points[torch.randperm(len(points), generator=generator)[:atoms]], dim=1)
    flipped = mirror(points, side)
    for _ in range(rounds):
        both = torch.stack([points @ dictionary.T, flipped @ dictionary.T])
        strength, view = both.abs().max(0)
        best = strength.argmax(1)
        row = torch.arange(len(points))
        turned = view[row, best] > 0
        weight = both[turned.long(), row, best]
        towards = torch.where(turned[:, None], flipped, points) * weight[:, None]
        dictionary = functional.normalize(dictionary.clone().index_add_(0, best, towards), dim=1)
    return dictionary


def learn_dictionary(
    images: Tensor,
    side: int,
    atoms: int,
    generator: torch.Generator,
    samples: int = 40_000,
) -> Tensor:
    """Learn filters (atoms, c, side, side) from images (n, c, h, w); whitening is folded into them.

    Parameters
    ----------
    images : (n, c, h, w).
    side, atoms : of a filter in pixels, and how many.
    generator : of the draw.
    samples : patches.
    """
    patches = normalise_contrast(sample_patches(images, side, samples, generator))
    # Whitening that commutes with the mirror, so that a mirrored filter is the filter of the mirrored atom.
    whiten = zca(torch.cat([patches, mirror(patches, side)]), RIDGE)
    dictionary = spherical_kmeans(patches @ whiten, atoms, side, generator)
    filters = dictionary @ whiten
    filters = filters - filters.mean(1, keepdim=True)
    return filters.reshape(atoms, images.shape[1], side, side)


# ---- Principal directions of scenes ----


def compress(projection: Tensor) -> dict[str, Tensor]:
    """Store a matrix (d, k) as 8-bit integers with one scale a row and one a column.

    A rounded projection is as public as the exact one; it is only a slightly different map, a tenth the size.
    """
    rows = projection.square().mean(1).sqrt().clamp_min(1e-12)
    scaled = projection / rows[:, None]
    columns = scaled.abs().amax(0).clamp_min(1e-12) / 127.0
    steps = (scaled / columns).round().clamp(-127, 127).to(torch.int8)
    return {"projection": steps, "projection.rows": rows.float(), "projection.columns": columns.float()}


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
    *,
    classes: int = 1000,
    per_class: int = 12,
    atoms: int = 200,
    width: int = 1000,
    samples: int = 40_000,
) -> dict[str, Tensor]:
    """Learn the weights of `NaturalImages` from scene classes.

    Parameters
    ----------
    seed : of every random number.
    classes, per_class : scene classes, and pictures of each.
    atoms : of each patch dictionary, mirror images not counted.
    width : coordinates to keep.
    samples : patches that each dictionary is learnt from.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        images, _ = scenes.draw(classes, per_class, generator, SIZE)
        fine = learn_dictionary(images, 6, atoms, generator, samples)
        coarse = learn_dictionary(functional.avg_pool2d(images, 2), 6, atoms, generator, samples)
        stored = {"fine": fine.half(), "coarse": coarse.half()}
        blocks = Blocks(stored["fine"].float(), stored["coarse"].float())
        raw = torch.cat([blocks(part) for part in torch.split(images, ROWS)])
        shared = list(zip(blocks.widths, SHARES, strict=True))
        return stored | principal_weights(raw, shared, per_class, width, generator)


BUILDS: dict[str, Callable[[int], dict[str, Tensor]]] = {
    "drawn": lambda seed: build_drawn(RECIPES["drawn"], seed=seed),
    "garments": lambda seed: build_drawn(RECIPES["garments"], seed=seed),
    "natural-32": build_natural,
}


def main(arguments: list[str] | None = None) -> None:
    """Build one map's weights and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shipped_features")
    parser.add_argument("name", choices=sorted(BUILDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file to write; by default the one inside the package")
    options = parser.parse_args(arguments)
    path = options.out or WEIGHTS / f"{options.name}.safetensors"
    if path.is_dir():
        raise UserError(f"--out must name a file to write (got the folder {path})")
    weights = BUILDS[options.name](options.seed)
    write_file(path, save({name: value.contiguous() for name, value in weights.items()}), what="weights")
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
