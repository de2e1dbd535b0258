"""Measurements, outside the wheel: experiments and the bench."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """Return the environment of a new process that imports this package, wherever it was started."""
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
