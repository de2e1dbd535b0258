"""Print how one release, training and evaluation walk through the packages: `python benchmarks/walk.py`.

Every function counts when it is first called, in that order, so that a loop counts once. A change is a step
from a function of one package to a function of another. Top-level modules count as a package, `top`.
MNIST is used where it is available (ADLM_DATA), digits otherwise.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).parents[1] / "src" / "adlm"


class Walk:
    """The packages whose functions were called for the first time, in order."""

    def __init__(self) -> None:
        self.seen: set[Any] = set()
        self.steps: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call, as a function for `sys.setprofile`."""
        code = frame.f_code
        function = (
            code.co_flags & inspect.CO_OPTIMIZED
        )  # not the body of a class, which runs when it is imported
        if event != "call" or not function or code in self.seen or code.co_name.startswith("<"):
            return
        self.seen.add(code)
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            package = parts[0] if len(parts) > 1 else "top"
            if package != "cli":
                self.steps.append((package, ".".join(parts) + "." + code.co_qualname))

    def changes(self) -> list[tuple[str, str]]:
        """Return (from, to) for each step from one package to another."""
        packages = [package for package, _ in self.steps]
        return [(a, b) for a, b in itertools.pairwise(packages) if a != b]


def walk(data: str, folder: Path) -> Walk:
    """Release, train and evaluate in this process, and record the calls."""
    import adlm.analyst.fit
    import adlm.serving.predict
    import adlm.workflows.privatise  # noqa: F401  (what runs when a module is imported is no part of the walk)
    from adlm.cli import app

    recorded = Walk()
    words = [
        ["release", "--data", data, "--epsilon", "1", "--out", f"{folder}/R", "--quiet"],
        ["train", f"{folder}/R", "--out", f"{folder}/M", "--quiet"],
        ["evaluate", f"{folder}/M", "--data", data, "--quiet"],
    ]
    for command in words:
        sys.setprofile(recorded)
        try:
            app.app(command, standalone_mode=False)
        finally:
            sys.setprofile(None)
    return recorded


def main() -> None:
    """Print the walk, its changes and the pairs of packages that it goes back and forth between."""
    from adlm.errors import UserError
    from adlm.public import datasets

    data = sys.argv[1] if len(sys.argv) > 1 else "mnist"
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("XDG_CACHE_HOME", folder)
        os.environ["XDG_STATE_HOME"] = os.environ["XDG_DATA_HOME"] = folder
        if len(sys.argv) < 2:
            try:
                datasets.load("mnist", "test")
            except UserError:
                data = "digits"
        recorded = walk(data, Path(folder))
    for package, steps in itertools.groupby(recorded.steps, key=lambda step: step[0]):
        names = [name for _, name in steps]
        print(f"{package:12} {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))
    changes = recorded.changes()
    pairs = Counter(frozenset(pair) for pair in changes)
    top = sum("top" in pair for pair in changes)
    print(f"\n{data}: {len(changes)} changes of package, {top} through the top")
    for pair, times in pairs.most_common(8):
        print(f"{times:4} between {' and '.join(sorted(pair))}")


if __name__ == "__main__":
    main()
