"""A privacy budget: epsilon and delta, exact."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from adlm.privacy.accounting import parse_delta, parse_epsilon, show


@dataclass(frozen=True)
class Budget:
    """What may be spent on a data set or on one release: proved epsilon, and delta.

    Parameters
    ----------
    epsilon : positive.
    delta : 0 for pure epsilon.
    """

    epsilon: Fraction
    delta: Fraction = Fraction(0)

    @classmethod
    def of(cls, epsilon: object, delta: object = 0) -> Budget:
        """Read a number, or an exact one such as "1/3"; refuse what is no budget."""
        return cls(parse_epsilon(epsilon), parse_delta(delta))

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read "EPSILON" or "EPSILON,DELTA"."""
        epsilon, _, delta = text.partition(",")
        return cls(parse_epsilon(epsilon, "budget"), parse_delta(delta or "0"))

    def to_dict(self) -> dict[str, str]:
        """Return epsilon and delta in the words of the command line."""
        return {"epsilon": show(self.epsilon), "delta": f"{float(self.delta):g}"}
