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


def reflecting(size: int, before: int, padded: int) -> NDArray[np.float64]:
    """Matrix (padded, size) that mirrors a signal at its edges, `before` places in front of it."""
    place = np.abs(np.arange(padded) - before)
    return np.eye(size)[np.minimum(place, 2 * (size - 1) - place)]


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
    entry: Tensor
    coarse: Tensor
    across: Tensor
    reflected: Tensor
    fine: Tensor
    broad: Tensor
    sources: Tensor
    second: Tensor
    image_pool: Tensor
    fine_pool: Tensor
    broad_pool: Tensor
    own: Tensor
    mirrored: Tensor

    def __init__(self, of: Scattering) -> None:
        super().__init__()
        assert of.J == 2
        assert of.shape[0] == of.shape[1]
        size, angles, half = of.padded[0], of.L, of.padded[0] // 2
        self.size, self.angles, self.channels = size, angles, of.channels
        self.cells = of.output[0] // 2, (of.output[1] // 2 + 1) // 2
        basis, padding = hartley(size), reflecting(of.shape[0], 2 ** (of.J - 1), size)
        fine_pool, broad_pool = (self._pool(of, j).reshape(-1, size, size) for j in range(2))
        seen = (np.abs(broad_pool) > NOTHING * np.abs(broad_pool).max()).any((0, 1))  # columns of any weight
        self._keep("basis", basis)
        self._keep("entry", basis @ padding)
        self._keep("coarse", basis[::2, :half])
        self._keep("across", basis[seen])
        self._keep("image_pool", (padding.T @ fine_pool @ padding).reshape(len(fine_pool), -1))
        self._keep("fine_pool", fine_pool.reshape(len(fine_pool), -1))
        self._keep("broad_pool", broad_pool[:, ::2, seen].reshape(len(broad_pool), -1))
        weights = reflected_weights(of.wavelets.real.double().numpy().reshape(-1, size, size))
        places = np.array([[reflection(size, *pair) for pair in pairs] for pairs in REFLECTIONS])
        self._keep("reflected", places.transpose(1, 0, 2, 3).reshape(-1))
        self._keep("fine", weights[:, :angles].transpose(2, 0, 1, 3, 4).reshape(2, 2, angles, 1, -1))
        # Rows of the broad scale are sampled every 2: the frequencies ky and ky + P / 2 fall together.
        aliased = weights[:, angles:].reshape(2, angles, 4, half * size)
        self._keep("broad", aliased.transpose(2, 0, 1, 3)[:, :, :, None])
        self._keep("sources", places.reshape(8, -1).T.reshape(-1))
        joint = np.zeros((half * size, 2, angles, 2, 4))  # frequency; part, angle; part, reflection and alias
        for part in range(2):
            joint[:, part, :, part] = aliased[part].transpose(2, 0, 1)
        self._keep("second", joint.reshape(half * size, 2 * angles, -1))
        self._keep_order()

    def _keep_order(self) -> None:
        """Keep where the cells of each channel of `Scattering` are found among `_all_cells`."""
        L, count = self.angles, self.cells[0] * self.cells[1]
        second = 1 + 2 * L + np.arange(L * L).reshape(L, L).T  # they are found by their second angle first
        found = np.array([*range(1 + 2 * L), *second.ravel()])
        cells = np.arange(count) * self.channels
        self._keep("own", (found[:, None] + cells).ravel())
        turned = found[mirrored_channels(2, L)]
        self._keep("mirrored", (turned[:, None] + cells).ravel() + count * self.channels)

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

    def _moduli(self, product: Tensor, down: Tensor, across: Tensor) -> Tensor:
        """Moduli of signals, from coefficients of both parts (2, m, ky, kx): (y, x, m), signals innermost."""
        _, m, *_ = product.shape
        turned = torch.bmm(across.expand(2, -1, -1), product.view(2, -1, self.size).transpose(1, 2))
        turned = turned.view(2, -1, down.shape[1]).transpose(1, 2)
        return modulus(*torch.bmm(down.expand(2, -1, -1), turned)).view(len(down), len(across), m)

    def _first(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """|x * psi| of images (n, H, H), of the fine and of the broad scale: (y, x, L n), angles outermost."""
        size, n = self.size, len(x)
        coefficients = torch.matmul(self.entry, x @ self.entry.T).view(n, -1)
        taken = coefficients.index_select(1, self.reflected).view(n, 2, 2, 1, -1).permute(1, 2, 3, 0, 4)
        fine = (taken[0] * self.fine[0]).addcmul_(taken[1], self.fine[1])
        halves = taken.unflatten(4, (2, -1))
        broad = halves[0, ..., 0, :] * self.broad[0]
        for i in range(1, 4):
            broad.addcmul_(halves[i // 2, ..., i % 2, :], self.broad[i])
        return (
            self._moduli(fine.view(2, -1, size, size), self.basis, self.basis),
            self._moduli(broad.view(2, -1, size // 2, size), self.coarse, self.across),
        )

    def _second(self, u: Tensor) -> Tensor:
        """||x * psi_(0, .)| * psi_(1, .)| from moduli (y, x, m): (y, x, L m), second angles outermost."""
        size, half, signals = self.size, self.size // 2, u.shape[2]
        down = torch.mm(self.basis, u.view(size, -1)).view(size, size, -1)
        coefficients = torch.matmul(self.basis, down).view(size * size, -1)
        taken = coefficients.index_select(0, self.sources).view(half * size, 8, signals)
        product = torch.bmm(self.second, taken).view(half, -1)
        response = torch.matmul(self.across, torch.mm(self.coarse, product).view(half, size, -1))
        return modulus(*response.view(half, len(self.across), 2, -1).unbind(2))

    def _all_cells(self, x: Tensor) -> Tensor:
        """Cells of the image, then of its mirror image, of every order and angle: (2 cells, channels, n)."""
        fine, broad = self._first(x)
        parts = (
            (self.image_pool, x.reshape(len(x), -1).T),
            (self.fine_pool, fine.flatten(0, 1)),
            (self.broad_pool, broad.flatten(0, 1)),
            (self.broad_pool, self._second(fine).flatten(0, 1)),
        )
        return torch.cat([pool @ values for pool, values in parts], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, H, H) to cells (n, channels, rows, left)."""
        cells = self._all_cells(x).view(-1, len(x))
        both = cells.index_select(0, self.own) + cells.index_select(0, self.mirrored)
        return both.T.reshape(len(x), self.channels, *self.cells)
