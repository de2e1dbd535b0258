"""Fisher directions of synthetic classes, and the feature map made of them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from adlm.errors import UserError
from adlm.features import Narrowed
from adlm.features.base import unit_norm
from adlm.features.deskew import deskew
from adlm.features.prior import FAMILIES, FLOOR, NormedScattering, PriorProjection
from adlm.features.priors import build, shapes, strokes
from adlm.features.priors.fisher import class_statistics, directions, prior_statistics

PER = 6


def classes(count: int = 80, p: int = 10, seed: int = 0) -> Tensor:
    """Records of random classes whose nuisance is large along the first coordinate: (count * PER, p)."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(count, 1, p, generator=generator) * torch.linspace(1, 0.2, p)
    noise = torch.randn(count, PER, p, generator=generator)
    noise[..., 0] *= 8
    return (centres + 0.5 * noise).flatten(0, 1)


def test_class_statistics_against_numpy() -> None:
    x = classes(20)
    found = class_statistics(x, PER)
    split = np.split(x.numpy().astype(np.float64), 20)
    within = sum((np.cov(part.T) for part in split), np.zeros((10, 10))) / 20
    np.testing.assert_allclose(found.within.numpy(), within, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.mean.numpy(), x.mean(0).numpy(), atol=1e-5)


@pytest.mark.parametrize("count", [80, 8])
def test_directions_solve_the_generalised_eigenproblem(count: int) -> None:
    moments = class_statistics(classes(count), PER)
    found = directions([moments], 5, ridge=0.1)
    scaled = (moments.within / moments.within.diagonal().mean()).double().numpy()
    ridged = scaled + 0.1 * np.eye(10)
    between = (moments.centres.T @ moments.centres).double().numpy()
    values = scipy.linalg.eigh(between, ridged, eigvals_only=True)[::-1]
    np.testing.assert_allclose(found.spectrum.numpy(), values[:5] / values.sum(), rtol=1e-3, atol=1e-5)
    v = found.projection.double().numpy()
    np.testing.assert_allclose(v.T @ ridged @ v, np.eye(5), atol=1e-3)


def test_nuisance_is_not_a_direction_and_tempering_evens_scales() -> None:
    moments = class_statistics(classes(), PER)
    plain, even = directions([moments], 4), directions([moments], 4, temper=1.0)
    assert plain.projection[0].abs().max() < 0.3 * plain.projection.abs().max()
    ratio = even.projection.norm(dim=0) / plain.projection.norm(dim=0)
    torch.testing.assert_close(ratio, (plain.spectrum / plain.spectrum[0]).rsqrt())
    with pytest.raises(UserError, match="1 to 10 directions"):
        directions([moments], 11)


def test_prior_statistics_tell_signal_from_nuisance() -> None:
    prior = prior_statistics(classes(2000), PER)
    assert prior.within[0, 0] > 10 * prior.within[1, 1]
    torch.testing.assert_close(prior.weight[1:], torch.linspace(1, 0.2, 10)[1:] ** 2, rtol=0.2, atol=0.02)
    with pytest.raises(UserError, match="whole classes"):
        class_statistics(classes(5)[:-1], PER)


def test_the_build_is_decided_by_its_seed() -> None:
    recipe = build.Recipe(strokes.draw, classes=20, per_class=3, width=8)
    first, again = build.build(recipe, check_classes=8), build.build(recipe, check_classes=8)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first["projection"].shape == (3969, 8)
    assert first["projection"].dtype == torch.float16


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
    again = PriorProjection.from_spec(features.spec())
    assert again.fingerprint() == features.fingerprint()
    assert torch.equal(again(images), z)
    assert features.prior is not None
    assert features.prior.within.shape == (features.width, features.width)


def test_more_directions_than_are_kept_by_default() -> None:
    wide = PriorProjection("drawn", width=800)
    images = torch.rand(3, 28, 28, generator=torch.Generator().manual_seed(1))
    default = PriorProjection("drawn")
    torch.testing.assert_close(
        torch.nn.functional.normalize(wide(images)[:, : default.width], dim=1), default(images)
    )
    assert PriorProjection.from_spec(wide.spec()).fingerprint() == wide.fingerprint()
    assert default.prior is not None
    assert default.prior.within.shape == (default.width, default.width)
    with pytest.raises(UserError, match="1 to 800 directions"):
        PriorProjection("drawn", width=801)


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


def test_families_differ() -> None:
    assert PriorProjection("drawn").fingerprint() != PriorProjection("garments").fingerprint()


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
    counts, orders = torch.bincount(scattering.orders).tolist(), []
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
