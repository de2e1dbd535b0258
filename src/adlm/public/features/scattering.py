"""Wavelet scattering of images (Bruna and Mallat 2013): local, stable, and learnt from nothing.

With Morlet wavelets psi_(j, theta) at J dyadic scales and L angles, and a Gaussian phi of scale 2^J,

    order 0    x * phi
    order 1    |x * psi_(j1, theta1)| * phi
    order 2    ||x * psi_(j1, theta1)| * psi_(j2, theta2)| * phi      only for j2 > j1

sampled every 2^J pixels. The others of order 2 carry next to no energy and are not computed.

The spectrum of a Morlet wavelet is real. For a real signal u its even part gives the real part of u * psi,
its odd part the imaginary one. So two signals of one image, at adjacent angles, are stored as the real and
the imaginary part of one complex signal. The result is the real parts of both responses as one signal and
their imaginary parts as another. It takes no more transforms than one by one, and their moduli are again two
signals stored as one. Signals of two images are never stored together.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.public.features.threads import map_blocks_threaded

SIGMA = 0.8  # spread of the finest wavelet's envelope, in pixels
XI = 3 * math.pi / 4  # centre frequency of the finest wavelet
GRID = float(1 << 22)  # steps in one unit of a filter
ROWS = 32  # images in a batch of a thread


def gaussian(size: int, sigma: float) -> NDArray[np.float64]:
    """Sampled Gaussian of unit mass on a circle of `size` pixels, centred on 0: (size,)."""
    u = np.arange(size)[None] + size * np.arange(-3, 4)[:, None]
    density = np.exp(-(u**2) / (2 * sigma**2)).sum(0)
    return np.asarray(density / density.sum())


def morlet(shape: tuple[int, int], scale: int, angle: float, slant: float) -> NDArray[np.complex128]:
    """Morlet wavelet on a torus, with mean exactly zero: (H, W), centred on pixel (0, 0).

    psi(u) = envelope(u) (exp(i xi.u) - c), the envelope a Gaussian elongated by 1/slant across the wave.

    Parameters
    ----------
    shape : (H, W) of the torus.
    scale : j; the wave is 2^j times as long.
    angle : radians.
    slant : ratio of the envelope's axes.
    """
    sigma, xi = SIGMA * 2**scale, XI / 2**scale
    height, width = shape
    wave = np.zeros(shape, dtype=complex)
    envelope = np.zeros(shape)
    for row in range(-2, 3):
        for column in range(-2, 3):
            y, x = np.mgrid[:height, :width] + np.array([row * height, column * width])[:, None, None]
            along, across = (
                x * math.cos(angle) + y * math.sin(angle),
                y * math.cos(angle) - x * math.sin(angle),
            )
            window = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
            envelope += window
            wave += window * np.exp(1j * xi * along)
    psi = wave - envelope * (wave.sum() / envelope.sum())
    return np.asarray(psi * (slant / (2 * math.pi * sigma**2)))


def _on_grid(values: NDArray[Any]) -> NDArray[Any]:
    """Round filters so coarsely that the last bits of a library, which differ between machines, are gone.

    So is the sign of a zero, which depends on those bits too: -0.0 + 0.0 is 0.0.
    """
    return np.asarray(np.round(values * GRID) / GRID + 0.0)


def fold(spectrum: Tensor, step: int) -> Tensor:
    """Spectrum of a signal sampled every `step` pixels, from its full one: (..., H, W) to (..., H/s, W/s)."""
    if step == 1:
        return spectrum
    height, width = spectrum.shape[-2] // step, spectrum.shape[-1] // step
    # Sums of slices: a reduction over strided dimensions is some twenty times slower on a CPU.
    bands = [spectrum[..., i * height : (i + 1) * height, :] for i in range(step)]
    rows = torch.stack(bands).sum(0) if step > 2 else bands[0] + bands[1]
    folded = rows[..., :width].clone()
    for i in range(1, step):
        folded += rows[..., i * width : (i + 1) * width]
    return folded / step**2


def modulus(parts: Tensor) -> Tensor:
    """|u| and |v| as one complex tensor, from both real parts as one and both imaginary parts as one."""
    even, odd = torch.view_as_real(parts)
    return torch.view_as_complex((even * even).addcmul_(odd, odd).sqrt_())


def spectrum_of(turned: Tensor) -> Tensor:
    """Spectrum (..., H, W) of images that lie on their side, (..., W, H).

    One axis after the other, each as the last: for small images twice as fast as `fft2`.
    """
    along = torch.fft.fft(turned).transpose(-1, -2).contiguous()
    spectrum: Tensor = torch.fft.fft(along)
    return spectrum


def image_of(spectrum: Tensor) -> Tensor:
    """Inverse of `spectrum_of`: (..., H, W) to images on their side, (..., W, H)."""
    along = torch.fft.ifft(spectrum).transpose(-1, -2).contiguous()
    turned: Tensor = torch.fft.ifft(along)
    return turned


def aliases(spectrum: Tensor, step: int) -> Tensor:
    """Cut a spectrum into the parts that sampling every `step` pixels lays on each other.

    (..., H, W) to (step^2, ..., H W / step^2).
    """
    *batch, height, width = spectrum.shape
    if step == 1:
        return spectrum.reshape(1, *batch, -1)
    cut = spectrum.reshape(*batch, step, height // step, step, width // step)
    kept = len(batch)
    return cut.permute(kept, kept + 2, *range(kept), kept + 1, kept + 3).reshape(step * step, *batch, -1)


def products(cut: Tensor, filters: Tensor) -> Tensor:
    """Multiply spectra, cut by `aliases`, with filters and fold them in one operation."""
    product = cut[0] * filters[0]
    for i in range(1, len(filters)):
        product.addcmul_(cut[i], filters[i])
    return product


class Scattering(nn.Module):
    """Scattering coefficients of orders 0, 1 and 2.

    Parameters
    ----------
    shape : height and width of the images.
    J : number of scales; the output is sampled every 2^J pixels.
    L : number of angles in [0, pi).
    rows : images in a batch of a thread.

    Notes
    -----
    The image is mirrored at its edges by 2^(J-1) pixels and then treated as a torus. Wavelets are scaled by
    one common factor so that |phi|^2 + sum |psi|^2 <= 1 at every frequency, which makes the transform
    non-expansive (times 2^J, for the sampling). Channels come in the order (0), (j1, theta1),
    (j1, theta1, j2, theta2); `orders` gives the order of each.
    """

    wavelets: Tensor

    def __init__(self, shape: tuple[int, int], J: int = 2, L: int = 8, *, rows: int = ROWS) -> None:
        super().__init__()
        if J < 1 or L < 1 or min(shape) < 2**J:
            raise UserError(
                f"scattering needs J >= 1, L >= 1 and images of at least 2^J pixels a side "
                f"(got J={J}, L={L} and shape {tuple(shape)})"
            )
        self.shape, self.J, self.L, self.rows = (int(shape[0]), int(shape[1])), J, L, rows
        step = 2**J
        padded = (step * math.ceil(shape[0] / step) + step, step * math.ceil(shape[1] / step) + step)
        self.padded = padded
        self.output = (math.ceil(shape[0] / step), math.ceil(shape[1] / step))
        spectra = np.stack(
            [
                [np.fft.fft2(morlet(padded, j, math.pi * t / L, min(1.0, 4 / L))) for t in range(L)]
                for j in range(J)
            ]
        )
        spectra *= self._frame_factor(spectra)
        self.register_buffer("wavelets", torch.from_numpy(_on_grid(spectra).astype(np.complex64)))
        for j in range(J):
            for axis, name in enumerate(("rows", "columns")):
                self.register_buffer(f"{name}{j}", self._average(axis, j))
        self._prepare()
        self.channels = 1 + J * L + L * L * J * (J - 1) // 2

    def _prepare(self) -> None:
        """Store the transform's factors in the order of their use; they are derived from the buffers."""
        for j in range(self.J):
            rows = self.get_buffer(f"rows{j}")
            both = torch.einsum("yh,cd->hcdy", rows, torch.eye(2)).reshape(2 * rows.shape[1], -1)
            self.register_buffer(f"pairs{j}", both, persistent=False)
            even, odd = self._filters(0, j)
            if self.L % 2:  # the last angle is its own partner
                even, odd = (torch.cat([f, f[:, -1:]], 1) for f in (even, odd))
            first = torch.complex(even[:, ::2], even[:, 1::2]), torch.complex(odd[:, 1::2], -odd[:, ::2])
            self.register_buffer(f"first{j}", torch.stack(first, 1)[:, :, None], persistent=False)
            for j1 in range(j):
                # Each value is repeated, for a real and an imaginary part.
                second = torch.stack(self._filters(j1, j), 1).repeat_interleave(2, -1)
                self.register_buffer(f"second{j1}_{j}", second[:, :, None, None], persistent=False)

    def _filters(self, j1: int, j2: int) -> tuple[Tensor, Tensor]:
        """Even and odd parts of wavelets of scale j2 for signals sampled every 2^j1 pixels.

        Both are cut as `aliases` cuts spectra: (step^2, L, H W / step^2).
        """
        # A wavelet of scale j2 for signals sampled every 2^j1 pixels is the folded full one. It is the
        # conjugate of its mirror image, so its spectrum is real.
        step = 2 ** (j2 - j1)
        spectrum = (fold(self.wavelets[j2], 2**j1) * (4**j1 / step**2)).real
        mirrored = spectrum.flip(-2, -1).roll((1, 1), (-2, -1))
        return aliases((spectrum + mirrored) / 2, step), aliases((spectrum - mirrored) / 2, step)

    @property
    def orders(self) -> Tensor:
        """Order of each output channel of a grey image: (channels,)."""
        second = self.channels - 1 - self.J * self.L
        return torch.tensor([0] + [1] * (self.J * self.L) + [2] * second)

    def _frame_factor(self, spectra: NDArray[np.complex128]) -> float:
        low = [np.fft.fft(gaussian(size, SIGMA * 2 ** (self.J - 1))).real for size in self.padded]
        remaining = 1 - (low[0][:, None] * low[1][None]) ** 2
        energy = (np.abs(spectra) ** 2).sum((0, 1))
        mirrored = np.roll(energy[::-1, ::-1], (1, 1), (0, 1))
        both = (energy + mirrored) / 2
        used = both > 1e-9 * both.max()
        return float(np.sqrt((remaining[used] / both[used]).min()))

    def _average(self, axis: int, j: int) -> Tensor:
        """Matrix that averages a signal sampled every 2^j pixels and samples it every 2^J: (h, P / 2^j)."""
        size, step = self.padded[axis], 2 ** (self.J - j)
        # The coarse signal has 2^j times fewer samples, so its Gaussian is that much narrower.
        kernel = gaussian(size // 2**j, SIGMA * 2 ** (self.J - 1 - j))
        rows = [np.roll(kernel, step * (i + 1)) for i in range(self.output[axis])]
        return torch.from_numpy(_on_grid(np.stack(rows)).astype(np.float32))

    def _low_pass(self, u: Tensor, j: int) -> Tensor:
        """Average signals sampled every 2^j pixels: (..., P / 2^j, P / 2^j) to (..., h, w)."""
        rows, columns = self.get_buffer(f"rows{j}"), self.get_buffer(f"columns{j}")
        return torch.matmul(rows, torch.matmul(u, columns.T))

    def _averaged(self, turned: Tensor, j: int, out: Tensor) -> None:
        """Fill `out` (n, L, ..., h, w) with averages of pairs on their side, (n, L / 2, ..., p, p)."""
        *batch, width, height = turned.shape
        columns, pairs = self.get_buffer(f"columns{j}"), self.get_buffer(f"pairs{j}")
        flat = torch.view_as_real(turned).view(-1, width, 2 * height)
        across = torch.bmm(columns.expand(len(flat), *columns.shape), flat)
        means = torch.mm(across.view(-1, 2 * height), pairs).view(*batch, len(columns), 2, -1)
        for c in range(2):
            angles = out[:, c::2]
            angles.copy_(means[:, : angles.shape[1], ..., c, :].transpose(-1, -2))

    def _moduli(self, product: Tensor, j: int) -> Tensor:
        """Moduli on their side, sampled every 2^j pixels, from flat spectra of both parts, (2, ..., p p)."""
        height, width = (size // 2**j for size in self.padded)
        return modulus(image_of(product.view(*product.shape[:-1], height, width)))

    def _first(self, spectrum: Tensor, j: int) -> Tensor:
        """|x * psi_(j, theta)| of images with that spectrum (n, P, P), in pairs: (n, L / 2, p, p)."""
        cut = aliases(spectrum, 2**j)
        return self._moduli(products(cut[:, None, :, None], self.get_buffer(f"first{j}")), j)

    def _second(self, spectrum: Tensor, j1: int, j2: int) -> Tensor:
        """|u * psi_(j2, theta)| of pairs with that spectrum (n, L / 2, P, P): (n, L / 2, L, p, p)."""
        cut = aliases(spectrum, 2 ** (j2 - j1))
        both = torch.view_as_real(torch.stack([cut, cut * -1j], 1)).flatten(-2)
        product = products(both[:, :, :, :, None], self.get_buffer(f"second{j1}_{j2}"))
        return self._moduli(torch.view_as_complex(product.view(*product.shape[:-1], -1, 2)), j2)

    def _pad(self, x: Tensor) -> Tensor:
        (height, width), before = self.shape, 2 ** (self.J - 1)
        after = (self.padded[0] - height - before, self.padded[1] - width - before)
        return nn.functional.pad(x[:, None], (before, after[1], before, after[0]), mode="reflect")[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, H, W) or (n, C, H, W) to (n, C * channels, H / 2^J, W / 2^J), rounded up."""
        if x.shape[-2:] != self.shape or x.ndim not in (3, 4):
            raise UserError(
                f"scattering was built for images of {self.shape[0]} x {self.shape[1]} pixels, "
                f"as (n, H, W) or (n, C, H, W) (got an array of shape {tuple(x.shape)})"
            )
        flat = x.reshape(-1, *self.shape).to(self.wavelets.real.dtype)
        out = flat.new_empty(len(flat), self.channels, *self.output)
        return map_blocks_threaded(self._transform, flat, out, self.rows).view(len(x), -1, *self.output)

    def _transform(self, x: Tensor, out: Tensor) -> None:
        """Fill `out` (n, channels, h, w) with the coefficients of images x (n, H, W)."""
        n, L = len(x), self.L
        x = self._pad(x)
        out[:, 0] = self._low_pass(x, 0)
        spectrum = spectrum_of(x.transpose(-1, -2).contiguous())
        second = 1 + self.J * L
        for j1 in range(self.J):
            u1 = self._first(spectrum, j1)
            self._averaged(u1, j1, out[:, 1 + j1 * L : 1 + (j1 + 1) * L])
            if j1 + 1 == self.J:
                continue
            spectrum1 = spectrum_of(u1)
            coarser = self.J - 1 - j1
            block = out[:, second : second + L * L * coarser].view(n, L, coarser, L, *self.output)
            for j2 in range(j1 + 1, self.J):
                self._averaged(self._second(spectrum1, j1, j2), j2, block[:, :, j2 - j1 - 1])
            second += L * L * coarser
