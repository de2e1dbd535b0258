"""Scene classes: pictures from a seed, more alike within a class than between classes."""

from __future__ import annotations

import math

import pytest
import torch

from adlm.features.priors import scenes
from adlm.features.priors.textures import band_pass, blur, palette, power_law, superellipse


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_pictures_have_the_stated_shape_range_and_labels() -> None:
    images, labels = scenes.draw(7, 3, seeded(0))
    assert images.shape == (21, 3, 32, 32)
    assert images.dtype == torch.float32
    assert float(images.min()) >= 0.0
    assert float(images.max()) <= 1.0
    assert labels.tolist() == [c for c in range(7) for _ in range(3)]


def test_the_seed_decides_every_pixel() -> None:
    first, again, other = (scenes.draw(4, 2, seeded(seed))[0] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_class_is_drawn_anew_each_time() -> None:
    images, _ = scenes.draw(5, 4, seeded(1))
    records = images.reshape(5, 4, -1)
    distances = torch.cdist(records, records) + 1e9 * torch.eye(4)
    assert float(distances.min()) > 1.0


def test_pictures_of_one_class_are_more_alike_than_pictures_of_two() -> None:
    images, labels = scenes.draw(60, 6, seeded(2))
    small = torch.nn.functional.avg_pool2d(images, 8).flatten(1)
    distances = torch.cdist(small, small)
    same = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    assert float(distances[same].mean()) < 0.7 * float(distances[labels[:, None] != labels].mean())


def test_other_sizes_can_be_drawn_and_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    images, _ = scenes.draw(
        4, 150, seeded(3), size=16, progress=lambda done, total: told.append((done, total))
    )
    assert images.shape == (600, 3, 16, 16)
    assert told == [(500, 600), (600, 600)]


@pytest.mark.parametrize("exponent", [0.8, 1.5, 2.2])
def test_clouds_follow_their_power_law(exponent: float) -> None:
    fields = power_law(torch.full((400,), exponent), 32, seeded(4))
    assert torch.allclose(fields.square().mean((1, 2)), torch.ones(400), atol=1e-4)
    power = torch.fft.fft2(fields).abs().square().mean(0)
    slope = math.log(float(power[0, 2]) / float(power[0, 8])) / math.log(4.0)
    # 400 exponentially distributed powers at each frequency: six standard errors of the slope are 0.31.
    assert slope == pytest.approx(2 * exponent, abs=0.31)


def test_a_narrow_band_has_its_power_at_its_frequency() -> None:
    one = torch.ones(50)
    fields = band_pass(0.25 * one, 0.0 * one, 0.03 * one, 32, seeded(5))
    power = torch.fft.fft2(fields).abs().square().mean(0)
    assert divmod(int(power[:, :17].argmax()), 17)[1] in (7, 8, 9)
    assert float(power[0, 7:10].sum() / power[0, 1:17].sum()) > 0.8


def test_a_superellipse_of_power_two_covers_the_area_of_its_ellipse() -> None:
    half = torch.tensor([0.5, 0.7])
    coverage, _, _ = superellipse(
        torch.zeros(2),
        torch.tensor([0.0, 0.1]),
        half,
        half,
        torch.tensor([0.0, 0.8]),
        torch.full((2,), 2.0),
        64,
    )
    pixels = coverage.sum((1, 2))
    assert torch.allclose(pixels, math.pi * (half * 32) ** 2, rtol=0.01)


def test_blur_keeps_flat_pictures_and_smooths_others() -> None:
    flat = torch.full((2, 3, 16, 16), 0.3)
    radius = torch.tensor([0.5, 2.0])
    assert torch.allclose(blur(flat, radius), flat, atol=1e-6)
    noise = torch.rand((2, 3, 16, 16), generator=seeded(6))
    before, after = noise.var((1, 2, 3)), blur(noise, radius).var((1, 2, 3))
    assert bool((after < before).all())
    assert float(after[1]) < float(after[0])


def test_a_palette_is_less_varied_in_chroma_than_in_light() -> None:
    colours = palette(500, 4, seeded(7))
    light = colours.mean(2)
    chroma = colours - light[:, :, None]
    assert float(chroma.std()) < 0.5 * float(light.std())
