"""The random processes: what they draw, how fast, and that a class is more alike than two."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from adlm.features.priors import shapes, strokes

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
