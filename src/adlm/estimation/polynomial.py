"""The degree-2 polynomials that stand for a loss (Eq. 25, Lemma 5): what the curator perturbs and the
analyst sums.

For output l of record i with logit z, the loss is phi0 + phi1 z + phi2 z^2, where each coefficient is a
constant plus a slope times the label y_il in {0, 1}. Only orders with a slope depend on the label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from adlm.errors import UserError


@dataclass(frozen=True)
class Polynomial:
    """A loss of one output as coefficients of orders 0, 1, 2: phi^(R) = constant[R] + slope[R] * y.

    Attributes
    ----------
    name : `cross-entropy` or `square`.
    constant, slope : three numbers each, one an order.
    """

    name: str
    constant: tuple[float, float, float]
    slope: tuple[int, int, int]

    def label_sensitivity(self, orders: tuple[int, ...]) -> int:
        """L1 change of the coefficients of these orders when a record's label changes.

        One output loses its label and another one gains it, so two coefficients of each order change by the
        slope.
        """
        return 2 * sum(abs(self.slope[order]) for order in orders)

    def informative(self) -> tuple[int, ...]:
        """The orders that move the minimiser and depend on the label."""
        return tuple(order for order in (1, 2) if self.slope[order])

    def delta_f(self, classes: int, hidden: int) -> Fraction:
        """Delta_F of Lemma 5, for ``classes`` outputs on ``hidden`` neurons bounded to [0, 1].

        2 max over records of the L1 norm of the coefficients of orders 1 and 2 with the hidden state inside:
        M(|h| + |h|^2 / 4) for the cross-entropy.
        """
        if classes < 2 or hidden < 1:
            raise UserError(
                f"Delta_F needs at least 2 classes and 1 hidden neuron (got {classes} and {hidden})."
            )
        first = Fraction(max(abs(self.constant[1]), abs(self.constant[1] + self.slope[1])))
        second = Fraction(max(abs(self.constant[2]), abs(self.constant[2] + self.slope[2])))
        return 2 * classes * (first * hidden + second * hidden**2)


# log(1 + e^-z) for y = 1 and log(1 + e^z) for y = 0, around z = 0.
CROSS_ENTROPY = Polynomial("cross-entropy", (math.log(2), 0.5, 0.125), (0, -1, 0))
# (y - z)^2, exactly.
SQUARE = Polynomial("square", (0.0, 0.0, 1.0), (1, -2, 0))

POLYNOMIALS = {polynomial.name: polynomial for polynomial in (CROSS_ENTROPY, SQUARE)}


def by_name(name: str) -> Polynomial:
    """The polynomial of that name."""
    if name not in POLYNOMIALS:
        raise UserError(f"loss must be one of {', '.join(POLYNOMIALS)} (got {name!r}).")
    return POLYNOMIALS[name]


def error_bound_paper(classes: int) -> float:
    """The bound of the paper's Lemma 7 on the average error, M (e^2 + 2e - 1) / (e (1 + e)^2), logits in
    [-1, 1].

    Appendix F misprints the third derivatives and drops the remainder's 1/6, so the bound is loose.
    """
    e = math.e
    return classes * (e * e + 2 * e - 1) / (e * (1 + e) ** 2)


def error_bound_remainder(classes: int, radius: float = 1.0) -> float:
    """The same argument with the correct derivative and the 1/6, for logits in [-radius, radius].

    The third derivative of log(1 + e^-z) is s(1-s)(1-2s) up to sign, s the logistic of z, at most 1/(6 sqrt
    3) in size; the remainder then spans at most 2 radius^3 / (6 * 6 sqrt 3) for each output.
    """
    return classes * radius**3 / (18 * math.sqrt(3))


def error_bound_tight(classes: int, radius: float = 1.0) -> float:
    """The smallest such bound, attained at logits of size ``radius``.

    log(1 + e^-z) + z/2 = log(2 cosh(z/2)) is even, so the remainder is log cosh(z/2) - z^2/8: never
    positive, and largest in size at the ends. Its span is what bounds the loss of the minimiser.
    """
    return classes * (radius**2 / 8 - math.log(math.cosh(radius / 2)))
