"""Mechanisms of other libraries, as plug-ins of `adlm audit --subject`.

diffprivlib and interpret need environments of their own; the variables ADLM_DIFFPRIVLIB_PYTHON and
ADLM_INTERPRET_PYTHON name their Python.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from adlm.audit.attacks import reachable
from adlm.audit.black_box import Mechanism
from adlm.audit.statistics import Reals
from adlm.errors import UserError
from benchmarks import in_environment

FEW = np.array([1.0, 0.0, 1.0])
DELTA = 1e-5


def numpy_laplace() -> Mechanism:
    """A sum plus `Generator.laplace`, as in a textbook: epsilon 1/4."""
    rng, scale = np.random.default_rng(), 4.0

    def many(records: Any, runs: int) -> Any:
        return np.sum(records) + rng.laplace(0.0, scale, (runs, 1))

    def score(outputs: Reals) -> Reals:
        """Whether the data's sum can give this double, minus whether the neighbour's can."""
        sums = outputs[:, 0]
        return np.asarray(reachable(sums, scale).astype(np.float64) - reachable(sums - 1.0, scale))

    return Mechanism(
        f"numpy {np.__version__}, Generator.laplace on a sum",
        run=lambda records: many(records, 1)[0],
        many=many,
        score=score,
        data=np.zeros(3),
        neighbour=np.array([1.0, 0.0, 0.0]),
        epsilon="1/4",
        relation="replace-one",
        not_tried="sums other than 0 and 1, other scales, rounded outputs",
    )


def opendp_laplace() -> Mechanism:
    """OpenDP: clamp to [0, 1], sum, Laplace of scale 2; the claim is that of its privacy map."""
    dp: Any = _library("opendp.prelude", "opendp")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    chain = space >> dp.t.then_clamp((0.0, 1.0)) >> dp.t.then_sum() >> dp.m.then_laplace(scale=2.0)
    return Mechanism(
        f"opendp {_version('opendp')}, clamp, sum, Laplace",
        run=lambda records: chain(records.tolist()),
        data=FEW,
        neighbour=FEW[:2],
        epsilon=repr(chain.map(d_in=1)),
        relation="add-remove",
        slow=5,
        not_tried="other domains, other metrics, its transformations beside this chain, timing",
    )


def opendp_threshold() -> Mechanism:
    """OpenDP: whether a key of one record is released by Laplace counts above a threshold.

    The claim is that of its privacy map. Counts at the threshold are released, but its delta leaves them out.
    """
    dp: Any = _library("opendp.prelude", "opendp")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=str)), dp.symmetric_distance()
    chain = dp.t.make_count_by(*space) >> dp.m.then_laplace_threshold(scale=1.0, threshold=5)
    epsilon, delta = chain.map(1)
    return Mechanism(
        f"opendp {_version('opendp')}, counts above a threshold",
        run=lambda records: float(len(chain(records)) > 0),
        data=["key"],
        neighbour=[],
        epsilon=repr(epsilon),
        delta=repr(delta),
        relation="add-remove",
        not_tried="other thresholds and scales, several keys, Gaussian noise",
    )


def opacus_step() -> Mechanism:
    """Opacus: clipping and noise of one step of its optimiser; the claim is its PRV accountant's."""
    optimisers: Any = _library("opacus.optimizers", "opacus")
    accountants: Any = _library("opacus.accountants", "opacus")
    weight = nn.Parameter(torch.zeros(3))
    step = optimisers.DPOptimizer(
        torch.optim.SGD([weight], lr=1.0),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=1,
        loss_reduction="sum",
    )
    accountant = accountants.create_accountant("prv")
    accountant.history = [(1.0, 1.0, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its numerical integration
        epsilon = float(accountant.get_epsilon(DELTA))

    def run(records: Any) -> Any:
        """Records are gradients, longer than the clip norm, so that clipping is tested too."""
        weight.grad_sample = torch.as_tensor(records, dtype=torch.float32).clone()  # type: ignore[attr-defined]
        step.pre_step()
        noisy = weight.grad
        assert noisy is not None
        output = noisy.double().numpy().copy()
        step.zero_grad()
        return output

    two = np.array([[0.0, -2.0, 0.0], [3.0, 0.0, 0.0]])
    return Mechanism(
        f"opacus {_version('opacus')}, one step of DPOptimizer",
        run=run,
        data=two,
        neighbour=two[:1],
        epsilon=repr(epsilon),
        delta=DELTA,
        relation="add-remove",
        slow=5,
        not_tried="Poisson sampling, several steps, its data loader, gradients of real layers, secure mode",
    )


def _library(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"this subject needs {name}, which is not installed; pip install {name}") from None


def _version(name: str) -> str:
    return importlib.metadata.version(name)


# ---- diffprivlib

EPSILON = 1.0


def linear_regression() -> Mechanism:
    """diffprivlib's `LinearRegression` on one column: coefficient and intercept."""
    crowd = np.column_stack([np.linspace(0.0, 1.0, 40)] * 2)
    return _diffprivlib(
        "linear",
        "LinearRegression on one column",
        np.vstack([crowd, [[1.0, 0.0]]]),
        np.vstack([crowd, [[0.0, 1.0]]]),
        slow=10,
        not_tried="several columns, bounds learnt from data, noisy coefficients before they are minimised, "
        "records of which the noisy objective has no minimum",
    )


def linear_regression_without_intercept() -> Mechanism:
    """diffprivlib's `LinearRegression(fit_intercept=False)` on one column in [0, 1]: the coefficient.

    The sensitivity of the sum of squares is computed from the lower bound alone, which is 0: it has no noise.
    """
    return _diffprivlib(
        "linear",
        "LinearRegression(fit_intercept=False) on one column",
        np.array([[1.0, 0.0], [0.0, 0.0]]),
        np.array([[0.001, 0.0], [0.0, 0.0]]),
        extra=("no intercept",),
        score=lambda outputs: -np.log(np.abs(outputs[:, 0]) + 1e-12),
        slow=10,
        not_tried="several columns, bounds learnt from data",
    )


def standard_scaler() -> Mechanism:
    """diffprivlib's `StandardScaler` on one column without missing values: mean and variance."""
    return _diffprivlib(
        "scaler",
        "StandardScaler on one column",
        np.array([[0.0], [0.0]]),
        np.array([[1.0], [0.0]]),
        slow=4,
        not_tried="several columns, bounds learnt from data, partial_fit",
    )


def quantile() -> Mechanism:
    """diffprivlib's `quantile`: a median by the exponential mechanism."""
    return _diffprivlib(
        "median",
        "quantile, a median",
        np.array([0.05, 1.0]),
        np.array([0.05, 0.0]),
        slow=1,
        not_tried="other quantiles, several at once, missing values, bounds learnt from data",
    )


def boosted_regression() -> Mechanism:
    """interpret's `DPExplainableBoostingRegressor`, one round on one column, targets between 999 and 1,000.

    Its noise is scaled to the declared range of the target, 1. What a record adds to the sums of a bin is
    its target.
    """
    python = os.environ.get("ADLM_INTERPRET_PYTHON") or sys.executable
    low, high = 999.0, 1000.0
    data = np.column_stack([np.repeat([0.1, 0.9], 400), np.full(800, 999.5)])
    neighbour = data.copy()
    neighbour[-1, 0] = 0.1  # a record with another column

    def many(records: Reals, runs: int) -> Reals:
        given = (repr(EPSILON), repr(DELTA), repr(low), repr(high), "4", str(runs))
        return np.asarray(in_environment(python, "interpret_regression", *given, arrays={"records": records}))

    return Mechanism(
        f"interpret {in_environment(python, 'interpret_version')}, one round of boosted regression",
        run=lambda records: many(records, 1)[0],
        many=many,
        data=data,
        neighbour=neighbour,
        epsilon=repr(EPSILON),
        delta=repr(DELTA),
        relation="replace-one",
        slow=10,
        not_tried="classification, targets around 0, several columns, several rounds",
    )


def _diffprivlib(
    name: str, words: str, data: Reals, neighbour: Reals, extra: tuple[str, ...] = (), **settings: object
) -> Mechanism:
    python = os.environ.get("ADLM_DIFFPRIVLIB_PYTHON") or sys.executable

    def many(records: Reals, runs: int) -> Reals:
        given = (repr(EPSILON), str(runs), *extra)
        return np.asarray(in_environment(python, f"diffprivlib_{name}", *given, arrays={"records": records}))

    return Mechanism(
        f"diffprivlib {in_environment(python, 'diffprivlib_version')}, {words}",
        run=lambda records: many(records, 1)[0],
        many=many,
        data=data,
        neighbour=neighbour,
        epsilon=repr(EPSILON),
        relation="replace-one",
        **settings,  # type: ignore[arg-type]
    )
