"""Exact products and norms: nothing in them is rounded, so the last bit does not depend on the batch.

Entries are rounded to a grid so coarse that every sum of products is an integer below 2^53 steps. A double
holds it exactly, so the result does not depend on the order of addition, which varies with the batch's shape
and the number of threads. The one operation per entry that remains is fixed by IEEE 754.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

EXACT = 53  # bits of an integer that a double holds
COARSEST = 20  # bits of the largest direction
CACHED = 8  # rows rounded together: they stay in a core's cache


class ExactDirections(nn.Module):
    """Product of rows with fixed directions (p, k), exact on a grid: (n, p) to (n, k) in doubles.

    Parameters
    ----------
    directions : (p, k). They are rounded to 20 bits of the largest, or kept if they are integers below 2^20.
    limit : entries of a row beyond it are cut off.
    """

    steps: Tensor

    def __init__(self, directions: Tensor, limit: float) -> None:
        super().__init__()
        wide, self.limit = directions.double(), limit
        integral = bool((wide == wide.round()).all()) and float(wide.abs().max()) < 2**COARSEST
        self.unit = 1.0 if integral else 2.0 ** (_exponent(float(wide.abs().max())) - COARSEST)
        # Not in the fingerprint: it is derived from what is.
        self.register_buffer("steps", (wide / self.unit).round(), persistent=False)
        longest = float(self.steps.abs().sum(0).max())
        self.grid = 2.0 ** (EXACT - 1 - _exponent(longest * limit))

    def forward(self, rows: Tensor, width: int | None = None) -> Tensor:
        """Return rows (n, p) times the first `width` directions, in doubles."""
        steps = self.steps[:, :width]
        if _rounded(rows):
            return rows @ (steps * self.unit).to(rows)
        integers = rows.new_empty(rows.shape, dtype=torch.float64)
        for part, block in zip(torch.split(rows, CACHED), torch.split(integers, CACHED), strict=True):
            block.copy_(part).clamp_(-self.limit, self.limit).mul_(self.grid).round_()
        product: Tensor = (integers @ steps).mul_(self.unit / self.grid)
        return product


def exact_unit_norm(z: Tensor, floor: float = 1e-6) -> Tensor:
    """Scale rows to L2 norm 1, as `unit_norm` does, with exact sums of squares: float32."""
    if _rounded(z):
        unit: Tensor = z / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_min(floor)
        return unit.float()
    wide = z.double()
    largest = wide.abs().amax(1, keepdim=True).clamp_min(2.0**-200)
    power = largest / torch.frexp(largest).mantissa  # a power of two, next above the largest entry
    bits = (EXACT - 1 - math.ceil(math.log2(max(z.shape[1], 2)))) // 2
    integers = (wide / power).mul_(2.0**bits).round_()
    norm = integers.square_().sum(1, keepdim=True).sqrt_() * (power / 2.0**bits)
    return (wide / norm.clamp_min(floor)).float()


def _rounded(x: Tensor) -> bool:
    """Whether to use ordinary arithmetic: for gradients, which rounding has not, and for ONNX export."""
    return x.requires_grad or torch.onnx.is_in_onnx_export()


def _exponent(value: float) -> int:
    """Return the least e with |value| < 2^e."""
    return math.frexp(value)[1]
