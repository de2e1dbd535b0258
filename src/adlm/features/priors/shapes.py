"""Shape classes: random silhouettes of invented objects.

A class is a random silhouette with a few inner lines, of one of four builds: mirrored (a width profile with
limbs, a cleft and a notch), side view (a height profile on a flat base, with an opening or a raised arch),
box with a loop, or a union of parts. Its records vary in contour, size, limbs, brightness and gamma. Texture,
stripes, gradients and blotches are nuisance: they are drawn for each record, independently of its class.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from adlm.features.priors.strokes import normal, uniform

KNOTS = 9  # of a contour's profile
LINES = 3  # inner lines, at most
PARTS = 4
CANVAS = 48  # silhouettes are drawn at this resolution, then fitted to the frame
CHUNK = 600
# Varied between the silhouettes of a class: sizes by a factor, positions by a shift.
SIZES = ("aspect", "limb_half", "loop_a", "loop_b", "box_width", "box_height", "notch_depth", "arch_height")
PLACES = ("cleft_top", "notch_half", "opening_x", "opening_y", "arch_x", "limb_root", "part_xy", "line_xy")


class Variation:
    """How much records of a class differ."""

    contour = 0.045  # sd of a profile knot, relative to the frame
    limb_length = 0.16  # sd of the logarithm
    limb_angle = 0.14  # radians
    proportion = 0.10  # sd of the logarithm of the aspect ratio
    position = 0.05  # sd of the positions of notches, lines and parts
    lean = 0.04  # sd of the shear


def _interpolate(knots: Tensor, where: Tensor) -> Tensor:
    """Linear interpolation of profiles (n, KNOTS) on [0, 1] at `where` (n, ...)."""
    place = (where.clamp(0, 1) * (KNOTS - 1)).clamp(max=KNOTS - 1 - 1e-4)
    index = place.floor().long()
    flat, step = index.flatten(1), (place - index).flatten(1)
    low, high = knots.gather(1, flat), knots.gather(1, flat + 1)
    return (low + step * (high - low)).view(where.shape)


def _soft(signed: Tensor) -> Tensor:
    """Coverage of a pixel from a signed distance in units of the frame (positive inside)."""
    return (signed * CANVAS + 0.5).clamp(0, 1)


def _capsule(x: Tensor, y: Tensor, start: Tensor, end: Tensor, half: Tensor, taper: Tensor) -> Tensor:
    """Signed distance to a limb from `start` to `end` (n, 2), of half width `half` at the root."""
    dx, dy = (end - start)[:, 0, None, None], (end - start)[:, 1, None, None]
    u, v = x - start[:, 0, None, None], y - start[:, 1, None, None]
    t = ((u * dx + v * dy) / (dx * dx + dy * dy).clamp_min(1e-6)).clamp(0, 1)
    width = half[:, None, None] * (1 - taper[:, None, None] * t)
    return width - torch.sqrt((u - t * dx) ** 2 + (v - t * dy) ** 2 + 1e-9)


def _smooth_profile(generator: torch.Generator, count: int, low: float, high: float) -> Tensor:
    """Random profiles (count, KNOTS): a random walk with occasional jumps, kept within [low, high]."""
    start = uniform(generator, count, 1, low=low, high=high)
    steps = 0.06 * normal(generator, count, KNOTS)
    jumps = (uniform(generator, count, KNOTS) < 0.12) * 0.22 * normal(generator, count, KNOTS)
    trend = 0.25 * normal(generator, count, 1) * torch.linspace(-0.5, 0.5, KNOTS)
    return (start + trend + torch.cumsum(steps + jumps, 1)).clamp(low, high)


def _templates(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Everything that defines a class: each entry has `count` rows."""

    def within(low: float, high: float, *shape: int) -> Tensor:
        return uniform(generator, count, *shape, low=low, high=high)

    def happens(probability: float, *shape: int) -> Tensor:
        return uniform(generator, count, *shape) < probability

    tilted = happens(0.3, LINES)
    return {
        "build": torch.multinomial(torch.tensor([0.45, 0.25, 0.15, 0.15]), count, True, generator=generator),
        "aspect": torch.exp(0.45 * normal(generator, count)),
        "profile": _smooth_profile(generator, count, 0.10, 0.46),
        "top": _smooth_profile(generator, count, 0.12, 0.9),
        "limbs": happens(0.6),
        "limb_root": within(0.02, 0.35),
        "limb_angle": within(0.15, 1.5),
        "limb_length": within(0.12, 0.85),
        "limb_half": within(0.05, 0.13),
        "limb_taper": within(0.0, 0.6),
        "cleft": happens(0.3),
        "cleft_top": within(0.1, 0.8),
        "cleft_half": within(0.01, 0.09),
        "notch": happens(0.6),
        "notch_half": within(0.05, 0.22),
        "notch_depth": within(0.03, 0.3),
        "open_front": happens(0.15),
        "opening": happens(0.45),
        "opening_x": within(0.1, 0.9),
        "opening_y": within(0.3, 0.9),
        "opening_a": within(0.08, 0.3),
        "opening_b": within(0.05, 0.3),
        "arch": happens(0.4),
        "arch_x": within(0.25, 0.8),
        "arch_half": within(0.06, 0.3),
        "arch_height": within(0.04, 0.4),
        "box_width": within(0.25, 0.48),
        "box_height": within(0.25, 0.5),
        "box_power": within(2.5, 9.0),
        "box_slope": within(-0.25, 0.25),
        "loop_a": within(0.1, 0.4),
        "loop_b": within(0.1, 0.5),
        "loop_half": within(0.012, 0.05),
        "has_loop": happens(0.75),
        "part_xy": within(-0.32, 0.32, PARTS, 2),
        "part_ab": within(0.06, 0.34, PARTS, 2),
        "part_turn": within(0.0, math.pi, PARTS),
        "part_on": torch.arange(PARTS) < within(1.5, 4.0)[:, None],
        "mirrored_parts": happens(0.5),
        "line_on": happens(0.35, LINES),
        "line_xy": within(-0.4, 0.4, LINES, 2),
        "line_turn": math.pi / 4 * (within(0, 4, LINES).floor() + tilted * within(-0.4, 0.4, LINES)),
        "line_length": within(0.1, 0.9, LINES),
        "line_tone": within(-0.6, 0.5, LINES),
        "line_mirrored": happens(0.5, LINES),
        "flip": torch.where(happens(0.5), 1.0, -1.0),
        "tone": within(0.35, 0.95),
    }


def _vary(t: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """One record of each row: the same silhouette with random variation."""
    v = dict(t)
    n = len(t["build"])
    ramp = torch.linspace(-1, 1, KNOTS)
    for name in ("profile", "top"):
        wander = (
            0.6 * normal(generator, n, KNOTS)
            + 0.7 * normal(generator, n, 1)
            + 0.6 * normal(generator, n, 1) * ramp
        )
        v[name] = (t[name] + Variation.contour * wander).clamp(0.04, 1.0)
    for name in SIZES:
        v[name] = t[name] * torch.exp(Variation.proportion * normal(generator, n))
    v["limb_length"] = t["limb_length"] * torch.exp(Variation.limb_length * normal(generator, n))
    v["limb_angle"] = t["limb_angle"] + Variation.limb_angle * normal(generator, n)
    for name in PLACES:
        v[name] = t[name] + 0.6 * Variation.position * normal(generator, *t[name].shape)
    v["part_ab"] = t["part_ab"] * torch.exp(Variation.proportion * normal(generator, *t["part_ab"].shape))
    v["part_turn"] = t["part_turn"] + 0.12 * normal(generator, *t["part_turn"].shape)
    v["line_turn"] = t["line_turn"] + 0.06 * normal(generator, *t["line_turn"].shape)
    v["lean"] = Variation.lean * normal(generator, n)
    v["cleft_half"] = t["cleft_half"] * torch.exp(0.4 * normal(generator, n))
    return v


def _mirrored(v: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Width profile down the axis, limbs from the shoulders, a cleft from below, a notch from above."""
    half = _interpolate(v["profile"], (y + 0.5).expand(len(v["profile"]), -1, -1))
    body = torch.minimum(half - x.abs(), 0.5 - y.abs())
    shoulder = torch.stack(
        [_interpolate(v["profile"], v["limb_root"][:, None])[:, 0] * 0.8, v["limb_root"] - 0.5], 1
    )
    direction = torch.stack([v["limb_angle"].cos(), v["limb_angle"].sin()], 1)
    limb = _capsule(
        x.abs(),
        y,
        shoulder,
        shoulder + v["limb_length"][:, None] * direction,
        v["limb_half"],
        v["limb_taper"],
    )
    body = torch.where(v["limbs"][:, None, None], torch.maximum(body, limb), body)
    depth = y + 0.5 - v["cleft_top"][:, None, None]
    gap = torch.minimum(v["cleft_half"][:, None, None] * (0.4 + depth.clamp_min(0)) - x.abs(), depth)
    body = torch.where(v["cleft"][:, None, None], torch.minimum(body, -gap), body)
    wide, deep = v["notch_half"][:, None, None], v["notch_depth"][:, None, None]
    notch = (deep * (1 - (x / wide) ** 2).clamp_min(0).sqrt() - (y + 0.5)).clamp(max=0.1)
    notch = torch.where(x.abs() < wide, notch, torch.full_like(notch, -0.1))
    return torch.where(v["notch"][:, None, None], torch.minimum(body, -notch), body)


def _side(v: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Height profile on a flat base, an opening cut out of it, an arch raised under it."""
    x, height = x * v["flip"][:, None, None], 0.5 - y
    top = _interpolate(v["top"], (x + 0.5).expand(len(v["top"]), CANVAS, CANVAS))
    body = torch.minimum(torch.minimum(top - height, height), 0.5 - x.abs())
    u = (x + 0.5 - v["opening_x"][:, None, None]) / v["opening_a"][:, None, None]
    w = (height - v["opening_y"][:, None, None] * top) / v["opening_b"][:, None, None]
    hole = (1 - torch.sqrt(u * u + w * w + 1e-9)) * 0.15
    body = torch.where(v["opening"][:, None, None], torch.minimum(body, -hole), body)
    span = 1 - ((x + 0.5 - v["arch_x"][:, None, None]) / v["arch_half"][:, None, None]) ** 2
    arch = v["arch_height"][:, None, None] * span.clamp_min(0) * (span > 0) - height
    return torch.where(v["arch"][:, None, None], torch.minimum(body, -arch), body)


def _box(v: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """A rounded box with a loop above it."""
    a, b = v["box_width"][:, None, None], v["box_height"][:, None, None]
    middle = 0.5 - b
    slope = 1 + v["box_slope"][:, None, None] * (y - middle) / b
    power = v["box_power"][:, None, None]
    r = ((x / (a * slope)).abs().clamp(max=3) ** power + ((y - middle) / b).abs().clamp(max=3) ** power) ** (
        1 / power
    )
    box = (1 - r) * torch.minimum(a, b)
    u, w = x / v["loop_a"][:, None, None], (y - (middle - b)) / v["loop_b"][:, None, None]
    ring = (torch.sqrt(u * u + w * w + 1e-9) - 1).abs() * torch.minimum(v["loop_a"], v["loop_b"])[
        :, None, None
    ]
    loop = v["loop_half"][:, None, None] - ring
    return torch.where(v["has_loop"][:, None, None], torch.maximum(box, loop), box)


def _union(v: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """A union of turned ellipses, half of the time mirrored."""
    x = torch.where(v["mirrored_parts"][:, None, None], x.abs(), x)
    body = torch.full((len(v["part_on"]), CANVAS, CANVAS), -1.0)
    for p in range(PARTS):
        u, w = x - v["part_xy"][:, p, 0, None, None], y - v["part_xy"][:, p, 1, None, None]
        c, s = v["part_turn"][:, p].cos()[:, None, None], v["part_turn"][:, p].sin()[:, None, None]
        a, b = v["part_ab"][:, p, 0, None, None], v["part_ab"][:, p, 1, None, None]
        r = torch.sqrt(((u * c + w * s) / a) ** 2 + ((w * c - u * s) / b) ** 2 + 1e-9)
        part = (1 - r) * torch.minimum(a, b)
        body = torch.where(v["part_on"][:, p, None, None], torch.maximum(body, part), body)
    return body


def _lines(v: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Change of tone along inner lines: (n, CANVAS, CANVAS)."""
    tone = torch.zeros(len(v["line_on"]), CANVAS, CANVAS)
    for i in range(LINES):
        side = torch.where(v["line_mirrored"][:, i, None, None], x.abs(), x)
        start = v["line_xy"][:, i]
        turn, length = v["line_turn"][:, i], v["line_length"][:, i, None]
        end = start + length * torch.stack([turn.cos(), turn.sin()], 1)
        ink = _soft(_capsule(side, y, start, end, torch.full_like(turn, 0.02), torch.zeros_like(turn)))
        tone += ink * (v["line_tone"][:, i] * v["line_on"][:, i])[:, None, None]
    return tone


def _fit(layers: Tensor, fill: Tensor, shift: Tensor) -> Tensor:
    """Stretch (n, c, H, W) evenly so that the ink of layer 0 fills a share `fill` of the frame, centred."""
    ink = layers[:, 0] > 0.3
    place = torch.linspace(-1, 1, CANVAS)

    def ends(hit: Tensor) -> tuple[Tensor, Tensor]:
        low = torch.where(hit, place, torch.tensor(2.0)).amin(1)
        high = torch.where(hit, place, torch.tensor(-2.0)).amax(1)
        return torch.where(low > high, -1.0, low), torch.where(low > high, 1.0, high)

    (x0, x1), (y0, y1) = ends(ink.any(1)), ends(ink.any(2))
    half = torch.maximum(x1 - x0, y1 - y0).clamp_min(0.2) / 2 / fill
    grid = torch.stack(torch.meshgrid(place, place, indexing="xy"), -1)
    middle = torch.stack([(x0 + x1) / 2, (y0 + y1) / 2], 1) + shift
    where = grid * half[:, None, None, None] + middle[:, None, None]
    return functional.grid_sample(layers, where, align_corners=True)


def _smooth_field(generator: torch.Generator, n: int, blotches: int) -> Tensor:
    """Random fields of about so many blotches a side, unit variance: (n, CANVAS, CANVAS)."""
    field = normal(generator, n, 1, blotches, blotches)
    return functional.interpolate(field, size=(CANVAS, CANVAS), mode="bicubic", align_corners=True)[:, 0]


def _cloth(n: int, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Nuisance on the inside of a shape, mean about 0: grain, stripes, a gradient, blotches."""

    def some(probability: float, amplitude: float) -> Tensor:
        on = uniform(generator, n) < probability
        return (on * amplitude * uniform(generator, n, low=0.3, high=1.0))[:, None, None]

    turn = (uniform(generator, n) * 4).floor()[:, None, None] * math.pi / 4
    wave = x * turn.cos() + y * turn.sin()
    period = uniform(generator, n, low=3.0, high=13.0)[:, None, None]
    stripes = torch.sin(2 * math.pi * (period * wave + uniform(generator, n)[:, None, None]))
    lean = normal(generator, n, 2)
    gradient = lean[:, :1, None] * x + lean[:, 1:, None] * y
    grain = normal(generator, n, CANVAS, CANVAS)
    return (
        some(0.7, 0.16) * grain
        + some(0.3, 0.4) * torch.where(some(0.5, 1.0) > 0, stripes.sign(), stripes)
        + some(0.7, 0.45) * gradient
        + some(0.35, 0.25) * _smooth_field(generator, n, 5)
        + some(0.35, 0.25) * _smooth_field(generator, n, 10)
    )


def _paint(v: dict[str, Tensor], generator: torch.Generator, size: int) -> Tensor:
    """Render one record of each row: (n, size, size) in [0, 1]."""
    n = len(v["build"])
    place = (torch.arange(CANVAS) + 0.5) / CANVAS * 1.8 - 0.9
    y, x = place[None, :, None].expand(n, CANVAS, CANVAS), place[None, None].expand(n, CANVAS, CANVAS)
    x = x + v["lean"][:, None, None] * y
    stretched = x * v["aspect"].sqrt()[:, None, None], y / v["aspect"].sqrt()[:, None, None]
    signed = torch.empty(n, CANVAS, CANVAS)
    for build, shape in enumerate((_mirrored, _side, _box, _union)):
        rows = (v["build"] == build).nonzero()[:, 0]
        part = {name: value[rows] for name, value in v.items()}
        signed[rows] = shape(part, stretched[0][rows], stretched[1][rows])
    layers = torch.stack([_soft(signed), _lines(v, *stretched)], 1)
    fill = uniform(generator, n, low=0.88, high=1.02)
    layers = _fit(layers, fill, 0.03 * normal(generator, n, 2))
    tone = (v["tone"] + 0.22 * normal(generator, n)).clamp(0.12, 1.0)[:, None, None]
    inside = tone * (1 + layers[:, 1] + _cloth(n, x, y, generator))
    gamma = torch.exp(0.3 * normal(generator, n))[:, None, None]
    image = layers[:, 0] * inside.clamp(0.03, 1.0) ** gamma
    return functional.interpolate(image[:, None], size=(size, size), mode="area")[:, 0].clamp(0, 1)


def draw(classes: int, per_class: int, generator: torch.Generator, size: int = 28) -> tuple[Tensor, Tensor]:
    """Draw random shape classes.

    Parameters
    ----------
    classes, per_class : numbers of classes, and of records of each.
    generator : of the draw.
    size : side of an image, in pixels.

    Returns
    -------
    images : (classes * per_class, size, size) float32 in [0, 1], background 0.
    labels : (classes * per_class,) int64, records of a class together.
    """
    templates = _templates(classes, generator)
    labels = torch.arange(classes).repeat_interleave(per_class)
    images = torch.empty(len(labels), size, size)
    for start in range(0, len(labels), CHUNK):
        rows = labels[start : start + CHUNK]
        varied = _vary({name: value[rows] for name, value in templates.items()}, generator)
        images[start : start + CHUNK] = _paint(varied, generator, size)
    return images, labels
