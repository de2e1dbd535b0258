"""Standing drawings up: against a slow twin, and by what it is for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from adlm.features.deskew import _deskew, deskew, deskewed
from adlm.features.priors import strokes


@pytest.fixture(scope="module")
def drawings() -> Tensor:
    return strokes.draw(12, 2, torch.Generator().manual_seed(3))[0]


def slope(image: Tensor) -> float:
    """Covariance of columns and rows of the ink over the variance of its rows, pixel by pixel."""
    ink = [(x, y, float(v)) for y, row in enumerate(image.double()) for x, v in enumerate(row)]
    mass = sum(v for _, _, v in ink)
    mx, my = sum(x * v for x, _, v in ink) / mass, sum(y * v for _, y, v in ink) / mass
    lean = sum((x - mx) * (y - my) * v for x, y, v in ink)
    return lean / max(sum((y - my) ** 2 * v for _, y, v in ink), mass)


def twin(image: Tensor) -> Tensor:
    """Each pixel from the two that its place in the leaning drawing lies between."""
    height, width = image.shape
    rows = [(y, float(row.double().sum())) for y, row in enumerate(image)]
    centre = sum(y * v for y, v in rows) / sum(v for _, v in rows)
    lean = min(max(slope(image), -1), 1)
    out = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            place = x + lean * (y - centre)
            left = math.floor(place)
            for column, share in ((left, left + 1 - place), (left + 1, place - left)):
                if 0 <= column < width:
                    out[y, x] += share * image[y, column]
    return out


def test_is_what_the_slow_twin_says(drawings: Tensor) -> None:
    stood, compiled = deskew(drawings), torch.from_numpy(deskewed(drawings.numpy()))
    for image, found, other in zip(drawings, stood, compiled, strict=True):
        torch.testing.assert_close(found, twin(image), rtol=0, atol=1e-5)
        torch.testing.assert_close(other, twin(image), rtol=0, atol=1e-5)


def test_compiled_code_gives_the_bits_of_plain_python(drawings: Tensor) -> None:
    given = drawings[:2].numpy()
    out = np.empty_like(given)
    _deskew(given.reshape(-1), given.shape[1], given.shape[2], out.reshape(-1))
    assert np.array_equal(deskewed(given), out)


def test_drawings_lean_before_and_do_not_after(drawings: Tensor) -> None:
    narrow = drawings[(drawings.sum(1)[:, :4] + drawings.sum(1)[:, -4:]).sum(1) == 0]  # no ink near the sides
    before = [abs(slope(image)) for image in narrow]
    after = [abs(slope(image)) for image in deskew(narrow)]
    assert max(before) > 0.2
    assert max(after) < 0.02


def test_a_drawing_and_its_slanted_copy_become_nearly_the_same() -> None:
    """A stem between two bars, at two slants."""

    def character(lean: float) -> Tensor:
        bar = torch.tensor([[-4.0, -7.0], [4.0, -7.0]])
        foot = torch.tensor([[-4.0, 7.0], [4.0, 7.0]])
        stem = torch.tensor([[0.0, -7.0], [0.0, 7.0]])
        lines = torch.stack([bar, stem, foot])[None]
        lines[..., 0] -= lean * lines[..., 1]
        return strokes.render(lines, torch.tensor([1.2]), 28)

    apart = (character(0.0) - character(0.4)).norm()
    stood = (deskew(character(0.0)) - deskew(character(0.4))).norm()
    assert stood < 0.35 * apart


def test_blank_and_even_images_stay_as_they_are() -> None:
    assert deskew(torch.zeros(2, 28, 28)).abs().max() == 0
    even = torch.zeros(1, 28, 28)
    even[:, 5:23, 9:19] = 0.7
    torch.testing.assert_close(deskew(even), even, rtol=0, atol=1e-5)


def test_a_record_does_not_depend_on_the_others(drawings: Tensor) -> None:
    together = deskew(drawings)
    for i in range(4):
        torch.testing.assert_close(deskew(drawings[i : i + 1])[0], together[i], rtol=0, atol=1e-6)
