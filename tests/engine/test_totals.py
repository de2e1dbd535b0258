"""Statements about sums: exact for any number of records, in any order; what is released fits in 64 bits."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.domain import Domain
from adlm.engine.passes import (
    MOST,
    PART_ROWS,
    Keep,
    Partial,
    Records,
    Total,
    Totals,
    Transform,
    added,
    as_records,
    clamped,
    halved,
    keep_part,
    sum_part,
)
from adlm.features.identity import Identity
from adlm.mechanism.calibration import MomentConfig
from adlm.mechanism.class_sums import release
from adlm.mechanism.second_moments import Second, noisy_triangle
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.runtime import progress

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


class Crowd(Records):
    """As many copies of the same records as one likes: their sums are a multiple."""

    def __init__(self, inner: Records, times: int) -> None:
        self._inner, self._times = inner, times

    def total(self, partial: Partial, advance: progress.Advance | None = None) -> Totals | None:
        """Add up by doubling, as a merge would."""
        one = self._inner.total(partial)
        assert one is not None
        found: Totals | None = None
        power, times = one, self._times
        while times:
            if times & 1:
                found = power if found is None else tuple(a + b for a, b in zip(found, power, strict=True))
            power, times = tuple(a + a for a in power), times >> 1
        return found

    def keep(self, function: Keep, advance: progress.Advance | None = None) -> tuple[Records, Totals | None]:
        """Nothing is kept here."""
        raise NotImplementedError

    def mapped(self, transform: Transform) -> Records:
        """The same of mapped records."""
        return Crowd(self._inner.mapped(transform), self._times)


@pytest.mark.parametrize("pure", ["radial", "laplace"])
@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 10**12)])
def test_second_moments_of_ten_thousand_million_records_do_not_wrap(
    delta: Fraction, pure: Literal["radial", "laplace"]
) -> None:
    """Products of 10^10 records reach 2^73; in 64 bits they would be anything, even negative."""
    z = np.array([[0.8, 0.6], [0.6, 0.8]], dtype=np.float32)
    codes = np.array([0, 1])
    design = MomentConfig(Fraction(1), delta, 2, 1.0, second=Second(2), pure=pure)
    times = 5 * 10**9
    made = release(
        Crowd(as_records(lambda: [(z, codes)]), times),
        domain=Domain((2,), 0.0, 1.0, ("a", "b")),
        features=Identity((2,)),
        config=design,
        ledger=Ledger(),
        source=Source.seeded_with(1),
    )
    moments = made.moments()
    assert made.certificate.settings["n"] == 2 * times
    assert moments.second is not None
    share = design.second_clip()
    assert share is not None
    clipped = share.integers(z) * share.steps
    expected = times * (clipped.T @ clipped)
    np.testing.assert_allclose(np.triu(moments.second.numpy()), np.triu(expected), rtol=1e-4)
    first = share.integers(z)[:, 0].astype(np.int64)
    assert int(first @ first) * times > 2**64  # which 64 bits do not hold


def test_one_more_record_moves_a_wide_sum_by_its_own_products() -> None:
    """Sensitivity is about the exact sum; rounding comes after the noise."""
    source = [Source.seeded_with(3), Source.seeded_with(3)]
    wide = np.full((2, 2), 2**70, dtype=object)
    more = wide + np.array([[7, 5], [5, 3]], dtype=object)
    one, two = (noisy_triangle(v, "gaussian", 10, 14, s) for v, s in zip((wide, more), source, strict=True))
    assert (two - one).tolist() == [[7, 5], [0, 3]]
