"""Statements about sums: exact for any number of records, in any order; what is released fits in 64 bits."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from adlm.engine.passes import (
    MOST,
    PART_ROWS,
    Total,
    added,
    clamped,
    halved,
    keep_part,
    sum_part,
)
from adlm.mechanism.class_sums import TriangleStage
from adlm.privacy.noise import Source

WHOLE = st.integers(-(2**62), 2**62)


@given(st.lists(st.lists(WHOLE, min_size=2, max_size=2), min_size=1, max_size=40), st.randoms())
def test_sums_are_those_of_unbounded_integers_in_any_order(rows: list[list[int]], chance: object) -> None:
    parts = [(Total.of(np.array(row, dtype=np.int64)),) for row in rows]
    chance.shuffle(parts)  # type: ignore[attr-defined]
    total = added(parts)
    assert total is not None
    assert [int(v) for v in total[0].integers()] == [sum(row[i] for row in rows) for i in (0, 1)]


@given(st.lists(st.integers(-(2**90), 2**90), min_size=1, max_size=5))
def test_what_is_too_large_is_halved_until_it_fits_and_says_so(values: list[int]) -> None:
    noisy = np.array(values, dtype=object)
    fitted, bits = halved(noisy)
    assert bits % 2 == 0
    assert fitted.dtype == np.int64
    assert [int(v) for v in fitted] == [v >> bits for v in values]
    assert bits == 0 or max(map(abs, values)) >> bits >= MOST >> 3
    assert [int(v) for v in clamped(noisy)] == [min(max(v, -MOST), MOST) for v in values]


def test_a_part_of_any_number_of_records_is_summed_exactly() -> None:
    """An engine's part can have 2^21 records, whose sum does not fit in 64 bits."""
    part, largest = (np.zeros((1 << 21, 0), dtype=np.float32),), (1 << 47) - 1
    assert largest * PART_ROWS < 1 << 63 < largest * len(part[0])

    def count(block: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return (np.array([largest * len(block[0])]),)

    assert sum_part(part, (), count)[0].integers().tolist() == [largest << 21]
    kept, sums = keep_part(part, (), lambda block: (block, count(block)))
    assert len(kept[0]) == 1 << 21
    assert sums[0].integers().tolist() == [largest << 21]


def triangle(products: NDArray[Any], source: Source) -> NDArray[Any]:
    """Noisy second moments of some products."""
    nothing: Any = None
    stage = TriangleStage("products", Fraction(1), "gaussian", Fraction(1), "docs", nothing, nothing)
    return stage.noisy(products, 14, source)


def test_second_moments_of_ten_thousand_million_records_do_not_wrap() -> None:
    """Products of 10^10 records reach 2^73; in 64 bits they would be anything, even negative."""
    rows, times = np.array([[800_000, 600_000], [600_000, 800_000]]), 5 * 10**9
    products, total, left = rows.T @ rows, Total.of(np.zeros((2, 2), dtype=np.int64)), times
    power = Total.of(products)
    while left:  # as many copies of both records, added by doubling
        total = total + power if left & 1 else total
        power, left = power + power, left >> 1
    exact = total.integers()
    assert (exact == products.astype(object) * times).all()
    assert exact.max() > 2**64
    noisy = triangle(exact, Source.seeded_with(1)).astype(float)
    assert noisy.max() < 2**63
    np.testing.assert_allclose(noisy[0] / noisy[0, 0], (exact[0] / exact[0, 0]).astype(float), rtol=1e-9)


def test_one_more_record_moves_a_wide_sum_by_its_own_products() -> None:
    """Sensitivity is about the exact sum; rounding comes after the noise."""
    wide = np.full((2, 2), 2**61, dtype=object)
    more = wide + np.array([[7, 5], [5, 3]], dtype=object)
    one, two = (triangle(products, Source.seeded_with(3)) for products in (wide, more))
    assert (two - one).tolist() == [[7, 5], [0, 3]]
