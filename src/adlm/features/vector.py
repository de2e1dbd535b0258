"""Vectors of bounded length, such as embeddings, divided by their declared bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from adlm.features.base import Features
from adlm.features.exact import exact_unit_norm


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

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> BoundedVector:
        """Make it from its description."""
        return cls(int(spec["size"]))
