"""Other libraries, each in an environment of its own; so this script imports nothing of adlm.

`PYTHON other_libraries.py NAME FOLDER WORDS...` reads arrays from a folder and writes `outputs.npy` there, or
prints a figure.
"""

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

BOUNDS = (0.0, 1.0)  # public: of every column and of the target


def diffprivlib_version(folder: Path) -> None:
    """Print the version of diffprivlib."""
    from diffprivlib import __version__  # type: ignore[import-not-found]

    print(__version__)


def diffprivlib_logistic(folder: Path, epsilon: str, penalty: str, runs: str) -> None:
    """Logistic regression of (n, k) rows of L2 norm at most 1: (runs, k + 1) weights, the intercept last."""
    from diffprivlib.models import LogisticRegression  # type: ignore[import-not-found]

    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")

    def fitted() -> list[float]:
        model = LogisticRegression(epsilon=float(epsilon), data_norm=1.0, C=float(penalty), max_iter=1000)
        model.fit(x, y)
        return [*model.coef_[0], *np.ravel(model.intercept_)]

    _write(folder, [fitted() for _ in range(int(runs))])


def diffprivlib_linear(folder: Path, epsilon: str, runs: str, intercept: str = "intercept") -> None:
    """Linear regression of values in [0, 1], the target last: (runs, k + 1) weights, the intercept last."""
    from diffprivlib.models import LinearRegression

    records = np.load(folder / "records.npy")
    settings = {"bounds_X": BOUNDS, "bounds_y": BOUNDS, "fit_intercept": intercept == "intercept"}

    def fitted() -> list[float]:
        model = LinearRegression(epsilon=float(epsilon), accountant=_accountant(), **settings)
        model.fit(records[:, :-1], records[:, -1])
        return [*np.ravel(model.coef_), *np.ravel(model.intercept_)]

    _write(folder, [fitted() for _ in range(int(runs))])


def diffprivlib_scaler(folder: Path, epsilon: str, runs: str) -> None:
    """Means and variances by `StandardScaler`."""
    from diffprivlib.models import StandardScaler

    records = np.load(folder / "records.npy")

    def fitted() -> list[float]:
        scaler = StandardScaler(epsilon=float(epsilon), bounds=BOUNDS, accountant=_accountant()).fit(records)
        return [*scaler.mean_, *scaler.var_]

    _write(folder, [fitted() for _ in range(int(runs))])


def diffprivlib_median(folder: Path, epsilon: str, runs: str) -> None:
    """The median, by `quantile`."""
    from diffprivlib.tools import quantile  # type: ignore[import-not-found]

    settings = {"epsilon": float(epsilon), "bounds": BOUNDS}
    records = np.load(folder / "records.npy")
    found = [[quantile(records, 0.5, accountant=_accountant(), **settings)] for _ in range(int(runs))]
    _write(folder, found)


def interpret_boosting(folder: Path, epsilon: str, delta: str, runs: str) -> None:
    """DP-EBM: probabilities of the test records, (runs, n, 2).

    `kinds.json` has `continuous` (in [0, 1], NaN where missing) or `nominal` (codes) for a column.
    """
    from interpret.privacy import DPExplainableBoostingClassifier  # type: ignore[import-not-found]

    kinds = json.loads((folder / "kinds.json").read_text())
    sides = []
    for side in ("x", "test"):
        values = np.load(folder / f"{side}.npy")
        columns = values.astype(object)
        for i, kind in enumerate(kinds):
            if kind == "nominal":
                columns[:, i] = [f"v{int(code)}" for code in values[:, i]]
        sides.append(columns)
    bounds = {i: BOUNDS for i, kind in enumerate(kinds) if kind == "continuous"}
    y, found = np.load(folder / "y.npy"), []
    for _ in range(int(runs)):
        model = DPExplainableBoostingClassifier(
            feature_types=kinds, privacy_bounds=bounds, epsilon=float(epsilon), delta=float(delta), n_jobs=1
        )
        found.append(model.fit(sides[0], y).predict_proba(sides[1]))
    _write(folder, found)


def interpret_version(folder: Path) -> None:
    """Print the version of interpret."""
    from interpret import __version__  # type: ignore[import-not-found]

    print(__version__)


def interpret_regression(
    folder: Path, epsilon: str, delta: str, low: str, high: str, bins: str, runs: str
) -> None:
    """One round of the private boosted regression of one column in [0, 1]: (runs, 1) noisy sums of targets.

    The sum of the targets in the first bin follows from what the model shows: its prediction there, the
    weight of the bin, and the learning rate.
    """
    from interpret.privacy import DPExplainableBoostingRegressor

    records = np.load(folder / "records.npy")
    found = []
    for _ in range(int(runs)):
        model = DPExplainableBoostingRegressor(
            privacy_bounds={0: BOUNDS}, privacy_target_min=float(low), privacy_target_max=float(high),
            max_bins=int(bins), max_rounds=1, epsilon=float(epsilon), delta=float(delta), n_jobs=1,
        )  # fmt: skip
        model.fit(records[:, :1], records[:, 1])
        first = model.intercept_ + model.term_scores_[0][1]  # index 0 is for missing values
        found.append([first * model.bin_weights_[0][1] / model.learning_rate])
    _write(folder, found)


def kymatio_rate(folder: Path, images: str, side: str, threads: str) -> None:
    """Print the seconds of one pass of kymatio's scattering after a warm-up pass."""
    import torch
    from kymatio.torch import Scattering2D

    torch.set_num_threads(int(threads))
    scattering = Scattering2D(J=2, shape=(int(side), int(side)), L=8)
    x = torch.rand(int(images), int(side), int(side))
    with torch.inference_mode():
        scattering(x[:8])
        start = time.perf_counter()
        for part in torch.split(x, 500):
            scattering(part)
        print(time.perf_counter() - start)


def _accountant() -> Any:
    from diffprivlib.accountant import BudgetAccountant  # type: ignore[import-not-found]

    return BudgetAccountant()


def _write(folder: Path, outputs: Any) -> None:
    np.save(folder / "outputs.npy", np.asarray(outputs, dtype=np.float64))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
