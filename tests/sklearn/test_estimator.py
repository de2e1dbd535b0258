"""Statements about the classifier with the scikit-learn API."""

from __future__ import annotations

import json
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.declared import AGE_AND_TOWN

from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.errors import NoisyModelWarning, UserError
from adlm.model.fit import fit
from adlm.model.training import TrainingConfig
from adlm.privacy.accounting import parse_epsilon
from adlm.privacy.certificate import PEEKED, SEEDED
from adlm.sklearn.estimators import AdLMClassifier, AdLMRegressor
from adlm.sklearn.inputs import PrivacyWarning

EXPECTED_TO_FAIL: dict[str, str] = {}  # none: every check that applies to a classifier passes

TOML = AGE_AND_TOWN
BRIEF = TrainingConfig(epochs=2, batch_size=100)


@pytest.mark.filterwarnings("ignore::adlm.sklearn.estimators.PrivacyWarning")
@parametrize_with_checks(
    [AdLMClassifier(epsilon=1000, random_state=0)], expected_failed_checks=lambda _: EXPECTED_TO_FAIL
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def people(n: int, seed: int) -> tuple[pd.DataFrame, Any]:
    generator = np.random.default_rng(seed)
    age = generator.uniform(0, 100, n)
    town = generator.choice(["north", "south"], n)
    ill = generator.random(n) < 1 / (1 + np.exp(-(age - 50) / 8 - 2 * (town == "south") + 1))
    return pd.DataFrame({"age": age, "town": town}), pd.Series(np.where(ill, "yes", "no"))


def test_a_frame_with_a_domain_is_learnt_privately() -> None:
    frame, labels = people(4000, 0)
    made = AdLMClassifier(epsilon=1, domain=TableDomain.from_toml(TOML)).fit(frame, labels)
    test, truth = people(2000, 1)
    assert made.score(test, truth) > 0.85
    assert made.classes_.tolist() == ["no", "yes"]
    assert float(made.certificate_.totals.epsilon_proved) <= 1
    assert made.certificate_.stamps == ()
    assert made.release_.certificate is made.certificate_
    assert np.allclose(made.predict_proba(test).sum(1), 1)


def test_an_array_with_a_domain_is_not_stamped_and_without_one_is() -> None:
    frame, labels = people(1000, 0)
    x, y = frame[["age"]].to_numpy(), (labels == "yes").to_numpy().astype(int)
    declared = AdLMClassifier(epsilon=2, domain=Domain((1,), 0, 100, ("no", "yes"))).fit(x, y)
    assert declared.certificate_.stamps == ()
    assert declared.classes_.tolist() == ["no", "yes"]  # as declared, though the labels are codes
    assert declared.score(x, y) == declared.score(x, labels) > 0.5
    with pytest.warns(PrivacyWarning, match="learnt from the data"):
        learnt = AdLMClassifier(epsilon=2, random_state=1).fit(x, y)
    assert set(learnt.certificate_.stamps) == {PEEKED, SEEDED}


def test_a_persons_records_are_bounded_in_a_frame_too() -> None:
    frame, labels = people(300, 7)
    table = TableDomain.from_toml(TOML + '[columns.id]\nkind = "person"\nrecords = 1\n')
    with pytest.raises(UserError, match="there is no column 'id'"):
        AdLMClassifier(domain=table).fit(frame, labels)
    with pytest.raises(UserError, match="give a DataFrame"):
        AdLMClassifier(domain=table).fit(frame[["age"]].to_numpy(), labels)
    frame["id"] = [f"p{i // 3}" for i in range(300)]
    made = AdLMClassifier(epsilon=1, domain=table).fit(frame, labels)
    assert made.certificate_.settings["n"] == 100
    assert made.predict(frame).shape == (300,)  # predicting reads every record, and needs no person
    assert made.predict(frame.drop(columns="id")).shape == (300,)


def test_a_search_that_refits_warns_that_each_refit_spends(tmp_path: Path) -> None:
    frame, labels = people(600, 2)
    ledger = tmp_path / "ledger"
    base = AdLMClassifier(epsilon=1, domain=TableDomain.from_toml(TOML), ledger=ledger)
    search = GridSearchCV(base, {"epsilon": [0.5, 1]}, cv=2)
    with pytest.warns(PrivacyWarning, match="each fit reads the records and spends"):
        search.fit(frame, labels)
    spent = [json.loads(line) for line in ledger.read_text().splitlines()[1:]]
    assert len(spent) == 5  # two settings, two folds, one refit


def test_a_search_in_other_processes_warns_in_this_one() -> None:
    """Where a search makes its clones; warnings of the processes that fit them are not shown."""
    base = AdLMClassifier(epsilon=1, domain=TableDomain.from_toml(TOML))
    clone(base)
    with pytest.warns(PrivacyWarning, match="each fit reads the records and spends"):
        clone(base)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(base)


def test_fitting_twice_warns_without_any_clone() -> None:
    frame, labels = people(100, 2)
    base = AdLMClassifier(epsilon=1, domain=TableDomain.from_toml(TOML)).fit(frame, labels)
    with pytest.warns(PrivacyWarning, match="each fit reads the records and spends"):
        base.fit(frame, labels)


def test_searching_on_one_release_is_free(tmp_path: Path) -> None:
    frame, labels = people(2000, 3)
    ledger = tmp_path / "ledger"
    made = AdLMClassifier(epsilon=1, domain=TableDomain.from_toml(TOML), ledger=ledger).fit(frame, labels)
    before = ledger.read_bytes()
    test, truth = people(500, 4)  # stands in for public records

    def score(model: Any) -> float:
        return float((made.classes_[model.predict(made._records(test))] == truth).mean())

    network = {"network": "mlp", "draws": 500, "plan": BRIEF}
    tried: list[dict[str, Any]] = [{}, {"class_weight": "balanced"}, network]
    best = max((fit(made.release_, **options) for options in tried), key=score)
    assert score(best) > 0.5
    assert ledger.read_bytes() == before


def test_it_works_in_a_pipeline_and_clones() -> None:
    frame, labels = people(1000, 5)
    base = AdLMClassifier(epsilon=2, domain=TableDomain.from_toml(TOML))
    pipeline = make_pipeline(FunctionTransformer(), base).fit(frame, labels)
    assert pipeline.score(frame, labels) > 0.8
    copy = clone(base)
    assert copy is not base
    assert copy.get_params() == base.get_params()
    assert not hasattr(copy, "release_")


def test_it_persists_without_pickle(tmp_path: Path) -> None:
    frame, labels = people(1000, 6)
    made = AdLMClassifier(epsilon=1, domain=TableDomain.from_toml(TOML), fourier=2).fit(frame, labels)
    assert made.certificate_.settings["plan"]["fourier"] == 2
    made.save(tmp_path / "c")
    again = AdLMClassifier.load(tmp_path / "c")
    assert {**again.get_params(), "domain": None} == {**made.get_params(), "domain": None}
    assert np.array_equal(again.predict_proba(frame), made.predict_proba(frame))
    assert again.certificate_.to_dict() == made.certificate_.to_dict()
    assert again.predict(frame).tolist() == made.predict(frame).tolist()
    names = {path.name for path in (tmp_path / "c").rglob("*") if path.is_file()}
    assert names == {
        "estimator.json", "release.safetensors", "certificate.json", "model.safetensors", "model.json",
    }  # fmt: skip


def test_records_and_labels_are_equally_many() -> None:
    frame, labels = people(50, 8)
    pictures = Domain((8, 8), 0, 1, ("no", "yes"), "replace-one", "drawn")
    for domain, x in ((TableDomain.from_toml(TOML), frame), (pictures, np.zeros((50, 8, 8)))):
        for y in (labels[:-1], [*labels, "no"]):
            with pytest.raises(UserError, match="give one label for each record"):
                AdLMClassifier(domain=domain).fit(x, y)


@pytest.mark.parametrize("epsilon", ["1/2", Fraction(1, 3), "0.5", 2])
def test_an_exact_epsilon_comes_back(tmp_path: Path, epsilon: Any) -> None:
    frame, labels = people(100, 6)
    made = AdLMClassifier(epsilon=epsilon, domain=TableDomain.from_toml(TOML)).fit(frame, labels)
    made.save(tmp_path / "c")
    again = AdLMClassifier.load(tmp_path / "c")
    assert parse_epsilon(again.epsilon) == parse_epsilon(epsilon)
    assert np.array_equal(again.predict_proba(frame), made.predict_proba(frame))


@pytest.mark.parametrize("kind", ["bool", "boolean", "object"])
@pytest.mark.parametrize("classes", ['["false", "true"]', '["true", "false"]'])
def test_labels_that_are_true_or_false_are_predicted_as_such(tmp_path: Path, kind: Any, classes: str) -> None:
    frame, labels = people(2000, 6)
    ill = (labels == "yes").astype(kind)
    table = TableDomain.from_toml(TOML.replace('["no", "yes"]', classes))
    made = AdLMClassifier(epsilon=10, domain=table).fit(frame, ill)
    assert made.classes_.dtype == np.bool_
    assert made.score(frame, ill.astype(bool)) > 0.8
    made.save(tmp_path / "c")
    assert AdLMClassifier.load(tmp_path / "c").predict(frame).tolist() == made.predict(frame).tolist()


def test_a_record_that_names_nobody_is_refused_in_a_frame_too() -> None:
    frame, labels = people(30, 7)
    table = TableDomain.from_toml(TOML + '[columns.id]\nkind = "person"\nrecords = 1\n')
    for nobody in (None, np.nan, " "):
        frame["id"] = pd.Series([f"p{i}" for i in range(29)] + [nobody], dtype=object)
        with pytest.raises(UserError, match="row 30, column 'id': the person is not named"):
            AdLMClassifier(domain=table).fit(frame, labels)


def test_images_have_no_random_fourier_features() -> None:
    x, y = np.zeros((4, 8, 8)), [0, 1, 0, 1]
    domain = Domain((8, 8), 0, 1, ("a", "b"), "replace-one", "drawn")
    with pytest.raises(UserError, match="fourier is for tables"):
        AdLMClassifier(domain=domain, fourier=3).fit(x, y)


def test_frames_in_parts_and_large_files_are_fitted_and_predicted(tmp_path: Path) -> None:
    """pandas keeps such columns in several chunks of Arrow's."""
    frame, labels = people(300, 7)
    whole = frame.assign(ill=labels)
    whole = pd.concat([whole, whole])
    made = AdLMClassifier(epsilon=5, domain=TableDomain.from_toml(TOML)).fit(whole, whole["ill"])
    assert made.predict(whole).shape == (600,)
    pd.concat([whole] * 80).to_csv(tmp_path / "large.csv", index=False)
    large = pd.read_csv(tmp_path / "large.csv", dtype=str)
    made = AdLMClassifier(epsilon=5, domain=TableDomain.from_toml(TOML)).fit(large, large["ill"])
    assert made.predict(large).shape == (48_000,)


def test_an_arrow_table_is_a_frame_too() -> None:
    import pyarrow as pa

    frame, labels = people(100, 7)
    table = TableDomain.from_toml(TOML + '[columns.id]\nkind = "person"\nrecords = 1\n')
    whole = pa.Table.from_pandas(frame.assign(id=[f"p{i}" for i in range(100)]), preserve_index=False)
    made = AdLMClassifier(epsilon=5, domain=table).fit(whole, pa.array(labels.tolist()))
    assert made.feature_names_in_.tolist() == ["age", "town", "id"]
    assert made.predict(whole).tolist() == made.predict(frame).tolist()


def test_labels_may_be_a_frame_of_one_column() -> None:
    frame, labels = people(100, 7)
    whole = frame.assign(ill=labels)
    made = AdLMClassifier(epsilon=5, domain=TableDomain.from_toml(TOML)).fit(whole, whole[["ill"]])
    assert made.classes_.tolist() == ["no", "yes"]
    for wrong, told in (
        (whole[["ill", "town"]], "labels are one column \\(got a frame of 2\\)"),
        (whole[["ill"]].to_numpy(), r"shape \(n,\) \(got shape \(100, 1\)\)"),
    ):
        with pytest.raises(UserError, match=told):
            AdLMClassifier(epsilon=5, domain=TableDomain.from_toml(TOML)).fit(whole, wrong)


@pytest.mark.parametrize("first", [True, False, None, "true", "false"])
@pytest.mark.parametrize("kind", [object, "boolean"])
def test_the_classes_of_a_saved_classifier_do_not_show_a_records_label(
    tmp_path: Path, first: Any, kind: Any
) -> None:
    """`classes_` once followed the first record's label, so that it could be read from the saved file."""
    if kind == "boolean" and isinstance(first, str):
        pytest.skip("a text is no value of this type")
    frame, labels = people(40, 7)
    table = TableDomain.from_toml(TOML.replace('["no", "yes"]', '["true", "false"]\nmissing = "true"'))
    ill = pd.Series([first, *(labels[1:] == "yes")], dtype=kind)
    made = AdLMClassifier(epsilon=0.01, domain=table).fit(frame, ill)
    assert made.classes_.tolist() == [True, False]
    made.save(tmp_path / "c")
    assert json.loads((tmp_path / "c" / "estimator.json").read_text())["classes"] == [True, False]
    assert AdLMClassifier.from_release(made.release_).classes_.tolist() == [True, False]


@pytest.mark.parametrize("first", [0, 1, None, np.nan, "1"])
def test_a_missing_label_does_not_change_the_type_of_the_classes(first: Any) -> None:
    frame, labels = people(40, 7)
    table = TableDomain.from_toml(TOML.replace('["no", "yes"]', '["0", "1"]\nmissing = "0"'))
    numbers = [first, *(labels[1:] == "yes").astype(int)]
    for ill in (
        pd.Series(numbers, dtype=object),
        pd.array(numbers if first != "1" else [1, *numbers[1:]], "Int64"),
    ):
        made = AdLMClassifier(epsilon=1, domain=table).fit(frame, ill)
        assert made.classes_.dtype == np.int64
        assert made.classes_.tolist() == [0, 1]


def test_labels_are_scored_however_they_are_spelt() -> None:
    frame, labels = people(500, 7)
    table = TableDomain.from_toml(TOML.replace('["no", "yes"]', '["0", "1"]\naliases = {ill = "1"}'))
    texts = labels.map({"no": "0", "yes": "1"})
    made = AdLMClassifier(epsilon=10, domain=table).fit(frame, texts)
    score = made.score(frame, texts)
    assert score == (made.predict(frame) == texts.astype(int)).mean() > 0.7
    assert made.score(frame, texts.astype(int)) == score
    assert made.score(frame, labels.map({"no": "0", "yes": "ill"})) == score
    with pytest.raises(UserError, match="500 records and 2 labels"):
        made.score(frame, texts[:2])


DROWNED: dict[str, tuple[Any, dict[str, Any]]] = {
    "table, pure": (TableDomain.from_toml(TOML), {}),
    "table, delta": (TableDomain.from_toml(TOML), {"delta": 1e-6}),
    "images, pure": (Domain((8, 8), 0, 1, ("no", "yes"), family="drawn"), {}),
    "images, delta": (Domain((8, 8), 0, 1, ("no", "yes"), family="drawn"), {"delta": 1e-6}),
    "network": (
        Domain((8, 8), 0, 1, ("no", "yes"), family="drawn"),
        {"training": {"network": "mlp", "draws": 100, "plan": BRIEF}},
    ),
    "balanced table": (TableDomain.from_toml(TOML), {"delta": 1e-6, "class_weight": "balanced"}),
    "balanced images": (
        Domain((8, 8), 0, 1, ("no", "yes"), family="drawn"),
        {"class_weight": "balanced"},
    ),
}


@pytest.mark.parametrize("kind", DROWNED)
def test_a_classifier_no_better_than_the_largest_class_always_warns(kind: str) -> None:
    domain, settings = DROWNED[kind]
    frame, labels = people(300, 7)
    x = frame if isinstance(domain, TableDomain) else np.random.default_rng(0).random((300, 8, 8))
    estimator = AdLMClassifier(epsilon=0.01, domain=domain, random_state=1, **settings)
    with pytest.warns(NoisyModelWarning) as warned:
        made = estimator.fit(x, labels)
    assert len(warned) == 1
    assert "the largest class" in made.model_.training["warning"]
    with pytest.warns(NoisyModelWarning):
        AdLMClassifier.from_release(made.release_, **(made.training or {}))


def test_a_pipeline_that_learns_from_the_records_is_seen_and_stamped() -> None:
    x, y = np.random.default_rng(0).random((100, 2)), np.arange(100) % 2
    domain = Domain((2,), -3, 3, ("a", "b"))
    with pytest.warns(PrivacyWarning, match="scikit-learn fitted standardscaler on the private records"):
        made = make_pipeline(FunctionTransformer(), StandardScaler(), AdLMClassifier(domain=domain)).fit(x, y)
    assert made[-1].certificate_.stamps == (PEEKED,)
    plain = make_pipeline(FunctionTransformer(), "passthrough", AdLMClassifier(domain=domain)).fit(x, y)
    assert plain[-1].certificate_.stamps == ()


def test_a_scaling_of_targets_that_is_learnt_from_the_records_is_seen_and_stamped() -> None:
    x = np.random.default_rng(0).random((100, 2))
    regressor = AdLMRegressor(domain=Domain((2,), 0, 1, (), target=(0, 1)))
    with pytest.warns(PrivacyWarning, match="scikit-learn fitted MinMaxScaler on the private records"):
        made = TransformedTargetRegressor(regressor, transformer=MinMaxScaler()).fit(x, 100 * x[:, 0])
    assert made.regressor_.certificate_.stamps == (PEEKED,)
    assert made.regressor_.certificate_.totals.epsilon_proved == float("inf")


def test_a_budget_is_kept_over_fits(tmp_path: Path) -> None:
    frame, labels = people(200, 7)
    table, ledger = TableDomain.from_toml(TOML), tmp_path / "ledger"
    with pytest.raises(UserError, match="unknown category"):
        AdLMClassifier(domain=table, ledger=ledger, budget=9).fit(frame.assign(town="moon"), labels)
    assert not (tmp_path / "ledger").exists()  # a mistake in the records decides no budget
    made = AdLMClassifier(epsilon=2, domain=table, ledger=ledger, budget="5,1e-6")
    made.fit(frame, labels)
    with pytest.warns(PrivacyWarning, match="each fit"):
        made.fit(frame, labels)
    with (
        pytest.warns(PrivacyWarning, match="for the 3rd time"),
        pytest.raises(UserError, match="the budget would be overspent"),
    ):
        made.fit(frame, labels)
    again = AdLMClassifier(epsilon=2, domain=TableDomain.from_toml(TOML), ledger=tmp_path / "ledger")
    with pytest.raises(UserError, match="the budget would be overspent"):
        again.fit(frame, labels)
    with pytest.raises(UserError, match="a budget needs a ledger"):
        AdLMClassifier(domain=TableDomain.from_toml(TOML), budget=5).fit(frame, labels)


def test_an_array_where_a_frame_was_fitted_is_refused_with_the_columns() -> None:
    frame, labels = people(200, 0)
    made = AdLMClassifier(epsilon=5, domain=TableDomain.from_toml(TOML)).fit(frame, labels)
    with pytest.raises(UserError, match=r"the columns age, town \(got an array of shape \(200, 2\)\)"):
        made.predict(frame.to_numpy())
