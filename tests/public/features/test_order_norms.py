"""Centring and norms of all orders at once, against one order after the other."""

from __future__ import annotations

import torch

from adlm.public.features.order_norms import OrderNorms

ORDERS = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2])


def test_orders_are_centred_and_measured_one_by_one() -> None:
    rows, norms = torch.rand((4, 9), generator=torch.Generator().manual_seed(0)), OrderNorms(ORDERS)
    centred = norms.centred(rows)
    for order in range(3):
        own = rows[:, order == ORDERS]
        torch.testing.assert_close(norms.means(rows)[:, order], own.mean(1))
        torch.testing.assert_close(centred[:, order == ORDERS], own - own.mean(1, keepdim=True))
        torch.testing.assert_close(norms.norms(rows)[:, order], own.norm(dim=1))


def test_a_constant_order_is_exactly_zero_once_centred() -> None:
    rows = torch.tensor([[0.1, 0.1, 0.3, 0.3, 0.3, 0.7, 0.7, 0.7, 0.7]])
    assert float(OrderNorms(ORDERS).centred(rows).abs().max()) == 0.0


def test_a_norm_of_nothing_has_a_slope() -> None:
    rows = torch.zeros((1, 9), requires_grad=True)
    OrderNorms(ORDERS).norms(rows).sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())
