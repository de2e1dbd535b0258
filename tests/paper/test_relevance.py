"""The private relevance: scaling, Lemma 1, noise, what the network's provenance does to the proof; ratios."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.paper.relevance import (
    STEPS,
    RelevanceSource,
    budget_ratios,
    private_relevance,
    relevance_charge,
    relevance_sum,
    scaled,
)
from adlm.paper.relevance import relevance as propagate
from adlm.privacy.accounting import Budget, compose
from adlm.privacy.clipping import ALLOCATIONS, noise_scales
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source

D = 6
DOMAIN = Domain(shape=(2, 3), lower=0.0, upper=10.0, classes=("a", "b"))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(D, 5), nn.ReLU(), nn.Linear(5, 2))


def records(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 10, (n, 2, 3))


def released(x: np.ndarray, ledger: Ledger | None = None, **changes):  # type: ignore[no-untyped-def]
    explained = RelevanceSource(network(), changes.pop("provenance", "public"))
    given: dict[str, Any] = {"epsilon": Fraction(1), "source": Source.seeded_with(1)} | changes
    return private_relevance(explained, x, DOMAIN, ledger=ledger or Ledger(), **given)


def test_the_sum_is_that_of_min_max_scaled_relevances_one_record_at_a_time() -> None:
    x = records(7)
    expected = np.zeros(D)
    for record in x:
        found = propagate(network(), torch.tensor(record / 10, dtype=torch.float32)[None]).features.flatten()
        expected += ((found - found.min()) / (found.max() - found.min())).numpy()
    assert relevance_sum(network(), x, DOMAIN) / STEPS == pytest.approx(expected, abs=1e-4)


def test_scaled_relevances_span_zero_to_one_and_strange_values_do_no_harm() -> None:
    rows = torch.tensor([[3.0, -1.0, 1.0], [2.0, 2.0, 2.0], [math.nan, math.inf, 1.0], [-1e308, 1e308, 0.0]])
    found = scaled(rows.double())
    assert found[0].tolist() == [1, 0, 0.5]
    assert found[1].tolist() == [0, 0, 0]
    assert bool(((found >= 0) & (found <= 1)).all())


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 5), st.lists(st.floats(-1e6, 1e6), min_size=D, max_size=D))
def test_replacing_one_record_moves_the_sums_within_the_stated_sensitivity(
    at: int, values: list[float]
) -> None:
    x = records(6)
    charge = relevance_charge(DOMAIN, 6, Fraction(1))
    other = x.copy()
    other[at] = np.reshape(values, (2, 3))
    moved = np.abs(relevance_sum(network(), x, DOMAIN) - relevance_sum(network(), other, DOMAIN)).sum()
    assert moved <= charge.sensitivity


def test_the_paper_charge_is_half_of_what_it_claims_and_the_tight_one_is_all_of_it() -> None:
    for sensitivity, proved in (("paper", Fraction(1, 2)), ("tight", Fraction(1))):
        (charge,) = released(records(9), sensitivity=sensitivity).charges
        assert charge.epsilon_proved == proved
        assert charge.claimed == 1
        factor = 2 if sensitivity == "paper" else 1
        assert charge.scale / STEPS / 9 == Fraction(factor * D, 9)  # Delta_R / eps1 on the average


def test_noise_has_the_scale_of_lemma_2() -> None:
    """Mean |noise| over 180 draws against 2d/(n eps): a false alarm is a 6-sigma event, below 1e-8."""
    x, clean = records(2), relevance_sum(network(), records(2), DOMAIN) / STEPS / 2
    source = Source.system()
    noise = np.abs([released(x, source=source).values - clean for _ in range(30)])
    expected = 2 * D / 2
    assert abs(noise.mean() - expected) < 6 * expected / math.sqrt(noise.size)


def test_a_subset_is_drawn_at_random_and_has_its_own_size_in_the_sensitivity() -> None:
    x = records(9)
    part = released(x, rows=4)
    assert part.settings["relevance_records"] == 4
    assert part.charges[0].what.endswith("over 4 records")
    source = Source.seeded_with(1)
    chosen = source.permutation(9)[:4]
    assert chosen.tolist() != [0, 1, 2, 3]
    noise = source.laplace(D, part.charges[0].scale)
    total = relevance_sum(network(), x[chosen], DOMAIN)
    assert part.values == pytest.approx((total + noise) / (4 * STEPS))


def test_a_private_network_makes_the_proved_epsilon_infinite_and_says_why() -> None:
    (charge,) = released(records(4), provenance="private").charges
    assert math.isinf(charge.epsilon_proved)
    assert charge.claimed == 1
    assert "trained on private records" in compose([charge]).sentence()


def test_a_network_with_a_certificate_brings_its_charges_along() -> None:
    from adlm.privacy.release import Release

    first = released(records(4))
    certificate = Release.make(
        {"t": torch.zeros(1)}, kind="records", domain=DOMAIN, features={}, settings={}, charges=first.charges
    ).certificate
    second = released(records(4), provenance=certificate)
    assert compose(second.charges).epsilon_proved == 1
    assert str(second.settings["relevance_network"]).startswith("certificate ")


def test_provenance_has_no_default_and_only_three_values() -> None:
    with pytest.raises(TypeError, match="provenance"):
        RelevanceSource(network())  # type: ignore[call-arg]
    with pytest.raises(UserError, match="'public', 'private' or a certificate"):
        released(records(4), provenance="trusted")


def test_an_overspent_ledger_stops_the_release_before_noise_is_drawn() -> None:
    class Silent(Source):
        def octets(self, count: int):  # type: ignore[no-untyped-def]
            raise AssertionError("noise was drawn")

    ledger = Ledger(budget=Budget(Fraction(1, 10)))
    with pytest.raises(UserError, match="overspent"):
        released(records(4), ledger, source=Silent(bytes(32), seeded=True))
    assert ledger.charges == ()


class OverTheBatch(nn.Module):
    """Min-max over the batch: harmless on a release, fatal on records."""

    lrp_pass_through = True

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return (h - h.amin(0)) / (h.amax(0) - h.amin(0) + 1e-6)


def test_a_network_that_couples_records_is_refused_before_anything_is_charged() -> None:
    coupled, ledger = nn.Sequential(nn.Flatten(), OverTheBatch(), nn.Linear(D, 2)), Ledger()
    with pytest.raises(UserError, match="depends on the other records"):
        private_relevance(
            RelevanceSource(coupled, "public"),
            records(4),
            DOMAIN,
            epsilon=Fraction(1),
            ledger=ledger,
            source=Source.system(),
        )
    assert ledger.charges == ()


class Capacity(nn.Module):
    """Takes eight records of a batch, as experts with a capacity do; the probe has no more."""

    lrp_pass_through = True

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h * (torch.arange(len(h)) < 8)[:, None]


def test_a_network_explains_each_record_alone_also_where_its_batches_would_couple_them() -> None:
    crowded, x = nn.Sequential(nn.Flatten(), Capacity(), nn.Linear(D, 2)), records(12)
    alone = sum(relevance_sum(crowded, x[i : i + 1], DOMAIN) for i in range(12))
    assert relevance_sum(crowded, x, DOMAIN).tolist() == np.asarray(alone).tolist()
    assert relevance_sum(crowded, x[8:], DOMAIN).any()


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.sampled_from(ALLOCATIONS))
def test_ratios_are_never_negative_and_always_sum_to_d(relevance: list[float], allocation: str) -> None:
    beta = budget_ratios(allocation, relevance)
    assert (beta >= 0).all()
    assert beta.sum() == pytest.approx(len(relevance))


def test_linear_ratios_are_equation_15_term_by_term() -> None:
    relevance = [0.2, -0.5, 0.0, 1.3]
    total = sum(abs(r) for r in relevance)
    assert budget_ratios("linear", relevance) == pytest.approx([4 * abs(r) / total for r in relevance])
    assert budget_ratios("identical", size=3).tolist() == [1, 1, 1]
    assert (
        budget_ratios("identical", [0.1, 0.9]).tolist()
        == budget_ratios("linear", [0.0, 0.0]).tolist()
        == [1, 1]
    )


def test_a_feature_without_relevance_is_withheld_and_its_budget_goes_to_the_others() -> None:
    for allocation in ("linear", "optimal"):
        with_it = budget_ratios(allocation, [0.0, 1.0, 3.0])
        without = budget_ratios(allocation, [1.0, 3.0])
        assert with_it[0] == 0
        assert with_it[1:] == pytest.approx(without * 3 / 2)


def test_ratios_and_scales_agree_for_features_of_range_one() -> None:
    relevance = np.array([0.1, 0.7, 0.4])
    for allocation in ALLOCATIONS:
        scales = noise_scales(allocation, np.ones(3), relevance**2, cost=3)
        assert 1 / scales == pytest.approx(budget_ratios(allocation, relevance))


def test_the_paper_allocation_loses_to_identical_noise_when_errors_cost_the_relevance_itself() -> None:
    weight = np.array([1e-4, 1.0])  # w = |R|, so the paper's eps_j is proportional to w, not to its root
    scales = 1 / budget_ratios("linear", weight)
    assert (
        weight * scales**2
    ).sum() > weight.sum()  # error sum_j w_j b_j^2, with b_j = 1 for identical noise


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="between 1 and 4 records"):
        released(records(4), rows=5)
    with pytest.raises(UserError, match="sensitivity must be one of paper, tight"):
        released(records(4), sensitivity="loose")
    with pytest.raises(UserError, match="allocation must be one of identical, linear, optimal"):
        budget_ratios("quadratic", [1.0])
    with pytest.raises(UserError, match="needs the relevance"):
        budget_ratios("linear")
    with pytest.raises(UserError, match="finite numbers"):
        budget_ratios("linear", [float("nan")])
