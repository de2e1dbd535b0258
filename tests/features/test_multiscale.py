"""Features of photographs of 32, 64 and 96 pixels: unit length, batches do not show, mirrors hardly do."""

from __future__ import annotations

import pytest
import torch

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.features import PairProducts, build, for_domain
from adlm.features.multiscale import SCALES, MultiscaleImages, ScatteringCells, nearest_size
from adlm.features.priors import scenes
from adlm.features.vector import BoundedVector

SHAPES = [(32, 32), (3, 64, 64), (1, 64, 64), (3, 96, 96), (96, 96), (3, 70, 50)]


def pictures(shape: tuple[int, ...], n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, 3 if len(shape) == 3 and shape[0] == 3 else 1, 9, 9, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, shape[-2:], mode="bicubic").clamp(0, 1)
    return smooth.reshape(n, *shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_size_and_colour_has_features_of_unit_length_that_can_be_built_again(
    shape: tuple[int, ...],
) -> None:
    features = for_domain(Domain(shape, 0, 255, ("a", "b"), family="natural"))
    assert isinstance(features, PairProducts)
    assert isinstance(features.inner, MultiscaleImages)
    x = pictures(shape, 3)
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


def test_larger_images_have_more_scales() -> None:
    assert SCALES == {32: 2, 64: 3, 96: 4}
    assert [nearest_size(side) for side in (8, 32, 63, 64, 95, 96, 500)] == [32, 32, 32, 64, 64, 96, 96]


def test_mirrored_angles_are_those_of_the_mirrored_image() -> None:
    cells = ScatteringCells(32, 2)
    x = pictures((32, 32), 8)
    own, other = (cells.scattering(images)[:, 1:].mean((2, 3)) for images in (x, x.flip(2)))
    turned = other[:, cells.mirrored[1:] - 1]  # means over the image, where the sampling hardly shows
    assert sorted(cells.mirrored.tolist()) == list(range(cells.scattering.channels))
    assert (own - turned).norm() < 0.05 * own.norm()
    assert (own - other).norm() > 3 * (own - turned).norm()
    assert torch.equal(cells.mirrored[cells.mirrored], torch.arange(81))  # its own inverse


def test_a_picture_and_its_mirror_image_lie_close() -> None:
    features = MultiscaleImages((3, 64, 64))
    images, _ = scenes.draw(4, 1, torch.Generator().manual_seed(3), 64)
    with torch.inference_mode():
        z, mirrored = features(images), features(images.flip(3))
    assert ((z * mirrored).sum(1) > 0.9).all()
    assert (z @ z.T - torch.eye(4)).abs().max() < 0.9


def test_scenes_of_one_class_lie_closer_than_those_of_two() -> None:
    features = MultiscaleImages((64, 64))
    z = features.synthetic(5, 6, seed=7)
    means = z.mean(1)
    within = (z - means[:, None]).square().sum(2).mean()
    between = torch.cdist(means, means).square().sum() / 20
    assert between > 0.5 * within


def test_other_shapes_and_widths_are_refused() -> None:
    with pytest.raises(UserError, match="images have the shape"):
        MultiscaleImages((2, 32, 32))
    with pytest.raises(UserError, match="1 to 600 coordinates"):
        MultiscaleImages((64, 64), 601)
    with pytest.raises(UserError, match="built for records of shape"):
        MultiscaleImages((64, 64))(torch.rand(2, 32, 32))


def test_vectors_within_their_bound_are_divided_by_it_and_longer_ones_cut_to_it() -> None:
    domain = Domain((3,), -2, 2, ("a", "b"), family="vector")
    features = for_domain(domain)
    assert isinstance(features, BoundedVector)
    given = torch.tensor([[0.6, 0.0, -0.8], [0.0, 0.0, 0.0], [2.0, 2.0, 1.0], [90.0, 0.0, 0.0]])
    found = features(torch.from_numpy(domain.scale(given)))
    assert torch.allclose(found[:2], given[:2] / 2, atol=1e-6)
    assert torch.allclose(found[2], given[2] / 3, atol=1e-6)
    assert torch.allclose(found[3], torch.tensor([1.0, 0.0, 0.0]), atol=1e-6)
    assert found.norm(dim=1).max() <= 1 + 1e-6
