"""Rooted, centred and scaled orders: the compiled form against the formula, one order after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adlm.features.order_norms import OrderNorms

COUNTS = (2, 13, 40)
ORDERS = torch.arange(3).repeat_interleave(torch.tensor(COUNTS))
SETTINGS = [(0.1, (0.0, 0.0, 0.0), 1e-6, 0), (0.0, (0.05, 0.1, 0.2), 0.0, 1)]


def slow_twin(rows: Tensor, share: float, added: tuple[float, ...], least: float, plain: int) -> Tensor:
    parts = []
    for order, own in enumerate(torch.split(rows.double(), list(COUNTS), 1)):
        roots = own
        if order >= plain:
            roots = own.maximum(share * own.mean(1, keepdim=True).clamp_min(0)).sqrt()
        centred = roots - roots.mean(1, keepdim=True)
        parts.append(centred / (centred.norm(dim=1, keepdim=True) + added[order]).clamp_min(least))
    return torch.cat(parts, 1)


@pytest.mark.parametrize(("share", "added", "least", "plain"), SETTINGS)
def test_both_forms_are_the_formula(share: float, added: tuple[float, ...], least: float, plain: int) -> None:
    rows = torch.rand((4, sum(COUNTS)), generator=torch.Generator().manual_seed(0))
    norms = OrderNorms(ORDERS, share, added, least, plain)
    slow = slow_twin(rows, share, added, least, plain)
    torch.testing.assert_close(norms(rows).double(), slow, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        torch.from_numpy(norms.compiled(rows.numpy().copy())).double(), slow, atol=1e-6, rtol=0
    )


def test_a_constant_order_is_exactly_zero() -> None:
    rows = torch.tensor([0.1, 0.3, 0.7])[ORDERS][None]
    norms = OrderNorms(ORDERS, *SETTINGS[0])
    assert float(norms(rows).abs().max()) == 0.0
    assert float(abs(norms.compiled(rows.numpy().copy())).max()) == 0.0


def test_a_norm_of_nothing_has_a_slope() -> None:
    rows = torch.zeros((1, sum(COUNTS)), requires_grad=True)
    OrderNorms(ORDERS, *SETTINGS[1])(rows).sum().backward()
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())
