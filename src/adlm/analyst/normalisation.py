"""The layers that bound hidden neurons to [0, 1] before the next layer is stacked (line 15, Eq. 21)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.errors import UserError


class LocalResponseNorm(nn.Module):
    """The paper's normalisation of convolutional layers: h / max(h, (q + alpha sum h_m^2)^beta).

    The sum runs over the l feature maps around each map, at the same place. The max keeps the result of a
    non-negative h within [0, 1], which the usual layer of this name does not.
    """

    lrp_pass_through = True

    def __init__(self, q: float = 2.0, l: int = 5, alpha: float = 1e-4, beta: float = 0.75) -> None:  # noqa: E741
        super().__init__()
        if l < 1:
            raise UserError(f"l must be at least 1 feature map (got {l}).")
        self.q, self.l, self.alpha, self.beta = q, l, alpha, beta

    def forward(self, h: Tensor) -> Tensor:
        """Normalise (n, maps, *places)."""
        half = self.l // 2
        squares = F.pad(h.square().flatten(2), (0, 0, half, half))
        maps = h.shape[1]
        around = torch.stack([squares[:, m : m + maps] for m in range(2 * half + 1)]).sum(0).view_as(h)
        return h / torch.maximum(h, (self.q + self.alpha * around).pow(self.beta))

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
