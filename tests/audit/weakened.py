"""A source of too little noise, which the audit's tests put in place of a sound one."""

from __future__ import annotations

from fractions import Fraction

from adlm.audit.replay import Integers, Shape
from adlm.privacy.noise import Scale, Source


class Weakened(Source):
    """A source whose noise is smaller than what was asked for: a fault that an audit must find.

    Parameters
    ----------
    source : where random bits come from.
    factor : on every noise scale.
    """

    def __init__(self, source: Source, factor: Fraction) -> None:
        super().__init__(bytes(32), seeded=source.seeded)
        self.source, self.factor = source, factor

    def laplace(self, shape: Shape, scale: Scale) -> Integers:
        """Draw too little Laplace noise."""
        return self.source.laplace(shape, self.factor * scale)

    def gaussian(self, shape: Shape, scale: Scale) -> Integers:
        """Draw too little Gaussian noise."""
        return self.source.gaussian(shape, self.factor * scale)

    def radial(self, rows: int, width: int, scale: Scale) -> Integers:
        """Draw too little radial noise."""
        return self.source.radial(rows, width, self.factor * scale)
