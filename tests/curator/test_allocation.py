"""Budget ratios and noise scales: the sums they must keep, and that the optimum is one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from adlm.curator.allocation import ALLOCATIONS, budget_ratios, noise_scales
from adlm.errors import UserError

positive = st.lists(st.floats(0.01, 100), min_size=2, max_size=12)


def expected_error(weight: npt.ArrayLike, scales: npt.ArrayLike) -> float:
    """Sum over released coordinates of w_j times the variance 2 b_j^2 of their noise."""
    w, b = np.asarray(weight, dtype=np.float64), np.asarray(scales, dtype=np.float64)
    kept = np.isfinite(b)
    return float((w[kept] * 2 * b[kept] ** 2).sum())


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.sampled_from(ALLOCATIONS))
def test_ratios_are_never_negative_and_always_sum_to_d(relevance: list[float], allocation: str) -> None:
    beta = budget_ratios(allocation, relevance)
    assert (beta >= 0).all()
    assert beta.sum() == pytest.approx(len(relevance))


def test_linear_ratios_are_equation_15_term_by_term() -> None:
    relevance = [0.2, -0.5, 0.0, 1.3]
    total = sum(abs(r) for r in relevance)
    assert budget_ratios("linear", relevance) == pytest.approx([4 * abs(r) / total for r in relevance])


def test_identical_ratios_are_one_and_need_no_relevance() -> None:
    assert budget_ratios("identical", size=3).tolist() == [1, 1, 1]
    assert budget_ratios("identical", [0.1, 0.9]).tolist() == [1, 1]


def test_a_feature_without_relevance_is_withheld_and_its_budget_goes_to_the_others() -> None:
    for allocation in ("linear", "optimal"):
        with_it = budget_ratios(allocation, [0.0, 1.0, 3.0])
        without = budget_ratios(allocation, [1.0, 3.0])
        assert with_it[0] == 0
        assert with_it[1:] == pytest.approx(without * 3 / 2)


def test_when_nothing_is_relevant_all_features_are_alike() -> None:
    assert budget_ratios("linear", [0.0, 0.0]).tolist() == [1, 1]


@given(positive, st.sampled_from(ALLOCATIONS), st.floats(0.1, 10))
def test_the_typical_record_costs_what_was_asked(weight: list[float], allocation: str, cost: float) -> None:
    typical = np.linspace(0.5, 2, len(weight))
    scales = noise_scales(allocation, typical, weight, cost=cost)
    assert (typical / scales).sum() == pytest.approx(cost)


@given(positive)
def test_the_optimal_scales_are_a_minimum_that_a_numerical_search_cannot_beat(weight: list[float]) -> None:
    typical = np.linspace(0.5, 2, len(weight))
    w = np.array(weight)

    def error(logs: np.ndarray) -> float:
        b = np.exp(logs)
        b *= (typical / b).sum()
        return expected_error(w, b)

    found = expected_error(w, noise_scales("optimal", typical, w))
    searched = minimize(error, np.zeros(len(w)), method="BFGS").fun
    assert found <= searched * (1 + 1e-6)
    assert found <= expected_error(w, noise_scales("identical", typical, w)) * (1 + 1e-9)
    assert found <= expected_error(w, noise_scales("linear", typical, w)) * (1 + 1e-9)


def test_ratios_and_scales_agree_for_features_of_range_one() -> None:
    relevance = np.array([0.1, 0.7, 0.4])
    for allocation in ALLOCATIONS:
        scales = noise_scales(allocation, np.ones(3), relevance**2, cost=3)
        assert 1 / scales == pytest.approx(budget_ratios(allocation, relevance))


def test_the_paper_allocation_loses_to_identical_noise_when_errors_cost_the_relevance_itself() -> None:
    weight = np.array([1e-4, 1.0])  # w = |R|, so the paper's eps_j is proportional to w, not to its root
    linear = 1 / budget_ratios("linear", weight)
    assert expected_error(weight, linear) > expected_error(weight, np.ones(2))


def test_coordinates_without_size_or_weight_get_infinite_scale() -> None:
    scales = noise_scales("optimal", [1, 0, 1], [1, 1, 0])
    assert np.isinf(scales).tolist() == [False, True, True]
    assert scales[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: budget_ratios("quadratic", [1.0]), "allocation must be one of identical, linear, optimal"),
        (lambda: budget_ratios("linear"), "needs the relevance"),
        (lambda: budget_ratios("linear", [float("nan")]), "finite numbers"),
        (lambda: noise_scales("optimal", [1.0], [1.0, 2.0]), "one length"),
        (lambda: noise_scales("optimal", [-1.0], [1.0]), "must not be negative"),
        (lambda: noise_scales("optimal", [0.0], [1.0]), "nothing to give a budget to"),
        (lambda: noise_scales("identical", [0.0], [1.0]), "nothing to give a budget to"),
    ],
)
def test_mistakes_are_told(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=message):
        call()
