"""Passes over records on this machine: exact sums, and what is kept of records between passes."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from adlm.engine.passes import (
    MOST,
    PART_ROWS,
    Part,
    PartStore,
    Records,
    Total,
    added,
    clamped,
    halved,
    keep_part,
    sum_part,
)
from adlm.errors import UserError
from adlm.mechanism.class_sums import TriangleStage
from adlm.privacy.noise import Source

ROOT = Path(__file__).parents[2]


def threads_of_libraries() -> list[int]:
    """How many threads OpenMP and BLAS would use in the threads of a pass over eight parts."""
    found: set[int] = set()

    def work(part: Part) -> tuple[NDArray[Any], ...]:
        found.update(entry["num_threads"] for entry in threadpool_info())
        return (part[0].astype(np.int64).sum(0),)

    store = PartStore()
    for _ in range(8):
        store.append((np.ones((4, 1), dtype=np.int16),))
    records = Records(store)
    total = records.total(work)
    records.close()
    assert total is not None
    assert total[0].integers().tolist() == [32]
    return sorted(found)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one core")
def test_libraries_use_one_thread_inside_each_thread_of_a_pass() -> None:
    """OpenMP has a number of threads for each thread: what the main thread sets does not hold in others."""
    code = "from tests.engine.test_passes import threads_of_libraries; print(threads_of_libraries())"
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1]"


# ---- Sums: exact for any number of records, in any order; what is released fits in 64 bits


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


# ---- What is kept of records between passes: the same from memory and from a nameless file


def part(seed: int, rows: int) -> Part:
    rng = np.random.default_rng(seed)
    return (
        rng.integers(-9, 9, (rows, 3)).astype(np.int16),
        rng.random(rows),
        rng.integers(0, 2, rows, np.int32),
    )


def test_parts_come_back_as_they_were_from_memory_and_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path))
    parts = [part(i, rows) for i, rows in enumerate((5, 0, 100, 1))]
    for most in (1 << 20, 50, 0):
        store = PartStore(most)
        for kept in parts:
            store.append(kept)
        assert store.rows == 106
        for index, kept in enumerate(parts):
            for one, other in zip(store.read(index), kept, strict=True):
                assert one.dtype == other.dtype
                assert np.array_equal(one, other)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        store.close()
    folder = next(path for path in tmp_path.rglob("*") if path.is_dir())
    assert folder.stat().st_mode & 0o077 == 0


def test_memory_does_not_grow_with_what_is_kept_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numpy's peak over a pass, for a store and for one four times as large."""
    import tracemalloc

    monkeypatch.setenv("ADLM_CACHE", str(tmp_path))
    peaks = []
    for times in (40, 160):
        store = PartStore(0)
        for _ in range(times):
            store.append((np.ones((1 << 14, 8), np.int16),))
        tracemalloc.start()
        total = Records(store).total(lambda p: (p[0].sum(0, dtype=np.int64),))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert total is not None
        assert total[0].integers().tolist() == [times << 14] * 8
        store.close()
    assert peaks[1] < 1.3 * peaks[0]


def test_parts_in_the_file_hold_one_file_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path))
    store = PartStore(0)
    for seed in range(300):
        store.append(part(seed, 3))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        kept = [store.read(index) for index in range(len(store))]
        store.append(part(300, 3))  # the file grows after it was mapped
        kept.append(store.read(300))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for seed, found in enumerate(kept):
        assert all(np.array_equal(a, b) for a, b in zip(found, part(seed, 3), strict=True))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path))
    store = PartStore(0)
    monkeypatch.setattr(
        "tempfile.TemporaryFile", lambda **given: os.fdopen(os.open("/dev/full", os.O_RDWR), "r+b", 0)
    )
    with pytest.raises(UserError, match="free room there, or set ADLM_CACHE to another folder"):
        store.append(part(0, 5))
