"""Noise scales: the cost they must keep, and that the optimum is one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from adlm.errors import UserError
from adlm.privacy.clipping import ALLOCATIONS, noise_scales

positive = st.lists(st.floats(0.01, 100), min_size=2, max_size=12)


def expected_error(weight: npt.ArrayLike, scales: npt.ArrayLike) -> float:
    """Sum over released coordinates of w_j times the variance 2 b_j^2 of their noise."""
    w, b = np.asarray(weight, dtype=np.float64), np.asarray(scales, dtype=np.float64)
    kept = np.isfinite(b)
    return float((w[kept] * 2 * b[kept] ** 2).sum())


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


def test_coordinates_without_size_or_weight_get_infinite_scale() -> None:
    scales = noise_scales("optimal", [1, 0, 1], [1, 1, 0])
    assert np.isinf(scales).tolist() == [False, True, True]
    assert scales[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: noise_scales("quadratic", [1.0], [1.0]),
            "allocation must be one of identical, linear, optimal",
        ),
        (lambda: noise_scales("linear", [float("nan")], [1.0]), "finite numbers"),
        (lambda: noise_scales("optimal", [1.0], [1.0, 2.0]), "one length"),
        (lambda: noise_scales("optimal", [-1.0], [1.0]), "must not be negative"),
        (lambda: noise_scales("optimal", [0.0], [1.0]), "nothing to give a budget to"),
        (lambda: noise_scales("identical", [0.0], [1.0]), "nothing to give a budget to"),
    ],
)
def test_mistakes_are_told(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=message):
        call()
