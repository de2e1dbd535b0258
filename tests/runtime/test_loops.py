"""Compiled loops give the bits of slow twins in NumPy, and those of plain Python."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.features.test_scaled_table import encoded, made_table

from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features.tables import ScaledTable, TableIndicators, frequencies
from adlm.mechanism.class_sums import add_class_sums
from adlm.mechanism.gradient_rounds import GradientClip, PredictedSum, RightCount, feature_integers, stored
from adlm.model.head import FEATURE_UNIT, LARGEST_WEIGHT, RESIDUAL_UNIT, WEIGHT_UNIT, Head
from adlm.privacy.clipping import FARTHEST, Clip
from adlm.runtime import arithmetic as exact
from adlm.runtime import loops
from adlm.runtime.compiled import Compiled

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Small = npt.NDArray[np.int16]


# ---- Clips


def clipped(clip: Clip, values: npt.NDArray[Any]) -> Reals:
    """The slow twin of `Clip.integers`: all rows at once, norms by NumPy's sums."""

    def norms(rows: Reals) -> Reals:
        return np.asarray(abs(rows).sum(1) if clip.norm == "l1" else np.sqrt((rows * rows).sum(1)))

    def outside(rows: Reals) -> npt.NDArray[np.bool_]:
        sizes = abs(rows).sum(1) if clip.norm == "l1" else (rows * rows).sum(1)  # of integers: exact
        return np.asarray(sizes > clip.feature_norm_bound ** (1 if clip.norm == "l1" else 2))

    ratio = np.clip(values.astype(np.float64) / clip.steps, -FARTHEST, FARTHEST)
    shrink = np.minimum(1.0, clip.feature_norm_bound / np.maximum(norms(ratio), 1e-300))
    rows = np.trunc(ratio * shrink[:, None])
    while (over := outside(rows)).any():
        shrink[over] *= 1 - 2.0**-30
        rows[over] = np.trunc(ratio[over] * shrink[over, None])
    return rows


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clipped_rows_are_those_of_the_twin(norm: Any, dtype: Any) -> None:
    """Inside the ball, on its edge, far outside, and at every width where NumPy adds up differently."""
    rng = np.random.default_rng(0)
    for width in (1, 2, 7, 8, 9, 127, 128, 129, 136, 230, 257, 1000):
        rows = rng.normal(size=(300, width)) / np.sqrt(width)
        rows[:100] /= np.linalg.norm(rows[:100], axis=1, keepdims=True)
        rows[100:200] *= 10.0 ** rng.integers(-3, 9, (100, 1))
        rows[200:210] = 0.0
        for scales in ((1.0,) * width, tuple(rng.random(width) + 0.1)):
            clip, given_rows = Clip(norm, scales, 1.0, 0.2), rows.astype(dtype)
            assert clip.integers(given_rows).tobytes() == clipped(clip, given_rows).tobytes()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from(["l1", "l2"]))
def test_no_row_leaves_its_ball(width: int, seed: int, norm: Any) -> None:
    rng = np.random.default_rng(seed)
    clip = Clip(norm, tuple(rng.random(width) + 0.01), float(rng.random() + 0.01), 0.3)
    rows = rng.normal(size=(50, width)) * 10.0 ** rng.integers(-6, 7, (50, 1))
    exact_rows = [[int(v) for v in row] for row in clip.integers(rows).tolist()]
    sizes = [sum(map(abs, row)) if norm == "l1" else sum(v * v for v in row) for row in exact_rows]
    assert max(sizes) <= clip.feature_norm_bound ** (1 if norm == "l1" else 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_and_one_too_far_is_clipped(bad: float) -> None:
    clip, rows = Clip("l2", (1.0, 1.0), 1.0), np.zeros((4, 2))
    rows[2, 1] = bad
    with pytest.raises(UserError, match="not a finite number"):
        clip.integers(rows)
    with pytest.raises(UserError, match="not a finite number"):
        stored(rows, np.zeros(4, dtype=np.int64), GradientClip(0.5, 0.25))
    rows[2, 1] = 1e300
    assert clip.integers(rows).tobytes() == clipped(clip, rows).tobytes()


def test_numbers_of_every_type_and_order_are_read() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4))
    clip = Clip("l2", (1.0,) * 4, 1.0)
    for odd in (
        rows.astype(np.float16),
        rows.astype(">f8"),
        np.asfortranarray(rows),
        rows > 0,
        rows[:, ::-1],
    ):
        assert clip.integers(odd).tobytes() == clipped(clip, odd).tobytes()


# ---- Sums


def test_class_sums_are_those_of_each_class_and_an_unknown_class_is_refused() -> None:
    rng = np.random.default_rng(0)
    rows, codes = np.trunc(rng.normal(size=(5000, 17)) * 1e5), rng.integers(0, 4, 5000)
    table = np.zeros((4, 18), dtype=np.int64)
    add_class_sums(table, rows, codes, 12345)
    for code in range(4):
        own = rows[codes == code].astype(np.int64)
        assert table[code].tolist() == [12345 * len(own), *own.sum(0)]
    with pytest.raises(IndexError, match="classes are 0 to 1, got 0 to 2"):
        add_class_sums(np.zeros((2, 3), dtype=np.int64), np.ones((2, 2)), np.array([0, 2]), 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stored_records_are_rounded_towards_zero(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    z, codes = rng.normal(size=(500, 9)).astype(dtype), rng.integers(0, 3, 500)
    for clip in (GradientClip(0.25, 0.3), GradientClip(1.0, 0.25)):
        integers, classes, allowed = stored(z, codes, clip)
        expected = np.trunc(np.clip(z.astype(np.float64), -1, 1) * FEATURE_UNIT).astype(np.int16)
        assert integers.dtype == np.int16
        assert classes.dtype == np.int32
        assert np.array_equal(integers, expected)
        assert np.array_equal(classes, codes)
        assert np.array_equal(allowed, clip.allowed(expected))


def gradient(z: Small, codes: Integers, head: Head, clip: GradientClip) -> Integers:
    """The slow twin: bounded residuals of all records, times their features."""
    residuals = clip.residuals(z, codes, head).astype(np.int64)
    wide = np.concatenate([np.full((len(z), 1), clip.unit), z.astype(np.int64)], 1)
    return np.asarray(residuals.T @ wide)


@pytest.mark.parametrize("classes", [2, 3, 12])
@pytest.mark.parametrize("scale", [0.0, 0.1, 5.0, 700.0])
def test_gradients_and_counts_are_those_of_the_twin(classes: int, scale: float) -> None:
    """Heads from nothing to where every score is saturated, with weights at their limit."""
    rng = np.random.default_rng(3)
    for width, rows in ((1, 5), (30, 1000), (600, 300)):
        drawn = rng.normal(size=(rows, width))
        z = feature_integers(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))[0]
        codes = rng.integers(0, classes, rows)
        limit = float(LARGEST_WEIGHT * WEIGHT_UNIT)
        integers = np.clip(
            np.rint(scale * rng.normal(size=(classes, 1 + width)) * WEIGHT_UNIT), -limit, limit
        )
        if scale > 100:
            integers[:, 1] = limit * (-1.0) ** np.arange(classes)
        head = Head(integers, 0.25)
        for norm in (0.05, 0.5, 1.4):
            clip = GradientClip(norm, 0.25)
            assert np.array_equal(clip.gradient(z, codes, head), gradient(z, codes, head, clip))
            part = (z, codes, clip.allowed(z))
            predicted = np.floor(clip.probabilities(z, head) * RESIDUAL_UNIT).sum(0)
            assert np.array_equal(PredictedSum(clip, head)(part)[0], predicted)
            right = (clip.scores(z, head).argmax(1) == codes).sum()
            assert RightCount(clip, head)(part)[0].tolist() == [right]


def test_loops_that_are_not_compiled_are_the_same_code() -> None:
    """Numba's result against Python's own arithmetic on the same functions."""
    rng = np.random.default_rng(4)
    z, codes = feature_integers(rng.normal(size=(40, 6)) / 3)[0], rng.integers(0, 2, 40)
    clip, head = GradientClip(0.3, 0.25), Head(np.rint(rng.normal(size=(2, 7)) * WEIGHT_UNIT), 0.25)
    totals = []
    for function in (loops.two_class_gradient, loops._two_class_gradient):
        total = np.zeros((2, 7), dtype=np.int64)
        function(z, codes, clip.allowed(z), head.margin, clip.grids, exact.tables(), total)
        totals.append(total.tolist())
    assert totals[0] == totals[1]


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("fourier", [0, 40])
def test_features_of_a_table_are_those_of_pytorch(crossed: bool, fourier: int) -> None:
    """All kinds of columns, missing cells, crosses, and values mixed with one another."""
    for table in (
        made_table(crosses=(("age", "town"),)) if crossed else made_table(),
        TableDomain(
            (*(Column(f"v{i}", "numeric", 0, 1) for i in range(5)), Column("y", "label", classes=("a", "b")))
        ),
    ):
        x = encoded(table, 700)
        counted = TableIndicators(table)
        shares = frequencies(counted(x).sum(0).numpy(), counted.blocks)
        valued = sum(column.kind != "categorical" for column in table.features)
        mixing = np.eye(valued) + 0.1 * np.random.default_rng(0).normal(size=(valued, valued))
        for features in (
            ScaledTable(table, shares, fourier=fourier),
            ScaledTable(table, shares, fourier=fourier, mixing=mixing, value_energy=0.25),
        ):
            slow = features(x.clone().requires_grad_()).detach()
            assert features(x).numpy().tobytes() == slow.numpy().tobytes()


def test_features_with_a_gradient_are_left_to_pytorch() -> None:
    table = made_table()
    shares = [1 / len(b.entries) for b in TableIndicators(table).blocks for _ in b.entries]
    x = encoded(table, 5).requires_grad_()
    assert ScaledTable(table, shares, fourier=3)(x).grad_fn is not None


def test_compiling_does_without_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    njit, asked = numba.njit, []

    def refuse(**given: Any) -> Any:
        asked.append(given)
        if given.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**given)

    monkeypatch.setattr(numba, "njit", refuse)
    assert Compiled(_three)() == 3
    assert [given.get("cache", False) for given in asked] == [True, False]
    assert not any(given["fastmath"] for given in asked)


def test_a_full_disk_costs_the_cache_of_compiled_code_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core.caching import IndexDataCacheFile

    def full(self: Any, key: Any, data: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "load", lambda self, key: None)
    monkeypatch.setattr(IndexDataCacheFile, "save", full)
    loop = Compiled(_three)
    assert [loop(), loop()] == [3, 3]


def _three() -> int:
    return 3
