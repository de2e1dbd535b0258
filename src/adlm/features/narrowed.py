"""Fewer coordinates of a feature map, rescaled to unit norm: leading, tapered or random directions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.features.base import Features, PriorStatistics
from adlm.features.exact import ExactDirections, exact_unit_norm

LONGEST = 4.0  # bound on an entry of a feature vector, whose norm is at most about 1


class Narrowed(Features):
    """Keep the first `width` coordinates of another map, then scale to unit norm.

    Coordinates that are not released do not count in the norm, so the others have more signal to noise.
    """

    def __init__(self, inner: Features, width: int) -> None:
        super().__init__()
        if not 1 <= width <= inner.width:
            raise UserError(f"features of width {inner.width} can be narrowed to 1 to that many, got {width}")
        self.inner, self.width = inner, width
        self.class_separation, self.batch, self.path = inner.class_separation, inner.batch, inner.path
        self.rounds_from, self.clip_norm = inner.rounds_from, inner.clip_norm
        self.prior = None if inner.prior is None else narrow(inner.prior, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width)."""
        return self.inner.leading(x, self.width)

    def rounds_width(self, signal: float) -> int:
        """Return how many coordinates of the inner map suit gradient rounds, at most all that are kept."""
        return min(self.width, self.inner.rounds_width(signal))

    def rounds_taper(self, signal: float) -> int:
        """Return the coordinate of the inner map whose weight is one half in rounds of that signal."""
        return self.inner.rounds_taper(signal)

    def moments_width(self) -> int:
        """Return how many coordinates class sums and second moments may take, at most all that are kept."""
        return min(self.width, self.inner.moments_width())

    def of(self, z: Tensor) -> Tensor:
        """Narrow precomputed (n, inner width) features."""
        return exact_unit_norm(z[:, : self.width])

    def synthetic(self, classes: int, per_class: int, seed: int) -> Tensor | None:
        """Narrow the inner map's synthetic classes."""
        wide = self.inner.synthetic(classes, per_class, seed)
        return None if wide is None else self.of(wide.flatten(0, 1)).reshape(classes, per_class, -1)

    def spec(self) -> dict[str, Any]:
        """Describe the map."""
        return {"name": "narrowed", "width": self.width, "of": self.inner.spec()}


class Tapered(Narrowed):
    """Keep the first `width` coordinates with weights that fall off, then scale to unit norm.

    Coordinate j has weight 1 / (1 + j / taper). Where noise is strong, later coordinates help less than
    earlier ones, but still help.

    Parameters
    ----------
    inner : the other map.
    width : coordinates to keep.
    taper : the coordinate whose weight is one half.
    """

    weights: Tensor

    def __init__(self, inner: Features, width: int, taper: int) -> None:
        super().__init__(inner, width)
        if taper < 1:
            raise UserError(f"weights need a coordinate, 1 or later, at which they have halved, got {taper}")
        self.taper = taper
        weights = (1 / (1 + torch.arange(width, dtype=torch.float64) / taper)).float()
        # Not in the fingerprint: they follow from the description.
        self.register_buffer("weights", weights, persistent=False)
        self.prior = None if self.prior is None else _weighted(self.prior, weights)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width)."""
        return self.of(self.inner.leading(x, self.width))

    def of(self, z: Tensor) -> Tensor:
        """Weight and narrow precomputed (n, inner width) features."""
        return exact_unit_norm(z[:, : self.width] * self.weights)

    def spec(self) -> dict[str, Any]:
        """Describe the map."""
        return {"name": "tapered", "width": self.width, "taper": self.taper, "of": self.inner.spec()}


class RandomDirections(Narrowed):
    """Keep `width` random orthogonal directions, of a fixed seed, then scale to unit norm.

    Without a public order of the coordinates the first ones are arbitrary (of an image, its upper edge).
    Random directions keep a part of everything (Johnson and Lindenstrauss 1984).
    """

    directions: Tensor

    def __init__(self, inner: Features, width: int) -> None:
        super().__init__(inner, width)
        normal = torch.randn(inner.width, width, generator=torch.Generator().manual_seed(0)).double()
        # Not in the fingerprint: last bits depend on the machine, the seed does not.
        self.register_buffer("directions", torch.linalg.qr(normal).Q.float(), persistent=False)
        self.product = ExactDirections(self.directions, LONGEST)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width)."""
        return self.of(self.inner(x))

    def of(self, z: Tensor) -> Tensor:
        """Narrow precomputed (n, inner width) features."""
        return exact_unit_norm(self.product(z))

    def spec(self) -> dict[str, Any]:
        """Describe the map."""
        return {"name": "random-directions", "width": self.width, "of": self.inner.spec()}


def narrowed(features: Features, width: int, taper: int = 0) -> Features:
    """Keep that many coordinates: the first ones if a public prior put them in order, else random ones.

    Parameters
    ----------
    features : the wide map.
    width : coordinates to keep.
    taper : the coordinate whose weight is one half; 0 for equal weights.
    """
    features = features.part(width)
    if taper:
        return Tapered(features, width, taper)
    if width == features.width:
        return features
    return (RandomDirections if features.prior is None else Narrowed)(features, width)


def narrow(prior: PriorStatistics, width: int) -> PriorStatistics:
    """Keep the first coordinates of a prior, rescaled as unit norm without the others rescales them."""
    size = prior.within.diagonal() + prior.weight + prior.mean.square()
    gain = float((size.sum() / size[:width].sum().clamp_min(1e-12)).sqrt())
    return replace(
        prior,
        typical=prior.typical[:width] * gain,
        weight=prior.weight[:width] * gain**2,
        within=prior.within[:width, :width] * gain**2,
        mean=prior.mean[:width] * gain,
    )


def _weighted(prior: PriorStatistics, weights: Tensor) -> PriorStatistics:
    """The prior of weighted coordinates, rescaled to their length without weights."""
    size = prior.within.diagonal() + prior.weight + prior.mean.square()
    weights = weights * (size.sum() / (size * weights.square()).sum().clamp_min(1e-12)).sqrt()
    return replace(
        prior,
        typical=prior.typical * weights,
        weight=prior.weight * weights**2,
        within=prior.within * weights * weights[:, None],
        mean=prior.mean * weights,
    )
