"""Scattering of two scales, averaged over cells, by products of matrices.

The coefficients are those of `Scattering` (J = 2), averaged over any cells. Two things make it fast:

- Averages are linear, so one product maps moduli to the kept cells. Moduli are only computed where a cell
  gives them weight.
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

from adlm.public.features.scattering import Scattering

SIGNS = (1, -1)
# Reflections of a frequency that count for the real part of a response, and for the imaginary part.
REFLECTIONS = (((1, 1), (-1, -1)), ((1, -1), (-1, 1)))
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
    weights = [
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
    return np.stack(weights).real.transpose(0, 2, 1, 3, 4)


def modulus(real: Tensor, imaginary: Tensor) -> Tensor:
    """Modulus of complex numbers, from their real and imaginary parts."""
    return (real * real).addcmul_(imaginary, imaginary).sqrt_()


def reflection(size: int, rows: int, columns: int) -> NDArray[np.int64]:
    """Indices of the frequencies (rows ky, columns kx), signs given, in flat coefficients: (size, size)."""
    ky, kx = np.mgrid[:size, :size]
    return np.asarray((rows * ky % size) * size + columns * kx % size)


def reflecting(size: int, before: int, padded: int) -> NDArray[np.float64]:
    """Matrix (padded, size) that mirrors a signal at its edges, `before` places in front of it."""
    place = np.abs(np.arange(padded) - before)
    return np.asarray(np.eye(size)[np.minimum(place, 2 * (size - 1) - place)])


class HartleyScattering(nn.Module):
    """Cells of the scattering of square images (n, H, H), two scales.

    Parameters
    ----------
    of : scattering of two scales.
    fine_pool, broad_pool : (cells, P, P) weights of the moduli of each scale in each cell, of padded images.
        Those of the broad scale are zero in every second row.
    """

    basis: Tensor
    entry: Tensor
    coarse: Tensor
    across: Tensor
    reflected: Tensor
    first: Tensor
    sources: Tensor
    second: Tensor
    image_pool: Tensor
    fine_pool: Tensor
    broad_pool: Tensor

    def __init__(
        self, of: Scattering, fine_pool: NDArray[np.float64], broad_pool: NDArray[np.float64]
    ) -> None:
        super().__init__()
        assert of.J == 2
        assert of.shape[0] == of.shape[1]
        size, angles, half = of.padded[0], of.L, of.padded[0] // 2
        self.size, self.angles, self.channels = size, angles, of.channels
        basis, padding = hartley(size), reflecting(of.shape[0], 2 ** (of.J - 1), size)
        seen = (np.abs(broad_pool) > NOTHING * np.abs(broad_pool).max()).any((0, 1))  # columns with weight
        self._keep("basis", basis)
        self._keep("entry", basis @ padding)
        self._keep("coarse", basis[::2, :half])
        self._keep("across", basis[seen])
        self._keep("image_pool", (padding.T @ fine_pool @ padding).reshape(len(fine_pool), -1))
        self.constant_gain = float(fine_pool[0].sum())  # gain of a constant image in every cell
        self._keep("fine_pool", fine_pool.reshape(len(fine_pool), -1))
        self._keep("broad_pool", broad_pool[:, ::2, seen].reshape(len(broad_pool), -1))
        weights = reflected_weights(of.wavelets.real.double().numpy().reshape(-1, size, size))
        places = np.array([[reflection(size, *pair) for pair in pairs] for pairs in REFLECTIONS])
        self._keep("reflected", places.transpose(1, 0, 2, 3).reshape(-1))
        self._keep("first", weights.transpose(2, 0, 1, 3, 4).reshape(2, 2, 2 * angles, 1, -1))
        self._keep("sources", places.reshape(8, -1).T.reshape(-1))
        joint = np.zeros((half * size, 2, angles, 2, 4))  # frequency; part, angle; part, reflection and alias
        for part in range(2):
            broad = weights[part, angles:].reshape(angles, 4, half * size)
            joint[:, part, :, part] = broad.transpose(2, 0, 1)
        self._keep("second", joint.reshape(half * size, 2 * angles, -1))
        # Index of each channel of `Scattering`: the second order is sorted by its second angle first.
        second = 1 + 2 * angles + np.arange(angles**2).reshape(angles, angles).T
        self.places = np.array([*range(1 + 2 * angles), *second.ravel()])

    def _keep(self, name: str, values: NDArray[np.float64] | NDArray[np.int64]) -> None:
        """Register a buffer that is derived from the wavelets, and so is not in the fingerprint."""
        weights = torch.from_numpy(np.ascontiguousarray(values))
        if weights.is_floating_point():
            # Tails of Gaussians are subnormal, and products with those take a hundred times as long.
            weights = torch.where(weights.abs() < NOTHING * weights.abs().max(), 0.0, weights).float()
        self.register_buffer(name, weights, persistent=False)

    def _moduli(self, product: Tensor, down: Tensor, across: Tensor) -> Tensor:
        """Moduli of signals, from coefficients of both parts (2, m, ky, kx): (y x, m), signals innermost."""
        turned = torch.bmm(across.expand(2, -1, -1), product.view(2, -1, self.size).transpose(1, 2))
        turned = turned.view(2, -1, down.shape[1]).transpose(1, 2)
        moduli = modulus(*torch.bmm(down.expand(2, -1, -1), turned))
        return moduli.view(len(down) * len(across), -1)

    def _first(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """|x * psi| of images (n, H, H), of the fine and of the broad scale: (y x, L n), by angle."""
        size, n = self.size, len(x)
        along = torch.mm(x.view(-1, x.shape[2]), self.entry.T).view(n, -1, size)
        coefficients = torch.bmm(self.entry.expand(n, -1, -1), along).view(n, -1)
        taken = coefficients.index_select(1, self.reflected).view(n, 2, 2, 1, -1).permute(1, 2, 3, 0, 4)
        product = (taken[0] * self.first[0]).addcmul_(taken[1], self.first[1]).view(2, -1, size, size)
        fine, broad = torch.chunk(product, 2, 1)
        # Rows of the broad scale are sampled every 2: the frequencies ky and ky + P / 2 fall together.
        broad = broad[:, :, : size // 2] + broad[:, :, size // 2 :]
        return self._moduli(fine, self.basis, self.basis), self._moduli(broad, self.coarse, self.across)

    def _second(self, u: Tensor) -> Tensor:
        """||x * psi_(0, .)| * psi_(1, .)| from moduli (y x, m): (y x, L m), by the second angle."""
        size, half = self.size, self.size // 2
        down = torch.mm(self.basis, u.view(size, -1)).view(size, size, -1)
        coefficients = torch.bmm(self.basis.expand(size, -1, -1), down).view(size * size, -1)
        taken = coefficients.index_select(0, self.sources).view(half * size, 8, -1)
        product = torch.bmm(self.second, taken).view(half, -1)
        along = torch.mm(self.coarse, product).view(half, size, -1)
        response = torch.bmm(self.across.expand(half, -1, -1), along)
        return modulus(*response.view(half * len(self.across), 2, -1).unbind(1))

    def all_cells(self, x: Tensor) -> Tensor:
        """Cells of every order and angle, of images (n, H, H): (cells * channels, n)."""
        # Wavelets ignore a constant, and averages keep it. Less its corner, a flat image is exactly zero.
        corner = x[:, 0, 0]
        uneven = (x - corner[:, None, None]).contiguous()
        fine, broad = self._first(uneven)
        parts = [
            torch.mm(self.image_pool, uneven.view(len(x), -1).T).add_(corner, alpha=self.constant_gain),
            torch.mm(self.fine_pool, fine),
            torch.mm(self.broad_pool, broad),
            torch.mm(self.broad_pool, self._second(fine)),
        ]
        return torch.cat(parts, 1).view(-1, len(x))


class SquareScattering(HartleyScattering):
    """`Scattering` of square images with two scales: (n, H, H) -> (n, channels, h, h)."""

    own: Tensor

    def __init__(self, of: Scattering) -> None:
        weights = [outer(*axis_weights(of, j)) for j in range(2)]
        super().__init__(of, *weights)
        self.output = of.output
        self._keep("own", (self.places[:, None] + np.arange(len(weights[0])) * self.channels).ravel())

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, H, H) to coefficients (n, channels, h, h)."""
        cells = self.all_cells(x).index_select(0, self.own)
        return cells.T.reshape(len(x), self.channels, *self.output)


def axis_weights(of: Scattering, j: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of rows, and of columns, of moduli of scale j in each output: (h, P) both."""
    spread = np.zeros((2, of.output[0], of.padded[0]))
    for axis, name in enumerate(("rows", "columns")):
        spread[axis, :, :: 2**j] = of.get_buffer(f"{name}{j}").double().numpy()
    return spread[0], spread[1]


def outer(rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of places in cells, from those of rows (a, P) and of columns (b, P): (a b, P, P)."""
    places = np.einsum("ay,bx->abyx", rows, columns)
    return np.asarray(places.reshape(-1, rows.shape[1], columns.shape[1]))
