"""Run diffprivlib's mechanisms many times, in its own environment; so this script imports nothing of adlm.

`PYTHON diffprivlib_runs.py version` prints its version. `PYTHON diffprivlib_runs.py NAME FOLDER EPSILON RUNS`
reads `records.npy` and writes `outputs.npy`, (RUNS, width).
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from diffprivlib import __version__  # type: ignore[import-not-found]
from diffprivlib.accountant import BudgetAccountant  # type: ignore[import-not-found]
from diffprivlib.models import LinearRegression, StandardScaler  # type: ignore[import-not-found]
from diffprivlib.tools import quantile  # type: ignore[import-not-found]

BOUNDS = (0.0, 1.0)  # public: of every column and of the target


def linear_regression(records: Any, epsilon: float) -> list[float]:
    """Coefficients and intercept; the last column is the target."""
    model = LinearRegression(epsilon=epsilon, bounds_X=BOUNDS, bounds_y=BOUNDS, accountant=BudgetAccountant())
    model.fit(records[:, :-1], records[:, -1])
    return [*np.ravel(model.coef_), *np.ravel(model.intercept_)]


def standard_scaler(records: Any, epsilon: float) -> list[float]:
    """Means and variances."""
    scaler = StandardScaler(epsilon=epsilon, bounds=BOUNDS, accountant=BudgetAccountant()).fit(records)
    return [*scaler.mean_, *scaler.var_]


def median(records: Any, epsilon: float) -> list[float]:
    """The median, by `quantile`."""
    return [quantile(records, 0.5, epsilon=epsilon, bounds=BOUNDS, accountant=BudgetAccountant())]


NAMES = {"linear-regression": linear_regression, "standard-scaler": standard_scaler, "quantile": median}


def main() -> None:
    """Run one of them, or print the version."""
    if sys.argv[1] == "version":
        print(__version__)
        return
    warnings.simplefilter("ignore")
    run, folder, epsilon = NAMES[sys.argv[1]], Path(sys.argv[2]), float(sys.argv[3])
    records = np.load(folder / "records.npy")
    outputs = [run(records, epsilon) for _ in range(int(sys.argv[4]))]
    np.save(folder / "outputs.npy", np.asarray(outputs, dtype=np.float64))


if __name__ == "__main__":
    main()
