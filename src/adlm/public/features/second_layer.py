"""Patches of patches: a second dictionary, over maps of the first one's responses.

The first layer's rectified responses are averaged over 3 x 3 places, square-rooted, centred and reduced to
their principal directions. A second layer cuts 3 x 3 patches out of those maps, scales each by its own norm,
compares it with whitened unit vectors d of a dictionary, and pools relu(d.p - t) over a grid of cells. Like
the first, it holds each atom with its mirror image, so that the average over the flip costs no second pass.
After Coates and Ng (2011) and Mairal et al. (2014); everything is learnt from procedural scenes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from adlm.public.features.patches import sample_patches
from adlm.public.features.pooled_patches import pooling

SIDE = 3  # of a second patch, in places of the reduced maps
POOL, STEP = 3, 2  # places of the first layer that are averaged, and how far apart
THRESHOLD = 1.0
FLOOR = 0.1  # of the typical norm of a patch: flat patches stay near zero
RIDGE = 0.1  # of the whitening, relative to the mean variance that is kept


class SecondLayer(nn.Module):
    """Features of a first layer's responses (n, 2 * atoms, h, w) -> (n, own atoms * cells * cells).

    Parameters
    ----------
    weights : `reduce` (c, 4 * atoms), `offset` (c,), `floor` (1,) and `filters` (2 * atoms, c, 3, 3), the
        second half of them mirrored, from `learn_second_layer`.
    size : side of the first layer's maps before they are averaged.
    grid : cells along each side of the pooling grid.
    """

    reduce: Tensor
    offset: Tensor
    floor: Tensor
    filters: Tensor
    pool: Tensor

    def __init__(self, weights: dict[str, Tensor], size: int, grid: int = 3) -> None:
        super().__init__()
        for name in ("reduce", "offset", "floor", "filters"):
            self.register_buffer(name, weights[name].float())
        places = (size - POOL) // STEP + 1 - SIDE + 1
        self.register_buffer("pool", pooling(places, places, grid), persistent=False)
        self.grid, self.width = grid, len(self.filters) // 2 * grid * grid

    def forward(self, beyond: Tensor) -> Tensor:
        """Map responses of the first layer, less its threshold, (n, 2 * atoms, h, w) to (n, width)."""
        reduced = reduced_maps(averaged_maps(beyond), self.reduce, self.offset).contiguous()
        power = functional.avg_pool2d(reduced.square().mean(1, keepdim=True), SIDE, 1)
        d = functional.conv2d(reduced, self.filters) / (power.sqrt() + self.floor)
        pooled = (d - THRESHOLD).relu().flatten(2) @ self.pool
        halves = pooled.reshape(-1, 2, len(self.filters) // 2, self.grid, self.grid)
        return (0.5 * (halves[:, 0] + halves[:, 1].flip(3))).flatten(1).sqrt()


def averaged_maps(beyond: Tensor) -> Tensor:
    """Rectify responses (n, 2 * atoms, h, w), average over neighbouring places, take the root: up, then down.

    The result has maps (n, 4 * atoms, h', w').
    """
    up, down = (
        functional.avg_pool2d(part, POOL, STEP) for part in (beyond.clamp_min(0.0), beyond.clamp_max(0.0))
    )
    return torch.cat([up, -down], 1).sqrt()


def reduced_maps(maps: Tensor, reduce: Tensor, offset: Tensor) -> Tensor:
    """Bring maps (n, channels, h, w) to their principal directions: (n, c, h, w)."""
    return functional.conv2d(maps, reduce[:, :, None, None]) - offset[:, None, None]


def learn_second_layer(
    maps: Tensor, atoms: int, generator: torch.Generator, *, channels: int = 64, samples: int = 15_000
) -> dict[str, Tensor]:
    """Learn a second layer from averaged maps (n, 4 * a, h, w) of scenes, of a first layer with `a` atoms.

    Parameters
    ----------
    atoms : of the second layer, mirror images not counted.
    channels : principal directions of the maps that are kept.
    samples : patches that the dictionary is learnt from.
    """
    first = maps.shape[1] // 4
    # The mirror image of a map is the map of the mirrored atom: up, up mirrored, down, down mirrored.
    swap = torch.arange(4 * first).reshape(2, 2, first).flip(1).flatten()
    rows = maps.permute(0, 2, 3, 1).reshape(-1, 4 * first)
    mean = 0.5 * (rows.mean(0) + rows.mean(0)[swap])
    covariance = (rows - mean).T @ (rows - mean) / len(rows)
    # Symmetric under the mirror, so that every direction is kept or negated by it.
    reduce = _principal(0.5 * (covariance + covariance[swap][:, swap]), channels)[0].T.contiguous()
    turn = reduce[:, swap] @ reduce.T
    offset = reduce @ mean
    patches = sample_patches(reduced_maps(maps, reduce, offset), SIDE, samples, generator)
    floor = FLOOR * patches.square().mean().sqrt()
    points = patches / (patches.square().mean(1, keepdim=True).sqrt() + floor)

    def mirrored(flat: Tensor) -> Tensor:
        square = flat.reshape(len(flat), -1, SIDE, SIDE)
        return torch.einsum("kcyx,cd->kdyx", square, turn).flip(3).reshape(len(flat), -1)

    both = torch.cat([points, mirrored(points)])
    kept = min(200, points.shape[1])
    axes, values = _principal(both.T @ both / len(both), kept)
    whiten = axes / (values + RIDGE * values.mean()).sqrt()
    dictionary = _clusters(points @ whiten, atoms, generator) @ whiten.T
    filters = torch.cat([dictionary, mirrored(dictionary)]).reshape(2 * atoms, -1, SIDE, SIDE)
    return {"reduce": reduce, "offset": offset, "floor": floor.reshape(1), "filters": filters.half()}


def _principal(covariance: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Leading directions (p, count) and variances (count,), signs fixed."""
    values, vectors = torch.linalg.eigh(covariance.double())
    axes = vectors.flip(1)[:, :count]
    largest = axes.abs().argmax(0)
    axes = axes * axes[largest, torch.arange(axes.shape[1])].sign()
    return axes.float(), values.flip(0)[:count].clamp_min(0.0).float()


def _clusters(points: Tensor, atoms: int, generator: torch.Generator, rounds: int = 6) -> Tensor:
    """Cluster points (count, p) by direction: unit atoms (atoms, p)."""
    atoms = min(atoms, len(points))
    found = functional.normalize(points[torch.randperm(len(points), generator=generator)[:atoms]], dim=1)
    for _ in range(rounds):
        nearest = (points @ found.T).argmax(1)
        # A little of the old atom stays, so that one without points keeps its direction.
        found = functional.normalize((1e-3 * found).index_add_(0, nearest, points), dim=1)
    return found
