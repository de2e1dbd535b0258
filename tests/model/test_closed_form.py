"""Classes of unequal size: public weights at no cost, and warnings where a class is below its noise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.declared import AGE_COLUMN, column
from tests.report import artefacts
from typer.testing import CliRunner

from adlm import AdLMClassifier, AdLMRegressor, Domain, Release, fit, privatise
from adlm.cli.app import app
from adlm.errors import NoisyModelWarning, UserError
from adlm.features.base import Identity
from adlm.mechanism.planner import plan_class_sums
from adlm.model.closed_form import class_weights, parse_class_weight, sentences, small_classes
from adlm.model.metrics import measure
from adlm.model.training import default_plan
from adlm.report import write_report
from adlm.runtime import progress

DOMAIN = Domain((2,), 0.0, 1.0, ("common", "rare"), family="tabular")


def records(n: int, seed: int = 0) -> tuple[Any, Any]:
    """One record in ten is rare, and lies somewhat to the right."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.1).astype(np.int64)
    return np.clip(rng.normal(0.4 + 0.15 * y, 0.15)[:, None] + [[0.0, 0.1]] * rng.random((n, 1)), 0, 1), y


@lru_cache
def released(delta: str) -> Release:
    """By gradient rounds with delta, and by a perturbed loss without."""
    return privatise(*records(5000), DOMAIN, epsilon=3, delta=delta, seed=1)


@pytest.mark.parametrize("delta", ["1e-5", "0"])
def test_balanced_weights_raise_balanced_accuracy_and_recall_of_the_rare_at_no_cost(delta: str) -> None:
    release = released(delta)
    assert ("objective" in release.certificate.settings) == (delta == "0")
    plan, (x, y) = replace(default_plan(2000), epochs=10), records(5000, 1)
    given: list[dict[str, Any]] = [{}, {"network": "mlp", "plan": plan, "draws": 2000}]
    for options in given:
        plain, balanced = (fit(release, class_weight=w, **options) for w in (None, "balanced"))
        before, after = (measure(model.probabilities(x), y) for model in (plain, balanced))
        assert after.balanced_accuracy > before.balanced_accuracy + 0.05
        assert (after.recalls[1] or 0) > (before.recalls[1] or 0) + 0.2
        assert balanced.certificate.digest == release.certificate.digest
        assert (plain.training.get("class_weight"), balanced.training["class_weight"]) == (None, "balanced")
    weights = class_weights(release, "balanced")  # from released counts, not from labels
    counts = np.maximum(release.tensors["class_sums"][:, 0].double().numpy(), 1)
    assert weights["rare"] / weights["common"] == pytest.approx(counts[0] / counts[1], rel=0.01)


def test_a_weight_moves_a_logit_by_its_logarithm() -> None:
    x = records(100)[0]
    plain, moved = (fit(released("0"), class_weight=w).logits(x) for w in (None, {"rare": 4}))
    assert np.allclose((moved - plain).numpy(), [[0, np.log(4)]] * 100, atol=1e-5)


def test_the_estimator_takes_weights_by_label_and_keeps_them(tmp_path: Path) -> None:
    x, y = records(500)
    model = AdLMClassifier(release=released("0"), class_weight={1: 5.0}).fit(x, y)
    assert model.model_.training["class_weights"] == {"common": 1.0, "rare": 5.0}
    model.save(tmp_path / "m")
    again = AdLMClassifier.load(tmp_path / "m")
    assert np.array_equal(again.predict(x), model.predict(x))
    assert again.model_.training["class_weights"]["rare"] == 5.0
    with pytest.raises(UserError, match="no setting 'stages' of training; it has network, plan"):
        AdLMClassifier.from_release(released("0"), stages=1).fit(x, y)


def test_wrong_weights_are_one_sentence() -> None:
    for given, told in (
        ({"rarest": 2.0}, "there is no class 'rarest'"),
        ({"rare": 0.0}, "must be a positive number"),
        ({"rare": float("inf")}, "must be a positive number"),
        ({"rare": True}, "must be a positive number"),
        ("even", "'balanced' or a weight"),
    ):
        for network in (None, "mlp"):
            with pytest.raises(UserError, match=told):
                fit(released("0"), network, class_weight=given, draws=200)
    assert parse_class_weight("rare=2, common=1") == {"rare": 2.0, "common": 1.0}
    for text in ("rare:2", "=2", "rare=2,", "rare=much"):
        with pytest.raises(UserError, match="NAME=WEIGHT"):
            parse_class_weight(text)
    with pytest.raises(UserError, match="dict of labels"):
        AdLMClassifier(domain=DOMAIN, class_weight=3).fit(*records(100))  # type: ignore[arg-type]
    x, _ = records(100)
    numbers = AdLMRegressor(domain=Domain((2,), 0.0, 1.0, (), target=(0, 1))).fit(x, x[:, 0]).release_
    with pytest.raises(UserError, match="numeric target"):
        class_weights(numbers, "balanced")


# ---- Small classes

TOML = AGE_COLUMN + column("ill", "label", classes=("no", "yes", "rare"))


def test_counts_of_a_release_are_read_in_their_own_units() -> None:
    """The seed is fixed, so nothing here is left to chance."""
    rng = np.random.default_rng(0)
    x, y = rng.random((2000, 4)), np.r_[np.zeros(1000, int), np.ones(1000, int)]
    made = privatise(x, y, domain=Domain((4,), 0, 1, ("a", "b", "c")), epsilon=4, k=4, seed=1)
    (found,) = small_classes(made)
    assert found.name == "c"
    assert found.count == pytest.approx(float(made.moments().counts[2]))
    assert found.count <= 2 * found.sd
    assert "class 'c' may be smaller than its noise" in found.sentence()
    assert small_classes(artefacts.noisy_records()) == ()  # it holds no counts


def test_counts_that_are_merely_noisy_say_nothing_against_their_classes() -> None:
    """Ten even classes whose counts have little of the budget; seeded. With almost none, all are named."""
    x, y = np.random.default_rng(0).random((1500, 4)), np.arange(1500) % 10
    domain = Domain((4,), 0, 1, tuple("abcdefghij"))
    noisy, hopeless = (privatise(x, y, domain=domain, epsilon=e, k=4, seed=3) for e in (2, "1/50"))
    assert float(noisy.moments().counts.min()) <= 2 * noisy.moments().sd_counts < 300
    assert small_classes(noisy) == ()
    assert len(small_classes(hopeless)) == 10
    told = sentences(small_classes(hopeless))
    assert (len(told), told[-1]) == (6, "and so may be 5 more classes")


@pytest.fixture
def run() -> Callable[..., tuple[str, str]]:
    progress.enable(False)

    def invoke(*words: object) -> tuple[str, str]:
        done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout, done.stderr

    return invoke


def test_the_commands_weigh_warn_and_tell_recall_by_class(
    run: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    file, domain, release, model = (tmp_path / name for name in ("t.csv", "t.toml", "R", "M"))
    rows = [f"{i % 100},{'yes' if i % 100 > 50 else 'no'}" for i in range(3000)] + ["50,rare"] * 2
    file.write_text("\n".join(["age,ill", *rows]) + "\n")
    domain.write_text(TOML)
    words: list[object] = ["release", file, "--domain", domain, "--epsilon", 4, "--seed", 1, "--quiet"]
    run(*words, "--ledger", tmp_path / "L", "--out", release)
    said, warned = run("train", release, "--out", model, "--class-weight", "rare=5", "--json")
    assert [s["class"] for s in json.loads(said)["small_classes"]] == ["rare"]
    assert json.loads(said)["class_weights"] == {"no": 1.0, "yes": 1.0, "rare": 5.0}
    assert "adlm: warning: class 'rare' may be smaller than its noise" in warned
    said, warned = run("evaluate", model, file, "--save", model / "evaluation.json", "--json")
    found = json.loads(said)
    assert "class 'rare' may be smaller than its noise" in warned
    assert found["balanced_accuracy"] == pytest.approx(np.mean(found["recalls"]))
    assert found["small_classes"][0]["class"] == "rare"
    assert f"balanced {found['balanced_accuracy']:.4f}" in run("evaluate", model, file)[0]
    write_report(model, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    for text in ("may be smaller than its noise", "Recall by class", f"{found['recalls'][0]:.1%}"):
        assert text in page


@pytest.mark.parametrize("rare", [0.5, 0.1])
def test_a_model_of_weak_class_sums_gives_way_to_a_class_that_is_much_larger(
    rare: float,
) -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(600) < rare).astype(np.int64)
    x = rng.random((600, 8))  # tells nothing of the class
    domain, features = Domain((8,), 0.0, 1.0, ("common", "rare")), Identity((8,))
    plan = plan_class_sums(features, 600, 2, 0.5, 0.0, "replace-one")
    release = privatise(x, y, domain, epsilon=0.5, features=features, plan=plan, seed=1)
    with pytest.warns(NoisyModelWarning):
        model = fit(release)
    assert "warning" in model.training
    assert (len(set(model.predict(x))) == 1) == (rare == 0.1)
