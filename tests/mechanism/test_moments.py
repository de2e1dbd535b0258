"""A moment release keeps its budget, adds the noise it states, and sums the same integers in any batches.

Each test names the clause of docs/proof-moments.md that it holds up.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adlm.domain import Domain
from adlm.engine.passes import Batches
from adlm.errors import UserError
from adlm.features.identity import Identity
from adlm.mechanism import class_sums as moments
from adlm.mechanism.calibration import MomentConfig, calibrate, off_diagonal
from adlm.mechanism.class_sums import release as release_moments
from adlm.mechanism.second_moments import CrossMoments, Second, frame, triangle_sensitivity
from adlm.privacy.accounting import Budget, compose
from adlm.privacy.certificate import SEEDED
from adlm.privacy.clipping import Clip
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

RELATIONS = ("replace-one", "add-remove")
K, CLASSES = 5, ("a", "b", "c")
PURE = MomentConfig(Fraction(1), Fraction(0), K, 2.0)
NOISY = MomentConfig(Fraction(1), Fraction(1, 10**5), K, 1.0)
Array = npt.NDArray[np.float64]


def domain(neighbours: str = "replace-one") -> Domain:
    return Domain(shape=(K,), lower=0, upper=1, classes=CLASSES, neighbours=neighbours)


def records(n: int = 300, seed: int = 0) -> tuple[Array, npt.NDArray[np.int64]]:
    """Directions of every kind, most of them longer than the clip."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, K)), rng.integers(0, len(CLASSES), n)


def batched(z: Array, y: npt.NDArray[np.int64], size: int) -> Batches:
    def batches() -> Iterator[tuple[Array, npt.NDArray[np.int64]]]:
        for start in range(0, len(z), size):
            yield z[start : start + size], y[start : start + size]

    return batches


def release(
    design: MomentConfig,
    neighbours: str = "replace-one",
    *,
    size: int = 1000,
    source: Source | None = None,
    ledger: Ledger | None = None,
    data: tuple[Array, npt.NDArray[np.int64]] | None = None,
) -> Release:
    return release_moments(
        batched(*(data or records()), size),
        domain=domain(neighbours),
        features=Identity((K,)),
        config=design,
        ledger=ledger or Ledger(),
        source=source or Source.system(),
    )


CROSS = CrossMoments(0.5, 0.8, Fraction(1, 3))
seconds = st.none() | st.builds(
    Second,
    st.integers(1, K),
    st.sampled_from(["leading", "means"]),
    st.sampled_from([0.5, 1.0]),
    around=st.sampled_from(["origin", "means"]),
)
designs = st.builds(
    MomentConfig,
    epsilon=st.fractions("1/50", 8, max_denominator=1000),
    delta=st.sampled_from([Fraction(0), Fraction(1, 10**5), Fraction(1, 10**6)]),
    k=st.just(K),
    clip_norm=st.sampled_from([0.5, 1.0, 3.0]),
    scales=st.none() | st.just((1.0, 0.5, 2.0, 4.0, 1.5)),
    constant=st.sampled_from([0.0, 0.2, 0.7]),
    share_sums=st.fractions("1/10", "9/10", max_denominator=20),
    second=seconds,
    contributions=st.integers(1, 5),
    pure=st.sampled_from(["laplace", "radial"]),
)


@settings(max_examples=30, deadline=None)
@given(designs, st.sampled_from(RELATIONS))
def test_what_is_charged_keeps_to_the_budget_and_wastes_little_of_it(
    design: MomentConfig, relation: str
) -> None:
    """Composition of the parts: exact for Laplace noise, to the printed digits for Gaussian noise."""
    scales, charges = calibrate(design, relation)
    total = compose(charges)
    assert total.epsilon_proved <= design.epsilon
    assert total.delta == design.delta
    assert float(total.epsilon_proved) == pytest.approx(float(design.epsilon), rel=2e-5, abs=2e-6)
    assert all(charge.proof.startswith("docs/proof-moments.md Theorem") for charge in charges)
    if design.second is not None:
        assert scales.second > 0
        assert (scales.second_diagonal > scales.second) == (design.mechanism != "radial")


@settings(max_examples=25, deadline=None)
@given(designs, st.sampled_from(RELATIONS))
def test_charges_are_the_sensitivities_of_the_clips_that_clip(design: MomentConfig, relation: str) -> None:
    """Theorems 1 to 3: nothing is derived a second time, and a person's records multiply (group privacy)."""
    scales, charges = calibrate(design, relation)
    clip, fine = design.clip(), design.second_clip()
    people = design.contributions
    if design.joint:
        joint = clip.joint_loss_squared(Fraction(scales.sums), Fraction(scales.second_diagonal), relation)
        assert charges[0].loss ** 2 >= people**2 * joint
        assert float(charges[0].loss ** 2) == pytest.approx(float(people**2 * joint), rel=1e-6)
        return
    sums = clip.rows_sensitivity if design.mechanism == "radial" else clip.sums_sensitivity
    assert charges[0].sensitivity == people * sums(relation)
    assert charges[0].scale == scales.sums
    if fine is not None:
        unit = scales.second if design.delta == 0 else scales.second_diagonal
        sensitivity = triangle_sensitivity if design.mechanism == "radial" else Clip.second_sensitivity
        assert charges[1].sensitivity == people * sensitivity(fine, relation)
        assert charges[1].scale == unit


@pytest.mark.parametrize("design", [PURE, NOISY, replace(NOISY, second=Second(3))])
def test_a_person_with_three_records_needs_three_times_the_noise(design: MomentConfig) -> None:
    """Group privacy: one person's records multiply the sensitivity."""
    one, _ = calibrate(design, "replace-one")
    three, charges = calibrate(replace(design, contributions=3), "replace-one")
    assert three.sums / one.sums == pytest.approx(3, rel=1e-5)
    if design.second:
        assert three.second / one.second == pytest.approx(3, rel=1e-5)
    assert compose(charges).epsilon_proved <= design.epsilon


@given(st.integers(1, 10**30))
def test_noise_off_the_diagonal_is_the_least_that_makes_the_cost_a_frobenius_norm(diagonal: int) -> None:
    """Theorem 2: 2 off^2 >= diagonal^2, and one step less would not do."""
    off = off_diagonal(diagonal)
    assert 2 * off**2 >= diagonal**2
    assert 2 * (off - 1) ** 2 < diagonal**2


def test_laplace_noise_on_the_diagonal_is_twice_that_off_it() -> None:
    """Theorem 1 counts the diagonal half."""
    scales, _ = calibrate(replace(PURE, second=Second(3)), "replace-one")
    assert scales.second_diagonal == 2 * scales.second


@pytest.mark.parametrize("design", [PURE, NOISY], ids=["laplace", "gaussian"])
@pytest.mark.parametrize("second", [None, Second(3), Second(3, clip_norm=0.7)])
def test_the_sums_are_the_same_integers_in_any_batches(design: MomentConfig, second: Second | None) -> None:
    """The grid: sums are exact, so neither the order nor the batch size is visible in a release."""
    design = replace(design, second=second)
    z, y = records(5000)
    order = np.random.default_rng(1).permutation(len(z))
    first = moments._sums(batched(z, y, 5000), len(CLASSES), design)
    for size, (zs, ys) in itertools.product((19, 4097), [(z, y), (z[order], y[order])]):
        table, products, n, _ = moments._sums(batched(zs, ys, size), len(CLASSES), design)
        assert n == 5000
        assert (table == first[0]).all()
        assert (products is None) == (second is None)
        if products is not None and first[1] is not None:
            assert (products == first[1]).all()


def test_the_sums_are_those_of_a_slow_twin() -> None:
    """Class sums, counts and products in Python's unbounded integers, a record at a time."""
    design = replace(NOISY, second=Second(3, clip_norm=0.5), constant=0.3)
    z, y = records(50)
    table, products, _, _ = moments._sums(batched(z, y, 7), len(CLASSES), design)
    clip, fine = design.clip(), design.second_clip()
    assert fine is not None
    assert products is not None
    sums = [[0] * (1 + K) for _ in CLASSES]
    squares = [[0] * 3 for _ in range(3)]
    for row, code in zip(z, y, strict=True):
        whole = [int(v) for v in clip.integers(row[None])[0]]
        sums[code] = [a + b for a, b in zip(sums[code], [clip.count, *whole], strict=True)]
        part = [int(v) for v in fine.integers(row[None, :3])[0]]
        squares = [[squares[j][m] + part[j] * part[m] for m in range(3)] for j in range(3)]
    assert table.tolist() == sums
    assert products.tolist() == squares


def test_one_replaced_record_changes_the_sums_by_its_own_rows_alone() -> None:
    """What the sensitivities are applied to: every other record's integers stay as they were."""
    design = replace(NOISY, second=Second(K))
    z, y = records(200)
    changed, labels = z.copy(), y.copy()
    changed[17], labels[17] = -3 * z[17], (y[17] + 1) % len(CLASSES)
    before = moments._sums(batched(z, y, 64), len(CLASSES), design)
    after = moments._sums(batched(changed, labels, 64), len(CLASSES), design)
    old, new = (moments._sums(batched(a[17:18], b[17:18], 1), len(CLASSES), design)
                for a, b in ((z, y), (changed, labels)))  # fmt: skip
    assert (after[0] - before[0] == new[0] - old[0]).all()
    assert before[1] is not None and after[1] is not None and old[1] is not None and new[1] is not None  # noqa: PT018
    assert (after[1] - before[1] == new[1] - old[1]).all()


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "design",
    [
        replace(PURE, second=Second(K)),
        replace(PURE, scales=(1.0, 0.5, 2.0, 4.0, 1.5), contributions=2),
        replace(PURE, pure="radial", scales=(1.0, 0.5, 2.0, 4.0, 1.5), second=Second(K)),
        replace(NOISY, second=Second(K)),
        replace(NOISY, second=Second(K, clip_norm=0.5)),
    ],
    ids=["laplace", "adaptive laplace", "radial", "gaussian, joint", "gaussian, apart"],
)
def test_the_noise_has_the_standard_deviation_that_is_stated(
    design: MomentConfig, relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """False alarm 1e-6 a part: sums of |Laplace| and of radii are Gamma, of Gaussian squares chi-square."""
    monkeypatch.setattr(moments, "calibrate", functools.cache(calibrate))  # the same each time, only faster
    data = records(20)
    table, products, _, _ = moments._sums(batched(*data, 20), len(CLASSES), design)
    source = Source.system()
    made = [release(design, relation, source=source, data=data) for _ in range(25)]
    facts = made[0].certificate.settings
    parts = [(np.stack([r.tensors["class_sums"].numpy() - table for r in made]), facts["sd_sums"])]
    if products is not None:
        noise = np.stack([r.tensors["second"].numpy() for r in made]) - np.triu(products)
        above = np.triu(np.ones_like(products, dtype=np.bool_), 1)
        parts.append((noise[:, above], facts["sd_second"]))
        parts.append((np.diagonal(noise, axis1=1, axis2=2), facts["sd_second_diagonal"]))
        assert not noise[:, above.T].any()
    for part, (drawn, sd) in enumerate(parts):
        if design.delta:
            low, size, high = (
                stats.chi2.ppf(5e-7, drawn.size),
                ((drawn / sd) ** 2).sum(),
                stats.chi2.isf(5e-7, drawn.size),
            )
        elif design.pure == "radial":
            if part:  # entries of one long row: about normal, but for their common length
                ratio = np.sqrt((drawn.astype(float) ** 2).mean()) / sd
                assert 0.75 < ratio < 1.3
                continue
            lengths = np.sqrt((drawn.astype(float) ** 2).sum(-1)) / (sd / math.sqrt(K + 2))
            low, size, high = (
                stats.gamma.ppf(5e-7, drawn.size),
                lengths.sum(),
                stats.gamma.isf(5e-7, drawn.size),
            )
        else:
            unit = sd / math.sqrt(2)
            low, size, high = (
                stats.gamma.ppf(5e-7, drawn.size),
                np.abs(drawn / unit).sum(),
                stats.gamma.isf(5e-7, drawn.size),
            )
        assert low < size < high


def test_moments_in_real_numbers_are_the_clipped_sums_plus_that_noise() -> None:
    """With so large a budget that no noise is left, the released numbers are the true ones."""
    z, y = records(400)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    design = replace(NOISY, epsilon=Fraction(10**6), second=Second(3), clip_norm=1.0)
    released = release(design, data=(z, y)).moments()
    true = np.stack([z[y == c].sum(0) for c in range(3)])
    assert released.n == 400
    np.testing.assert_allclose(released.sums, true, atol=0.2)
    np.testing.assert_allclose(released.counts, np.bincount(y), atol=0.6)
    assert released.second is not None
    np.testing.assert_allclose(released.second, z[:, :3].T @ z[:, :3], atol=0.5)


def test_the_second_stage_looks_where_the_released_means_are() -> None:
    """Adaptive second stage: its basis is a function of what was already released, and of nothing else."""
    design = replace(PURE, second=Second(4, "means"))
    made = release(design)
    basis = made.tensors["basis"].numpy()
    np.testing.assert_allclose(basis.T @ basis, np.eye(4), atol=1e-12)
    sums = made.moments().sums.numpy()
    assert (frame(sums, 4) == basis).all()
    between = sums - sums.mean(0)
    np.testing.assert_allclose(between @ basis @ basis.T, between, atol=1e-9 * np.abs(between).max())


def test_the_charge_is_written_before_any_noise_is_drawn() -> None:
    """Order of the ledger: a source that fails leaves a charge and no release."""

    class Broken(Source):
        def octets(self, count: int) -> npt.NDArray[np.uint8]:
            raise KeyboardInterrupt

    ledger = Ledger()
    with pytest.raises(KeyboardInterrupt):
        release(PURE, source=Broken(bytes(32), seeded=False), ledger=ledger)
    assert [c.what for c in ledger.charges] == ["class sums and counts"]


def test_a_release_beyond_the_budget_draws_nothing() -> None:
    ledger = Ledger(budget=Budget(Fraction(3, 2)))
    release(PURE, ledger=ledger)
    with pytest.raises(UserError, match="overspent"):
        release(PURE, ledger=ledger)
    assert len(ledger.charges) == 1


def test_the_number_of_records_is_kept_only_where_it_is_public() -> None:
    """What is public."""
    assert release(PURE, "replace-one").certificate.settings["n"] == 300
    hidden = release(PURE, "add-remove")
    assert hidden.certificate.settings["n"] is None
    assert hidden.moments().n == pytest.approx(float(hidden.moments().counts.sum()))


def test_a_certificate_says_nothing_that_depends_on_the_records() -> None:
    """What is public: two data sets of one size give certificates that differ in the hashes alone."""
    ones = release(PURE, data=(np.ones((50, K)), np.zeros(50, dtype=np.int64))).certificate.to_dict()
    others = release(PURE, data=records(50)).certificate.to_dict()
    for certificate in (ones, others):
        del certificate["tensors"], certificate["digest"]
    assert ones == others


def test_only_a_seeded_source_stamps() -> None:
    assert release(PURE).certificate.stamps == ()
    assert release(PURE, source=Source.seeded_with(1)).certificate.stamps == (SEEDED,)


def test_no_records_no_release() -> None:
    ledger = Ledger()
    with pytest.raises(UserError, match="no records"):
        release(PURE, data=(np.zeros((0, K)), np.zeros(0, dtype=np.int64)), ledger=ledger)
    assert ledger.charges == ()
