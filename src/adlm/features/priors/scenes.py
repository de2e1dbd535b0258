"""Scene classes: procedural colour pictures from random processes, for natural images.

A class is a random *template*: a background (a gradient or a horizon) with textures, a few leaves, and one
object made of textured superellipse parts. A record of the class is the template drawn again with jitter in
place, pose, parts, colour, texture phase, light, occlusion, blur and noise. No data of any kind goes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

HALF_TURN = math.pi
PARTS = 7
LEAVES = 4
COLOURS = 8
_CHUNK = 500


# ---- Random colours, textures and soft-edged parts ----


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


# ---- Scenes ----


@dataclass(frozen=True)
class Templates:
    """Random scene classes; every field has the class as its first dimension (c).

    Attributes
    ----------
    colours : (c, COLOURS, 3) palette: two of the background, two of the leaves, the rest of the object.
    horizon : (c, 4) is there one, its row, its tilt, its softness.
    ground : (c, 2, 6) texture above and below: cloud and band amplitudes, exponent, frequency, angle, spread.
    leaves : (c, LEAVES, 7) present, row, column, half height, half width, angle, power.
    parts : (c, PARTS, 9) as leaves, then colour index and shading.
    mirrored : (c, 1) whether odd parts mirror the even one before them, as limbs, wheels and eyes do.
    skin : (c, 6) the object's texture, as ground.
    """

    colours: Tensor
    horizon: Tensor
    ground: Tensor
    leaves: Tensor
    parts: Tensor
    mirrored: Tensor
    skin: Tensor

    def take(self, index: Tensor) -> Templates:
        """Select classes by index (n,), with repetition."""
        return Templates(**{name: value[index] for name, value in vars(self).items()})


def _texture(shape: tuple[int, ...], strength: float, generator: torch.Generator) -> Tensor:
    return torch.stack(
        [
            strength * torch.rand(shape, generator=generator) ** 1.5 * bernoulli(shape, 0.8, generator),
            strength * torch.rand(shape, generator=generator) ** 1.5 * bernoulli(shape, 0.5, generator),
            uniform(shape, 0.7, 2.2, generator),
            uniform(shape, 0.06, 0.4, generator),
            uniform(shape, 0.0, HALF_TURN, generator),
            uniform(shape, 0.02, 0.12, generator),
        ],
        dim=-1,
    )


def templates(classes: int, generator: torch.Generator) -> Templates:
    """Draw random scene classes."""
    c = classes

    def spread(count: int, low: float, high: float) -> Tensor:
        return uniform((c, count), low, high, generator)

    leaves = torch.stack(
        [
            bernoulli((c, LEAVES), 0.4, generator),
            spread(LEAVES, -1, 1),
            spread(LEAVES, -1, 1),
            spread(LEAVES, 0.1, 0.7),
            spread(LEAVES, 0.1, 0.7),
            spread(LEAVES, 0, HALF_TURN),
            spread(LEAVES, 1.2, 8),
        ],
        dim=-1,
    )
    many = torch.randint(2, PARTS + 1, (c, 1), generator=generator)
    body = torch.zeros((c, PARTS))
    body[:, 0] = 1.0
    long = spread(PARTS, 0.12, 0.45) * (1 - body) + spread(PARTS, 0.3, 0.75) * body
    thin = long * spread(PARTS, 0.2, 1.0)
    swap = bernoulli((c, PARTS), 0.5, generator)
    # Most parts of animals and vehicles lie along the axes; a third have a random angle.
    lean = normal((c, PARTS), 0.15, generator) + bernoulli((c, PARTS), 0.33, generator) * spread(
        PARTS, 0, HALF_TURN
    )
    parts = torch.stack(
        [
            (torch.arange(PARTS)[None, :] < many).float(),
            (1 - body) * spread(PARTS, -0.65, 0.65),
            (1 - body) * spread(PARTS, -0.65, 0.65),
            torch.where(swap > 0, long, thin),
            torch.where(swap > 0, thin, long),
            lean,
            1.3 + 6.0 * torch.rand((c, PARTS), generator=generator) ** 2,
            torch.randint(4, COLOURS, (c, PARTS), generator=generator).float(),
            normal((c, PARTS), 0.12, generator),
        ],
        dim=-1,
    )
    return Templates(
        colours=palette(c, COLOURS, generator),
        horizon=torch.cat(
            [
                bernoulli((c, 1), 0.5, generator),
                spread(1, -0.5, 0.7),
                spread(1, -0.15, 0.15),
                spread(1, 0.03, 0.4),
            ],
            1,
        ),
        ground=_texture((c, 2), 0.22, generator),
        leaves=leaves,
        parts=parts,
        mirrored=bernoulli((c, 1), 0.5, generator),
        skin=_texture((c,), 0.25, generator),
    )


def _surface(texture: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Lay out texture parameters (n, 6) as a field (n, size, size)."""
    cloud, band, exponent, frequency, angle, spread = texture.unbind(1)
    angle = angle + normal((len(texture),), 0.15, generator)
    fine = band_pass(frequency, angle, spread, size, generator)
    return cloud[:, None, None] * power_law(exponent, size, generator) + band[:, None, None] * fine


def _background(scene: Templates, size: int, generator: torch.Generator) -> Tensor:
    n = len(scene.colours)
    rows, columns = grid(size)
    present, height, tilt, softness = scene.horizon.unbind(1)
    height = height + normal((n,), 0.15, generator)
    tilt = tilt + normal((n,), 0.05, generator)
    # Without a horizon the same ramp is wide: a plain gradient from above to below.
    width = torch.where(present > 0, softness, 1.0 + 3.0 * softness)
    ramp = (rows - height[:, None, None] - tilt[:, None, None] * columns) / width[:, None, None]
    below = torch.sigmoid(4.0 * ramp)
    upper = scene.colours[:, 0, :, None, None] + _surface(scene.ground[:, 0], size, generator)[:, None]
    lower = scene.colours[:, 1, :, None, None] + _surface(scene.ground[:, 1], size, generator)[:, None]
    return upper + below[:, None] * (lower - upper)


def _paint(canvas: Tensor, coverage: Tensor, colour: Tensor) -> Tensor:
    """Blend colour (n, 3, size, size) into the canvas by coverage (n, size, size)."""
    return canvas + coverage[:, None] * (colour - canvas)


def _scatter_leaves(canvas: Tensor, scene: Templates, generator: torch.Generator) -> Tensor:
    n, size = len(canvas), canvas.shape[-1]
    for index in range(LEAVES):
        present, row, column, height, width, angle, power = scene.leaves[:, index].unbind(1)
        # Leaves appear at random: clutter is not part of a class.
        shown = (present - bernoulli((n,), 0.25, generator)).abs()
        row, column = row + normal((n,), 0.15, generator), column + normal((n,), 0.15, generator)
        coverage, _, _ = superellipse(row, column, height, width, angle, power, size)
        colour = scene.colours[:, 2 + index % 2, :, None, None].expand_as(canvas)
        canvas = _paint(canvas, coverage * shown[:, None, None], colour)
    return canvas


def _place_object(canvas: Tensor, scene: Templates, generator: torch.Generator) -> Tensor:
    n, size = len(canvas), canvas.shape[-1]
    scale = torch.exp(normal((n,), 0.18, generator))
    stretch = torch.exp(normal((n,), 0.1, generator))
    turn = normal((n,), 0.12, generator)
    shift = normal((2, n), 0.12, generator)
    flip = 1.0 - 2.0 * bernoulli((n,), 0.5, generator)
    skin = _surface(scene.skin, size, generator)
    light = uniform((n,), -HALF_TURN, HALF_TURN, generator)
    for index in range(PARTS):
        present, row, column, height, width, angle, power, colour, shade = scene.parts[:, index].unbind(1)
        if index >= 2 and index % 2 == 0:
            # Even parts from the second on repeat the one before them across the axis, in mirrored classes.
            _, row1, column1, height1, width1, angle1, power1, colour1, _ = scene.parts[:, index - 1].unbind(
                1
            )
            pair = scene.mirrored[:, 0] > 0
            row, column = torch.where(pair, row1, row), torch.where(pair, -column1, column)
            height, width = torch.where(pair, height1, height), torch.where(pair, width1, width)
            angle, power = torch.where(pair, -angle1, angle), torch.where(pair, power1, power)
            colour = torch.where(pair, colour1, colour)
        row = stretch * (row + normal((n,), 0.05, generator))
        column = flip * (column + normal((n,), 0.05, generator)) / stretch
        angle = flip * (angle + normal((n,), 0.1, generator)) + turn
        centre_row = shift[0] + scale * (torch.cos(turn) * row + torch.sin(turn) * column)
        centre_column = shift[1] + scale * (torch.cos(turn) * column - torch.sin(turn) * row)
        grow = scale * torch.exp(normal((n,), 0.08, generator))
        coverage, u, v = superellipse(
            centre_row, centre_column, grow * height * stretch, grow * width / stretch, angle, power, size
        )
        base = scene.colours[torch.arange(n), colour.long()] + normal((n, 1), 0.04, generator)
        relief = shade[:, None, None] * (
            torch.cos(light)[:, None, None] * u + torch.sin(light)[:, None, None] * v
        )
        painted = base[:, :, None, None] + (skin + relief)[:, None]
        canvas = _paint(canvas, coverage * present[:, None, None], painted)
    return canvas


def _photograph(canvas: Tensor, generator: torch.Generator) -> Tensor:
    """Occlude, light, blur and add noise: the nuisances that every class shares."""
    n, size = len(canvas), canvas.shape[-1]
    side = uniform((2, n), -1.0, 1.0, generator)
    side = side / side.abs().amax(0, keepdim=True).clamp_min(1e-3)
    coverage, _, _ = superellipse(
        1.1 * side[0],
        1.1 * side[1],
        uniform((n,), 0.1, 0.5, generator),
        uniform((n,), 0.1, 0.5, generator),
        uniform((n,), 0.0, HALF_TURN, generator),
        uniform((n,), 1.5, 6.0, generator),
        size,
    )
    shown = bernoulli((n,), 0.25, generator)
    occluder = palette(n, 1, generator)[:, 0, :, None, None].expand_as(canvas)
    canvas = _paint(canvas, coverage * shown[:, None, None], occluder)
    rows, columns = grid(size)
    slope = normal((2, n, 1, 1), 0.12, generator)
    gain = torch.exp(normal((n, 1, 1), 0.2, generator) + slope[0] * rows + slope[1] * columns)
    tint = torch.exp(normal((n, 3, 1, 1), 0.05, generator))
    canvas = (canvas * gain[:, None] * tint + normal((n, 1, 1, 1), 0.05, generator)).clamp(0.0, 1.0)
    canvas = canvas ** torch.exp(normal((n, 1, 1, 1), 0.15, generator))
    canvas = blur(canvas, uniform((n,), 0.2, 0.8, generator))
    grain = uniform((n, 1, 1, 1), 0.0, 0.03, generator)
    return (canvas + grain * torch.randn(canvas.shape, generator=generator)).clamp(0.0, 1.0)


def render(scene: Templates, generator: torch.Generator, size: int = 32) -> Tensor:
    """Draw one record of each template: (n, 3, size, size) in [0, 1]."""
    n = len(scene.colours)
    colours = (
        scene.colours + normal((n, COLOURS, 1), 0.05, generator) + normal((n, COLOURS, 3), 0.02, generator)
    )
    scene = Templates(**{**vars(scene), "colours": colours.clamp(0.0, 1.0)})
    canvas = _background(scene, size, generator)
    canvas = _scatter_leaves(canvas, scene, generator)
    canvas = _place_object(canvas, scene, generator)
    return _photograph(canvas, generator)


def draw(
    classes: int,
    per_class: int,
    generator: torch.Generator,
    size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw records of random scene classes.

    Parameters
    ----------
    classes, per_class : how many templates, and how many records of each.
    generator : source of every random number; the same seed gives the same pictures.
    size : side of a picture in pixels.
    progress : called with (pictures drawn, pictures in all) after each chunk.

    Returns
    -------
    images : (classes * per_class, 3, size, size) float32 in [0, 1], classes in turn.
    labels : (classes * per_class,) int64.
    """
    catalogue = templates(classes, generator)
    labels = torch.arange(classes).repeat_interleave(per_class)
    chunks = []
    for start in range(0, len(labels), _CHUNK):
        chunks.append(render(catalogue.take(labels[start : start + _CHUNK]), generator, size))
        if progress is not None:
            progress(min(start + _CHUNK, len(labels)), len(labels))
    return torch.cat(chunks), labels
