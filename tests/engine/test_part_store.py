"""Statements about what is kept of records between passes: the same from memory and from a nameless file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from adlm.engine.passes import Part, PartStore, Records
from adlm.errors import UserError


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
        for given in parts:
            store.append(given)
        assert store.rows == 106
        for index, given in enumerate(parts):
            for one, other in zip(store.read(index), given, strict=True):
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
