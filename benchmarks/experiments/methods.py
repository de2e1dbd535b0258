"""The methods that are compared, each a function from a trial to figures.

Every outcome has the keys `accuracy` (a share of the public test split), `epsilon_claimed`, `epsilon_proved`,
`delta` and `neighbours`; curves over epochs have `history`, pairs of epoch and accuracy.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from adlm.data import datasets
from adlm.errors import UserError
from adlm.mechanism.forecast import forecast
from adlm.model.fit import fit
from adlm.model.training import TrainingConfig
from adlm.paper import Budgets, PrivateRecords, RecordOptions, make_release
from adlm.paper.networks import build
from adlm.paper.relevance import RelevanceNetwork, make_public
from adlm.paper.training import train_on_records
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from benchmarks.baselines import dpsgd
from benchmarks.baselines import networks as baseline_networks
from benchmarks.experiments import benchmark_data
from benchmarks.experiments import ceiling as without_noise
from benchmarks.experiments.paper_readings import accuracy
from benchmarks.experiments.trials import Outcome, Trial

CHOSEN = ("k", "rounds", "objective")  # settings of a plan that show whether the planner has changed
NOTHING = "0.000001"  # an epsilon at which a release carries no information on the records


def moments(trial: Trial) -> Outcome:
    """A release and its model in closed form."""
    request = benchmark_data.ReleaseRequest(**trial.settings)
    release = benchmark_data.moment_release(
        trial.data, request, epsilon=trial.epsilon, delta=trial.delta, seed=trial.entropy
    )
    try:
        measures = benchmark_data.measured(fit(release).head, trial.data, release.features(), request)
        reached = {"accuracy": measures.accuracy, "calibration_error": measures.calibration_error}
    except UserError:  # under add-remove, the noisy counts of a small data set can sum to no records
        reached = {"accuracy": 1 / len(release.certificate.domain.classes)}
    plan = release.certificate.settings["plan"]
    return release.certificate.totals.to_dict() | reached | {name: plan.get(name) for name in CHOSEN}


def ceiling(trial: Trial) -> Outcome:
    """Logistic regression on the same features without noise: no privacy."""
    return _costs(None, None) | {"accuracy": without_noise.ceiling(trial.data, trial.settings.get("n"))}


def prior(trial: Trial) -> Outcome:
    """The accuracy of the public prior alone: a release whose budget is too small to carry information."""
    return moments(replace(trial, epsilon=NOTHING))


def planned(trial: Trial) -> Outcome:
    """The accuracy that `adlm plan` predicts from public quantities alone, reading no record."""
    n = trial.settings.get("n") or len(benchmark_data.split(trial.data, "train").y)
    public, classes = benchmark_data.features(trial.data), len(datasets.domain(trial.data).classes)
    expected = forecast(public, n, classes, trial.epsilon, trial.delta, seed=trial.seed)
    return _costs(0.0, 0.0) | {"accuracy": expected.accuracy}


def records(trial: Trial) -> Outcome:
    """Algorithm 1 (adlm) or its variant with identical noise (ilm): a network trained on noisy records."""
    s, method = dict(trial.settings), trial.method
    declared = benchmark_data.domain(trial.data, "replace-one")
    part = benchmark_data.split(trial.data, "train").first(s.get("n"))
    torch.manual_seed(trial.entropy)
    network = build(s["network"], declared.shape, len(declared.classes))
    paper = build(s["sized"], declared.shape, len(declared.classes))
    explained = None
    if method == "adlm":
        explained = relevance_network(trial.data, s["relevance"])
    release = make_release(
        PrivateRecords(part.x, part.y, declared),
        paper,
        Budgets.split(trial.epsilon, method=method),
        s["batch"],
        explained=explained,
        options=RecordOptions(delta_h0=s["delta_h0"]),
        ledger=Ledger(),
        source=Source.seeded_with(trial.entropy),
    )
    history: list[tuple[int, float]] = []
    x = benchmark_data.scaled(trial.data, "test")
    answers = torch.from_numpy(benchmark_data.split(trial.data, "test").y)

    def after_epoch(epoch: int, trained: nn.Module) -> None:
        if epoch in s["shown"] or epoch == s["epochs"]:
            history.append((epoch, accuracy(trained, x, answers)))

    plan = TrainingConfig(epochs=s["epochs"], batch_size=s["train_batch"], seed=trial.seed)
    ended = train_on_records(release, network, plan, device="cpu", after_epoch=after_epoch)
    if ended.stopped and (not history or history[-1][0] < s["epochs"]):  # before its last epoch
        history.append((s["epochs"], accuracy(network, x, answers)))
    return release.certificate.totals.to_dict() | {
        "accuracy": history[-1][1],
        "history": history,
        "stopped": ended.stopped,
    }


@lru_cache(maxsize=2)
def relevance_network(data: str, size: str) -> RelevanceNetwork:
    """A relevance network that was trained on random public classes only; `quick` is smaller."""
    name, per_class, epochs = {"quick": ("mlp", 50, 6), "full": ("small-cnn", 100, 12)}[size]
    return make_public(datasets.domain(data).shape, name=name, per_class=per_class, epochs=epochs)


def psgd_network(trial: Trial) -> Outcome:
    """DP-SGD on the paper's network or on the tanh network, from pixels."""
    s = dict(trial.settings)
    shape, classes = datasets.domain(trial.data).shape, len(datasets.domain(trial.data).classes)
    torch.manual_seed(trial.entropy)
    if trial.method == "psgd-tanh":
        network = baseline_networks.tanh(shape, classes)
    else:
        network = baseline_networks.uncoupled(build(s.pop("network"), shape, classes))
    x, y = benchmark_data.scaled(trial.data, "train"), benchmark_data.split(trial.data, "train").y
    test, answers = benchmark_data.scaled(trial.data, "test"), benchmark_data.split(trial.data, "test").y
    return _dpsgd(trial, s, network, (x, y), (test, answers))


def psgd_linear(trial: Trial) -> Outcome:
    """DP-SGD on a linear head over the same public features that the release sums."""
    s = dict(trial.settings)
    width = benchmark_data.dpsgd_width(
        trial.data, trial.epsilon, trial.delta, s.get("neighbours", "add-remove")
    )
    network = baseline_networks.linear(width, len(datasets.domain(trial.data).classes))
    z, test = (
        torch.from_numpy(np.array(benchmark_data.narrowed(trial.data, p, width))) for p in ("train", "test")
    )
    y, answers = benchmark_data.split(trial.data, "train").y, benchmark_data.split(trial.data, "test").y
    return _dpsgd(trial, s, network, (z, y), (test, answers))


def _dpsgd(trial: Trial, s: dict[str, Any], network: nn.Module, training: Any, test: Any) -> Outcome:
    n, shown, neighbours = s.pop("n", None), tuple(s.pop("shown", ())), s.pop("neighbours", "add-remove")
    settings = dpsgd.Settings(**s)
    history: list[tuple[int, float]] = []

    def on_epoch(epoch: int, trained: nn.Module) -> None:
        if epoch in shown:
            history.append((epoch, dpsgd.accuracy(trained, *test)))

    x, labels = training[0][:n], training[1][:n]
    certificate = dpsgd.certify(settings, len(x), trial.epsilon, trial.delta, neighbours=neighbours)
    trained = dpsgd.follow(network, x, labels, settings, certificate, seed=trial.entropy, on_epoch=on_epoch)
    accuracy = trained.accuracy(*test)
    last = math.ceil(settings.epochs)
    history = [point for point in history if point[0] != last] + [(last, accuracy)]
    return trained.certificate.to_dict() | {"accuracy": accuracy, "history": history}


def _costs(claimed: float | None, proved: float | None) -> Outcome:
    costs = {"epsilon_claimed": claimed, "epsilon_proved": proved}
    return costs | {"delta": 0.0, "neighbours": "replace-one"}
