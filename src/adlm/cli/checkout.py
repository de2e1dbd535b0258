"""Experiments and the bench are in the source checkout, not in the wheel: find them there."""

from __future__ import annotations

import sys
from pathlib import Path

import adlm
from adlm.errors import UserError


def find_benchmarks(command: str) -> None:
    """Make the package `benchmarks` of this checkout importable, or say where it is to be had.

    Parameters
    ----------
    command : what was called, for the sentence that a wheel answers with.
    """
    root = Path(adlm.__file__).resolve().parents[2]
    if not (root / "benchmarks" / "experiments").is_dir():
        raise UserError(
            f"{command} needs the source checkout, and {Path(adlm.__file__).parent} is an installed package "
            "without it; clone the repository of adlm, run pip install --editable . in it, and call the "
            "command again"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
