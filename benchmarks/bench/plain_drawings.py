"""Reference implementation of the features of drawn images, to compare the fast one with: order by order."""

from __future__ import annotations

import torch
from torch import Tensor

from adlm.public.features.base import unit_norm
from adlm.public.features.deskew import deskew
from adlm.public.features.prior import FLOOR, PriorProjection


def plain_drawings(features: PriorProjection, x: Tensor) -> Tensor:
    """Map (n, 28, 28) to (n, width), as `features` does, by Fourier transforms."""
    transform = features.transform
    coefficients = transform.scattering(deskew(x) if transform.deskewed else x)
    counts = torch.bincount(transform.scattering.orders).tolist()
    orders = [_normed(order.flatten(1)) for order in torch.split(coefficients, counts, 1)]
    return unit_norm((torch.cat(orders, 1) - features.centre) @ features.projection)


def _normed(order: Tensor) -> Tensor:
    roots = order.maximum(FLOOR * order.mean(1, keepdim=True).clamp_min(0)).sqrt()
    return unit_norm(roots - roots.mean(1, keepdim=True))
