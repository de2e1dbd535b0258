"""A privacy budget: epsilon and delta, exact."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from adlm.privacy.accounting import parse_delta, parse_epsilon, show


@dataclass(frozen=True)
class Budget:
    """The privacy budget of a data set or of one release: proved epsilon, and delta.

    Parameters
    ----------
    epsilon : positive.
    delta : at least 0 and below 1; 0 for pure epsilon.

    Examples
    --------
    >>> from adlm import Budget
    >>> Budget.of("1/3", 1e-5) == Budget.parse("1/3,1e-5")
    True
    """

    epsilon: Fraction
    delta: Fraction = Fraction(0)

    @classmethod
    def of(cls, epsilon: object, delta: object = 0) -> Budget:
        """Make a budget from numbers, or exact ones such as "1/3".

        Parameters
        ----------
        epsilon, delta : numbers, or texts such as "0.5", "1/3" and "1e-5".

        Raises
        ------
        UserError : epsilon is not a positive number, or delta does not lie in [0, 1).
        """
        return cls(parse_epsilon(epsilon), parse_delta(delta))

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a budget, "EPSILON" or "EPSILON,DELTA", as on the command line."""
        epsilon, _, delta = text.partition(",")
        return cls(parse_epsilon(epsilon, "budget"), parse_delta(delta or "0"))

    def to_dict(self) -> dict[str, str]:
        """Return epsilon and delta as strings, as on the command line."""
        return {"epsilon": show(self.epsilon), "delta": f"{float(self.delta):g}"}
