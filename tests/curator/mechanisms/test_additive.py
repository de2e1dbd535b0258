"""Statements about the release of a table: its proof (docs/proof-tables.md) and what it is good for."""

from __future__ import annotations

import math
import xml.dom.minidom
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adlm.analyst import tables
from adlm.analyst.fit import fit
from adlm.analyst.metrics import measure
from adlm.curator.clipping import Clip
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms import additive as curator
from adlm.curator.mechanisms import additive_calibration as calibration
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.estimation import additive
from adlm.estimation.additive_scaling import UNIT, Scaling
from adlm.privacy.budget import Budget
from adlm.privacy.certificate import PEEKED, SEEDED
from adlm.public.domain.column import Column
from adlm.public.domain.table import TableDomain
from adlm.public.features.tabular import TabularFeatures
from adlm.public.planning.tables import TablePlan, plan_table
from adlm.workflows.privatise import privatise

NORMS = ("l1", "l2")
SHARES = (Fraction(1, 5),) * 5
PLAN = TablePlan(5, "columns", True, SHARES)


def made_table(classes: int = 2, **settings: Any) -> TableDomain:
    return TableDomain(
        (
            Column("age", "numeric", 0, 1),
            Column("town", "categorical", values=tuple("abcd")),
            Column("ill", "boolean"),
            Column("y", "label", classes=tuple(f"c{i}" for i in range(classes))),
        ),
        **settings,
    )


def made_records(n: int, classes: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, n)
    age = np.clip(generator.normal(0.3 + 0.4 * y / (classes - 1), 0.15), 0, 1)
    town = np.where(generator.random(n) < 0.5, y % 4, generator.integers(0, 4, n))
    ill = generator.random(n) < 0.3 + 0.3 * (y == classes - 1)
    x = np.column_stack([age, np.eye(4)[town], ill]).astype(np.float32)
    return x, y.astype(np.int64)


def passes(x: NDArray[np.float32], y: NDArray[np.int64]) -> Callable[[], Iterable[Any]]:
    return lambda: [(x[i : i + 500], y[i : i + 500]) for i in range(0, len(y), 500)]


@lru_cache
def calibrated(delta: Fraction) -> calibration.TableScales:
    return calibration.calibrate(PLAN, Budget(Fraction(1), delta), "replace-one").scales


def stages(x: Any, y: Any, table: TableDomain, delta: Fraction) -> Any:
    """The curator's stages on records, with noise that is never drawn."""
    features = TabularFeatures(table, detail=5)
    budget = calibrated(delta)
    z = features(torch.from_numpy(np.atleast_2d(x))).numpy()
    return curator._Stages(lambda: [(z, np.atleast_1d(y))], features, len(table.label.classes), budget,
                           Source.seeded_with(0))  # fmt: skip


def distance(difference: NDArray[Any], norm: str) -> float:
    return float(np.abs(difference).sum() if norm == "l1" else math.sqrt(float((difference**2.0).sum())))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 3])
def test_tables_of_neighbours_are_within_the_stated_sensitivity(norm: str, classes: int) -> None:
    table, delta = made_table(classes), Fraction(norm == "l2", 10**5)
    unit = Clip(norm, (1.0,), 1.0)  # type: ignore[arg-type]
    allowed = float(calibration._table_sensitivity(unit, "replace-one"))
    x, y = made_records(60, classes, 1)
    largest = 0.0
    for i in range(0, 60, 2):
        one, other = (stages(x[j], y[j], table, delta) for j in (i, i + 1))
        moved = one.class_tables(one.clip)[0] - other.class_tables(other.clip)[0]
        largest = max(largest, distance(moved, norm))
    assert largest <= allowed
    assert largest > 0.9 * allowed  # records of different classes attain it


@pytest.mark.parametrize("norm", NORMS)
def test_worst_neighbours_attain_it(norm: str) -> None:
    """Two records of one class that share no cell are as far apart as is charged, up to their count."""
    table, delta = made_table(), Fraction(norm == "l2", 10**5)
    one = stages(np.array([0, 1, 0, 0, 0, 0], np.float32), 0, table, delta)
    other = stages(np.array([1, 0, 1, 0, 0, 1], np.float32), 0, table, delta)
    moved = one.class_tables(one.clip)[0] - other.class_tables(other.clip)[0]
    allowed = float(calibration._table_sensitivity(one.clip, "replace-one"))
    whole, room = one.clip.record_norm_bound, one.clip.feature_norm_bound
    assert allowed * room / whole * 0.999 < distance(moved, norm) <= allowed


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 4])
def test_derivatives_of_neighbours_are_within_the_stated_sensitivity(
    norm: str, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, delta = made_table(classes), Fraction(norm == "l2", 10**5)
    monkeypatch.setattr(curator._Stages, "_noise", lambda self, shape, scale: np.zeros(shape, np.int64))
    generator = np.random.default_rng(2)
    indicators = TabularFeatures(table, detail=5).indicators
    column_weights = additive.ColumnWeights.of(
        generator.normal(size=(classes, indicators)),
        np.full(classes, -1.0),
        TabularFeatures(table, detail=5).blocks,
    )
    x, y = made_records(80, classes, 3)
    unit = Clip(norm, (1.0,), 1.0)  # type: ignore[arg-type]
    for i in range(0, 80, 2):
        (g1, h1, *_), (g2, h2, *_) = (
            stages(x[j], y[j], table, delta)._derivatives(column_weights, 0.5) for j in (i, i + 1)
        )
        r1, r2 = (stages(x[j], y[j], table, delta)._residuals(column_weights.linear())[0] for j in (i, i + 1))
        assert distance(g1 - g2, norm) <= unit.sums_sensitivity("replace-one")
        assert distance(r1 - r2, norm) <= unit.sums_sensitivity("replace-one")
        upper = (h1 - h2).astype(float)
        if norm == "l1":  # half weight on the diagonal, whose noise is twice as large
            cost = np.abs(upper).sum() - np.abs(upper.diagonal()).sum() / 2
        else:
            cost = math.sqrt(2 * (np.triu(upper, 1) ** 2).sum() + (upper.diagonal() ** 2).sum())
        assert cost <= unit.second_sensitivity("replace-one")
        assert cost > 0


@pytest.mark.parametrize("norm", NORMS)
def test_sums_of_offsets_and_temperature_move_as_far_as_is_charged(norm: Any) -> None:
    generator = np.random.default_rng(6)
    scaling = Scaling(np.log(np.array([0.5, 0.3, 0.2])), 0.3)
    scores = generator.normal(0, 3, (400, 3))
    rows = scaling.shares_of(scores, generator.integers(0, 3, 400))
    assert (rows[:, :3].sum(1) <= UNIT).all()
    alone = np.concatenate([scaling.shares_of(scores[i : i + 1], np.array([0])) for i in range(5)])
    assert np.array_equal(alone, scaling.shares_of(scores[:5], np.zeros(5, np.int64)))  # in any batch
    most = max(distance(one - other, norm) for one in rows[:200] for other in rows[200:])
    assert most <= calibration.scaling_sensitivity(norm, "replace-one")
    assert most > 0.75 * float(calibration.scaling_sensitivity(norm, "replace-one"))
    most = max(distance(one, norm) for one in rows)
    assert 0.75 * float(calibration.scaling_sensitivity(norm, "add-remove")) < most
    assert most <= calibration.scaling_sensitivity(norm, "add-remove")


def test_a_step_of_temperature_follows_the_derivatives_of_the_log_likelihood() -> None:
    """Against differences of the log likelihood itself, for scores too small to be bounded."""
    generator = np.random.default_rng(8)
    scores, codes = 0.2 * generator.normal(size=(500, 3)), generator.integers(0, 3, 500)
    scores[np.arange(500), codes] += 0.1

    def likelihood(log_factor: float) -> float:
        logits = np.exp(log_factor) * scores
        return float((logits[np.arange(500), codes] - np.log(np.exp(logits).sum(1))).sum())

    sums = Scaling(np.zeros(3)).shares_of(scores, codes).sum(0) / UNIT
    h = 1e-4
    first = (likelihood(h) - likelihood(-h)) / (2 * h)
    second = (likelihood(h) - 2 * likelihood(0) + likelihood(-h)) / h**2
    assert sums[3] == pytest.approx(first, abs=0.1)
    assert sums[4] == pytest.approx(first - second, abs=0.2)


@pytest.mark.parametrize("epsilon", ["0.5", "1"])
def test_many_columns_under_much_noise_are_put_together_with_the_right_offsets(epsilon: str) -> None:
    """Scores of forty noisy tables ranked records well, but added up to offsets that no class has."""
    generator = np.random.default_rng(3)
    y = generator.integers(0, 2, 6000)
    x = np.clip(generator.normal(0.45 + 0.1 * y[:, None], 0.15, (6000, 40)), 0, 1).astype(np.float32)
    columns = tuple(Column(f"c{i}", "numeric", 0, 1) for i in range(40))
    table = TableDomain((*columns, Column("y", "label", classes=("n", "y"))))
    accuracy = []
    for seed in range(3):
        release = privatise(passes(x[:4000], y[:4000]), domain=table, epsilon=epsilon, seed=seed)
        assert release.certificate.settings["plan"]["weights"] == "none"
        model = fit(release)
        found = measure(model.probabilities(x[4000:]), y[4000:])
        accuracy.append(found.accuracy)
        told = model.training["estimated_accuracy"], model.training["estimated_accuracy_sd"]
        assert abs(found.accuracy - told[0]) < 5 * told[1] + 0.05
    assert np.mean(accuracy) > (0.8 if epsilon == "1" else 0.7)


@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 10**5)])
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("people", [1, 3])
def test_charges_keep_to_the_budget(delta: Fraction, neighbours: str, people: int) -> None:
    from adlm.privacy.accounting import compose

    budget = calibration.calibrate(PLAN, Budget(Fraction(1, 2), delta), neighbours, people)
    total = compose(budget.charges)
    assert Fraction(49, 100) < total.epsilon_proved <= Fraction(1, 2)
    assert total.delta == delta
    assert len(budget.charges) == 6
    one = calibration.calibrate(PLAN, Budget(Fraction(1, 2), delta), neighbours, 1)
    assert budget.scales.tables == pytest.approx(people * one.scales.tables, rel=1e-5)


def test_the_charge_is_written_before_noise_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = made_records(300, 2, 4)
    ledger = Ledger(None, Budget(Fraction(1)))
    drawn: list[int] = []

    def draw(self: Any, shape: tuple[int, ...], scale: int) -> Any:
        drawn.append(len(ledger.charges))
        return np.zeros(shape, np.int64)

    monkeypatch.setattr(curator._Stages, "_noise", draw)
    privatise(passes(x, y), domain=made_table(), epsilon=1, ledger=ledger, seed=0)
    assert drawn
    assert min(drawn) > 0
    drawn.clear()
    with pytest.raises(UserError, match="overspent"):
        privatise(passes(x, y), domain=made_table(), epsilon=1, ledger=ledger, seed=0)
    assert not drawn


@pytest.mark.parametrize("delta", ["0", "1e-5"])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_model_learns_and_survives_the_disk(classes: int, delta: str, tmp_path: Any) -> None:
    from adlm.analyst.model import Model
    from adlm.privacy.release import Release

    x, y = made_records(6000, classes, 5)
    release = privatise(passes(x, y), domain=made_table(classes), epsilon=3, delta=delta, seed=1)
    release.save(tmp_path / "r")
    model = fit(Release.load(tmp_path / "r"))
    test, codes = made_records(3000, classes, 6)
    found = measure(model.probabilities(test), codes)
    assert found.accuracy > (0.85 if classes == 2 else 0.66)
    assert found.calibration_error < (0.08 if delta == "0" else 0.12)
    model.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    assert np.array_equal(again.predict(test), model.predict(test))
    assert SEEDED in release.certificate.stamps


def test_without_noise_the_stages_reach_a_logistic_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.linear_model import LogisticRegression

    x, y = made_records(8000, 2, 7)
    test, codes = made_records(4000, 2, 8)
    release = privatise(passes(x, y), domain=made_table(), epsilon=1000, delta="1e-5", seed=1)
    features = TabularFeatures(made_table(), detail=16)
    z, t = (features(torch.from_numpy(v)).numpy() / features.unit for v in (x, test))
    best = LogisticRegression(max_iter=1000).fit(z, y).predict_proba(t)
    ours = fit(release).probabilities(test)
    assert measure(ours, codes).log_loss < measure(best, codes).log_loss + 0.05
    assert measure(ours, codes).accuracy > measure(best, codes).accuracy - 0.01


def test_relevance_by_column_finds_the_column_that_matters() -> None:
    generator = np.random.default_rng(99)
    x, y = made_records(4000, 2, 9)
    x[:, 1:5] = np.eye(4, dtype=np.float32)[generator.integers(0, 4, 4000)]
    x[:, 5] = generator.random(4000) < 0.5
    release = privatise(passes(x, y), domain=made_table(), epsilon=2, seed=1)
    relevance = tables.relevance(release)
    assert sum(relevance.values()) == pytest.approx(1)
    assert max(relevance, key=lambda name: relevance[name]) == "age"
    assert relevance["age"] > 0.8
    picture = tables.relevance_picture(release)
    assert [picture.index(f">{name}<") for name in sorted(relevance, key=lambda n: -relevance[n])] == sorted(
        picture.index(f">{name}<") for name in relevance
    )
    xml.dom.minidom.parseString(picture)


def test_relevance_of_a_record_release_is_added_up_over_what_encodes_a_column() -> None:
    from adlm.privacy.release import Release

    table = made_table()
    values = torch.tensor([0.2, 0.1, -0.3, 0.0, 0.1, 0.6], dtype=torch.float64)
    release = Release.make(
        {"relevance": values}, kind="records", domain=table.domain, settings={}, charges=(),
        features={"spec": {"name": "tabular", "table": table.to_dict()}},
    )  # fmt: skip
    shares = tables.relevance(release)
    assert shares == pytest.approx({"age": 0.2, "town": 0.2, "ill": 0.6})
    other = Release.make({}, kind="records", domain=table.domain, settings={}, charges=(), features={})
    assert not tables.has_columns(other)
    with pytest.raises(UserError, match="of something else"):
        tables.relevance(other)


def test_the_number_of_records_is_kept_only_where_it_is_public() -> None:
    x, y = made_records(800, 2, 10)
    shown = privatise(passes(x, y), domain=made_table(), epsilon=1, seed=0).certificate.settings["n"]
    assert shown == 800
    private = made_table(neighbours="add-remove")
    with pytest.raises(UserError, match="the number of records is private"):
        privatise(passes(x, y), domain=private, epsilon=1, seed=0)
    certificate = privatise(passes(x, y), domain=private, epsilon=1, seed=0, size=1000).certificate
    assert certificate.settings["n"] is None
    assert certificate.settings["n_estimated"] != 800


def test_learnt_bounds_stamp_the_certificate() -> None:
    x, y = made_records(300, 2, 11)
    peeked = made_table(bounds_learnt_from_data=True)
    assert PEEKED in privatise(passes(x, y), domain=peeked, epsilon=1, seed=0).certificate.stamps


def test_the_rule_spends_on_more_stages_as_the_budget_grows() -> None:
    table = made_table()
    small, middle, large = (plan_table(table, 5000, Fraction(e), Fraction(0)) for e in ("0.01", "1", "100"))
    assert [small.weights, middle.weights, large.weights] == ["none", "columns", "columns"]
    assert [small.residuals, large.residuals] == [False, True]
    assert small.detail < large.detail
    assert all(sum(plan.shares) == 1 for plan in (small, middle, large))


def chessboard(n: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Two columns that tell the class together, and nothing apart."""
    generator = np.random.default_rng(seed)
    x = generator.random((n, 2)).astype(np.float32)
    return x, ((x[:, 0] > 0.5) ^ (x[:, 1] > 0.5)).astype(np.int64)


def test_random_fourier_features_learn_what_columns_tell_together() -> None:
    table = TableDomain(
        (Column("a", "numeric", 0, 1), Column("b", "numeric", 0, 1), Column("y", "label", classes=("n", "y")))
    )
    x, y = chessboard(8000, 13)
    test, codes = chessboard(2000, 14)
    found = {}
    for fourier in (0, 16):
        release = privatise(passes(x, y), domain=table, epsilon=3, delta="1e-5", seed=1, fourier=fourier)
        assert float(release.certificate.totals.epsilon_proved) <= 3
        found[fourier] = measure(fit(release).probabilities(test), codes).accuracy
    assert min(found.values()) > 0.8  # 0 leaves their number to the rule
    relevance = tables.relevance(release)
    assert list(relevance) == ["a", "b", tables.FOURIER]
    assert sum(relevance.values()) == pytest.approx(1)
    assert relevance[tables.FOURIER] > 0.5


def test_the_rule_takes_as_many_random_fourier_features_as_the_noise_allows() -> None:
    table = made_table()

    def planned(n: int, epsilon: str) -> int:
        return plan_table(table, n, Fraction(epsilon), Fraction(0), "auto").fourier

    assert planned(5000, "0.1") == 0
    assert 0 < planned(5000, "1.5") < planned(5000, "2.5") <= planned(50000, "2.5") == 16
    assert plan_table(table, 5000, Fraction(3), Fraction(0)).fourier == 0  # none unless asked for
    words = TableDomain((Column("a", "categorical", values=("x", "y")), table.label))
    assert plan_table(words, 10**6, Fraction(3), Fraction(0), "auto").fourier == 0
    x, y = made_records(5000, 2, 15)
    release = privatise(passes(x, y), domain=table, epsilon="1.5", seed=0, fourier="auto")
    assert release.certificate.settings["plan"]["fourier"] == planned(5000, "1.5")
    with pytest.raises(UserError, match="fourier must be auto or an integer"):
        plan_table(table, 5000, Fraction(3), Fraction(0), 1001)


def test_smoothing_keeps_signal_and_drops_noise() -> None:
    """With 200 repetitions the mean squared errors are within a few per cent of their expectation."""
    generator = np.random.default_rng(12)
    noise = np.full(8, 0.25)
    none = [
        additive.smooth(generator.normal(0, 0.5, 8), noise, 1.0, (0.05, 0.5, 5.0), False) for _ in range(200)
    ]
    assert np.mean(np.square(none)) < 0.1 * 0.25
    strong = 5 * generator.normal(size=(200, 8))
    kept = [
        additive.smooth(s + generator.normal(0, 0.5, 8), noise, 1.0, (0.05, 0.5, 5.0), False) for s in strong
    ]
    assert np.mean((np.array(kept) - strong) ** 2) < 1.1 * 0.25


def test_two_classes_are_given_a_temperature_only_where_noise_is_far_above_the_signal() -> None:
    columns = tuple(Column(f"c{i}", "numeric", 0, 1) for i in range(10))
    for classes, epsilons in ((2, ("0.02",)), (3, ("0.02", "0.1"))):
        label = Column("y", "label", classes=tuple(f"y{i}" for i in range(classes)))
        table = TableDomain((*columns, label))
        for epsilon in ("0.02", "0.1"):
            plan = plan_table(table, 10_000, Fraction(epsilon), Fraction(0))
            assert plan.weights == "none"
            assert (plan.scaling_share > 0) == (epsilon in epsilons)
            assert ("temperature" in plan.reasons[-1]) == (epsilon in epsilons)


def test_categories_alone_are_given_a_temperature() -> None:
    columns = tuple(Column(f"c{i}", "categorical", values=("a", "b", "c")) for i in range(10))
    table = TableDomain((*columns, Column("y", "label", classes=("no", "yes"))))
    assert plan_table(table, 10_000, Fraction(1, 10), Fraction(0)).scaling_share > 0
