"""Products and norms whose last bit does not depend on the batch, because nothing in them is rounded.

Numbers are put on a grid, one by one, that is so coarse that every sum of products is a whole number below
2^53 steps. A double holds it exactly, so the order in which a library adds, which follows the shape of a
batch and the number of threads, cannot show. What is left is one operation a number, which IEEE 754 fixes.

Where directions are whole numbers of 8 bits, rows are cut into digits of 7 bits, and processors that multiply
bytes do it in a third of the time. Both ways give the same whole numbers, so which was taken cannot show.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, nn

EXACT = 53  # bits of a whole number that a double holds
COARSEST = 20  # bits of the largest direction
CACHED = 8  # rows brought to the grid together: they stay in a core's cache
DIGIT, DIGITS = 7, 3  # bits of a digit, and digits of a row's entry: steps of the grid, with their sign


class ExactDirections(nn.Module):
    """Product of rows with fixed directions (p, k), exact on a grid: (n, p) to (n, k) in doubles.

    Parameters
    ----------
    directions : (p, k). They are rounded to 20 bits of the largest, or kept if they are whole numbers below.
    limit : entries of a row beyond it are cut off.
    """

    steps: Tensor
    small: Tensor | None

    def __init__(self, directions: Tensor, limit: float) -> None:
        super().__init__()
        wide, self.limit = directions.double(), limit
        whole = bool((wide == wide.round()).all()) and float(wide.abs().max()) < 2**COARSEST
        self.unit = 1.0 if whole else 2.0 ** (_exponent(float(wide.abs().max())) - COARSEST)
        # Not in the fingerprint: it follows from what is.
        self.register_buffer("steps", (wide / self.unit).round(), persistent=False)
        longest = float(self.steps.abs().sum(0).max())
        self.grid = 2.0 ** (EXACT - 1 - _exponent(longest * limit))
        # Bytes whose sums with digits fit 32 bits.
        small = float(self.steps.abs().max()) < 2**7 and longest < 2 ** (31 - DIGIT)
        self.register_buffer("small", self.steps.to(torch.int8) if small else None, persistent=False)

    def forward(self, rows: Tensor, width: int | None = None) -> Tensor:
        """Return rows (n, p) times the first `width` directions, in doubles."""
        steps = self.steps[:, :width]
        if _rounded(rows):
            return rows @ (steps * self.unit).to(rows)
        if self.small is not None and self._few_digits(rows):
            return self._by_digits(rows, self.small[:, :width])
        whole = rows.new_empty(rows.shape, dtype=torch.float64)
        for part, mine in zip(torch.split(rows, CACHED), torch.split(whole, CACHED), strict=True):
            mine.copy_(part).clamp_(-self.limit, self.limit).mul_(self.grid).round_()
        product: Tensor = (whole @ steps).mul_(self.unit / self.grid)
        return product

    def _few_digits(self, rows: Tensor) -> bool:
        """Say whether rows can be cut into `DIGITS` digits on this machine."""
        if rows.dtype != torch.float32 or rows.device.type != "cpu" or not len(rows) or not fast_bytes():
            return False
        lowest, highest = (float(end) for end in rows.aminmax())
        return max(-lowest, highest) < min(self.limit, (2.0 ** (DIGITS * DIGIT - 1) - 1) / self.grid)

    def _by_digits(self, rows: Tensor, small: Tensor) -> Tensor:
        """Return rows times directions of 8 bits, digit by digit, the lowest first."""
        digits = rows.new_empty(DIGITS, *rows.shape, dtype=torch.int8)
        for part, mine in zip(torch.split(rows, CACHED), torch.split(digits, CACHED, 1), strict=True):
            steps = (part * self.grid).round_().to(torch.int32)
            for digit in mine[:-1]:
                digit.copy_(steps & (2**DIGIT - 1))
                steps >>= DIGIT
            mine[-1] = steps
        sums = torch._int_mm(digits.flatten(0, 1), small).double().view(DIGITS, len(rows), -1)
        total = sums[-1]
        for lower in sums.flip(0)[1:]:
            total = total * 2**DIGIT + lower
        return total * (self.unit / self.grid)


@cache
def fast_bytes() -> bool:
    """Say whether torch adds products of bytes in 32 bits, and fast: processors without VNNI do neither."""
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    return supported is not None and bool(supported()) and hasattr(torch, "_int_mm")


def exact_unit_norm(z: Tensor, floor: float = 1e-6) -> Tensor:
    """Scale rows to L2 norm 1, as `unit_norm` does, each by a sum of squares that is exact: float32."""
    if _rounded(z):
        unit: Tensor = z / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_min(floor)
        return unit.float()
    wide = z.double()
    largest = wide.abs().amax(1, keepdim=True).clamp_min(2.0**-200)
    power = largest / torch.frexp(largest).mantissa  # a power of two, next above the largest entry
    bits = (EXACT - 1 - math.ceil(math.log2(max(z.shape[1], 2)))) // 2
    whole = (wide / power).mul_(2.0**bits).round_()
    norm = whole.square_().sum(1, keepdim=True).sqrt_() * (power / 2.0**bits)
    return (wide / norm.clamp_min(floor)).float()


def _rounded(x: Tensor) -> bool:
    """Say whether ordinary arithmetic will do: for a slope, which a grid has not, and for a trace."""
    return x.requires_grad or torch.onnx.is_in_onnx_export()


def _exponent(value: float) -> int:
    """Return the least e with |value| < 2^e."""
    return math.frexp(value)[1]
