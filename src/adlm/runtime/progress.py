"""How long work shows itself: a bar on a terminal, plain lines elsewhere, nothing when quiet.

The library is silent until a command turns progress on; everything goes to standard error.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int], None]
_PLAIN_SECONDS = 5.0  # between two plain lines


@dataclass
class _State:
    on: bool = False


_state = _State()


def enable(on: bool = True) -> None:
    """Turn progress on or off for this process."""
    _state.on = on


def say(line: str) -> None:
    """Tell of a step on standard error, when progress is on."""
    if _state.on:
        print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def bar(total: int, what: str, unit: str = "") -> Iterator[Advance]:
    """Show how far some work of `total` steps has come; gives a function that takes steps done."""
    if not _state.on or total <= 0:
        yield lambda steps: None
    elif sys.stderr.isatty():
        with _rich(unit) as progress:
            task = progress.add_task(what, total=total)
            yield lambda steps: progress.advance(task, steps)
    else:
        yield from _plain(total, what, unit)


def _rich(unit: str) -> Progress:
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    speed = TextColumn("{task.speed:.0f} " + (unit or "steps") + "/s" if unit else "")
    return Progress(*columns, speed, TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def _plain(total: int, what: str, unit: str) -> Iterator[Advance]:
    done, shown, start = 0, time.monotonic(), time.monotonic()

    def advance(steps: int) -> None:
        nonlocal done, shown
        done += steps
        now = time.monotonic()
        if now - shown >= _PLAIN_SECONDS or (done >= total and now - start >= _PLAIN_SECONDS):
            shown = now
            rate = f", {done / max(now - start, 1e-9):.0f} {unit}/s" if unit else ""
            say(f"{what}: {done} of {total}{rate}")

    yield advance
