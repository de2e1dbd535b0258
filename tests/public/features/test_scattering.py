"""The scattering transform against a slow twin and against its published properties."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.errors import UserError
from adlm.public.features.scattering import (
    ROWS,
    Scattering,
    aliases,
    fold,
    gaussian,
    image_of,
    modulus,
    morlet,
    spectrum_of,
)
from adlm.public.features.threads import map_blocks_threaded

Image = NDArray[np.float64]

STORED = [0.4852291, 0.0021511, 0.0051432, 0.0031293, 0.0106093, 0.0016052, 0.0010593, 0.0006598]


def images(n: int, size: int = 28, seed: int = 0) -> torch.Tensor:
    """Rough random images: smoothed noise, in [0, 1]."""
    noise = torch.rand(n, 1, size, size, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.avg_pool2d(noise, 3, 1, 1)[:, 0]


def slow_wavelet(size: int, j: int, angle: float, slant: float) -> NDArray[np.complex128]:
    """The Morlet formula summed over the torus' images, pixel by pixel."""
    sigma, xi = 0.8 * 2**j, 0.75 * math.pi / 2**j
    wave, window = np.zeros((size, size), complex), np.zeros((size, size))
    for r in range(size):
        for c in range(size):
            for y in range(r - 2 * size, r + 3 * size, size):
                for x in range(c - 2 * size, c + 3 * size, size):
                    along = x * math.cos(angle) + y * math.sin(angle)
                    across = -x * math.sin(angle) + y * math.cos(angle)
                    g = math.exp(-(along**2 + slant**2 * across**2) / (2 * sigma**2))
                    window[r, c] += g
                    wave[r, c] += g * complex(math.cos(xi * along), math.sin(xi * along))
    return np.asarray((wave - window * wave.sum() / window.sum()) * slant / (2 * math.pi * sigma**2))


def slow_convolution(x: Image, kernel: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Circular convolution by direct summation, at full resolution."""
    size = len(x)
    out = np.zeros((size, size), complex)
    for r in range(size):
        for c in range(size):
            out += x[r, c] * np.roll(kernel, (r, c), (0, 1))
    return out


def slow_average(u: Image, sigma: float, step: int, count: int) -> Image:
    size = len(u)
    out = np.zeros((count, count))
    wraps = [[t + m * size for m in range(-3, 4)] for t in range(size)]
    density = np.array([sum(math.exp(-(u**2) / (2 * sigma**2)) for u in row) for row in wraps])
    density /= density.sum()
    for a in range(count):
        for b in range(count):
            for r in range(size):
                for c in range(size):
                    out[a, b] += u[r, c] * density[r - step * (a + 1)] * density[c - step * (b + 1)]
    return out


def slow_scattering(image: Image, J: int, L: int, factor: float) -> Image:
    """Scattering straight from the formulas: wavelets at full resolution, sampled after the convolution."""
    before = 2 ** (J - 1)
    x = np.pad(image, before, mode="reflect")
    slant, count = min(1.0, 4 / L), len(image) // 2**J
    angles = [math.pi * t / L for t in range(L)]
    psi = {(j, t): factor * slow_wavelet(len(x), j, angles[t], slant) for j in range(J) for t in range(L)}
    zero = [slow_average(x, 0.8 * 2 ** (J - 1), 2**J, count)]
    first, second = [], []
    for j1 in range(J):
        for t1 in range(L):
            u1 = np.abs(slow_convolution(x, psi[j1, t1]))[:: 2**j1, :: 2**j1]
            first.append(slow_average(u1, 0.8 * 2 ** (J - 1 - j1), 2 ** (J - j1), count))
            for j2 in range(j1 + 1, J):
                for t2 in range(L):
                    kernel = psi[j2, t2][:: 2**j1, :: 2**j1] * 4**j1
                    u2 = np.abs(slow_convolution(u1, kernel))[:: 2 ** (j2 - j1), :: 2 ** (j2 - j1)]
                    second.append(slow_average(u2, 0.8 * 2 ** (J - 1 - j2), 2 ** (J - j2), count))
    return np.stack(zero + first + second)


@pytest.mark.parametrize(("size", "J", "L"), [(8, 2, 3), (16, 3, 2), (8, 1, 8)])
def test_agrees_with_the_slow_twin(size: int, J: int, L: int) -> None:
    transform = Scattering((size, size), J, L)
    image = images(1, size)[0]
    slant = min(1.0, 4 / L)
    one = np.fft.fft2(morlet(transform.padded, 0, 0.0, slant))
    factor = float(np.abs(transform.wavelets[0, 0].numpy()).max() / np.abs(one).max())
    expected = slow_scattering(image.double().numpy(), J, L, factor)
    np.testing.assert_allclose(transform(image[None])[0].numpy(), expected, atol=2e-6)


def test_stored_values() -> None:
    """A diagonal ramp on 28 x 28 pixels, J = 2, L = 8: values once computed by the slow twin."""
    ramp = torch.linspace(0, 1, 28)
    image = (ramp[:, None] * ramp[None]).sqrt()
    image[10:18, 5:20] = 1 - image[10:18, 5:20]
    coefficients = Scattering((28, 28))(image[None])[0]
    assert coefficients.shape == (81, 7, 7)
    picked = coefficients[[0, 1, 5, 9, 13, 17, 50, 80], [3, 2, 3, 2, 3, 3, 2, 3], [3, 3, 1, 3, 1, 2, 3, 3]]
    torch.testing.assert_close(picked, torch.tensor(STORED), atol=2e-7, rtol=2e-5)


def test_wavelets_have_zero_mean_and_the_average_keeps_constants() -> None:
    coefficients = Scattering((28, 28))(torch.full((1, 28, 28), 0.7))[0]
    torch.testing.assert_close(coefficients[0], torch.full((7, 7), 0.7))
    assert coefficients[1:].abs().max() < 1e-6
    assert math.isclose(gaussian(32, 1.6).sum(), 1.0)


def test_never_expands_a_distance() -> None:
    """|Sx - Sy| 2^J <= |x - y| on the torus, for rough, smooth and nearby pairs."""
    transform = Scattering((28, 28))
    x = torch.cat([images(20), torch.rand(20, 28, 28, generator=torch.Generator().manual_seed(1))])
    y = torch.cat([images(20, seed=2), x[20:] + 0.01 * images(20, seed=3)])
    moved = 4 * (transform(x) - transform(y)).flatten(1).norm(dim=1)
    apart = (transform._pad(x) - transform._pad(y)).flatten(1).norm(dim=1)
    assert (moved <= apart).all()
    assert (4 * transform(x).flatten(1).norm(dim=1) <= transform._pad(x).flatten(1).norm(dim=1)).all()


def test_a_small_shift_moves_scattering_less_than_pixels() -> None:
    x = torch.zeros(8, 28, 28)
    x[:, 8:20, 8:20] = images(8, 12, seed=4)
    shifted = torch.roll(x, 1, dims=2)
    s, t = Scattering((28, 28))(x).flatten(1), Scattering((28, 28))(shifted).flatten(1)
    in_scattering = (s - t).norm(dim=1) / s.norm(dim=1)
    in_pixels = (x - shifted).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    assert (in_scattering < 0.6 * in_pixels).all()


def test_channels_are_transformed_one_by_one_and_batches_do_not_matter() -> None:
    transform = Scattering((28, 28), J=2, L=4)
    x = images(34).view(17, 2, 28, 28)
    out = transform(x)
    assert out.shape == (17, 2 * transform.channels, 7, 7)
    torch.testing.assert_close(out[16:, transform.channels :], transform(x[16:, 1]))
    assert transform.orders.bincount().tolist() == [1, 8, 16]


def test_one_axis_after_the_other_is_the_transform_of_both() -> None:
    x = torch.rand(3, 12, 20, generator=torch.Generator().manual_seed(5))
    spectrum = spectrum_of(x.transpose(-1, -2))
    torch.testing.assert_close(spectrum, torch.fft.fft2(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(image_of(spectrum).real, x.transpose(-1, -2))


@pytest.mark.parametrize("step", [1, 2, 4])
def test_aliases_added_up_are_the_folded_spectrum(step: int) -> None:
    spectrum = torch.fft.fft2(images(2, 24))
    added = aliases(spectrum, step).sum(0) / step**2
    torch.testing.assert_close(added, fold(spectrum, step).flatten(1))


@pytest.mark.parametrize("L", [1, 4, 5])
def test_pairs_are_averaged_as_single_signals_are(L: int) -> None:
    """Two signals on their side, as one complex one, against each signal upright; the last may be alone."""
    transform = Scattering((20, 28), 2, L)
    u = torch.rand(3, L + L % 2, 2, 24, 32, generator=torch.Generator().manual_seed(6))
    pairs = torch.complex(u[:, ::2], u[:, 1::2]).transpose(-1, -2).contiguous()
    out = torch.empty(3, L, 2, *transform.output)
    transform._averaged(pairs, 0, out)
    torch.testing.assert_close(out, transform._low_pass(u[:, :L], 0))


def test_moduli_of_two_signals_are_one_complex_tensor() -> None:
    u, v = torch.randn(2, 5, 7, dtype=torch.complex64, generator=torch.Generator().manual_seed(7))
    parts = torch.stack([torch.complex(u.real, v.real), torch.complex(u.imag, v.imag)])
    torch.testing.assert_close(modulus(parts), torch.complex(u.abs(), v.abs()))


def test_an_image_does_not_touch_its_neighbours() -> None:
    """Bit by bit: with another image in one place, all others keep their coefficients."""
    transform, x = Scattering((28, 28)), images(ROWS + 3)
    other = x.clone()
    other[5] = 1e3 * images(1, seed=8)[0]
    before, after = transform(x), transform(other)
    kept = torch.arange(len(x)) != 5
    assert torch.equal(before[kept], after[kept])
    assert not torch.equal(before[5], after[5])


def test_threads_change_nothing() -> None:
    """Bit by bit, in inference mode or not; and the caller's number of threads stays as it was."""
    transform, x, own = Scattering((28, 28)), images(3 * ROWS + 1), torch.get_num_threads()
    found = []
    try:
        for threads, inference in ((1, True), (2, True), (3, False)):
            torch.set_num_threads(threads)
            with torch.inference_mode(inference):
                found.append(transform(x).clone())
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(own)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("threads", [1, 3])
def test_work_is_shared_out_once_and_a_failure_is_told(threads: int) -> None:
    own = torch.get_num_threads()
    x = torch.arange(14.0).reshape(7, 2)

    def twice(block: Tensor, out: Tensor) -> None:
        assert len(block) == len(out) <= 2
        out.add_(2 * block)  # what is done twice would be added twice

    def fail(block: Tensor, out: Tensor) -> None:
        raise ValueError(f"not {block[0].tolist()}")

    try:
        torch.set_num_threads(threads)
        assert torch.equal(map_blocks_threaded(twice, x, torch.zeros(7, 2), 2), 2 * x)
        with pytest.raises(ValueError, match=r"not \[\d"):
            map_blocks_threaded(fail, x, torch.zeros(7, 2), 2)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(own)


def test_a_lane_is_not_split_again() -> None:
    own, seen = torch.get_num_threads(), []

    def inner(block: Tensor, out: Tensor) -> None:
        seen.append((threading.get_ident(), torch.get_num_threads()))

    def outer(block: Tensor, out: Tensor) -> None:
        before = len(seen)
        map_blocks_threaded(inner, block, out, 1)
        assert (threading.get_ident(), 1) in seen[before:]

    try:
        torch.set_num_threads(2)
        map_blocks_threaded(outer, torch.zeros(8, 1), torch.zeros(8, 1), 4)
    finally:
        torch.set_num_threads(own)
    assert len(seen) == 8
    assert {threads for _, threads in seen} == {1}


def test_gradients_reach_the_image() -> None:
    """Of a sum of coefficients, against a difference of it."""
    transform = Scattering((8, 8), 2, 3)
    x, direction = images(2, 8).requires_grad_(), images(2, 8, seed=9)
    transform(x).sum().backward()
    with torch.no_grad():
        change = (transform(x + 1e-2 * direction) - transform(x - 1e-2 * direction)).double().sum() / 2e-2
    assert x.grad is not None
    torch.testing.assert_close((x.grad * direction).double().sum(), change, rtol=1e-3, atol=0)


def test_folding_is_sampling() -> None:
    x = images(1, 24)[0]
    for step in (1, 2, 4):
        torch.testing.assert_close(torch.fft.ifft2(fold(torch.fft.fft2(x), step)).real, x[::step, ::step])


def test_sizes_that_are_no_multiple_of_the_stride() -> None:
    assert Scattering((30, 27))(torch.rand(2, 30, 27)).shape == (2, 81, 8, 7)


def test_wrong_shapes_are_told() -> None:
    with pytest.raises(UserError, match="28 x 28"):
        Scattering((28, 28))(torch.zeros(1, 27, 28))
    with pytest.raises(UserError, match="at least 2\\^J"):
        Scattering((3, 28))
