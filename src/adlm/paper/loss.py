"""The polynomial loss: coefficients (Eqs. 24-25, lines 16-19 and 26-27), Delta_F (Lemma 5), error (Lemma 7).

For output l of record i with logit z, the loss is phi0 + phi1 z + phi2 z^2, where each coefficient is a
constant plus a slope times the label y_il in {0, 1}. The curator perturbs the coefficients; training sums the
polynomial with the released ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn import functional as F

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
        first, second = (
            Fraction(max(abs(self.constant[order]), abs(self.constant[order] + self.slope[order])))
            for order in (1, 2)
        )
        return 2 * classes * (first * hidden + second * hidden**2)

    def coefficients(self, labels: Tensor, classes: int) -> Tensor:
        """Noise-free coefficients (n, 3, M) of labels (n,) in 0..M-1: for data without privacy."""
        y = F.one_hot(labels, classes).float()[:, None]
        return torch.tensor(self.constant)[:, None] + torch.tensor(self.slope)[:, None] * y

    def released(self, phi: Tensor) -> Tensor:
        """Coefficients (n, 3, M) of a record release, with the loss bounded below.

        Parameters
        ----------
        phi : (n, M) noisy first order (economical: orders 0 and 2 are public constants), or (n, 3, M) all
            three (literal).

        Notes
        -----
        Noise makes a second-order coefficient negative about half of the time when its scale is large, and a
        record whose parabola opens downwards makes the loss unbounded below. The noise-free coefficient is
        public, so every released one below it is raised to it: each parabola then opens upwards at least as
        steeply as without noise, and the loss of a record is at least phi0 - phi1^2 / (4 phi2). This reads
        the release alone and costs nothing.
        """
        if phi.dim() == 2:
            zeroth, _, second = (phi.new_tensor(value).expand_as(phi) for value in self.constant)
            return torch.stack([zeroth, phi, second], 1)
        if phi.dim() != 3 or phi.shape[1] != 3:
            raise UserError(f"coefficients must have shape (n, M) or (n, 3, M) (got {tuple(phi.shape)}).")
        return torch.cat([phi[:, :2], phi[:, 2:].clamp_min(self.constant[2])], 1)


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


def mean_loss(logits: Tensor, phi: Tensor) -> Tensor:
    """Mean over records of sum over outputs of phi0 + phi1 z + phi2 z^2, logits (n, M), phi (n, 3, M)."""
    return (phi[:, 0] + phi[:, 1] * logits + phi[:, 2] * logits.square()).sum(1).mean()


def error_bound_paper(classes: int) -> float:
    """The bound of Lemma 7 on the average error, M (e^2 + 2e - 1) / (e (1 + e)^2), logits in [-1, 1].

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
