"""The declared domain of the records: shape, columns, encoding, labels."""

from adlm.public.domain.domain import FAMILIES, NEIGHBOURS, Domain

__all__ = ["Domain", "FAMILIES", "NEIGHBOURS"]
