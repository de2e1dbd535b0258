"""Other people's features must not move when one record is replaced or taken out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adlm.audit.finding import VIOLATED
from adlm.audit.separability import moved, product_separability, separability
from adlm.public.domain import NEIGHBOURS, Domain
from adlm.public.features.identity import Identity


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


@pytest.mark.parametrize(
    ("features", "relation"), [(BatchCentred, "replace-one"), (Remembering, "add-remove")]
)
def test_features_that_look_at_other_records_are_caught(features: type[Identity], relation: str) -> None:
    domain = Domain((5,), -2.0, 3.0, ("a", "b"), relation)
    assert separability(features((5,)), domain, "wrong").verdict == VIOLATED


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_what_is_computed_value_by_value_moves_nobody(relation: str) -> None:
    assert moved(Identity((5,)), Domain((5,), -2.0, 3.0, ("a", "b"), relation)) == 0


def test_the_products_features_keep_records_apart() -> None:
    assert all(f.verdict == "holds" for f in product_separability())
