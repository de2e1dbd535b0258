"""A second layer of patches, against a slow twin written from the formula, and blind to the flip."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adlm.public.features.patches import Patches
from adlm.public.features.second_layer import (
    POOL,
    SIDE,
    STEP,
    THRESHOLD,
    SecondLayer,
    averaged_maps,
    learn_second_layer,
)
from adlm.public.priors import scenes

ATOMS, ABOVE = 5, 7


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    return scenes.draw(6, 4, seeded(3))[0]


@pytest.fixture(scope="module")
def first() -> Patches:
    filters = torch.randn((ATOMS, 3, 6, 6), generator=seeded(0)) * 0.1
    return Patches(filters - filters.mean((1, 2, 3), keepdim=True))


@pytest.fixture(scope="module")
def weights(first: Patches, pictures: torch.Tensor) -> dict[str, torch.Tensor]:
    maps = averaged_maps(first.beyond(pictures))
    return learn_second_layer(maps, ABOVE, seeded(1), channels=8, samples=500)


def test_the_second_layer_equals_its_slow_twin(
    first: Patches, weights: dict[str, torch.Tensor], pictures: torch.Tensor
) -> None:
    beyond = first.beyond(pictures[:2])
    fast = SecondLayer(weights, 27)(beyond).double().numpy()
    filters, reduce = weights["filters"].double().numpy(), weights["reduce"].double().numpy()
    for image, found in zip(beyond.double().numpy(), fast, strict=True):
        both = np.concatenate([np.maximum(image, 0), np.maximum(-image, 0)])
        side = (27 - POOL) // STEP + 1
        maps = np.zeros((len(reduce), side, side))
        for i in range(side):
            for j in range(side):
                window = both[:, STEP * i : STEP * i + POOL, STEP * j : STEP * j + POOL]
                maps[:, i, j] = reduce @ np.sqrt(window.mean((1, 2))) - weights["offset"].double().numpy()
        places = side - SIDE + 1
        d = np.zeros((2 * ABOVE, places, places))
        for i in range(places):
            for j in range(places):
                patch = maps[:, i : i + SIDE, j : j + SIDE]
                patch = patch / (np.sqrt((patch**2).mean()) + float(weights["floor"]))
                d[:, i, j] = np.maximum((filters * patch).sum((1, 2, 3)) - THRESHOLD, 0)
        edges = [(c * places // 3, -(-(c + 1) * places // 3)) for c in range(3)]
        cells = np.array([[d[:, a:b, e:f].mean((1, 2)) for e, f in edges] for a, b in edges])
        halves = cells.transpose(2, 0, 1).reshape(2, ABOVE, 3, 3)
        slow = 0.5 * (halves[0] + halves[1][:, :, ::-1])
        np.testing.assert_allclose(found**2, slow.ravel(), atol=1e-5)


def test_the_second_layer_does_not_see_the_flip(
    first: Patches, weights: dict[str, torch.Tensor], pictures: torch.Tensor
) -> None:
    second = SecondLayer(weights, 27)
    found, flipped, other = (second(first.beyond(p)) for p in (pictures, pictures.flip(3), pictures.flip(2)))
    assert float((found - flipped).norm() / found.norm()) < 0.01  # atoms are stored in 16 bits
    assert float((found - other).norm() / found.norm()) > 0.05


def test_what_is_learnt_follows_its_seed(first: Patches, pictures: torch.Tensor) -> None:
    maps = averaged_maps(first.beyond(pictures))
    one, again, two = (learn_second_layer(maps, ABOVE, seeded(s), channels=8, samples=500) for s in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["filters"], two["filters"])
