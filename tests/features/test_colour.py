"""Colour features: shares of soft bins, and a thumbnail."""

from __future__ import annotations

import pytest
import torch

from adlm.features import colour, resizing
from adlm.features.colour import Colour, flip_average, opponent
from adlm.features.colour_scattering import ColourScattering


def pictures(count: int) -> torch.Tensor:
    return torch.rand((count, 3, 32, 32), generator=torch.Generator().manual_seed(0))


def test_grey_has_no_chroma() -> None:
    grey = torch.rand((2, 1, 4, 4)).expand(2, 3, 4, 4)
    colours = opponent(grey)
    assert torch.allclose(colours[:, 0], grey[:, 0])
    assert torch.allclose(colours[:, 1:], torch.zeros(2, 2, 4, 4), atol=1e-6)


def test_shares_of_the_bins_sum_to_one_in_each_cell() -> None:
    features = Colour()
    shares = features.histogram(opponent(pictures(3))).square().reshape(3, 125, 3, 2)
    assert torch.allclose(shares.sum(1), torch.ones(3, 3, 2), atol=1e-5)


def test_a_plain_picture_falls_in_the_bins_around_its_colour() -> None:
    features = Colour(bins=(5, 5, 5), grid=1)
    shares = features.histogram(opponent(torch.full((1, 3, 32, 32), 0.5))).square().reshape(5, 5, 5)
    assert float(shares[2, 2, 2]) == pytest.approx(1.0, abs=1e-5)


def test_the_thumbnail_is_the_mean_of_its_pixels() -> None:
    features = Colour(thumbnail=4)
    picture = pictures(1)
    small = features(picture)[:, features.widths[0] :].reshape(3, 4, 2)
    colours = opponent(picture)[0]
    expected = 0.5 * (colours[:, :8, :8].mean((1, 2)) + colours[:, :8, 24:].mean((1, 2)))
    assert torch.allclose(small[:, 0, 0], expected, atol=1e-6)


@pytest.mark.parametrize("bins", [(5, 5, 5), (4, 3, 2)])
def test_both_forms_agree_and_compiled_code_gives_the_bits_of_plain_python(
    bins: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    features, x = Colour(bins, thumbnail=4), pictures(2)[:, :, :12, :12].contiguous()
    x[1] = 0.5
    found = features(x)
    torch.testing.assert_close(found, features.products(x), rtol=0, atol=2e-3)  # roots of small shares
    for name in ("opponents", "histograms"):
        monkeypatch.setattr(colour, name, getattr(colour, f"_{name}"))
    monkeypatch.setattr(resizing, "multiply_both", resizing._multiply_both)
    assert torch.equal(features(x), found)


def test_halving_averages_two_by_two_pixels() -> None:
    x = pictures(2)
    halves = torch.from_numpy(colour.halved(x.numpy()))
    torch.testing.assert_close(halves, torch.nn.functional.avg_pool2d(x, 2))


@pytest.mark.parametrize(
    ("shape", "mode"), [((8, 8), "bicubic"), ((20, 24), "bicubic"), ((70, 50), "bilinear")]
)
def test_resizing_is_what_pytorch_does(shape: tuple[int, int], mode: str) -> None:
    x = torch.rand((3, *shape), generator=torch.Generator().manual_seed(1))
    wanted = torch.nn.functional.interpolate(x[:, None], (20, 20), mode=mode, antialias=True)[:, 0].clamp(
        0, 1
    )
    framed = resizing.Resized(shape, 20, mode, margin=4)
    for found in (framed(x), torch.from_numpy(framed.compiled(x.numpy()))):
        assert found.shape == (3, 28, 28)
        torch.testing.assert_close(found[:, 4:-4, 4:-4], wanted, rtol=0, atol=2e-5)
        assert float(found[:, :4].abs().max()) == 0.0


@pytest.mark.parametrize("features", [Colour(), ColourScattering(32)])
def test_a_flip_changes_nothing(features: Colour | ColourScattering) -> None:
    x = pictures(3)
    z = features(x)
    assert z.shape == (3, features.width)
    assert torch.allclose(z, features(x.flip(3)), atol=1e-5)
    assert not torch.allclose(z, features(x.flip(2)), atol=1e-2)


def test_the_left_half_of_a_flip_average_holds_it_all() -> None:
    maps = torch.rand((2, 3, 4, 5))
    half = flip_average(maps)
    assert half.shape == (2, 3, 4, 3)
    whole = 0.5 * (maps + maps.flip(3))
    assert torch.equal(torch.cat([half, half[..., :2].flip(3)], 3), whole)


def test_each_channel_and_order_of_the_scattering_is_centred_and_at_most_one_long() -> None:
    features = ColourScattering(32)
    z = features(pictures(2))
    rows = features.width // (3 * features.scattering.channels)
    sizes = [rows * int((features.orders == order).sum()) for order in range(3)] * 3
    for part in torch.split(z, sizes, dim=1):
        assert torch.allclose(part.mean(1), torch.zeros(2), atol=1e-5)
        assert float(part.norm(dim=1).max()) <= 1.0
