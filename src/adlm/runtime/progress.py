"""Progress of long work: a bar on a terminal or in a notebook, a few plain lines in a log file.

The library is silent in a script until a command turns progress on; in a notebook it is on by default.
Terminals and logs get it on standard error, a notebook in an element that is updated in place.
`enable(False)` silences all of them.
"""

from __future__ import annotations

import contextlib
import html
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, Task

Advance = Callable[[int], None]
FIRST_LINE, RAREST_LINE = 5.0, 60.0  # seconds until the first plain line, and at most between two
REDRAW = 0.2  # seconds between updates of a bar in a notebook


@dataclass
class _State:
    on: bool | None = None  # None: in a notebook alone


_state = _State()


def enable(on: bool = True) -> None:
    """Turn progress on or off for this process."""
    _state.on = on


def enabled() -> bool:
    """Whether progress is shown."""
    return notebook() is not None if _state.on is None else _state.on


def notebook() -> Any | None:
    """Return IPython's display module when this process is the kernel of a notebook, else None.

    Nothing is imported for it: a kernel has loaded IPython already.
    """
    module = sys.modules.get("IPython")
    shell = getattr(module, "get_ipython", lambda: None)()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None  # no IPython, or IPython on a terminal
    import importlib

    return importlib.import_module("IPython.display")


def say(line: str) -> None:
    """Print a step, when progress is on."""
    if enabled():
        print(line, file=sys.stdout if notebook() is not None else sys.stderr, flush=True)


@contextlib.contextmanager
def bar(total: int, what: str, unit: str = "", detail: Callable[[], str] = lambda: "") -> Iterator[Advance]:
    """Show progress over `total` steps; yields a function that takes the number of steps done.

    Parameters
    ----------
    total : number of steps; nothing is shown for 0.
    what, unit : the work, and what a step is.
    detail : returns further text for a plain line.
    """
    if total <= 0 or not enabled():
        yield lambda steps: None
        return
    display = notebook()
    if display is not None:
        with _notebook_bar(display, total, what, unit) as advance:
            yield advance
    elif _terminal():
        with _rich(unit) as progress:
            task = progress.add_task(what, total=total)
            yield lambda steps: progress.advance(task, steps)
    else:
        yield _lines(total, what, unit, detail)


def _terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@contextlib.contextmanager
def amounts(total: int, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress over `total` bytes; yields a function that takes bytes and rows done."""
    rows_done = 0
    with bar(total, what, "bytes", lambda: f", {rows_done:,} rows") as advance:

        def both(size: int, rows: int) -> None:
            nonlocal rows_done
            rows_done += rows
            advance(size)

        yield both


def _rich(unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.text import Text

    class Speed(ProgressColumn):
        """Steps a second; empty before the first step."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.0f} {unit}/s" if unit and task.speed is not None else "")

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Speed(), Remaining()]
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _lines(total: int, what: str, unit: str, detail: Callable[[], str]) -> Advance:
    """Write plain lines at growing intervals: about sixty for an hour of work, none for a second."""
    done, start = 0, time.monotonic()
    due, pause = start + FIRST_LINE, FIRST_LINE

    def advance(steps: int) -> None:
        nonlocal done, due, pause
        done += steps
        now = time.monotonic()
        if now >= due or (done >= total and now - start >= FIRST_LINE):
            pause = min(RAREST_LINE, 2 * pause)
            due = now + pause
            say(_words(done, total, what, unit, now - start) + detail())

    return advance


@contextlib.contextmanager
def _notebook_bar(display: Any, total: int, what: str, unit: str) -> Iterator[Advance]:
    """Update one element in place; at the end it shows the steps done and their rate."""
    done, start, shown = 0, time.monotonic(), time.monotonic()
    handle = display.display(display.HTML(_element(0, total, what, "")), display_id=True)

    def draw() -> None:
        words = _words(done, total, what, unit, time.monotonic() - start)
        handle.update(display.HTML(_element(done, total, what, words)))

    def advance(steps: int) -> None:
        nonlocal done, shown
        done += steps
        if time.monotonic() - shown >= REDRAW:
            shown = time.monotonic()
            draw()

    try:
        yield advance
    finally:
        draw()


def _element(done: int, total: int, what: str, words: str) -> str:
    name = html.escape(words or what, quote=True)
    drawn = (
        f'<progress max="{total}" value="{min(done, total)}" aria-label="{html.escape(what, quote=True)}">'
    )
    return f'<div style="font:13px system-ui,sans-serif">{drawn}</progress> {name}</div>'


def _words(done: int, total: int, what: str, unit: str, seconds: float) -> str:
    rate = f", {done / max(seconds, 1e-9):.0f} {unit}/s" if unit else ""
    left = ""
    if 0 < done < total and seconds >= 1:
        left = f", about {_duration(seconds * (total - done) / done)} left"
    return f"{what}: {done} of {total}{rate}{left}"


def _duration(seconds: float) -> str:
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(1, round(seconds))} s"
