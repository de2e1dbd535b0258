"""No record whatever leaves the ball, and the ball is what the stated sensitivities are about.

Each test names the clause of docs/proof-moments.md that it holds up.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from adlm.errors import UserError
from adlm.privacy.clipping import EXACT_ROWS, RESOLUTION, Clip, Norm
from adlm.runtime.arithmetic import root_up

RELATIONS = ("replace-one", "add-remove")
NORMS: tuple[Norm, ...] = ("l1", "l2")
Integers = npt.NDArray[np.int64]


@st.composite
def clips(draw: st.DrawFn, norms: tuple[Norm, ...] = NORMS, most: int = 6) -> Clip:
    """Clips of every kind: scales over twelve orders of magnitude, any level, any share for the count."""
    k = draw(st.integers(1, most))
    scales = draw(st.lists(st.floats(1e-6, 1e6), min_size=k, max_size=k))
    return Clip(
        draw(st.sampled_from(norms)), tuple(scales), draw(st.floats(1e-6, 1e6)), draw(st.floats(0, 0.99))
    )


@st.composite
def clipped(draw: st.DrawFn, norms: tuple[Norm, ...] = NORMS, rows: int = 2) -> tuple[Clip, Integers]:
    """A clip, and what it makes of any float32 rows there are, huge and subnormal ones among them."""
    clip = draw(clips(norms))
    any_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
    z = draw(
        arrays.arrays(np.float32, (rows, len(clip.scales)), elements=any_float32 | st.floats(-1, 1, width=32))
    )
    with np.errstate(over="ignore"):
        return clip, clip.integers(z).astype(np.int64)


def size(norm: Norm, row: Integers) -> int:
    """The norm in Python's unbounded integers: of the row for L1, squared for L2."""
    values = [int(v) for v in row.ravel()]
    return sum(map(abs, values)) if norm == "l1" else sum(v * v for v in values)


def bound(clip: Clip, norm_bound: int) -> int:
    """The bound in the same units as `size`."""
    return norm_bound if clip.norm == "l1" else norm_bound**2


@given(clipped())
def test_any_input_whatever_ends_inside_the_ball(made: tuple[Clip, Integers]) -> None:
    """Lemma 1, first half."""
    clip, rows = made
    for row in rows:
        assert size(clip.norm, row) <= bound(clip, clip.feature_norm_bound)


@given(clipped())
def test_with_its_count_a_record_is_still_inside_the_whole_ball(made: tuple[Clip, Integers]) -> None:
    """Lemma 1, second half: the count is paid for inside the same norm."""
    clip, rows = made
    for row in rows:
        assert size(clip.norm, np.append(row, clip.count)) <= bound(clip, clip.record_norm_bound)


@pytest.mark.parametrize("norm", NORMS)
def test_records_on_the_boundary_are_held_to_it_exactly(norm: Norm) -> None:
    """Rounding errors of the float norm are where an unchecked clip would be one step over.

    Each row is scaled to the sphere up to one unit in the last place, either way.
    """
    clip = Clip(norm, (1.0,) * 50, 1.0, 0.2)
    z = np.random.default_rng(0).normal(size=(4000, 50))
    z /= np.linalg.norm(z, ord=1 if norm == "l1" else 2, axis=1, keepdims=True)
    z = np.concatenate([z, np.nextafter(z, np.inf), np.nextafter(z, -np.inf), 3 * z, np.eye(50), -np.eye(50)])
    sizes = [size(norm, row) for row in clip.integers(z).astype(np.int64)]
    assert max(sizes) == bound(clip, clip.feature_norm_bound)
    assert min(sizes) >= bound(clip, clip.feature_norm_bound - 50)


@given(clipped())
def test_rounding_never_makes_a_coordinate_longer(made: tuple[Clip, Integers]) -> None:
    """Effect of the grid: what is stored, in real units, is no longer than the level of the clip."""
    clip, rows = made
    weighted = np.abs(rows * clip.steps) / np.asarray(clip.scales)
    length = weighted.sum(1) if clip.norm == "l1" else np.sqrt((weighted**2).sum(1))
    assert (length <= clip.clip_norm * (1 + 1e-12)).all()


@pytest.mark.parametrize("norm", NORMS)
def test_quotients_beyond_any_double_stay_in_the_ball(norm: Norm) -> None:
    clip = Clip(norm, (1e-6, 1.0), 1e-6)
    rows = clip.integers([[1e300, 0.0], [-1e308, 1e308]])
    assert np.isfinite(rows).all()
    sizes = [size(norm, row) for row in rows.astype(np.int64)]
    assert max(sizes) <= bound(clip, clip.feature_norm_bound)


def test_steps_too_small_to_divide_by_are_refused() -> None:
    with pytest.raises(UserError, match="too small to divide by"):
        Clip("l1", (1e-150,), 1e-150)


@given(st.sampled_from(NORMS), arrays.arrays(np.float64, (3, 5), elements=st.floats(-1, 1)))
def test_a_record_inside_the_ball_is_only_rounded_towards_zero(
    norm: Norm, z: npt.NDArray[np.float64]
) -> None:
    clip = Clip(norm, (1.0, 2.0, 0.5, 1.0, 3.0), 20.0, 0.1)
    rows = clip.integers(z)
    assert (np.abs(rows * clip.steps) <= np.abs(z) + 1e-15).all()
    assert (np.abs(rows * clip.steps - z) <= clip.steps).all()


@given(clipped(rows=4), st.permutations(range(4)))
def test_a_row_depends_on_its_own_record_alone(made: tuple[Clip, Integers], order: list[int]) -> None:
    """What makes one changed record one changed row."""
    clip, rows = made
    real = rows * clip.steps
    assert (clip.integers(real[order]) == clip.integers(real)[order]).all()
    assert (clip.integers(real[:1]) == clip.integers(real)[:1]).all()


def test_a_zero_record_stays_zero() -> None:
    for norm in NORMS:
        assert not Clip(norm, (1.0, 2.0), 1.0).integers(np.zeros((3, 2))).any()


def class_table(clip: Clip, row: Integers, label: int) -> Integers:
    """What one record adds to (counts, class sums), (2, 1 + k)."""
    table = np.zeros((2, 1 + len(row)), dtype=np.int64)
    table[label] = [clip.count, *row]
    return table


def distance(norm: Norm, difference: Integers) -> Fraction:
    """L1 norm, or squared L2 norm, exactly."""
    return Fraction(size(norm, difference))


def stated(norm: Norm, sensitivity: Fraction) -> Fraction:
    return sensitivity if norm == "l1" else sensitivity**2


@given(clipped(), st.integers(0, 1), st.integers(0, 1))
def test_class_sums_of_neighbours_are_within_the_stated_sensitivity(
    made: tuple[Clip, Integers], one: int, other: int
) -> None:
    """Theorems 1 and 2, class sums and counts."""
    clip, rows = made
    a, b = class_table(clip, rows[0], one), class_table(clip, rows[1], other)
    assert distance(clip.norm, a) <= stated(clip.norm, clip.sums_sensitivity("add-remove"))
    assert distance(clip.norm, a - b) <= stated(clip.norm, clip.sums_sensitivity("replace-one"))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("constant", [0.0, 0.2, 0.6, 0.9])
def test_worst_case_neighbours_attain_the_sensitivity_of_class_sums(norm: Norm, constant: float) -> None:
    """A sensitivity that no pair attains would waste budget; one that is exceeded would break the proof."""
    clip = Clip(norm, (1.0, 1.0), 1.0, constant)
    a, b = clip.integers([[1e9, 0.0], [-1e9, 0.0]]).astype(np.int64)
    assert int(a[0]) == clip.feature_norm_bound == -int(b[0])
    alone = distance(norm, class_table(clip, a, 0))
    pairs = [distance(norm, class_table(clip, a, 0) - class_table(clip, b, label)) for label in (0, 1)]
    for attained, relation in ((alone, "add-remove"), (max(pairs), "replace-one")):
        limit = stated(norm, clip.sums_sensitivity(relation))
        assert attained <= limit
        assert float(attained / limit) == pytest.approx(1, abs=1e-5)  # an isqrt may lose one step in 2^20


@given(clipped(norms=("l2",)), st.integers(0, 1), st.integers(0, 1))
def test_rows_of_neighbours_are_within_the_sensitivity_of_radial_noise(
    made: tuple[Clip, Integers], one: int, other: int
) -> None:
    """Theorem 1, radial noise: the sum over classes of the L2 distance, attained by two classes."""
    clip, rows = made
    a, b = class_table(clip, rows[0], one), class_table(clip, rows[1], other)
    for difference, relation in ((a, "add-remove"), (a - b, "replace-one")):
        lengths = sum((root_up(distance("l2", row)) for row in difference), Fraction(0))
        assert lengths <= clip.rows_sensitivity(relation) + Fraction(2, 10**12)  # root_up, twice
    corner = clip.integers(np.eye(1, len(clip.scales)) * 1e12).astype(np.int64)[0]
    attained = 2 * root_up(distance("l2", np.array([clip.count, *corner])))
    assert float(attained / clip.rows_sensitivity("replace-one")) == pytest.approx(1, abs=1e-5)


def second_cost(difference: Integers) -> Fraction:
    """Squared cost in units of the noise on the diagonal, which is sqrt(2) times that off it."""
    diagonal = sum(int(v) ** 2 for v in np.diagonal(difference))
    return Fraction(diagonal + 2 * sum(int(v) ** 2 for v in difference[np.triu_indices(len(difference), 1)]))


@given(clipped(norms=("l2",)))
def test_second_moments_of_neighbours_are_within_the_stated_sensitivity(made: tuple[Clip, Integers]) -> None:
    """Theorem 2, second moments, also of some of the columns alone."""
    clip, (a, b) = made
    for q in {1, len(a)}:
        one, other = np.outer(a[:q], a[:q]), np.outer(b[:q], b[:q])
        assert second_cost(one) <= clip.second_sensitivity("add-remove") ** 2
        assert second_cost(one - other) <= clip.second_sensitivity("replace-one") ** 2


def test_worst_case_neighbours_attain_the_sensitivity_of_second_moments() -> None:
    clip = Clip("l2", (1.0, 1.0), 1.0)
    a, b = clip.integers([[1.0, 0.0], [0.0, 1.0]]).astype(np.int64)
    assert second_cost(np.outer(a, a)) == clip.second_sensitivity("add-remove") ** 2
    limit = clip.second_sensitivity("replace-one") ** 2
    attained = second_cost(np.outer(a, a) - np.outer(b, b))
    assert attained <= limit
    assert float(attained / limit) == pytest.approx(1, abs=1e-9)


def test_products_of_a_whole_block_are_exact_in_doubles() -> None:
    """The grid: EXACT_ROWS records at the corner of the ball sum to a whole number that a double holds."""
    assert EXACT_ROWS * RESOLUTION**2 <= 2**53
    rows = np.full((EXACT_ROWS, 1), float(RESOLUTION - 1))
    assert int((rows.T @ rows)[0, 0]) == EXACT_ROWS * (RESOLUTION - 1) ** 2


@pytest.mark.parametrize(
    ("scales", "level", "constant", "words"),
    [
        ((), 1.0, 0.2, "one for each feature coordinate"),
        ((1.0, 0.0), 1.0, 0.2, "positive finite numbers"),
        ((1.0, math.inf), 1.0, 0.2, "positive finite numbers"),
        ((1.0,), 0.0, 0.2, "clip norm must be a positive number"),
        ((1.0,), math.nan, 0.2, "clip norm must be a positive number"),
        ((1.0,), 1.0, 1.0, r"must lie in \[0, 1\)"),
        ((1.0,), 1.0, -0.1, r"must lie in \[0, 1\)"),
    ],
)
def test_a_clip_that_bounds_nothing_is_refused(
    scales: tuple[float, ...], level: float, constant: float, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        Clip("l1", scales, level, constant)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(UserError, match="not a finite number"):
        Clip("l1", (1.0, 1.0), 1.0).integers([[0.5, bad]])


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(UserError, match=r"features must be \(n, 2\), got \(1, 3\)"):
        Clip("l1", (1.0, 1.0), 1.0).integers([[0.0, 0.0, 0.0]])


def test_rows_and_products_need_records_clipped_in_the_l2_norm() -> None:
    for sensitivity in (Clip.rows_sensitivity, Clip.second_sensitivity):
        with pytest.raises(UserError, match="clipped in the L2 norm"):
            sensitivity(Clip("l1", (1.0,), 1.0), "replace-one")


def _written_out(clip: Clip, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The same formula with every check made on every row."""
    ratio = np.clip(values / clip.steps, -(2.0**60), 2.0**60)
    size = np.abs(ratio).sum(1) if clip.norm == "l1" else np.sqrt((ratio * ratio).sum(1))
    shrink = np.minimum(1.0, clip.feature_norm_bound / np.maximum(size, 1e-300))
    rows = np.trunc(ratio * shrink[:, None])
    for row, one in enumerate(ratio):
        while sum(abs(int(v)) if clip.norm == "l1" else int(v) ** 2 for v in rows[row]) > (
            clip.feature_norm_bound if clip.norm == "l1" else clip.feature_norm_bound**2
        ):
            shrink[row] *= 1 - 2.0**-30
            rows[row] = np.trunc(one * shrink[row])
    return np.asarray(rows)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("width", [3, 160])
def test_rows_are_those_of_the_formula_written_out(norm: Norm, width: int) -> None:
    chance = np.random.default_rng(0)
    clip = Clip(norm, tuple(chance.uniform(0.5, 2, width)), 1.0, 0.3)
    inside = chance.normal(0, 0.01 / width, (300, width))
    on_the_edge = chance.normal(size=(300, width))
    weighed = np.abs(on_the_edge) / clip.scales if norm == "l1" else (on_the_edge / clip.scales) ** 2
    length = weighed.sum(1) if norm == "l1" else np.sqrt(weighed.sum(1))
    on_the_edge /= length[:, None]
    far = chance.normal(size=(300, width)) * 10.0 ** chance.uniform(-3, 300, (300, 1))
    for values in (inside, on_the_edge, far, np.concatenate([inside, far, on_the_edge])):
        assert np.array_equal(clip.integers(values), _written_out(clip, values))
