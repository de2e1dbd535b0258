"""Stroke classes: random characters made of strokes.

A class is a random drawing of one to four strokes (cubic curves, segments, closed loops and arcs), about
half of them attached to an earlier stroke. Its records are random deformations of the drawing: control
points jitter, strokes shift, the plane is rotated, sheared, stretched and gently bent, and the pen's width
varies. Like most writing, drawings are taller than wide. Like images that were centred by whole pixels, they
lie anywhere within a pixel of the middle. Without this nuisance, features spend their best directions on it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

STROKES = 4  # at most, per class
POINTS = 16  # of the polyline of a stroke
COEFFICIENTS = 5
BOX = 20 / 28  # longest side of the ink, as a share of the image
NARROW = 0.8  # width to height of a typical drawing
CHUNK = 256


class Hand:
    """How much records of a class differ: standard deviations unless stated otherwise."""

    jitter = 0.025  # of control points, in units of the drawing
    shift = 0.025  # of whole strokes
    bend = 0.025  # amplitude of the smooth displacement
    rotation = 0.26  # radians
    shear = 0.22
    stretch = 0.13  # of the logarithm of the aspect ratio
    place = (0.0, 1.0)  # pixels of a 28-pixel image between its middle and the ink's centre, uniform
    pen = (0.5, 1.7)  # half width of the pen in pixels of a 28-pixel image, uniform


def uniform(generator: torch.Generator, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform numbers in [low, high)."""
    return low + (high - low) * torch.rand(*shape, generator=generator)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=generator)


def _templates(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw `count` random drawings; a stroke is `basis` (POINTS, 5) times `coefficients` (5, 2)."""
    t = torch.linspace(0, 1, POINTS)
    bernstein = torch.stack(
        [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3, torch.zeros_like(t)], 1
    )
    kind = uniform(generator, count, STROKES)  # < 0.45 cubic, < 0.72 segment, else loop or arc
    cubic = uniform(generator, count, STROKES, 5, 2)
    ends = cubic[:, :, [0, 0, 3, 3, 4]].clone()
    ends[:, :, 1] = (2 * cubic[:, :, 0] + cubic[:, :, 3]) / 3
    ends[:, :, 2] = (cubic[:, :, 0] + 2 * cubic[:, :, 3]) / 3
    bow = 0.12 * normal(generator, count, STROKES, 1, 2)
    segment = ends + torch.tensor([0.0, 1, 1, 0, 0])[:, None] * bow
    closed = uniform(generator, count, STROKES) < 0.6
    turn = torch.where(closed, torch.ones(()), uniform(generator, count, STROKES, low=0.45, high=0.9))
    start = uniform(generator, count, STROKES)
    phase = 2 * math.pi * (start[..., None] + turn[..., None] * t)
    harmonics = torch.stack(
        [torch.ones_like(phase), phase.cos(), phase.sin(), (2 * phase).cos(), (2 * phase).sin()], -1
    )
    radius = uniform(generator, count, STROKES, 2, low=0.12, high=0.5)
    axis = math.pi * uniform(generator, count, STROKES)
    loop = torch.zeros(count, STROKES, 5, 2)
    loop[:, :, 0] = uniform(generator, count, STROKES, 2, low=0.2, high=0.8)
    loop[:, :, 1] = radius[..., :1] * torch.stack([axis.cos(), axis.sin()], -1)
    loop[:, :, 2] = radius[..., 1:] * torch.stack([-axis.sin(), axis.cos()], -1)
    loop[:, :, 3:] = 0.06 * normal(generator, count, STROKES, 2, 2)
    is_loop, is_segment = (kind >= 0.72)[..., None, None], ((kind >= 0.45) & (kind < 0.72))[..., None, None]
    coefficients = torch.where(is_loop, loop, torch.where(is_segment, segment, cubic))
    coefficients = coefficients * torch.tensor([NARROW, 1.0])
    basis = torch.where(is_loop, harmonics, bernstein)
    weights = torch.tensor([0.2, 0.38, 0.28, 0.14]).expand(count, -1)
    strokes = 1 + torch.multinomial(weights, 1, generator=generator)[:, 0]
    attached = uniform(generator, count, STROKES) < 0.55
    attached[:, 0] = False
    earlier = (uniform(generator, count, STROKES) * torch.arange(STROKES).clamp_min(1)).long()
    where = (uniform(generator, count, STROKES) * POINTS).long()
    # Half of the joints are at an end of the earlier stroke, as in writing.
    where = torch.where(uniform(generator, count, STROKES) < 0.4, torch.tensor(POINTS - 1), where)
    present = torch.arange(STROKES) < strokes[:, None]
    return {
        "basis": basis,
        "coefficients": coefficients,
        "present": present,
        "attached": attached,
        "earlier": earlier,
        "where": where,
    }


def _write(templates: dict[str, Tensor], per_class: int, generator: torch.Generator) -> Tensor:
    """Write each drawing `per_class` times: (classes, per_class, STROKES, POINTS, 2), absent strokes NaN."""
    count = len(templates["basis"])
    jitter = Hand.jitter * normal(generator, count, per_class, STROKES, COEFFICIENTS, 2)
    shift = Hand.shift * normal(generator, count, per_class, STROKES, 1, 2)
    lines = torch.einsum(
        "cspk,cmskd->cmspd", templates["basis"], templates["coefficients"][:, None] + 0.8 * jitter
    )
    row = torch.arange(count)
    for s in range(1, STROKES):
        parent = lines[row, :, templates["earlier"][:, s]]
        anchor = parent[row, :, templates["where"][:, s]][:, :, None]
        moved = lines[:, :, s] - lines[:, :, s, :1] + anchor
        lines[:, :, s] = torch.where(templates["attached"][:, s, None, None, None], moved, lines[:, :, s])
    lines = lines + shift
    return lines.masked_fill(~templates["present"][:, None, :, None, None], math.nan)


def _extent(lines: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest coordinate of each drawing, absent strokes left out: twice (..., 2)."""
    low = lines.nan_to_num(math.inf).amin((-3, -2))
    return low, lines.nan_to_num(-math.inf).amax((-3, -2))


def _unsteady(lines: Tensor, generator: torch.Generator) -> Tensor:
    """Bend, rotate, shear and stretch drawings (n, STROKES, POINTS, 2), then fit them to the unit box."""
    n = len(lines)
    low, high = _extent(lines)
    lines = lines - ((low + high) / 2)[:, None, None]
    lines = lines / (high - low).amax(1).clamp_min(1e-3)[:, None, None, None]
    wave = 0.7 * normal(generator, n, 2, 2)
    phase = 2 * math.pi * uniform(generator, n, 1, 1, 2)
    amplitude = Hand.bend * normal(generator, n, 1, 1, 2).abs() * 1.25
    lines = lines + amplitude * torch.sin(2 * math.pi * torch.einsum("nspd,nde->nspe", lines, wave) + phase)
    angle, shear = Hand.rotation * normal(generator, n), Hand.shear * normal(generator, n)
    stretch = torch.exp(Hand.stretch * normal(generator, n))
    rotate = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(n, 2, 2)
    skew = torch.stack([stretch, shear, torch.zeros(n), 1 / stretch], 1).view(n, 2, 2)
    lines = torch.einsum("nde,nspe->nspd", rotate @ skew, lines)
    low, high = _extent(lines)
    lines = lines - ((low + high) / 2)[:, None, None]
    return lines / (high - low).amax(1).clamp_min(1e-3)[:, None, None, None]


def render(lines: Tensor, pen: Tensor, size: int) -> Tensor:
    """Ink of polylines (n, s, p, 2) in pixels, by distance to the nearest segment: (n, size, size)."""
    out = torch.empty(len(lines), size, size)
    grid = torch.arange(size, dtype=torch.float32) - (size - 1) / 2
    for i in range(0, len(lines), CHUNK):
        start = lines[i : i + CHUNK, :, :-1].flatten(1, 2).nan_to_num(1e4)
        step = lines[i : i + CHUNK, :, 1:].flatten(1, 2).nan_to_num(1e4) - start
        best = torch.full((len(start), size, size), 1e8)
        for a, d in zip(start.unbind(1), step.unbind(1), strict=True):
            x, y = grid - a[:, :1], grid - a[:, 1:]  # (n, size): columns and rows
            along = (y * d[:, 1:])[:, :, None] + (x * d[:, :1])[:, None]
            along.div_(d.square().sum(1).clamp_min(1e-6)[:, None, None]).clamp_(0, 1)
            # |p - a - t d|^2 expanded would lose digits far away; one fused operation each does not.
            dx = torch.addcmul(x[:, None].expand_as(along), along, d[:, :1, None], value=-1)
            dy = torch.addcmul(y[:, :, None].expand_as(along), along, d[:, 1:, None], value=-1)
            torch.minimum(best, dx.square_().addcmul_(dy, dy), out=best)
        out[i : i + CHUNK] = (pen[i : i + CHUNK, None, None] + 0.5 - best.sqrt_()).clamp_(0, 1)
    return out


def centre_by_mass(lines: Tensor, images: Tensor) -> Tensor:
    """Shift polylines so that the ink's centre of mass falls on the middle of the image."""
    grid = torch.arange(images.shape[-1], dtype=torch.float32) - (images.shape[-1] - 1) / 2
    mass = images.sum((1, 2)).clamp_min(1e-3)
    x, y = images.sum(1) @ grid / mass, images.sum(2) @ grid / mass
    return lines - torch.stack([x, y], 1)[:, None, None]


def draw(classes: int, per_class: int, generator: torch.Generator, size: int = 28) -> tuple[Tensor, Tensor]:
    """Draw random stroke classes.

    Parameters
    ----------
    classes, per_class, generator, size : as for `shapes.draw`.

    Returns
    -------
    images, labels : as for `shapes.draw`; ink is 1.
    """
    templates = _templates(2 * classes, generator)
    steady = _write(templates, 1, generator)[:, 0]
    low, high = _extent(steady)
    # In a very small drawing, scaled up, jitter would dominate.
    keep = torch.argsort(((high - low).amax(1) < 0.45).long(), stable=True)[:classes]
    templates = {name: value[keep] for name, value in templates.items()}
    lines = _unsteady(_write(templates, per_class, generator).flatten(0, 1), generator)
    pen = uniform(generator, len(lines), low=Hand.pen[0], high=Hand.pen[1]) * size / 28
    lines = lines * (BOX * size - 2 * pen)[:, None, None, None]
    # The centre of mass depends little on the resolution, so a coarse first rendering is enough.
    coarse = 2 * render(lines / 2, pen / 2, size // 2).clamp(0, 1)
    lines = centre_by_mass(lines / 2, coarse) * 2
    place = uniform(generator, len(lines), 1, 1, 2, low=Hand.place[0], high=Hand.place[1])
    lines = lines + place * size / 28
    return render(lines, pen, size), torch.arange(classes).repeat_interleave(per_class)
