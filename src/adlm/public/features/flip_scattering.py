"""Scattering of two scales, averaged over cells and over the horizontal flip, by products of matrices.

The coefficients are those of `Scattering` (J = 2) of an image and of its mirror image, averaged over blocks
of 2 x 2 outputs and over the two. Three things make it faster than two transforms:

- The mirror image is never transformed. |x * psi_theta| of it is the mirrored |x * psi_-theta| of the image,
  and a second set of weights averages that where the mirror image is sampled.
- Averages, blocks and flip are linear, so one product goes from moduli to the few cells that are kept.
- The image is small, so its Fourier transform is a product with a matrix. In the Hartley basis
  cas(t) = cos(t) + sin(t) everything is real. A convolution with a kernel of spectrum g takes the
  coefficients of a frequency and of its reflections, K(+-ky, +-kx), to

      K'(k) = sum over (a, b) of w_ab(k) K(a ky, b kx),
      w_ab(k) = sum over signs (s, t) of d_s d_t c_as c_bt g(s ky, t kx),   c_+- = (1 -+ i) / 2, d = conj(c).

  For the real part of a Morlet wavelet only a = b counts, for the imaginary part only a != b.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from adlm.public.features.scattering import Scattering

SIGNS = (1, -1)
# Reflections of a frequency that count for the real part of a response, and for the imaginary part.
REFLECTIONS = (((1, 1), (-1, -1)), ((1, -1), (-1, 1)))
BANDS = 3  # of rows, one after the other from responses to cells: they stay in a core's cache
NOTHING = 1e-12  # of the largest weight: far below the last bit of any sum it enters


def hartley(size: int) -> NDArray[np.float64]:
    """Hartley matrix of a circle of `size` points, its own inverse: (size, size)."""
    turns = 2 * math.pi * np.outer(np.arange(size), np.arange(size)) / size
    return np.asarray((np.cos(turns) + np.sin(turns)) / math.sqrt(size))


def reflected_weights(spectra: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of reflected coefficients, for wavelets with real spectra (m, P, P): (2, m, 2, P, P).

    The first axis is the real and the imaginary part of a response, the third the reflections of each.
    """
    reflect = -np.arange(spectra.shape[-1])
    mirrored = spectra[:, reflect][:, :, reflect]
    # Spectra of the real and of the imaginary part of the wavelet.
    parts = (spectra + mirrored) / 2, (spectra - mirrored) / 2j
    c = {1: (1 - 1j) / 2, -1: (1 + 1j) / 2}
    places = {1: -reflect, -1: reflect}
    found = [
        [
            sum(
                np.conj(c[s] * c[t]) * c[a * s] * c[b * t] * part[:, places[s]][:, :, places[t]]
                for s in SIGNS
                for t in SIGNS
            )
            for a, b in pairs
        ]
        for part, pairs in zip(parts, REFLECTIONS, strict=True)
    ]
    return np.stack(found).real.transpose(0, 2, 1, 3, 4)


def modulus(real: Tensor, imaginary: Tensor) -> Tensor:
    """Modulus of complex numbers, given by their parts."""
    return (real * real).addcmul_(imaginary, imaginary).sqrt_()


def reflection(size: int, rows: int, columns: int) -> NDArray[np.int64]:
    """Places of the frequencies (rows ky, columns kx), signs given, in flat coefficients: (size, size)."""
    ky, kx = np.mgrid[:size, :size]
    return np.asarray((rows * ky % size) * size + columns * kx % size)


def mirrored_channels(J: int, L: int) -> NDArray[np.int64]:
    """Which scattering channel of the mirrored image each channel is: an angle t pi / L becomes -t pi / L."""
    turned = [-angle % L for angle in range(L)]
    first = [1 + j * L + angle for j in range(J) for angle in turned]
    second, start = [], 1 + J * L
    for j in range(J - 1):
        coarser = J - 1 - j
        second += [
            start + (one * coarser + scale) * L + two
            for one in turned
            for scale in range(coarser)
            for two in turned
        ]
        start += L * coarser * L
    return np.array([0, *first, *second])


class FlipScattering(nn.Module):
    """Flip-averaged cells of the scattering of square images: (n, H, H) -> (n, channels, rows, left).

    Parameters
    ----------
    of : scattering of two scales; its outputs are averaged in blocks of 2 x 2, and of those the left half is
        kept, which holds all but for the sampling.
    """

    basis: Tensor
    coarse: Tensor
    first: Tensor
    reflected: Tensor
    second: Tensor
    sources: Tensor
    pools: Tensor
    last_pool: Tensor
    turned: Tensor

    def __init__(self, of: Scattering) -> None:
        super().__init__()
        assert of.J == 2
        assert of.shape[0] == of.shape[1]
        size, angles = of.padded[0], of.L
        before = 2 ** (of.J - 1)
        self.margins = 2 * (before, size - of.shape[0] - before)
        self.size, self.angles, self.channels = size, angles, of.channels
        self.cells = of.output[0] // 2, (of.output[1] // 2 + 1) // 2
        self._keep("basis", hartley(size))
        self._keep("coarse", hartley(size)[::2, : size // 2])
        weights = reflected_weights(of.wavelets.real.double().numpy().reshape(-1, size, size))
        self._keep("first", weights.transpose(2, 0, 1, 3, 4).reshape(2, 2, 2 * angles, 1, -1))
        places = [[reflection(size, *pair) for pair in pairs] for pairs in REFLECTIONS]
        self._keep("reflected", np.stack([[p[i] for p in places] for i in range(2)]).reshape(-1))
        half = size // 2
        # Rows of the second order are sampled every 2: the frequencies ky and ky + P / 2 fall together.
        aliases = np.stack([np.stack([p[:half], p[half:]]) for pair in places for p in pair])
        self._keep("sources", aliases.transpose(2, 3, 0, 1).reshape(-1))
        joint = np.zeros((2, angles, 2, 2, 2, half, size))  # part, angle; part, reflection, alias; ky, kx
        for part in range(2):
            joint[part, :, part] = weights[part, angles:].reshape(angles, 2, 2, half, size)
        self._keep("second", joint.transpose(5, 6, 0, 1, 2, 3, 4).reshape(half * size, 2 * angles, -1))
        pools = [self._pool(of, j) for j in range(2)]
        self._keep("pools", np.concatenate(pools).T)
        self._keep("last_pool", pools[1].reshape(-1, size, size)[:, ::2].reshape(len(pools[1]), -1))
        self._keep("turned", mirrored_channels(2, angles))

    def _keep(self, name: str, values: NDArray[np.float64] | NDArray[np.int64]) -> None:
        """Register what follows from the wavelets, and so is not in the fingerprint."""
        kept = torch.from_numpy(np.ascontiguousarray(values))
        if kept.is_floating_point():
            # Tails of Gaussians are subnormal, and products with those take a hundred times as long.
            kept = torch.where(kept.abs() < NOTHING * kept.abs().max(), 0.0, kept).float()
        self.register_buffer(name, kept, persistent=False)

    def _pool(self, of: Scattering, j: int) -> NDArray[np.float64]:
        """Weights of the cells of an image, then of its mirror image: (2 cells, P P), at scale j."""
        rows, columns = (of.get_buffer(f"{name}{j}").double().numpy() for name in ("rows", "columns"))
        spread = np.zeros((2, len(rows), self.size))
        spread[0, :, :: 2**j], spread[1, :, :: 2**j] = rows, columns
        down, across = spread.reshape(2, -1, 2, self.size).mean(2)
        left = across[: self.cells[1]]
        cells = np.einsum("ay,fbx->fabyx", down, np.stack([left, left[:, ::-1]])) / 2
        return np.asarray(cells.reshape(-1, self.size**2))

    def _moduli(self, x: Tensor) -> Tensor:
        """|x * psi| of padded images (n, P, P), of every scale, angle and image: (2 L n, P P)."""
        size, n = self.size, len(x)
        coefficients = torch.matmul(self.basis, x @ self.basis).view(n, -1)
        taken = coefficients.index_select(1, self.reflected).view(n, 2, 2, 1, -1).permute(1, 2, 3, 0, 4)
        product = (taken[0] * self.first[0]).addcmul_(taken[1], self.first[1])
        across = (product.view(-1, size) @ self.basis).view(-1, size, size)
        real, imaginary = torch.matmul(self.basis, across).view(2, -1, size * size)
        return modulus(real, imaginary)

    def _second(self, u: Tensor) -> Tensor:
        """Cells of ||x * psi_(0, .)| * psi_(1, .)|, from moduli (m, P P): (2 cells, L m)."""
        size, half = self.size, self.size // 2
        down = self.basis @ u.t().contiguous().view(size, -1)
        coefficients = torch.matmul(self.basis, down.view(size, size, -1)).view(size * size, -1)
        taken = coefficients.index_select(0, self.sources).view(half * size, 8, -1)
        product = torch.bmm(self.second, taken).view(half, -1)
        response = torch.matmul(self.basis, (self.coarse @ product).view(half, size, -1))
        places = half * size // BANDS
        bands = zip(
            torch.split(response.view(half * size, 2, -1), places),
            torch.split(self.last_pool, places, 1),
            strict=True,
        )
        return torch.stack([pool @ modulus(*part.unbind(1)) for part, pool in bands]).sum(0)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, H, H) to cells (n, channels, rows, left)."""
        n, angles = len(x), self.angles
        padded, cells = functional.pad(x, self.margins, mode="reflect"), len(self.last_pool)
        u = self._moduli(padded)
        second = self._second(u[: n * angles])
        first = (u @ self.pools).T
        # Channels come in the order of `Scattering`: the second order by the first angle, then the second.
        parts = [
            (padded.reshape(n, -1) @ self.pools[:, :cells]).T.reshape(cells, 1, n),
            first[:cells, : n * angles].reshape(cells, angles, n),
            first[cells:, n * angles :].reshape(cells, angles, n),
            second.view(cells, angles, angles, n).transpose(1, 2).reshape(cells, -1, n),
        ]
        image, mirrored = torch.split(torch.cat(parts, 1), cells // 2)
        both = image + mirrored.index_select(1, self.turned)
        return both.permute(2, 1, 0).reshape(n, self.channels, *self.cells)
