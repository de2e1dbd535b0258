"""Every kind of network that the paper names trains on a release, beside its control without noise."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adlm.data import datasets
from adlm.errors import UserError
from adlm.mechanism.privatise import privatise
from adlm.model.fit import fit
from adlm.model.model import Model
from adlm.model.training import TrainingConfig
from adlm.paper import Budgets, PrivateRecords, RecordOptions, make_release, train_on_records
from adlm.paper.networks import (
    AutoEncoder,
    Boltzmann,
    DeepBelief,
    Unsupervised,
    build,
    places,
)
from adlm.paper.training import learn_records
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

DIGITS, TEST = datasets.load("digits", "train"), datasets.load("digits", "test")
X, Y = torch.from_numpy(DIGITS.domain.scale(DIGITS.x)), torch.from_numpy(DIGITS.y)
SEEN, ANSWERS = torch.from_numpy(TEST.domain.scale(TEST.x)), torch.from_numpy(TEST.y)
RECORDS_FIRST = ("auto-encoder", "rbm", "deep-belief")
KINDS = (*RECORDS_FIRST, "recurrent", "attention")
PLAN = TrainingConfig(steps=700, batch_size=70, learning_rate=5e-3, schedule="cosine")


def released(
    name: str, epsilon: str = "1e7", labels: bool = True, folder: Path | None = None
) -> tuple[Release, Ledger]:
    ledger = Ledger()
    budgets = Budgets.split(epsilon, method="ilm")
    if not labels:
        budgets = Budgets(None, Fraction(epsilon), None)
    made = make_release(
        PrivateRecords(DIGITS.x, DIGITS.y if labels else None, DIGITS.domain),
        build(name, (8, 8), 10),
        budgets,
        100,
        explained=None,
        options=RecordOptions(folder=folder),
        ledger=ledger,
        source=Source.system(),
    )
    return made, ledger


@pytest.mark.parametrize("name", KINDS)
def test_a_network_of_each_kind_learns_from_a_record_release(name: str) -> None:
    """Where noise is negligible."""
    model = fit(released(name)[0], name, PLAN)
    assert float((model.predict(TEST.x) == TEST.y).mean()) > 0.7


@pytest.mark.parametrize("name", ["auto-encoder", "attention"])
def test_it_learns_from_draws_of_a_moment_release_too(name: str) -> None:
    release = privatise(DIGITS.x, DIGITS.y, domain=DIGITS.domain, epsilon="50", delta="1e-5", k=16, seed=0)
    model = fit(release, name, TrainingConfig(steps=500, batch_size=100, learning_rate=5e-3), draws=2000)
    assert float((model.predict(TEST.x) == TEST.y).mean()) > 0.6


@pytest.mark.parametrize("name", KINDS)
def test_a_model_of_each_kind_comes_back_from_its_folder(name: str, tmp_path: Path) -> None:
    model = fit(released(name)[0], name, TrainingConfig(steps=2, batch_size=50))
    model.save(tmp_path / "M")
    again = Model.load(tmp_path / "M")
    torch.testing.assert_close(again.logits(TEST.x[:20]), model.logits(TEST.x[:20]))


@pytest.mark.parametrize("name", RECORDS_FIRST)
def test_records_are_learnt_without_labels_and_without_a_budget_for_them(name: str, tmp_path: Path) -> None:
    release, ledger = released(name, labels=False, folder=tmp_path / "R")
    assert set(release.tensors) == {"x", "bias", "budget_ratios"}
    assert len(ledger.charges) == len(release.certificate.charges) == 1
    assert release.certificate.totals.epsilon_claimed == 10**7
    torch.manual_seed(0)
    before = build(name, (8, 8), 10)
    assert isinstance(before, Unsupervised)
    control = build(name, (8, 8), 10)
    assert isinstance(control, Unsupervised)
    control.learn_records(X)
    found, expected, spread = learn_records(release, name).error(SEEN), control.error(SEEN), _spread(SEEN)
    assert found < 0.8 * spread  # better than the mean of all records, by a wide margin
    assert found == pytest.approx(expected, rel=0.2)
    with pytest.raises(UserError, match="holds no labels"):
        fit(release, "mlp", TrainingConfig(steps=1))


def _spread(x: Tensor) -> float:
    return float((x - x.mean(0)).square().mean())


def test_the_target_of_an_auto_encoder_is_the_released_record() -> None:
    """One step by hand: the gradient is that of the square error against the record itself."""
    torch.manual_seed(0)
    network, slow = AutoEncoder((8, 8), 10), AutoEncoder((8, 8), 10)
    slow.load_state_dict(network.state_dict())
    x = X[:50]
    network.learn_records(x, epochs=1)
    optimiser = torch.optim.Adam([*slow.encode.parameters(), *slow.decode.parameters()], lr=3e-3)
    weight, bias = slow.encode[1].parameters()
    hidden = torch.sigmoid(x.flatten(1) @ weight.T + bias)
    ((hidden @ slow.decode.weight.T + slow.decode.bias - x.flatten(1)) ** 2).mean().backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    for a, b in zip(network.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_contrastive_divergence_of_maps_is_that_of_every_patch() -> None:
    """The sum over places of hidden times visible, patch by patch."""
    torch.manual_seed(0)
    machine = DeepBelief((6, 5), 3).first
    v, h = torch.rand(2, 1, 6, 5), torch.rand(2, 8, 6, 5)
    padded = nn.functional.pad(v, (2, 2, 2, 2))
    slow = torch.zeros(8, 1, 5, 5)
    for n, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(6), torch.arange(5)).tolist():
        slow += h[n, :, i, j, None, None, None] * padded[n, :, i : i + 5, j : j + 5]
    torch.testing.assert_close(machine._pairs(v, h), slow)


def test_noise_of_any_size_leaves_a_boltzmann_machine_finite() -> None:
    for network in (Boltzmann((8, 8), 10), DeepBelief((8, 8), 10)):
        network.learn_records(X[:200] + 1e4 * torch.randn(200, 8, 8), epochs=3)
        assert all(bool(torch.isfinite(p).all()) for p in network.parameters())


def test_algorithm_1_lets_such_a_network_learn_records_before_labels() -> None:
    release, _ = released("rbm")
    torch.manual_seed(0)
    network = build("rbm", (8, 8), 10)
    assert isinstance(network, Unsupervised)
    before = network.error(SEEN)
    still = TrainingConfig(steps=1, batch_size=10, optimiser="SGD", learning_rate=1e-30)
    train_on_records(release, network, still, device="cpu")
    assert network.error(SEEN) < 0.8 * before


@pytest.mark.parametrize(
    ("shape", "expected"), [((12,), (12, 1)), ((8, 6), (8, 6)), ((3, 8, 6), (8, 18)), ((1, 4, 5), (4, 5))]
)
def test_the_places_of_a_record_are_its_rows(shape: tuple[int, ...], expected: tuple[int, int]) -> None:
    assert places(shape) == expected
    network = build("recurrent", shape, 3)
    x = torch.rand(2, *shape)
    rows = network._series(x)  # type: ignore[operator]
    assert rows.shape == (2, *expected)
    if len(shape) == 3:
        torch.testing.assert_close(rows[0, 1].flatten(), x[0, :, 1].flatten())


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="takes images"):
        build("deep-belief", (12,), 3)
    with pytest.raises(UserError, match="one to three axes"):
        build("attention", (2, 2, 2, 2), 3)
    with pytest.raises(UserError, match="learns labels, not records"):
        learn_records(released("mlp")[0], "mlp")
    given: dict[str, Any] = {"explained": None, "ledger": Ledger(), "source": Source.system()}
    network = build("rbm", (8, 8), 10)
    for y, budgets in ((None, Budgets.split(1, method="ilm")), (DIGITS.y, Budgets(None, Fraction(1), None))):
        with pytest.raises(UserError, match="labels are given when, and only when"):
            make_release(PrivateRecords(DIGITS.x, y, DIGITS.domain), network, budgets, 10, **given)
