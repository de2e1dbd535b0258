"""Features of photographs: blocks against slow twins, and the maps made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.features import PairProducts, build, for_domain
from adlm.features.base import unit_norm
from adlm.features.photographs import (
    CONTRAST_FLOOR,
    WEIGHTS,
    Colour,
    FlipScattering,
    NaturalImages,
    Patches,
    flip_average,
    halved,
    opponent,
    tent_means,
    tent_shares,
)
from adlm.features.priors import scenes
from adlm.features.scattering import ORDERS, Scattering

SHAPES = [(32, 32), (1, 64, 64), (3, 96, 96), (3, 70, 50)]


@pytest.mark.parametrize(("size", "cells"), [(27, 3), (11, 3), (8, 4), (5, 1), (3, 3)])
def test_a_place_counts_in_two_neighbouring_cells_at_most(size: int, cells: int) -> None:
    shares = tent_shares(size, cells)
    np.testing.assert_allclose(shares.sum(1), 1.0)
    assert ((shares > 0).sum(0) <= 2).all()
    np.testing.assert_allclose(shares, shares[::-1, ::-1])


def test_an_average_over_cells_is_a_weighted_sum_place_by_place() -> None:
    maps = torch.rand((2, 3, 7, 9), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = tent_means(maps, 3)
    rows, columns = tent_shares(7, 3), tent_shares(9, 3)
    for row in range(3):
        for column in range(3):
            slow = sum(
                maps[:, :, i, j] * rows[row, i] * columns[column, j] for i in range(7) for j in range(9)
            )
            torch.testing.assert_close(found[:, :, row, column], slow)


def test_a_shift_moves_less_than_with_cells_that_end_abruptly() -> None:
    maps = torch.zeros(1, 1, 27, 27)
    maps[..., 13, 8] = 1.0
    shifted = maps.roll(1, 3)
    soft = tent_means(maps, 3) - tent_means(shifted, 3)
    hard = torch.nn.functional.adaptive_avg_pool2d(maps - shifted, 3)
    assert float(soft.norm()) < 0.3 * float(hard.norm())


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


def centred(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random filters of sum zero."""
    filters = torch.randn(shape, generator=seeded(seed)) * 0.1
    return filters - filters.mean((1, 2, 3), keepdim=True)


def test_both_forms_of_patches_agree_and_one_at_a_time_gives_what_many_give() -> None:
    features, images = Patches(centred(5, 3, 5, 5), 0.3, 2), torch.rand((19, 3, 9, 9), generator=seeded(3))
    together = features(images)
    torch.testing.assert_close(together.square(), features.products(images).square(), rtol=0, atol=2e-6)
    assert torch.equal(together, torch.cat([features(image[None]) for image in images]))


def test_patches_see_neither_a_flat_image_nor_brightness() -> None:
    features, images = Patches(centred(8, 3, 6, 6)), torch.rand((3, 3, 16, 16), generator=seeded(4))
    assert float(features(torch.full((1, 3, 16, 16), 0.4)).abs().max()) == 0.0
    lighter = features(0.5 * images + 0.3)
    torch.testing.assert_close(features(0.5 * images).square(), lighter.square(), rtol=0, atol=1e-3)


def test_the_flip_is_averaged_without_transforming_the_mirror_image() -> None:
    flipped, plain = FlipScattering(), Scattering(32)
    x = torch.rand((5, 32, 32), generator=seeded(0))
    once, again = (tent_means(plain(images), 4) for images in (x, x.flip(2)))
    slow = flipped.norms((0.5 * (once + again)[..., : flipped.cells[1]]).flatten(1))
    torch.testing.assert_close(flipped(x), slow, rtol=0, atol=1e-5)
    torch.testing.assert_close(flipped.products(x), slow, rtol=0, atol=1e-5)


def test_mirrored_angles_are_those_of_the_mirrored_image() -> None:
    cells = FlipScattering()
    x, mirrored = smooth((32, 32), 8), torch.from_numpy(cells.mirrored)
    own, other = (cells.scattering(images)[:, 1:].mean((2, 3)) for images in (x, x.flip(2)))
    turned = other[:, mirrored[1:] - 1]  # means over the image, where the sampling hardly shows
    assert (own - turned).norm() < 0.05 * own.norm()
    assert (own - other).norm() > 3 * (own - turned).norm()
    assert torch.equal(mirrored[mirrored], torch.arange(81))  # its own inverse


def test_each_order_of_the_scattering_is_centred_and_at_most_one_long() -> None:
    features = FlipScattering()
    z = features(torch.rand((2, 32, 32), generator=seeded(0)))
    sizes = (torch.bincount(ORDERS) * features.width // 81).tolist()
    for part in torch.split(z, sizes, dim=1):
        assert torch.allclose(part.mean(1), torch.zeros(2), atol=1e-5)
        assert float(part.norm(dim=1).max()) <= 1.0


def test_grey_has_no_chroma() -> None:
    grey = torch.rand((2, 1, 4, 4), generator=seeded(0)).expand(2, 3, 4, 4)
    colours = opponent(grey)
    assert torch.allclose(colours[:, 0], grey[:, 0])
    assert torch.allclose(colours[:, 1:], torch.zeros(2, 2, 4, 4), atol=1e-6)


def test_shares_of_the_bins_sum_to_one_in_each_cell_around_the_colour_of_a_plain_picture() -> None:
    images = torch.rand((3, 3, 32, 32), generator=seeded(0))
    images[2] = 0.5
    shares = Colour().histogram(opponent(images)).square().reshape(3, 5, 5, 5, 3, 2)
    assert torch.allclose(shares.sum((1, 2, 3)), torch.ones(3, 3, 2), atol=1e-5)
    assert torch.allclose(shares[2, 2, 2, 2], torch.ones(3, 2), atol=1e-5)


def test_both_forms_of_colour_agree_a_flip_changes_nothing_and_a_thumbnail_is_a_mean() -> None:
    features, images = Colour(), torch.rand((3, 3, 32, 32), generator=seeded(0))
    found = features(images)
    torch.testing.assert_close(found, features.products(images), rtol=0, atol=2e-3)  # roots of small shares
    assert torch.allclose(found, features(images.flip(3)), atol=1e-5)
    assert not torch.allclose(found, features(images.flip(2)), atol=1e-2)
    colours, small = opponent(images), found[:, features.widths[0] :].reshape(3, 3, 8, 4)
    expected = 0.5 * (colours[..., :4, :4].mean((2, 3)) + colours[..., :4, 28:].mean((2, 3)))
    assert torch.allclose(small[..., 0, 0], expected, atol=1e-6)


def test_halving_averages_two_by_two_pixels() -> None:
    x = torch.rand((2, 3, 32, 32), generator=seeded(0))
    torch.testing.assert_close(torch.from_numpy(halved(x.numpy())), torch.nn.functional.avg_pool2d(x, 2))


def test_the_left_half_of_a_flip_average_holds_it_all() -> None:
    maps = torch.rand((2, 3, 4, 5))
    half = flip_average(maps)
    assert half.shape == (2, 3, 4, 3)
    whole = 0.5 * (maps + maps.flip(3))
    assert torch.equal(torch.cat([half, half[..., :2].flip(3)], 3), whole)


# ---- Whole maps ----


@pytest.fixture(scope="module")
def natural() -> NaturalImages:
    return NaturalImages(width=300)


def test_natural_images_are_unit_vectors_blind_to_the_flip_and_to_their_batch(natural: NaturalImages) -> None:
    images = scenes.draw(5, 2, seeded(9))[0]
    images[0] = 0.5
    with torch.inference_mode():
        z = natural(images)
        assert torch.allclose(z.norm(dim=1), torch.ones(10), atol=1e-5)
        assert torch.allclose(z, natural(images.flip(3)), atol=1e-4)
        assert not torch.allclose(z[1:], natural(images.flip(2))[1:], atol=1e-2)
        order = torch.randperm(10, generator=seeded(1))
        assert torch.equal(natural(images[order]), z[order])
        assert torch.equal(torch.cat([natural(part) for part in torch.split(images, 3)]), z)
        slim = NaturalImages(width=10)(images)
    torch.testing.assert_close(slim, z[:, :10] / z[:, :10].norm(dim=1, keepdim=True), rtol=0, atol=1e-4)
    assert build(natural.spec()).fingerprint() == natural.fingerprint()


def test_the_shipped_features_tell_scenes_apart_that_they_never_saw(natural: NaturalImages) -> None:
    images, labels = scenes.draw(20, 8, seeded(12345))
    z = natural(images).reshape(20, 8, -1)
    means, rest = z[:, :5].mean(1), z[:, 5:].reshape(60, -1)
    guess = torch.cdist(rest, means).argmin(1)
    # Guessing finds 5 in 100.
    assert float((guess == labels.reshape(20, 8)[:, 5:].reshape(60)).float().mean()) > 0.7


def test_the_shipped_prior_is_a_prior_of_unit_vectors(natural: NaturalImages) -> None:
    prior = natural.prior
    assert prior is not None
    length = float((prior.within.diagonal() + prior.weight + prior.mean.square()).sum())
    assert length == pytest.approx(1.0, abs=0.05)
    assert float(torch.linalg.eigvalsh(prior.within).min()) > -1e-5
    assert sum(file.stat().st_size for file in WEIGHTS.glob("*.safetensors")) < 80e6


def test_the_compiled_form_gives_what_pytorch_gives_in_double_precision() -> None:
    features, images = NaturalImages(width=300), scenes.draw(4, 2, seeded(9))[0]
    found, blocks = features(images), features.blocks
    raw = blocks(images)
    blocks.double()
    wide = blocks.products(images.double())
    plain = unit_norm(wide @ features.projection.double() - features.offset)
    assert float((found - plain).abs().max()) < 5e-5  # roots of small means, and flat patches
    torch.testing.assert_close(raw.double(), wide, rtol=0, atol=1e-3)


def test_mistakes_are_told_in_a_sentence(natural: NaturalImages) -> None:
    with pytest.raises(UserError, match="channels first"):
        natural(torch.zeros((2, 32, 32, 3)))


def smooth(shape: tuple[int, ...], n: int) -> torch.Tensor:
    coarse = torch.rand(n, 3 if len(shape) == 3 and shape[0] == 3 else 1, 9, 9, generator=seeded(0))
    images = torch.nn.functional.interpolate(coarse, shape[-2:], mode="bicubic").clamp(0, 1)
    return images.reshape(n, *shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_size_and_colour_has_features_of_unit_length_that_can_be_built_again(
    shape: tuple[int, ...],
) -> None:
    features = for_domain(Domain(shape, 0, 255, ("a", "b"), family="natural"))
    assert isinstance(features, PairProducts)
    assert isinstance(features.inner, NaturalImages)
    x = smooth(shape, 3)
    with torch.inference_mode():
        z = features(x)
        assert z.shape == (3, features.width)
        assert torch.allclose(z.norm(dim=1), torch.ones(3), atol=1e-5)
        assert (z[0] - z[1]).norm() > 0.1
        assert torch.equal(features(x[1:2])[0], z[1])  # alone or together, to the last bit
        assert torch.equal(features(x.flip(0)).flip(0), z)
    assert build(features.spec()).fingerprint() == features.fingerprint()
    assert features.prior is not None
    assert features.prior.within.shape == (features.width,) * 2


def test_a_picture_and_its_mirror_image_lie_close() -> None:
    features = NaturalImages((3, 64, 64))
    images, _ = scenes.draw(4, 1, seeded(3), 64)
    with torch.inference_mode():
        z, mirrored = features(images), features(images.flip(3))
    assert ((z * mirrored).sum(1) > 0.9).all()
    assert (z @ z.T - torch.eye(4)).abs().max() < 0.9


def test_a_larger_image_has_the_features_of_the_resized_one_and_a_grey_one_those_of_equal_channels() -> None:
    images = scenes.draw(2, 2, seeded(3), 64)[0]
    small = torch.nn.functional.interpolate(images, (32, 32), mode="bilinear", antialias=True)
    grey = small.mean(1)
    with torch.inference_mode():
        torch.testing.assert_close(
            NaturalImages((3, 64, 64), 50)(images), NaturalImages(width=50)(small), rtol=0, atol=1e-3
        )
        equal = NaturalImages(width=50)(grey[:, None].expand(-1, 3, -1, -1))
        assert torch.equal(NaturalImages((32, 32), 50)(grey), equal)


def test_scenes_of_one_class_lie_closer_than_those_of_two() -> None:
    features = NaturalImages((64, 64))
    z = features.synthetic(5, 6, seed=7)
    means = z.mean(1)
    within = (z - means[:, None]).square().sum(2).mean()
    between = torch.cdist(means, means).square().sum() / 20
    assert between > 0.5 * within


def test_other_shapes_and_widths_are_refused() -> None:
    with pytest.raises(UserError, match="images have the shape"):
        NaturalImages((2, 32, 32))
    with pytest.raises(UserError, match="1 to 1000 coordinates"):
        NaturalImages((64, 64), 1001)
    with pytest.raises(UserError, match="built for records of shape"):
        NaturalImages((64, 64))(torch.rand(2, 32, 32))
