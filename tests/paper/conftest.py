"""What tests of the paper share: three classes that are easily told apart, and releases of digits."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from adlm.data import datasets
from adlm.domain import Domain
from adlm.paper import Budgets, PrivateRecords, RecordOptions, RelevanceSource, build, make_release
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

DOMAIN = Domain(shape=(12,), lower=0.0, upper=1.0, classes=("0", "1", "2"))


@lru_cache
def blobs(n: int = 600) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = random.uniform(0, 0.3, (n, 12))
    for i, label in enumerate(y):
        x[i, 3 * label : 3 * label + 3] += 0.7
    return x, y


def explained(provenance: str = "public") -> RelevanceSource:
    torch.manual_seed(0)
    return RelevanceSource(build("mlp", (12,), 5).eval(), provenance)


@pytest.fixture(scope="session")
def digits_release() -> Callable[..., Release]:
    """Record releases of digits without relevances, each made once."""
    digits = datasets.load("digits", "train")

    @lru_cache
    def made(
        name: str = "mlp", epsilon: str = "1e8", labels: bool = True, delta_h0: str | int = "counted"
    ) -> Release:
        budgets = Budgets.split(epsilon, method="ilm") if labels else Budgets(None, Fraction(epsilon), None)
        return make_release(
            PrivateRecords(digits.x, digits.y if labels else None, digits.domain),
            build(name, (8, 8), 10),
            budgets,
            100,
            explained=None,
            options=RecordOptions(delta_h0=delta_h0),
            ledger=Ledger(),
            source=Source.seeded_with(1),
        )

    return made
