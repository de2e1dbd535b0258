"""The layers that bound hidden neurons to [0, 1] before the next layer is stacked (line 15, Eq. 22)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from adlm.errors import UserError

_BLOCK = 1 << 18  # numbers worked on at a time: what several steps in a row share stays in a core's cache


class _BoundedResponse(torch.autograd.Function):
    """min(1, h (q + alpha sum h_m^2)^-beta) of rows of maps, with its derivative by hand.

    That is h / max(h, (q + alpha sum h_m^2)^beta). The sum over neighbouring maps is a product with a band
    matrix, and rows pass in blocks, so that a step finds in the cache what the step before it left there.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, band: Tensor, q: float, alpha: float, beta: float) -> Tensor:
        offset = h.new_tensor([q])
        bounded, inner, factor = torch.empty_like(h), torch.empty_like(h), torch.empty_like(h)
        for rows in _blocks(h):
            part, around, scale, result = (t[rows] for t in (h, inner, factor, bounded))
            torch.addmm(offset, torch.mul(part, part, out=result), band, alpha=alpha, out=around)
            _inverse_power(around, beta, scale)
            torch.mul(part, scale, out=result).clamp_(max=1)
        ctx.save_for_backward(h, band, inner, factor, bounded)
        ctx.slope = -2 * alpha * beta
        return bounded

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None, None, None, None]:
        h, band, inner, factor, bounded = ctx.saved_tensors
        found = torch.empty_like(h)
        for rows in _blocks(h):
            # Where h wins the max the result is 1, and does not move with it.
            direct = torch.ops.aten.hardtanh_backward(upstream[0][rows], bounded[rows], -math.inf, 1.0)
            around = (direct * bounded[rows]).div_(inner[rows]) @ band
            torch.mul(direct, factor[rows], out=found[rows]).addcmul_(h[rows], around, value=ctx.slope)
        return found, None, None, None, None


def _blocks(h: Tensor) -> Iterator[slice]:
    """Rows of (n, maps) in blocks that fit a cache; all at once where there is no such cache to fit."""
    rows = max(1, _BLOCK // h.shape[1]) if h.device.type == "cpu" else max(1, len(h))
    return (slice(start, start + rows) for start in range(0, len(h), rows))


def _inverse_power(t: Tensor, beta: float, out: Tensor) -> Tensor:
    """t^-beta; three quarters are two square roots, which are much faster."""
    if beta != 0.75:
        return torch.pow(t, -beta, out=out)
    root = torch.rsqrt(t)
    return torch.sqrt(root, out=out).mul_(root)


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
        band = ((place[:, None] - place).abs() <= self.l // 2).to(h)
        last = h.movedim(1, -1)  # no copy where maps are the innermost axis in memory already
        rows = last.reshape(-1, h.shape[1])
        if self.training:
            bounded: Tensor = _BoundedResponse.apply(rows, band, self.q, self.alpha, self.beta)  # type: ignore[no-untyped-call]
        else:
            outer = (self.q + self.alpha * (rows.square() @ band)).pow(self.beta)
            bounded = rows / torch.maximum(rows, outer)
        return bounded.view(last.shape).movedim(-1, 1)

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
