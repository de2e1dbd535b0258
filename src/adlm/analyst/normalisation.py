"""The layers that bound hidden neurons to [0, 1] before the next layer is stacked (line 15, Eq. 22)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.errors import UserError


class _BoundedResponse(torch.autograd.Function):
    """h / max(h, (q + alpha sum h_m^2)^beta) with its derivative by hand: a third of autograd's time."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, band: Tensor, q: float, alpha: float, beta: float) -> Tensor:
        inner = F.conv2d(h.square(), band).mul_(alpha).add_(q)
        outer = _power(inner, beta)
        ctx.save_for_backward(h, band, inner, outer)
        ctx.alpha, ctx.beta = alpha, beta
        return h / torch.maximum(h, outer)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None, None, None, None]:
        h, band, inner, outer = ctx.saved_tensors
        # Where h wins the max the result is 1. A product, as a choice would take longer on noisy records.
        direct = (upstream[0] / outer).mul_(h < outer)
        around = F.conv2d(direct * h / inner, band)
        return direct - 2 * ctx.alpha * ctx.beta * h * around, None, None, None, None


def _power(t: Tensor, beta: float) -> Tensor:
    """t^beta; three quarters are two square roots, which are much faster."""
    return t.sqrt().mul_(t.sqrt().sqrt_()) if beta == 0.75 else t.pow(beta)


class LocalResponseNorm(nn.Module):
    """The paper's normalisation of convolutional layers: h / max(h, (q + alpha sum h_m^2)^beta).

    The sum runs over the l feature maps around each map, at the same place. The max keeps the result of a
    non-negative h within [0, 1], which the usual layer of this name does not.
    """

    lrp_pass_through = True

    def __init__(self, q: float = 2.0, l: int = 5, alpha: float = 1e-4, beta: float = 0.75) -> None:  # noqa: E741
        super().__init__()
        if l < 1 or q <= 0:
            raise UserError(f"l must be at least 1 feature map and q positive (got {l} and {q}).")
        self.q, self.l, self.alpha, self.beta = q, l, alpha, beta

    def forward(self, h: Tensor) -> Tensor:
        """Normalise (n, maps, *places)."""
        place = torch.arange(h.shape[1], device=h.device)
        band = ((place[:, None] - place).abs() <= self.l // 2).to(h)[:, :, None, None]
        flat = h.flatten(2).unsqueeze(3)
        if self.training:
            bounded: Tensor = _BoundedResponse.apply(flat, band, self.q, self.alpha, self.beta)  # type: ignore[no-untyped-call]
        else:
            inner = self.q + self.alpha * F.conv2d(flat.square(), band)
            bounded = flat / torch.maximum(flat, inner.pow(self.beta))
        return bounded.view_as(h)

    def extra_repr(self) -> str:
        return f"q={self.q}, l={self.l}, alpha={self.alpha}, beta={self.beta}"


class MinMax(nn.Module):
    """The paper's normalisation of dense layers: (h - chi) / (phi - chi), per neuron over the batch.

    While training, chi and phi are the least and largest value of each neuron in the batch, and moving
    averages of them are kept; in evaluation the averages serve, so that the answer for a record is its own.
    Outside them the result is clipped to [0, 1].

    Batch statistics couple records. On a release that is harmless; a network that meets private records
    must be in evaluation mode, as relevance propagation sees to.
    """

    lrp_pass_through = True
    low: Tensor
    high: Tensor
    seen: Tensor

    def __init__(self, width: int, momentum: float = 0.1, floor: float = 1e-6) -> None:
        super().__init__()
        self.momentum, self.floor = momentum, floor
        self.register_buffer("low", torch.zeros(width))
        self.register_buffer("high", torch.ones(width))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, h: Tensor) -> Tensor:
        """Normalise (n, width)."""
        low, high = self.low, self.high
        if self.training:
            low, high = h.amin(0), h.amax(0)
            with torch.no_grad():
                step = 1.0 if self.seen == 0 else self.momentum
                self.low.lerp_(low.detach(), step)
                self.high.lerp_(high.detach(), step)
                self.seen += 1
        return ((h - low) / (high - low).clamp_min(self.floor)).clamp(0, 1)
