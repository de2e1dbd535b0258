"""Layers that bound hidden neurons to [0, 1] for the next layer (line 15, Eq. 22)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from adlm.errors import UserError

TOGETHER = 100  # fewer records than this are normalised by the moving averages of training
_BLOCK = 1 << 18  # numbers in a block: it stays in a core's cache between steps


class _BoundedResponse(torch.autograd.Function):
    """min(1, h (q + alpha sum h_m^2)^-beta) of rows of maps, with a hand-written derivative.

    That is h / max(h, (q + alpha sum h_m^2)^beta). The sum over neighbouring maps is a product with a band
    matrix, and rows are processed in blocks that stay in the cache.
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
        gradient = torch.empty_like(h)
        for rows in _blocks(h):
            # Where h is the max the result is 1, a constant.
            direct = torch.ops.aten.hardtanh_backward(upstream[0][rows], bounded[rows], -math.inf, 1.0)
            around = (direct * bounded[rows]).div_(inner[rows]) @ band
            torch.mul(direct, factor[rows], out=gradient[rows]).addcmul_(h[rows], around, value=ctx.slope)
        return gradient, None, None, None, None


def _blocks(h: Tensor) -> Iterator[slice]:
    """Rows of (n, maps) in blocks that fit a cache; all at once on an accelerator."""
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
    non-negative h within [0, 1], which torch's layer of this name does not.
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
        last = h.movedim(1, -1)  # no copy if memory is already channels last
        rows = last.reshape(-1, h.shape[1])
        if self.training:
            bounded: Tensor = _BoundedResponse.apply(rows, band, self.q, self.alpha, self.beta)  # type: ignore[no-untyped-call]
        else:
            outer = (self.q + self.alpha * (rows.square() @ band)).pow(self.beta)
            bounded = rows / torch.maximum(rows, outer)
        return bounded.view(last.shape).movedim(-1, 1)

    def extra_repr(self) -> str:
        return f"q={self.q}, l={self.l}, alpha={self.alpha}, beta={self.beta}"


class BatchStatistics(nn.Module):
    """A layer that uses batch statistics in training and keeps moving averages of them.

    In evaluation it uses the averages, so that the output for a record depends on that record alone. If it
    was trained on noisy records, clean ones fall into a narrow band of these averages and are hard to
    distinguish; `by_batch` lets such a layer use the statistics of the batch instead.

    Batch statistics couple records. On a release that is harmless. On private records a network must be in
    evaluation mode and outside of `by_batch`, as relevance propagation ensures.
    """

    lrp_pass_through = True
    seen: Tensor

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum, self.by_batch = momentum, False
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def _of_batch(self) -> bool:
        return self.training or self.by_batch

    @torch.no_grad()
    def _keep(self, *pairs: tuple[Tensor, Tensor]) -> None:
        """Update moving averages with the statistics of a batch."""
        if self.training:
            step = 1.0 if self.seen == 0 else self.momentum
            for average, current in pairs:
                average.lerp_(current.detach(), step)
            self.seen += 1


class MinMax(BatchStatistics):
    """The paper's normalisation of dense layers: (h - chi) / (phi - chi), per neuron over the batch.

    chi and phi are the least and largest value of each neuron in the batch, or moving averages of them.
    Outside them the result is clipped to [0, 1].
    """

    low: Tensor
    high: Tensor

    def __init__(self, width: int, momentum: float = 0.1, floor: float = 1e-6) -> None:
        super().__init__(momentum)
        self.floor = floor
        self.register_buffer("low", torch.zeros(width))
        self.register_buffer("high", torch.ones(width))

    def forward(self, h: Tensor) -> Tensor:
        """Normalise (n, width)."""
        low, high = self.low, self.high
        if self._of_batch():
            low, high = h.amin(0), h.amax(0)
            self._keep((self.low, low), (self.high, high))
        return ((h - low) / (high - low).clamp_min(self.floor)).clamp(0, 1)


class Standardise(BatchStatistics):
    """Batch normalisation with a learnt scale and shift, as in the dense layer of the authors' code."""

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int, momentum: float = 0.1, floor: float = 1e-3) -> None:
        super().__init__(momentum)
        self.floor = floor
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, h: Tensor) -> Tensor:
        """Normalise (n, width)."""
        mean, variance = self.mean, self.variance
        if self._of_batch():
            mean, variance = h.mean(0), h.var(0, correction=0)
            self._keep((self.mean, mean), (self.variance, variance))
        return (h - mean) * (self.scale * (variance + self.floor).rsqrt()) + self.shift


def even_parts(n: int, most: int) -> list[slice]:
    """0..n in parts of nearly equal size, at most `most`, so that no part is too small for statistics."""
    parts = max(1, -(-n // most))
    return [slice(n * i // parts, n * (i + 1) // parts) for i in range(parts)]


@contextmanager
def by_batch(network: nn.Module, wanted: bool = True) -> Iterator[None]:
    """Let a network use the statistics of each batch inside this context.

    This includes torch's batch normalisation. Statistics are reliable from `TOGETHER` records on.
    """
    layers = list(network.modules()) if wanted else []
    bounded = [layer for layer in layers if isinstance(layer, BatchStatistics)]
    others = [layer for layer in layers if isinstance(layer, _BatchNorm)]
    statistics = [(layer.running_mean, layer.running_var) for layer in others]
    for bounded_layer in bounded:
        bounded_layer.by_batch = True
    for layer in others:
        layer.running_mean = layer.running_var = None
    try:
        yield
    finally:
        for bounded_layer in bounded:
            bounded_layer.by_batch = False
        for layer, (mean, variance) in zip(others, statistics, strict=True):
            layer.running_mean, layer.running_var = mean, variance
