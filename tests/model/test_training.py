"""Training on a release alone: any network on the private layer, exact resuming, and a certificate that
stays.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.model.training import Checkpoint, Examples, TrainingConfig, accuracy, predict, train
from adlm.paper.networks import CROSS_ENTROPY, Coefficients, build, coefficients, loss
from adlm.paper.release import PrivateRecords, Settings
from adlm.paper.release import release as release_records
from adlm.paper.training import from_records
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime.machine import choose_device


def blobs(shape: tuple[int, ...], n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Three classes, each bright in its own third of the record."""
    random = np.random.default_rng(0)
    y = np.arange(n) % 3
    flat = random.uniform(0, 0.3, (n, int(np.prod(shape))))
    third = flat.shape[1] // 3
    for i, label in enumerate(y):
        flat[i, label * third : (label + 1) * third] += 0.7
    return flat.reshape(n, *shape), y


def release(shape: tuple[int, ...] = (12, 12), epsilon: int = 10**5, mode: str = "economical") -> Release:
    domain = Domain(shape=shape, lower=0.0, upper=1.0, classes=("0", "1", "2"))
    settings = Settings(
        epsilon2=Fraction(epsilon),
        epsilon3=Fraction(epsilon),
        batch_size=50,
        delta_h0=Fraction(1000),
        delta_h0_rule="given",
        hidden=25,
        allocation="identical",
        mode=mode,
    )
    x, y = blobs(shape)
    return release_records(
        PrivateRecords(x, y, domain), settings, relevance=None, ledger=Ledger(), source=Source.seeded_with(1)
    )


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mlp", (12, 12)), ("residual-cnn", (12, 12)), ("cnn1d", (30,)), ("small-cnn", (12, 12))],
)
@pytest.mark.parametrize("mode", ["economical", "literal"])
def test_any_network_stacked_on_the_private_layer_learns_where_noise_is_small(
    name: str, shape: tuple[int, ...], mode: str
) -> None:
    torch.manual_seed(0)
    network = build(name, shape, 3)
    plan = TrainingConfig(epochs=15, batch_size=50, learning_rate=5e-3)
    history = train(network, from_records(release(shape, mode=mode)), plan, device="cpu")
    x, y = blobs(shape)
    assert history.losses[-1] < history.losses[0]
    assert accuracy(network, torch.tensor(x, dtype=torch.float32), torch.tensor(y), device="cpu") > 0.9


class WithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(144, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5)
        )
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))  # type: ignore[no-any-return]


def seeded() -> nn.Module:
    torch.manual_seed(7)
    return WithDropout()


PLANS = [
    TrainingConfig(
        epochs=6,
        batch_size=64,
        optimiser="SGD",
        learning_rate=0.1,
        options={"momentum": 0.9, "nesterov": True},
    ),
    TrainingConfig(epochs=6, batch_size=64, optimiser="Adam", schedule="cosine"),
    TrainingConfig(steps=23, batch_size=64, optimiser="AdamW", schedule="linear"),
    TrainingConfig(
        epochs=6, batch_size=64, optimiser="LBFGS", learning_rate=0.05, options={"history_size": 5}
    ),
]


@pytest.mark.parametrize("plan", PLANS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(plan: TrainingConfig, tmp_path: Path) -> None:
    examples = from_records(release())
    whole = seeded()
    straight = train(whole, examples, plan, device="cpu")

    class InterruptedRunError(Exception):
        pass

    def stop(epoch: int, _: nn.Module) -> None:
        if epoch == 3:
            raise InterruptedRunError

    file = tmp_path / "run.safetensors"
    with pytest.raises(InterruptedRunError):
        train(seeded(), examples, plan, device="cpu", checkpoint=Checkpoint(file), after_epoch=stop)
    torch.manual_seed(123)
    torch.rand(17)
    again = WithDropout()
    resumed = train(again, examples, plan, device="cpu", checkpoint=Checkpoint(file, resume=True))
    assert resumed == straight
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_a_constant_rate_can_be_trained_further(tmp_path: Path) -> None:
    examples, file, plan = from_records(release()), tmp_path / "run.safetensors", replace(PLANS[0], epochs=3)
    train(seeded(), examples, plan, device="cpu", checkpoint=Checkpoint(file))
    longer = seeded()
    train(longer, examples, replace(plan, epochs=6), device="cpu", checkpoint=Checkpoint(file, resume=True))
    straight = seeded()
    train(straight, examples, replace(plan, epochs=6), device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(longer.parameters(), straight.parameters(), strict=True))


@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": 32}, {"optimiser": "SGD"}])
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    examples, file, plan = (
        from_records(release()),
        tmp_path / "run.safetensors",
        TrainingConfig(epochs=1, batch_size=64),
    )
    train(seeded(), examples, plan, device="cpu", checkpoint=Checkpoint(file), identity="a")
    other = replace(plan, **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"another run, its {next(iter(change))}"):
        train(seeded(), examples, other, device="cpu", checkpoint=Checkpoint(file, resume=True), identity="a")
    with pytest.raises(UserError, match="its identity differs"):
        train(seeded(), examples, plan, device="cpu", checkpoint=Checkpoint(file, resume=True), identity="b")
    with pytest.raises(UserError, match=r"is of another network than mlp; [a-z ,]*$"):
        train(
            build("mlp", (12, 12), 3),
            examples,
            plan,
            device="cpu",
            checkpoint=Checkpoint(file, resume=True),
            identity="a",
        )


def test_a_truncated_checkpoint_is_told(tmp_path: Path) -> None:
    examples, file, plan = (
        from_records(release()),
        tmp_path / "run.safetensors",
        TrainingConfig(epochs=1, batch_size=64),
    )
    train(seeded(), examples, plan, device="cpu", checkpoint=Checkpoint(file))
    whole = file.read_bytes()
    other_version = whole.replace(b'format\\": 2', b'format\\": 1')
    assert other_version != whole
    for damaged in (whole[:-50], other_version):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match="not a checkpoint of this adlm, or it was truncated"):
            train(seeded(), examples, plan, device="cpu", checkpoint=Checkpoint(file, resume=True))


def test_the_certificate_is_byte_for_byte_the_same_after_one_epoch_and_after_many(tmp_path: Path) -> None:
    release().save(tmp_path / "R")
    before = {path.name: path.read_bytes() for path in (tmp_path / "R").iterdir()}
    for epochs in (1, 100):
        loaded = Release.load(tmp_path / "R")
        train(
            build("mlp", (12, 12), 3),
            from_records(loaded),
            TrainingConfig(epochs=epochs, batch_size=300),
            device="cpu",
        )
        loaded.save(tmp_path / f"R{epochs}")
        assert {path.name: path.read_bytes() for path in (tmp_path / f"R{epochs}").iterdir()} == before
    assert {path.name: path.read_bytes() for path in (tmp_path / "R").iterdir()} == before


def test_a_step_of_sgd_is_line_29_by_hand() -> None:
    torch.manual_seed(0)
    x, labels = torch.rand(8, 5), torch.arange(8) % 3
    phi = coefficients(CROSS_ENTROPY, labels, 3)
    network = nn.Linear(5, 3, bias=False)
    weight = network.weight.detach().double().clone()
    train(
        network,
        Examples(x, phi),
        TrainingConfig(steps=1, batch_size=8, optimiser="SGD", learning_rate=0.3),
        device="cpu",
    )
    gradient = torch.zeros(3, 5, dtype=torch.double)
    for i in range(8):
        for l in range(3):  # noqa: E741
            z = float(weight[l] @ x[i].double())
            gradient[l] += (0.5 - float(labels[i] == l) + 2 * 0.125 * z) * x[i].double() / 8
    torch.testing.assert_close(
        network.weight.detach().double(), weight - 0.3 * gradient, rtol=1e-5, atol=1e-6
    )


def test_steps_and_epochs_are_counted_in_batches() -> None:
    assert TrainingConfig(epochs=3, batch_size=100).total(250) == 9
    assert TrainingConfig(steps=7, batch_size=100).total(250) == 7


def test_labelled_vectors_are_trained_on_with_the_usual_cross_entropy() -> None:
    x, y = blobs((12,))
    network = nn.Linear(12, 3)
    vectors, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    train(
        network,
        Examples(vectors, labels),
        TrainingConfig(epochs=20, batch_size=50, learning_rate=0.05),
        device="cpu",
    )
    assert accuracy(network, vectors, labels, device="cpu") > 0.95
    assert (
        predict(network, vectors, batch_size=7, device="cpu").tolist() == network(vectors).argmax(1).tolist()
    )


def test_an_optimiser_that_evaluates_several_times_a_step_works_too() -> None:
    x, y = blobs((12,))
    phi = coefficients(CROSS_ENTROPY, torch.tensor(y), 3)
    network, vectors = nn.Linear(12, 3), torch.tensor(x, dtype=torch.float32)
    plan = TrainingConfig(steps=10, batch_size=300, optimiser="LBFGS", learning_rate=1.0)
    train(network, Examples(vectors, phi), plan, device="cpu")
    hidden = torch.cat([vectors, torch.ones(300, 1)], dim=1).double()
    best = torch.linalg.lstsq(hidden * 0.25**0.5, -phi.first.double() / 0.25**0.5).solution
    expected = float(loss(hidden @ best, Coefficients(phi.zeroth, phi.first, phi.second)))
    assert float(loss(network(vectors).detach(), phi)) == pytest.approx(expected, rel=1e-3)


def test_a_loss_that_is_not_finite_ends_training_with_the_network_of_the_last_good_epoch() -> None:
    x, y = blobs((12,))
    phi = coefficients(CROSS_ENTROPY, torch.tensor(y), 3)
    network, vectors = nn.Linear(12, 3), torch.tensor(x, dtype=torch.float32)
    plan = TrainingConfig(epochs=50, batch_size=30, optimiser="SGD", learning_rate=1e6)
    history = train(network, Examples(vectors, phi), plan, device="cpu")
    assert "not finite" in history.stopped
    assert len(history.losses) < 50
    assert all(bool(torch.isfinite(p).all()) for p in network.parameters())
    assert all(math.isfinite(value) for value in history.losses)


def test_a_network_that_the_last_step_ruined_is_told_of() -> None:
    x, y = blobs((12,))
    phi = coefficients(CROSS_ENTROPY, torch.tensor(y), 3)
    examples = Examples(torch.tensor(x, dtype=torch.float32), phi)
    for rate, ruined in ((1e30, True), (1e-3, False)):
        plan = TrainingConfig(steps=1, batch_size=300, learning_rate=rate)
        history = train(nn.Linear(12, 3), examples, plan, device="cpu")
        assert all(math.isfinite(value) for value in history.losses)
        assert ("answers are not finite" in history.stopped) == ruined


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TrainingConfig(), "either epochs or steps"),
        (lambda: TrainingConfig(epochs=1, steps=1), "either epochs or steps"),
        (lambda: TrainingConfig(epochs=0), "must be positive"),
        (lambda: TrainingConfig(epochs=1, schedule="square"), "constant, linear, cosine"),
        (lambda: TrainingConfig(epochs=1, optimiser="Sgd"), "no optimiser 'Sgd'"),
        (lambda: TrainingConfig(epochs=1, learning_rate=0.0), "learning_rate must be positive"),
        (lambda: TrainingConfig(epochs=1, learning_rate=math.inf), "positive and finite"),
        (lambda: TrainingConfig(epochs=1, seed=10**20), "seed must be an integer from 0"),
        (
            lambda: train(
                nn.Linear(2, 2),
                Examples(torch.zeros(1, 2), torch.zeros(1)),
                TrainingConfig(1, optimiser="SparseAdam"),
            ),
            "SparseAdam cannot train a network",
        ),
        (
            lambda: train(
                nn.Linear(2, 2), Examples(torch.zeros(0, 2), torch.zeros(0)), TrainingConfig(epochs=1)
            ),
            "no examples",
        ),
        (
            lambda: train(
                nn.Linear(2, 2),
                Examples(torch.zeros(1, 2), torch.zeros(1)),
                TrainingConfig(epochs=1, options={"spin": 1}),
            ),
            "does not take these options",
        ),
        (lambda: choose_device("abacus"), "device must be"),
    ],
)
def test_mistakes_are_told(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=message):
        call()
