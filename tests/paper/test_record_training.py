"""Networks on record releases: defaults that learn, and answers that fit what training saw."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.data import datasets
from adlm.model.fit import fit
from adlm.model.model import AVERAGES, TOGETHER_STATISTICS, Model
from adlm.model.training import Examples, TrainingConfig, accuracy, default_plan, predict, train
from adlm.paper import Budgets, PrivateRecords, RecordOptions, make_release
from adlm.paper.networks import TOGETHER, MinMax, Standardise, build, by_batch, even_parts
from adlm.paper.relevance import PrivateRelevance, RelevanceSource, private_relevance
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

DIGITS, TEST = datasets.load("digits", "train"), datasets.load("digits", "test")
RECORDS, ANSWERS = torch.from_numpy(TEST.domain.scale(TEST.x)), torch.from_numpy(TEST.y)


def release_of(epsilon: str, delta_h0: str | int = "counted", folder: Path | None = None) -> Release:
    made = make_release(
        PrivateRecords(DIGITS.x, DIGITS.y, DIGITS.domain),
        build("mlp", (8, 8), 10),
        Budgets.split(epsilon, method="ilm"),
        100,
        explained=None,
        options=RecordOptions(delta_h0=delta_h0, folder=folder),
        ledger=Ledger(),
        source=Source.system(),
    )
    return made


def found(model: Model) -> float:
    return float((model.predict(TEST.x) == TEST.y).mean())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """A release with little noise, and a network trained on it by default."""
    place = tmp_path_factory.mktemp("trained") / "R"
    return place, fit(release_of("1e8", folder=place), "mlp")


def test_defaults_come_within_three_points_of_the_network_without_privacy(
    trained: tuple[Path, Model],
) -> None:
    torch.manual_seed(0)
    plain = build("mlp", (8, 8), 10)
    examples = Examples(torch.from_numpy(DIGITS.domain.scale(DIGITS.x)), torch.from_numpy(DIGITS.y))
    train(plain, examples, TrainingConfig(epochs=60, batch_size=70, schedule="cosine"), device="cpu")
    expected = accuracy(plain, RECORDS, ANSWERS, device="cpu")
    assert expected > 0.9
    assert found(trained[1]) > expected - 0.03


@pytest.mark.parametrize("n", [1, 30, 1437, 20_000, 60_000])
def test_the_default_plan_has_2000_steps_and_12_epochs_at_least(n: int) -> None:
    plan = default_plan(n)
    assert plan.total(n) >= 2000
    assert plan.epochs is not None
    assert plan.epochs >= 12
    assert 20 <= plan.batch_size <= 300


def test_the_command_and_the_function_have_the_same_defaults(
    trained: tuple[Path, Model], tmp_path: Path
) -> None:
    place, ours = trained
    words = ["train", str(place), "--network", "mlp", "--out", str(tmp_path / "M"), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    theirs = Model.load(tmp_path / "M")
    assert json.loads(done.stdout)["epochs"] == ours.training["epochs"]
    for a, b in zip(theirs.head.parameters(), ours.head.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_few_steps_are_told_of(trained: tuple[Path, Model], tmp_path: Path) -> None:
    words = ["train", str(trained[0]), "--steps", "12", "--out", str(tmp_path / "M")]
    done = CliRunner().invoke(app, words)
    assert "12 steps are few, 2,000 are usual" in done.output


def test_a_network_trained_on_noisy_records_answers_with_the_statistics_of_clean_ones() -> None:
    """Noise of scale 2 ranges: the averages of training put nearly all clean records into one class."""
    gained = []
    for seed in range(2):
        model = fit(release_of("300", 40_000), "mlp", TrainingConfig(steps=600, batch_size=100, seed=seed))
        assert model.training["statistics"] == TOGETHER_STATISTICS
        gained.append(found(model) - found(replace(model, training={})))
    assert np.mean(gained) > 0.1
    assert fit(release_of("1e8"), "mlp", TrainingConfig(steps=5)).training["statistics"] == AVERAGES


def test_few_records_are_answered_one_by_one_and_many_by_their_own_statistics() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2), MinMax(2), Standardise(2), nn.BatchNorm1d(2)).eval()
    x = torch.randn(TOGETHER, 3) * 5
    alone = network(x)
    with by_batch(network):
        together = network(x)
    assert not torch.allclose(alone, together)
    torch.testing.assert_close(network(x), alone)  # the averages are as they were
    slow = network[0](x)
    slow = (slow - slow.amin(0)) / (slow.amax(0) - slow.amin(0))
    slow = (slow - slow.mean(0)) / (slow.var(0, correction=0) + 1e-3).sqrt()
    torch.testing.assert_close(together, nn.functional.batch_norm(slow, None, None, training=True))
    few = predict(network, x[: TOGETHER - 1], device="cpu", together=True)
    assert torch.equal(few, alone[: TOGETHER - 1].argmax(1))
    assert torch.equal(predict(network, x, device="cpu", together=True), together.argmax(1))


@pytest.mark.parametrize("n", [0, 1, 99, 1000, 1001, 2500])
def test_parts_cover_everything_once_and_none_is_small(n: int) -> None:
    parts = even_parts(n, 1000)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n))
    assert max(part.stop - part.start for part in parts) <= 1000
    assert n < 1000 or min(part.stop - part.start for part in parts) >= 500


def test_relevances_never_take_the_statistics_of_a_batch() -> None:
    """A model that answers by batch statistics explains each record by itself: Lemma 1 rests on it."""
    model = fit(release_of("300", 40_000), "mlp", TrainingConfig(steps=20, batch_size=100))
    model.predict(TEST.x)
    explained = RelevanceSource(model.head, "public")

    def relevance(x: npt.NDArray[Any]) -> PrivateRelevance:
        source = Source.seeded_with(0)
        return private_relevance(
            explained, x, DIGITS.domain, epsilon=Fraction(1), ledger=Ledger(), source=source
        )

    one = relevance(TEST.x[:300])
    changed = TEST.x[:300].copy()
    changed[-1] = 16 - changed[-1]
    two = relevance(changed)
    assert float(np.abs(one.values - two.values).sum()) <= 64 / 300 + 1e-9
