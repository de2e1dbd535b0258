"""Access to experiments and benchmarks, which are in the source checkout, not in the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import adlm
from adlm.errors import UserError


def find_benchmarks(command: str) -> None:
    """Make the package `benchmarks` of this checkout importable, or explain where to get it.

    Parameters
    ----------
    command : its name, for the error sentence.
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
