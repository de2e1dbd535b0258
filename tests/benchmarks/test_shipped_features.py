"""The weights of shipped features are built from random processes and their seed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from benchmarks.shipped_features import (
    Recipe,
    build_drawn,
    build_natural,
    class_statistics,
    compress,
    directions,
    learn_dictionary,
    mirror,
    normalise_contrast,
    principal_directions,
    prior_statistics,
    sample_patches,
    spherical_kmeans,
    store_prior,
    zca,
)
from torch import Tensor

from adlm.errors import UserError
from adlm.features.photographs import expand, restore_prior
from adlm.features.priors import scenes, strokes

PER = 6


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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
    found, spectrum = directions(moments, 5, ridge=0.1)
    scaled = (moments.within / moments.within.diagonal().mean()).double().numpy()
    ridged = scaled + 0.1 * np.eye(10)
    between = (moments.centres.T @ moments.centres).double().numpy()
    values = scipy.linalg.eigh(between, ridged, eigvals_only=True)[::-1]
    np.testing.assert_allclose(spectrum.numpy(), values[:5] / values.sum(), rtol=1e-3, atol=1e-5)
    v = found.double().numpy()
    np.testing.assert_allclose(v.T @ ridged @ v, np.eye(5), atol=1e-3)


def test_nuisance_is_not_a_direction_and_tempering_evens_scales() -> None:
    moments = class_statistics(classes(), PER)
    (plain, spectrum), (even, _) = directions(moments, 4), directions(moments, 4, temper=1.0)
    assert plain[0].abs().max() < 0.3 * plain.abs().max()
    ratio = even.norm(dim=0) / plain.norm(dim=0)
    torch.testing.assert_close(ratio, (spectrum / spectrum[0]).rsqrt())
    with pytest.raises(UserError, match="1 to 10 directions"):
        directions(moments, 11)


def test_prior_statistics_tell_signal_from_nuisance() -> None:
    prior = prior_statistics(classes(2000), PER)
    assert prior.within[0, 0] > 10 * prior.within[1, 1]
    torch.testing.assert_close(prior.weight[1:], torch.linspace(1, 0.2, 10)[1:] ** 2, rtol=0.2, atol=0.02)
    with pytest.raises(UserError, match="whole classes"):
        class_statistics(classes(5)[:-1], PER)


def test_the_build_is_decided_by_its_seed() -> None:
    recipe = Recipe(strokes.draw, classes=20, per_class=3, width=8)
    first, again = build_drawn(recipe, check_classes=8), build_drawn(recipe, check_classes=8)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first["projection"].shape == (3969, 8)
    assert first["projection"].dtype == torch.float16


def test_patches_are_cut_out_of_the_images() -> None:
    images = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8)
    for patch in sample_patches(images, 5, 20, seeded(6)).reshape(20, 3, 5, 5):
        corner = int(patch[0, 0, 0])
        image, place = divmod(corner, 3 * 64)
        top, left = divmod(place, 8)
        assert torch.equal(patch, images[image, :, top : top + 5, left : left + 5])


def test_normalised_patches_are_centred_and_at_most_of_unit_variance() -> None:
    patches = normalise_contrast(torch.rand((100, 108), generator=seeded(7)))
    assert torch.allclose(patches.mean(1), torch.zeros(100), atol=1e-6)
    assert float(patches.square().mean(1).max()) < 1.0


def test_whitening_makes_the_covariance_flat_where_the_ridge_is_small() -> None:
    points = torch.randn((5000, 10), generator=seeded(8)) * torch.linspace(0.5, 3.0, 10)
    points[:, 1:] += points[:, :1]
    white = points @ zca(points, 1e-6)
    assert torch.allclose(white.T @ white / 5000, torch.eye(10), atol=1e-2)


def test_a_mirrored_patch_is_mirrored_in_each_row_and_channel() -> None:
    patch = torch.arange(12.0).reshape(1, 3, 2, 2)
    assert mirror(patch.reshape(1, 12), 2).tolist() == [[1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10]]


def test_clusters_find_the_directions_that_points_lie_along() -> None:
    side = 4
    truth = torch.nn.functional.normalize(torch.randn((3, 3 * side * side), generator=seeded(9)), dim=1)
    pick = torch.randint(3, (600,), generator=seeded(10))
    sign = torch.where(torch.rand((600, 1), generator=seeded(11)) < 0.5, -1.0, 1.0)
    points = 3.0 * truth[pick] * sign + 0.05 * torch.randn((600, truth.shape[1]), generator=seeded(12))
    points[::2] = mirror(points[::2], side)
    # Twelve atoms for three directions: more than enough that a start misses none of them.
    atoms = spherical_kmeans(points, 12, side, seeded(13), rounds=10)
    match = torch.maximum((truth @ atoms.T).abs(), (mirror(truth, side) @ atoms.T).abs()).amax(1)
    assert float(match.min()) > 0.98
    assert torch.allclose(atoms.norm(dim=1), torch.ones(12), atol=1e-5)


def test_a_dictionary_follows_its_seed_and_sums_to_zero() -> None:
    images, _ = scenes.draw(20, 5, seeded(14))
    first, again, other = (learn_dictionary(images, 6, 8, seeded(seed), samples=2000) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert torch.allclose(first.sum((1, 2, 3)), torch.zeros(8), atol=1e-4)


def build_small(seed: int) -> dict[str, torch.Tensor]:
    return build_natural(seed, classes=20, per_class=4, atoms=6, width=24, samples=2000)


def test_the_seed_decides_the_weights() -> None:
    first, again, other = build_small(3), build_small(3), build_small(4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fine"], other["fine"])


def test_rounding_a_projection_to_eight_bits_hardly_turns_it() -> None:
    matrix = (
        torch.randn((300, 20), generator=torch.Generator().manual_seed(1))
        * torch.linspace(0.01, 3, 300)[:, None]
    )
    error = expand(compress(matrix)) - matrix
    assert float(error.norm() / matrix.norm()) < 0.02


def test_a_prior_survives_storage() -> None:
    generator = torch.Generator().manual_seed(2)
    prior = prior_statistics(torch.randn((300, 8), generator=generator), 10)
    again = restore_prior(store_prior(prior))
    assert torch.allclose(again.within, prior.within, atol=1e-3)
    assert torch.equal(again.mean, prior.mean)


def test_prior_statistics_tell_between_from_within() -> None:
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn((400, 2), generator=generator) * torch.tensor([2.0, 0.0])
    records = centres.repeat_interleave(5, 0) + torch.randn((2000, 2), generator=generator)
    prior = prior_statistics(records, 5)
    # Standard errors: 0.29 for the first variance between classes, 0.02 for the others.
    assert float(prior.weight[0]) == pytest.approx(4.0, abs=1.5)
    assert float(prior.weight[1]) == pytest.approx(0.0, abs=0.1)
    assert torch.allclose(prior.within, torch.eye(2), atol=0.2)


def test_principal_directions_are_those_of_the_covariance() -> None:
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn((500, 30), generator=generator) * torch.logspace(0, -2, 30)
    values, directions = principal_directions(rows, 5, generator)
    exact, vectors = torch.linalg.eigh(rows.T @ rows / 500)
    assert torch.allclose(values, exact.flip(0)[:5], rtol=1e-3)
    assert torch.allclose((directions * vectors.flip(1)[:, :5]).sum(0).abs(), torch.ones(5), atol=1e-2)
