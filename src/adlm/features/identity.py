"""Features that are the record itself, scaled to L2 norm at most 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from adlm.features.base import Features


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

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Identity:
        """Make it from its description."""
        return cls(tuple(spec["shape"]))
