"""Base class of frozen public feature maps: h0 in the paper, fixed before any record is read."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.features.exact import exact_unit_norm


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

    def rounds_taper(self, signal: float) -> int:
        """Return the coordinate whose weight is one half in rounds of that signal; 0 for equal weights."""
        del signal
        return 0

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
