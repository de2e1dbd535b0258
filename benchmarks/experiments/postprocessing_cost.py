"""Privacy cost of many epochs and many trials: none for a release, growing for DP-SGD."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from adlm.data import datasets
from adlm.model.estimates import GaussianClassModel, fit_class_model
from adlm.model.fit import fit
from adlm.model.training import Examples, TrainingConfig, train
from adlm.privacy.release import Release
from adlm.runtime.artefact import canonical
from benchmarks.baselines import dpsgd
from benchmarks.baselines.accounting import epsilon_spent, quick_epsilon
from benchmarks.baselines.networks import linear
from benchmarks.experiments import benchmark_data
from benchmarks.experiments.trials import Outcome, Trial


def _release(trial: Trial) -> Release:
    request = benchmark_data.ReleaseRequest(
        trial.settings.get("n"), trial.settings.get("neighbours", "replace-one")
    )
    return benchmark_data.moment_release(
        trial.data, request, epsilon=trial.epsilon, delta=trial.delta, seed=trial.entropy
    )


def _laws(release: Release) -> GaussianClassModel:
    return fit_class_model(release.moments(), release.features().prior)


def _head(width: int, hidden: int, classes: int) -> nn.Module:
    if not hidden:
        return nn.Linear(width, classes)
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def epochs_release(trial: Trial) -> Outcome:
    """Train a network on one moment release, for longer and longer: the certificate does not change."""
    s, release = trial.settings, _release(trial)
    width = release.features().width
    before = canonical(release.certificate.to_dict())
    torch.manual_seed(trial.entropy)
    head = _head(width, s["hidden"], len(datasets.domain(trial.data).classes))
    z, codes = _laws(release).sample(s["draws"], torch.Generator().manual_seed(trial.entropy))
    history: list[tuple[int, float, float | None]] = []

    def after_epoch(epoch: int, trained: nn.Module) -> None:
        if epoch in s["shown"]:
            proved = release.certificate.totals.to_dict()["epsilon_proved"]
            history.append(
                (epoch, benchmark_data.measured(trained, trial.data, release.features()).accuracy, proved)
            )

    plan = TrainingConfig(
        epochs=max(s["shown"]), batch_size=s["batch"], learning_rate=s["rate"], seed=trial.seed
    )
    train(head, Examples(z, codes), plan, device="cpu", after_epoch=after_epoch)
    return release.certificate.totals.to_dict() | {
        "accuracy": history[-1][1],
        "history": history,
        "certificate_unchanged": canonical(release.certificate.to_dict()) == before,
    }


def epochs_psgd(trial: Trial) -> Outcome:
    """DP-SGD on a linear head with noise that spends epsilon in `budget_epochs`, continued beyond them."""
    s = dict(trial.settings)
    n, shown, within = s.pop("n"), tuple(s.pop("shown")), s.pop("budget_epochs")
    settings = dpsgd.Settings(**s, epochs=max(shown))
    sigma = dpsgd.certify(replace(settings, epochs=within), n, trial.epsilon, trial.delta).noise_multiplier
    z, y = _vectors(trial.data, "train", n)
    test, answers = _vectors(trial.data, "test")
    history: list[tuple[int, float, float | None]] = []

    def on_epoch(epoch: int, trained: nn.Module) -> None:
        if epoch in shown:
            spent = dpsgd.spend(replace(settings, epochs=epoch), n, sigma, trial.delta)
            history.append((epoch, dpsgd.accuracy(trained, test, answers), float(spent.epsilon)))

    certificate = dpsgd.spend(settings, n, sigma, trial.delta)
    head = linear(z.shape[1], len(datasets.domain(trial.data).classes))
    trained = dpsgd.follow(head, z, y, settings, certificate, seed=trial.entropy, on_epoch=on_epoch)
    return certificate.to_dict() | {"accuracy": trained.accuracy(test, answers), "history": history}


def _vectors(data: str, part: str, n: int | None = None) -> tuple[Tensor, np.ndarray]:
    return torch.from_numpy(np.array(benchmark_data.vectors(data, part)[:n])), benchmark_data.split(
        data, part
    ).y[:n]


@dataclass(frozen=True)
class Candidate:
    """Settings of a trial in a search."""

    hidden: int
    rate: float
    decay: float
    epochs: int


def candidates(count: int, seed: int) -> Iterator[Candidate]:
    """Draw settings at random."""
    chance = random.Random(seed)
    for _ in range(count):
        yield Candidate(
            hidden=chance.choice((0, 32, 128)),
            rate=10 ** chance.uniform(-3.5, -1.5),
            decay=chance.choice((0.0, 1e-4, 1e-2)),
            epochs=chance.choice((1, 3, 10)),
        )


def search_release(trial: Trial) -> Outcome:
    """Try many settings on one release; choose by accuracy on held-out vectors drawn from the release.

    Test accuracy of every trial is recorded to show how good the choice was; it is not used for it.
    """
    s, release = trial.settings, _release(trial)
    width, classes = release.features().width, len(datasets.domain(trial.data).classes)
    laws, generator = _laws(release), torch.Generator().manual_seed(trial.entropy)
    training, fresh = laws.sample(s["draws"], generator), laws.sample(s["draws"], generator)
    scores: list[tuple[float, float, Candidate]] = []
    for index, candidate in enumerate(candidates(s["trials"], trial.seed)):
        torch.manual_seed(trial.entropy + index)
        head = _head(width, candidate.hidden, classes)
        options = {"weight_decay": candidate.decay}
        plan = TrainingConfig(
            epochs=candidate.epochs, batch_size=200, learning_rate=candidate.rate, options=options, seed=index
        )
        train(head, Examples(*training), plan, device="cpu")
        valid = dpsgd.accuracy(head, fresh[0], fresh[1].numpy())
        scores.append(
            (valid, benchmark_data.measured(head, trial.data, release.features()).accuracy, candidate)
        )
    valid, test, chosen = max(scores, key=lambda score: score[0])
    every = sorted(score[1] for score in scores)
    return release.certificate.totals.to_dict() | {
        "accuracy": test,
        "trials": len(scores),
        "chosen": asdict(chosen),
        "validation": valid,
        "median_trial": every[len(every) // 2],
        "worst_trial": every[0],
        "best_trial": every[-1],
        "rank_correlation": float(spearmanr([a for a, _, _ in scores], [b for _, b, _ in scores]).statistic),
        "closed_form": benchmark_data.measured(fit(release).head, trial.data, release.features()).accuracy,
    }


def search_psgd(trial: Trial) -> Outcome:
    """The same search for DP-SGD: the epsilon of all trials, and the accuracy when all share one budget.

    A trial with its share of the budget is run with settings for so small a budget.
    """
    s = dict(trial.settings)
    n, count, within = s.pop("n"), s.pop("trials"), dpsgd.Settings(**s.pop("within"))
    alone = dpsgd.Settings(**s)
    z, y = _vectors(trial.data, "train", n)
    test, answers = _vectors(trial.data, "test")
    classes, delta = len(datasets.domain(trial.data).classes), float(trial.delta)

    def reached(settings: dpsgd.Settings, certificate: dpsgd.Certificate) -> float:
        head = linear(z.shape[1], classes)
        trained = dpsgd.follow(head, z, y, settings, certificate, seed=trial.entropy)
        return trained.accuracy(test, answers)

    one = dpsgd.certify(alone, len(z), trial.epsilon, trial.delta)
    every = quick_epsilon(one.noise_multiplier, one.rate, count * one.steps, delta)
    all_in = dpsgd.certify(replace(within, epochs=count * within.epochs), len(z), trial.epsilon, trial.delta)
    candidate = replace(all_in, steps=within.steps(len(z)))
    share = epsilon_spent(
        candidate.noise_multiplier, candidate.rate, candidate.steps, delta, float(one.epsilon) / 20
    )
    return all_in.to_dict() | {
        "accuracy": reached(within, candidate),
        "accuracy_one_trial": reached(alone, one),
        "trials": count,
        "epsilon_all_trials": every,
        "epsilon_share_of_a_trial": share,
    }
