"""Scattering by products of matrices, against the general form by Fourier transforms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adlm.public.features.hartley_scattering import SquareScattering, hartley, reflected_weights, reflecting
from adlm.public.features.scattering import Scattering


@pytest.mark.parametrize(("size", "angles"), [(28, 8), (16, 6), (18, 5)])
def test_it_gives_what_the_general_form_gives(size: int, angles: int) -> None:
    scattering = Scattering((size, size), 2, angles)
    x = torch.rand((5, size, size), generator=torch.Generator().manual_seed(0))
    found, slow = SquareScattering(scattering)(x), scattering(x)
    assert found.shape == slow.shape
    for order in range(3):
        mine, other = (z[:, scattering.orders == order] for z in (found, slow))
        assert float((mine - other).abs().max()) < 2e-6 * float(other.abs().max())


@pytest.mark.parametrize("value", [0.3, 0.7, 1.0])
def test_a_flat_image_has_no_response_and_one_average(value: float) -> None:
    found = SquareScattering(Scattering((28, 28)))(torch.full((1, 28, 28), value))
    assert float(found[:, 1:].abs().max()) == 0.0
    assert len(found[0, 0].unique()) == 1
    assert float(found[0, 0, 0, 0]) == pytest.approx(value, rel=1e-5)


def test_edges_are_mirrored_as_padding_does() -> None:
    x = torch.rand(7, generator=torch.Generator().manual_seed(1)).double()
    padded = torch.nn.functional.pad(x[None], (2, 3), mode="reflect")[0]
    np.testing.assert_array_equal(reflecting(7, 2, 12) @ x.numpy(), padded.numpy())


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
