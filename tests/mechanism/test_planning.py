"""The rule: public quantities in, settings out, and they grow and shrink the way they should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.features import Features, Narrowed
from adlm.features.prior import PriorProjection
from adlm.mechanism.planning import (
    BROAD,
    CLIP_NORM,
    LEAST_ROUNDS,
    MANY_RECORDS,
    WIDE_COLUMNS,
    WIDE_LEAST_ROUNDS,
    WIDE_STEP,
    MomentPlan,
    energy_inside,
    energy_within,
    fewer_rounds,
    plan_moments,
)
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


def plans(
    width: int, n: int, classes: int, delta: float, neighbours: str = "replace-one"
) -> list[MomentPlan]:
    features = Plain(width)
    return [
        plan_moments(n, classes, epsilon, delta, neighbours, features, rounds=False) for epsilon in EPSILONS
    ]


def test_gradient_rounds_come_with_the_signal_and_their_path_follows_it() -> None:
    features = Plain(400)
    chosen = [
        plan_moments(60_000, 10, e, 1e-5, "replace-one", features) for e in (0.01, 0.05, 0.5, 3.0, 100.0)
    ]
    assert [p.rounds is not None for p in chosen] == [False, True, True, True, True]
    paths = [p.rounds.step * p.rounds.rounds / (1 - p.rounds.momentum) for p in chosen if p.rounds]
    assert paths == sorted(paths)
    assert plan_moments(60_000, 10, 3.0, 0.0, "replace-one", features).rounds is None


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
        assert plan.second_clip_norm > 0
        assert plan.reasons
        assert all(reason for reason in plan.reasons)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_more_budget_never_means_fewer_coordinates(delta: float) -> None:
    """Until products across the basis come in, which cost more the more coordinates there are."""
    chosen = plans(400, 60000, 10, delta)
    for some in (
        [p.k for p in chosen if not p.cross_clip_norms],
        [p.k for p in chosen if p.cross_clip_norms],
    ):
        assert some == sorted(some)
    assert chosen[0].q == 0
    assert chosen[-1].q > 0
    first = next(i for i, p in enumerate(chosen) if p.q)
    assert all(p.q for p in chosen[first:])


def test_records_and_budget_buy_the_same() -> None:
    """Noise on a mean depends on epsilon times n: ten times the records at a tenth of the budget."""
    few, many = (
        plan_moments(6000, 10, 1.0, 0, "replace-one", Plain(400)),
        plan_moments(60000, 10, 0.1, 0, "replace-one", Plain(400)),
    )
    assert (few.k, few.q) == (many.k, many.q)


def test_add_remove_costs_half() -> None:
    once, twice = (
        plan_moments(60000, 10, 0.1, 0, "add-remove", Plain(400)),
        plan_moments(60000, 10, 0.2, 0, "replace-one", Plain(400)),
    )
    assert (once.k, once.q) == (twice.k, twice.q)


def test_the_energy_around_class_means_is_that_of_synthetic_records() -> None:
    """Against records of the random process itself; real classes are taken to be no narrower than BROAD."""
    features = PriorProjection("drawn", width=800)
    assert features.prior is not None
    records = features.synthetic(60, 30, seed=5)[:, :, :600]
    records = torch.nn.functional.normalize(records, dim=2)
    around = (records - records.mean(1, keepdim=True)).square().sum(2).mean() * 30 / 29
    assert around > BROAD
    assert energy_within(features.prior, 600) == pytest.approx(float(around), rel=0.05)
    assert energy_within(features.prior, 5) == BROAD
    assert energy_within(None, 200) == 1.0
    assert energy_inside(0.6, 100, 100, 10) == 0.6
    assert energy_inside(0.6, 100, 20, 10) < 0.2


def test_second_moments_are_taken_around_means_where_these_hold_much_of_a_record() -> None:
    near = plan_moments(60_000, 10, 0.5, 1e-5, "replace-one", PriorProjection("drawn"), rounds=False)
    assert (near.q, near.around) == (near.k, "means")
    far = plan_moments(
        60_000, 10, 0.5, 1e-5, "replace-one", Plain(400), rounds=False
    )  # nothing is known of these
    assert (far.q, far.around, far.second_clip_norm) == (far.k, "origin", 1.0)


def test_products_across_the_basis_come_with_large_budgets() -> None:
    features = PriorProjection("drawn")
    small, large = (plan_moments(60_000, 10, epsilon, 0, "replace-one", features) for epsilon in (0.5, 3.0))
    assert small.cross_clip_norms is None
    assert large.cross_clip_norms is not None
    assert large.q < large.k
    assert 0 < large.cross_share < 1


def test_nonsense_is_told() -> None:
    with pytest.raises(UserError, match="two classes"):
        plan_moments(100, 1, 1.0, 0, "replace-one", Plain(10))
    with pytest.raises(UserError, match="epsilon > 0"):
        plan_moments(100, 2, 0.0, 0, "replace-one", Plain(10))


def test_rounds_of_a_weak_signal_keep_fewer_coordinates() -> None:
    features = PriorProjection("drawn")
    kept = [plan_moments(60_000, 10, epsilon, 1e-5, "replace-one", features).k for epsilon in (0.02, 0.5, 8)]
    assert kept == [160, 300, 300]
    garments = PriorProjection("garments")
    assert garments.rounds_width(100.0) == 400
    assert Narrowed(garments, 100).rounds_width(100.0) == 100


def test_many_records_are_gone_over_in_fewer_and_longer_rounds_of_the_same_path() -> None:
    few = GradientRounds(200, 1.0, 8.0, MANY_RECORDS, momentum=0.97)
    assert fewer_rounds(few) == few
    twice = fewer_rounds(GradientRounds(200, 1.0, 8.0, 2 * MANY_RECORDS, momentum=0.97))
    assert (twice.rounds, twice.step) == (100, 16.0)
    most = fewer_rounds(GradientRounds(200, 1.0, 8.0, 100 * MANY_RECORDS, momentum=0.97))
    assert most.rounds == LEAST_ROUNDS
    assert most.rounds * most.step == 200 * 8.0
    assert most.momentum == 0.94
    assert fewer_rounds(GradientRounds(30, 1.0, 8.0, 100 * MANY_RECORDS)).rounds == 30


def test_wide_tables_of_very_many_records_have_fewer_rounds_still_and_longer_steps() -> None:
    few = GradientRounds(200, 1.0, 8.0, 2 * MANY_RECORDS, momentum=0.97)
    assert fewer_rounds(few, WIDE_COLUMNS) == fewer_rounds(few)
    many = replace(few, size=5 * MANY_RECORDS // 2)
    fewer, narrow = fewer_rounds(many, WIDE_COLUMNS), fewer_rounds(many, WIDE_COLUMNS - 1)
    assert (fewer.rounds, narrow.rounds) == (64, 80)
    path = few.rounds * few.step / (1 - few.momentum)  # what noise does to a score
    assert fewer.rounds * fewer.step / (1 - fewer.momentum) == pytest.approx(path, rel=1e-3)
    most = fewer_rounds(replace(few, size=100 * MANY_RECORDS), WIDE_COLUMNS)
    assert (most.rounds, most.step) == (WIDE_LEAST_ROUNDS, WIDE_STEP * CLIP_NORM)
