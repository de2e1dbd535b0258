"""Features of drawn images: deskewed scattering, on directions that separate classes of a random process.

The slant of handwriting depends on the writer, not on the character, so it is removed first: a row at height
y from the ink's centre moves by y times the slope, the covariance of columns and rows over the variance of
rows. Between pixels the ink is interpolated; beyond the edge it is cut off. Then come the square root of
scattering coefficients, each order centred and scaled, and their projection on the Fisher directions of
random strokes or silhouettes: a few hundred numbers an image.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from adlm.errors import UserError
from adlm.features.base import Features, PriorStatistics, narrow
from adlm.features.linear import Directions, Resized, exact_unit_norm, map_records
from adlm.features.scattering import CHANNELS, ORDERS, ROWS, OrderNorms, Scattering
from adlm.runtime.compiled import Compiled, Floats

STEEPEST = 1.0  # columns per row; steeper slants are clipped
FLATTEST = 1.0  # least standard deviation of the ink's height, in rows
FAINTEST = 1e-3  # least ink
SIZE = 28  # images of other sizes are resized to this
WEIGHTS = Path(__file__).parent / "weights"
WIDTHS = {"drawn": 300, "garments": 600}  # directions that are kept
FAMILIES = tuple(WIDTHS)
CLASS_SEPARATION = {
    "drawn": 1.06,
    "garments": 0.77,
}  # fixed on the last 10,000 training images of (Fashion-)MNIST
ROUNDS_FROM = {"drawn": 200.0, "garments": 350.0}  # likewise
ROUNDS_PATH = {"drawn": 0.1, "garments": 0.13}  # likewise
ROUNDS_CLIP = 0.12  # likewise
# Coordinates for gradient rounds: at least, and per unit of the root of the signal; likewise. The weaker
# the signal, the more it helps that the others do not count in the norm.
ROUNDS_WIDTH = {"drawn": (60, 2.4), "garments": (400, 15.0)}
LEANING = ("drawn",)  # families whose images are deskewed first
SHORTEST = 1e-6  # least norm of an order that is scaled to one; shorter ones stay short
FLOOR = 1e-3  # of the mean coefficient: less is rounding error, which a root would enlarge


def deskew(images: Tensor) -> Tensor:
    """Shift the rows of images (n, H, W) so that columns and rows of the ink are uncorrelated."""
    _, height, width = images.shape
    rows = torch.arange(height, dtype=images.dtype, device=images.device) - (height - 1) / 2
    columns = torch.arange(width, dtype=images.dtype, device=images.device) - (width - 1) / 2
    ink = images.sum(2)
    mass = ink.sum(1).clamp_min(FAINTEST)
    y = rows - (ink @ rows / mass)[:, None]
    spread = (ink * y * y).sum(1).clamp_min(0).maximum(mass * FLATTEST**2)
    slope = (((images @ columns) * y).sum(1) / spread).clamp(-STEEPEST, STEEPEST)
    shift = slope[:, None] * y
    floor = shift.floor()
    first = (torch.arange(1, width + 1, device=images.device) + floor.long()[:, :, None]).clamp(0, width + 1)
    padded = functional.pad(images, (1, 2))
    near, far = padded.gather(2, first), padded.gather(2, first + 1)
    return near + (shift - floor)[:, :, None] * (far - near)


def _deskew(images: Floats, height: int, width: int, out: Floats) -> None:
    """Write the deskewed images (n, H, W), all flat, one by one; sums are doubles, pixel by pixel."""
    for start in range(0, len(images), height * width):
        mass = moment = 0.0
        for y in range(height):
            ink = 0.0
            for x in range(width):
                ink += np.float64(images[start + y * width + x])
            mass += ink
            moment += ink * (y - (height - 1) / 2)
        mass = max(mass, FAINTEST)
        middle = moment / mass + (height - 1) / 2
        spread = covariance = 0.0
        for y in range(height):
            ink = across = 0.0
            for x in range(width):
                value = np.float64(images[start + y * width + x])
                ink += value
                across += value * (x - (width - 1) / 2)
            spread += ink * (y - middle) * (y - middle)
            covariance += across * (y - middle)
        slope = min(max(covariance / max(spread, mass * FLATTEST**2), -STEEPEST), STEEPEST)
        for y in range(height):
            shift = slope * (y - middle)
            floor = math.floor(shift)
            share, row = np.float32(shift - floor), start + y * width
            for x in range(width):
                at = min(max(x + floor, -1), width)
                near = images[row + at] if 0 <= at < width else np.float32(0.0)
                far = images[row + at + 1] if at + 1 < width else np.float32(0.0)
                out[row + x] = near + share * (far - near)


deskew_images = Compiled(_deskew)


def deskewed(images: Floats) -> Floats:
    """The same as `deskew` up to rounding, image by image in a compiled loop."""
    out = np.empty_like(images)
    deskew_images(images.reshape(-1), images.shape[1], images.shape[2], out.reshape(-1))
    return out


class NormedScattering(nn.Module):
    """Square root of scattering, each order centred and scaled to unit norm per record: (n, H, H) to (n, p).

    The square root compresses the range of responses; centring and scaling remove brightness and contrast.
    An order that is constant over an image becomes zero. With `deskewed`, images are deskewed first.
    """

    def __init__(self, size: int, *, deskewed: bool = False) -> None:
        super().__init__()
        self.scattering, self.deskewed = Scattering(size), deskewed
        count = math.prod(self.scattering.output)
        self.width = CHANNELS * count
        orders = ORDERS.repeat_interleave(count)
        self.norms = OrderNorms(orders, FLOOR, (0.0,) * 3, SHORTEST)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, H, H) to (n, p)."""
        return map_records(x, (self.width,), self.compiled, self.products, ROWS)

    def compiled(self, images: Floats) -> Floats:
        """Map images, one by one."""
        upright = deskewed(images) if self.deskewed else images
        return self.norms.compiled(self.scattering.plan(upright).reshape(len(images), -1))

    def products(self, x: Tensor) -> Tensor:
        """Map all images at once, by PyTorch."""
        rows: Tensor = self.norms(self.scattering.products(deskew(x) if self.deskewed else x).flatten(1))
        return rows


class PriorProjection(Features):
    """Normed scattering, less the mean of synthetic classes, on their Fisher directions; unit L2 norm.

    Parameters
    ----------
    family : which random process the directions come from: ``drawn`` (random strokes, for anything
        written or drawn with a pen) or ``garments`` (random silhouettes, for pictures of single objects on an
        empty background). The choice is public: it depends on the kind of images, not on records.
    shape : of one record: (H, W), (1, H, W), or (H * W,) of a square image. Bright ink on a dark background.
    """

    centre: Tensor
    projection: Tensor
    batch = 2048

    def __init__(self, family: str = "drawn", shape: tuple[int, ...] = (SIZE, SIZE)) -> None:
        super().__init__()
        if family not in FAMILIES:
            raise UserError(f"family must be one of {', '.join(FAMILIES)} (got {family!r})")
        self.family, self.shape = family, tuple(int(s) for s in shape)
        self.image, self.class_separation = _image_shape(self.shape), CLASS_SEPARATION[family]
        self.rounds_from, self.path, self.clip_norm = ROUNDS_FROM[family], ROUNDS_PATH[family], ROUNDS_CLIP
        self.transform = NormedScattering(SIZE, deskewed=family in LEANING)
        # A written character of another size fills its frame; the synthetic ones keep a margin of 4 pixels.
        margin = 4 if family == "drawn" else 0
        plain = self.image == (SIZE, SIZE)
        self.frame = None if plain else Resized(self.image, SIZE - 2 * margin, "bicubic", margin)
        stored = load_file(WEIGHTS / f"{family}.safetensors")
        most, self.width = stored["projection"].shape[1], WIDTHS[family]
        self.register_buffer("centre", stored["centre"].float())
        self.register_buffer("projection", stored["projection"][:, : self.width].float().contiguous())
        self.directions = Directions(self.projection)
        prior = PriorStatistics(
            typical=stored["typical"].float(),
            weight=stored["weight"].float(),
            within=stored["within"].float() / most,  # stored times width, to suit 16 bits
            mean=stored["mean"].float(),
        )
        self.prior = narrow(prior, self.width)

    def rounds_width(self, signal: float) -> int:
        """Return how many leading coordinates suit gradient rounds of that signal."""
        least, growth = ROUNDS_WIDTH[self.family]
        return min(self.width, max(least, math.floor(growth * math.sqrt(signal))))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) in [0, 1] to (n, width), rows of unit L2 norm."""
        return self.leading(x, self.width)

    def leading(self, x: Tensor, width: int) -> Tensor:
        """Project on the first directions alone: (n, width), rows of unit L2 norm."""
        if tuple(x.shape[1:]) != self.shape:
            raise UserError(
                f"the feature map was built for records of shape {self.shape} (got {tuple(x.shape[1:])})"
            )
        images = x.reshape(-1, *self.image).float()
        return exact_unit_norm(self.directions.of(images, self._compiled, self._products, width))

    def _compiled(self, images: Floats) -> Floats:
        """Centred coefficients of images, one by one."""
        framed = images if self.frame is None else self.frame.compiled(images)
        rows = self.transform.compiled(framed)
        rows -= self.centre.numpy()
        return rows

    def _products(self, images: Tensor) -> Tensor:
        """Centred coefficients of all images at once."""
        framed = images if self.frame is None else self.frame(images)
        return self.transform.products(framed) - self.centre

    def synthetic(self, classes: int, per_class: int, seed: int) -> Tensor:
        """Draw classes of the family's random process and map them: (classes, per_class, width)."""
        from adlm.features.priors import shapes, strokes

        process = strokes if self.family == "drawn" else shapes
        images, _ = process.draw(classes, per_class, torch.Generator().manual_seed(seed))
        unresized = self if self.frame is None else PriorProjection(self.family)
        with torch.inference_mode():
            mapped: Tensor = unresized(images.reshape(-1, *unresized.shape))
        return mapped.reshape(classes, per_class, self.width)

    def spec(self) -> dict[str, Any]:
        """Describe the map: its name, family and shape."""
        return {"name": "prior-projection", "family": self.family, "shape": list(self.shape)}


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) == 1 and math.isqrt(shape[0]) ** 2 == shape[0]:
        shape = (math.isqrt(shape[0]),) * 2
    if len(shape) != 2 or min(shape) < 4:
        raise UserError(
            f"the prior projection takes grey images of shape (H, W), (1, H, W) or (H * W,) for square ones, "
            f"at least 4 pixels a side (got records of shape {shape})"
        )
    return (shape[0], shape[1])
