"""Products with directions: ordinary arithmetic, one order of additions, and no trace of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adlm.features.directions import DEPTH, ROWS, TILE, Directions, _multiply
from adlm.runtime.compiled import LANES, fused


def random(n: int, p: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("p", "k"), [(3, 20), (500, 16), (9990, 7)])
def test_products_are_those_of_ordinary_arithmetic(p: int, k: int) -> None:
    directions, x = random(p, k, 1), random(31, p)
    found, wanted = Directions(directions)(x), x.double() @ directions.double()
    error = (found - wanted).norm(dim=1) / (x.double().norm(dim=1) * directions.double().norm(dim=0).max())
    assert float(error.max()) < 2e-6
    torch.testing.assert_close(
        Directions(directions)(x.requires_grad_()).detach(), found, rtol=1e-4, atol=1e-3
    )


def test_terms_are_fused_and_added_from_the_first_to_the_last() -> None:
    """The slow twin: one row, one term after the other, through more than one block."""
    directions, x = random(2 * DEPTH + 5, LANES, 1), random(1, 2 * DEPTH + 5)
    total = np.zeros(LANES, np.float32)
    for value, weights in zip(x[0].numpy(), directions.numpy(), strict=True):
        total = fused(np.full(LANES, value), weights, total)
    assert np.array_equal(Directions(directions)(x)[0].numpy(), total)


def test_compiled_code_gives_the_bits_of_plain_python() -> None:
    directions, x = Directions(random(40, 19, 1)), random(TILE, 40)
    out = np.empty((TILE, 32), np.float32)
    _multiply(x.numpy().reshape(-1), 40, directions.panels, out.reshape(-1), 32)
    assert np.array_equal(directions(x).numpy(), out[:, :19])


def test_neither_the_batch_nor_the_place_nor_the_threads_nor_the_width_show() -> None:
    directions, x, own = Directions(random(700, 50, 1)), random(ROWS + 13, 700), torch.get_num_threads()
    together, order = directions(x), torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(directions(x), together)
            assert torch.equal(directions(x[order]), together[order])
            assert torch.equal(torch.cat([directions(part) for part in torch.split(x, 7)]), together)
            assert torch.equal(directions(x[5:6]), together[5:6])
            assert torch.equal(directions(x, 17), together[:, :17])
    finally:
        torch.set_num_threads(own)


def test_no_rows_have_no_products() -> None:
    assert Directions(torch.ones(3, 2))(torch.zeros(0, 3)).shape == (0, 2)
