"""Image features for ONNX export: the same maps, without FFTs and without loops over the batch.

A discrete Fourier transform of an image is two products with a fixed matrix; resizing and pooling are
products with fixed matrices too. Nothing is approximated; only the order in which numbers are added changes.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adlm.public.features.base import Features, unit_norm
from adlm.public.features.colour import Colour, flip_average, opponent
from adlm.public.features.colour_scattering import CHANNELS, FLOORS, ColourScattering
from adlm.public.features.multiscale import MultiscaleImages
from adlm.public.features.natural import NaturalImages
from adlm.public.features.patches import Patches
from adlm.public.features.pooled_patches import CONTRAST_FLOOR
from adlm.public.features.prior import PriorProjection
from adlm.public.features.scattering import Scattering, fold
from adlm.public.features.tents import tent_means

Complex = tuple[Tensor, Tensor]  # real and imaginary part


def traceable(features: Features) -> Features:
    """Return the same map with every part replaced that cannot be traced."""
    copied = copy.deepcopy(features)
    _replace(copied)
    return _batched(copied) or copied


def _replace(module: nn.Module) -> None:
    for name, part in module.named_children():
        _replace(part)
        twin = _twin(part)
        if twin is not None:
            setattr(module, name, twin)


def _batched(features: nn.Module) -> Features | None:
    match features:
        case PriorProjection():
            return TraceableProjection(features)
        case NaturalImages():
            return TraceableNatural(features)
        case MultiscaleImages():
            return TraceableMultiscale(features)
        case _:
            return None


def _twin(part: nn.Module) -> nn.Module | None:
    match part:
        case Scattering():
            return DenseScattering(part)
        case PriorProjection() | NaturalImages() | MultiscaleImages():
            return _batched(part)
        case ColourScattering():
            return TraceableColourScattering(part)
        case Patches():
            return TraceablePatches(part)
        case Colour():
            return PooledColour(part)
        case _:
            return None


class DenseScattering(nn.Module):
    """Scattering by dense Fourier matrices, for any number of images at once."""

    def __init__(self, of: Scattering) -> None:
        super().__init__()
        self.of, self.orders, self.channels, self.output = of, of.orders, of.channels, of.output
        for size in {s // 2**j for s in of.padded for j in range(of.J + 1)}:
            angle = 2 * np.pi * np.outer(np.arange(size), np.arange(size)) / size
            self.register_buffer(f"cos{size}", torch.from_numpy(np.cos(angle)).float())
            self.register_buffer(f"sin{size}", torch.from_numpy(np.sin(angle)).float())
        wavelets = of.wavelets
        for j1 in range(of.J):
            self._keep(f"wave{j1}", wavelets[j1])
            for j2 in range(j1 + 1, of.J):
                self._keep(f"wave{j1}_{j2}", fold(wavelets[j2], 2**j1) * 4**j1)

    def _keep(self, name: str, wave: Tensor) -> None:
        self.register_buffer(f"{name}_re", wave.real.contiguous())
        self.register_buffer(f"{name}_im", wave.imag.contiguous())

    def _fourier(self, x: Complex, sign: float) -> Complex:
        """Transform the last two axes: exp(-i) for sign 1, exp(+i), unscaled, for sign -1."""
        height, width = x[0].shape[-2:]
        real, imaginary = self._product(x, int(width), sign)
        turned = self._product((real.transpose(-1, -2), imaginary.transpose(-1, -2)), int(height), sign)
        return turned[0].transpose(-1, -2), turned[1].transpose(-1, -2)

    def _product(self, x: Complex, size: int, sign: float) -> Complex:
        cos, sin = self.get_buffer(f"cos{size}"), sign * self.get_buffer(f"sin{size}")
        return x[0] @ cos + x[1] @ sin, x[1] @ cos - x[0] @ sin

    def _response(self, x: Complex, wave: str, step: int) -> Tensor:
        """|x * psi|, sampled every `step` pixels, of a spectrum x."""
        re, im = self.get_buffer(f"{wave}_re"), self.get_buffer(f"{wave}_im")
        product = fold(x[0] * re - x[1] * im, step), fold(x[0] * im + x[1] * re, step)
        real, imaginary = self._fourier(product, -1.0)
        size = int(product[0].shape[-1]) * int(product[0].shape[-2])
        return (real.square() + imaginary.square()).sqrt() / size

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, H, W) or (n, C, H, W) to (n, C * channels, h, w)."""
        L, J = self.of.L, self.of.J
        images = self.of._pad(x.reshape(-1, *self.of.shape))
        parts = [self.of._low_pass(images, 0)[:, None]]
        spectrum = self._fourier((images[:, None], torch.zeros_like(images[:, None])), 1.0)
        firsts = [self._response(spectrum, f"wave{j}", 2**j) for j in range(J)]
        parts += [self.of._low_pass(u, j) for j, u in enumerate(firsts)]
        for j1, u in enumerate(firsts[:-1]):
            inner = self._fourier((u[:, :, None], torch.zeros_like(u[:, :, None])), 1.0)
            seconds = [
                self.of._low_pass(self._response(inner, f"wave{j1}_{j2}", 2 ** (j2 - j1)), j2)
                for j2 in range(j1 + 1, J)
            ]
            parts.append(torch.stack(seconds, 2).reshape(-1, L * L * len(seconds), *self.output))
        channels = 1 if x.ndim == 3 else int(x.shape[1])
        return torch.cat(parts, 1).reshape(-1, channels * self.channels, *self.output)


class TraceableProjection(Features):
    """`PriorProjection` of a whole batch; a resized image is a product with fixed matrices on both sides."""

    def __init__(self, of: PriorProjection) -> None:
        super().__init__()
        self.of, self.width = of, of.width
        height, width = of.image
        size = int(of._frame(torch.zeros(1, height, width)).shape[-1])
        self.resized = (height, width) != (size, size)
        if self.resized:
            margin = 4 if of.family == "drawn" else 0
            self.register_buffer("rows", resizing(height, size - 2 * margin))
            self.register_buffer("columns", resizing(width, size - 2 * margin))
            self.margin = margin

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width)."""
        images = x.reshape(-1, *self.of.image)
        if self.resized:
            inner = (self.get_buffer("rows") @ images @ self.get_buffer("columns").T).clamp(0, 1)
            images = functional.pad(inner[:, None], [self.margin] * 4)[:, 0]
        return unit_norm((self.of.transform.of(images) - self.of.centre) @ self.of.projection)

    def spec(self) -> dict[str, object]:
        """Describe the map that this one is a twin of."""
        return self.of.spec()


class TraceableNatural(Features):
    """`NaturalImages` of a whole batch."""

    def __init__(self, of: NaturalImages) -> None:
        super().__init__()
        self.of, self.width = of, of.width

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, 3, 32, 32) to (n, width)."""
        return unit_norm(self.of.blocks(x) @ self.of.projection - self.of.offset.float())

    def spec(self) -> dict[str, object]:
        """Describe the map that this one is a twin of."""
        return self.of.spec()


class TraceableMultiscale(Features):
    """`MultiscaleImages` of a whole batch; a resized image is a product with fixed matrices on both sides."""

    def __init__(self, of: MultiscaleImages) -> None:
        super().__init__()
        self.of, self.width, self.resized = of, of.width, of.resized
        if self.resized:
            height, width = of.shape[-2:]
            self.register_buffer("rows", resizing(height, of.size, "bilinear"))
            self.register_buffer("columns", resizing(width, of.size, "bilinear"))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width)."""
        images = x.reshape(-1, self.of.channels, *self.of.shape[-2:])
        if self.resized:
            images = (self.get_buffer("rows") @ images @ self.get_buffer("columns").T).clamp(0, 1)
        return unit_norm(self.of.blocks(images) @ self.of.projection - self.of.offset.float())

    def spec(self) -> dict[str, object]:
        """Describe the map that this one is a twin of."""
        return self.of.spec()


class TraceableColourScattering(nn.Module):
    """`ColourScattering` of a batch of any size, with slices in place of masks."""

    def __init__(self, of: ColourScattering) -> None:
        super().__init__()
        self.scattering, self.left, self.counts = of.scattering, of.left, of.counts

    def forward(self, x: Tensor) -> Tensor:
        """Map RGB images (n, 3, size, size) to (n, width)."""
        colours = opponent(x)
        cells, views = self.scattering.output[0] // 2, (colours, colours.flip(3))
        plain, mirrored = (tent_means(self.scattering(view), cells) for view in views)
        both = 0.5 * (plain + mirrored)[..., : self.left]
        parts = []
        blocks = torch.split(both, CHANNELS * self.counts, 1)
        for part, order in zip(blocks, CHANNELS * [0, 1, 2], strict=True):
            flat = (part if order == 0 else part.clamp_min(0.0).sqrt()).flatten(1)
            flat = flat - flat.mean(1, keepdim=True)
            parts.append(flat / (torch.linalg.vector_norm(flat, dim=1, keepdim=True) + FLOORS[order]))
        return torch.cat(parts, 1)


class TraceablePatches(Patches):
    """`Patches` of a whole batch, by a convolution and pooling that can be traced."""

    def __init__(self, of: Patches) -> None:
        super().__init__(of.filters, of.threshold, of.grid)

    def contrast(self, x: Tensor) -> Tensor:
        """Standard deviation of each patch, plus a floor, by pooling: the windows cannot be traced."""
        side = self.filters.shape[-1]
        mean = functional.avg_pool2d(x.mean(1, keepdim=True), side, 1)
        power = functional.avg_pool2d(x.square().mean(1, keepdim=True), side, 1)
        return (power - mean.square()).clamp_min(0.0).sqrt() + CONTRAST_FLOOR

    def beyond(self, x: Tensor) -> Tensor:
        """Responses less the threshold, towards zero, by a convolution."""
        return functional.softshrink(functional.conv2d(x, self.both) / self.contrast(x), self.threshold)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, c, h, w) to (n, width)."""
        return self.of(self.beyond(x))


class PooledColour(Colour):
    """`Colour` with pooling as a product."""

    def __init__(self, of: Colour) -> None:
        bins = (len(of.get_buffer("light")), len(of.get_buffer("yellow")), len(of.get_buffer("red")))
        super().__init__(bins, of.grid, of.thumbnail)

    def forward(self, x: Tensor) -> Tensor:
        """Map RGB images (n, 3, h, w) to (n, width)."""
        colours = opponent(x)
        light, yellow, red = (
            _memberships(colours[:, i], self.get_buffer(name))
            for i, name in enumerate(("light", "yellow", "red"))
        )
        pairs = (light[:, :, None] * yellow[:, None]).flatten(1, 2)
        joint = (pairs[:, :, None] * red[:, None]).flatten(1, 2)
        histogram = flip_average(pooled(joint, self.grid)).flatten(1).sqrt()
        return torch.cat([histogram, flip_average(pooled(colours, self.thumbnail)).flatten(1)], 1)


def _memberships(value: Tensor, centres: Tensor) -> Tensor:
    """Triangular bins, (n, bins, h, w)."""
    value = value.clamp(float(centres[0]), float(centres[-1]))[:, None]
    return (1.0 - (value - centres[:, None, None]).abs() / float(centres[1] - centres[0])).clamp_min(0.0)


def resizing(size: int, to: int, mode: str = "bicubic") -> Tensor:
    """Matrix of resizing along one side: (to, size)."""
    lines = torch.eye(size).reshape(size, 1, size, 1).expand(-1, -1, -1, size)  # images that vary downwards
    resized = functional.interpolate(lines, (to, to), mode=mode, antialias=True)
    return resized[:, 0, :, 0].T.contiguous()


def pooled(maps: Tensor, grid: int) -> Tensor:
    """Adaptive average pooling of (..., h, w) to (..., grid, grid)."""
    sides = (torch.eye(int(side))[None] for side in maps.shape[-2:])
    height, width = (functional.adaptive_avg_pool1d(side, grid)[0].to(maps) for side in sides)
    return height.T @ (maps @ width)
