"""Measurements, outside the wheel: experiments, the bench, other people's mechanisms under audit."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adlm.errors import UserError

ROOT = Path(__file__).parents[1]
MAKE = {  # how to make an environment for another library
    "diffprivlib": "pip install diffprivlib==0.6.6 scikit-learn==1.6.1",
    "interpret": "pip install interpret==0.7.8",
    "kymatio": "pip install kymatio==0.3.0",
}


def environment() -> dict[str, str]:
    """Return the environment of a new process that imports this package, wherever it was started."""
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def in_environment(python: str, name: str, *words: str, arrays: Mapping[str, Any] | None = None) -> Any:
    """Run a function of `other_libraries` with another Python; return what it printed, or its outputs.

    Arrays are passed in a temporary folder that only its owner can read. A text is written as it is.
    """
    library = name.partition("_")[0]
    with tempfile.TemporaryDirectory() as folder:
        for file, values in (arrays or {}).items():
            if isinstance(values, str):
                (Path(folder) / file).write_text(values, encoding="utf-8")
            else:
                np.save(Path(folder) / f"{file}.npy", values)
        script = Path(__file__).with_name("other_libraries.py")
        try:
            done = subprocess.run(
                [python, str(script), name, folder, *words], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines() or ["no message"]
            raise UserError(
                f"{python} cannot run {library} ({said[-1][:120]}); make an environment of its own "
                f"({MAKE[library]}) and name its Python"
            ) from None
        outputs = Path(folder) / "outputs.npy"
        return np.load(outputs) if outputs.exists() else done.stdout.strip()
