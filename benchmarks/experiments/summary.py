"""From trials to a summary: means, standard deviations, tests, and how to run them again."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from adlm.ui import figures as published
from adlm.version import __version__
from benchmarks.experiments import ablation
from benchmarks.experiments.catalogue import Experiment
from benchmarks.experiments.registry import LABELS
from benchmarks.experiments.statistics import compare, spread
from benchmarks.experiments.tabulate import place, pure_suffix
from benchmarks.experiments.trials import Done

_CARRIED = (
    "k",
    "q",
    "trials",
    "validation",
    "median_trial",
    "worst_trial",
    "best_trial",
    "rank_correlation",
    "closed_form",
    "accuracy_one_trial",
    "epsilon_all_trials",
    "epsilon_share_of_a_trial",
)


def summarise(experiment: Experiment, done: Sequence[Done], *, preset: str, command: str) -> dict[str, Any]:
    """Return the summary of finished trials in JSON values.

    Parameters
    ----------
    experiment : the experiment that was run.
    done : its finished trials.
    preset : `quick` or `full`.
    command : that made them.
    """
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "data": experiment.data,
        "kind": experiment.kind,
        "preset": preset,
        "command": command,
        "cores": os.cpu_count(),
        "software": {
            "adlm": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "seconds": round(sum(float(item.outcome["seconds"]) for item in done), 1),
        "rows": [_row(group, experiment.kind) for group in _groups(done)],
        "tests": _tests(experiment, done),
        "published": [figure.to_dict() for figure in _published(experiment)],
    }


def _published(experiment: Experiment) -> Sequence[published.Published]:
    """Return the published figures to compare an experiment with; of an ablation, those it explains."""
    if experiment.kind == "ablation":
        claimed = published.of_paper(experiment.data)
        return [p for p in claimed if p.what == "AdLM" and p.epsilon == 0.5]
    known = {"paper": published.of_paper, "frontier": published.of}.get(experiment.kind)
    return () if known is None else known(experiment.data)


def _groups(done: Iterable[Done]) -> list[list[Done]]:
    """Trials that differ in their seed alone."""
    groups: dict[tuple[str, str, str], list[Done]] = defaultdict(list)
    for item in done:
        c = item.trial
        groups[(c.method, c.epsilon, repr(sorted(c.settings.items())))].append(item)
    return list(groups.values())


def _row(group: list[Done], kind: str) -> dict[str, Any]:
    trial, outcome = group[0].trial, group[0].outcome
    accuracies = [float(item.outcome["accuracy"]) for item in group]
    row: dict[str, Any] = {
        "method": trial.method,
        "label": ablation.label(trial.method, trial.settings) if kind == "ablation" else LABELS[trial.method],
        "epsilon": float(trial.epsilon),
        "epsilon_claimed": outcome["epsilon_claimed"],
        "epsilon_proved": outcome["epsilon_proved"],
        "delta": outcome["delta"],
        "neighbours": outcome["neighbours"],
        "accuracy": _mean(accuracies),
        "sd": spread(accuracies),
        "seeds": len(group),
        "seconds": round(_mean([float(item.outcome["seconds"]) for item in group]), 1),
    }
    for key in _CARRIED:
        known = [float(item.outcome[key]) for item in group if item.outcome.get(key) is not None]
        if known:
            row[key] = _mean(known)
    for key in ("k", "n", "allocation"):
        if key in trial.settings:
            row[key] = trial.settings[key]
    if all("calibration_error" in item.outcome for item in group):
        row["calibration_error"] = _mean([float(item.outcome["calibration_error"]) for item in group])
    if "history" in outcome:
        row["history"] = _history([item.outcome["history"] for item in group])
    return row


def _history(histories: list[list[list[float]]]) -> list[list[float]]:
    """Mean over seeds of each point, for as many points as all have."""
    length = min(map(len, histories))
    return [
        [_mean([float(h[i][j]) for h in histories]) for j in range(len(histories[0][i]))]
        for i in range(length)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _tests(experiment: Experiment, done: Sequence[Done]) -> list[dict[str, Any]]:
    if experiment.kind == "allocation":
        return _allocation_tests(done)
    found = []
    for first, second in experiment.pairs:
        a, b = _by_pair(done, first), _by_pair(done, second)
        common = sorted(set(a) & set(b))
        parts = [common]
        if experiment.kind == "paper":  # results at small and large budgets may differ
            parts += [[p for p in common if p[0] == epsilon] for epsilon in sorted({e for e, _ in common})]
        for part in parts:
            comparison = compare(LABELS[first], LABELS[second], [a[p] for p in part], [b[p] for p in part])
            if comparison is not None:
                found.append(comparison.to_dict() | {"found": comparison.sentence(), "over": _over(part)})
    return found


def _by_pair(done: Sequence[Done], method: str) -> dict[tuple[float, int], float]:
    return {
        (float(item.trial.epsilon), item.trial.seed): float(item.outcome["accuracy"])
        for item in done
        if item.trial.method == method
    }


def _over(pairs: Sequence[tuple[float, int]]) -> str:
    epsilons = sorted({epsilon for epsilon, _ in pairs})
    return f"epsilon {', '.join(f'{e:g}' for e in epsilons)}; {len({seed for _, seed in pairs})} seeds"


def _allocation_tests(done: Sequence[Done]) -> list[dict[str, Any]]:
    """Adaptive against identical noise at each width and epsilon."""
    tests = []
    places = sorted(
        {(item.trial.delta, int(item.trial.settings["k"]), float(item.trial.epsilon)) for item in done}
    )
    for delta, k, epsilon in places:
        here = [
            item
            for item in done
            if (item.trial.delta, item.trial.settings["k"], float(item.trial.epsilon)) == (delta, k, epsilon)
        ]
        suffix = pure_suffix(float(delta))
        a, b = _by_pair(here, f"adlm-moments{suffix}"), _by_pair(here, f"ilm-moments{suffix}")
        common = sorted(set(a) & set(b))
        comparison = compare("adaptive", "identical", [a[p] for p in common], [b[p] for p in common])
        if comparison is not None:
            over = place(k, epsilon, float(delta))
            tests.append(
                comparison.to_dict() | {"found": f"{over}: {comparison.sentence()}", "over": over, "k": k}
            )
    return tests
