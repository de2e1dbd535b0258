"""Trials of an experiment: each one is a method on a data set at an epsilon with a seed, run once and stored.

A finished trial is a line of `cells.jsonl`, written and synced before the next one starts, so that a killed
run can be resumed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adlm.errors import UserError
from adlm.runtime import progress
from adlm.runtime.artefact import canonical, sha256

TRIALS_FILE = "cells.jsonl"
Outcome = dict[str, Any]
Perform = Callable[["Trial"], Outcome]


@dataclass(frozen=True)
class Trial:
    """One run, with everything needed to repeat it.

    Attributes
    ----------
    method : a name of `benchmarks.experiments.methods`.
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
    def entropy(self) -> int:
        """A seed unique to the trial: equal seeds at two budgets must not share their noise."""
        return int(self.key, 16) % 2**62

    def label(self) -> str:
        """A short description of the trial."""
        return f"{self.method} on {self.data}, epsilon {self.epsilon}, seed {self.seed}"


@dataclass(frozen=True)
class Done:
    """A trial and its outcome."""

    trial: Trial
    outcome: Outcome

    def line(self) -> str:
        """One line of JSON."""
        return json.dumps({"key": self.trial.key, "cell": asdict(self.trial), "outcome": self.outcome})


def read(path: Path) -> list[Done]:
    """Read finished trials; an incomplete last line is dropped."""
    if not path.exists():
        return []
    done = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            raw = json.loads(line)
            item = Done(Trial(**raw["cell"]), raw["outcome"])
        except (ValueError, KeyError, TypeError):
            progress.say(f"{path}: line {number} is not a whole trial and is left out")
            continue
        if item.trial.key == raw["key"]:
            done.append(item)
    return done


def _append(path: Path, done: Done) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(done.line() + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"a finished trial was not written to {path}: {error.strerror or error}; free space, --resume"
        ) from error


def run(
    trials: Sequence[Trial],
    folder: Path,
    perform: Perform,
    *,
    resume: bool = False,
    jobs: int = 1,
    current: Callable[[Done], bool] = lambda done: True,
) -> list[Done]:
    """Run the trials that are not finished yet, and return all of them in the order given.

    Parameters
    ----------
    perform : a function of this package, so that other processes find it.
    jobs : processes; each runs one trial at a time with one thread.
    current : whether a stored trial would have the same outcome now; others are run again.
    """
    path = folder / TRIALS_FILE
    earlier = {done.trial.key: done for done in read(path) if current(done)}
    if earlier and not resume:
        raise UserError(
            f"{path} holds {len(earlier)} finished trials; add --resume to keep them, or remove the file"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # complete lines only, so that an incomplete one is not joined to the next trial
        path.write_text("".join(done.line() + "\n" for done in earlier.values()), encoding="utf-8")
    except OSError as error:
        raise UserError(f"results cannot be written to {folder}: {error.strerror or error}") from None
    missing = [trial for trial in trials if trial.key not in earlier]
    with progress.bar(len(missing), "trials") as advance:
        for done in _performed(missing, perform, jobs):
            _append(path, done)
            earlier[done.trial.key] = done
            progress.say(f"{done.trial.label()}: {_summary(done.outcome)}")
            advance(1)
    return [earlier[trial.key] for trial in trials]


def _summary(outcome: Outcome) -> str:
    accuracy = outcome.get("accuracy")
    figure = "" if accuracy is None else f"accuracy {accuracy:.2%}, "
    return f"{figure}{outcome['seconds']:.0f} s"


def _performed(trials: Sequence[Trial], perform: Perform, jobs: int) -> Iterator[Done]:
    if jobs <= 1 or len(trials) <= 1:
        for trial in trials:
            yield _timed(perform, trial)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_single_thread) as pool:
        futures = [pool.submit(_timed, perform, trial) for trial in trials]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _timed(perform: Perform, trial: Trial) -> Done:
    start = time.monotonic()
    outcome = perform(trial)
    return Done(trial, outcome | {"seconds": round(time.monotonic() - start, 2)})


def _single_thread() -> None:
    import torch

    torch.set_num_threads(1)
