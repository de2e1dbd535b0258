"""Networks of every kind on record releases: defaults that learn, and answers that fit what training saw."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
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
from adlm.errors import UserError
from adlm.model.fit import fit
from adlm.model.model import AVERAGES, TOGETHER_STATISTICS, Model
from adlm.model.training import Examples, TrainingConfig, default_plan, train
from adlm.paper import Budgets, PrivateRecords, build, learn_records, make_release
from adlm.paper.networks import (
    TOGETHER,
    AutoEncoder,
    Boltzmann,
    Machine,
    MinMax,
    Unsupervised,
    by_batch,
    places,
)
from adlm.paper.relevance import PrivateRelevance, RelevanceSource, private_relevance
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

DIGITS, TEST = datasets.load("digits", "train"), datasets.load("digits", "test")
X, SEEN = (torch.from_numpy(part.domain.scale(part.x)) for part in (DIGITS, TEST))
Releases = Callable[..., Release]


def right(model: Model) -> float:
    return float((model.predict(TEST.x) == TEST.y).mean())


def test_the_command_and_the_function_come_within_three_points_of_a_network_without_privacy(
    digits_release: Releases, tmp_path: Path
) -> None:
    release = digits_release()
    release.save(tmp_path / "R")
    words = ["train", str(tmp_path / "R"), "--out", str(tmp_path / "M"), "--json", "--epochs", "25"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    plan = replace(default_plan(len(DIGITS.x)), epochs=25)
    theirs, ours = Model.load(tmp_path / "M"), fit(release, "mlp", plan)
    assert json.loads(done.stdout)["epochs"] == ours.training["epochs"]
    for a, b in zip(theirs.head.parameters(), ours.head.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    torch.manual_seed(0)
    plain = build("mlp", (8, 8), 10)
    train(plain, Examples(X, torch.from_numpy(DIGITS.y)), plan, device="cpu")
    expected = float((plain(SEEN).argmax(1).numpy() == TEST.y).mean())
    assert expected > 0.9
    assert right(ours) > expected - 0.03
    few = CliRunner().invoke(
        app, ["train", str(tmp_path / "R"), "--steps", "12", "--out", str(tmp_path / "F")]
    )
    assert "12 steps are few, 2,000 are usual" in few.output


@pytest.mark.parametrize("n", [1, 30, 1437, 60_000])
def test_the_default_plan_has_2000_steps_and_12_epochs_at_least(n: int) -> None:
    plan = default_plan(n)
    assert plan.total(n) >= 2000
    assert (plan.epochs or 0) >= 12
    assert 20 <= plan.batch_size <= 300


def test_a_network_trained_on_noisy_records_answers_with_the_statistics_of_clean_ones(
    digits_release: Releases,
) -> None:
    """Noise of scale 2 ranges: the averages of training put nearly all clean records into one class."""
    noisy, plan = digits_release("mlp", "300", delta_h0=40_000), TrainingConfig(steps=600, batch_size=100)
    model = fit(noisy, "mlp", plan)
    assert model.training["statistics"] == TOGETHER_STATISTICS
    assert right(model) > right(replace(model, training={})) + 0.1
    assert fit(digits_release(), "mlp", TrainingConfig(steps=5)).training["statistics"] == AVERAGES
    _explained_alone(model)


def _explained_alone(model: Model) -> None:
    """A model that answers by batch statistics explains each record by itself: Lemma 1 rests on it."""

    def relevance(x: npt.NDArray[Any]) -> PrivateRelevance:
        given: dict[str, Any] = {"epsilon": Fraction(1), "ledger": Ledger(), "source": Source.seeded_with(0)}
        return private_relevance(RelevanceSource(model.head, "public"), x, DIGITS.domain, **given)

    changed = TEST.x[:100].copy()
    changed[-1] = 16 - changed[-1]
    moved = np.abs(relevance(TEST.x[:100]).values - relevance(changed).values).sum()
    assert float(moved) <= 64 / 100 + 1e-9


def test_inside_by_batch_a_network_uses_the_statistics_of_the_batch_and_keeps_its_averages() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2), MinMax(2), nn.BatchNorm1d(2)).eval()
    x = torch.randn(TOGETHER, 3) * 5
    alone = network(x)
    with by_batch(network):
        together = network(x)
    assert not torch.allclose(alone, together)
    torch.testing.assert_close(network(x), alone)  # the averages are as they were
    slow = network[0](x)
    slow = (slow - slow.amin(0)) / (slow.amax(0) - slow.amin(0))
    torch.testing.assert_close(together, nn.functional.batch_norm(slow, None, None, training=True))


# ---- Every kind that the paper names

RECORDS_FIRST = ("auto-encoder", "rbm", "deep-belief")


@pytest.mark.parametrize("name", [*RECORDS_FIRST, "recurrent", "attention"])
def test_a_network_of_each_kind_learns_from_a_record_release_and_comes_back_from_its_folder(
    name: str, digits_release: Releases, tmp_path: Path
) -> None:
    """Where noise is negligible."""
    plan = TrainingConfig(steps=300, batch_size=70, learning_rate=1e-2, schedule="cosine")
    model = fit(digits_release(), name, plan)
    assert right(model) > 0.6
    model.save(tmp_path / "M")
    torch.testing.assert_close(Model.load(tmp_path / "M").logits(TEST.x[:20]), model.logits(TEST.x[:20]))


@pytest.mark.parametrize("name", RECORDS_FIRST)
def test_records_are_learnt_without_labels_and_without_a_budget_for_them(
    name: str, digits_release: Releases
) -> None:
    release = digits_release("rbm", labels=False)
    assert set(release.tensors) == {"x", "bias", "budget_ratios"}
    assert len(release.certificate.charges) == 1
    torch.manual_seed(0)
    control = build(name, (8, 8), 10)
    assert isinstance(control, Unsupervised)
    control.learn_records(X, epochs=8)
    found, spread = (
        learn_records(release, name, epochs=8).error(SEEN),
        float((SEEN - SEEN.mean(0)).square().mean()),
    )
    assert found < 0.9 * spread  # better than the mean of all records
    assert found == pytest.approx(control.error(SEEN), rel=0.2)
    with pytest.raises(UserError, match="holds no labels"):
        fit(release, "mlp", TrainingConfig(steps=1))


def test_the_target_of_an_auto_encoder_is_the_released_record() -> None:
    """One step by hand: the gradient is that of the square error against the record itself."""
    torch.manual_seed(0)
    network = AutoEncoder((8, 8), 10)
    slow, x = copy.deepcopy(network), X[:50]
    network.learn_records(x, epochs=1)
    optimiser = torch.optim.Adam([*slow.encode.parameters(), *slow.decode.parameters()], lr=3e-3)
    weight, bias = slow.encode[1].parameters()
    hidden = torch.sigmoid(x.flatten(1) @ weight.T + bias)
    ((hidden @ slow.decode.weight.T + slow.decode.bias - x.flatten(1)) ** 2).mean().backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    for a, b in zip(network.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("deep", [False, True])
def test_contrastive_divergence_moves_weights_by_hidden_times_visible_patch_by_patch(deep: bool) -> None:
    """One step by hand: data less reconstruction, means over records and places."""
    torch.manual_seed(0)
    machine = Machine(nn.Conv2d(1, 4, 5, padding=2) if deep else nn.Linear(30, 4))
    v = torch.rand(2, 1, 6, 5) if deep else torch.rand(2, 30)
    weight = machine.layer.weight.detach().clone()
    start = copy.deepcopy(machine)
    machine.learn(v, seed=0, epochs=1)
    with torch.no_grad():
        start.visible.copy_(v.mean((0, 2, 3))[:, None, None] if deep else v.mean(0))
        v = v[torch.randperm(2, generator=torch.Generator().manual_seed(0))]
        hidden = start(v)
        back = start.down(torch.bernoulli(hidden, generator=torch.Generator().manual_seed(0)))
        step = torch.zeros_like(weight)
        for visible, units, sign in ((v, hidden, 1), (back, start(back), -1)):
            if not deep:
                step += sign * units.T @ visible / 2
                continue
            padded = nn.functional.pad(visible, (2, 2, 2, 2))
            for n, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(6), torch.arange(5)).tolist():
                patch = padded[n, :, i : i + 5, j : j + 5]
                step += sign * units[n, :, i, j, None, None, None] * patch / 60
    torch.testing.assert_close(machine.layer.weight.detach(), weight + 0.05 * step, rtol=1e-4, atol=1e-6)


def test_noise_of_any_size_leaves_a_boltzmann_machine_finite() -> None:
    for deep in (False, True):
        network = Boltzmann((8, 8), 10, deep=deep)
        network.learn_records(X[:200] + 1e4 * torch.randn(200, 8, 8), epochs=3)
        assert all(bool(torch.isfinite(p).all()) for p in network.parameters())


@pytest.mark.parametrize(
    ("shape", "expected"), [((12,), (12, 1)), ((8, 6), (8, 6)), ((3, 8, 6), (8, 18)), ((1, 4, 5), (4, 5))]
)
def test_the_places_of_a_record_are_its_rows(shape: tuple[int, ...], expected: tuple[int, int]) -> None:
    assert places(shape) == expected
    assert build("recurrent", shape, 3).eval()(torch.rand(2, *shape)).shape == (2, 3)


def test_mistakes_are_told(digits_release: Releases) -> None:
    with pytest.raises(UserError, match="takes images"):
        build("deep-belief", (12,), 3)
    with pytest.raises(UserError, match="one to three axes"):
        build("attention", (2, 2, 2, 2), 3)
    with pytest.raises(UserError, match="learns labels, not records"):
        learn_records(digits_release(), "mlp")
    with pytest.raises(UserError, match="class weights need classes"):
        fit(digits_release(), "mlp", class_weight="balanced")
    given: dict[str, Any] = {"explained": None, "ledger": Ledger(), "source": Source.system()}
    for y, budgets in ((None, Budgets.split(1, method="ilm")), (DIGITS.y, Budgets(None, Fraction(1), None))):
        with pytest.raises(UserError, match="labels are given when, and only when"):
            make_release(
                PrivateRecords(DIGITS.x, y, DIGITS.domain), build("rbm", (8, 8), 10), budgets, 10, **given
            )
