"""The planner: public quantities in, settings out, which grow and shrink as they should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from adlm.errors import UserError
from adlm.features import Features, Narrowed
from adlm.features.drawn import PriorProjection
from adlm.mechanism.planner import SETTLED, Plan, fewer_rounds, plan_arrays, plan_class_sums
from adlm.model.head import GradientRounds

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


def sums(
    width: int, n: int, classes: int, epsilon: float, delta: float, relation: str = "replace-one"
) -> Plan:
    return plan_class_sums(Plain(width), n, classes, epsilon, delta, relation)


def test_gradient_rounds_come_with_the_signal_and_their_path_follows_it() -> None:
    features = Plain(400)
    chosen = [
        plan_arrays(features, 60_000, 10, e, 1e-5, "replace-one") for e in (0.01, 0.05, 0.5, 3.0, 100.0)
    ]
    assert [p.rounds is not None for p in chosen] == [False, True, True, True, True]
    paths = [p.rounds.step * p.rounds.rounds / (1 - p.rounds.momentum) for p in chosen if p.rounds]
    assert paths == sorted(paths)
    assert plan_arrays(features, 60_000, 10, 3.0, 0.0, "replace-one").method == "perturbed loss"


@pytest.mark.parametrize("width", [3, 64, 400, 1200])
@pytest.mark.parametrize("n", [50, 1797, 60000])
@pytest.mark.parametrize("classes", [2, 5, 10])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_every_plan_can_be_followed(width: int, n: int, classes: int, delta: float) -> None:
    for epsilon in EPSILONS:
        plan = sums(width, n, classes, epsilon, delta)
        assert 1 <= plan.k <= width
        assert plan.noise == ("gaussian" if delta else "radial")
        assert plan.reasons
        assert all(reason for reason in plan.reasons)
        assert Plan.from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_more_budget_never_means_fewer_coordinates(delta: float) -> None:
    chosen = [sums(400, 60000, 10, epsilon, delta).k for epsilon in EPSILONS]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


def test_records_and_budget_buy_the_same() -> None:
    """Noise on a mean depends on epsilon times n: ten times the records at a tenth of the budget."""
    assert sums(400, 6000, 10, 1.0, 0).k == sums(400, 60000, 10, 0.1, 0).k


def test_add_remove_costs_half() -> None:
    assert sums(400, 60000, 10, 0.1, 0, "add-remove").k == sums(400, 60000, 10, 0.2, 0).k


def test_impossible_quantities_are_one_sentence() -> None:
    with pytest.raises(UserError, match="two classes"):
        sums(10, 100, 1, 1.0, 0)
    with pytest.raises(UserError, match="epsilon > 0"):
        sums(10, 100, 2, 0.0, 0)
    with pytest.raises(UserError, match="cannot be read"):
        Plan.from_dict({"method": "class sums"})


def test_rounds_of_a_weak_signal_keep_fewer_coordinates() -> None:
    features = PriorProjection("drawn")
    kept = [plan_arrays(features, 60_000, 10, epsilon, 1e-5, "replace-one").k for epsilon in (0.02, 0.5, 8)]
    assert kept == [60, 155, 300]
    garments = PriorProjection("garments")
    assert garments.rounds_width(100.0) == 400
    assert Narrowed(garments, 100).rounds_width(100.0) == 100


def test_many_records_are_gone_over_in_fewer_and_longer_rounds_of_the_same_path() -> None:
    few = GradientRounds(200, 1.0, 8.0, SETTLED.many_records, momentum=0.97)
    assert fewer_rounds(few) == few
    twice = fewer_rounds(GradientRounds(200, 1.0, 8.0, 2 * SETTLED.many_records, momentum=0.97))
    assert (twice.rounds, twice.step) == (100, 16.0)
    most = fewer_rounds(GradientRounds(200, 1.0, 8.0, 100 * SETTLED.many_records, momentum=0.97))
    assert most.rounds == SETTLED.least_rounds
    assert most.rounds * most.step == 200 * 8.0
    assert most.momentum == 0.94
    assert fewer_rounds(GradientRounds(30, 1.0, 8.0, 100 * SETTLED.many_records)).rounds == 30


def test_wide_tables_of_very_many_records_have_fewer_rounds_still_and_longer_steps() -> None:
    few = GradientRounds(200, 1.0, 8.0, 2 * SETTLED.many_records, momentum=0.97)
    assert fewer_rounds(few, SETTLED.wide_columns) == fewer_rounds(few)
    many = replace(few, size=5 * SETTLED.many_records // 2)
    fewer, narrow = fewer_rounds(many, SETTLED.wide_columns), fewer_rounds(many, SETTLED.wide_columns - 1)
    assert (fewer.rounds, narrow.rounds) == (64, 80)
    path = few.rounds * few.step / (1 - few.momentum)  # what noise does to a score
    assert fewer.rounds * fewer.step / (1 - fewer.momentum) == pytest.approx(path, rel=1e-3)
    most = fewer_rounds(replace(few, size=100 * SETTLED.many_records), SETTLED.wide_columns)
    assert (most.rounds, most.step) == (SETTLED.wide_least_rounds, SETTLED.wide_step * SETTLED.clip_norm)
