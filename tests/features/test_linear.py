"""Products, norms and threads below image features: ordinary arithmetic, and no trace of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from adlm import fit, privatise
from adlm.data import datasets
from adlm.features.base import unit_norm
from adlm.features.linear import (
    DEPTH,
    ROWS,
    Directions,
    ExactDirections,
    Resized,
    exact_unit_norm,
    map_records,
)
from adlm.runtime.compiled import LANES, Floats, fused


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


@pytest.mark.parametrize("p", [3, 500, 9990])
def test_exact_products_are_those_of_ordinary_arithmetic(p: int) -> None:
    directions, x = random(p, 20, 1), random(30, p)
    found = ExactDirections(directions, 8.0)(x)
    wanted = x.double() @ directions.double()
    error = (found - wanted).norm(dim=1) / (x.double().norm(dim=1) * directions.double().norm(dim=0).max())
    assert float(error.max()) < 4e-6


def test_sums_are_exact_in_any_order() -> None:
    """Permuting what is added changes no bit; in float32 it does."""
    directions, x, order = random(4000, 30, 1), random(20, 4000), torch.randperm(4000)
    assert torch.equal(
        ExactDirections(directions, 8.0)(x), ExactDirections(directions[order], 8.0)(x[:, order])
    )
    assert not torch.equal(x @ directions, x[:, order] @ directions[order])


def test_the_largest_sum_is_a_whole_number_that_a_double_holds() -> None:
    made = ExactDirections(random(4000, 30, 1), 8.0)
    assert 2**50 < float(made.steps.abs().sum(0).max()) * made.limit * made.grid < 2**53


def test_what_is_beyond_the_limit_is_cut_off() -> None:
    made = ExactDirections(torch.ones(2, 1), 4.0)
    assert made(torch.tensor([[1e9, -1.0], [-1e9, 0.0]])).tolist() == [[3.0], [-4.0]]


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_exact_norms_are_those_of_ordinary_arithmetic(scale: float) -> None:
    z = random(50, 1000).double() * scale
    assert float((exact_unit_norm(z) - unit_norm(z)).abs().max()) < 1e-6
    order = torch.randperm(1000)
    assert torch.equal(exact_unit_norm(z)[:, order], exact_unit_norm(z[:, order]))


def test_zero_stays_zero_and_short_rows_stay_short() -> None:
    z = torch.zeros(2, 3)
    z[1, 0] = 1e-9
    assert torch.equal(exact_unit_norm(z)[0], torch.zeros(3))
    assert float(exact_unit_norm(z)[1, 0]) == pytest.approx(1e-3)


def test_gradients_pass_through() -> None:
    x = random(2, 5).requires_grad_()
    exact_unit_norm(ExactDirections(random(5, 3, 1), 8.0)(x))[0, 0].backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert float(x.grad[0].abs().max()) > 0


@pytest.mark.parametrize(
    ("shape", "mode"), [((8, 8), "bicubic"), ((20, 24), "bicubic"), ((70, 50), "bilinear")]
)
def test_resizing_is_what_pytorch_does(shape: tuple[int, int], mode: str) -> None:
    x = torch.rand((3, *shape), generator=torch.Generator().manual_seed(1))
    wanted = torch.nn.functional.interpolate(x[:, None], (20, 20), mode=mode, antialias=True)[:, 0].clamp(
        0, 1
    )
    framed = Resized(shape, 20, mode, margin=4)
    for found in (framed(x), torch.from_numpy(framed.compiled(x.numpy()))):
        assert found.shape == (3, 28, 28)
        torch.testing.assert_close(found[:, 4:-4, 4:-4], wanted, rtol=0, atol=2e-5)
        assert float(found[:, :4].abs().max()) == 0.0


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
