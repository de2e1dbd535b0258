"""Coordinates of another map, and the products of its leading ones: what a linear head cannot see in them.

With z the other map's coordinates, u the first m of them scaled to unit norm, and a share s,

    h(x) = ( sqrt(1 - s) z,  sqrt(s) u_i u_j for i <= j ),   products of two different ones times sqrt 2,

so the product of two records is (1 - s) z.z' + s (u.u')^2, and a row of norm 1 stays one. A linear head is
then a quadratic form in u. Nothing is learnt for it: which coordinates lead is what the other map says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.features.base import Features, PriorStatistics
from adlm.features.exact import exact_unit_norm


class Tier(NamedTuple):
    """Products that suit gradient rounds from a signal on: of how many coordinates, with which share."""

    signal: float
    leading: int
    share: float


# The stronger the signal, the more products are worth their part of a record's norm. Settled on the last
# 5,000 training images of CIFAR-10 and the last 10,000 of Fashion-MNIST, taken as public (docs/frontier.md).
TIERS = (Tier(7_000.0, 60, 0.25), Tier(20_000.0, 77, 0.35), Tier(60_000.0, 110, 0.5))
FEW, MOST = TIERS[0], TIERS[-1]


class PairProducts(Features):
    """A map's coordinates, then products of pairs of its leading ones: width + m (m + 1) / 2 numbers.

    Class sums, second moments and gradient rounds of little signal use the other map alone. Those of more
    signal use products of fewer coordinates (`TIERS`).

    Parameters
    ----------
    inner : the other map.
    leading : m, how many of its coordinates are multiplied.
    share : of a record's squared norm that products have.
    """

    first: Tensor
    second: Tensor
    weight: Tensor

    def __init__(self, inner: Features, leading: int = MOST.leading, share: float = MOST.share) -> None:
        super().__init__()
        if not 1 <= leading <= inner.width:
            raise UserError(f"products can be made of 1 to {inner.width} coordinates, got {leading}")
        if not 0 < share < 1:
            raise UserError(f"products need a share between 0 and 1 of a record's norm, got {share}")
        self.inner, self.multiplied, self.share = inner, leading, share
        self.width = self._width(leading)
        self.class_separation, self.batch, self.path = inner.class_separation, inner.batch, inner.path
        self.rounds_from, self.clip_norm = inner.rounds_from, inner.clip_norm
        first, second = torch.triu_indices(leading, leading)
        weight = torch.full((len(first),), math.sqrt(2 * share))
        weight[first == second] = math.sqrt(share)
        # Not in the fingerprint: they follow from the description.
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.register_buffer("weight", weight, persistent=False)
        self.prior = None if inner.prior is None else self._prior(inner.prior)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width)."""
        return self.of(self.inner(x))

    def of(self, z: Tensor) -> Tensor:
        """Join coordinates (n, inner width) and the products of the leading ones: (n, width)."""
        u = exact_unit_norm(z[:, : self.multiplied])
        # One operation a number, which IEEE 754 fixes: no batch shows in it.
        products = u.index_select(1, self.first) * u.index_select(1, self.second) * self.weight
        return torch.cat([z * math.sqrt(1 - self.share), products], 1)

    def part(self, width: int) -> Features:
        """Return the narrowest of these maps that holds `width` coordinates: the other, fewer, all."""
        if width <= self.inner.width:
            return self.inner.part(width)
        for tier in TIERS:
            if tier.leading < self.multiplied and width <= self._width(tier.leading):
                return PairProducts(self.inner, tier.leading, tier.share)
        return self

    def rounds_width(self, signal: float) -> int:
        """Return how many coordinates suit gradient rounds of that signal."""
        if signal < FEW.signal:
            return self.inner.rounds_width(signal)
        suited = max(tier.leading for tier in TIERS if tier.signal <= signal)
        return self._width(min(suited, self.multiplied))

    def _width(self, leading: int) -> int:
        return self.inner.width + leading * (leading + 1) // 2

    def rounds_taper(self, signal: float) -> int:
        """Return where the other map's weights have halved, if rounds of that signal take it alone."""
        return self.inner.rounds_taper(signal) if signal < FEW.signal else 0

    def moments_width(self) -> int:
        """Return how many coordinates class sums and second moments may take: the other map's."""
        return self.inner.moments_width()

    def synthetic(self, classes: int, per_class: int, seed: int) -> Tensor | None:
        """Map the inner map's synthetic classes."""
        plain = self.inner.synthetic(classes, per_class, seed)
        return None if plain is None else self.of(plain.flatten(0, 1)).reshape(classes, per_class, -1)

    def possible(self, z: Tensor) -> Tensor:
        """Bring drawn vectors to ones that the map can give: products are made of their coordinates."""
        return self.of(exact_unit_norm(self.inner.possible(z[:, : self.inner.width])))

    def _prior(self, of: PriorStatistics) -> PriorStatistics:
        """What a prior says of the products, as if coordinates were independent and normal."""
        plain, m = 1 - self.share, self.multiplied
        size = of.within.diagonal() + of.weight + of.mean.square()
        lengthened = 1 / size[:m].sum().clamp_min(1e-12)  # u is the leading part at unit norm
        square, between = size[:m] * lengthened, of.weight[:m] * lengthened
        one, two = self.first, self.second
        total, between_classes = square[one] * square[two], between[one] * between[two]
        share, equal = self.weight.square(), one == two
        varies = share * (1 + equal.float())  # a square varies twice as much as a product of two
        covariance = torch.zeros(self.width, self.width)
        covariance[: len(size), : len(size)] = plain * of.within
        covariance.diagonal()[len(size) :] = varies * (total - between_classes).clamp_min(0.0)
        return PriorStatistics(
            typical=torch.cat([math.sqrt(plain) * of.typical, 2 / math.pi * (share * total).sqrt()]),
            weight=torch.cat([plain * of.weight, varies * between_classes]),
            within=covariance,
            mean=torch.cat([math.sqrt(plain) * of.mean, equal * (share * total).sqrt()]),
            temperature=of.temperature,
        )

    def spec(self) -> dict[str, Any]:
        """Describe the map."""
        return {
            "name": "pair-products",
            "leading": self.multiplied,
            "share": self.share,
            "of": self.inner.spec(),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], inner: Features) -> PairProducts:
        """Make it from its description and the other map."""
        return cls(inner, int(spec["leading"]), float(spec["share"]))
