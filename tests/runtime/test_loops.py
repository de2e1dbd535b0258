"""Compiled loops give the bits of the NumPy and PyTorch code that they stand in for."""

from __future__ import annotations

import errno
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.broken_variants import ROUNDS
from tests.features.test_scaled_table import encoded, made_table

from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features.tables import ScaledTable, TableIndicators, frequencies
from adlm.mechanism.class_sums import add_class_sums
from adlm.mechanism.gradient_rounds import GradientClip, PredictedSum, RightCount, feature_integers, stored
from adlm.mechanism.privatise import privatise
from adlm.model.head import LARGEST_WEIGHT, WEIGHT_UNIT, Head
from adlm.privacy.clipping import FARTHEST, Clip
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import loops
from adlm.runtime.compiled import Compiled


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compile everything, or nothing."""
    return lambda on: monkeypatch.setattr(Compiled, "pays", lambda self, rows: on)


def both(switch: Any, function: Any) -> tuple[Any, Any]:
    """What a function returns with and without compiled loops."""
    switch(False)
    one = function()
    switch(True)
    return one, function()


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clipped_rows_are_the_same(switch: Any, norm: Any, dtype: Any) -> None:
    """Inside the ball, on its edge, far outside, and at every width where NumPy adds up differently."""
    rng = np.random.default_rng(0)
    for width in (1, 2, 7, 8, 9, 127, 128, 129, 136, 230, 257, 1000):
        rows = rng.normal(size=(300, width)) / np.sqrt(width)
        rows[:100] /= np.linalg.norm(rows[:100], axis=1, keepdims=True)
        rows[100:200] *= 10.0 ** rng.integers(-3, 9, (100, 1))
        rows[200:210] = 0.0
        for scales in ((1.0,) * width, tuple(rng.random(width) + 0.1)):
            clip = Clip(norm, scales, 1.0, 0.2)
            one, other = both(switch, lambda clip=clip, rows=rows: clip.integers(rows.astype(dtype)))
            assert one.tobytes() == other.tobytes()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from(["l1", "l2"]))
def test_no_compiled_row_leaves_its_ball(width: int, seed: int, norm: Any) -> None:
    rng = np.random.default_rng(seed)
    clip = Clip(norm, tuple(rng.random(width) + 0.01), float(rng.random() + 0.01), 0.3)
    rows = rng.normal(size=(50, width)) * 10.0 ** rng.integers(-6, 7, (50, 1))
    out: Any = np.empty(rows.shape)
    bound = clip.feature_norm_bound
    order = loops.summation_order(width)
    assert loops.clip_rows(rows, clip.steps, bound, norm == "l1", FARTHEST, order, out)
    exact = [[int(v) for v in row] for row in out.tolist()]
    sizes = [sum(map(abs, row)) if norm == "l1" else sum(v * v for v in row) for row in exact]
    assert max(sizes) <= (bound if norm == "l1" else bound**2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_and_one_too_far_is_clipped(switch: Any, bad: float) -> None:
    switch(True)
    clip, rows = Clip("l2", (1.0, 1.0), 1.0), np.zeros((4, 2))
    rows[2, 1] = bad
    with pytest.raises(UserError, match="not a finite number"):
        clip.integers(rows)
    with pytest.raises(UserError, match="not a finite number"):
        stored(rows, np.zeros(4, dtype=np.int64), GradientClip(0.5, 0.25))
    rows[2, 1] = 1e300
    one, other = both(switch, lambda: clip.integers(rows))
    assert one.tobytes() == other.tobytes()


def test_a_class_that_is_not_declared_and_odd_types_are_left_to_numpy(switch: Any) -> None:
    """Compiled code checks no index, and knows no half precision."""
    switch(True)
    with pytest.raises(IndexError):
        add_class_sums(np.zeros((2, 3), dtype=np.int64), np.ones((2, 2)), np.array([0, 2]), 1)
    rows = np.random.default_rng(0).normal(size=(9, 4))
    clip = Clip("l2", (1.0,) * 4, 1.0)
    for odd in (rows.astype(np.float16), rows.astype(">f8"), np.asfortranarray(rows), rows > 0):
        one, other = both(switch, lambda odd=odd: clip.integers(odd))
        assert one.tobytes() == other.tobytes()


def test_class_sums_are_the_same(switch: Any) -> None:
    rng = np.random.default_rng(0)
    rows, codes = np.trunc(rng.normal(size=(5000, 17)) * 1e5), rng.integers(0, 4, 5000)

    def sums() -> Any:
        table = np.zeros((4, 18), dtype=np.int64)
        add_class_sums(table, rows, codes, 12345)
        return table

    one, other = both(switch, sums)
    assert np.array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stored_records_are_the_same(switch: Any, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    z, codes = (rng.normal(size=(500, 9)) / 2).astype(dtype), rng.integers(0, 3, 500)
    for clip in (GradientClip(0.25, 0.3), GradientClip(1.0, 0.25)):
        one, other = both(switch, lambda clip=clip: stored(z, codes, clip))
        for left, right in zip(one, other, strict=True):
            assert left.dtype == right.dtype
            assert np.array_equal(left, right)


@pytest.mark.parametrize("classes", [2, 3, 12])
@pytest.mark.parametrize("scale", [0.0, 0.1, 5.0, 700.0])
def test_gradients_and_counts_are_the_same(switch: Any, classes: int, scale: float) -> None:
    """Heads from nothing to where every score is saturated, with weights at their limit."""
    rng = np.random.default_rng(3)
    for width, rows in ((1, 5), (30, 1000), (600, 300)):
        drawn = rng.normal(size=(rows, width))
        z = feature_integers(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
        codes = rng.integers(0, classes, rows).astype(np.int32)
        limit = float(LARGEST_WEIGHT * WEIGHT_UNIT)
        integers = np.clip(
            np.rint(scale * rng.normal(size=(classes, 1 + width)) * WEIGHT_UNIT), -limit, limit
        )
        if scale > 100:
            integers[:, 1] = limit * (-1.0) ** np.arange(classes)
        head = Head(integers, 0.25)
        for norm in (0.05, 0.5, 1.4):
            clip = GradientClip(norm, 0.25)
            one, other = both(switch, lambda at=(z, codes, head), clip=clip: clip.gradient(*at))
            assert np.array_equal(one, other)
            part = (z, codes, clip.allowed(z))
            one, other = both(switch, lambda predicted=PredictedSum(clip, head), part=part: predicted(part))
            assert np.array_equal(one[0], other[0])
            one, other = both(switch, lambda count=RightCount(clip, head), part=part: count(part))
            assert np.array_equal(one[0], other[0])


def test_loops_that_are_not_compiled_are_the_same_code() -> None:
    """Numba's result against Python's own arithmetic on the same functions."""
    rng = np.random.default_rng(4)
    z, codes = feature_integers(rng.normal(size=(40, 6)) / 3), rng.integers(0, 2, 40)
    clip, head = GradientClip(0.3, 0.25), Head(np.rint(rng.normal(size=(2, 7)) * WEIGHT_UNIT), 0.25)
    from adlm.runtime import arithmetic as exact

    totals = []
    for function in (loops.two_class_gradient, loops._two_class_gradient):
        total = np.zeros((2, 7), dtype=np.int64)
        function(z, codes, clip.allowed(z), head.margin, clip.grids, exact.tables(), total)
        totals.append(total.tolist())
    assert totals[0] == totals[1]


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("fourier", [0, 40])
def test_features_of_a_table_are_the_same(switch: Any, crossed: bool, fourier: int) -> None:
    """All kinds of columns, missing cells, crosses, and values mixed with one another."""
    for table in (
        made_table(crosses=(("age", "town"),)) if crossed else made_table(),
        TableDomain(
            (*(Column(f"v{i}", "numeric", 0, 1) for i in range(5)), Column("y", "label", classes=("a", "b")))
        ),
    ):
        x = encoded(table, 700)
        counted = TableIndicators(table)
        one, other = both(switch, lambda counted=counted, x=x: counted(x))
        assert one.numpy().tobytes() == other.numpy().tobytes()
        shares = frequencies(one.sum(0).numpy(), counted.blocks)
        valued = sum(column.kind != "categorical" for column in table.features)
        mixing = np.eye(valued) + 0.1 * np.random.default_rng(0).normal(size=(valued, valued))
        for features in (
            ScaledTable(table, shares, fourier=fourier),
            ScaledTable(table, shares, fourier=fourier, mixing=mixing, value_energy=0.25),
        ):
            one, other = both(switch, lambda features=features, x=x: features(x))
            assert one.numpy().tobytes() == other.numpy().tobytes()


def test_features_with_a_gradient_are_left_to_pytorch(switch: Any) -> None:
    switch(True)
    table = made_table()
    shares = [1 / len(b.entries) for b in TableIndicators(table).blocks for _ in b.entries]
    x = encoded(table, 5).requires_grad_()
    assert ScaledTable(table, shares, fourier=3)(x).grad_fn is not None


def made(classes: int, delta: str) -> Release:
    rng = np.random.default_rng(0)
    columns = tuple(Column(f"v{i}", "numeric", 0, 1) for i in range(3))
    table = TableDomain((*columns, Column("y", "label", classes=tuple("abc"[:classes]))))
    x, y = rng.random((3000, 3)).astype(np.float32), rng.integers(0, classes, 3000)
    y[x[:, 0] > 0.5] = 0
    return privatise(lambda: [(x, y)], domain=table, epsilon=Fraction(40), delta=delta, seed=1)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_release_has_the_same_digest(switch: Any, classes: int) -> None:
    one, other = both(switch, lambda: made(classes, "1e-5").certificate.digest)
    assert one == other


def test_a_release_of_a_perturbed_loss_has_the_same_sums(switch: Any) -> None:
    """Its minimum is computed in doubles and not compared bit for bit; all else is exact."""
    one, other = both(switch, lambda: made(2, "0"))
    assert one.certificate.charges == other.certificate.charges
    exact = [name for name in one.tensors if name not in ("weights", "correct")]
    assert "class_sums" in exact
    for name in exact:
        assert one.tensors[name].numpy().tobytes() == other.tensors[name].numpy().tobytes(), name
    assert np.allclose(one.tensors["weights"].numpy(), other.tensors["weights"].numpy(), rtol=0, atol=2)


def test_compiling_pays_after_many_records_and_never_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Compiled(lambda: 1, enough=100)
    assert [loop.pays(40) for _ in range(4)] == [False, False, True, True]
    monkeypatch.setitem(sys.modules, "numba", None)
    assert not Compiled(lambda: 1, enough=1).pays(10)
    assert Compiled(lambda: 7)() == 7


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


@pytest.mark.parametrize("control", ROUNDS, ids=lambda control: control.__name__)
def test_rounds_that_are_wrong_on_purpose_are_caught_when_compiled(switch: Any, control: Any) -> None:
    switch(True)
    found = control(100, Source.seeded_with(1))
    assert found.lower > float(found.claimed)
