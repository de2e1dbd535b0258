"""The baseline is fair and honest: its noise, its accounting and its certificate."""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.dpsgd import epsilon_spent, noise_multiplier, quick_epsilon
from torch import nn

from adlm.data import datasets
from adlm.errors import UserError
from adlm.paper.networks import build
from benchmarks import dpsgd

pytestmark = pytest.mark.skipif(find_spec("opacus") is None, reason="the baseline needs Opacus")

QUICK = dpsgd.Settings("quick", batch=256, epochs=6, clip=0.5, rate=2.0, momentum=0.5)


def train(
    network: nn.Module, x: torch.Tensor, y: Any, settings: dpsgd.Settings, **given: Any
) -> dpsgd.Trained:
    """Train at an epsilon, with delta 1e-5."""
    certificate = dpsgd.certify(settings, len(x), given.pop("epsilon"))
    return dpsgd.follow(network, x, y, settings, certificate, **given)


def digits(split: str) -> tuple[torch.Tensor, np.ndarray]:
    records = datasets.load("digits", split)
    return torch.from_numpy(records.domain.scale(records.x)), records.y


@pytest.mark.parametrize("epsilon", ["0.05", "0.5", "3"])
def test_the_target_is_hit_within_one_per_cent_from_below(epsilon: str) -> None:
    settings = dpsgd.Settings("any", batch=2048, epochs=3, clip=0.1, rate=1.0)
    certificate = dpsgd.certify(settings, 60_000, epsilon)
    assert 0.99 * float(epsilon) <= float(certificate.epsilon) <= float(epsilon)
    independent = quick_epsilon(
        certificate.noise_multiplier, certificate.rate, certificate.steps, 1e-5, float(epsilon)
    )
    assert independent == pytest.approx(float(certificate.epsilon), rel=0.01)


def test_more_epochs_cost_more_at_the_same_noise_and_need_more_noise_at_the_same_cost() -> None:
    sigma = noise_multiplier(1.0, 0.03, 100, 1e-5)
    assert epsilon_spent(sigma, 0.03, 1000, 1e-5) > 2 * epsilon_spent(sigma, 0.03, 100, 1e-5)
    assert noise_multiplier(1.0, 0.03, 1000, 1e-5) > 1.5 * sigma


def test_the_certificate_speaks_like_that_of_a_release() -> None:
    certificate = dpsgd.certify(QUICK, 1437, "2")
    assert "Poisson sampling" in certificate.note
    raw = certificate.to_dict()
    assert raw["epsilon_claimed"] == raw["epsilon_proved"] <= 2
    assert (raw["delta"], raw["neighbours"]) == (1e-5, "add-remove")


def test_pure_epsilon_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="no pure epsilon"):
        dpsgd.certify(QUICK, 1437, "2", "0")


def test_a_step_adds_the_stated_noise() -> None:
    # gradients are clipped to almost nothing, so that the step is noise: lr sigma C / |L| per weight
    settings = dpsgd.Settings("noise", batch=100, epochs=0.1, clip=1e-3, rate=1e4)
    x, y = torch.rand(1000, 8, 8), np.zeros(1000, dtype=np.int64)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 10))
    before = torch.cat([p.detach().flatten().clone() for p in network.parameters()])
    trained = train(network, x, y, settings, epsilon="0.1")
    moved = torch.cat([p.detach().flatten() for p in trained.network.parameters()]) - before
    assert trained.certificate.steps == 1
    expected = 1e4 * trained.certificate.noise_multiplier * 1e-3 / 100
    # 38,410 normal draws: their standard deviation is off by 2% once in 10^7 runs
    assert float(moved.std()) == pytest.approx(expected, rel=0.02)


def test_records_do_not_touch_each_other_s_gradient() -> None:
    network = dpsgd.uncoupled(build("paper-mnist", (8, 8), 10)).train()
    x = torch.rand(4, 8, 8)
    alone = network(x[:1])
    together = network(torch.cat([x[:1], 100 * x[1:]]))[:1]
    torch.testing.assert_close(alone, together)


def test_batch_normalisation_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'1' \(BatchNorm1d\)"):
        dpsgd.uncoupled(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


@pytest.mark.parametrize("shape", [(28, 28), (3, 32, 32)])
def test_the_tanh_network_has_the_published_size(shape: tuple[int, ...]) -> None:
    network = dpsgd.tanh(shape, 10)
    published = {(28, 28): 26_010, (3, 32, 32): 550_570}  # Papernot et al. 2021, Tables 1 and 2
    assert sum(p.numel() for p in network.parameters()) == published[shape]


def test_it_learns_at_a_large_budget_and_not_at_a_tiny_one_and_repeats_itself() -> None:
    (x, y), (x_test, y_test) = digits("train"), digits("test")

    def run(epsilon: str, seed: int) -> float:
        head = nn.Sequential(nn.Flatten(), dpsgd.linear(64, 10))
        trained = train(head, x, y, QUICK, epsilon=epsilon, seed=seed)
        return dpsgd.accuracy(trained.network, x_test, y_test)

    assert run("8", 1) > 0.75
    assert run("8", 1) == run("8", 1)
    assert run("0.01", 1) < 0.5


@pytest.mark.parametrize("changes", [{"chunk": 50}, {"ghost": True}, {"ghost": True, "chunk": 50}])
def test_small_chunks_and_ghost_clipping_make_the_same_step(changes: dict[str, Any]) -> None:
    x, y = digits("train")

    def run(settings: dpsgd.Settings) -> torch.Tensor:
        head = nn.Sequential(nn.Flatten(), dpsgd.linear(64, 10))
        train(head, x, y, settings, epsilon="8", seed=3)
        return torch.cat([p.detach().flatten() for p in head.parameters()])

    half = replace(QUICK, epochs=0.5)
    torch.testing.assert_close(run(replace(half, **changes)), run(half), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ghost", [False, True])
def test_an_empty_sample_still_gets_its_noise(ghost: bool) -> None:
    settings = dpsgd.Settings("empty", batch=1, epochs=3, clip=1.0, rate=1.0, ghost=ghost)
    certificate = dpsgd.Certificate(Fraction(1), Fraction(1, 10**5), 1e-9, 1, 1.0, 1.0)
    head = dpsgd.linear(4, 3)
    dpsgd.follow(head, torch.rand(10, 4), np.zeros(10, dtype=np.int64), settings, certificate)
    moved = torch.cat([p.detach().flatten() for p in head.parameters()])
    assert bool(torch.isfinite(moved).all() & (moved != 0).all())


def test_a_missing_opacus_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(UserError, match=r"pip install adlm\[baseline\]"):
        train(nn.Linear(2, 2), torch.rand(9000, 2), np.zeros(9000, dtype=np.int64), QUICK, epsilon="1")


def test_under_replace_one_the_noise_is_twice_that_of_add_remove() -> None:
    settings = replace(dpsgd.LINEAR, batch=256, epochs=2)
    one, other = (dpsgd.certify(settings, 1000, 1, neighbours=r) for r in ("add-remove", "replace-one"))
    assert other.noise_multiplier == pytest.approx(2 * one.noise_multiplier)
    assert [c.totals.neighbours for c in (one, other)] == ["add-remove", "replace-one"]
    assert "twice the clip norm" in other.note
