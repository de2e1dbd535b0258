"""Statements about the regressor with scikit-learn's manners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.declared import AGE_COLUMN, DAYS, column

from adlm import AdLMClassifier, AdLMRegressor
from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.privacy.certificate import PEEKED, SEEDED
from adlm.privacy.ledger import Ledger
from adlm.sklearn.inputs import PrivacyWarning

EXPECTED_TO_FAIL: dict[str, str] = {}  # none: every check that applies to a regressor passes

TABLE = TableDomain.from_toml(AGE_COLUMN + column("ward", "categorical", values=("a", "b")) + DAYS)
DOMAIN = Domain((3,), 0.0, 1.0, (), target=(-2.0, 6.0))


@pytest.mark.filterwarnings("ignore::adlm.sklearn.inputs.PrivacyWarning")
@parametrize_with_checks(
    [AdLMRegressor(epsilon=1000, delta=1e-5, random_state=0)],
    expected_failed_checks=lambda _: EXPECTED_TO_FAIL,
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def stays(n: int, seed: int) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    age, ward = rng.uniform(0, 100, n), rng.choice(["a", "b"], n)
    return pd.DataFrame({"age": age, "ward": ward}), 2 + 0.08 * age + 5 * (ward == "b") + rng.normal(0, 1, n)


def plane(n: int = 3000, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.random((n, 3))
    return x, x @ [3.0, -1.0, 1.0] + rng.normal(0, 0.3, n)


def test_a_frame_with_a_domain_is_learnt_privately() -> None:
    x, y = stays(4000, 0)
    model = AdLMRegressor(epsilon=2, delta=1e-5, domain=TABLE).fit(x, y)
    assert model.certificate_.totals.epsilon_proved <= 2
    assert model.certificate_.private
    test, truth = stays(2000, 1)
    assert model.score(test, truth) > 0.75  # the rule itself explains 0.92
    assert list(model.feature_names_in_) == ["age", "ward"]
    assert model.n_features_in_ == 2


def test_pure_epsilon_learns_too() -> None:
    x, y = plane(8000)
    model = AdLMRegressor(epsilon=5, domain=DOMAIN).fit(x, y)
    assert model.certificate_.totals.delta == 0
    assert model.score(*plane(1000, 1)) > 0.5


def test_an_array_with_a_domain_is_not_stamped_and_without_one_is() -> None:
    x, y = plane(500)
    assert AdLMRegressor(epsilon=1, domain=DOMAIN).fit(x, y).certificate_.stamps == ()
    with pytest.warns(PrivacyWarning, match="learnt from the data"):
        peeked = AdLMRegressor(epsilon=1).fit(x, y)
    assert PEEKED in peeked.certificate_.stamps
    seeded = AdLMRegressor(epsilon=1, domain=DOMAIN, random_state=1).fit(x, y)
    assert SEEDED in seeded.certificate_.stamps


def test_predictions_stay_within_the_declared_bounds() -> None:
    x, y = plane(2000)
    narrow = Domain((3,), 0.0, 1.0, (), target=(0.0, 1.0))
    found = AdLMRegressor(epsilon=5, delta=1e-5, domain=narrow).fit(x, y).predict(x)
    assert found.min() >= 0.0
    assert found.max() <= 1.0


def test_a_model_that_noise_has_drowned_predicts_the_mean_and_says_so() -> None:
    x, _ = plane(200)
    y = np.random.default_rng(3).uniform(-2, 6, 200)  # there is nothing to learn
    for _ in range(20):  # each is told with probability about 1/2 or more: all miss it once in 10^6
        model = AdLMRegressor(epsilon=1, delta=1e-5, domain=DOMAIN).fit(x, y)
        if "warning" in model.model_.training:
            break
    assert "warning" in model.model_.training
    assert np.ptp(model.predict(x)) == 0


def test_each_refit_is_charged_told_and_refused_beyond_the_budget(tmp_path: Path) -> None:
    x, y = plane(300)
    ledger = tmp_path / "ledger"
    model = AdLMRegressor(epsilon=1, domain=DOMAIN, ledger=ledger, budget=2)
    model.fit(x, y)
    once = Ledger(ledger).charges
    assert once == model.certificate_.charges
    with pytest.warns(PrivacyWarning, match="for the 2nd time"):
        clone(model).fit(x, y)
    assert Ledger(ledger).charges == once * 2
    with pytest.warns(PrivacyWarning), pytest.raises(UserError, match="budget"):
        clone(model).fit(x, y)
    assert Ledger(ledger).charges == once * 2


def test_searches_warn_and_a_release_makes_them_free() -> None:
    x, y = plane(400)
    with pytest.warns(PrivacyWarning, match="each fit reads the records"):
        cross_val_score(AdLMRegressor(epsilon=1, domain=DOMAIN), x, y, cv=2)
    made = AdLMRegressor(epsilon=1, domain=DOMAIN).fit(x, y)
    free = AdLMRegressor.from_release(made.release_)
    assert np.array_equal(free.predict(x), made.predict(x))
    search = GridSearchCV(free, {"training": [None, {}]}, cv=2).fit(x, y)
    assert search.best_estimator_.release_.certificate.digest == made.certificate_.digest


def test_a_release_of_the_other_kind_is_refused() -> None:
    x, y = plane(100)
    numbers = AdLMRegressor(epsilon=1, domain=DOMAIN).fit(x, y).release_
    two = Domain((3,), 0.0, 1.0, ("a", "b"))
    classes = AdLMClassifier(epsilon=1, domain=two).fit(x, np.where(y > 1, "a", "b")).release_
    with pytest.raises(UserError, match="AdLMClassifier"):
        AdLMRegressor.from_release(classes)
    with pytest.raises(UserError, match="AdLMRegressor"):
        AdLMClassifier.from_release(numbers)
    with pytest.raises(UserError, match="AdLMRegressor"):
        AdLMClassifier(epsilon=1, domain=TABLE).fit(*stays(50, 0))
    with pytest.raises(UserError, match="target"):
        AdLMRegressor(epsilon=1, domain=two).fit(x, y)


def test_weights_and_parts_are_refused_with_the_reason() -> None:
    x, y = plane(50)
    with pytest.raises(UserError, match="sample weights are refused"):
        AdLMRegressor(domain=DOMAIN).fit(x, y, sample_weight=np.ones(50))
    assert not hasattr(AdLMRegressor(), "partial_fit")
    with pytest.raises(AttributeError, match="AdLMRegressor has no partial_fit: each part"):
        AdLMRegressor().partial_fit(x, y)


def test_it_works_in_a_pipeline_and_sees_steps_that_learn() -> None:
    x, y = plane(500)
    model = make_pipeline(
        FunctionTransformer(feature_names_out="one-to-one"), AdLMRegressor(epsilon=1, domain=DOMAIN)
    )
    assert model.set_output(transform="pandas").fit(x, y).predict(x).shape == (500,)
    wide = Domain((3,), -4.0, 4.0, (), target=(-2.0, 6.0))
    with pytest.warns(PrivacyWarning, match="standardscaler"):
        fitted = make_pipeline(StandardScaler(), AdLMRegressor(epsilon=1, domain=wide)).fit(x, y)
    assert PEEKED in fitted[-1].certificate_.stamps


def test_it_persists_without_pickle(tmp_path: Path) -> None:
    x, y = stays(500, 0)
    model = AdLMRegressor(epsilon="1/3", delta=1e-5, domain=TABLE).fit(x, y)
    model.save(tmp_path / "m")
    again = AdLMRegressor.load(tmp_path / "m")
    assert np.array_equal(again.predict(x), model.predict(x))
    assert list(again.feature_names_in_) == ["age", "ward"]
    assert not list((tmp_path / "m").rglob("*.pkl"))


def test_a_missing_or_infinite_target_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    x, y = stays(50, 0)
    y = y.copy()
    y[7] = np.nan
    ledger = tmp_path / "ledger"
    with pytest.raises(UserError, match="the target is missing"):
        AdLMRegressor(domain=TABLE, ledger=ledger).fit(x, y)
    y[7] = np.inf
    with pytest.raises(UserError, match="infinite"):
        AdLMRegressor(domain=TABLE, ledger=ledger).fit(x, y)
    assert not ledger.exists()


def test_the_notebook_shows_what_a_fit_has_cost() -> None:
    x, y = plane(100)
    model = AdLMRegressor(epsilon=1, domain=DOMAIN).fit(x, y)
    assert "epsilon" in model._repr_html_()
    assert "target" in model.model_._repr_html_()
