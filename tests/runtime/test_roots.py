"""Square roots are rounded to the side that keeps a bound a bound."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from adlm.runtime.arithmetic import root_down, root_up

STEP = Fraction(1, 10**12)


@given(st.fractions(min_value=0, max_value=10**9))
def test_the_root_rounded_up_is_never_below_and_next_to_the_true_one(value: Fraction) -> None:
    root = root_up(value)
    assert root * root >= value
    assert (root - 2 * STEP) ** 2 < value or root <= 2 * STEP


@given(st.fractions(min_value=0, max_value=10**9))
def test_the_root_rounded_down_is_never_above_and_next_to_the_true_one(value: Fraction) -> None:
    root = root_down(value)
    assert root * root <= value
    assert (root + 2 * STEP) ** 2 > value
