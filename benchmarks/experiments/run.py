"""Run an experiment from end to end: trials, summary, table, figures."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adlm.errors import UserError
from adlm.runtime import progress
from adlm.runtime.artefact import canonical, write_file
from benchmarks.experiments import benchmark_data, figures, paper_page, paper_readings, tabulate
from benchmarks.experiments.catalogue import Experiment, named
from benchmarks.experiments.registry import FROM_PIXELS, current, perform
from benchmarks.experiments.summary import summarise
from benchmarks.experiments.trials import TRIALS_FILE, Trial, read, run

SUMMARY, PAGE = "summary.json", "README.md"


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
    """Run the missing trials of an experiment, write its folder, and return the summary.

    The folder `out/name` gets `cells.jsonl`, `summary.json`, `README.md` and the figures.

    Parameters
    ----------
    name : of the experiment.
    preset : `quick` or `full`.
    epsilons, seeds, methods : instead of the preset's.
    resume : whether to keep finished trials.
    jobs : processes; as many as there are cores when not given; 0 runs nothing and makes the page of all that
        is finished, also by an earlier version of the features, and says how many trials that are.
    out : folder of results.
    """
    experiment = named(name)
    trials = experiment.trials(preset, epsilons=epsilons, seeds=seeds, methods=methods)
    folder, kept = out / name, "-full" if experiment.kind == "paper" and preset == "full" else ""
    there = {done.trial.key: done for done in read(folder / TRIALS_FILE)}
    finished = {key: done for key, done in there.items() if current(done)}
    if jobs == 0:
        wanted = {trial.key for trial in trials} if experiment.kind == "paper" else there
        done = [there[key] for key in there if key in wanted]
        if not done:
            raise UserError(f"{folder / TRIALS_FILE} holds no finished trial of these; leave out --jobs 0")
    else:
        jobs = jobs or os.cpu_count() or 1
        if preset == "full" or experiment.kind in ("paper", "ablation"):
            _say_how_long(name, trials, folder, jobs)
        if any(trial.method not in FROM_PIXELS for trial in trials if trial.key not in finished):
            progress.say(f"{name}: public features of {experiment.data}, taken once")
            for part in ("train", "test"):
                benchmark_data.vectors(experiment.data, part)
        done = run(trials, folder, perform, resume=resume, jobs=jobs, current=current)
    summary = summarise(
        experiment, done, preset=preset, command=_command(name, preset, epsilons, seeds, methods)
    )
    if len(done) < len(trials):
        summary["finished"] = f"{len(done)} of {len(trials)} trials"
    if earlier := sum(not current(one) for one in done):
        summary["earlier"] = f"{earlier} of {len(done)} trials"
    write_file(folder / SUMMARY.replace(".", f"{kept}."), canonical(summary), what="summary")
    figures.draw(summary, folder, experiment.curves, kept)
    write_file(folder / PAGE, _page(experiment, folder, summary).encode(), what="table")
    return summary


def _page(experiment: Experiment, folder: Path, summary: dict[str, Any]) -> str:
    """The page of an experiment; for the paper's, both presets and the notes on its noise."""
    if experiment.kind != "paper":
        return tabulate.page(summary) + f"\n{_pictures(folder, summary, experiment, '')}\n"
    parts = []
    for kept in ("", "-full"):
        file = folder / SUMMARY.replace(".", f"{kept}.")
        if file.exists():
            stored = json.loads(file.read_text(encoding="utf-8"))
            parts.append(tabulate.page(stored) + f"\n{_pictures(folder, stored, experiment, kept)}\n")
    return "\n".join([*parts, paper_page.extras(experiment.data)])


def _pictures(folder: Path, summary: dict[str, Any], experiment: Experiment, kept: str) -> str:
    """Links to the figures of a summary."""
    made = figures.names(summary, folder, experiment.curves, kept)
    return "\n".join(f"![{path.stem}]({path.name})" for path in made if path.exists())


def _say_how_long(name: str, trials: Sequence[Trial], folder: Path, jobs: int) -> None:
    """Print an estimate of the duration, from the speed of a few steps of each network on this machine."""
    there = {done.trial.key for done in read(folder / TRIALS_FILE)}
    missing = [trial for trial in trials if trial.key not in there]
    seconds = paper_readings.estimate(missing) / jobs
    known = sum(paper_readings.trains(trial) for trial in missing)
    ahead = f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
    progress.say(
        f"{name}: {len(missing)} trials to run on {jobs} processes; {known} of them train a network and will "
        f"take about {ahead} in all"
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
