"""A cosine that gives the same bits in every batch, thread and machine."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adlm.public.features.loops import HALF_PI, SINE


def cosine(x: Tensor) -> Tensor:
    """Return cos(x) for |x| below 10^6, by elementary IEEE operations, to about 15 digits."""
    quarter = (x * (2 / math.pi)).round_()
    inner = (x - quarter * HALF_PI[0]).sub_(quarter * HALF_PI[1])
    # cos(q pi/2 + r) = sin((q + 1) pi/2 + r); an odd quarter turn makes a cosine of r, sin(pi/2 - |r|)
    turn = quarter.add_(1.0)
    turn.sub_(torch.floor(turn * 0.25).mul_(4.0))
    back = torch.floor(turn * 0.5)  # 1 in the half turn where the sine is negative, else 0
    odd = turn.sub_(back * 2.0)
    # products with 0 and 1 are exact, and faster than torch.where
    inner = (math.pi / 2 - inner.abs()).mul_(odd).add_(inner.mul_(1.0 - odd))
    square = inner * inner
    value: Tensor = square * SINE[0]
    for coefficient in SINE[1:-1]:
        value.add_(coefficient).mul_(square)
    value.add_(SINE[-1]).mul_(inner)
    value.mul_(back.mul_(-2.0).add_(1.0))
    return value
