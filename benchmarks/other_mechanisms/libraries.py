"""Plug-ins for mechanisms of other libraries: Laplace of NumPy and of OpenDP, a step of Opacus."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from adlm.audit.attacks import reachable
from adlm.audit.black_box import Mechanism
from adlm.audit.statistics import Reals
from adlm.errors import UserError

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
