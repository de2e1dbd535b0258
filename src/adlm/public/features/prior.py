"""Scattering projected on the Fisher directions of a random process: a few hundred numbers an image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.public.features.base import Features, PriorStatistics
from adlm.public.features.deskew import deskew
from adlm.public.features.exact import ExactDirections, exact_unit_norm
from adlm.public.features.hartley_scattering import SquareScattering
from adlm.public.features.narrowed import narrow
from adlm.public.features.order_norms import OrderNorms
from adlm.public.features.scattering import ROWS, Scattering
from adlm.public.features.threads import map_blocks_threaded

SIZE = 28  # images of other sizes are resized to this
WEIGHTS = Path(__file__).parent / "weights"
WIDTHS = {"drawn": 300, "garments": 600}  # directions that are kept by default
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
# Coordinate whose weight is one half, for drawn images: at least, per unit of the root of the signal, and the
# largest signal for this; twice as many are kept. Fixed on the same images of MNIST.
ROUNDS_TAPER, TAPER_UP_TO = (80, 3.3), 12_000.0
LEANING = ("drawn",)  # families whose images are deskewed first
TOGETHER = 8  # images whose responses stay in a core's cache
SHORTEST = 1e-6  # least norm of an order that is scaled to one; shorter ones stay short
FLOOR = 1e-3  # of the mean coefficient: less is rounding error, which a root would enlarge
LONGEST = 2.0  # bound on a centred coefficient: vector and centre have length at most 1


class NormedScattering(nn.Module):
    """Square root of scattering, each order centred and scaled to unit norm per record: (n, H, W) to (n, p).

    The square root compresses the range of responses; centring and scaling remove brightness and contrast.
    An order that is constant over an image becomes zero. With `deskewed`, images are deskewed first.
    """

    def __init__(self, shape: tuple[int, int], J: int = 2, L: int = 8, *, deskewed: bool = False) -> None:
        super().__init__()
        self.scattering, self.deskewed = Scattering(shape, J, L), deskewed
        self.products = SquareScattering(self.scattering) if J == 2 and shape[0] == shape[1] else None
        self.width = self.scattering.channels * math.prod(self.scattering.output)
        self.norms = OrderNorms(self.scattering.orders.repeat_interleave(math.prod(self.scattering.output)))

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_empty(len(x), self.width, dtype=torch.float32)
        return map_blocks_threaded(lambda block, mine: mine.copy_(self.of(block)), x, out, ROWS)

    def of(self, x: Tensor) -> Tensor:
        """Map all images at once."""
        rows = self._coefficients(deskew(x) if self.deskewed else x).flatten(1)
        floors = FLOOR * self.norms.means(rows).clamp_min(0)
        roots = self.norms.centred(rows.maximum(self.norms.spread(floors)).sqrt())
        scale = self.norms.norms(roots).clamp_min(SHORTEST).reciprocal()
        return roots * self.norms.spread(scale)

    def _coefficients(self, x: Tensor) -> Tensor:
        """Scattering; on a CPU by products, faster for few images, except in ONNX export."""
        if self.products is None or x.device.type != "cpu" or torch.onnx.is_in_onnx_export():
            coefficients: Tensor = self.scattering(x)
            return coefficients
        return torch.cat([self.products(part) for part in torch.split(x, TOGETHER)])


class PriorProjection(Features):
    """Normed scattering, less the mean of synthetic classes, on their Fisher directions; unit L2 norm.

    Parameters
    ----------
    family : which random process the directions come from: ``drawn`` (random strokes, for anything
        written or drawn with a pen) or ``garments`` (random silhouettes, for pictures of single things on an
        empty background). The choice is public: it depends on the kind of images, not on records.
    shape : of one record: (H, W), (1, H, W), or (H * W,) of a square image. Bright ink on a dark ground.
    width : how many of the stored directions to keep; by default those that suit the family.
    """

    centre: Tensor
    projection: Tensor
    batch = 2048

    def __init__(
        self, family: str = "drawn", shape: tuple[int, ...] = (SIZE, SIZE), width: int | None = None
    ) -> None:
        super().__init__()
        if family not in FAMILIES:
            raise UserError(f"family must be one of {', '.join(FAMILIES)} (got {family!r})")
        self.family, self.shape = family, tuple(int(s) for s in shape)
        self.image, self.class_separation = _image_shape(self.shape), CLASS_SEPARATION[family]
        self.rounds_from, self.path, self.clip_norm = ROUNDS_FROM[family], ROUNDS_PATH[family], ROUNDS_CLIP
        self.transform = NormedScattering((SIZE, SIZE), deskewed=family in LEANING)
        stored = load_file(WEIGHTS / f"{family}.safetensors")
        most = stored["projection"].shape[1]
        self.width = WIDTHS[family] if width is None else width
        if not 1 <= self.width <= most:
            raise UserError(f"the prior {family!r} has 1 to {most} directions, got width {width}")
        self.register_buffer("centre", stored["centre"].float())
        self.register_buffer("projection", stored["projection"][:, : self.width].float().contiguous())
        self.directions = ExactDirections(self.projection, LONGEST)
        prior = PriorStatistics(
            typical=stored["typical"].float(),
            weight=stored["weight"].float(),
            within=stored["within"].float() / most,  # stored times width, to suit 16 bits
            mean=stored["mean"].float(),
        )
        self.prior = prior if self.width == most else narrow(prior, self.width)

    def rounds_width(self, signal: float) -> int:
        """Return how many leading coordinates suit gradient rounds of that signal."""
        if taper := self.rounds_taper(signal):
            return min(self.width, 2 * taper)
        least, growth = ROUNDS_WIDTH[self.family]
        return min(self.width, max(least, math.floor(growth * math.sqrt(signal))))

    def rounds_taper(self, signal: float) -> int:
        """Return the coordinate whose weight is one half in rounds of that signal; 0 for equal weights."""
        if self.family != "drawn" or signal >= TAPER_UP_TO:
            return 0
        least, growth = ROUNDS_TAPER
        return max(least, math.floor(growth * math.sqrt(signal)))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) in [0, 1] to (n, width), rows of unit L2 norm."""
        return self.leading(x, self.width)

    def leading(self, x: Tensor, width: int) -> Tensor:
        """Project on the first directions alone: (n, width), rows of unit L2 norm."""
        if tuple(x.shape[1:]) != self.shape:
            raise UserError(
                f"the feature map was built for records of shape {self.shape} (got {tuple(x.shape[1:])})"
            )
        images = x.reshape(-1, *self.image)
        out = images.new_empty(len(images), self.transform.width, dtype=torch.float32)

        def centred(block: Tensor, rows: Tensor) -> None:
            rows.copy_(self.transform.of(self._frame(block)) - self.centre)

        rows = map_blocks_threaded(centred, images, out, ROWS)
        return exact_unit_norm(self.directions(rows, width))

    def _frame(self, images: Tensor) -> Tensor:
        """Resize images to 28 x 28 pixels, the size of the synthetic ones."""
        if self.image == (SIZE, SIZE):
            return images
        # A written character of another size fills its frame; the synthetic ones keep a margin of 4 pixels.
        margin = 4 if self.family == "drawn" else 0
        inner = SIZE - 2 * margin
        resized = nn.functional.interpolate(images[:, None], (inner, inner), mode="bicubic", antialias=True)
        return nn.functional.pad(resized.clamp(0, 1), [margin] * 4)[:, 0]

    def synthetic(self, classes: int, per_class: int, seed: int) -> Tensor:
        """Draw classes of the family's random process and map them: (classes, per_class, width)."""
        from adlm.public.priors import shapes, strokes

        process = strokes if self.family == "drawn" else shapes
        images, _ = process.draw(classes, per_class, torch.Generator().manual_seed(seed))
        unresized = PriorProjection(self.family, width=self.width) if self.image != (SIZE, SIZE) else self
        with torch.inference_mode():
            mapped: Tensor = unresized(images.reshape(-1, *unresized.shape))
        return mapped.reshape(classes, per_class, self.width)

    def spec(self) -> dict[str, Any]:
        """Describe the map: its name, family and shape, and its width if that is not the default."""
        width = {} if self.width == WIDTHS[self.family] else {"width": self.width}
        return {"name": "prior-projection", "family": self.family, "shape": list(self.shape)} | width

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> PriorProjection:
        """Build the map that `spec` describes."""
        return cls(spec["family"], tuple(spec["shape"]), spec.get("width"))


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
