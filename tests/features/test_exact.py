"""Exact products and norms, against ordinary arithmetic and under every way to batch."""

from __future__ import annotations

import pytest
import torch

from adlm.features.base import unit_norm
from adlm.features.exact import ExactDirections, exact_unit_norm


def rows(n: int, p: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("p", [3, 500, 9990])
def test_products_are_those_of_ordinary_arithmetic(p: int) -> None:
    directions, x = rows(p, 20, 1), rows(30, p)
    found = ExactDirections(directions, 8.0)(x)
    wanted = x.double() @ directions.double()
    error = (found - wanted).norm(dim=1) / (x.double().norm(dim=1) * directions.double().norm(dim=0).max())
    assert float(error.max()) < 4e-6


def test_sums_are_exact_in_any_order() -> None:
    """Permuting what is added changes no bit; in float32 it does."""
    directions, x, order = rows(4000, 30, 1), rows(20, 4000), torch.randperm(4000)
    assert torch.equal(
        ExactDirections(directions, 8.0)(x), ExactDirections(directions[order], 8.0)(x[:, order])
    )
    assert not torch.equal(x @ directions, x[:, order] @ directions[order])


def test_the_largest_sum_is_a_whole_number_that_a_double_holds() -> None:
    made = ExactDirections(rows(4000, 30, 1), 8.0)
    assert 2**50 < float(made.steps.abs().sum(0).max()) * made.limit * made.grid < 2**53


def test_what_is_beyond_the_limit_is_cut_off() -> None:
    made = ExactDirections(torch.ones(2, 1), 4.0)
    assert made(torch.tensor([[1e9, -1.0], [-1e9, 0.0]])).tolist() == [[3.0], [-4.0]]


def test_whole_directions_are_kept_and_the_first_ones_suffice() -> None:
    whole = torch.tensor([[3, -7], [127, 0]], dtype=torch.int8)
    made = ExactDirections(whole, 1.0)
    assert torch.equal(made(torch.tensor([[0.5, 0.25]])), torch.tensor([[33.25, -3.5]], dtype=torch.float64))
    assert made(torch.tensor([[0.5, 0.25]]), 1).tolist() == [[33.25]]


def test_no_rows_have_no_products() -> None:
    assert ExactDirections(torch.ones((3, 2), dtype=torch.int8), 1.0)(torch.zeros(0, 3)).shape == (0, 2)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_exact_norms_are_those_of_ordinary_arithmetic(scale: float) -> None:
    z = rows(50, 1000).double() * scale
    assert float((exact_unit_norm(z) - unit_norm(z)).abs().max()) < 1e-6
    order = torch.randperm(1000)
    assert torch.equal(exact_unit_norm(z)[:, order], exact_unit_norm(z[:, order]))


def test_zero_stays_zero_and_short_rows_stay_short() -> None:
    z = torch.zeros(2, 3)
    z[1, 0] = 1e-9
    assert torch.equal(exact_unit_norm(z)[0], torch.zeros(3))
    assert float(exact_unit_norm(z)[1, 0]) == pytest.approx(1e-3)


def test_gradients_pass_through() -> None:
    x = rows(2, 5).requires_grad_()
    exact_unit_norm(ExactDirections(rows(5, 3, 1), 8.0)(x))[0, 0].backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert float(x.grad[0].abs().max()) > 0
