"""Features of drawn images: deskewing against a slow twin, and the projection of normed scattering."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from adlm.errors import UserError
from adlm.features import Narrowed, build
from adlm.features.base import unit_norm
from adlm.features.drawn import (
    FAMILIES,
    FLOOR,
    NormedScattering,
    PriorProjection,
    _deskew,
    deskew,
    deskewed,
)
from adlm.features.priors import shapes, strokes
from adlm.features.scattering import ORDERS


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


def test_normed_scattering_ignores_brightness_and_contrast() -> None:
    transform = NormedScattering(28)
    image, _ = strokes.draw(1, 1, torch.Generator().manual_seed(0))
    torch.testing.assert_close(transform(image), transform(0.3 * image), atol=1e-4, rtol=1e-3)
    blank = transform(torch.zeros(1, 28, 28))
    assert blank.abs().max() == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_have_unit_norm_and_the_spec_builds_the_same_map(family: str) -> None:
    features = PriorProjection(family)
    images = torch.rand(5, 28, 28, generator=torch.Generator().manual_seed(1))
    z = features(images)
    assert z.shape == (5, features.width)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(5))
    again = build(features.spec())
    assert again.fingerprint() == features.fingerprint()
    assert torch.equal(again(images), z)
    assert features.prior is not None
    assert features.prior.within.shape == (features.width, features.width)


def test_a_narrowed_map_projects_on_its_own_directions_alone() -> None:
    """And says the same as the wide map, cut and scaled; for as many records as take several blocks."""
    wide, images = PriorProjection("drawn"), strokes.draw(10, 15, torch.Generator().manual_seed(1))[0]
    narrowed = Narrowed(wide, 40)
    torch.testing.assert_close(narrowed(images), narrowed.of(wide(images)), rtol=0, atol=2e-6)
    assert narrowed(images).shape == (150, 40)


def test_normed_scattering_one_by_one_and_of_all_at_once_agree_and_have_gradients() -> None:
    transform, images = NormedScattering(28, deskewed=True), strokes.draw(5, 9, torch.Generator())[0]
    torch.testing.assert_close(transform(images), transform.products(images), rtol=0, atol=1e-6)
    x = torch.rand(3, 28, 28, generator=torch.Generator().manual_seed(1)).requires_grad_()
    transform(x).square().sum(1)[0].backward()
    assert x.grad is not None
    assert x.grad[0].abs().max() > 0
    assert x.grad[1:].abs().max() == 0


@pytest.mark.parametrize(("family", "process"), [("drawn", strokes), ("garments", shapes)])
def test_class_means_tell_new_synthetic_classes_apart(family: str, process: object) -> None:
    """Fresh classes, 8 records each for the mean: far better than chance (2%), and than with pixels."""
    draw = strokes.draw if process is strokes else shapes.draw
    images, _ = draw(50, 10, torch.Generator().manual_seed(123))

    def accuracy(z: Tensor) -> float:
        records = z.view(50, 10, -1)
        distance = torch.cdist(records[:, 8:].flatten(0, 1), records[:, :8].mean(1))
        return float((distance.argmin(1) == torch.arange(50).repeat_interleave(2)).float().mean())

    features = accuracy(PriorProjection(family)(images))
    assert features > 0.8
    assert features > accuracy(images.flatten(1))


def test_small_and_flat_images_are_framed() -> None:
    """Scikit-learn's 8 x 8 digits, as (8, 8) and as (64,): class means of half classify the other half."""
    digits = load_digits()
    x = torch.from_numpy(digits.data / 16).float()
    y = torch.from_numpy(digits.target)
    z = PriorProjection("drawn", (64,))(x)[:, :17]
    torch.testing.assert_close(z[:4], PriorProjection("drawn", (8, 8))(x[:4].view(-1, 8, 8))[:, :17])
    half = len(z) // 2
    means = torch.stack([z[:half][y[:half] == c].mean(0) for c in range(10)])
    guess = torch.cdist(z[half:], means).argmin(1)
    assert (guess == y[half:]).float().mean() > 0.85


def test_what_it_cannot_take_is_told() -> None:
    with pytest.raises(UserError, match="drawn, garments"):
        PriorProjection("faces")
    with pytest.raises(UserError, match="grey images"):
        PriorProjection("drawn", (3, 32, 32))
    with pytest.raises(UserError, match=r"\(28, 28\)"):
        PriorProjection("drawn")(torch.zeros(1, 27, 27))


def plain_drawings(features: PriorProjection, x: Tensor) -> Tensor:
    """The same map in double precision, by Fourier transforms, order by order."""
    transform, scattering = features.transform, features.transform.scattering.double()
    x = deskew(x.double()) if transform.deskewed else x.double()
    coefficients = scattering.products(x)
    counts, orders = torch.bincount(ORDERS).tolist(), []
    for order in torch.split(coefficients, counts, 1):
        flat = order.flatten(1)
        roots = flat.maximum(FLOOR * flat.mean(1, keepdim=True).clamp_min(0)).sqrt()
        orders.append(unit_norm(roots - roots.mean(1, keepdim=True)))
    return unit_norm((torch.cat(orders, 1) - features.centre) @ features.projection.double())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_compiled_form_gives_what_double_precision_gives(family: str) -> None:
    features = PriorProjection(family)
    images = strokes.draw(6, 4, torch.Generator().manual_seed(5))[0]
    found = features(images)
    assert float((found - plain_drawings(features, images)).abs().max()) < 1e-5


def test_a_flat_picture_has_coefficients_of_zero() -> None:
    rows = PriorProjection("garments").transform(torch.full((1, 28, 28), 0.3))
    assert float(rows.abs().max()) == 0.0
