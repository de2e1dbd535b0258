"""Fit diffprivlib's linear regression, in its own environment; so this script imports nothing of adlm.

`PYTHON diffprivlib_linear.py FOLDER EPSILON RUNS` reads `x.npy`, (n, k) values in [0, 1], and `y.npy`, (n,)
values in [0, 1], and prints a JSON list of {"weight": [...], "bias": ...}, one a run.
"""

import json
import sys
from pathlib import Path

import numpy as np
from diffprivlib.models import LinearRegression  # type: ignore[import-not-found]


def main() -> None:
    folder, epsilon = Path(sys.argv[1]), float(sys.argv[2])
    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    models = []
    for _ in range(int(sys.argv[3])):
        model = LinearRegression(epsilon=epsilon, bounds_X=(0.0, 1.0), bounds_y=(0.0, 1.0))
        model.fit(x, y)
        models.append({"weight": model.coef_.ravel().tolist(), "bias": float(model.intercept_)})
    print(json.dumps(models))


if __name__ == "__main__":
    main()
