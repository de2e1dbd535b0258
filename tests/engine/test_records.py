"""How records reach a feature map, and how a part of them is taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adlm.data import datasets
from adlm.domain import NEIGHBOURS, Domain
from adlm.engine.records import featurise, window
from adlm.features import Backbone, Narrowed, provenance_of, user_supplied
from adlm.features.base import Identity
from adlm.features.drawn import PriorProjection


class Own(Identity):
    """A map that a person brought along; it notes how many records it is given."""

    provenance = "public"

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return super().forward(x)


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_a_map_of_ones_own_maps_each_record_alone(neighbours: str) -> None:
    features, domain = Own((3,)), Domain((3,), 0.0, 1.0, ("a", "b"), neighbours)
    x = np.random.default_rng(0).random((20, 3))
    featurise(x, domain, features)
    assert features.sizes == [1] * 20
    features.sizes.clear()
    featurise(x, domain, Narrowed(features, 2))
    assert features.sizes == [1] * 20


class Aligned(Own):
    """Shows where in memory a record lies, by which some kernels choose the order of their sums."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0 + x.data_ptr() % 64 / 64


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_a_records_place_in_memory_is_not_that_of_its_place_in_the_file(neighbours: str) -> None:
    domain = Domain((3,), 0.0, 1.0, ("a", "b"), neighbours)
    assert len(np.unique(featurise(np.ones((20, 3)), domain, Aligned((3,))))) == 1


class Experts(nn.Module):
    """A layer of two experts with a capacity: records beyond it, in the order of the batch, are dropped."""

    capacity = 200

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, :1] > 0.5
        place = torch.where(first, first.cumsum(0), (~first).cumsum(0))
        return torch.where(place <= self.capacity, torch.cat([x * first, x * ~first], 1), 0.0)


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_one_record_moves_no_other_through_an_encoder_with_expert_capacity(neighbours: str) -> None:
    """The test on noise does not find it: its batch is smaller than the capacity."""
    encoder = Backbone(Experts(), (3,), provenance="public")
    assert provenance_of(encoder, (3,)) == "public"
    domain = Domain((3,), 0.0, 1.0, ("a", "b"), neighbours)
    x = np.random.default_rng(0).random((600, 3))
    x[:, 0] = np.arange(600) % 2
    other = x.copy()
    other[0] = 1 - x[0]
    for neighbour, rest in ((other, other[1:]), (np.roll(x, 1, 0), x[:-1]), (x[1:], x[1:])):
        mapped = featurise(neighbour, domain, encoder)[-len(rest) :]
        alone = np.concatenate([featurise(record[None], domain, encoder) for record in rest])
        assert np.array_equal(mapped, alone)


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_a_record_taken_out_moves_no_bit_of_the_others(neighbours: str) -> None:
    domain = Domain((8, 8), 0.0, 16.0, ("a", "b"), neighbours, family="drawn")
    x = np.random.default_rng(0).integers(0, 17, (40, 8, 8))
    features = PriorProjection("drawn", (8, 8))
    assert np.array_equal(featurise(x, domain, features)[1:], featurise(x[1:], domain, features))


def test_user_supplied_maps_are_told_from_our_own() -> None:
    assert not user_supplied(PriorProjection("drawn"))
    assert not user_supplied(Narrowed(PriorProjection("drawn"), 10))
    assert user_supplied(Own((3,)))
    assert user_supplied(Narrowed(Own((3,)), 2))


# ---- A part of the records is taken so that one record more or less changes that record alone


TRAIN = datasets.load("digits", "train")


@given(st.integers(0, 399), st.integers(1, 500))
def test_under_add_remove_no_record_decides_about_another(missing: int, limit: int) -> None:
    """Records read of 400, and of 399: they differ by the missing one or not at all."""
    x, y = TRAIN.x[:400], TRAIN.y[:400]
    whole = window(x, y, limit, neighbours="add-remove", size=400)
    fewer_x, fewer_y = np.delete(x, missing, axis=0), np.delete(y, missing)
    without = window(fewer_x, fewer_y, limit, neighbours="add-remove", size=400)
    places = np.delete(np.arange(400), missing)[without]
    assert set(whole) - {missing} == set(places)


def test_the_first_records_under_add_remove_would_let_another_in() -> None:
    """What --limit did before: two records change where one is charged."""
    places = np.arange(400)
    assert len(set(places[:100]) ^ set(np.delete(places, 3)[:100])) == 2


@pytest.mark.parametrize("limit", [100, 500, 1000])
def test_about_as_many_are_read_as_were_asked_for(limit: int) -> None:
    """Five standard deviations: the hash is fixed, so this holds always or never."""
    kept = window(TRAIN.x, TRAIN.y, limit, neighbours="add-remove", size=len(TRAIN))
    assert abs(len(kept) - limit) < 5 * limit**0.5


def test_under_replace_one_the_first_places_are_read() -> None:
    assert window(TRAIN.x, TRAIN.y, 7, neighbours="replace-one", size=1).tolist() == list(range(7))
    assert len(window(TRAIN.x, TRAIN.y, 10**6, neighbours="replace-one", size=1)) == len(TRAIN)
    assert len(window(TRAIN.x, TRAIN.y, 10**6, neighbours="add-remove", size=10)) == len(TRAIN)
