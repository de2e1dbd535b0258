"""Trials of experiments on images, and their summary: means, standard deviations, t-tests.

A trial is a method on a data set at an epsilon with a seed.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats

from adlm.errors import UserError
from adlm.runtime.artefact import canonical, sha256
from adlm.ui import figures as published
from adlm.version import __version__

Outcome = dict[str, Any]
UNKNOWN = 12 * "0"  # the mechanism of outcomes that do not name it
PRESETS = ("quick", "full")
LABELS = {
    "moments-pure": "adlm, pure",
    "moments": "adlm, delta 1e-5",
    "moments-add-remove": "adlm, delta 1e-5, add-remove",
    "ilm-moments": "class sums, identical noise",
    "adlm-moments": "class sums, adaptive noise",
    "ilm-moments-pure": "class sums, identical noise, pure",
    "adlm-moments-pure": "class sums, adaptive noise, pure",
    "no-noise": "no noise, the control",
    "adlm-shared": "AdLM, the authors' reading: one noise image a batch, redrawn",
    "ilm-shared": "ILM, the authors' reading; eps2, eps3 as AdLM has them",
    "ilm-shared-total": "ILM, the authors' reading; total as AdLM has it",
    "ilm-shared-own-labels": "ILM, one noise image a batch, redrawn; own label noise",
    "adlm-one-image": "AdLM, one noise image for all of training",
    "ilm-one-image": "ILM, one noise image for all of training",
    "adlm-own-once": "AdLM, own noise once: Algorithm 1",
    "ilm-own-once": "ILM, own noise once: Algorithm 1",
    "ilm-own-redrawn": "ILM, own noise, redrawn at each read",
    "psgd-abadi": "DP-SGD, settings of Abadi et al.",
    "psgd-tanh": "DP-SGD, tanh network, batches of 2,048",
    "psgd-linear": "DP-SGD, linear head on our features",
    "psgd-linear-replace-one": "DP-SGD, linear head on our features, replace-one",
    "ceiling": "no privacy, logistic regression on the same features",
    "prior": "public prior alone (epsilon 0)",
    "plan-pure": "predicted by adlm plan, pure",
    "plan": "predicted by adlm plan, delta 1e-5",
    "epochs-release": "network on one release",
    "epochs-psgd": "DP-SGD, the same noise at each step",
}


@dataclass(frozen=True)
class Trial:
    """One run, with everything needed to repeat it.

    Attributes
    ----------
    method : a name of `LABELS`.
    epsilon, delta : as decimal strings, so that 0.1 stays one tenth.
    seed : of the noise, the sample and the network; trials with one seed share nothing else.
    settings : further settings of the method, in JSON values.
    """

    method: str
    data: str
    epsilon: str
    delta: str = "0"
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Identifier of the trial, from everything that determines its outcome."""
        return sha256(canonical(asdict(self)))[:16]

    @property
    def ours(self) -> bool:
        """Whether it measures a release of ours, which depends on the mechanism."""
        return "moments" in self.method or self.method == "epochs-release"

    @property
    def entropy(self) -> int:
        """A seed unique to the trial: equal seeds at two budgets must not share their noise."""
        return int(self.key, 16) % 2**62


@dataclass(frozen=True)
class Done:
    """A trial and its outcome."""

    trial: Trial
    outcome: Outcome

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Done:
        """Read a line of `cells.jsonl`."""
        return cls(Trial(**line["cell"]), line["outcome"])


def timed(perform: Callable[[Trial], Outcome], trial: Trial) -> dict[str, Any]:
    """Perform a trial; return a line of `cells.jsonl`."""
    start = time.monotonic()
    outcome = perform(trial)
    seconds = {"seconds": round(time.monotonic() - start, 2)}
    return {"key": trial.key, "cell": asdict(trial), "outcome": outcome | seconds}


@dataclass(frozen=True)
class Group:
    """Trials that share a method: every epsilon with every seed."""

    method: str
    epsilons: tuple[str, ...]
    seeds: int
    delta: str = "0"
    settings: dict[str, Any] | Callable[[str], dict[str, Any]] = field(default_factory=dict)

    def settings_at(self, epsilon: str) -> dict[str, Any]:
        """The settings at an epsilon."""
        return self.settings(epsilon) if callable(self.settings) else self.settings


@dataclass(frozen=True)
class Experiment:
    """A question, the trials that answer it, and the pairs of methods that are tested against each other.

    Attributes
    ----------
    kind : `paper`, `frontier`, `epochs` or `allocation`: which tables and figures are made.
    curves : epsilons whose accuracy is drawn over epochs, as in the paper's Figs. 4b-c and 5b-c.
    """

    name: str
    title: str
    data: str
    kind: str
    quick: tuple[Group, ...]
    full: tuple[Group, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    curves: tuple[str, ...] = ()

    def trials(
        self,
        preset: str,
        *,
        epsilons: Sequence[str] | None = None,
        seeds: int | None = None,
        methods: Sequence[str] | None = None,
    ) -> list[Trial]:
        """The trials of a preset, with epsilons, seeds and methods optionally replaced."""
        if preset not in PRESETS:
            raise UserError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
        groups = self.quick if preset == "quick" else self.full
        known = list(dict.fromkeys(group.method for group in groups))
        for method in methods or ():
            if method not in known:
                raise UserError(f"{self.name} has no method {method!r}; it has {', '.join(known)}")
        if seeds is not None and seeds < 1:
            raise UserError(f"there must be at least one seed, got {seeds}")
        trials = [
            Trial(group.method, self.data, epsilon, group.delta, seed, group.settings_at(epsilon))
            for group in groups
            if methods is None or group.method in methods
            for epsilon in (group.epsilons if group.epsilons == ("0",) else epsilons or group.epsilons)
            for seed in range(seeds or group.seeds)
        ]
        # two groups of a method have the same trials where their epsilons are changed to the same ones
        return list({trial.key: trial for trial in trials}.values())


# ---- summary


def summarise(experiment: Experiment, done: Sequence[Done], *, preset: str, command: str) -> dict[str, Any]:
    """Return the summary of finished trials in JSON values."""
    known = {"paper": published.of_paper, "frontier": published.of}.get(experiment.kind)
    software = {"adlm": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "data": experiment.data,
        "kind": experiment.kind,
        "preset": preset,
        "command": command,
        "cores": os.cpu_count(),
        "software": software,
        "seconds": round(sum(float(item.outcome["seconds"]) for item in done), 1),
        "rows": [_row(group) for group in _groups(done)],
        "tests": _tests(experiment, done),
        "published": [figure.to_dict() for figure in (known(experiment.data) if known else ())],
    }


def _groups(done: Iterable[Done]) -> list[list[Done]]:
    """Trials that differ in their seed alone."""
    groups: dict[tuple[str, str, str], list[Done]] = defaultdict(list)
    for item in done:
        c = item.trial
        groups[(c.method, c.epsilon, repr(sorted(c.settings.items())))].append(item)
    return list(groups.values())


def _row(group: list[Done]) -> dict[str, Any]:
    trial, outcome = group[0].trial, group[0].outcome

    def mean(key: str) -> float:
        return sum(float(item.outcome[key]) for item in group) / len(group)

    accuracies = [float(item.outcome["accuracy"]) for item in group]
    row: dict[str, Any] = {
        "method": trial.method,
        "label": LABELS[trial.method],
        "epsilon": float(trial.epsilon),
        "epsilon_claimed": outcome["epsilon_claimed"],
        "epsilon_proved": outcome["epsilon_proved"],
        "delta": outcome["delta"],
        "neighbours": outcome["neighbours"],
        "accuracy": mean("accuracy"),
        "sd": float(np.std(accuracies, ddof=1)) if len(group) > 1 else None,
        "seeds": len(group),
        "seconds": round(mean("seconds"), 1),
    }
    if outcome.get("k") is not None:
        row["k"] = mean("k")
    if trial.ours:  # those of one row have the same; some may be older than others
        row["mechanism"] = min(str(item.outcome.get("mechanism", UNKNOWN)) for item in group)
    row |= {key: trial.settings[key] for key in ("k", "n", "allocation") if key in trial.settings}
    if all("calibration_error" in item.outcome for item in group):
        row["calibration_error"] = mean("calibration_error")
    if "history" in outcome:  # mean over seeds of each point, for as many points as all have
        points = zip(*(item.outcome["history"] for item in group), strict=False)
        row["history"] = [np.mean(np.array(point, dtype=float), 0).tolist() for point in points]
    return row


def _tests(experiment: Experiment, done: Sequence[Done]) -> list[dict[str, Any]]:
    """T-tests of pairs: over all budgets, and of the paper at each; allocations at each width and budget."""
    found = []
    pairs = experiment.pairs
    if experiment.kind == "allocation":
        pairs = (("adlm-moments-pure", "ilm-moments-pure"), ("adlm-moments", "ilm-moments"))
    for first, second in pairs:
        a, b = _by_place(done, first), _by_place(done, second)
        common = sorted(set(a) & set(b))
        places = sorted({place[:2] for place in common})
        parts = [[p for p in common if p[:2] == place] for place in places]
        if experiment.kind == "frontier":
            parts = [common]
        elif experiment.kind == "paper":  # results at small and large budgets may differ
            parts = [common, *parts]
        for part in parts:
            test = compare(LABELS[first], LABELS[second], [a[p] for p in part], [b[p] for p in part])
            if test is not None:
                epsilons = sorted({epsilon for _, epsilon, _ in part})
                over = {"k": part[0][0], "epsilons": epsilons, "seeds": len({seed for *_, seed in part})}
                found.append(asdict(test) | over)
    return found


def _by_place(done: Sequence[Done], method: str) -> dict[tuple[int, float, int], float]:
    """Accuracies by width, where it is fixed, epsilon and seed."""
    return {
        (item.trial.settings.get("k", 0), float(item.trial.epsilon), item.trial.seed): item.outcome[
            "accuracy"
        ]
        for item in done
        if item.trial.method == method
    }


@dataclass(frozen=True)
class Comparison:
    """A paired t-test of one method against another.

    Attributes
    ----------
    difference : mean of first minus second, in accuracy.
    low, high : 95% confidence interval of it.
    p : two-sided; None where every difference is the same.
    effect : Cohen's d of the differences, their mean over their standard deviation.
    pairs : trials with equal epsilon and seed that both methods have.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float | None
    effect: float | None
    pairs: int


def compare(first: str, second: str, a: Sequence[float], b: Sequence[float]) -> Comparison | None:
    """Compare paired accuracies, seed by seed; None when there are fewer than two pairs."""
    if len(a) < 2:
        return None
    d = np.subtract(a, b)
    mean, sd = float(d.mean()), float(d.std(ddof=1))
    if sd == 0:
        return Comparison(first, second, mean, mean, mean, None, None, len(d))
    half = float(stats.t.ppf(0.975, len(d) - 1)) * sd / math.sqrt(len(d))
    p = float(stats.ttest_rel(a, b).pvalue)
    return Comparison(first, second, mean, mean - half, mean + half, p, mean / sd, len(d))
