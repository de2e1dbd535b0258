"""A table by gradient rounds, all the way: release, audit, network, draws, ONNX, relevance by column."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from adlm.audit.artefacts import audit_release
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.errors import NoisyModelWarning, UserError
from adlm.features.tables import IndicatorTable, ScaledTable
from adlm.mechanism.planner import check_share, plan_table, values_share
from adlm.mechanism.privatise import calibrated_plan, plan_release, privatise
from adlm.model import closed_form as tables
from adlm.model.closed_form import log_shares
from adlm.model.draws import draw_records, draw_table
from adlm.model.fit import fit
from adlm.model.head import RESIDUAL_UNIT
from adlm.model.metrics import measure
from adlm.model.training import default_plan
from adlm.privacy.accounting import Budget, compose
from adlm.privacy.clipping import Clip
from adlm.privacy.noise import Source
from adlm.privacy.release import Release


def made_table(neighbours: str = "replace-one") -> TableDomain:
    return TableDomain(
        (
            Column("age", "numeric", 0, 100),
            Column("pay", "numeric", 0, 10, missing="category"),
            Column("town", "categorical", values=("a", "b", "c")),
            Column("y", "label", classes=("no", "maybe", "yes")),
        ),
        neighbours=neighbours,
    )


def records(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    age, pay, gone = rng.random(n), rng.random(n), rng.random(n) < 0.1
    town = np.eye(3)[rng.integers(0, 3, n)]
    y = np.digitize(age + 0.2 * town[:, 0] + 0.05 * rng.normal(size=n), [0.4, 0.7])
    x = np.column_stack([age, np.where(gone, 0, pay), gone, town]).astype(np.float32)
    return x, y.astype(np.int64)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, y = records(6000, 1)
    release = privatise(
        lambda: [(x, y)], domain=made_table(), epsilon=1, delta="1e-5", source=Source.system()
    )
    folder = tmp_path_factory.mktemp("rounds") / "R"
    release.save(folder)
    return folder


def test_it_learns_and_any_network_learns_from_its_draws(made: Path) -> None:
    release = Release.load(made)
    x, y = records(2000, 2)
    best = float((fit(release).predict(x) == y).mean())
    assert best > 0.8
    network = fit(release, "mlp", replace(default_plan(6000), epochs=30), draws=6000)
    assert float((network.predict(x) == y).mean()) > best - 0.015


def test_made_records_follow_released_frequencies_and_correlations() -> None:
    rng = np.random.default_rng(0)
    age = rng.beta(2, 6, 20_000)
    pay = np.clip(age + 0.05 * rng.normal(size=20_000), 0, 1)
    gone, town = rng.random(20_000) < 0.3, np.eye(3)[rng.choice(3, 20_000, p=[0.7, 0.2, 0.1])]
    x = np.column_stack([age, np.where(gone, 0, pay), gone, town]).astype(np.float32)
    y = (age > 0.25).astype(np.int64)
    release = privatise(lambda: [(x, y)], domain=made_table(), epsilon=3, delta="1e-5", seed=1)
    features = release.features()
    assert isinstance(features, ScaledTable)
    made = draw_records(release, features, 8000, torch.Generator().manual_seed(0)).numpy()
    assert made.shape == (8000, 6)
    assert made.min() >= 0
    assert made.max() <= 1
    assert made[:, 0].mean() == pytest.approx(age.mean(), abs=0.03)
    assert made[:, 2].mean() == pytest.approx(0.3, abs=0.03)
    assert np.allclose(made[:, 3:].mean(0), [0.7, 0.2, 0.1], atol=0.03)
    assert (made[made[:, 2] == 1, 1] == 0).all()
    here = made[:, 2] == 0
    assert np.asarray(np.corrcoef(made[here, 0], made[here, 1]))[0, 1] > 0.3
    assert draw_table(release, features, 50, torch.Generator().manual_seed(0)).shape == (
        50,
        features.width,
    )


def test_the_audit_of_the_artefact_finds_nothing_wrong(made: Path) -> None:
    findings = audit_release(made, 2000, Source.seeded_with(1))
    assert {f.verdict for f in findings} == {"holds"}


def test_a_matrix_that_was_not_released_is_found(made: Path, tmp_path: Path) -> None:
    release = Release.load(made)
    certificate = release.certificate
    assert "values" in release.tensors
    spec = dict(certificate.features["spec"])
    spec["mixing"] = [[0, 1], [1, 0]]
    described = dict(certificate.features) | {"spec": spec}
    Release(release.tensors, replace(certificate, features=described)).save(tmp_path / "R")
    first = audit_release(tmp_path / "R", 200, Source.seeded_with(1))[0]
    assert first.fault
    assert "mixes the values" in first.note


def test_few_records_and_many_categories_go_without_second_moments() -> None:
    plain = made_table()
    assert values_share(plain, 20, Fraction(1), Fraction(1, 10**5)) == 0
    assert values_share(plain, 6000, Fraction(1), Fraction(1, 10**5)) > 0
    words = TableDomain((plain.columns[2], plain.columns[3]))
    assert values_share(words, 6000, Fraction(1), Fraction(1, 10**5)) == 0


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("people", [1, 3])
def test_the_charges_of_mixed_values_keep_to_the_budget(neighbours: str, people: int) -> None:
    table = made_table(neighbours)
    plan = plan_table(table, 6000, Fraction(1), Fraction(1, 10**5))
    charges = calibrated_plan(plan, table, Budget(Fraction(1), Fraction(1, 10**5)), people).charges
    assert charges[1].what == "second moments of values"
    clip = Clip("l2", (1.0,) * 2, 1.0)
    assert charges[1].sensitivity == people * clip.second_sensitivity(neighbours)
    assert Fraction(99, 100) < compose(charges).epsilon_proved <= 1


def rare_records(n: int, seed: int) -> tuple[Any, Any]:
    """One record in sixteen is of the second class, which lies a little apart."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 1 / 16).astype(np.int64)
    x = 0.4 + 0.12 * rng.normal(size=(n, 6)) + 0.12 * y[:, None]
    return np.clip(x, 0, 1).astype(np.float32), y


def test_predicted_shares_agree_with_the_counts_on_an_imbalanced_table() -> None:
    columns = tuple(Column(f"x{j}", "numeric", 0, 1) for j in range(6))
    table = TableDomain((*columns, Column("y", "label", classes=("no", "yes"))))
    x, y = rare_records(20_000, 1)
    release = privatise(lambda: [(x, y)], domain=table, epsilon=0.3, delta="1e-5", seed=1)
    test, truth = rare_records(10_000, 2)
    shares = fit(release).probabilities(test).mean(0)
    assert abs(shares[1] - truth.mean()) < 0.012
    without = Release(
        {name: t for name, t in release.tensors.items() if name != "predicted"}, release.certificate
    )
    assert abs(fit(without).probabilities(test).mean(0)[1] - truth.mean()) > abs(shares[1] - truth.mean())


def test_a_model_is_as_sure_of_noisy_labels_as_it_is_right() -> None:
    columns = tuple(Column(f"x{j}", "numeric", 0, 1) for j in range(6))
    table = TableDomain((*columns, Column("y", "label", classes=("no", "yes"))))

    def noisy_labels(n: int, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        rng = np.random.default_rng(seed)
        x = rng.random((n, 6)).astype(np.float32)
        return x, ((x[:, 0] > 0.5) ^ (rng.random(n) < 0.3)).astype(np.int64)

    x, y = noisy_labels(4_000, 1)
    release = privatise(lambda: [(x, y)], domain=table, epsilon=1, delta="1e-5", seed=1)
    test, truth = noisy_labels(10_000, 2)

    def overconfidence(tensors: dict[str, torch.Tensor]) -> float:
        probability = fit(Release(tensors, release.certificate)).probabilities(test)
        return float(probability.max(1).mean() - (probability.argmax(1) == truth).mean())

    without = {name: t for name, t in release.tensors.items() if name != "confidences"}
    assert abs(overconfidence(dict(release.tensors))) < 0.03
    assert overconfidence(without) > 0.08


def test_a_drowned_model_gives_the_largest_class_and_says_so_but_still_ranks() -> None:
    columns = tuple(Column(f"x{j}", "numeric", 0, 1) for j in range(6))
    table = TableDomain((*columns, Column("y", "label", classes=("no", "yes"))))
    x, y = rare_records(20_000, 1)
    release = privatise(lambda: [(x, y)], domain=table, epsilon=0.3, delta="1e-5", seed=1)
    tensors = dict(release.tensors) | {"correct": torch.zeros(1, dtype=torch.int64)}
    drowned = Release(tensors, release.certificate)
    largest = round(20_000 * float(log_shares(release).exp().max()))
    unit = int(release.certificate.settings["correct_unit"])
    unsure = dict(tensors) | {"correct": torch.tensor([(largest + 1) * unit])}
    assert "too large to tell" in str(fit(Release(unsure, release.certificate)).training["warning"])
    sure = dict(tensors) | {"correct": torch.tensor([19_900 * unit])}
    assert "warning" not in fit(Release(sure, release.certificate)).training
    model, network = fit(drowned), fit(drowned, "mlp", draws=500)
    test, truth = rare_records(5_000, 2)
    for made in (model, network):
        assert "largest class" in str(made.training["warning"])
    assert (model.predict(test) == 0).all()
    assert (measure(model.probabilities(test), truth).auc or 0) > 0.7


def test_a_model_of_noise_is_never_silent() -> None:
    columns = tuple(Column(f"x{j}", "numeric", 0, 1) for j in range(4))
    table = TableDomain((*columns, Column("y", "label", classes=tuple("abcdefghij"))))
    rng = np.random.default_rng(0)
    x, y = rng.random((300, 4)).astype(np.float32), rng.integers(0, 10, 300)
    said = []
    for seed in range(12):
        release = privatise(lambda: [(x, y)], domain=table, epsilon="0.1", delta="1e-5", seed=seed)
        with pytest.warns(NoisyModelWarning):
            said.append(bool(fit(release).training.get("warning")))
        shares = log_shares(release).exp()
        assert shares.max() < 0.6  # noise on the counts is not taken for the largest class
    assert all(said)


def test_relevance_by_column_finds_the_column_that_matters(made: Path) -> None:
    shares = tables.relevance(Release.load(made))
    assert max(shares, key=lambda name: shares[name]) in ("age", tables.FOURIER)
    assert shares["age"] > shares["pay"]


def test_it_is_served_as_onnx(made: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="adlm[export] is not installed")
    from adlm.export.onnx import export_onnx

    export_onnx(fit(Release.load(made)), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size > 0


def test_draws_of_indicators_are_possible_cells() -> None:
    x, y = records(3000, 3)
    release = privatise(lambda: [(x, y)], domain=made_table(), epsilon=1000, seed=1)
    features = release.features()
    assert isinstance(features, IndicatorTable)
    z, _ = release.sample(200)
    assert (z >= 0).all()
    for block in features.blocks:
        assert torch.allclose(z[:, block.span].sum(1), torch.tensor(features.unit), atol=1e-5)


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_the_count_of_right_records_has_more_of_the_budget_where_noise_would_hide_it(neighbours: str) -> None:
    signals = (1.0, 40.0, 100.0, 300.0, 1e5)
    shares = [check_share(signal, neighbours) for signal in signals]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[-1]) == (Fraction(1, 10), Fraction(1, 50))
    noise = {}
    for n in (400, 100_000):
        table, budget = made_table(neighbours), (Fraction(1), Fraction(1, 10**5))
        plan = plan_table(table, n, *budget)
        noise[n] = calibrated_plan(plan, table, Budget(*budget)).scales[-1] / RESIDUAL_UNIT / n
    assert noise[400] < 0.05  # a fiftieth of the budget would leave more than twice as much
    assert noise[100_000] < 0.001


def test_a_small_table_that_is_learnt_well_is_not_warned_of() -> None:
    """Seeded: 400 records at epsilon 1, of two classes that one column tells apart."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    x = np.clip(rng.normal(0.4 + 0.2 * y[:, None], 0.05, (400, 6)), 0, 1).astype(np.float32)
    columns = (Column(f"c{i}", "numeric", 0, 1) for i in range(6))
    table = TableDomain((*columns, Column("y", "label", classes=("no", "yes"))), neighbours="add-remove")
    release = privatise(lambda: [(x, y)], domain=table, epsilon=1, delta="1e-5", size=400, seed=4)
    model = fit(release)
    assert float((model.predict(x) == y).mean()) > 0.9
    assert "warning" not in model.training


def categorical_table(classes: int) -> TableDomain:
    towns = (Column(f"town{i}", "categorical", values=("a", "b", "c")) for i in range(2))
    label = Column("y", "label", classes=tuple(f"y{i}" for i in range(classes)))
    return TableDomain((Column("age", "numeric", 0, 100), *towns, label))


def test_values_weigh_less_where_most_columns_are_categories() -> None:
    few, many = (plan_table(categorical_table(2), n, Fraction(1), Fraction(1, 10**5)) for n in (500, 10_000))
    assert (few.fourier, few.value_energy) == (200, 4.0)
    assert (many.fourier, many.value_energy, "values" in many.shares) == (0, 0.25, False)
    assert any("most columns are categories" in reason for reason in many.reasons)
    numbers = plan_table(made_table(), 10_000, Fraction(1), Fraction(1, 10**5))
    assert (numbers.fourier, numbers.value_energy) == (200, 4.0)
    asked = plan_table(categorical_table(2), 10_000, Fraction(1), Fraction(1, 10**5), fourier=30)
    assert asked.fourier == 30


def test_the_mechanism_changes_with_delta_alone() -> None:
    """Neither epsilon nor the number of records chooses another one, so accuracy has no step in it."""
    for n, classes in ((100, 2), (39_000, 2), (50_000, 2), (10**6, 3)):
        table = categorical_table(classes)
        for epsilon in map(Fraction, ("0.01", "0.1", "1", "10", "100")):
            assert plan_release(table, n, epsilon, Fraction(1, 10**5)).method == "gradient rounds"
            assert plan_release(table, n, epsilon, Fraction(0)).method == "perturbed loss"


def test_a_release_of_categories_learns_and_is_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (8000, 2))
    age = rng.random((8000, 1))
    y = ((codes[:, 0] == 1) ^ (rng.random(8000) < 0.1)).astype(np.int64)
    x = np.concatenate([age, np.eye(3)[codes[:, 0]], np.eye(3)[codes[:, 1]]], 1).astype(np.float32)
    release = privatise(lambda: [(x, y)], domain=categorical_table(2), epsilon=1, delta="1e-5", seed=1)
    release.save(tmp_path / "R")
    features = Release.load(tmp_path / "R").features()
    assert isinstance(features, ScaledTable)
    assert features.value_energy == 0.25
    one = torch.from_numpy(x[:50])
    assert torch.equal(features(one), release.features()(one))
    assert float((fit(Release.load(tmp_path / "R")).predict(x) == y).mean()) > 0.88


@pytest.mark.parametrize("energy", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_of_values_that_is_no_positive_number_is_refused(energy: float) -> None:
    table = categorical_table(2)
    even = [1 / 12] * 12 + [1 / 3] * 6
    with pytest.raises(UserError, match="value_energy must be a positive number"):
        ScaledTable(table, even, value_energy=energy)


def test_a_perturbed_loss_is_as_sure_as_it_is_right() -> None:
    """Weights that are too long leave accuracy as it is and probabilities far from what is true."""
    rng = np.random.default_rng(0)
    x = rng.random((12_000, 4)).astype(np.float32)
    chance = 1 / (1 + np.exp(-6 * (x[:, 0] + x[:, 1] - x[:, 2] - 0.5)))
    y = (rng.random(len(x)) < chance).astype(np.int64)
    columns = [Column(f"x{i}", "numeric", 0, 1) for i in range(4)]
    table = TableDomain((*columns, Column("y", "label", classes=("a", "b"))))
    batches = lambda: iter([(x[:10_000], y[:10_000])])  # noqa: E731
    release = privatise(batches, domain=table, epsilon=400, seed=1)
    assert "objective" in release.certificate.settings
    found = measure(fit(release).probabilities(x[10_000:]), y[10_000:])
    best = float(np.where(chance > 0.5, chance, 1 - chance)[10_000:].mean())
    assert found.accuracy > best - 0.04
    assert found.calibration_error is not None
    assert found.calibration_error < 0.07
