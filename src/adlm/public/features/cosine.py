"""A cosine that gives the same bits in every batch, thread and machine."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SINE = tuple((-1) ** i / math.factorial(2 * i + 1) for i in range(9, -1, -1))
_HALF_PI = (1.5707963267341256, 6.077100506506192e-11)  # high part, whose small multiples are exact, and low


def cosine(x: Tensor) -> Tensor:
    """Return cos(x) for |x| below 10^6, by single IEEE operations, to about 15 digits."""
    quarter = torch.round(x * (2 / math.pi))
    rest = (x - quarter * _HALF_PI[0]) - quarter * _HALF_PI[1]
    # cos(q pi/2 + r) = sin((q + 1) pi/2 + r); an odd quarter turn makes a cosine of r, sin(pi/2 - |r|)
    turn = quarter + 1.0
    turn = turn - 4.0 * torch.floor(turn * 0.25)
    odd = (turn == 1.0) | (turn == 3.0)
    inner = torch.where(odd, math.pi / 2 - rest.abs(), rest)
    square = inner * inner
    value = torch.full_like(inner, _SINE[0])
    for coefficient in _SINE[1:]:
        value = value * square + coefficient
    value = value * inner
    return torch.where(turn >= 2.0, -value, value)
