"""A plan tells what to expect from public quantities alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.declared import AGE_COLUMN, ILL, WARD

from adlm.data import datasets
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import for_domain
from adlm.mechanism.forecast import _with_class_separation, forecast, table_noise
from adlm.mechanism.privatise import privatise
from adlm.model.head import GRADIENT_UNIT

FEATURES = for_domain(datasets.domain("digits"))


def test_more_budget_or_more_records_make_a_better_forecast() -> None:
    small, large = (forecast(FEATURES, 1437, 10, epsilon) for epsilon in ("0.05", "2"))
    assert small.accuracy < large.accuracy
    assert (small.signal_to_noise or 0.0) < (large.signal_to_noise or 0.0)
    assert forecast(FEATURES, 100, 10, "0.2").accuracy < forecast(FEATURES, 100_000, 10, "0.2").accuracy


def test_the_plan_is_the_one_that_the_release_follows() -> None:
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


def declared(neighbours: str = "replace-one") -> TableDomain:
    return replace(TableDomain.from_toml(AGE_COLUMN + WARD + ILL), neighbours=neighbours)


@pytest.mark.parametrize("delta", ["0", "1e-5"])
def test_the_noise_of_a_table_falls_with_epsilon_and_doubles_where_a_record_is_replaced(delta: str) -> None:
    one, four = (table_noise(declared(), 5000, epsilon, delta) for epsilon in ("1", "4"))
    added = table_noise(declared("add-remove"), 5000, "1", delta)
    assert one.records > 2 * four.records
    assert one.records == pytest.approx(2 * added.records, rel=0.02)  # the ridge costs the same under both
    assert one.plan.reasons


def test_the_noise_of_a_table_is_that_of_its_release() -> None:
    """The released gradients are sums on a grid; their noise is in the certificate, for one round."""
    found = table_noise(declared(), 2000, "2", "1e-5")
    generator = np.random.default_rng(0)
    batch = generator.random((2000, 4)).astype(np.float32), generator.integers(0, 2, 2000)
    release = privatise(lambda: [batch], domain=declared(), epsilon=2, delta="1e-5", seed=1)
    rounds = found.plan.rounds
    assert rounds is not None
    sd = release.certificate.settings["sd_gradients"] / GRADIENT_UNIT
    assert found.records == pytest.approx(sd / rounds.clip_norm / math.sqrt(rounds.rounds), rel=0.01)


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
