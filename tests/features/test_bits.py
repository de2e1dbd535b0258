"""The bits of features depend on the record: not on batch, order, place, threads or width of registers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adlm.features import Features, linear, photographs, scattering
from adlm.features.base import PairProducts
from adlm.features.drawn import PriorProjection
from adlm.features.photographs import NaturalImages
from adlm.runtime import compiled
from adlm.runtime.compiled import Floats

LOOPS = {
    scattering: ("scatter", "norm_orders"),
    photographs: ("patch_features", "histograms", "opponents"),
    linear: ("multiply", "multiply_both"),
}


def seeded(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def scattered() -> Floats:
    return scattering.Scattering(20).plan(seeded(3, 20, 20).numpy())


def flipped() -> Floats:
    return photographs.FlipScattering().compiled(seeded(1, 32, 32).numpy())


def normed() -> Floats:
    orders = torch.arange(3).repeat_interleave(torch.tensor((2, 13, 70)))
    return scattering.OrderNorms(orders, 0.1, (0.0, 0.1, 0.2), 1e-6).compiled(seeded(2, 85).numpy())


def patched() -> Floats:
    return photographs.Patches(seeded(19, 1, 3, 3) - 0.5, 0.1, 2).compiled(seeded(1, 1, 6, 7).numpy())


def projected() -> Floats:
    product: torch.Tensor = linear.Directions(seeded(9, 20) - 0.5)(seeded(7, 9))
    return product.numpy()


def resized() -> Floats:
    return linear.Resized((9, 7), 6, "bilinear").compiled(seeded(2, 9, 7).numpy())


def coloured() -> Floats:
    return photographs.Colour().compiled(seeded(1, 3, 4, 4).numpy())


@pytest.mark.parametrize("mapped", [scattered, flipped, normed, patched, projected, resized, coloured])
def test_the_number_of_lanes_does_not_show(
    mapped: Callable[[], Floats], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled for this processor, and in plain Python with 8 and with 16 lanes."""
    found = mapped()
    for lanes in (8, 16):
        sizes = {
            "LANES": lanes,
            "COMPLEX": 2 * lanes,
            "IMAGES": lanes // 8,
            "ATOMS": 2 * lanes,
            "PANEL": 2 * lanes,
        }
        for module in (compiled, *LOOPS):
            for name, size in sizes.items():
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, size)
        for module, names in LOOPS.items():
            for name in names:
                monkeypatch.setattr(module, name, getattr(module, f"_{name}"))
        assert np.array_equal(mapped(), found)


MAPS: dict[str, Callable[[], Features]] = {
    "drawn": lambda: PriorProjection("drawn"),
    "garments": lambda: PairProducts(PriorProjection("garments"), 20),
    "photographs": lambda: NaturalImages(width=40),
    "grey photographs": lambda: NaturalImages((40, 48), 40),
}


@pytest.fixture(scope="module", params=MAPS)
def mapped_together(request: pytest.FixtureRequest) -> tuple[Features, torch.Tensor, torch.Tensor]:
    features = MAPS[request.param]()
    shape = {"photographs": (3, 32, 32), "grey photographs": (40, 48)}.get(request.param, (28, 28))
    images = seeded(17, *shape) ** 3
    images[3], images[4] = 0.0, 1.0
    with torch.inference_mode():
        return features, images, features(images)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.permutations(range(17)),
    cuts=st.sets(st.integers(1, 16), max_size=5),
    threads=st.integers(1, 3),
)
def test_a_record_has_the_same_bits_in_every_batch_order_and_number_of_threads(
    mapped_together: tuple[Features, torch.Tensor, torch.Tensor],
    order: list[int],
    cuts: set[int],
    threads: int,
) -> None:
    (features, images, together), own = mapped_together, torch.get_num_threads()
    ends = [0, *sorted(cuts), 17]
    try:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            shuffled = images[order]
            parts = [features(shuffled[a:b]) for a, b in pairwise(ends)]
    finally:
        torch.set_num_threads(own)
    assert torch.equal(torch.cat(parts), together[order])


def test_a_record_alone_has_the_bits_that_it_has_among_others(
    mapped_together: tuple[Features, torch.Tensor, torch.Tensor],
) -> None:
    features, images, together = mapped_together
    with torch.inference_mode():
        alone = torch.cat([features(image[None].clone()) for image in images])
    assert torch.equal(alone, together)
