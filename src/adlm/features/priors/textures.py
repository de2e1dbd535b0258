"""Random colours, textures and soft-edged parts of procedural images."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    """Draw numbers between two bounds.

    Parameters
    ----------
    shape : of the result.
    low, high : the bounds.
    generator : of the draw.
    """
    return low + (high - low) * torch.rand(shape, generator=generator)


def normal(shape: tuple[int, ...], scale: float, generator: torch.Generator) -> Tensor:
    """Draw centred normal numbers."""
    return scale * torch.randn(shape, generator=generator)


def bernoulli(shape: tuple[int, ...], probability: float, generator: torch.Generator) -> Tensor:
    """Draw 1.0 with the given probability, else 0.0."""
    return (torch.rand(shape, generator=generator) < probability).float()


# Luminance, blue against yellow, red against green: the axes along which colours vary, most first.
_OPPONENT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.35, -1.35], [0.6, -1.0, 0.4]])


def palette(count: int, colours: int, generator: torch.Generator) -> Tensor:
    """Draw palettes of related colours: (count, colours, 3) in [0, 1].

    A palette shares one saturation and one tint, because the colours of one scene are lit by one light.
    """
    saturation = 0.24 * torch.rand((count, 1, 1), generator=generator) ** 1.3
    shared = normal((count, 1, 2), 0.6, generator)
    own = normal((count, colours, 2), 0.8, generator)
    chroma = saturation * (shared + own) * torch.tensor([1.0, 0.6])
    light = uniform((count, colours, 1), 0.05, 0.95, generator)
    return (torch.cat([light, chroma], 2) @ _OPPONENT).clamp(0.0, 1.0)


def _frequencies(size: int) -> tuple[Tensor, Tensor]:
    """Cycles per pixel along rows and columns of a real Fourier transform."""
    rows, columns = torch.fft.fftfreq(size), torch.fft.rfftfreq(size)
    return rows[:, None].expand(size, len(columns)), columns[None, :].expand(size, len(columns))


def _field(spectrum: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Filter white noise by amplitude spectra (n, size, size // 2 + 1); each field has unit variance."""
    white = torch.randn((len(spectrum), size, size), generator=generator)
    field: Tensor = torch.fft.irfft2(torch.fft.rfft2(white) * spectrum, s=(size, size))
    field = field - field.mean((1, 2), keepdim=True)
    return field / field.square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-6)


def power_law(exponent: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Cloud-like fields with amplitude |f|^-exponent; exponent (n,) -> (n, size, size) of unit variance."""
    rows, columns = _frequencies(size)
    radius = (rows.square() + columns.square()).sqrt()
    logarithm = radius.clamp_min(1.0 / size).log()
    spectrum = torch.exp(-exponent[:, None, None] * logarithm)
    spectrum[:, 0, 0] = 0.0
    return _field(spectrum, size, generator)


def band_pass(
    frequency: Tensor, angle: Tensor, spread: Tensor, size: int, generator: torch.Generator
) -> Tensor:
    """Fur-, grass- or brick-like fields around one frequency and angle; all (n,) -> (n, size, size).

    A wide spread (in cycles per pixel) gives blobs, a narrow one gives stripes.

    Parameters
    ----------
    frequency, angle, spread : (n,) cycles per pixel, radians, and cycles per pixel.
    size : side of an image, in pixels.
    generator : of the draw.
    """
    rows, columns = _frequencies(size)
    spectrum = torch.zeros((len(frequency), *rows.shape))
    for sign in (1.0, -1.0):
        off_rows = rows - (sign * frequency * torch.sin(angle))[:, None, None]
        off_columns = columns - (sign * frequency * torch.cos(angle))[:, None, None]
        distance = off_rows.square() + off_columns.square()
        spectrum = spectrum + torch.exp(-distance / (2.0 * spread[:, None, None].square()))
    spectrum[:, 0, 0] = 0.0
    return _field(spectrum, size, generator)


def grid(size: int) -> tuple[Tensor, Tensor]:
    """Rows (downwards) and columns (rightwards) of pixel centres, in [-1, 1], each (size, size)."""
    line = (torch.arange(size) + 0.5) * (2.0 / size) - 1.0
    return line[:, None].expand(size, size), line[None, :].expand(size, size)


def superellipse(
    row: Tensor,
    column: Tensor,
    half_height: Tensor,
    half_width: Tensor,
    angle: Tensor,
    power: Tensor,
    size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cover pixels by |u|^power + |v|^power <= 1; all arguments (n,), lengths in half image sides.

    Parameters
    ----------
    row, column : (n,) centres.
    half_height, half_width : (n,) half axes.
    angle, power : (n,) radians, and the exponent.
    size : side of an image, in pixels.

    Returns
    -------
    coverage : (n, size, size) in [0, 1], with an edge one pixel wide.
    u, v : (n, size, size) coordinates in the part's own axes, -1 to 1 inside.
    """
    rows, columns = grid(size)
    down = rows - row[:, None, None]
    right = columns - column[:, None, None]
    cosine, sine = torch.cos(angle)[:, None, None], torch.sin(angle)[:, None, None]
    u = (cosine * down - sine * right) / half_height[:, None, None]
    v = (sine * down + cosine * right) / half_width[:, None, None]
    exponent = power[:, None, None]
    radius = (u.abs().clamp_min(1e-4) ** exponent + v.abs().clamp_min(1e-4) ** exponent) ** (1.0 / exponent)
    pixels = torch.minimum(half_height, half_width)[:, None, None] * (size / 2.0)
    return ((1.0 - radius) * pixels + 0.5).clamp(0.0, 1.0), u, v


def blur(images: Tensor, radius: Tensor) -> Tensor:
    """Smooth (n, 3, size, size) by a Gaussian of radius (n,) pixels, mirrored at the border."""
    size = images.shape[-1]
    offsets = torch.arange(-3, 4, dtype=torch.float32)
    kernel = torch.exp(-offsets.square() / (2.0 * radius[:, None].clamp_min(0.05).square()))
    kernel = kernel / kernel.sum(1, keepdim=True)
    band = torch.zeros((len(images), size, size))
    for offset, weight in zip(range(-3, 4), kernel.T, strict=True):
        target = torch.arange(size)
        source = (target + offset).abs()
        source = torch.where(source >= size, 2 * (size - 1) - source, source)
        band[:, target, source] += weight[:, None]
    return band[:, None] @ images @ band.transpose(1, 2)[:, None]


HALF_TURN = math.pi
