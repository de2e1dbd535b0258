"""Records are mapped one by one, whatever their batch and threads; gradients go another way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from adlm import fit, privatise
from adlm.data import datasets
from adlm.features.threads import map_records
from adlm.runtime.compiled import Floats


def twice(block: Floats) -> Floats:
    return 2 * block


def thrice(block: Tensor) -> Tensor:
    return 3 * block


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_every_record_is_mapped_once_into_its_place(n: int, threads: int) -> None:
    own, x = torch.get_num_threads(), torch.arange(2.0 * n).view(n, 2)
    sizes: list[int] = []

    def work(block: Floats) -> Floats:
        sizes.append(len(block))
        return twice(block)

    try:
        torch.set_num_threads(threads)
        assert torch.equal(map_records(x, (2,), work, thrice, 2), 2 * x)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(own)
    assert sum(sizes) == n
    assert all(size <= 2 for size in sizes)


def test_what_needs_a_gradient_goes_through_pytorch() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    map_records(x, (2,), twice, thrice, 2).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3, 2), 3.0))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failure_is_told(threads: int) -> None:
    own = torch.get_num_threads()

    def fail(block: Floats) -> Floats:
        raise ValueError(f"not {block[0].tolist()}")

    try:
        torch.set_num_threads(threads)
        with pytest.raises(ValueError, match=r"not \[\d"):
            map_records(torch.zeros(7, 2), (2,), fail, thrice, 2)
    finally:
        torch.set_num_threads(own)


def test_one_image_alone_has_the_prediction_that_it_has_among_others() -> None:
    train = datasets.load("digits", "train")
    model = fit(privatise(train.x, train.y, domain=train.domain, epsilon=8, seed=0))
    together = model.probabilities(train.x[:20])
    alone = np.concatenate([model.probabilities(train.x[i : i + 1]) for i in range(20)])
    assert np.allclose(alone, together, atol=1e-6)
