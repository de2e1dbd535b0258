"""The analyst's loss: a polynomial of the logits with released coefficients (line 27)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.estimation.polynomial import Polynomial


@dataclass(frozen=True)
class Coefficients:
    """phi^(0..2) of n records and M outputs.

    Attributes
    ----------
    zeroth, first, second : (n, M), or (1, 1) where an order is a public constant.
    raised : number of second-order coefficients that were raised to the floor.
    """

    zeroth: Tensor
    first: Tensor
    second: Tensor
    raised: int = 0

    def take(self, rows: Tensor) -> Coefficients:
        """The coefficients of some records."""
        zeroth, first, second = (
            t if len(t) == 1 else t[rows] for t in (self.zeroth, self.first, self.second)
        )
        return Coefficients(zeroth, first, second)

    def to(self, device: torch.device) -> Coefficients:
        """The same on another device."""
        return Coefficients(
            self.zeroth.to(device), self.first.to(device), self.second.to(device), self.raised
        )


def coefficients(polynomial: Polynomial, labels: Tensor, classes: int) -> Coefficients:
    """Noise-free coefficients of labels (n,) in 0..M-1: for data without privacy, and for tests."""
    y = torch.nn.functional.one_hot(labels, classes).float()
    zeroth, first, second = (
        c + slope * y for c, slope in zip(polynomial.constant, polynomial.slope, strict=True)
    )
    return Coefficients(zeroth, first, second)


def released(polynomial: Polynomial, phi: Tensor, floor: float | None = None) -> Coefficients:
    """Coefficients of a record release, with the loss bounded below.

    Parameters
    ----------
    phi : (n, M) noisy first order (economical: orders 0 and 2 are public constants), or (n, 3, M) all three
        (literal).
    floor : least second-order coefficient, positive; by default the noise-free one.

    Notes
    -----
    Noise makes a second-order coefficient negative about half of the time when its scale is large, and a
    record whose parabola opens downwards makes the loss unbounded below. The noise-free coefficient is
    public, so every released one below it is raised to it: each parabola then opens upwards at least as
    steeply as without noise, and the loss of a record is at least phi0 - phi1^2 / (4 floor). This reads the
    release alone and costs nothing.
    """
    least = polynomial.constant[2] if floor is None else floor
    if least <= 0:
        raise UserError(f"floor must be positive, or the loss stays unbounded below (got {least}).")
    if phi.dim() == 2:
        constant = [phi.new_tensor([[value]]) for value in polynomial.constant]
        return Coefficients(constant[0], phi, constant[2].clamp_min(least))
    if phi.dim() != 3 or phi.shape[1] != 3:
        raise UserError(f"coefficients must have shape (n, M) or (n, 3, M) (got {tuple(phi.shape)}).")
    low = phi[:, 2] < least
    return Coefficients(phi[:, 0], phi[:, 1], phi[:, 2].clamp_min(least), int(low.sum()))


def loss(logits: Tensor, phi: Coefficients) -> Tensor:
    """Mean over records of sum over outputs of phi0 + phi1 z + phi2 z^2, for logits (n, M)."""
    terms = phi.zeroth + phi.first * logits + phi.second * logits.square()
    return terms.sum(1).mean()


def exact_loss(polynomial: Polynomial, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss that the polynomial approximates: logistic cross-entropy (Eq. 24) or square error."""
    y = torch.nn.functional.one_hot(labels, logits.shape[1]).to(logits)
    if polynomial.name == "square":
        return (y - logits).square().sum(1).mean()
    per_output = torch.nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
    return per_output.sum(1).mean()
