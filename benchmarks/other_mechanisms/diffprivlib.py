"""Plug-ins for diffprivlib, which needs a separate environment; a variable names its Python."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from adlm.audit.black_box import Mechanism
from adlm.audit.statistics import Reals
from adlm.errors import UserError

VARIABLE = "ADLM_DIFFPRIVLIB_PYTHON"
EPSILON = 1.0


def linear_regression() -> Mechanism:
    """`LinearRegression` on one column: coefficient and intercept, by the functional mechanism."""
    crowd = np.column_stack([np.linspace(0.0, 1.0, 40)] * 2)
    return _mechanism(
        "linear-regression",
        "LinearRegression on one column",
        np.vstack([crowd, [[1.0, 0.0]]]),
        np.vstack([crowd, [[0.0, 1.0]]]),
        slow=10,
        not_tried="several columns, fits without an intercept, bounds learnt from data, its noisy "
        "coefficients before they are minimised, records of which the noisy objective has no minimum",
    )


def standard_scaler() -> Mechanism:
    """`StandardScaler` on one column without missing values: mean and variance."""
    return _mechanism(
        "standard-scaler",
        "StandardScaler on one column",
        np.array([[0.0], [0.0]]),
        np.array([[1.0], [0.0]]),
        slow=4,
        not_tried="several columns, bounds learnt from data, partial_fit",
    )


def quantile() -> Mechanism:
    """`quantile`: a median by the exponential mechanism."""
    return _mechanism(
        "quantile",
        "quantile, a median",
        np.array([0.05, 1.0]),
        np.array([0.05, 0.0]),
        slow=1,
        not_tried="other quantiles, several at once, missing values, bounds learnt from data",
    )


def _mechanism(name: str, words: str, data: Reals, neighbour: Reals, **settings: object) -> Mechanism:
    def many(records: Reals, runs: int) -> Reals:
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder) / "records.npy", records)
            _run(name, folder, str(EPSILON), str(runs))
            return np.asarray(np.load(Path(folder) / "outputs.npy"))

    version = _run("version")
    return Mechanism(
        f"diffprivlib {version}, {words}",
        run=lambda records: many(records, 1)[0],
        many=many,
        data=data,
        neighbour=neighbour,
        epsilon=repr(EPSILON),
        relation="replace-one",
        **settings,  # type: ignore[arg-type]
    )


def _run(*words: str) -> str:
    """Run the script with the Python that has diffprivlib: the variable's, or this one."""
    python = os.environ.get(VARIABLE) or sys.executable
    script = Path(__file__).with_name("diffprivlib_runs.py")
    try:
        done = subprocess.run([python, str(script), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (str(getattr(error, "stderr", "") or error).strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"{python} cannot run diffprivlib ({said[:120]}); make an environment of its own (pip install "
            f"diffprivlib==0.6.6 scikit-learn==1.6.1) and name its Python in {VARIABLE}"
        ) from None
    return done.stdout.strip()
