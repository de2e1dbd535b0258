"""Simulate the release of a table on synthetic records: nothing is spent and no private record is read.

Columns are filled at random within their declared domains and labels follow a random additive rule, so that
the real release and the real model run on data of the right shape and size. How well a table's columns
predict its label is not known beforehand; the forecast shows how much of that noise leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.analyst.fit import fit
from adlm.analyst.metrics import measure_values
from adlm.curator.noise import Source
from adlm.privacy.accounting import parse_delta, parse_epsilon
from adlm.public.domain.encoding import TARGET_UNIT
from adlm.public.domain.table import TableDomain
from adlm.public.features.tabular import TabularFeatures
from adlm.workflows.forecast import without_progress
from adlm.workflows.options import Fourier, TableReleasePlan
from adlm.workflows.privatise import privatise
from adlm.workflows.privatise_table import plan_release

SPREAD = 2.0  # standard deviation of the synthetic logits
TESTS = 5000
MOST = 100_000  # synthetic records


@dataclass(frozen=True)
class TableForecast:
    """The expected accuracy of a table's release.

    Attributes
    ----------
    plan : the settings that the planner chooses.
    accuracy : of the private model on synthetic records; `ceiling` : of the rule that generated them. With a
        numeric target both are R2, the share of the variance that is explained.
    """

    epsilon: float
    delta: float
    plan: TableReleasePlan
    accuracy: float
    ceiling: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accuracy": self.accuracy,
            "ceiling": self.ceiling,
        } | self.plan.to_dict()


def forecast_table(
    table: TableDomain, n: int, epsilon: object, delta: object = 0, seed: int = 0, fourier: Fourier = 0
) -> TableForecast:
    """Simulate a release of n records of a declared table.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    seed : of the records and the noise.
    fourier : random Fourier features: a number, or `auto`.

    Returns
    -------
    The plan, and the accuracy (or R2) to compare budgets by.

    Examples
    --------
    >>> forecast_table(TableDomain.load("visits.toml"), 20_000, epsilon=1).accuracy  # doctest: +SKIP
    """
    budget, slack = parse_epsilon(epsilon), parse_delta(delta)
    plan = plan_release(table, n, budget, slack, fourier)
    rng = np.random.default_rng(seed)
    count = min(n, MOST)
    x = _records(table, count + TESTS, rng)
    if table.target is not None:
        rule = _logits(table, x, rng)[:, 0] / SPREAD
        values = np.clip(0.5 + 0.15 * (rule + rng.normal(size=len(x))), 0.0, 1.0)
        y = np.rint(values * TARGET_UNIT).astype(np.int64)
    else:
        logits = _logits(table, x, rng)
        y = _drawn(logits, rng)
    with without_progress():
        release = privatise(
            lambda: [(x[:count], y[:count])],
            domain=table,
            epsilon=budget,
            delta=slack,
            source=Source.seeded_with(seed),
            size=n,
            plan=plan,
        )
    if table.domain.target is not None:
        low, high = table.domain.target
        best_value = np.clip(0.5 + 0.15 * rule, 0, 1)
        truth, best_value = (low + (high - low) * v[count:] for v in (values, best_value))
        r2, most = (measure_values(p, truth).r2 or 0.0 for p in (fit(release).values(x[count:]), best_value))
        return TableForecast(float(budget), float(slack), plan, r2, most)
    guess = fit(release).predict(x[count:])
    best = logits[count:].argmax(1)
    right, most = (float((codes == y[count:]).mean()) for codes in (guess, best))
    return TableForecast(float(budget), float(slack), plan, right, most)


def _drawn(logits: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw a class for each row of logits."""
    probability = np.exp(logits - logits.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    return np.asarray((probability.cumsum(1) < rng.random((len(logits), 1))).sum(1), dtype=np.int64)


def _records(table: TableDomain, n: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Fill every column at random: uniform between its bounds, or a value of its list."""
    parts = []
    for column in table.features:
        part = np.zeros((n, column.width), dtype=np.float32)
        if column.kind == "categorical":
            part[np.arange(n), rng.integers(0, column.width, n)] = 1.0
        else:
            part[:, 0] = rng.random(n)
        parts.append(part)
    return np.hstack(parts)


def _logits(
    table: TableDomain, x: npt.NDArray[np.float32], rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    with torch.inference_mode():
        z = TabularFeatures(table)(torch.from_numpy(x)).double().numpy()
    scores = z @ rng.normal(size=(z.shape[1], max(1, len(table.answer.classes))))
    return np.asarray(SPREAD * (scores - scores.mean(0)) / scores.std())
