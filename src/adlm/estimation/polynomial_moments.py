"""The polynomial objective of the paper (Eq. 25) built from released sums, and its minimum.

F(W) = sum_l [ n log 2 + W_l . sum_i (1/2 - y_il) z_i + 1/8 W_l' (sum_i z_i z_i') W_l ], here per record and
with a ridge. It needs class sums and second moments and nothing else of the records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.estimation.moments import Moments
from adlm.estimation.shrinkage import raw_second


@dataclass(frozen=True)
class Objective:
    """F(W) / n as a quadratic: log 2 terms, a slope a class, one curvature.

    Attributes
    ----------
    slope : (M, k) mean of (1/2 - y_il) z_i.
    curvature : (k, k) mean of z z', symmetric positive definite.
    """

    slope: Tensor
    curvature: Tensor

    def __call__(self, weight: Tensor) -> Tensor:
        """Return F(W) / n for (M, k) weights."""
        linear = (weight * self.slope).sum()
        quadratic = ((weight @ self.curvature) * weight).sum() / 8
        return len(self.slope) * math.log(2) + linear + quadratic

    def minimiser(self) -> Tensor:
        """Return the (M, k) weights where the gradient vanishes: W_l = -4 curvature^-1 slope_l."""
        solution: Tensor = torch.linalg.solve(self.curvature, self.slope.T)
        return -4 * solution.T

    def descend(self, steps: int = 2000) -> Tensor:
        """Return (M, k) weights found by SGD with the momentum that suits the curvature (Polyak 1964)."""
        values = torch.linalg.eigvalsh(self.curvature / 4)  # of the Hessian
        top, low = math.sqrt(float(values[-1])), math.sqrt(float(values[0].clamp_min(0)))
        weight = torch.zeros_like(self.slope, requires_grad=True)
        momentum = ((top - low) / (top + low)) ** 2
        optimiser = torch.optim.SGD([weight], lr=4 / (top + low) ** 2, momentum=momentum)
        for _ in range(steps):
            optimiser.zero_grad()
            self(weight).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return weight.detach()


def noise_ridge(moments: Moments) -> float:
    """Return a ridge from the noise level alone: the spectral norm that pure noise on S2/n would have."""
    if moments.sd_second is None:
        return 0.0
    q = len(moments.sd_second)
    off = float(moments.sd_second[0, -1]) if q > 1 else float(moments.sd_second[0, 0])
    return 2 * off * math.sqrt(q) / moments.n


def objective(moments: Moments, ridge: float | None = None) -> Objective:
    """Build F from released moments; S2 is projected to positive semi-definite, then the ridge is added.

    Without released second moments F has no curvature and no minimum; that is refused.
    """
    second = raw_second(moments)
    if second is None or moments.basis is not None or len(second) != moments.sums.shape[1]:
        raise UserError(
            "the polynomial objective needs second moments of all released coordinates; "
            "make the release with them, or train on drawn examples"
        )
    values, vectors = torch.linalg.eigh(second / moments.n)
    added = noise_ridge(moments) if ridge is None else ridge
    curvature = (vectors * (values.clamp_min(0) + added)) @ vectors.T
    slope = (moments.sums.sum(0) / 2 - moments.sums) / moments.n
    return Objective(slope, curvature)
