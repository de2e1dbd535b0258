"""A plan tells what to expect from public quantities alone."""

from __future__ import annotations

import math

import pytest
import torch
from tests.declared import AGE_COLUMN, ILL, WARD

from adlm.data import datasets
from adlm.errors import UserError
from adlm.features import for_domain
from adlm.mechanism.forecast import _with_class_separation, forecast

FEATURES = for_domain(datasets.domain("digits"))


def test_more_budget_or_more_records_make_a_better_forecast() -> None:
    small, large = (forecast(FEATURES, 1437, 10, epsilon) for epsilon in ("0.05", "2"))
    assert small.accuracy < large.accuracy
    assert (small.signal_to_noise or 0.0) < (large.signal_to_noise or 0.0)
    assert forecast(FEATURES, 100, 10, "0.2").accuracy < forecast(FEATURES, 100_000, 10, "0.2").accuracy


def test_the_plan_is_the_one_that_the_release_follows() -> None:
    from adlm import privatise

    train = datasets.load("digits", "train")
    made = privatise(train.x, train.y, domain=train.domain, epsilon=1)
    assert made.certificate.settings["plan"] == forecast(FEATURES, len(train), 10, 1).plan.to_dict()


def test_pure_epsilon_perturbs_the_loss_and_delta_buys_gradient_rounds() -> None:
    pure, approximate = (forecast(FEATURES, 60_000, 10, "0.5", delta, times=1) for delta in ("0", "1e-5"))
    assert pure.plan.objective is not None
    assert approximate.plan.rounds is not None


def test_classes_drawn_together_are_harder_and_their_records_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for apart in (0.5, 1.0):
        monkeypatch.setattr(FEATURES, "class_separation", apart)
        found.append(forecast(FEATURES, 60_000, 10, "0.5", "1e-5", times=2))
    assert found[0].accuracy < found[1].accuracy - 0.05
    less, more = (each.signal_to_noise or 0.0 for each in found)
    assert less == pytest.approx(more / 2)
    generator = torch.Generator().manual_seed(0)
    centres = 0.1 * torch.randn(10, 30, generator=generator, dtype=torch.float64) + 0.05
    rest = 1 - centres.square().sum(1).mean()
    for apart in (0.4, 1.0, 1.1):
        drawn, wider = _with_class_separation(centres, apart)
        torch.testing.assert_close(drawn - drawn.mean(0), apart * (centres - centres.mean(0)))
        assert float(drawn.square().sum(1).mean() + wider**2 * rest) == pytest.approx(1)


def test_impossible_sizes_are_one_sentence() -> None:
    with pytest.raises(UserError, match="at least one record"):
        forecast(FEATURES, 0, 10, 1)


def test_a_table_is_simulated_on_synthetic_records() -> None:
    from adlm.domain.table import TableDomain
    from adlm.mechanism.forecast import forecast_table

    table = TableDomain.from_toml(AGE_COLUMN + WARD + ILL)
    little, much = (forecast_table(table, 5000, epsilon) for epsilon in ("0.001", "4"))
    assert little.accuracy < much.accuracy <= much.ceiling + 0.02
    assert much.accuracy > 0.65
    assert much.plan.reasons


def test_noise_that_says_there_are_no_records_leaves_chance() -> None:
    """Under add-remove n is the sum of noisy counts, which at a tiny budget can be below zero."""
    assert forecast(FEATURES, 1437, 10, "0.02", 0, "add-remove").accuracy < 0.2


def test_class_sums_of_the_whole_budget_are_simulated_in_place_of_gradient_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = forecast(FEATURES, 60_000, 10, "1", "1e-5", times=2)
    assert found.plan.rounds is not None
    monkeypatch.setattr(FEATURES, "rounds_from", math.inf)
    sums = forecast(FEATURES, 60_000, 10, "1", "1e-5", times=2)
    assert sums.plan.rounds is None
    assert found.accuracy == sums.accuracy
