"""The paper's networks trained by each reading of its noise, with the control that has none.

A trial is a reading at a claimed epsilon. It is saved after every epoch and resumed from there when it is run
again. The budgets are split as in the authors' code for each data set. ILM is run twice: with AdLM's eps2 and
eps3, so that AdLM pays for relevances on top, and with its total divided between features and labels.

Settings that an ablation may change, one at a time: `schedule` of the rate, `optimiser`, `split` of the
budget, `label_noise` (times that of Lemma 5, or `constant`: a vector on the last hidden layer), `pixels` (the
range that records are scaled to), `relevance` (`sharp`: as in the authors' code), `input_clip` and
`statistics` at test time.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from platformdirs import user_cache_dir
from torch import Tensor, nn

from adlm.audit.statistics import threshold_bound
from adlm.data import datasets
from adlm.domain import Domain
from adlm.model.training import Checkpoint, TrainingConfig, forward_in_chunks, train
from adlm.paper.networks import LayerSizes, build, by_batch, layer_sizes
from adlm.paper.release import SCALE, Budgets, RecordMechanism, Settings, mechanism_for
from adlm.paper.relevance import PrivateRelevance, RelevanceSource, make_public, private_relevance
from adlm.privacy.accounting import parse_epsilon
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.runtime.artefact import write_file
from benchmarks.experiments import authors_code, benchmark_data, readings
from benchmarks.experiments.trials import Outcome, Trial

SPLIT = ("0.25", "0.25", "0.5")  # for relevances, features and labels: the authors' code for MNIST
CIFAR_SPLIT = ("0.1", "0.6", "0.3")  # their code for CIFAR-10
PIXELS = (0.0, 1.0)  # of the paper; the authors' code has [-1, 1]
INPUT_CLIP = 10.0  # of the authors' MNIST network
EACH_GRADIENT = 4  # times as long as a gradient of the batch: 360 against 1,320 records a second
DELTAS = ("counted", "neurons x patch", "maps x d", "per-patch", "one neuron", "one patch")


def budgets_of(method: str, epsilon: str, split: Sequence[str] = SPLIT) -> Budgets:
    """Split of a claimed total by method; `ilm-...-total` has AdLM's total, other ILM its eps2, eps3."""
    shares = tuple(split)
    if method.startswith("ilm") and method.endswith("-total"):
        return Budgets.split(epsilon, shares, "ilm")
    budgets = Budgets.split(epsilon, shares)
    return budgets if method.startswith("adlm") else replace(budgets, epsilon1=None)


def sizes_of(name: str, shape: tuple[int, ...], classes: int) -> LayerSizes:
    """Sizes of a network by its name."""
    return layer_sizes(build(name, shape, classes), shape)


def delta_h0_readings(sizes: LayerSizes) -> dict[str, int]:
    """Readings of Delta_h0: Lemma 3 counts every neuron of h0 with all d inputs, the code a patch."""
    maps = sizes.neurons // sizes.map_size
    return dict(
        zip(
            DELTAS,
            (
                sizes.counted,
                2 * sizes.neurons * sizes.patch,
                2 * maps * sizes.features,
                sizes.per_patch,
                2 * sizes.features,
                2 * sizes.patch,
            ),
            strict=True,
        )
    )


def perform(trial: Trial) -> Outcome:
    """Train a network by the reading of a trial and measure it on the public test split.

    Test records are evaluated all together, with their own batch statistics, because those of training are
    of noisy batches and do not suit clean records.
    """
    s = dict(trial.settings)
    declared, part = (
        benchmark_data.domain(trial.data, "replace-one"),
        benchmark_data.split(trial.data, "train").first(s["n"]),
    )
    pixels = s.get("pixels", PIXELS)
    x, labels = (
        _within(benchmark_data.scaled(trial.data, "train")[: s["n"]], pixels),
        torch.from_numpy(part.y),
    )
    torch.manual_seed(trial.seed)
    network = build(s["network"], declared.shape, len(declared.classes))
    assert isinstance(network, nn.Sequential)
    _clip_inputs(network, s.get("input_clip", INPUT_CLIP))
    plan = TrainingConfig(
        steps=s["steps"],
        batch_size=s["train_batch"],
        optimiser=s.get("optimiser", "Adam"),
        learning_rate=s["rate"],
        schedule=s.get("schedule", "constant"),
        seed=trial.seed,
    )
    per_epoch = math.ceil(len(x) / plan.batch_size)
    reads = math.ceil(s["steps"] / per_epoch)
    if s["reading"] == "no-noise":
        perturbation, relevance = _perturbation(declared, s, Budgets.split("1", SPLIT, "ilm"), None), None
    else:
        budgets = budgets_of(trial.method, trial.epsilon, s.get("split", SPLIT))
        relevances = _sharp_relevance if s.get("relevance") == "sharp" else _relevance
        relevance = (
            relevances(trial.data, s["n"], str(budgets.epsilon1), trial.seed) if budgets.epsilon1 else None
        )
        perturbation = _perturbation(declared, s, budgets, relevance)
    examples, matrix = readings.read(s["reading"], x, labels, perturbation, Source.seeded_with(trial.entropy))
    network = _with_label_noise(network, matrix, s.get("label_noise", 1))
    together = s.get("statistics", "test") == "test"
    test = _within(benchmark_data.scaled(trial.data, "test"), pixels)
    answers = benchmark_data.split(trial.data, "test").y
    checkpoint = _checkpoint_path(trial)
    history: list[list[float]] = (
        json.loads(checkpoint.with_suffix(".json").read_text()) if checkpoint.exists() else []
    )

    def after_epoch(epoch: int, trained: nn.Module) -> None:
        step = min(epoch * per_epoch, s["steps"])
        if epoch in (1, 2, 4, 7) or epoch % 5 == 0 or step == s["steps"]:
            history.append([step, accuracy(trained, test, answers, together=together)])
        write_file(checkpoint.with_suffix(".json"), json.dumps(history).encode(), what="history")

    ended = train(
        network,
        examples,
        plan,
        device="cpu",
        checkpoint=Checkpoint(checkpoint, resume=True),
        identity=trial.key,
        after_epoch=after_epoch,
    )
    if not history or history[-1][0] < s["steps"]:  # training ended before its last step
        history.append([s["steps"], accuracy(network, test, answers, together=together)])
    for file in (checkpoint, checkpoint.with_suffix(".json")):
        file.unlink(missing_ok=True)
    outcome = {"accuracy": history[-1][1], "history": history, "stopped": ended.stopped, "steps": s["steps"]}
    if s["reading"] == "no-noise":
        nothing = {"epsilon_claimed": None, "epsilon_proved": None, "delta": 0.0, "neighbours": "replace-one"}
        return outcome | nothing
    charges = () if relevance is None else relevance.charges
    costs = readings.totals(s["reading"], perturbation, charges, reads).to_dict()
    return outcome | costs | {"pixel_noise": float(np.median(perturbation.units)) * SCALE}


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, labels: Any, *, together: bool = True) -> float:
    """Accuracy, with the batch statistics of all of these records or those of training.

    Parameters
    ----------
    network : classifier.
    x, labels : (n, *shape) records and their n classes.
    together : whether to normalise by the records' own statistics.
    """
    was, right = network.training, torch.as_tensor(labels)
    with by_batch(network.eval(), together):
        predicted = forward_in_chunks(network, x).argmax(1)
    network.train(was)
    return float((predicted == right).double().mean())


def _within(x: Tensor, pixels: Sequence[float]) -> Tensor:
    """Records in [0, 1] scaled to another range, relative to which the same noise is smaller or larger."""
    low, high = pixels
    return x if (low, high) == PIXELS else low + (high - low) * x


def _with_label_noise(network: nn.Sequential, matrix: Tensor | None, times: float | str) -> nn.Sequential:
    """The network with the noise on its loss that all of training shares."""
    if times == "constant" and matrix is not None:
        return authors_code.shift_last_layer(network, matrix[0])
    readings.share_label_noise(network, None if matrix is None else matrix * float(times))
    return network


def _clip_inputs(network: nn.Sequential, bound: float) -> None:
    """Clip noisy inputs to [-bound, bound] in place of the authors' ten."""
    for layer in network:
        if isinstance(layer, nn.Hardtanh) and layer.max_val == INPUT_CLIP:
            layer.min_val, layer.max_val = -bound, bound


def _perturbation(
    domain: Domain, s: dict[str, Any], budgets: Budgets, relevance: PrivateRelevance | None
) -> RecordMechanism:
    """Noise scales of the full-width network, whatever the width of the one that is trained."""
    sizes = sizes_of(s["sized"], domain.shape, len(domain.classes))
    settings = Settings(
        epsilon2=budgets.epsilon2,
        epsilon3=budgets.epsilon3 or Fraction(0),
        batch_size=s["batch"],
        delta_h0=Fraction(delta_h0_readings(sizes)[s["delta_h0"]]),
        delta_h0_rule="per-patch" if s["delta_h0"] == "per-patch" else "given",
        hidden=sizes.hidden,
        allocation="identical" if relevance is None else "linear",
    )
    return mechanism_for(settings, domain, relevance)


@lru_cache(maxsize=4)
def _relevance(data: str, n: int | None, epsilon1: str, seed: int) -> PrivateRelevance:
    """Private relevances by a public network, raised to the authors' floor."""
    public = make_public(datasets.domain(data).shape, name="mlp", per_class=50, epochs=6)
    part = benchmark_data.split(data, "train").first(n)
    relevance = private_relevance(
        RelevanceSource(public.network, "public"),
        part.x,
        benchmark_data.domain(data, "replace-one"),
        epsilon=parse_epsilon(epsilon1),
        ledger=Ledger(),
        source=Source.seeded_with(seed),
    )
    return replace(relevance, values=np.maximum(relevance.values, readings.FLOOR))


def _sharp_relevance(data: str, n: int | None, epsilon1: str, seed: int) -> PrivateRelevance:
    """Relevances as in the authors' code, raised to its floor."""
    relevance = authors_code.sharp_relevance(data, n, epsilon1, seed)
    return replace(relevance, values=np.maximum(relevance.values, readings.FLOOR))


def _checkpoint_path(trial: Trial) -> Path:
    """Checkpoint of a running trial; the data sets are public, so this may be in the cache."""
    folder = Path(os.environ.get("ADLM_CACHE") or user_cache_dir("adlm")) / "experiments"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{trial.key}.checkpoint"


def estimate(trials: Iterable[Trial]) -> float:
    """Seconds that trials which train a network will take in one process, from the speed of a few steps.

    DP-SGD needs a gradient of each record, and takes `EACH_GRADIENT` times as long for it. Trials that train
    nothing take seconds and are not counted.
    """
    speed: dict[str, float] = {}
    total = 0.0
    for trial in trials:
        records = _records_seen(trial)
        if records:
            name = str(trial.settings["network"])
            if name not in speed:
                speed[name] = _records_a_second(name, trial.data, int(trial.settings.get("train_batch", 300)))
            total += records / speed[name]
    return total


def trains(trial: Trial) -> bool:
    """Whether a trial trains one of the paper's networks, by a reading of its noise or by DP-SGD."""
    return "network" in trial.settings and ("reading" in trial.settings or trial.method == "psgd-abadi")


def _records_seen(trial: Trial) -> float:
    """Records processed in training, in units of passes without per-record gradients."""
    s = trial.settings
    if not trains(trial):
        return 0
    if "reading" in s:
        return float(int(s["steps"]) * int(s["train_batch"]))
    n = s["n"] or len(benchmark_data.split(trial.data, "train").y)
    return EACH_GRADIENT * float(s["epochs"]) * int(n)


def _records_a_second(name: str, data: str, batch: int) -> float:
    domain = datasets.domain(data)
    network = build(name, domain.shape, len(domain.classes))
    optimiser = torch.optim.Adam(network.parameters())
    x = torch.rand(batch, *domain.shape)
    for turn in range(3):
        if turn == 1:  # the first is a warm-up
            start = time.perf_counter()
        optimiser.zero_grad()
        forward_in_chunks(network, x).square().mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return 2 * batch / (time.perf_counter() - start)


def attack(reading: str, epsilon: str, *, runs: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Distinguish a white first pixel from a black one by the difference of two records of a batch.

    It gives a lower bound on epsilon that is wrong once in 1,000 runs (Clopper-Pearson). With independent
    noise a record is protected up to the proved epsilon; with shared noise the difference is the pixel.

    Parameters
    ----------
    reading : of the paper's noise.
    epsilon : as claimed.
    runs : of each world.
    seed : of the noise.
    """
    domain = Domain((28, 28), 0.0, 255.0, tuple("0123456789"))
    scale = {"sized": "authors-mnist", "batch": 1800, "delta_h0": "per-patch"}
    perturbation = _perturbation(domain, scale, budgets_of("ilm-shared-total", epsilon), None)
    source, worlds = Source.seeded_with(seed), []
    torch.manual_seed(seed)
    for value in (1.0, 0.0):
        x = torch.zeros(2, 28, 28)
        x[0, 0, 0] = value
        differences = []
        for _ in range(runs):
            examples, _matrix = readings.read(
                reading, x, torch.zeros(2, dtype=torch.int64), perturbation, source
            )
            batch, _target = examples.batch(torch.arange(2), torch.device("cpu"))
            differences.append(float(batch[0, 0, 0] - batch[1, 0, 0]))
        worlds.append(np.asarray(differences))
    bound = threshold_bound(worlds[0], worlds[1], alpha=1e-3)
    totals = readings.totals(reading, perturbation, (), 1)
    return {
        "reading": reading,
        "claimed": float(totals.epsilon_claimed),
        "proved": float(totals.epsilon_proved),
        "lower": bound.value,
        "runs": runs,
    }
