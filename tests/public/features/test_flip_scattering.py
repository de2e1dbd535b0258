"""Flip-averaged scattering by products of matrices, against two transforms of the general form."""

from __future__ import annotations

import pytest
import torch

from adlm.public.features.flip_scattering import FlipScattering
from adlm.public.features.scattering import Scattering
from adlm.public.features.tents import tent_means


@pytest.mark.parametrize(("size", "angles"), [(32, 8), (16, 6)])
def test_it_gives_what_scattering_an_image_and_its_mirror_image_gives(size: int, angles: int) -> None:
    scattering = Scattering((size, size), 2, angles)
    fast = FlipScattering(scattering)
    x = torch.rand((5, size, size), generator=torch.Generator().manual_seed(0))
    once, again = (tent_means(scattering(images), size // 8) for images in (x, x.flip(2)))
    slow = 0.5 * (once + again)[..., : fast.cells[1]]
    found = fast(x)
    assert found.shape == slow.shape
    for order in range(3):
        mine, other = (z[:, scattering.orders == order] for z in (found, slow))
        assert float((mine - other).abs().max()) < 2e-6 * float(other.abs().max())
