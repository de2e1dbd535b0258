"""How records reach a feature map: in batches, or alone where a map promises nothing about batches."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

from adlm.curator.featurise import featurise
from adlm.public.domain import NEIGHBOURS, Domain
from adlm.public.features import Narrowed, brought_along
from adlm.public.features.identity import Identity
from adlm.public.features.prior import PriorProjection


class Own(Identity):
    """A map that a person brought along; it notes how many records it is given."""

    provenance = "public"

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return super().forward(x)


@pytest.mark.parametrize(("neighbours", "sizes"), [("replace-one", [20]), ("add-remove", [1] * 20)])
def test_a_map_of_ones_own_maps_records_alone_where_they_change_place(
    neighbours: str, sizes: list[int]
) -> None:
    features, domain = Own((3,)), Domain((3,), 0.0, 1.0, ("a", "b"), neighbours)
    x = np.random.default_rng(0).random((20, 3))
    featurise(x, domain, features)
    assert features.sizes == sizes
    features.sizes.clear()
    featurise(x, domain, Narrowed(features, 2))
    assert features.sizes == sizes


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_a_record_taken_out_moves_no_bit_of_the_others(neighbours: str) -> None:
    domain = Domain((8, 8), 0.0, 16.0, ("a", "b"), neighbours, family="drawn")
    x = np.random.default_rng(0).integers(0, 17, (40, 8, 8))
    features = PriorProjection("drawn", (8, 8))
    assert np.array_equal(featurise(x, domain, features)[1:], featurise(x[1:], domain, features))


def test_what_is_brought_along_is_told_from_our_own() -> None:
    assert not brought_along(PriorProjection("drawn"))
    assert not brought_along(Narrowed(PriorProjection("drawn"), 10))
    assert brought_along(Own((3,)))
    assert brought_along(Narrowed(Own((3,)), 2))
