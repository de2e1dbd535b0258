"""Class sums keep their budget, have the noise that they state, and are the same integers in any batches.

Each test names the clause of docs/proof-moments.md that it holds up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adlm.domain import Domain
from adlm.engine.passes import Batches, Records
from adlm.errors import UserError
from adlm.features.base import Identity
from adlm.mechanism.class_sums import ClassSums, off_diagonal
from adlm.mechanism.planner import Plan
from adlm.mechanism.privatise import calibrated_plan, release_by_plan, sums_clip
from adlm.privacy.accounting import Budget, compose
from adlm.privacy.certificate import SEEDED
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

RELATIONS = ("replace-one", "add-remove")
K, CLASSES = 5, ("a", "b", "c")
PURE = Plan("class sums", 3, K, "laplace", sums_norm=2.0)
NOISY = Plan("class sums", 3, K, "gaussian")
SCALES = (1.0, 0.5, 2.0, 4.0, 1.5)
Array = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


def domain(neighbours: str = "replace-one") -> Domain:
    return Domain(shape=(K,), lower=0, upper=1, classes=CLASSES, neighbours=neighbours)


def budget_of(plan: Plan, epsilon: Fraction = Fraction(1)) -> Budget:
    return Budget(epsilon, Fraction(1, 10**5) if plan.noise == "gaussian" else Fraction(0))


def records(n: int = 300, seed: int = 0) -> tuple[Array, Codes]:
    """Directions of every kind, most of them longer than the clip."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, K)), rng.integers(0, len(CLASSES), n)


def batched(z: Array, y: Codes, size: int) -> Batches:
    def batches() -> Iterator[tuple[Array, Codes]]:
        for start in range(0, len(z), size):
            yield z[start : start + size], y[start : start + size]

    return batches


def summed(plan: Plan, z: Array, y: Codes, size: int = 1000) -> npt.NDArray[Any]:
    """The exact class sums of records in batches."""
    total = Records.of_batches(batched(z, y, size)).total(ClassSums(len(CLASSES), sums_clip(plan)))
    assert total is not None
    return total[0].integers()


def release(
    plan: Plan,
    neighbours: str = "replace-one",
    *,
    epsilon: Fraction = Fraction(1),
    source: Source | None = None,
    ledger: Ledger | None = None,
    data: tuple[Array, Codes] | None = None,
    contributions: int = 1,
) -> Release:
    return release_by_plan(
        batched(*(data or records()), 1000),
        domain(neighbours),
        features=Identity((K,)),
        plan=plan,
        budget=budget_of(plan, epsilon),
        ledger=ledger or Ledger(),
        source=source or Source.system(),
        contributions=contributions,
    )


plans = st.builds(
    Plan,
    method=st.just("class sums"),
    classes=st.just(3),
    k=st.just(K),
    noise=st.sampled_from(["laplace", "radial", "gaussian"]),
    sums_norm=st.sampled_from([0.5, 1.0, 3.0]),
    sums_constant=st.sampled_from([0.0, 0.2, 0.7]),
    scales=st.none() | st.just(SCALES),
)
epsilons = st.fractions("1/50", 8, max_denominator=1000)


@settings(max_examples=30, deadline=None)
@given(plans, epsilons, st.sampled_from(RELATIONS), st.integers(1, 5))
def test_what_is_charged_keeps_to_the_budget_and_wastes_little_of_it(
    plan: Plan, epsilon: Fraction, relation: str, people: int
) -> None:
    """Composition: exact for Laplace noise, to the printed digits for Gaussian noise."""
    budget = budget_of(plan, epsilon)
    total = compose(calibrated_plan(plan, domain(relation), budget, people).charges)
    assert total.epsilon_proved <= epsilon
    assert total.delta == budget.delta
    assert float(total.epsilon_proved) == pytest.approx(float(epsilon), rel=2e-5, abs=2e-6)


@settings(max_examples=25, deadline=None)
@given(plans, epsilons, st.sampled_from(RELATIONS), st.integers(1, 5))
def test_charges_are_the_sensitivities_of_the_clips_that_clip(
    plan: Plan, epsilon: Fraction, relation: str, people: int
) -> None:
    """Theorems 1 and 2: nothing is derived a second time, and a person's records multiply (group privacy)."""
    made = calibrated_plan(plan, domain(relation), budget_of(plan, epsilon), people)
    clip, (charge,) = sums_clip(plan), made.charges
    sums = clip.rows_sensitivity if plan.noise == "radial" else clip.sums_sensitivity
    assert charge.sensitivity == people * sums(relation)
    assert charge.scale == made.scales[0]
    assert charge.proof == f"docs/proof-moments.md Theorem {2 if plan.noise == 'gaussian' else 1}"


@pytest.mark.parametrize("plan", [PURE, NOISY])
def test_a_person_with_three_records_needs_three_times_the_noise(plan: Plan) -> None:
    """Group privacy: one person's records multiply the sensitivity."""
    one, three = (calibrated_plan(plan, domain(), budget_of(plan), people) for people in (1, 3))
    assert three.scales[0] / one.scales[0] == pytest.approx(3, rel=1e-5)
    assert compose(three.charges).epsilon_proved <= 1


@given(st.integers(1, 10**30))
def test_noise_off_the_diagonal_is_the_least_that_makes_the_cost_a_frobenius_norm(diagonal: int) -> None:
    """Theorem 2: 2 off^2 >= diagonal^2, and one step less would not do."""
    off = off_diagonal(diagonal)
    assert 2 * off**2 >= diagonal**2
    assert 2 * (off - 1) ** 2 < diagonal**2


@pytest.mark.parametrize("plan", [PURE, NOISY], ids=["laplace", "gaussian"])
def test_the_sums_are_the_same_integers_in_any_batches(plan: Plan) -> None:
    """The grid: sums are exact, so neither the order nor the batch size is visible in a release."""
    z, y = records(5000)
    order = np.random.default_rng(1).permutation(len(z))
    first = summed(plan, z, y, 5000)
    for size, (zs, ys) in itertools.product((19, 4097), [(z, y), (z[order], y[order])]):
        assert (summed(plan, zs, ys, size) == first).all()


def test_the_sums_are_those_of_a_slow_twin() -> None:
    """Class sums and counts in Python's unbounded integers, a record at a time."""
    plan = replace(NOISY, sums_constant=0.3)
    z, y = records(50)
    clip = sums_clip(plan)
    sums = [[0] * (1 + K) for _ in CLASSES]
    for row, code in zip(z, y, strict=True):
        whole = [int(v) for v in clip.integers(row[None])[0]]
        sums[code] = [a + b for a, b in zip(sums[code], [clip.count, *whole], strict=True)]
    assert summed(plan, z, y, 7).tolist() == sums


def test_one_replaced_record_changes_the_sums_by_its_own_rows_alone() -> None:
    """What the sensitivities are applied to: every other record's integers stay as they were."""
    z, y = records(200)
    changed, labels = z.copy(), y.copy()
    changed[17], labels[17] = -3 * z[17], (y[17] + 1) % len(CLASSES)
    old, new = (summed(NOISY, a[17:18], b[17:18], 1) for a, b in ((z, y), (changed, labels)))
    assert (summed(NOISY, changed, labels, 64) - summed(NOISY, z, y, 64) == new - old).all()


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("plan", "people"),
    [
        (PURE, 1),
        (replace(PURE, scales=SCALES), 2),
        (replace(PURE, noise="radial", scales=SCALES), 1),
        (NOISY, 1),
    ],
    ids=["laplace", "adaptive laplace", "radial", "gaussian"],
)
def test_the_noise_has_the_standard_deviation_that_is_stated(plan: Plan, people: int, relation: str) -> None:
    """False alarm 1e-6: sums of |Laplace| and of radii are Gamma, of Gaussian squares chi-square."""
    data, source = records(20), Source.system()
    exact = summed(plan, *data)
    made = [release(plan, relation, source=source, data=data, contributions=people) for _ in range(25)]
    drawn = np.stack([r.tensors["class_sums"].numpy() - exact for r in made]).astype(float)
    sd = made[0].certificate.settings["sd_sums"]
    law = stats.chi2(drawn.size) if plan.noise == "gaussian" else stats.gamma(drawn.size)
    if plan.noise == "gaussian":
        size = ((drawn / sd) ** 2).sum()
    elif plan.noise == "radial":
        size = (np.sqrt((drawn**2).sum(-1)) / (sd / math.sqrt(K + 2))).sum()
    else:
        size = np.abs(drawn / (sd / math.sqrt(2))).sum()
    assert law.ppf(5e-7) < size < law.isf(5e-7)


def test_moments_in_real_numbers_are_the_clipped_sums_plus_that_noise() -> None:
    """With so large a budget that no noise is left, the released numbers are the true ones."""
    z, y = records(400)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    released = release(NOISY, epsilon=Fraction(10**6), data=(z, y)).moments()
    assert released.n == 400
    np.testing.assert_allclose(released.sums, np.stack([z[y == c].sum(0) for c in range(3)]), atol=0.2)
    np.testing.assert_allclose(released.counts, np.bincount(y), atol=0.6)


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
