"""Pipelines, searches, clones: each refit is charged, counted and told; a given release makes them free."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tests.declared import AGE_AND_TOWN

from adlm import Domain, Ledger, Release, fit, privatise
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.model.training import TrainingConfig
from adlm.sklearn.estimators import AdLMClassifier
from adlm.sklearn.inputs import PrivacyWarning

TOML = AGE_AND_TOWN
TABLE = TableDomain.from_toml(TOML)
BRIEF = TrainingConfig(epochs=2, batch_size=100)


def people(n: int, seed: int) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    age, town = rng.uniform(0, 100, n), rng.choice(["north", "south"], n)
    ill = rng.random(n) < 1 / (1 + np.exp(-(age - 50) / 8 - 2 * (town == "south") + 1))
    return pd.DataFrame({"age": age, "town": town}), pd.Series(np.where(ill, "yes", "no"))


def spent(ledger: Path) -> int:
    """How many releases a ledger has: a line for each, after the header."""
    return len(ledger.read_text().splitlines()) - 1


def test_each_fold_of_a_cross_validation_is_charged_counted_and_told(tmp_path: Path) -> None:
    frame, labels = people(300, 0)
    base = AdLMClassifier(epsilon=1, domain=TABLE, ledger=tmp_path / "l")
    with pytest.warns(PrivacyWarning, match="each fit reads the records and spends") as told:
        cross_val_score(make_pipeline(FunctionTransformer(), base), frame, labels, cv=3)
    assert spent(tmp_path / "l") == 3
    numbers = [m[1] for w in told if (m := re.search(r"for the (\d+)\w+ time", str(w.message)))]
    assert numbers == ["2", "3"]
    assert all(str(tmp_path / "l") in str(w.message) for w in told if issubclass(w.category, PrivacyWarning))


def test_fits_of_clones_are_counted_together() -> None:
    frame, labels = people(100, 0)
    base = AdLMClassifier(domain=TABLE).fit(frame, labels)
    assert base.fits_ == 1
    with pytest.warns(PrivacyWarning, match="for the 2nd time"):
        assert clone(base).fit(frame, labels).fits_ == 2


def test_room_for_one_fit_refuses_the_second_with_a_sentence(tmp_path: Path) -> None:
    frame, labels = people(200, 1)
    base = AdLMClassifier(epsilon=1, domain=TABLE, ledger=tmp_path / "l", budget=1)
    with (
        pytest.warns(PrivacyWarning, match="each fit"),
        pytest.raises(UserError, match=r"the budget would be overspent.* what is left .* is epsilon 0"),
    ):
        cross_val_score(base, frame, labels, cv=3, error_score="raise")
    assert spent(tmp_path / "l") == 1


def test_a_search_that_goes_on_after_a_refusal_spends_no_more_than_the_budget(tmp_path: Path) -> None:
    """scikit-learn turns a refused fit into a score of NaN and a warning; the last refit is refused aloud."""
    frame, labels = people(200, 1)
    base = AdLMClassifier(epsilon=1, domain=TABLE, ledger=tmp_path / "l", budget=1)
    search = GridSearchCV(base, {"fourier": [0, 2]}, cv=2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(UserError, match="overspent"):
            search.fit(frame, labels)
    assert spent(tmp_path / "l") == 1
    failed = [w for w in told if issubclass(w.category, FitFailedWarning)]
    assert failed
    assert "the budget would be overspent" in str(failed[0].message)


@pytest.fixture(scope="module")
def release() -> Release:
    frame, labels = people(2000, 2)
    return AdLMClassifier(epsilon=1, domain=TABLE).fit(frame, labels).release_


def test_from_release_predicts_at_once_and_carries_the_certificate(release: Release, tmp_path: Path) -> None:
    frame, labels = people(500, 3)
    made = AdLMClassifier.from_release(release)
    assert made.score(frame, labels) > 0.8
    assert made.certificate_ is release.certificate
    assert made.feature_names_in_.tolist() == ["age", "town"]
    assert made.n_features_in_ == 2
    release.save(tmp_path / "R")
    again = AdLMClassifier.from_release(tmp_path / "R", network="mlp", draws=500, plan=BRIEF)
    assert again.predict(frame).shape == (500,)
    assert not np.array_equal(again.predict_proba(frame), made.predict_proba(frame))
    made.save(tmp_path / "c")
    assert np.array_equal(AdLMClassifier.load(tmp_path / "c").predict_proba(frame), made.predict_proba(frame))


def test_a_search_on_a_given_release_reads_no_record_and_warns_of_nothing(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, labels = people(300, 4)  # stands in for public records

    def no_charge(*charges: object) -> None:
        raise AssertionError("something was charged")

    monkeypatch.setattr(Ledger, "charge", no_charge)
    grid = {"training": [{}, {"class_weight": "balanced"}, {"network": "mlp", "draws": 500, "plan": BRIEF}]}
    found = GridSearchCV(AdLMClassifier.from_release(release), grid, cv=2).fit(frame, labels)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()
    assert found.best_estimator_.certificate_.digest == release.certificate.digest
    same = AdLMClassifier(release=release).fit(frame[:5], labels[:5])
    assert np.array_equal(
        same.predict_proba(frame), AdLMClassifier.from_release(release).predict_proba(frame)
    )


def test_settings_that_a_release_has_not_are_refused(release: Release) -> None:
    with pytest.raises(UserError, match="there is no setting 'epochs' of training; it has network"):
        AdLMClassifier.from_release(release, epochs=3)


def test_a_release_of_images_serves_too() -> None:
    rng = np.random.default_rng(0)
    domain = Domain((8, 8), 0, 1, ("0", "1"), "replace-one", "drawn")
    x, y = rng.random((60, 8, 8)), np.arange(60) % 2
    made = privatise(x, y, domain=domain, epsilon=1, k=8)
    taken = AdLMClassifier.from_release(made)
    assert taken.n_features_in_ == 64
    expected = fit(made).probabilities(x)
    assert np.array_equal(taken.predict_proba(x), expected)
    assert taken.fit(x, y).predict(x).dtype.kind == "i"


def test_sample_weights_are_refused_with_the_reason(tmp_path: Path) -> None:
    frame, labels = people(50, 5)
    base = AdLMClassifier(domain=TABLE, ledger=tmp_path / "l")
    with pytest.raises(
        UserError, match="sample weights are refused: noise is made for records that count once"
    ):
        base.fit(frame, labels, sample_weight=np.ones(50))
    with pytest.raises(UserError, match=r"fit takes X and y \(got epochs too\)"):
        base.fit(frame, labels, epochs=3)
    assert not (tmp_path / "l").exists()
    base.fit(frame, labels, sample_weight=None)
    assert base.fits_ == 1


def test_partial_fit_is_refused_with_the_reason() -> None:
    base = AdLMClassifier()
    assert not hasattr(base, "partial_fit")
    with pytest.raises(AttributeError, match="each part would be a release of its own and be charged"):
        base.partial_fit([[1]], [1])
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = base.nothing
    assert copy.deepcopy(base).get_params() == base.get_params()


def test_a_pipeline_set_to_frames_hands_names_over() -> None:
    frame, labels = people(300, 6)
    pipeline = make_pipeline(FunctionTransformer(), AdLMClassifier(epsilon=2, domain=TABLE))
    pipeline.set_output(transform="pandas").fit(frame, labels)
    assert pipeline[-1].feature_names_in_.tolist() == ["age", "town"]
    assert pipeline[-1].n_features_in_ == 2
    with pytest.raises(UserError, match="town"):
        pipeline.predict(frame[["age"]])
