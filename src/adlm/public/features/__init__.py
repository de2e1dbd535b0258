"""Frozen public feature maps h0, and how to build one again from its description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adlm.errors import UserError
from adlm.public.features.base import Features, PriorStatistics, unit_norm

__all__ = ["Features", "PriorStatistics", "build", "unit_norm"]


def build(spec: Mapping[str, Any]) -> Features:
    """Make the feature map that a spec describes."""
    match spec.get("name"):
        case "identity":
            from adlm.public.features.identity import Identity

            return Identity.from_spec(spec)
        case "tabular":
            from adlm.public.features.tabular import TabularFeatures

            return TabularFeatures.from_spec(spec)
        case other:
            raise UserError(f"there are no public features called {other!r}")
