"""Fit diffprivlib's logistic regression, in its own environment; so this script imports nothing of adlm.

`PYTHON diffprivlib_logistic.py FOLDER EPSILON C RUNS` reads `x.npy`, (n, k) rows of L2 norm at most 1, and
`y.npy`, (n,) codes of two classes, and prints a JSON list of {"weight": [...], "bias": ...}, one a run.
"""

import json
import sys
from pathlib import Path

import numpy as np
from diffprivlib.models import LogisticRegression  # type: ignore[import-not-found]

DATA_NORM = 1.0  # public: no row of the encoding is longer
ITERATIONS = 1000


def main() -> None:
    folder, epsilon, inverse_penalty = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    models = []
    for _ in range(int(sys.argv[4])):
        model = LogisticRegression(
            epsilon=epsilon, data_norm=DATA_NORM, C=inverse_penalty, max_iter=ITERATIONS
        )
        model.fit(x, y)
        models.append({"weight": model.coef_[0].tolist(), "bias": float(model.intercept_[0])})
    print(json.dumps(models))


if __name__ == "__main__":
    main()
