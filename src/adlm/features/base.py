"""Frozen public feature maps: h0 in the paper, fixed before any record is read.

`Features` is the base class. The maps here take records as they are (`Identity`, `BoundedVector`) or another
map's coordinates: fewer of them (`Narrowed`, `RandomDirections`), or their products
(`PairProducts`).
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.features.linear import ExactDirections, exact_unit_norm

LONGEST = 4.0  # bound on an entry of a feature vector, whose norm is at most about 1


@dataclass(frozen=True)
class PriorStatistics:
    """Statistics of a feature map's coordinates over public synthetic classes.

    Attributes
    ----------
    typical : (k,) mean of |z_j| over synthetic records.
    weight : (k,) between-class variance of each coordinate: how well it separates classes.
    within : (k, k) covariance of z within synthetic classes.
    mean : (k,) mean of z over synthetic records.
    temperature : how overconfident a model is that takes the coordinates of a record to be independent and
        normal.
    """

    typical: Tensor
    weight: Tensor
    within: Tensor
    mean: Tensor
    temperature: float = (
        5.0  # fixed on the last 10,000 training images of MNIST and Fashion-MNIST, taken as public
    )


class Features(nn.Module, ABC):
    """A map from records in [0, 1] to vectors of L2 norm at most 1.

    It is public: nothing in it may depend on private records. User-supplied features declare this by
    `provenance`, which has no default; `private` is allowed, and then no epsilon is proved. `spec` is a JSON
    description from which `adlm.features.build` rebuilds it; a certificate stores `fingerprint`.
    """

    width: int
    prior: PriorStatistics | None = None
    class_separation: float = 1.0  # separation of real classes over that of the most similar synthetic ones
    provenance: str = ""  # of user-supplied features: `public`, or `private` if learnt from records
    trained_on: str = ""  # of user-supplied features: the declared training data
    rounds_from: float = 350.0  # least signal for gradient rounds instead of moments; fixed likewise
    path: float = 0.1  # of gradient rounds, divided by the signal; fixed on held-out training images
    clip_norm: float = 0.25  # of gradient rounds; smaller where most records are easy; fixed likewise
    batch: int = 512  # records mapped together: the best trade of time and memory

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) float32 in [0, 1] to (n, width) float32, each row of L2 norm at most 1."""

    def leading(self, x: Tensor, width: int) -> Tensor:
        """Map (n, *shape) to the first `width` coordinates alone, scaled to unit norm: (n, width)."""
        return exact_unit_norm(self(x)[:, :width])

    def rounds_width(self, signal: float) -> int:
        """Return how many leading coordinates suit gradient rounds of that signal; fixed likewise."""
        del signal
        return self.width

    def moments_width(self) -> int:
        """Return how many leading coordinates class sums and second moments may take; all by default."""
        return self.width

    def part(self, width: int) -> Features:
        """Return the smallest submap with the first `width` coordinates: often the map itself."""
        del width
        return self

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Describe the map in JSON values; the key ``name`` is its kind."""

    def synthetic(self, classes: int, per_class: int, seed: int) -> Tensor | None:
        """Return features (classes, per_class, width) of random public classes, or None without a process.

        Releases are simulated on them.
        """
        return None

    def possible(self, z: Tensor) -> Tensor:
        """Project sampled vectors (n, width) on the map's range; unchanged by default."""
        return z

    def fingerprint(self) -> str:
        """SHA-256 over the spec and every parameter and buffer, in order of their names."""
        digest = hashlib.sha256(json.dumps(self.spec(), sort_keys=True).encode())
        for name, value in sorted(self.state_dict().items()):
            digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def declared(provenance: str, what: str) -> str:
    """Return a declared provenance, and refuse anything but `public` and `private`."""
    if provenance not in ("public", "private"):
        raise UserError(
            f"provenance of {what} must be 'public' (no private record had a part in it) or 'private', got "
            f"{provenance!r}; declare 'private' when in doubt"
        )
    return provenance


def unit_norm(z: Tensor, floor: float = 1e-6) -> Tensor:
    """Scale rows to L2 norm 1; a row shorter than the public floor stays short, so zero stays zero."""
    unit: Tensor = z / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_min(floor)
    return unit


# ---- The record itself ----


class Identity(Features):
    """Centre records in [0, 1] at the middle of the domain and divide by their largest norm.

    A value in [-1/2, 1/2] in each of d coordinates has L2 norm at most sqrt(d)/2, so nothing is clipped.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.width = math.prod(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, d)."""
        return (x.flatten(1) - 0.5) * (2.0 / math.sqrt(self.width))

    def spec(self) -> dict[str, Any]:
        """Describe the map."""
        return {"name": "identity", "shape": list(self.shape)}


class BoundedVector(Features):
    """Centre vectors in [0, 1] at 0, in units of their bound; longer ones are scaled to it.

    The domain of such vectors is [-norm, norm] in each coordinate, so its clipping changes no vector within
    the bound.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.width = int(size)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, size) to (n, size), rows of L2 norm at most 1."""
        return exact_unit_norm(2.0 * x.flatten(1) - 1.0, floor=1.0)

    def spec(self) -> dict[str, Any]:
        """Describe the map."""
        return {"name": "vector", "size": self.width}


# ---- Fewer coordinates ----


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


def narrowed(features: Features, width: int) -> Features:
    """Keep that many coordinates: the first ones if a public prior put them in order, else random ones.

    Parameters
    ----------
    features : the wide map.
    width : coordinates to keep.
    """
    features = features.part(width)
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


# ---- Products of coordinates: what a linear head cannot see in the coordinates alone ----
#
# With z the other map's coordinates, u the first m of them scaled to unit norm, and a share s,
#
#     h(x) = ( sqrt(1 - s) z,  sqrt(s) u_i u_j for i <= j ),   products of two different ones times sqrt 2,
#
# so the product of two records is (1 - s) z.z' + s (u.u')^2, and a row of norm 1 stays one. A linear head is
# then a quadratic form in u. Nothing is learnt for it: which coordinates lead is what the other map says.


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
