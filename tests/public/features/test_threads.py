"""Blocks have one shape, so that batches do not show; a prediction that somebody waits for needs no block."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from adlm import fit, privatise
from adlm.public import datasets
from adlm.public.features.threads import map_blocks_threaded, unpadded


def sizes_of_blocks(n: int) -> list[int]:
    seen: list[int] = []

    def work(block: Tensor, out: Tensor) -> None:
        seen.append(len(block))
        out.copy_(2 * block[: len(out)])

    x = torch.arange(float(n))[:, None]
    assert torch.equal(map_blocks_threaded(work, x, torch.empty_like(x), 32), 2 * x)
    return seen


def test_a_block_is_filled_up_unless_somebody_waits_for_few_records() -> None:
    assert sizes_of_blocks(3) == [32]
    with unpadded():
        assert sizes_of_blocks(3) == [3]
    with pytest.raises(ValueError, match="stop"), unpadded():
        raise ValueError("stop")
    assert sizes_of_blocks(3) == [32]


def test_one_image_alone_has_the_prediction_that_it_has_among_others() -> None:
    train = datasets.load("digits", "train")
    model = fit(privatise(train.x, train.y, domain=train.domain, epsilon=8, seed=0))
    together = model.probabilities(train.x[:20])
    alone = np.concatenate([model.probabilities(train.x[i : i + 1]) for i in range(20)])
    assert np.allclose(alone, together, atol=1e-5)
