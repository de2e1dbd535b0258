"""The random processes: what they draw, how fast, and that a class is more alike than two."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch

from adlm.features.priors import scenes, shapes, strokes
from adlm.features.priors.scenes import band_pass, blur, palette, power_law, superellipse

PROCESSES = [strokes, shapes]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("process", PROCESSES)
def test_records_are_images_in_range_with_ink(process: ModuleType) -> None:
    images, labels = process.draw(40, 5, seeded())
    assert images.shape == (200, 28, 28)
    assert images.dtype == torch.float32
    assert labels.tolist() == [c for c in range(40) for _ in range(5)]
    assert images.min() >= 0
    assert images.max() <= 1
    ink = (images > 0.01).float().mean((1, 2))
    assert ink.min() > 0.01
    assert ink.mean() < 0.8


@pytest.mark.parametrize("process", PROCESSES)
def test_the_seed_decides_everything(process: ModuleType) -> None:
    first, again, other = (process.draw(6, 3, seeded(s))[0] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("process", PROCESSES)
def test_records_of_a_class_differ_but_less_than_classes_do(process: ModuleType) -> None:
    images, _ = process.draw(60, 8, seeded(3))
    records = images.flatten(1).view(60, 8, -1)
    centres = records.mean(1)
    within = (records - centres[:, None]).square().sum(-1).mean() * 8 / 7
    between = (centres - centres.mean(0)).square().sum(-1).mean()
    assert within > 1.0
    assert between > within / 3
    # A held-out record is nearer to its own class than to most others.
    distance = torch.cdist(records[:, 0], records[:, 1:].mean(1))
    rank = (distance < distance.diagonal()[:, None]).float().mean(1)
    assert rank.mean() < 0.15


@pytest.mark.parametrize("process", PROCESSES)
def test_other_sizes(process: ModuleType) -> None:
    assert process.draw(3, 2, seeded(), size=20)[0].shape == (6, 20, 20)


def test_strokes_lie_within_a_pixel_of_the_middle_are_narrow_and_fit_twenty_pixels() -> None:
    images, _ = strokes.draw(50, 4, seeded(5))
    grid = torch.arange(28.0) - 13.5
    mass = images.sum((1, 2))
    for off in (images.sum(1) @ grid / mass, images.sum(2) @ grid / mass):
        assert -0.5 < off.min() < 0.1
        assert 0.9 < off.max() < 1.5
        assert 0.4 < off.mean() < 0.6
    wide, tall = (images.sum(1) > 0).sum(1), (images.sum(2) > 0).sum(1)
    assert wide.float().mean() < 0.9 * tall.float().mean()
    extent = torch.maximum((images.sum(1) > 0).sum(1), (images.sum(2) > 0).sum(1))
    assert extent.float().mean() < 23


def test_shapes_fill_their_frame() -> None:
    images, _ = shapes.draw(50, 4, seeded(6))
    extent = torch.maximum((images.amax(1) > 0.02).sum(1), (images.amax(2) > 0.02).sum(1))
    assert extent.float().mean() > 23


def test_pictures_have_the_stated_shape_range_and_labels() -> None:
    images, labels = scenes.draw(7, 3, seeded(0))
    assert images.shape == (21, 3, 32, 32)
    assert images.dtype == torch.float32
    assert float(images.min()) >= 0.0
    assert float(images.max()) <= 1.0
    assert labels.tolist() == [c for c in range(7) for _ in range(3)]


def test_the_seed_decides_every_pixel_of_a_scene() -> None:
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
