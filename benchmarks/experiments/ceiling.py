"""Accuracy of a linear head on the same features without privacy: logistic regression, no noise."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.experiments import benchmark_data

RIDGES = (1e-2, 3e-3, 1e-3)  # chosen on a share HELD_OUT of the training records
HELD_OUT = 0.1
SCALE = 30.0  # of rows, which have length 1, while heads are long: so one step size suits both
ITERATIONS = 60


def logistic_regression(z: Tensor, codes: Tensor, classes: int, ridge: float) -> Tensor:
    """Fit by L-BFGS: (width + 1, classes), the intercept last.

    Parameters
    ----------
    z : (n, width) features around their mean.
    codes : (n,) classes.
    classes : number of classes.
    ridge : on the squared weights, for rows of length SCALE.
    """
    weights = torch.zeros(z.shape[1] + 1, classes, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights], max_iter=ITERATIONS, history_size=20, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.cross_entropy(scores(z, weights), codes) + ridge * weights[:-1].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach()


def scores(z: Tensor, weights: Tensor) -> Tensor:
    """Scores (n, classes) of centred features."""
    return SCALE * (z @ weights[:-1]) + weights[-1]


def ceiling(data: str, n: int | None = None) -> float:
    """Test accuracy of logistic regression on all features; the ridge is chosen on training records.

    Parameters
    ----------
    data : data set.
    n : training records; None for all.
    """
    width, classes = benchmark_data.features(data).width, len(benchmark_data.declared(data).classes)
    z = torch.from_numpy(np.array(benchmark_data.narrowed(data, "train", width, n)))
    codes = torch.from_numpy(benchmark_data.split(data, "train").first(n).y)
    centre = z.mean(0)
    z -= centre
    split = len(z) - max(1, round(HELD_OUT * len(z)))

    def held_out(ridge: float) -> float:
        weights = logistic_regression(z[:split], codes[:split], classes, ridge)
        return float((scores(z[split:], weights).argmax(1) == codes[split:]).double().mean())

    weights = logistic_regression(z, codes, classes, max(RIDGES, key=held_out))
    test = torch.from_numpy(np.array(benchmark_data.narrowed(data, "test", width))) - centre
    answers = torch.from_numpy(benchmark_data.split(data, "test").y)
    return float((scores(test, weights).argmax(1) == answers).double().mean())
