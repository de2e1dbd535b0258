"""Training on a release alone: any network on the private layer, exact resuming, and a certificate that
stays.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.model.training import ROWS, Checkpoint, Examples, TrainingConfig, forward_in_chunks, train
from adlm.paper.loss import CROSS_ENTROPY, mean_loss
from adlm.paper.networks import build
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


@lru_cache
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


class Residual(nn.Module):
    """A dense network with a residual sum, written by its user."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(144, 32), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x.flatten(1)))
        return self.out(h + torch.relu(self.second(h)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "shape", "mode"),
    [
        *(("mlp", (12, 12), "economical"), ("mlp", (12, 12), "literal"), ("cnn1d", (30,), "literal")),
        *(("small-cnn", (12, 12), "economical"), (None, (12, 12), "literal")),
    ],
)
def test_any_network_stacked_on_the_private_layer_learns_where_noise_is_small(
    name: str | None, shape: tuple[int, ...], mode: str
) -> None:
    torch.manual_seed(0)
    network = Residual() if name is None else build(name, shape, 3)
    plan = TrainingConfig(epochs=15, batch_size=50, learning_rate=5e-3)
    history = train(network, from_records(release(shape, mode=mode)), plan, device="cpu")
    x, y = blobs(shape)
    assert history.losses[-1] < history.losses[0]
    assert (
        float((network(torch.tensor(x, dtype=torch.float32)).argmax(1) == torch.tensor(y)).double().mean())
        > 0.9
    )


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


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    examples, file, plan = from_records(release()), tmp_path / "run.safetensors", replace(PLANS[1], epochs=1)
    train(seeded(), examples, plan, device="cpu", checkpoint=Checkpoint(file), identity="a")
    for network, other, identity, message in (
        (seeded(), replace(plan, seed=1), "a", "another run, its seed"),
        (seeded(), replace(plan, batch_size=32), "a", "another run, its batch_size"),
        (seeded(), replace(plan, optimiser="SGD"), "a", "another run, its optimiser"),
        (seeded(), plan, "b", "its identity differs"),
        (build("mlp", (12, 12), 3), plan, "a", r"is of another network than mlp; [a-z ,]*$"),
    ):
        again = Checkpoint(file, resume=True)
        with pytest.raises(UserError, match=message):
            train(network, examples, other, device="cpu", checkpoint=again, identity=identity)


def test_a_damaged_checkpoint_is_told(tmp_path: Path) -> None:
    examples, file, plan = from_records(release()), tmp_path / "run.safetensors", replace(PLANS[1], epochs=1)
    train(seeded(), examples, plan, device="cpu", checkpoint=Checkpoint(file))
    whole = file.read_bytes()
    for damaged in (whole[:-50], whole.replace(b'format\\": 3', b'format\\": 1')):
        assert damaged != whole
        file.write_bytes(damaged)
        with pytest.raises(UserError, match="not a checkpoint of this adlm, or it was truncated"):
            train(seeded(), examples, plan, device="cpu", checkpoint=Checkpoint(file, resume=True))


def test_the_certificate_is_byte_for_byte_the_same_after_one_epoch_and_after_many(tmp_path: Path) -> None:
    release().save(tmp_path / "R")
    before = {path.name: path.read_bytes() for path in (tmp_path / "R").iterdir()}
    for epochs in (1, 30):
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
    phi = CROSS_ENTROPY.coefficients(labels, 3)
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
    network, vectors, labels = nn.Linear(12, 3), torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    plan = TrainingConfig(epochs=20, batch_size=50, learning_rate=0.05)
    train(network, Examples(vectors, labels), plan, device="cpu")
    assert float((network(vectors).argmax(1) == labels).double().mean()) > 0.95


def test_an_optimiser_that_evaluates_several_times_a_step_works_too() -> None:
    x, y = blobs((12,))
    phi = CROSS_ENTROPY.coefficients(torch.tensor(y), 3)
    network, vectors = nn.Linear(12, 3), torch.tensor(x, dtype=torch.float32)
    plan = TrainingConfig(steps=10, batch_size=300, optimiser="LBFGS", learning_rate=1.0)
    train(network, Examples(vectors, phi), plan, device="cpu")
    hidden = torch.cat([vectors, torch.ones(300, 1)], dim=1).double()
    best = torch.linalg.lstsq(hidden * 0.25**0.5, -phi[:, 1].double() / 0.25**0.5).solution
    expected = float(mean_loss(hidden @ best, phi))
    assert float(mean_loss(network(vectors).detach(), phi)) == pytest.approx(expected, rel=1e-3)


def test_a_loss_that_is_not_finite_ends_training_with_the_network_of_the_last_good_epoch() -> None:
    x, y = blobs((12,))
    phi = CROSS_ENTROPY.coefficients(torch.tensor(y), 3)
    network, vectors = nn.Linear(12, 3), torch.tensor(x, dtype=torch.float32)
    plan = TrainingConfig(epochs=50, batch_size=30, optimiser="SGD", learning_rate=1e6)
    history = train(network, Examples(vectors, phi), plan, device="cpu")
    assert "not finite" in history.stopped
    assert len(history.losses) < 50
    assert all(bool(torch.isfinite(p).all()) for p in network.parameters())
    assert all(math.isfinite(value) for value in history.losses)


def test_a_network_that_the_last_step_ruined_is_told_of() -> None:
    x, y = blobs((12,))
    phi = CROSS_ENTROPY.coefficients(torch.tensor(y), 3)
    examples = Examples(torch.tensor(x, dtype=torch.float32), phi)
    for rate, ruined in ((1e30, True), (1e-3, False)):
        plan = TrainingConfig(steps=1, batch_size=300, learning_rate=rate)
        history = train(nn.Linear(12, 3), examples, plan, device="cpu")
        assert all(math.isfinite(value) for value in history.losses)
        assert ("answers are not finite" in history.stopped) == ruined


@pytest.mark.parametrize(("name", "shape"), [("small-cnn", (12, 12)), ("cnn1d", (24,))])
def test_a_batch_in_chunks_gives_the_outcome_the_gradients_and_the_statistics_of_the_whole_batch(
    name: str, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    one, two = build(name, shape, 3).train(), build(name, shape, 3).train()
    two.load_state_dict(one.state_dict())
    sizes: list[int] = []
    first = next(m for m in two.modules() if isinstance(m, nn.Conv1d | nn.Conv2d))
    first.register_forward_hook(lambda layer, given, made: sizes.append(len(made)))
    x, y = torch.rand(ROWS + 44, *shape), torch.arange(ROWS + 44) % 3
    for network, outcome in ((one, one(x)), (two, forward_in_chunks(two, x))):
        torch.nn.functional.cross_entropy(outcome, y).backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(network(x), outcome, atol=1e-5, rtol=1e-4)
    assert sizes == [ROWS, 44, ROWS + 44]
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-3)
    for key, buffer in one.named_buffers():
        torch.testing.assert_close(two.get_buffer(key), buffer)


def test_layers_that_mix_records_or_are_unknown_end_the_chunks() -> None:
    class Mixing(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    x = torch.rand(ROWS + 9, 1, 6)
    for layers in (
        (nn.Conv1d(1, 2, 3), Mixing()),
        (Mixing(), nn.Conv1d(1, 2, 3)),
        (nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2)),
    ):
        network = nn.Sequential(*layers)
        torch.testing.assert_close(forward_in_chunks(network, x), network(x))


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
