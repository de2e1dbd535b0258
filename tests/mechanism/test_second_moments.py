"""The second stage: what it adds up, what it costs, and that its noise is the one that is stated.

Each test names the clause of docs/proof-moments.md that it holds up.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adlm.domain import Domain
from adlm.engine.passes import as_records
from adlm.errors import UserError
from adlm.features.identity import Identity
from adlm.mechanism.calibration import MomentConfig, calibrate
from adlm.mechanism.class_sums import release as release_moments
from adlm.mechanism.second_moments import (
    DIAGONAL,
    OFF_DIAGONAL,
    CrossMoments,
    Products,
    Second,
    cross_sensitivity,
    frame,
    noisy_triangle,
    products_of,
    triangle_sensitivity,
    turned,
)
from adlm.model.estimates import Moments, class_means, shrunk_counts, signal
from adlm.privacy.accounting import compose
from adlm.privacy.clipping import Clip
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

K, Q, M = 6, 3, 3
CROSS = CrossMoments(0.5, 0.7, Fraction(1, 2))
STAGED = Second(Q, "means", 0.8, around="means", cross=CROSS)
rows = st.lists(st.floats(-2, 2), min_size=K, max_size=K)


def raw_second(moments: Moments) -> torch.Tensor | None:
    """Second moments (q, q) of z itself: what was released, and the scatter of what was subtracted."""
    if moments.second is None or moments.centres is None:
        return moments.second
    counts, centres = shrunk_counts(moments), moments.centres
    inside = centres[:, : len(moments.second)] if moments.basis is None else centres @ moments.basis
    return moments.second + (inside.T * counts) @ inside


def blobs(n: int = 900, seed: int = 0) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Three classes around different points, stretched along one direction that is not an axis."""
    rng = np.random.default_rng(seed)
    centres = 0.4 * rng.normal(size=(M, K)) / math.sqrt(K)
    codes = rng.integers(0, M, n)
    long = rng.normal(size=K)
    z = centres[codes] + 0.05 * rng.normal(size=(n, K)) + 0.1 * rng.normal(size=(n, 1)) * long
    return z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1.0), codes


def released(
    design: MomentConfig,
    data: tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]],
    source: Source | None = None,
) -> Release:
    return release_moments(
        lambda: [data],
        domain=Domain((K,), -1.0, 1.0, tuple(map(str, range(M)))),
        features=Identity((K,)),
        config=design,
        ledger=Ledger(),
        source=source or Source.system(),
    )


def generous(second: Second, delta: Fraction = Fraction(0)) -> MomentConfig:
    """So large a budget that no noise is left."""
    return MomentConfig(Fraction(10**9), delta, K, 1.0, second=second, pure="radial")


@given(rows, rows)
def test_weighted_triangles_of_neighbours_are_within_the_stated_sensitivity(
    one: list[float], other: list[float]
) -> None:
    """Theorem 1, radial noise on second moments: exact integers against the stated bound."""
    clip = Clip("l2", (1.0,) * K, 1.0)
    a, b = ([int(v) for v in row] for row in clip.integers([one, other]))

    def cost(difference: list[list[int]]) -> Fraction:
        diagonal = sum((DIAGONAL * difference[j][j]) ** 2 for j in range(K))
        beside = sum((OFF_DIAGONAL * difference[j][m]) ** 2 for j in range(K) for m in range(j + 1, K))
        return Fraction(diagonal + beside)

    alone = [[x * y for y in a] for x in a]
    both = [[a[j] * a[m] - b[j] * b[m] for m in range(K)] for j in range(K)]
    assert cost(alone) <= triangle_sensitivity(clip, "add-remove") ** 2
    assert cost(both) <= triangle_sensitivity(clip, "replace-one") ** 2


def test_worst_case_neighbours_attain_the_sensitivity_of_the_triangle() -> None:
    clip = Clip("l2", (1.0, 1.0), 1.0)
    a, b = clip.integers([[1.0, 0.0], [0.0, 1.0]])
    moved = DIAGONAL * math.sqrt(2) * float(a[0]) ** 2
    assert float(triangle_sensitivity(clip, "replace-one")) == pytest.approx(moved, rel=1e-9)
    assert b[1] == a[0]


@given(rows, rows, rows, rows)
def test_products_across_are_within_the_stated_sensitivity_and_attain_it(
    o: list[float], u: list[float], p: list[float], v: list[float]
) -> None:
    """Theorem 1, products across the basis: |o u'| = |o| |u|, and (o, u), (-o, u) are twice that apart."""
    inside, outside = Clip("l2", (1.0,) * K, 0.5), Clip("l2", (1.0,) * K, 0.7)

    def across(left: list[float], right: list[float]) -> npt.NDArray[np.object_]:
        pair = outside.integers([left])[0], inside.integers([right])[0]
        return np.outer(*(np.array([int(w) for w in row], dtype=object) for row in pair))

    one, two = across(o, u), across(p, v)
    assert (one**2).sum() <= cross_sensitivity(inside, outside, "add-remove") ** 2
    assert ((one - two) ** 2).sum() <= cross_sensitivity(inside, outside, "replace-one") ** 2
    axis = [9.0] + [0.0] * (K - 1)
    far = across(axis, axis) - across([-w for w in axis], axis)
    assert (far**2).sum() == cross_sensitivity(inside, outside, "replace-one") ** 2


@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 10**5)])
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_three_parts_keep_to_the_budget(delta: Fraction, relation: str) -> None:
    design = MomentConfig(Fraction(1), delta, K, 1.0, second=STAGED, pure="radial", contributions=2)
    scales, charges = calibrate(design, relation)
    assert [c.what for c in charges] == [
        "class sums and counts",
        "second moments",
        "products across the basis",
    ]
    total = compose(charges)
    assert float(total.epsilon_proved) == pytest.approx(1, rel=1e-5)
    assert total.epsilon_proved <= 1
    moved = 2 * cross_sensitivity(*STAGED.cross_clips(), relation)
    assert charges[2].sensitivity == moved
    assert charges[2].scale == Fraction(scales.cross)


def test_the_second_stage_adds_up_what_a_slow_twin_does() -> None:
    """A record at a time, in unbounded integers: less its class's centre, turned, clipped, multiplied."""
    z, codes = blobs(40)
    rng = np.random.default_rng(1)
    centres, whole = 0.2 * rng.normal(size=(M, K)), frame(rng.normal(size=(M, K)), K)
    basis, beyond = whole[:, :Q], whole[:, Q:]
    clip, inside, outside = (
        Clip("l2", (1.0,) * Q, 0.3),
        Clip("l2", (1.0,) * 2, 0.2),
        Clip("l2", (1.0,) * Q, 0.3),
    )
    batches = [(z[:7], codes[:7]), (z[7:], codes[7:])]
    total = as_records(lambda: batches).total(Products(clip, centres, basis, (beyond, inside, outside)))
    assert total is not None
    second, across = (part.integers() for part in total)
    squares, beside = [[0] * Q for _ in range(Q)], [[0] * 2 for _ in range(Q)]
    for row, code in zip(z, codes, strict=True):
        apart = (row - centres[code])[None]
        a = [int(v) for v in clip.integers(turned(apart, basis))[0]]
        u = [int(v) for v in inside.integers(turned(apart, basis)[:, :2])[0]]
        o = [int(v) for v in outside.integers(turned(apart, beyond))[0]]
        squares = [[squares[j][m] + a[j] * a[m] for m in range(Q)] for j in range(Q)]
        beside = [[beside[j][m] + o[j] * u[m] for m in range(2)] for j in range(Q)]
    assert second.tolist() == squares
    assert across.tolist() == beside


def test_a_record_is_turned_the_same_wherever_it_stands() -> None:
    """What the proof assumes of a row: bit for bit, in any batch, and close to the true product."""
    rng = np.random.default_rng(0)
    rows, directions = rng.normal(size=(1001, 300)) / 17, frame(rng.normal(size=(10, 300)), 40)
    whole = turned(rows, directions)
    for start, stop in ((0, 1), (1, 1001), (500, 503), (998, 1001)):
        assert (turned(rows[start:stop], directions) == whole[start:stop]).all()
    np.testing.assert_allclose(whole, rows @ directions, atol=1e-4)
    assert np.isfinite(turned(1e300 * rows, directions)).all()


def test_products_are_exact_at_the_largest_block() -> None:
    left = np.full((1 << 12, 1), float(1 << 20))
    both = np.vstack([left, left])
    assert products_of(both, both)[0, 0] == 2 * (1 << 52)


def test_without_noise_the_parts_are_the_covariance_within_classes() -> None:
    """Around released means, in the basis and across it."""
    data = blobs()
    wide = Second(Q, "means", 4.0, around="means", cross=CrossMoments(4.0, 4.0, Fraction(1, 2)))
    moments = released(generous(wide), data).moments()
    z, codes = data
    means = np.stack([z[codes == c].mean(0) for c in range(M)])
    apart = z - means[codes]
    assert moments.second is not None
    assert moments.basis is not None
    assert moments.cross is not None
    assert moments.outside is not None
    scatter = torch.from_numpy(apart.T @ apart)
    np.testing.assert_allclose(moments.second, moments.basis.T @ scatter @ moments.basis, atol=1e-2)
    along = moments.basis[:, : M - 1]
    np.testing.assert_allclose(moments.cross, moments.outside.T @ scatter @ along, atol=1e-2)
    assert torch.allclose(moments.outside.T @ moments.basis, torch.zeros(K - Q, Q).double(), atol=1e-12)


def test_raw_second_moments_come_back() -> None:
    """What was subtracted is public, so second moments around the origin follow."""
    z, codes = blobs()
    for second in (Second(K, "leading", 4.0, around="means"), Second(Q, "means", 4.0, around="means")):
        moments = released(generous(second), (z, codes)).moments()
        raw = raw_second(moments)
        basis = np.eye(K, second.q) if moments.basis is None else moments.basis.numpy()
        np.testing.assert_allclose(np.asarray(raw), basis.T @ z.T @ z @ basis, rtol=0.01, atol=0.3)


def test_where_it_looks_follows_from_what_was_released_before() -> None:
    """Composition: centres, basis and what is outside are functions of the noisy class sums alone."""
    design = MomentConfig(Fraction(1), Fraction(0), K, 1.0, second=STAGED, pure="radial")
    made = released(design, blobs())
    moments = made.moments()
    means = class_means(moments)
    bounded = means / means.norm(dim=1, keepdim=True).clamp_min(1.0)
    assert moments.centres is not None
    torch.testing.assert_close(moments.centres, bounded)
    whole = frame(moments.sums.numpy(), K)
    np.testing.assert_allclose(whole[:, :Q], made.tensors["basis"], atol=1e-9)
    np.testing.assert_allclose(whole[:, Q:], made.tensors["outside"], atol=1e-9)


def test_radial_noise_on_the_triangle_and_across_has_a_gamma_length() -> None:
    """False alarm 1e-6 each: lengths of rows of radial noise are Gamma distributed."""
    source, scale, times = Source.system(), 10**7, 60
    triangle = np.stack([noisy_triangle(np.zeros((4, 4), np.int64), "radial", scale, 0, source)
                         for _ in range(times)])  # fmt: skip
    above = np.triu_indices(4, 1)
    diagonal = DIAGONAL * np.diagonal(triangle, axis1=1, axis2=2).astype(float)
    beside = OFF_DIAGONAL * triangle[:, above[0], above[1]].astype(float)
    length = np.sqrt((diagonal**2).sum(1) + (beside**2).sum(1)).sum() / scale
    assert stats.gamma.ppf(5e-7, 10 * times) < length < stats.gamma.isf(5e-7, 10 * times)
    zero = np.zeros((2, 3), np.int64)
    across = np.stack([source.add(zero, "radial", scale) for _ in range(times)]).astype(float)
    length = np.sqrt((across**2).sum((1, 2))).sum() / scale
    assert stats.gamma.ppf(5e-7, 6 * times) < length < stats.gamma.isf(5e-7, 6 * times)


@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 10**5)])
def test_the_stated_deviation_of_each_part_is_that_of_its_noise(delta: Fraction) -> None:
    design = MomentConfig(Fraction(1), delta, K, 1.0, second=STAGED, pure="radial")
    data = blobs(2)
    source = Source.seeded_with(3)
    made = [released(design, data, source) for _ in range(150)]
    stated = made[0].certificate.settings
    above = np.triu_indices(Q, 1)
    for name, sd, pick in (
        ("second", stated["sd_second"], lambda t: t[above]),
        ("second", stated["sd_second_diagonal"], np.diagonal),
        ("cross", stated["sd_cross"], np.ravel),
    ):
        drawn = np.stack([pick(r.tensors[name].numpy()) for r in made]).astype(float)
        assert np.sqrt((drawn**2).mean()) == pytest.approx(sd, rel=0.1)  # two records are little beside it


def test_the_signal_of_a_noisy_matrix_is_found_and_noise_alone_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(80, 6, generator=generator, dtype=torch.float64)
    left, sizes, right = signal(noise, 0.1)
    assert len(sizes) <= 1
    truth = 5 * torch.nn.functional.normalize(torch.randn(80, 1, generator=generator).double(), dim=0)
    truth = truth @ torch.nn.functional.normalize(torch.randn(1, 6, generator=generator).double(), dim=1)
    left, sizes, right = signal(truth + noise, 0.1)
    guess = (left * sizes) @ right
    assert (guess - truth).norm() < 0.6 * noise.norm()
    left, sizes, right = signal(truth, 0.0)
    torch.testing.assert_close((left * sizes) @ right, truth)


def test_what_does_not_fit_together_is_told() -> None:
    with pytest.raises(UserError, match="need basis and around"):
        Second(Q, "leading", cross=CROSS)
    with pytest.raises(UserError, match="leave the cross out"):
        released(generous(Second(K, "means", around="means", cross=CROSS)), blobs(20))
    with pytest.raises(UserError, match="not with Laplace"):
        calibrate(MomentConfig(Fraction(1), Fraction(0), K, 1.0, second=STAGED), "replace-one")
    bad = Second(Q, "means", around="means", cross=CrossMoments(1.0, 1.0, Fraction(1)))
    with pytest.raises(UserError, match=r"\[0, 1\)"):
        calibrate(generous(bad), "replace-one")
    again = Second.from_dict(STAGED.to_dict())
    assert again == STAGED
