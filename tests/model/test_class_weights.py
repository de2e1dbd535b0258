"""Statements about public class weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from adlm import AdLMClassifier, AdLMRegressor, Domain, fit, privatise
from adlm.cli.app import app
from adlm.errors import UserError
from adlm.model.fit import class_weights, parse_class_weight, search_on_release, with_class_weights
from adlm.model.metrics import measure
from adlm.model.training import default_plan
from adlm.runtime import progress

DOMAIN = Domain((2,), 0.0, 1.0, ("common", "rare"), family="tabular")


def records(n: int, seed: int = 0) -> tuple[Any, Any]:
    """One record in ten is rare, and lies somewhat to the right."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.1).astype(np.int64)
    return np.clip(rng.normal(0.4 + 0.15 * y, 0.15)[:, None] + [[0.0, 0.1]] * rng.random((n, 1)), 0, 1), y


def fitted(n: int = 20_000, **settings: Any) -> AdLMClassifier:
    return AdLMClassifier(epsilon=3, delta=1e-5, domain=DOMAIN, **settings).fit(*records(n))


def test_balanced_weights_raise_balanced_accuracy_and_recall_of_the_rare_at_no_cost() -> None:
    plain = fitted()
    release = plain.release_
    balanced = with_class_weights(plain.model_, release, "balanced")
    x, y = records(10_000, 1)
    z = plain._records(x)
    before, after = (measure(m.probabilities(z), y) for m in (plain.model_, balanced))
    assert after.balanced_accuracy > before.balanced_accuracy + 0.1
    assert (after.recalls[1] or 0) > (before.recalls[1] or 0) + 0.3
    assert balanced.certificate.digest == plain.certificate_.digest
    assert balanced.training["class_weight"] == "balanced"


def test_balanced_weights_come_from_released_counts_not_from_labels() -> None:
    made = fitted().release_
    weights = class_weights(made, "balanced")
    counts = np.maximum(made.tensors["class_sums"][:, 0].double().numpy(), 1)
    assert weights["rare"] / weights["common"] == pytest.approx(counts[0] / counts[1], rel=0.01)
    other = AdLMClassifier.from_release(made, class_weight="balanced").fit(*_labels_of_one_class())
    assert other.model_.training["class_weights"]["rare"] == pytest.approx(weights["rare"], rel=1e-5)


def _labels_of_one_class() -> tuple[Any, Any]:
    x, _ = records(50)
    return x, np.array(["common"] * 50)


def test_a_weight_moves_a_logit_by_its_logarithm() -> None:
    plain = fitted(2000)
    moved = with_class_weights(plain.model_, plain.release_, {"rare": 4})
    x = plain._records(records(100)[0])
    change = (moved.logits(x) - plain.model_.logits(x)).numpy()
    assert np.allclose(change[:, 0], 0, atol=1e-5)
    assert np.allclose(change[:, 1], np.log(4), atol=1e-5)


def test_the_estimator_takes_weights_by_label_and_keeps_them(tmp_path: Path) -> None:
    x, y = records(3000)
    model = AdLMClassifier(epsilon=3, domain=DOMAIN, class_weight={1: 5.0}).fit(x, y)
    assert model.model_.training["class_weights"] == {"common": 1.0, "rare": 5.0}
    model.save(tmp_path / "m")
    again = AdLMClassifier.load(tmp_path / "m")
    assert np.array_equal(again.predict(x), model.predict(x))
    assert again.model_.training["class_weights"]["rare"] == 5.0


def test_weights_can_be_searched_on_a_release() -> None:
    made = fitted(5000).release_
    tried: list[dict[str, Any]] = [{}, {"class_weight": "balanced"}, {"class_weight": {"rare": 3.0}}]
    found = search_on_release(
        made, tried, lambda model: float((model.head.bias[1] - model.head.bias[0]).detach())
    )
    assert found.settings[-1] == {}


def test_wrong_weights_are_one_sentence() -> None:
    plain = fitted(500)
    for given, told in (
        ({"rarest": 2.0}, "there is no class 'rarest'"),
        ({"rare": 0.0}, "must be a positive number"),
        ({"rare": float("inf")}, "must be a positive number"),
        ({"rare": True}, "must be a positive number"),
        ("even", "'balanced' or a weight"),
    ):
        with pytest.raises(UserError, match=told):
            with_class_weights(plain.model_, plain.release_, given)
    with pytest.raises(UserError, match="NAME=WEIGHT"):
        parse_class_weight("rare:2")
    with pytest.raises(UserError, match="dict of labels"):
        AdLMClassifier(domain=DOMAIN, class_weight=3).fit(*records(100))  # type: ignore[arg-type]
    x, _ = records(100)
    numbers = AdLMRegressor(domain=Domain((2,), 0.0, 1.0, (), target=(0, 1))).fit(x, x[:, 0]).release_
    with pytest.raises(UserError, match="numeric target"):
        class_weights(numbers, "balanced")


def test_class_weights_of_a_network_go_into_its_training() -> None:
    made = fitted(3000).release_
    plan = replace(default_plan(2000), epochs=15)
    plain, balanced = (
        fit(made, "mlp", replace(plan, class_weight=w), draws=2000) for w in (None, "balanced")
    )
    x, y = records(2000)
    rare = int(np.bincount(y).argmin())
    recall = [float((m.predict(x)[y == rare] == rare).mean()) for m in (plain, balanced)]
    assert recall[1] > recall[0] + 0.1
    assert balanced.training["class_weight"] == "balanced"
    assert "class_weight" not in plain.training
    with pytest.raises(UserError, match="go into its plan"):
        with_class_weights(plain, made, "balanced")
    with pytest.raises(UserError, match="no class 'z'"):
        fit(made, "mlp", replace(plan, class_weight={"z": 2.0}), draws=200)


def test_a_release_of_a_perturbed_loss_trains_a_network_with_and_without_weights() -> None:
    x, y = records(5000)
    made = AdLMClassifier(epsilon=2, domain=DOMAIN, random_state=1).fit(x, y).release_
    assert "objective" in made.certificate.settings
    test, truth = records(2000)
    plan = replace(default_plan(2000), epochs=10)
    network, linear = fit(made, "mlp", plan, draws=2000), fit(made)
    right = [float((m.predict(test) == truth).mean()) for m in (network, linear)]
    assert right[0] > right[1] - 0.03
    weighted = fit(made, "mlp", replace(plan, class_weight="balanced"), draws=2000)
    rare = int(np.bincount(truth).argmin())
    recall = [float((m.predict(test)[truth == rare] == rare).mean()) for m in (network, weighted)]
    assert recall[1] > recall[0]


def test_tables_of_a_perturbed_loss_are_weighed_too() -> None:
    x, y = records(5000)
    made = AdLMClassifier(epsilon=4, domain=DOMAIN, random_state=1).fit(x, y).release_
    assert "objective" in made.certificate.settings
    weights = class_weights(made, "balanced")
    assert weights["rare"] > 3 * weights["common"]


def test_the_command_line_weighs_classes_and_the_evaluation_shows_recalls(tmp_path: Path) -> None:
    progress.enable(False)
    made = privatise(*records(3000), DOMAIN, epsilon=3, delta=1e-5)
    made.save(tmp_path / "r")
    run = CliRunner()
    words = ["train", str(tmp_path / "r"), "--out", str(tmp_path / "m"), "--class-weight", "rare=5", "--json"]
    done = run.invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["class_weights"] == {"common": 1.0, "rare": 5.0}
