"""Patch features against a slow twin written from the formula, patch by patch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adlm.features import patches
from adlm.features.patches import (
    CONTRAST_FLOOR,
    Patches,
    learn_dictionary,
    mirror,
    normalise_contrast,
    sample_patches,
    spherical_kmeans,
    zca,
)
from adlm.features.priors import scenes


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def nearness(place: int, places: int, cells: int) -> NDArray[np.float64]:
    """Weight of a place in each cell along an axis: 1 at its centre, 0 from the centre of the next one on."""
    centres = [(cell + 0.5) * places / cells for cell in range(cells)]
    inside = min(max(place + 0.5, centres[0]), centres[-1])
    return np.array([max(0.0, 1 - abs(inside - centre) * cells / places) for centre in centres])


def slow_twin(
    image: NDArray[np.float64], filters: NDArray[np.float64], threshold: float, cells: int
) -> NDArray[np.float64]:
    """relu(+-d.x - t) over patches of an image and its flip, by cell: (2, atoms, cells, cells)."""
    atoms, side = len(filters), filters.shape[-1]
    total = np.zeros((2, atoms, cells, cells))
    for view in (image, image[:, :, ::-1]):
        places = view.shape[1] - side + 1
        weights = np.zeros((2, atoms, cells, cells))
        for i in range(places):
            for j in range(places):
                patch = view[:, i : i + side, j : j + side]
                patch = (patch - patch.mean()) / (patch.std() + CONTRAST_FLOOR)
                d = (filters * patch).sum((1, 2, 3))
                weight = np.outer(nearness(i, places, cells), nearness(j, places, cells))
                beyond = np.maximum([d - threshold, -d - threshold], 0.0)
                total += beyond[:, :, None, None] * weight / 2
                weights += weight
    total /= weights
    return np.sqrt(total)


@pytest.mark.parametrize(("size", "cells", "side"), [(14, 3, 6), (16, 3, 6), (13, 2, 6), (13, 3, 5)])
def test_patch_features_equal_their_slow_twin(size: int, cells: int, side: int) -> None:
    filters = torch.randn((4, 3, side, side), generator=seeded(0)) * 0.1
    filters = filters - filters.mean((1, 2, 3), keepdim=True)
    images = torch.rand((2, 3, size, size), generator=seeded(1))
    fast = Patches(filters, 0.3, cells)(images)
    for image, row in zip(images.double().numpy(), fast, strict=True):
        slow = slow_twin(image, filters.double().numpy(), 0.3, cells)
        np.testing.assert_allclose(row.reshape(slow.shape).numpy(), slow, atol=2e-3)
        np.testing.assert_allclose(row.square().numpy(), slow.ravel() ** 2, atol=2e-6)


def test_both_forms_agree_and_compiled_code_gives_the_bits_of_plain_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a number of atoms that fills no register, and places that fill no group of three."""
    filters = torch.randn((5, 3, 5, 5), generator=seeded(0)) * 0.1
    features = Patches(filters - filters.mean((1, 2, 3), keepdim=True), 0.3, 2)
    images = torch.rand((2, 3, 9, 9), generator=seeded(1))
    found = features(images)
    torch.testing.assert_close(found.square(), features.products(images).square(), rtol=0, atol=2e-6)
    monkeypatch.setattr(patches, "patch_features", patches._patch_features)
    assert torch.equal(features(images), found)


def test_many_images_give_what_one_at_a_time_gives() -> None:
    features = Patches(torch.randn((3, 3, 6, 6), generator=seeded(2)))
    images = torch.rand((37, 3, 12, 12), generator=seeded(3))
    together = features(images)
    alone = torch.cat([features(image[None]) for image in images])
    assert together.shape == (37, features.width)
    assert torch.equal(together, alone)


def test_a_flat_image_has_no_patch_features() -> None:
    images, _ = scenes.draw(20, 5, seeded(4))
    features = Patches(learn_dictionary(images, 6, 8, seeded(5), samples=2000))
    assert float(features(torch.full((1, 3, 32, 32), 0.4)).abs().max()) == 0.0


def test_features_do_not_see_brightness() -> None:
    images, _ = scenes.draw(20, 5, seeded(4))
    features = Patches(learn_dictionary(images, 6, 8, seeded(5), samples=2000))
    lighter = features(0.5 * images[:10] + 0.3)
    assert torch.allclose(features(0.5 * images[:10]).square(), lighter.square(), atol=1e-3)


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
