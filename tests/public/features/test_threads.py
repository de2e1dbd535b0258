"""A record is worked on alone, so that batches do not show; a prediction needs no such care."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from adlm import fit, privatise
from adlm.public import datasets
from adlm.public.features.threads import map_blocks_threaded, records_together


def seen_by_work(x: Tensor) -> list[tuple[int, int]]:
    """Records in each call of the work, and where their memory starts, modulo 64 bytes."""
    seen: list[tuple[int, int]] = []

    def work(block: Tensor, out: Tensor) -> None:
        seen.append((len(block), block.data_ptr() % 64))
        out.copy_(2 * block)

    assert torch.equal(map_blocks_threaded(work, x, torch.empty_like(x), 32), 2 * x)
    return seen


@pytest.mark.parametrize("n", [1, 3, 40])
def test_each_record_is_worked_on_alone_in_memory_that_starts_alike(n: int) -> None:
    x = torch.arange(5.0 * n).view(n, 5)
    assert seen_by_work(x) == [(1, 0)] * n
    assert seen_by_work(torch.arange(5.0 * n + 1)[1:].view(n, 5)) == [(1, 0)] * n


def test_records_are_worked_on_together_where_somebody_says_so() -> None:
    x = torch.arange(9.0).view(3, 3)
    with records_together():
        assert [count for count, _ in seen_by_work(x)] == [3]
    with pytest.raises(ValueError, match="stop"), records_together():
        raise ValueError("stop")
    assert [count for count, _ in seen_by_work(x)] == [1, 1, 1]


def test_one_image_alone_has_the_prediction_that_it_has_among_others() -> None:
    train = datasets.load("digits", "train")
    model = fit(privatise(train.x, train.y, domain=train.domain, epsilon=8, seed=0))
    together = model.probabilities(train.x[:20])
    alone = np.concatenate([model.probabilities(train.x[i : i + 1]) for i in range(20)])
    assert np.allclose(alone, together, atol=1e-5)
