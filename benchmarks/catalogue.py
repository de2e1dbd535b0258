"""The experiments on images by name, the trials of their presets, and how one is run.

`quick` takes minutes on two cores: where it trains a narrower network than the paper's, the paper's sizes
still set the sensitivities. `full` is the paper's scale.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from adlm.errors import UserError
from adlm.runtime import progress
from adlm.runtime.artefact import canonical, write_file
from benchmarks import dpsgd, images, pages, paper, runner
from benchmarks.trials import Done, Experiment, Group, Outcome, Trial, summarise, timed

FRONTIER = ("0.02", "0.05", "0.1", "0.25", "0.5", "1", "2", "3", "8")
DELTA = "1e-5"
TRIALS = "cells.jsonl"
METHODS: dict[str, Callable[[Trial], Outcome]] = {
    "moments-pure": images.moments,
    "moments": images.moments,
    "moments-add-remove": images.moments,
    "ilm-moments": images.moments,
    "adlm-moments": images.moments,
    "ilm-moments-pure": images.moments,
    "adlm-moments-pure": images.moments,
    "psgd-abadi": images.psgd_network,
    "psgd-tanh": images.psgd_network,
    "psgd-linear": images.psgd_linear,
    "psgd-linear-replace-one": images.psgd_linear,
    "ceiling": images.ceiling,
    "prior": images.prior,
    "plan-pure": images.forecasted,
    "plan": images.forecasted,
    "epochs-release": images.epochs_release,
    "epochs-psgd": images.epochs_psgd,
}


def perform(trial: Trial) -> Outcome:
    """Run a trial; the outcome names the public features it depends on, if any."""
    if "reading" in trial.settings:
        return paper.perform(trial)
    outcome = METHODS[trial.method](trial)
    if _from_pixels(trial):
        return outcome
    return outcome | {"features": images.fingerprint(trial.data)}


def _from_pixels(trial: Trial) -> bool:
    return "reading" in trial.settings or trial.method in ("psgd-abadi", "psgd-tanh")


def current(done: Done) -> bool:
    """Whether a stored trial used today's public features, mechanism and plan."""
    return _from_pixels(done.trial) or images.is_current(done.trial, done.outcome)


# ---- presets


def _longer(epsilon: str, epochs: float) -> float:
    """Epochs of DP-SGD (Abadi et al.): its authors train for longer where the budget is larger."""
    return epochs if float(epsilon) <= 0.5 else max(epochs, 40)


def _abadi(settings: dpsgd.Settings, **changes: Any) -> Callable[[str], dict[str, Any]]:
    return lambda epsilon: asdict(settings) | changes | {"epochs": _longer(epsilon, settings.epochs)}


def _paper(
    abadi: dpsgd.Settings,
    scale: dict[str, Any],
    epsilons: tuple[str, ...],
    tested: tuple[str, ...],
    seeds: int,
    chunk: int,
    epochs: float | None = None,
) -> tuple[Group, ...]:
    """Every reading of the paper's noise and the control without, pSGD on the same network, our release.

    Methods that are tested against each other have three seeds or more at the epsilons ``tested``.
    """
    changes = {"n": scale["n"], "shown": [], "network": scale["network"], "ghost": False, "chunk": chunk}

    def psgd(epsilon: str) -> dict[str, Any]:
        trained = _longer(epsilon, abadi.epochs) if epochs is None else epochs
        return asdict(abadi) | changes | {"epochs": trained}

    def read(method: str, reading: str, at: tuple[str, ...], seeds: int) -> Group:
        return Group(method, at, seeds, settings=scale | {"reading": reading})

    others = tuple(epsilon for epsilon in epsilons if epsilon not in tested)
    pair = (("adlm-shared", "shared"), ("ilm-shared", "shared"), ("ilm-shared-total", "shared"))
    single: tuple[tuple[str, str], ...] = (
        ("ilm-shared-own-labels", "shared-own-labels"),
        ("ilm-one-image", "one-image"),
        ("adlm-own-once", "own-once"),
        ("ilm-own-once", "own-once"),
        ("ilm-own-redrawn", "own-redrawn"),
    )
    if "split" in scale:  # their code for CIFAR-10 draws one image for many epochs
        single = (("adlm-one-image", "one-image"), *single)
    return (
        read("no-noise", "no-noise", ("0",), seeds),
        *(read(method, reading, tested, max(3, seeds)) for method, reading in pair),
        *(read(method, reading, others, seeds) for method, reading in pair if others),
        *(read(method, reading, epsilons, seeds) for method, reading in single),
        Group("psgd-abadi", tested, max(3, seeds), DELTA, psgd),
        Group("moments-pure", epsilons, max(3, seeds), settings={"n": scale["n"]}),
        Group("moments", epsilons, max(3, seeds), DELTA, {"n": scale["n"]}),
    )


_READ = {"n": None, "delta_h0": "per-patch", "train_batch": 300, "rate": 1e-3}
_MNIST = _READ | {"sized": "authors-mnist", "batch": 1800}
_CIFAR = _READ | {
    "sized": "authors-cifar10",
    "batch": 7200,
    "split": list(paper.CIFAR_SPLIT),
    "network": "authors-cifar10",
    "train_batch": 60,
}
_BUDGETS = ("0.25", "0.5", "2", "8")
PAIRS = (
    ("adlm-shared", "ilm-shared"),
    ("adlm-shared", "ilm-shared-total"),
    ("adlm-shared", "psgd-abadi"),
    ("ilm-shared", "psgd-abadi"),
    ("ilm-own-once", "psgd-abadi"),
    ("moments", "psgd-abadi"),
)


def _frontier(
    data: str,
    title: str,
    quick: tuple[Group, ...] = (),
    full: tuple[Group, ...] = (),
    epsilons: tuple[str, ...] = FRONTIER,
) -> Experiment:
    def ours(seeds: int) -> tuple[Group, ...]:
        return (
            Group("moments-pure", epsilons, seeds),
            Group("moments", epsilons, seeds, DELTA),
            Group("moments-add-remove", epsilons, seeds, DELTA, {"neighbours": "add-remove"}),
            Group("plan-pure", epsilons, 1),
            Group("plan", epsilons, 1, DELTA),
            Group("ceiling", ("0",), 1),
            Group("prior", ("0",), seeds),
        )

    pairs = (
        ("moments", "psgd-tanh"),
        ("moments", "psgd-linear-replace-one"),
        ("moments-add-remove", "psgd-linear"),
        ("moments", "psgd-abadi"),
    )
    return Experiment(f"frontier-{data}", title, data, "frontier", ours(5) + quick, ours(10) + full, pairs)


def _linear(seeds: int) -> tuple[Group, Group]:
    """DP-SGD on a linear head under both relations, with the settings that suit each budget.

    Under replace-one the noise is twice as large, so the settings are those of half the epsilon.
    """

    def added(epsilon: str) -> dict[str, Any]:
        return asdict(dpsgd.linear_for(float(epsilon)))

    def replaced(epsilon: str) -> dict[str, Any]:
        return asdict(dpsgd.linear_for(float(epsilon) / 2)) | {"neighbours": "replace-one"}

    return (
        Group("psgd-linear", FRONTIER, seeds, DELTA, added),
        Group("psgd-linear-replace-one", FRONTIER, seeds, DELTA, replaced),
    )


# From pixels, DP-SGD is slow and far behind DP-SGD on public features: quick presets have it for MNIST alone.
_GARMENTS_QUICK = (
    *_linear(2),
    Group("psgd-abadi", FRONTIER, 1, DELTA, _abadi(dpsgd.ABADI, network="mlp")),
)
_GREY_QUICK = (*_GARMENTS_QUICK, Group("psgd-tanh", ("0.25", "0.5"), 1, DELTA, asdict(dpsgd.TANH)))
_GREY_FULL = (
    *_linear(5),
    Group("psgd-tanh", FRONTIER, 5, DELTA, asdict(dpsgd.TANH)),
    Group("psgd-abadi", FRONTIER, 5, DELTA, _abadi(dpsgd.ABADI, network="paper-mnist", ghost=False)),
)
_COLOUR_QUICK = (
    *_linear(2),
    Group("psgd-abadi", ("0.5", "3", "8"), 1, DELTA, _abadi(dpsgd.ABADI_CIFAR, network="mlp")),
)
_WIDE = {"network": "paper-cifar10", "chunk": 200, "ghost": False}
_COLOUR_FULL = (
    *_linear(5),
    Group("psgd-tanh", FRONTIER, 5, DELTA, asdict(dpsgd.TANH) | {"epochs": 30, "chunk": 512}),
    Group("psgd-abadi", FRONTIER, 5, DELTA, _abadi(dpsgd.ABADI_CIFAR, **_WIDE)),
)


def _epochs() -> tuple[Group, ...]:
    shown = [1, 10, 100, 1000]
    ours = {"n": None, "shown": shown, "draws": 5000, "hidden": 64, "batch": 500, "rate": 1e-3}
    linear = {k: v for k, v in (asdict(dpsgd.LINEAR) | {"n": 60_000}).items() if k != "epochs"}
    return (
        Group("epochs-release", ("0.5",), 2, DELTA, ours),
        # one seed: a thousand epochs of it take as long as all else here, and seeds differ by 0.1 points
        Group("epochs-psgd", ("0.5",), 1, DELTA, linear | {"shown": shown, "budget_epochs": 10}),
    )


def _allocation(seeds: int) -> tuple[Group, ...]:
    """Class sums alone at a fixed width, identical noise against noise by relevance; pure and not."""
    widths = (60, 150, 300)
    return tuple(
        Group(
            f"{method}{suffix}",
            ("0.05", "0.25"),
            seeds,
            delta,
            {"k": k, "second": 0, "allocation": allocation},
        )
        for suffix, delta in (("-pure", "0"), ("", DELTA))
        for k in widths
        for method, allocation in (("ilm-moments", "identical"), ("adlm-moments", "optimal"))
    )


_NARROW = _MNIST | {"network": "authors-mnist-quarter", "steps": 400}
_FULL = _MNIST | {"network": "authors-mnist", "steps": 4000}
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "paper-mnist",
            "The paper's Fig. 4 on MNIST: each reading of its noise, claimed and proved, with its control",
            "mnist",
            "paper",
            _paper(dpsgd.ABADI, _NARROW, _BUDGETS, ("0.25", "0.5"), 1, 600, 1),
            _paper(dpsgd.ABADI, _FULL, _BUDGETS, _BUDGETS, 3, 600),
            PAIRS,
            ("0.25", "0.5"),
        ),
        Experiment(
            "paper-cifar10",
            "The paper's Fig. 5 on CIFAR-10: each reading of its noise, claimed and proved, with its control",
            "cifar10",
            "paper",
            _paper(dpsgd.ABADI_CIFAR, _CIFAR | {"steps": 300}, ("2.5", "8"), ("2.5",), 1, 200, 0.2),
            _paper(
                dpsgd.ABADI_CIFAR,
                _CIFAR | {"steps": 5000},
                ("0.5", "2.5", "8"),
                ("0.5", "2.5", "8"),
                3,
                200,
            ),
            PAIRS,
            ("2.5", "8"),
        ),
        _frontier("mnist", "Accuracy over proved epsilon on MNIST", _GREY_QUICK, _GREY_FULL),
        _frontier(
            "fashion-mnist", "Accuracy over proved epsilon on Fashion-MNIST", _GARMENTS_QUICK, _GREY_FULL
        ),
        _frontier("cifar10", "Accuracy over proved epsilon on CIFAR-10", _COLOUR_QUICK, _COLOUR_FULL),
        _frontier("digits", "What 1,437 records can expect", epsilons=(*FRONTIER[:-1], "4", "8")),
        Experiment(
            "epochs", "One to a thousand epochs: who pays for them", "mnist", "epochs", _epochs(), _epochs()
        ),
        Experiment(
            "allocation",
            "Noise by relevance against identical noise, at widths that suit the budget and not",
            "mnist",
            "allocation",
            _allocation(5),
            _allocation(20),
        ),
    )
}


def named(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise UserError(f"there is no experiment {name!r}; choose from {', '.join(EXPERIMENTS)}, or all")
    return EXPERIMENTS[name]


# ---- running


def run_experiment(
    name: str,
    *,
    preset: str = "quick",
    epsilons: Sequence[str] | None = None,
    seeds: int | None = None,
    methods: Sequence[str] | None = None,
    resume: bool = False,
    jobs: int | None = None,
    out: Path = Path("results"),
) -> dict[str, Any]:
    """Run the missing trials of an experiment, write its folder, and summarise all that is finished.

    The folder `out/name` gets `cells.jsonl`, `summary.json`, `README.md` and the figures.

    Parameters
    ----------
    name : of the experiment.
    preset : `quick` or `full`.
    epsilons, seeds, methods : instead of the preset's.
    resume : whether to keep finished trials; those of earlier features, mechanism or plan are run again.
    jobs : processes; as many as there are cores when not given; 0 only makes the page of what is finished.
    out : folder of results.
    """
    experiment = named(name)
    trials = experiment.trials(preset, epsilons=epsilons, seeds=seeds, methods=methods)
    path = out / name / TRIALS
    if jobs != 0:
        if any(not _from_pixels(trial) for trial in trials):
            progress.say(f"{name}: public features of {experiment.data}, taken once")
            for part in ("train", "test"):
                images.vectors(experiment.data, part)
        work = ((trial.key, partial(timed, perform, trial)) for trial in trials)
        runner.run(
            path,
            work,
            lambda line: str(line["key"]),
            resume=resume,
            jobs=jobs or os.cpu_count() or 1,
            current=lambda line: current(Done.of(line)),
            say=_said,
        )
    done = [Done.of(line) for line in runner.read_lines(path)]
    if experiment.kind == "paper":  # the file holds both presets
        every = experiment.trials(preset, epsilons=epsilons, seeds=seeds)
        done = [one for one in done if one.trial.key in {trial.key for trial in every}]
    order = list(dict.fromkeys(trial.method for trial in experiment.trials(preset)))
    done.sort(key=lambda one: (order.index(one.trial.method), float(one.trial.epsilon), one.trial.seed))
    if not done:
        raise UserError(f"{path} holds no finished trial of these; leave out --jobs 0")
    command = _command(name, preset, epsilons, seeds, methods)
    summary = summarise(experiment, done, preset=preset, command=command)
    if left := {trial.key for trial in trials} - {one.trial.key for one in done}:
        summary["finished"] = f"{len(trials) - len(left)} of {len(trials)} trials"
    if earlier := sum(not current(one) for one in done):
        summary["earlier"] = f"{earlier} of {len(done)} trials"
    suffix = "-full" if experiment.kind == "paper" and preset == "full" else ""
    write_file(out / name / f"summary{suffix}.json", canonical(summary), what="summary")
    pages.draw(summary, out / name, experiment.curves, suffix)
    pages.write_page(out / name, experiment.curves)
    if jobs != 0:
        runner.record(out / name / f"summary{suffix}.json", command)
    return summary


def _said(line: dict[str, Any]) -> str:
    trial, outcome = line["cell"], line["outcome"]
    return (
        f"{trial['method']} on {trial['data']}, epsilon {trial['epsilon']}, seed {trial['seed']}: accuracy "
        f"{outcome['accuracy']:.2%}, {outcome['seconds']:.0f} s"
    )


def _command(
    name: str,
    preset: str,
    epsilons: Sequence[str] | None,
    seeds: int | None,
    methods: Sequence[str] | None,
) -> str:
    words = [f"adlm experiment {name} --preset {preset}"]
    words += [f"--epsilons {','.join(epsilons)}"] if epsilons else []
    words += [f"--seeds {seeds}"] if seeds else []
    words += [f"--methods {','.join(methods)}"] if methods else []
    return " ".join(words)
