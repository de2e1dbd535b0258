"""Gradient rounds: bounds, batch independence, calibration, the head, the model."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.broken_variants import ROUNDS

from adlm.domain import NEIGHBOURS, Domain
from adlm.engine import passes
from adlm.engine.passes import PartStore, Records
from adlm.errors import UserError
from adlm.mechanism.gradient_rounds import (
    Centred,
    Confidences,
    GradientClip,
    PredictedSum,
    RoundSum,
    confidences_sensitivity,
    feature_integers,
    on_grid,
    predicted_sensitivity,
)
from adlm.mechanism.planner import Plan
from adlm.mechanism.privatise import calibrated_plan, privatise
from adlm.model.closed_form import below_majority_baseline, estimated_accuracy, released_head
from adlm.model.estimates import class_offsets, plausible_counts, posterior_counts
from adlm.model.fit import fit
from adlm.model.head import (
    FEATURE_UNIT,
    GRADIENT_UNIT,
    RESIDUAL_UNIT,
    WEIGHT_UNIT,
    Descent,
    GradientRounds,
    Head,
    calibrated_head,
    feature_mean,
    final_head,
    tempered_head,
)
from adlm.model.training import default_plan
from adlm.privacy.accounting import Budget, compose
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import arithmetic as exact

DELTA = Fraction(1, 10**5)
PLAN = GradientRounds(5, 0.25, 4.0, 100)


def records(n: int, k: int, classes: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    return feature_integers(z)[0], rng.integers(0, classes, n)


def head(k: int, classes: int, scale: float = 5.0, seed: int = 1) -> Head:
    rng = np.random.default_rng(seed)
    return Head(np.rint(scale * rng.normal(size=(classes, 1 + k)) * WEIGHT_UNIT), 0.25)


def slow_gradient(z: Any, code: int, at: Head, clip_norm: float) -> Any:
    """One record's clipped gradient, from the definition."""
    extended = np.concatenate([[0.25], z / (1 << 14)])
    scores = at.integers / WEIGHT_UNIT @ extended
    p = np.exp(scores - scores.max())
    p /= p.sum()
    p[code] -= 1
    gradient = np.outer(p, extended)
    return gradient * min(1.0, clip_norm / max(float(np.linalg.norm(gradient)), 1e-300))


def test_the_exponential_is_that_of_the_library_to_fourteen_digits() -> None:
    x = np.maximum(-np.abs(np.random.default_rng(0).normal(size=10_000)) * 10, exact.LEAST)
    assert np.abs(exact.exp(x) / np.exp(x) - 1).max() < 1e-14
    edges = np.array([0.0, exact.LEAST, -1e9])
    assert exact.exp(edges)[0] == 1.0
    assert np.array_equal(exact.exp(edges)[1:], np.full(2, np.exp(exact.LEAST)))


def test_a_gradient_is_that_of_its_definition() -> None:
    z, codes = records(50, 7, 3)
    clip, at = GradientClip(0.25, 0.25), head(7, 3)
    for row, code in zip(z, codes, strict=True):
        found = clip.gradient(row[None], np.array([code]), at) / GRADIENT_UNIT
        assert np.abs(found - slow_gradient(row, int(code), at, 0.25)).max() < 3e-4


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40), st.integers(2, 12), st.floats(0.01, 1.9), st.floats(0, 3000), st.integers(0, 2**31)
)
def test_no_record_has_a_gradient_beyond_the_bound(
    k: int, classes: int, clip_norm: float, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    z = rng.integers(-(1 << 14), (1 << 14) + 1, (20, k)).astype(np.int16)
    codes, at = rng.integers(0, classes, 20), head(k, classes, min(scale, 4000), seed)
    clip = GradientClip(clip_norm, 0.25)
    for row, code in zip(z, codes, strict=True):
        total = clip.gradient(row[None], np.array([code]), at).astype(object)
        assert int((total * total).sum()) <= clip.bound**2


def test_a_records_integers_do_not_depend_on_its_batch_place_or_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    z, codes = records(9000, 33, 5)
    clip, at = GradientClip(0.25, 0.25), head(33, 5)
    alone = np.concatenate(
        [clip.residuals(z[i : i + 1].astype(float), codes[i : i + 1], at) for i in range(300)]
    )
    assert np.array_equal(alone, clip.residuals(z[:300].astype(float), codes[:300], at))
    order = np.random.default_rng(3).permutation(9000)
    shuffled = clip.residuals(z[order].astype(float), codes[order], at)
    assert np.array_equal(shuffled[np.argsort(order)], clip.residuals(z.astype(float), codes, at))

    def total(*parts: Any) -> Any:
        store = PartStore()
        for part in parts:
            store.append(on_grid(part[0], part[1], clip))
        sums = Records(store).total(RoundSum(clip, at))
        assert sums is not None
        return sums[0].integers()

    whole = total((z, codes))
    parts = [(z[i : i + 1234], codes[i : i + 1234]) for i in range(0, 9000, 1234)]
    for threads in (1, 4):
        monkeypatch.setattr(passes, "threads_here", lambda threads=threads: threads)
        assert np.array_equal(whole, total(*parts))
    assert np.array_equal(total((z[order], codes[order])), whole)


def test_two_records_can_attain_twice_the_bound_under_replace_one() -> None:
    clip, at = GradientClip(0.25, 0.25), Head(np.zeros((2, 3)), 0.25)
    z = feature_integers(np.array([[1.0, 0.0]]))[0]
    one, other = (clip.gradient(z, np.array([code]), at) for code in (0, 1))
    moved = math.sqrt(float(((one - other).astype(float) ** 2).sum()))
    assert moved <= float(clip.sensitivity("replace-one"))
    assert moved > 0.99 * float(clip.sensitivity("replace-one"))
    assert clip.sensitivity("add-remove") * 2 == clip.sensitivity("replace-one")


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("people", [1, 3])
def test_the_charges_keep_to_the_budget_and_use_it(neighbours: str, people: int) -> None:
    domain = Domain((10,), 0.0, 1.0, ("a", "b", "c"), neighbours)
    shares = {"sums": Fraction(1, 10), "gradients": Fraction(88, 100), "check": Fraction(1, 50)}
    plan = Plan("gradient rounds", 3, 10, "gaussian", shares, rounds=PLAN)
    made = calibrated_plan(plan, domain, Budget(Fraction(1), DELTA), people)
    assert Fraction(99, 100) < compose(made.charges).epsilon_proved <= 1
    charge = made.charges[1]
    assert charge.what == "gradients of 5 rounds"
    one = people * GradientClip(PLAN.clip_norm, PLAN.constant).sensitivity(neighbours)
    assert float(charge.sensitivity) == pytest.approx(math.sqrt(5) * float(one), rel=1e-9)
    assert charge.scale == made.scales[1]


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_sums_of_predicted_probabilities_move_as_far_as_is_charged(neighbours: str) -> None:
    """Two records that a head is sure of, in different classes, are the worst."""
    steep = np.zeros((2, 3))
    steep[0, 1] = 1000.0 * (1 << 20)
    head, bound = Head(steep, PLAN.constant), float(predicted_sensitivity(neighbours))
    rng = np.random.default_rng(0)
    rows = [np.array([[4096, 0]]), np.array([[-4096, 0]])]
    rows += [rng.integers(-9000, 9000, (1, 2)) for _ in range(50)]
    sums = [np.zeros(2)] if neighbours == "add-remove" else []
    for row in rows:
        clip = GradientClip(PLAN.clip_norm, PLAN.constant)
        part = on_grid(row.astype(np.int16), np.zeros(1, dtype=np.int64), clip)
        sums.append(PredictedSum(clip, head)(part)[0].astype(float))
    if neighbours == "add-remove":
        moved = [float(np.linalg.norm(s)) for s in sums]
    else:
        moved = [float(np.linalg.norm(a - b)) for a in sums for b in sums]
    assert 0.999 * bound < max(moved) <= bound


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_no_record_moves_the_sums_of_confidences_beyond_their_bound(classes: int) -> None:
    clip, rng = GradientClip(PLAN.clip_norm, PLAN.constant), np.random.default_rng(classes)
    weights = np.zeros((classes, 3))
    weights[1, 1] = 2000.0 * WEIGHT_UNIT  # certain of class 1 where the first feature is positive
    count = Confidences(clip, Head(weights, PLAN.constant))
    codes = np.array([1, 0, *rng.integers(0, classes, 60)])
    z = np.array([[9000, 0], [0, 0], *rng.integers(-9000, 9000, (60, 2))]).astype(np.int16)
    rows = [count(on_grid(z[i : i + 1], codes[i : i + 1], clip))[0].astype(float) for i in range(len(z))]
    together = count(on_grid(z, codes, clip))[0]
    assert np.array_equal(np.sum(rows, 0), together)  # whatever the batch
    bound = float(confidences_sensitivity(classes))
    moved = [float(np.linalg.norm(a - b)) for a in [*rows, np.zeros(len(rows[0]))] for b in rows]
    assert 0.999 * bound < max(moved) <= bound


def test_a_head_is_as_sure_as_it_is_right() -> None:
    rng, clip = np.random.default_rng(3), GradientClip(PLAN.clip_norm, PLAN.constant)
    z = rng.integers(-12000, 12000, (4000, 2)).astype(np.int16)
    codes = ((z[:, 0] > 0) ^ (rng.random(4000) < 0.25)).astype(np.int64)
    head = Head(np.array([[0.0, 0, 0], [0, 9.0, 0]]) * WEIGHT_UNIT, PLAN.constant)
    sums = Confidences(clip, head)(on_grid(z, codes, clip))[0]
    table, step = np.array([[2000, 0, 0], [2000, 0, 0]]), np.ones(3)
    cooled = tempered_head(head, sums[:1], sums[1:], 0.0, table, step)
    probability = clip.probabilities(z, cooled)
    right = (probability.argmax(1) == codes).mean()
    assert clip.probabilities(z, head).max(1).mean() > right + 0.1
    assert abs(probability.max(1).mean() - right) < 0.01
    drowned = tempered_head(head, sums[:1], sums[1:], 1e5 * RESIDUAL_UNIT, table, step)
    assert np.array_equal(drowned.integers, head.integers)


def test_offsets_follow_the_counts_and_noise_alone_moves_them_little() -> None:
    head, step = Head(np.zeros((2, 3)), 0.25), np.ones(3)
    sums, even = np.array([[900, 0, 0], [100, 0, 0]]), np.array([500, 500]) * RESIDUAL_UNIT
    moved = calibrated_head(head, sums, step, 0.0, even, 0.0)
    assert moved.bias[0] - moved.bias[1] == pytest.approx(math.log(9), abs=0.03)
    assert np.array_equal(moved.integers[:, 1:], head.integers[:, 1:])
    noisy = calibrated_head(head, sums, step, 0.0, even, 1e6 * RESIDUAL_UNIT)
    assert np.abs(noisy.bias).max() < 0.01
    odd = np.array([-9, 10**9]) * RESIDUAL_UNIT
    assert np.isfinite(calibrated_head(head, -sums, step, 0.0, odd, 0.0).bias).all()


def test_rounds_refuse_settings_that_make_no_sense() -> None:
    for wrong in ({"rounds": 0}, {"clip_norm": 0.0}, {"momentum": 1.0}, {"average": 0.0}, {"constant": 2.0}):
        with pytest.raises(UserError):
            replace(PLAN, **wrong)


def test_descent_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(0)
    gradients = rng.integers(-(10**9), 10**9, (5, 3, 4))
    offsets = np.log(np.array([0.5, 0.25, 0.25]))
    w, v, heads = np.zeros((3, 4)), np.zeros((3, 4)), []
    w[:, 0] = offsets / PLAN.constant
    for g in gradients:
        mean = (g - g.mean(0)) / GRADIENT_UNIT / PLAN.size
        v = PLAN.momentum * v + mean
        w = w - PLAN.step * v
        heads.append(w)
    expected = heads[-1]  # the last quarter of five rounds is one
    assert np.allclose(final_head(gradients, PLAN, offsets).integers / WEIGHT_UNIT, expected, atol=1e-6)
    with pytest.raises(UserError, match="gradients"):
        Descent(PLAN, offsets, 3).final()


def test_offsets_are_log_shares_and_bounded_whatever_noise_says() -> None:
    assert np.allclose(class_offsets(np.array([750, 250])), np.log([0.75, 0.25]), atol=1e-3)
    assert np.isfinite(class_offsets(np.array([-5000, 100, 10]))).all()


def test_counts_that_noise_drove_apart_are_pulled_together_and_clear_ones_stand() -> None:
    clear = np.array([9000, 1000])
    assert plausible_counts(clear, 100.0) is clear
    noise = plausible_counts(np.array([30000, -8000, -20600, -1000]), 20000.0)
    assert (np.abs(noise - 100) <= 1).all()  # n / M, however far apart noise drove them
    some = plausible_counts(np.array([1000, 0]), 250.0)
    assert 500 < some[0] < 1000
    assert some.sum() == 1000
    shares = np.exp(class_offsets(np.array([300, -80, 110, 70]), 200.0))
    assert 0.25 < shares.max() < 0.5
    assert np.isfinite(class_offsets(np.array([5, 2, -7]), 40.0)).all()  # nobody seems to be there


def test_what_is_believed_of_counts_is_the_mean_of_what_noise_leaves_possible() -> None:
    """Against a sum over possible counts: exponential around n / M before, normal noise."""
    counts, spread = [260.0, 90.0, -50.0], 120.0
    possible = np.arange(0.05, 3000, 0.1)
    means = []
    for count in counts:
        odds = np.exp(-possible / 100 - 0.5 * ((possible - count) / spread) ** 2)
        means.append(float(possible @ odds / odds.sum()))
    together = posterior_counts(counts, spread)
    assert together is not None
    assert np.allclose(together, 300 * np.array(means) / sum(means), rtol=1e-3)


def test_a_mean_is_that_of_the_sums_and_noise_alone_is_no_mean() -> None:
    rng = np.random.default_rng(0)
    step = np.array([0.5, 0.01, 0.01, 0.02])
    sums = np.array([[200, 3000, -4000, 100], [600, 5000, 2000, 100]])
    found = feature_mean(sums, step, 0.0) / FEATURE_UNIT
    assert np.allclose(found, [80 / 400, -20 / 400, 4 / 400], atol=1 / FEATURE_UNIT)
    assert (np.abs(feature_mean(sums, step, 2000.0)) <= np.abs(feature_mean(sums, step, 0.0))).all()
    noise = rng.normal(scale=1000, size=(2, 4)).round().astype(np.int64)
    noise[:, 0] = 400
    assert (feature_mean(noise, step, 4000.0) == 0).all()


def test_centred_records_have_the_gradients_of_their_definition() -> None:
    z, codes = records(60, 7, 3)
    clip, at, centre = GradientClip(0.25, 0.25), head(7, 3), np.arange(-900, 1200, 300)
    part, _ = Centred(centre, clip)(on_grid(z, codes, clip))
    expected = sum(slow_gradient(row - centre, int(c), at, 0.25) for row, c in zip(z, codes, strict=True))
    found = RoundSum(clip, at)(part)[0].astype(float) / GRADIENT_UNIT
    assert np.abs(found - expected).max() < 60 * 3e-4


def test_a_head_for_centred_features_says_the_same_of_features_as_they_are() -> None:
    z, _ = records(60, 7, 3)
    clip, at, centre = GradientClip(0.25, 0.25), head(7, 3), np.arange(-900, 1200, 300)
    around = clip.scores((z - centre).astype(float), at)
    assert np.allclose(clip.scores(z.astype(float), at.uncentred(centre)), around, atol=1e-5)
    assert np.array_equal(at.uncentred(0 * centre).integers, at.integers)


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_no_pair_of_neighbours_moves_centred_gradients_further_than_is_charged(neighbours: str) -> None:
    """Given the released mean; a place as far from it as can be is the worst."""
    clip, at = GradientClip(0.25, 0.25), Head(np.zeros((2, 3)), 0.25)
    centre, bound = np.array([1 << 14, 0]), float(clip.sensitivity(neighbours))
    z = feature_integers(np.array([[-1.0, 0.0]]))[0]
    parts = (Centred(centre, clip)(on_grid(z, np.array([c]), clip))[0] for c in (0, 1))
    one, other = (RoundSum(clip, at)(part)[0] for part in parts)
    moved = one if neighbours == "add-remove" else one - other
    length = math.sqrt(float((moved.astype(float) ** 2).sum()))
    assert 0.99 * bound < length <= bound


def blobs(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 6)) * 0.15 + 0.5
    x[np.arange(n), y] += 0.3
    return np.clip(x, 0, 1), y


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_a_release_with_rounds_learns_is_verified_and_its_head_is_computed_anew(
    neighbours: str, tmp_path: Any
) -> None:
    domain = Domain((6,), 0.0, 1.0, ("a", "b", "c"), neighbours)
    x, y = blobs(6000, 1)
    made = privatise(x, y, domain=domain, epsilon=1, delta="1e-5", seed=1, size=6000)
    made.save(tmp_path / "r")
    release = Release.load(tmp_path / "r")
    assert "gradients" in release.tensors
    assert release.certificate.settings["rounds"]["centred"]
    assert np.array_equal(released_head(release).integers, released_head(made).integers)
    model = fit(release)
    test, truth = blobs(2000, 2)
    accuracy = (model.predict(test) == truth).mean()
    assert accuracy > 0.85
    found = estimated_accuracy(release)
    assert found is not None
    assert abs(found[0] - accuracy) < 0.05
    if neighbours == "replace-one":
        network = fit(release, "mlp", replace(default_plan(2000), epochs=10), draws=2000)
        assert (network.predict(test) == truth).mean() > accuracy - 0.05


def test_charges_are_written_before_the_first_noise() -> None:
    ledger = Ledger(budget=Budget(Fraction(1), DELTA))
    x, y = blobs(3000, 1)
    domain = Domain((6,), 0.0, 1.0, ("a", "b", "c"))
    privatise(x, y, domain=domain, epsilon=1, delta="1e-5", ledger=ledger, seed=1)
    with pytest.raises(UserError, match="overspent"):
        privatise(x, y, domain=domain, epsilon=1, delta="1e-5", ledger=ledger, seed=1)


def test_a_model_without_a_signal_says_so_and_gives_the_largest_class() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((4000, 6)), (rng.random(4000) < 0.1).astype(int)
    domain = Domain((6,), 0.0, 1.0, ("a", "b"))
    release = privatise(x, y, domain=domain, epsilon="0.5", delta="1e-5", seed=2)
    model = fit(release)
    if below_majority_baseline(release):
        assert "largest class" in str(model.training["warning"])
        assert (model.predict(x) == 0).all()
    assert (model.predict(x) == y).mean() > 0.88


@pytest.mark.parametrize("control", ROUNDS, ids=lambda control: control.__name__)
def test_rounds_that_are_wrong_on_purpose_are_caught(control: Any) -> None:
    found = control(100, Source.seeded_with(1))
    assert found.lower > float(found.claimed)
