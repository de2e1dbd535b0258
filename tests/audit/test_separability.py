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


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_features_that_look_at_their_batch_are_caught(relation: str) -> None:
    domain = Domain((5,), -2.0, 3.0, ("a", "b"), relation)
    assert separability(BatchCentred((5,)), domain, "centred").verdict == VIOLATED
    assert moved(Identity((5,)), domain) == 0


def test_identity_keeps_records_apart() -> None:
    assert all(f.verdict == "holds" for f in product_separability())
