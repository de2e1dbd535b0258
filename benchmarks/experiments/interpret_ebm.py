"""Fit interpret's DP-EBM, in its own environment; so this script imports nothing of adlm.

`PYTHON interpret_ebm.py FOLDER EPSILON DELTA RUNS` reads `x.npy` and `test.npy`, (n, d) columns, `y.npy`,
(n,) codes, and `kinds.json`, `continuous` (in [0, 1], NaN where missing) or `nominal` (codes) for a column.
It writes `p0.npy`, `p1.npy`, ...: probabilities of the test records, one file a run.
"""

import json
import sys
from pathlib import Path

import numpy as np
from interpret.privacy import DPExplainableBoostingClassifier  # type: ignore[import-not-found]


def main() -> None:
    folder, epsilon, delta = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    kinds = json.loads((folder / "kinds.json").read_text())
    x, test = (_columns(np.load(folder / f"{side}.npy"), kinds) for side in ("x", "test"))
    y = np.load(folder / "y.npy")
    bounds = {i: (0.0, 1.0) for i, kind in enumerate(kinds) if kind == "continuous"}  # public
    for run in range(int(sys.argv[4])):
        model = DPExplainableBoostingClassifier(
            feature_types=kinds, privacy_bounds=bounds, epsilon=epsilon, delta=delta, n_jobs=1
        )
        model.fit(x, y)
        np.save(folder / f"p{run}.npy", model.predict_proba(test))


def _columns(values: np.ndarray, kinds: list[str]) -> np.ndarray:
    out = values.astype(object)
    for i, kind in enumerate(kinds):
        if kind == "nominal":
            out[:, i] = [f"v{int(code)}" for code in values[:, i]]
    return out


if __name__ == "__main__":
    main()
