"""The rule: public quantities in, settings out, and they grow and shrink the way they should."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from adlm.certificate import gaussian_mu as proved_mu
from adlm.certificate import parse_delta, parse_epsilon
from adlm.errors import UserError
from adlm.public.features import Features, PriorStatistics
from adlm.public.rule import Plan, choose, gaussian_mu, second_level

EPSILONS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)


class Plain(Features):
    """Any features of a given width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x

    def spec(self) -> dict[str, Any]:
        return {"name": "plain", "width": self.width}


def plans(width: int, n: int, classes: int, delta: float, neighbours: str = "replace-one") -> list[Plan]:
    return [choose(n, classes, epsilon, delta, neighbours, Plain(width)) for epsilon in EPSILONS]


@pytest.mark.parametrize("width", [3, 64, 400, 1200])
@pytest.mark.parametrize("n", [50, 1797, 60000])
@pytest.mark.parametrize("classes", [2, 5, 10])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_every_plan_can_be_followed(width: int, n: int, classes: int, delta: float) -> None:
    for plan in plans(width, n, classes, delta):
        assert 1 <= plan.k <= width
        assert 0 <= plan.q <= plan.k
        assert 0 < plan.share_sums < 1
        assert plan.noise == ("gaussian" if delta else "radial")
        assert plan.second_level > 0
        assert plan.reasons
        assert all(reason for reason in plan.reasons)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_more_budget_never_means_fewer_coordinates(delta: float) -> None:
    chosen = plans(400, 60000, 10, delta)
    assert [p.k for p in chosen] == sorted(p.k for p in chosen)
    assert chosen[0].q == 0
    assert chosen[-1].q > 0
    first = next(i for i, p in enumerate(chosen) if p.q)
    assert all(p.q for p in chosen[first:])


def test_records_and_budget_buy_the_same() -> None:
    """Noise on a mean depends on epsilon times n: ten times the records at a tenth of the budget."""
    few, many = (
        choose(6000, 10, 1.0, 0, "replace-one", Plain(400)),
        choose(60000, 10, 0.1, 0, "replace-one", Plain(400)),
    )
    assert (few.k, few.q) == (many.k, many.q)


def test_add_remove_costs_half() -> None:
    once, twice = (
        choose(60000, 10, 0.1, 0, "add-remove", Plain(400)),
        choose(60000, 10, 0.2, 0, "replace-one", Plain(400)),
    )
    assert (once.k, once.q) == (twice.k, twice.q)


def test_the_planning_mu_is_the_proved_one() -> None:
    for epsilon in ("0.05", "1", "3"):
        proved = float(proved_mu(parse_epsilon(epsilon), parse_delta("1e-5")))
        assert gaussian_mu(float(epsilon), 1e-5) == pytest.approx(proved, rel=1e-3)


def test_the_clip_level_is_a_little_more_than_a_typical_length() -> None:
    """Without a prior all energy may lie inside; with one, two fifths are expected to."""
    q = 20
    unit = torch.nn.functional.normalize(
        torch.randn(4000, q, generator=torch.Generator().manual_seed(0)), dim=1
    )
    typical = float(unit.abs().sum(1).mean())
    assert second_level(None, q) == pytest.approx(1.1 * typical, rel=0.05)
    prior = PriorStatistics(torch.ones(q), torch.ones(q), torch.eye(q), torch.zeros(q))
    assert second_level(prior, q) == pytest.approx(1.1 * typical * 0.4**0.5, rel=0.05)


def test_nonsense_is_told() -> None:
    with pytest.raises(UserError, match="two classes"):
        choose(100, 1, 1.0, 0, "replace-one", Plain(10))
    with pytest.raises(UserError, match="epsilon > 0"):
        choose(100, 2, 0.0, 0, "replace-one", Plain(10))
