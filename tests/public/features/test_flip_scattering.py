"""Flip-averaged scattering by products of matrices, against two transforms of the general form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from adlm.public.features.flip_scattering import FlipScattering
from adlm.public.features.hartley_scattering import hartley, reflected_weights
from adlm.public.features.scattering import Scattering


@pytest.mark.parametrize(("size", "angles"), [(32, 8), (16, 6)])
def test_it_gives_what_scattering_an_image_and_its_mirror_image_gives(size: int, angles: int) -> None:
    scattering = Scattering((size, size), 2, angles)
    fast = FlipScattering(scattering)
    x = torch.rand((5, size, size), generator=torch.Generator().manual_seed(0))
    once, again = (functional.avg_pool2d(scattering(images), 2) for images in (x, x.flip(2)))
    slow = 0.5 * (once + again)[..., : fast.cells[1]]
    found = fast(x)
    assert found.shape == slow.shape
    for order in range(3):
        mine, other = (z[:, scattering.orders == order] for z in (found, slow))
        assert float((mine - other).abs().max()) < 2e-6 * float(other.abs().max())


def test_a_hartley_matrix_is_its_own_inverse() -> None:
    np.testing.assert_allclose(hartley(12) @ hartley(12), np.eye(12), atol=1e-12)


def test_reflected_coefficients_convolve() -> None:
    # A wavelet is any kernel with a real spectrum; its response is compared with the Fourier transform's.
    rng = np.random.default_rng(1)
    spectrum, u, basis = rng.normal(size=(1, 8, 8)), rng.normal(size=(8, 8)), hartley(8)
    weights, coefficients, reflect = reflected_weights(spectrum), basis @ u @ basis, -np.arange(8)
    sideways, upended = coefficients[:, reflect], coefficients[reflect]
    around = sideways[reflect]
    sources = ((coefficients, around), (sideways, upended))
    real, imaginary = (
        basis @ sum(w * k for w, k in zip(weights[part, 0], sources[part], strict=True)) @ basis
        for part in (0, 1)
    )
    np.testing.assert_allclose(real + 1j * imaginary, np.fft.ifft2(np.fft.fft2(u) * spectrum[0]), atol=1e-12)
