"""The declared domain of the records: shape, columns, encoding, labels."""

from __future__ import annotations

from adlm.domain.domain import FAMILIES, NEIGHBOURS, Domain

__all__ = ["Domain", "FAMILIES", "NEIGHBOURS"]
