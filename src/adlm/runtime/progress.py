"""How long work shows itself: a bar on a terminal, plain lines elsewhere, nothing when quiet.

The library is silent until a command turns progress on; everything goes to standard error.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

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


@contextlib.contextmanager
def amounts(total: int, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how much of `total` bytes was read; gives a function that takes bytes and rows done.

    The first line comes with the first rows, so that long work shows itself within a second.
    """
    if not _state.on or total <= 0:
        yield lambda size, rows: None
    elif sys.stderr.isatty():
        columns = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
        rate = TextColumn("{task.fields[rows]:,} rows, {task.fields[rate]:,.0f} rows/s")
        shown = Progress(*columns, rate, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        with shown:
            yield _rich_amounts(shown, total, what)
    else:
        yield _plain_amounts(total, what)


def _rich_amounts(shown: Progress, total: int, what: str) -> Callable[[int, int], None]:
    task, start, done = shown.add_task(what, total=total, rows=0, rate=0.0), time.monotonic(), 0

    def advance(size: int, rows: int) -> None:
        nonlocal done
        done += rows
        shown.update(task, advance=size, rows=done, rate=done / max(time.monotonic() - start, 1e-9))

    return advance


def _plain_amounts(total: int, what: str) -> Callable[[int, int], None]:
    done = rows_done = 0
    shown, start = -math.inf, time.monotonic()

    def advance(size: int, rows: int) -> None:
        nonlocal done, rows_done, shown
        done, rows_done, now = done + size, rows_done + rows, time.monotonic()
        if now - shown >= _PLAIN_SECONDS:
            shown = now
            rate = rows_done / max(now - start, 1e-9)
            say(f"{what}: {done / 1e6:.1f} of {total / 1e6:.1f} MB, {rows_done:,} rows, {rate:,.0f} rows/s")

    return advance


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
