"""The scattering transform against a slow twin and against its published properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adlm.errors import UserError
from adlm.features.scattering import (
    CHANNELS,
    COMPLEX,
    LINE,
    ORDERS,
    ROWS,
    SIZE,
    SLANT,
    OrderNorms,
    Scattering,
    _transform,
    fold,
    gaussian,
    morlet,
    radices_of,
)
from adlm.runtime.compiled import LANES

Image = NDArray[np.float64]
COUNTS = (2, 13, 40)
FEW = torch.arange(3).repeat_interleave(torch.tensor(COUNTS))
SETTINGS = [(0.1, (0.0, 0.0, 0.0), 1e-6, 0), (0.0, (0.05, 0.1, 0.2), 0.0, 1)]

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


def test_agrees_with_the_slow_twin() -> None:
    transform, image = Scattering(20), images(1, 20)[0]
    one = np.fft.fft2(morlet((transform.padded,) * 2, 0, 0.0, SLANT))
    factor = float(np.abs(transform.wavelets[0, 0].numpy()).max() / np.abs(one).max())
    expected = slow_scattering(image.double().numpy(), 2, 8, factor)
    np.testing.assert_allclose(transform(image[None])[0].numpy(), expected, atol=2e-6)
    np.testing.assert_allclose(transform.products(image[None])[0].numpy(), expected, atol=2e-6)


def test_stored_values() -> None:
    """A diagonal ramp on 28 x 28 pixels, two scales, eight angles: values once computed by the slow twin."""
    ramp = torch.linspace(0, 1, 28)
    image = (ramp[:, None] * ramp[None]).sqrt()
    image[10:18, 5:20] = 1 - image[10:18, 5:20]
    coefficients = Scattering(28)(image[None])[0]
    assert coefficients.shape == (81, 7, 7)
    picked = coefficients[[0, 1, 5, 9, 13, 17, 50, 80], [3, 2, 3, 2, 3, 3, 2, 3], [3, 3, 1, 3, 1, 2, 3, 3]]
    torch.testing.assert_close(picked, torch.tensor(STORED), atol=2e-7, rtol=2e-5)


def test_wavelets_have_zero_mean_and_the_average_keeps_constants() -> None:
    coefficients = Scattering(28)(torch.full((1, 28, 28), 0.7))[0]
    torch.testing.assert_close(coefficients[0], torch.full((7, 7), 0.7))
    assert coefficients[1:].abs().max() < 1e-6
    assert math.isclose(gaussian(32, 1.6).sum(), 1.0)


def test_never_expands_a_distance() -> None:
    """|Sx - Sy| 2^J <= |x - y| on the torus, for rough, smooth and nearby pairs."""
    transform = Scattering(28)
    x = torch.cat([images(20), torch.rand(20, 28, 28, generator=torch.Generator().manual_seed(1))])
    y = torch.cat([images(20, seed=2), x[20:] + 0.01 * images(20, seed=3)])
    moved = 4 * (transform(x) - transform(y)).flatten(1).norm(dim=1)
    apart = (transform.pad(x) - transform.pad(y)).flatten(1).norm(dim=1)
    assert (moved <= apart).all()
    assert (4 * transform(x).flatten(1).norm(dim=1) <= transform.pad(x).flatten(1).norm(dim=1)).all()


def test_a_small_shift_moves_scattering_less_than_pixels() -> None:
    x = torch.zeros(8, 28, 28)
    x[:, 8:20, 8:20] = images(8, 12, seed=4)
    shifted = torch.roll(x, 1, dims=2)
    s, t = Scattering(28)(x).flatten(1), Scattering(28)(shifted).flatten(1)
    in_scattering = (s - t).norm(dim=1) / s.norm(dim=1)
    in_pixels = (x - shifted).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    assert (in_scattering < 0.6 * in_pixels).all()


def test_channels_are_transformed_one_by_one_and_batches_do_not_matter() -> None:
    transform = Scattering(28)
    x = images(34).view(17, 2, 28, 28)
    out = transform(x)
    assert out.shape == (17, 2 * CHANNELS, 7, 7)
    torch.testing.assert_close(out[16:, CHANNELS:], transform(x[16:, 1]))
    assert ORDERS.bincount().tolist() == [1, 16, 64]


@pytest.mark.parametrize("side", [20, 28, 32, 44, 60])
def test_a_line_is_transformed_in_every_lane(side: int) -> None:
    """In plain Python, against NumPy's transform, at both scales; the result may lie where the line lay."""
    plan, rng = Scattering(side).plan, np.random.default_rng(side)
    for scale in range(2):
        size = int(plan.at[SIZE]) >> scale
        s, start = np.zeros(plan.room, np.float32), int(plan.at[LINE])
        line = rng.normal(size=(size, LANES)) + 1j * rng.normal(size=(size, LANES))
        numbers = np.stack([line.real, line.imag], 1).astype(np.float32)
        s[start : start + size * COMPLEX] = numbers.ravel()
        _transform(s, start, COMPLEX, start, COMPLEX, plan.table, plan.at, scale)
        found = s[start : start + size * COMPLEX].reshape(size, 2, LANES)
        expected = np.fft.fft(numbers[:, 0] + 1j * numbers[:, 1], axis=0)
        assert math.prod(radices_of(size)) == size
        np.testing.assert_allclose(found[:, 0] + 1j * found[:, 1], expected, atol=4e-7 * size)


@pytest.mark.parametrize("size", [20, 28, 32])
def test_both_forms_agree(size: int) -> None:
    transform, x = Scattering(size), images(3, size)
    found, slow = transform(x), transform.double().products(x.double())
    for order in range(3):
        mine, other = (z[:, order == ORDERS] for z in (found, slow))
        assert float((mine - other).abs().max()) < 2e-6 * float(other.abs().max())


@pytest.mark.parametrize("value", [0.3, 0.7, 1.0])
def test_a_flat_image_has_no_response_and_one_average(value: float) -> None:
    found = Scattering(28)(torch.full((1, 28, 28), value))
    assert float(found[:, 1:].abs().max()) == 0.0
    assert len(found[0, 0].unique()) == 1
    assert float(found[0, 0, 0, 0]) == pytest.approx(value, rel=1e-5)


def test_an_image_does_not_touch_its_neighbours() -> None:
    """Bit by bit: with another image in one place, all others keep their coefficients."""
    transform, x = Scattering(28), images(ROWS + 3)
    other = x.clone()
    other[5] = 1e3 * images(1, seed=8)[0]
    before, after = transform(x), transform(other)
    kept = torch.arange(len(x)) != 5
    assert torch.equal(before[kept], after[kept])
    assert not torch.equal(before[5], after[5])


def test_threads_change_nothing() -> None:
    """Bit by bit, in inference mode or not; and the caller's number of threads stays as it was."""
    transform, x, own = Scattering(28), images(3 * ROWS + 1), torch.get_num_threads()
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


def test_gradients_reach_the_image() -> None:
    """Of a sum of coefficients, against a difference of it."""
    transform = Scattering(20)
    x, direction = images(2, 20).requires_grad_(), images(2, 20, seed=9)
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
    assert Scattering(30)(torch.rand(2, 30, 30)).shape == (2, 81, 8, 8)


def test_wrong_shapes_are_told() -> None:
    with pytest.raises(UserError, match="28 x 28"):
        Scattering(28)(torch.zeros(1, 27, 28))
    with pytest.raises(UserError, match="17 to 20, 25 to 32"):
        Scattering(16)


def slow_norms(
    rows: torch.Tensor, share: float, added: tuple[float, ...], least: float, plain: int
) -> torch.Tensor:
    parts = []
    for order, own in enumerate(torch.split(rows.double(), list(COUNTS), 1)):
        roots = own
        if order >= plain:
            roots = own.maximum(share * own.mean(1, keepdim=True).clamp_min(0)).sqrt()
        centred = roots - roots.mean(1, keepdim=True)
        parts.append(centred / (centred.norm(dim=1, keepdim=True) + added[order]).clamp_min(least))
    return torch.cat(parts, 1)


@pytest.mark.parametrize(("share", "added", "least", "plain"), SETTINGS)
def test_both_forms_of_norms_are_the_formula(
    share: float, added: tuple[float, ...], least: float, plain: int
) -> None:
    rows = torch.rand((4, sum(COUNTS)), generator=torch.Generator().manual_seed(0))
    norms = OrderNorms(FEW, share, added, least, plain)
    slow = slow_norms(rows, share, added, least, plain)
    torch.testing.assert_close(norms(rows).double(), slow, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        torch.from_numpy(norms.compiled(rows.numpy().copy())).double(), slow, atol=1e-6, rtol=0
    )


def test_a_constant_order_is_exactly_zero() -> None:
    rows = torch.tensor([0.1, 0.3, 0.7])[FEW][None]
    norms = OrderNorms(FEW, *SETTINGS[0])
    assert float(norms(rows).abs().max()) == 0.0
    assert float(abs(norms.compiled(rows.numpy().copy())).max()) == 0.0


def test_a_norm_of_nothing_has_a_slope() -> None:
    rows = torch.zeros((1, sum(COUNTS)), requires_grad=True)
    OrderNorms(FEW, *SETTINGS[1])(rows).sum().backward()
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())
