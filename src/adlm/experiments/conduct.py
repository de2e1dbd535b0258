"""Run an experiment from end to end: cells, summary, table, figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adlm import progress
from adlm.artefact import canonical, write_file
from adlm.experiments import figures, material, tabulate
from adlm.experiments.catalogue import named
from adlm.experiments.cells import run
from adlm.experiments.registry import FROM_PIXELS, current, perform
from adlm.experiments.summary import summarise

SUMMARY, PAGE = "summary.json", "README.md"


def conduct(
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
    """Run what is missing of an experiment, write its folder, and return the summary.

    The folder `out/name` gets `cells.jsonl`, `summary.json`, `README.md` and the figures.
    """
    experiment = named(name)
    cells = experiment.cells(preset, epsilons=epsilons, seeds=seeds, methods=methods)
    folder = out / name
    if any(cell.method not in FROM_PIXELS for cell in cells):
        progress.say(f"{name}: public features of {experiment.data}, taken once")
        for part in ("train", "test"):
            material.vectors(experiment.data, part)
    done = run(cells, folder, perform, resume=resume, jobs=jobs or os.cpu_count() or 1, current=current)
    summary = summarise(
        experiment, done, preset=preset, command=_command(name, preset, epsilons, seeds, methods)
    )
    write_file(folder / SUMMARY, canonical(summary), what="summary")
    made = figures.draw(summary, folder, experiment.curves)
    pictures = "\n".join(f"![{path.stem}]({path.name})" for path in made)
    page = tabulate.page(summary) + f"\n{pictures}\n"
    write_file(folder / PAGE, page.encode(), what="table")
    return summary


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
