"""Other people's features must not move when one record is replaced or taken out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adlm.audit.separability import (
    MAPS,
    batch_separability,
    moved,
    product_separability,
    regrouped,
    separability,
    trial_records,
)
from adlm.audit.statistics import VIOLATED
from adlm.domain import NEIGHBOURS, Domain
from adlm.features.base import Identity, unit_norm
from adlm.features.drawn import NormedScattering, PriorProjection


class BatchCentred(Identity):
    """Features that subtract the mean of their batch: the classic mistake."""

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return torch.clamp(z - z.mean(0), -0.1, 0.1)


class Remembering(Identity):
    """Features that subtract the record before: mapping each record alone does not help."""

    before = 0.0

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x) - self.before
        self.before = float(x[-1].mean())
        return z


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("features", [BatchCentred, Remembering])
def test_features_that_look_at_other_records_are_caught(
    features: type[Identity], relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adlm.engine.records.user_supplied", lambda _: False)  # mapped in batches
    domain = Domain((5,), -2.0, 3.0, ("a", "b"), relation)
    assert separability(features((5,)), domain, "wrong").verdict == VIOLATED


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_a_users_features_cannot_look_at_other_records_unless_they_keep_state(relation: str) -> None:
    domain = Domain((5,), -2.0, 3.0, ("a", "b"), relation)
    assert moved(BatchCentred((5,)), domain) == 0
    assert moved(Remembering((5,)), domain) > 0  # what the test on noise is for


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_what_is_computed_value_by_value_moves_nobody(relation: str) -> None:
    assert moved(Identity((5,)), Domain((5,), -2.0, 3.0, ("a", "b"), relation)) == 0


def test_the_products_features_keep_records_apart() -> None:
    found = product_separability(["random directions"])
    assert all(f.verdict == "holds" for f in found)
    assert found[-1].mechanism == "features in batches: random directions"


@pytest.mark.parametrize("name", MAPS)
def test_features_are_the_same_bits_however_records_are_batched(name: str) -> None:
    """In batches of any size, alone, shuffled, at any place and with any number of threads."""
    made, shape, n = MAPS[name]
    assert regrouped(made(), trial_records(n, shape)) == []


class InBlocksOfTheirBatch(PriorProjection):
    """The same map without a fixed block: in floating point, and as large as the batch."""

    def forward(self, x: Tensor) -> Tensor:
        transform: NormedScattering = self.transform
        return unit_norm((transform.products(x) - self.centre) @ self.projection)


class ByTheBatch(Identity):
    """Features whose last bits follow the size of their batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / len(x) * len(x)


class ByThePlace(Identity):
    """Features of which every eighth record of a batch is rounded in another way."""

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        z[7::8] *= 1 + 2.0**-20
        return z


class ByTheThreads(Identity):
    """Features whose last bits follow the number of threads."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 2.0**-20 * torch.get_num_threads())


@pytest.mark.parametrize("features", [ByTheBatch, ByThePlace, ByTheThreads])
def test_last_bits_that_follow_the_batch_are_caught(features: type[Identity]) -> None:
    found = batch_separability(features((5,)), trial_records(40, (5,)), "add-remove", "wrong")
    assert found.verdict == VIOLATED


def test_a_map_in_floating_point_stays_close_to_the_exact_one() -> None:
    """What the grid costs: less than a part in a hundred thousand of the norm, unless an image is near flat.

    The contrast of such an image is next to the last bits of its average, and those follow the batch.
    """
    x = trial_records(40, (28, 28))
    difference = (InBlocksOfTheirBatch("drawn")(x) - PriorProjection("drawn")(x)).norm(dim=1)
    plain = x.flatten(1).std(1) > 0.01
    assert float(difference[plain].max()) < 1e-5
    assert float(difference.max()) < 1e-4
