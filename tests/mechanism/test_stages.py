"""The stages of a release: what they cost, in which order they run, and how far one record moves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from adlm.domain import Domain
from adlm.domain.columns import Column
from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.engine.passes import Records
from adlm.errors import UserError
from adlm.features import for_domain, narrowed
from adlm.mechanism import class_sums, objective
from adlm.mechanism.objective import Bounded, Correct, Objective
from adlm.mechanism.planner import Plan, plan_features, plan_table
from adlm.mechanism.privatise import calibrated_plan, release_by_plan, stages_of, sums_clip
from adlm.mechanism.stages import Stored
from adlm.model.head import BINS, WEIGHT_UNIT, TargetScale
from adlm.privacy.accounting import Budget, Charge, compose
from adlm.privacy.clipping import Clip
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Scale, Source
from adlm.privacy.release import Release

Integers = npt.NDArray[np.int64]
Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]
RELATIONS = ("replace-one", "add-remove")
INPUTS = 5  # numbers of an encoded record of `table`


def table(last: Column | None = None, neighbours: str = "replace-one", **settings: Any) -> TableDomain:
    return TableDomain(
        (
            Column("age", "numeric", 0, 100),
            Column("pay", "numeric", 0, 10),
            Column("town", "categorical", values=("a", "b", "c")),
            last or Column("y", "label", classes=("no", "maybe", "yes")),
        ),
        neighbours=neighbours,
        **settings,
    )


TARGET = Column("days", "target", 0, 20)
TWO = Column("y", "label", classes=("no", "yes"))


def some(n: int, of: TableDomain, seed: int = 0) -> Arrays:
    """Encoded records of a table whose last column follows age and town."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.random((n, 2)), np.eye(3)[rng.integers(0, 3, n)]], 1).astype(np.float32)
    position = np.clip(0.8 * x[:, 0] + 0.2 * x[:, 2], 0, 1)
    if of.target is not None:
        return x, np.rint(position * TARGET_UNIT).astype(np.int64)
    return x, np.minimum((position * len(of.label.classes)).astype(np.int64), len(of.label.classes) - 1)


def held(*arrays: npt.NDArray[Any]) -> Records:
    return Records.of_batches(lambda: [(arrays[0], arrays[1])])


def released(
    of: TableDomain, n: int = 300, epsilon: float = 8, contributions: int = 1, **more: Any
) -> Release:
    budget = more.pop("budget", Budget.of(epsilon))
    plan = more.pop("plan", None) or planned(of, n, epsilon / contributions)
    return release_by_plan(
        held(*some(n, of)),
        of,
        plan=plan,
        budget=budget,
        ledger=more.pop("ledger", Ledger()),
        source=more.pop("source", Source.seeded_with(1)),
        contributions=contributions,
        **more,
    )


def planned(of: TableDomain, n: int, epsilon: float, delta: Fraction = Fraction(0)) -> Plan:
    return plan_table(of, n, Fraction(str(epsilon)), delta)


class Watched(Source):
    """A source that calls a function before every draw."""

    before: Callable[[], None]
    draws = 0

    def laplace(self, shape: int | tuple[int, ...], scale: Scale) -> Integers:
        self.before()
        self.draws += 1
        return super().laplace(shape, scale)

    def gaussian(self, shape: int | tuple[int, ...], scale: Scale) -> Integers:
        self.before()
        self.draws += 1
        return super().gaussian(shape, scale)

    def radial(self, rows: int, width: int, scale: Scale) -> Integers:
        self.before()
        self.draws += 1
        return super().radial(rows, width, scale)


DELTA = Fraction(1, 10**5)
FORMS: dict[str, tuple[TableDomain, int, float, Fraction]] = {
    "centred": (table(), 200, 1.0, Fraction(0)),
    "indicators": (table(), 2_000_000, 4.0, Fraction(0)),
    "two classes": (table(TWO), 20_000, 4.0, Fraction(0)),
    "target": (table(TARGET), 20_000, 4.0, Fraction(0)),
    "gradient rounds": (table(), 200, 1.0, DELTA),
    "target, gradient rounds": (table(TARGET), 200, 1.0, DELTA),
}


# ---- Theorem 3: charges


@pytest.mark.parametrize("contributions", [1, 3])
@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize("form", FORMS)
def test_charges_of_all_stages_keep_to_epsilon_and_use_it(
    form: str, neighbours: str, contributions: int
) -> None:
    of, n, epsilon, delta = FORMS[form]
    of = replace(of, neighbours=neighbours)
    plan = planned(of, n, epsilon / contributions, delta)
    assert sum(stage.share for stage in stages_of(plan, of)) == 1
    budget = Budget.of(epsilon, delta)
    made = calibrated_plan(plan, of, budget, contributions)
    total = compose(made.charges)
    assert budget.epsilon * Fraction(99, 100) < Fraction(total.epsilon_proved) <= budget.epsilon
    assert (total.contributions, total.smallest_unit) == (contributions, contributions)
    assert {c.contributions for c in made.charges} == {contributions}
    once = calibrated_plan(plan, of, Budget.of(10**3, delta))
    for charge, single in zip(made.charges, once.charges, strict=True):
        times = 1 if charge.what == "error of the minimum" else contributions
        assert charge.sensitivity == times * single.sensitivity
        assert (Path(__file__).parents[2] / charge.proof.split()[0]).name.startswith("proof-")


def test_images_have_no_centre_to_release() -> None:
    domain = Domain((4,), 0, 1, ("a", "b", "c"))
    plan = plan_features(1000, 3, 1.0, "replace-one", for_domain(domain))
    charges = calibrated_plan(plan, domain, Budget.of(1)).charges
    assert [c.what for c in charges] == [
        "class sums and counts",
        "noise in the loss",
        "ridge of the loss",
        "error of the minimum",
        "correct predictions",
    ]


@pytest.mark.parametrize("form", FORMS)
def test_all_charges_are_in_the_ledger_before_the_first_noise(form: str) -> None:
    of, n, epsilon, delta = FORMS[form]
    ledger, source, seen = Ledger(), Watched.seeded_with(1), []
    source.before = lambda: seen.append(len(ledger.charges))
    plan, budget = planned(of, n, epsilon, delta), Budget.of(8, delta)
    made = released(of, plan=plan, budget=budget, ledger=ledger, source=source)
    assert source.draws == sum(stage.draws for stage in stages_of(plan, of))
    assert set(seen) == {len(made.certificate.charges)}
    assert ledger.charges == made.certificate.charges


@pytest.mark.parametrize("form", FORMS)
def test_a_release_beyond_the_budget_reads_nothing_and_draws_nothing(form: str) -> None:
    of, n, epsilon, delta = FORMS[form]
    source, read = Watched.seeded_with(1), []

    def batches() -> list[Arrays]:
        read.append(1)
        return [some(20, of)]

    with pytest.raises(UserError, match="overspent"):
        release_by_plan(
            Records.of_batches(batches),
            of,
            plan=planned(of, n, epsilon, delta),
            budget=Budget.of(8, delta),
            ledger=Ledger(budget=Budget.of(7, delta)),
            source=source,
        )
    assert not read
    assert not source.draws


def test_no_records_cost_nothing() -> None:
    for of, n, epsilon, delta in FORMS.values():
        ledger = Ledger()
        with pytest.raises(UserError, match="no records"):
            release_by_plan(
                Records.of_batches(lambda: []),
                of,
                plan=planned(of, n, epsilon, delta),
                budget=Budget.of(8, delta),
                ledger=ledger,
                source=Source.seeded_with(1),
            )
        assert not ledger.charges


def test_a_solver_that_fails_has_spent_its_budget_and_released_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objective, "MOST_STEPS", 1)
    ledger = Ledger()
    with pytest.raises(UserError, match="nothing was released"):
        released(table(), ledger=ledger)
    assert Fraction(compose(ledger.charges).epsilon_proved) <= 8


def test_the_number_of_records_is_kept_only_where_it_is_public() -> None:
    public = released(table())
    assert public.certificate.settings["n"] == 300
    hidden = released(table(neighbours="add-remove"))
    person = released(table(), contributions=3)
    assert hidden.certificate.settings["n"] is None
    assert person.certificate.settings["n"] is None
    assert person.certificate.totals.contributions == 3
    assert {c.neighbours for c in hidden.certificate.charges} == {"add-remove"}


def test_a_certificate_is_a_function_of_public_numbers_and_of_the_seed() -> None:
    of = table(neighbours="add-remove")
    plan = planned(of, 300, 8.0)
    certificates = []
    for n in (200, 300):
        made = released(of, n, plan=plan)
        certificates.append(
            (made.certificate.settings, made.certificate.charges, made.certificate.stamps, set(made.tensors))
        )
    assert certificates[0] == certificates[1]


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_release_is_proved_anew_when_it_is_read(form: str, tmp_path: Path) -> None:
    of, n, epsilon, delta = FORMS[form]
    plan, budget = planned(of, n, epsilon, delta), Budget.of(8, delta)
    made = released(of, plan=plan, budget=budget)
    made.save(tmp_path / "R")
    read = Release.load(tmp_path / "R")
    assert read.certificate == made.certificate
    assert Fraction(read.certificate.totals.epsilon_proved) <= 8
    again = calibrated_plan(Plan.from_dict(read.certificate.settings["plan"]), of, budget)
    assert [Charge.from_dict(c.to_dict()) for c in read.certificate.charges] == list(again.charges)


def test_bounds_learnt_from_the_records_leave_nothing_proved() -> None:
    made = released(table(bounds_learnt_from_data=True))
    assert compose(made.certificate.charges).unproved
    with pytest.raises(UserError, match="no epsilon is proved"):
        released(table(bounds_learnt_from_data=True), ledger=Ledger(budget=Budget.of(100)))


def test_a_release_learns_classes_and_a_target() -> None:
    """With little noise the released weights say what the records say: the stages fit together."""
    for of, least in ((table(), 0.75), (table(TWO), 0.8)):
        made = released(of, 4000, 60)
        share = float(made.tensors["correct"][0]) / 4000
        assert share > least
    made = released(table(TARGET), 4000, 60)
    model, mean = (float(v) for v in made.tensors["errors"])
    assert model < 0.5 * mean


def test_vectors_are_released_without_a_table() -> None:
    domain = Domain((4,), 0, 1, ("a", "b", "c"))
    rng = np.random.default_rng(1)
    features = for_domain(domain)
    plan = plan_features(200, 3, 8.0, "replace-one", features)
    z = rng.normal(size=(200, plan.k)).astype(np.float32) * 0.3
    made = release_by_plan(
        held(z, rng.integers(0, 3, 200)),
        domain,
        plan=plan,
        budget=Budget.of(8),
        ledger=Ledger(),
        source=Source.seeded_with(1),
        features=narrowed(features, plan.k),
    )
    assert set(made.tensors) == {"class_sums", "step", "weights", "correct"}
    assert made.tensors["weights"].shape == (3, 1 + plan.k)


# ---- Lemmas 2 and 3: how far one record moves a stage


Sums = Callable[[npt.NDArray[Any], npt.NDArray[Any]], list[npt.NDArray[Any]]]


def farthest(
    sums: Sums, norm: Callable[[Any], float], neighbours: str, of: TableDomain, count: int = 400
) -> float:
    """The farthest that one record moves a sum, by search over corners, ties and values outside bounds."""
    rng, best = np.random.default_rng(4), 0.0
    for _ in range(count):
        x = rng.choice([0.0, 1.0, 0.5, 1e-7, -3.0, 7.0, rng.random()], (2, INPUTS)).astype(np.float32)
        if rng.random() < 0.1:
            x[0] = rng.integers(2)  # a whole corner, which few random records are
        if rng.random() < 0.3:
            x[1] = 1 - x[0]
        if of.target is not None:
            y = rng.choice([0, TARGET_UNIT, TARGET_UNIT // 2, int(rng.integers(TARGET_UNIT))], 2)
        else:
            y = rng.integers(0, len(of.label.classes), 2)
        one, other = sums(x[:1], y[:1]), sums(x[1:], y[1:])
        for a, b in zip(one, other, strict=True):
            best = max(best, norm(a - b if neighbours == "replace-one" else a))
        both = sums(x, y)  # a sum over records, whatever their batch
        assert all((a + b == c).all() for a, b, c in zip(one, other, both, strict=True))
    return best


def loss_of(plan: Plan) -> Objective:
    assert plan.objective is not None
    return plan.objective


def rows_norm(moved: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(moved.astype(float).reshape(len(moved), -1), axis=1).sum())


def one_norm(moved: npt.NDArray[Any]) -> float:
    return float(np.abs(moved).sum())


def charged(plan: Plan, of: TableDomain) -> dict[str, float]:
    """Sensitivities of all stages for one record."""
    charges = calibrated_plan(plan, of, Budget.of(10**3)).charges
    return {c.what: float(c.sensitivity) for c in charges}


@pytest.mark.parametrize("neighbours", RELATIONS)
def test_one_record_moves_the_mean_and_the_distance_by_at_most_what_is_charged(neighbours: str) -> None:
    of = table(neighbours=neighbours)
    most = charged(planned(of, 200, 1.0), of)
    centre = class_sums.CentreSum(class_sums.centre_clip(INPUTS))
    moved = farthest(lambda x, y: [centre((x, y))[0]], lambda m: rows_norm(m[None]), neighbours, of)
    assert 0.9 * most["mean of the records"] < moved <= most["mean of the records"]
    for place in (np.zeros(INPUTS), np.full(INPUTS, 0.4), np.array([0, 1, 0.2, 1, 0.7])):
        distance = class_sums.DistanceSum(place)
        moved = farthest(lambda x, y, d=distance: [d((x, y))[0]], one_norm, neighbours, of)  # type: ignore[misc]
        assert moved <= most["mean distance to it"]
    distance = class_sums.DistanceSum(np.zeros(INPUTS))
    assert (
        farthest(lambda x, y: [distance((x, y))[0]], one_norm, neighbours, of)
        > 0.99 * class_sums.LENGTH_STEPS
    )


def test_a_distance_does_not_depend_on_its_batch() -> None:
    rng = np.random.default_rng(2)
    for width in (1, 7, 130, 300):
        x, y = rng.random((50, width)).astype(np.float32), np.zeros(50)
        distance = class_sums.DistanceSum(rng.random(width))
        alone = sum(int(distance((x[i : i + 1], y[:1]))[0][0]) for i in range(50))
        assert alone == distance((x, y))[0][0] == distance((np.asfortranarray(x), y))[0][0]


@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize("form", ["centred", "indicators"])
def test_one_record_moves_class_sums_by_at_most_what_is_charged(form: str, neighbours: str) -> None:
    of, n, epsilon, _ = FORMS[form]
    of = replace(of, neighbours=neighbours)
    plan = replace(planned(of, n, epsilon), k=INPUTS)
    table = class_sums.ClassSums(3, sums_clip(plan))
    norm = one_norm if plan.noise == "laplace" else rows_norm
    most = charged(plan, of)["class sums and counts"]

    def sums(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        return [table((x, y))[0]]

    assert 0.9 * most < farthest(sums, norm, neighbours, of) <= most


@pytest.mark.parametrize("neighbours", RELATIONS)
def test_one_record_moves_the_targets_stages_by_at_most_what_is_charged(neighbours: str) -> None:
    of = table(TARGET, neighbours)
    plan = replace(planned(of, 20_000, 4.0), k=INPUTS)
    most = charged(plan, of)
    counts = class_sums.TargetCounts(Clip("l1", (1.0,) * (BINS + 1), 1.0))
    keep = Stored(counts, Bounded(loss_of(plan), INPUTS))
    moved = farthest(lambda x, y: [keep((x, y))[1][0]], one_norm, neighbours, of)
    assert 0.99 * most["counts of the target's bins"] < moved <= most["counts of the target's bins"]
    rng = np.random.default_rng(1)
    best = 0.0
    for scale in (TargetScale(0.5, 0.1), TargetScale(0.0, 0.01), TargetScale(0.9, 0.3)):
        errors = objective.SquaredErrors(rng.normal(size=(1, 1 + INPUTS)) * 20, scale)

        def sums(x: Any, y: Any, errors: objective.SquaredErrors = errors) -> list[npt.NDArray[Any]]:
            return [errors(keep((x, y))[0])[0]]

        best = max(best, farthest(sums, one_norm, neighbours, of, 150))
    what = "squared errors of the model and of the mean"
    assert 0.9 * most[what] < best <= most[what]


@pytest.mark.parametrize("neighbours", RELATIONS)
def test_one_record_moves_the_count_of_correct_predictions_by_one(neighbours: str) -> None:
    of = table(neighbours=neighbours)
    plan = replace(planned(of, 200, 1.0), k=INPUTS)
    bounded = Bounded(loss_of(plan), INPUTS)
    weights = np.random.default_rng(1).integers(-(WEIGHT_UNIT << 4), WEIGHT_UNIT << 4, (3, 1 + INPUTS))
    moved = farthest(lambda x, y: [Correct(weights)(bounded((x, y)))[0]], one_norm, neighbours, of, 100)
    assert moved == charged(plan, of)["correct predictions"] == 1


def test_bins_of_a_target_are_not_negative_and_sum_to_one() -> None:
    positions = np.array(
        [-5, 0, 1, TARGET_UNIT // BINS, TARGET_UNIT // 3, TARGET_UNIT - 1, TARGET_UNIT, 1 << 40]
    )
    bins = class_sums.bins_of(positions)
    assert (bins >= 0).all()
    np.testing.assert_array_equal(bins.sum(1), 1)
    kept = np.clip(positions, 0, TARGET_UNIT) / TARGET_UNIT
    np.testing.assert_allclose(bins @ (np.arange(BINS + 1) / BINS), kept, atol=1e-12)


# ---- after the noise


def test_means_that_noise_hides_are_taken_to_be_alike() -> None:
    noisy = 0.3 + 0.3 * np.random.default_rng(1).normal(size=300)
    found = class_sums.likely_means(noisy, 0.3)
    assert found.std() < 0.06
    assert abs(found.mean() - 0.3) < 0.06


def test_clear_means_are_kept_and_lie_within_their_bounds() -> None:
    noisy = np.array([-0.2, 0.0, 0.1, 0.5, 0.51, 0.93, 1.4])
    found = class_sums.likely_means(noisy, 1e-3)
    np.testing.assert_allclose(found, np.clip(noisy, 0, 1), atol=0.01)
    assert (np.diff(class_sums.likely_means(noisy, 0.1)) >= 0).all()


def test_likely_means_are_closer_to_the_truth_than_noisy_ones() -> None:
    rng = np.random.default_rng(5)
    truth = rng.choice([0.1, 0.6], 400)
    for spread in (0.05, 0.2, 0.5):
        noisy = truth + spread * rng.normal(size=400)
        found = ((class_sums.likely_means(noisy, spread) - truth) ** 2).mean()
        assert found < 0.8 * ((np.clip(noisy, 0, 1) - truth) ** 2).mean()
