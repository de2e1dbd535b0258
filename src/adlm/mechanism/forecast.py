"""Forecasts: simulate a release on synthetic records, which costs nothing and reads no private record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adlm.domain import Domain
from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.engine.passes import Records
from adlm.features import Features, Narrowed
from adlm.features.tables import IndicatorTable
from adlm.mechanism.objective import Bounded, ObjectiveNoise, perturbed_minimum
from adlm.mechanism.planner import Plan, plan_arrays
from adlm.mechanism.privatise import Fourier, calibrated_plan, plan_release, privatise, sums_clip
from adlm.mechanism.stages import spread
from adlm.model.estimates import Moments, fit_discriminant
from adlm.model.fit import fit
from adlm.model.head import objective_head
from adlm.model.metrics import measure_values
from adlm.privacy.accounting import Budget, parse_delta, parse_epsilon
from adlm.privacy.noise import Source
from adlm.runtime import progress

# ---- Plan before you spend: simulate a release on synthetic classes, which costs nothing and reads no
# record.
#
# A release cannot be undone. So the planner's settings, which depend only on the number of records, the
# classes and the budget, are simulated on groups of the most similar classes of the public random process.
# Noise has the scales of the release. The classifier is tested on held-out synthetic records. Real classes
# of some kinds of images are closer together: one public constant for each kind (`class_separation`)
# corrects for this, fixed on images that no result is computed on.

BANK = (120, 50)  # synthetic classes, and records of each
TIMES = 8  # groups of similar classes that a release is simulated on
RECORDS = 4000  # synthetic records of a perturbed loss, each standing for its share of n
ROUGH = 10**9  # public size that the solver is told: its tolerance follows it, and a forecast needs no proof


@dataclass(frozen=True)
class Forecast:
    """The expected accuracy of a release.

    Attributes
    ----------
    plan : the settings that the planner chooses.
    accuracy, spread : mean and standard deviation over groups of similar synthetic classes.
    signal_to_noise : of the class means: a coordinate's standard deviation between classes over its noise's;
        None where the loss is perturbed.
    """

    epsilon: float
    delta: float
    plan: Plan
    accuracy: float
    spread: float
    signal_to_noise: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accuracy": self.accuracy,
            "spread": self.spread,
            "signal_to_noise": self.signal_to_noise,
        } | self.plan.to_dict()


def forecast(
    features: Features,
    n: int,
    classes: int,
    epsilon: object,
    delta: object = 0,
    neighbours: str = "replace-one",
    *,
    times: int = TIMES,
    seed: int = 0,
) -> Forecast:
    """Simulate a release of n records of some classes; public quantities alone.

    Parameters
    ----------
    features : the frozen public map.
    n, classes : number of records, public or guessed, and of classes.
    epsilon, delta : the budget; delta 0 gives pure epsilon.
    neighbours : `replace-one` or `add-remove`.
    times : groups of similar synthetic classes that the release is simulated on.
    seed : of the synthetic classes and the noise.

    Notes
    -----
    A perturbed loss is minimised on normal records around the synthetic class means. Gradient rounds are not
    simulated: where the plan has them, class sums under the same budget are. The planner chooses rounds where
    they do better than class sums, so the forecast is then pessimistic.
    """
    budget, slack = parse_epsilon(epsilon), parse_delta(delta)
    plan = plan_arrays(features, n, classes, float(budget), float(slack), neighbours)
    simulated = plan_arrays(features, n, classes, float(budget), float(slack), neighbours, rounds=False)
    features = features.part(simulated.k)
    bank = torch.nn.functional.normalize(_bank(features, seed)[:, :, : simulated.k], dim=2)
    half = bank.shape[1] // 2
    centres, pooled = bank[:, :half].mean(1), _pooled(bank)
    prior = None if features.prior is None else Narrowed(features, simulated.k).prior
    generator = torch.Generator().manual_seed(seed)
    scores, ratios = [], []
    domain = Domain((simulated.k,), 0, 1, tuple(map(str, range(classes))), neighbours)
    calibrated = calibrated_plan(simulated, domain, Budget(budget, slack))
    at = 0 if simulated.objective is None else 1  # class sums alone, or followed by the loss
    noise = calibrated.scales[at]
    for anchor in torch.randperm(len(bank), generator=generator)[:times].tolist():
        group = torch.cdist(centres[anchor][None], centres)[0].argsort()[:classes]
        means, wider = _with_class_separation(centres[group], features.class_separation)
        records = (means[:, None] + wider * (bank[group, half:] - centres[group, None])).flatten(0, 1)
        logits: Tensor | None
        if simulated.objective is not None:
            logits = _perturbed(simulated, noise, means, wider**2 * pooled, n, generator, records)
        else:
            moments = _noisy(simulated, noise, means, n, neighbours, generator)
            # under add-remove, noisy counts may sum to no records: no model can be fitted
            logits = fit_discriminant(moments, prior)(records) if moments.n > 0 else None
            ratios.append(float(means.std(0).mean() / (moments.sd_sums / (n / classes)).mean()))
        codes = torch.arange(len(group)).repeat_interleave(bank.shape[1] - half)
        right = 1 / classes if logits is None else float((logits.argmax(1) == codes).double().mean())
        scores.append(right)
    result = torch.tensor(scores)
    return Forecast(
        float(budget),
        float(slack),
        plan,
        float(result.mean()),
        float(result.std(correction=0)),
        sum(ratios) / len(ratios) if ratios else None,
    )


@contextlib.contextmanager
def without_progress() -> Iterator[None]:
    """Show no progress of a simulated release."""
    shown = progress.enabled()
    progress.enable(False)
    try:
        yield
    finally:
        progress.enable(shown)


def _perturbed(
    plan: Plan,
    noise: ObjectiveNoise,
    means: Tensor,
    within: Tensor,
    n: int,
    generator: torch.Generator,
    records: Tensor,
) -> Tensor:
    """Minimise the perturbed loss on normal records around the class means; return logits of `records`.

    At most RECORDS are drawn, each of which stands for its share of n: ridge and noise are divided by it.
    """
    assert plan.objective is not None
    k, count = plan.k, min(n, RECORDS)
    codes = torch.arange(count) % len(means)
    axes, spreads = torch.linalg.eigh(within)[::-1]
    root = axes * spreads.clamp_min(0).sqrt()
    drawn = means[codes] + torch.randn(count, k, generator=generator, dtype=torch.float64) @ root.T
    settings = replace(plan.objective, ridge=plan.objective.ridge * count / n, size=ROUGH)
    part = (Bounded(settings, k).rows(drawn.numpy()), codes.numpy())
    even = np.zeros(settings.classes)
    with without_progress():
        weights = perturbed_minimum(
            Records.of_batches(lambda: [part]),
            settings,
            replace(noise, scale=noise.scale * count / n),
            even,
            Source.seeded_with(int(torch.randint(1 << 30, (1,), generator=generator))),
            k,
        )
    head = torch.from_numpy(objective_head(weights, even, settings.constant).integers)
    return records @ head[:, 1:].T + settings.constant * head[:, 0]


@lru_cache(maxsize=4)
def _bank(features: Features, seed: int) -> Tensor:
    """Return synthetic classes (classes, per_class, width); normal ones for features without a process."""
    drawn = features.synthetic(*BANK, seed)
    if drawn is not None:
        return drawn.double()
    generator = torch.Generator().manual_seed(seed)
    classes, per_class = BANK
    centre = torch.randn(classes, 1, features.width, generator=generator, dtype=torch.float64)
    return centre + torch.randn(classes, per_class, features.width, generator=generator, dtype=torch.float64)


def _with_class_separation(centres: Tensor, class_separation: float) -> tuple[Tensor, float]:
    """Scale the distances of classes (M, k) to those of real ones; return them, and the factor by which
    records spread wider around them, since the norm of a record stays the same."""
    middle = centres.mean(0)
    between, total = (centres - middle).square().sum(1).mean(), 1 - middle.square().sum()
    spare = (total - between).clamp_min(1e-9)
    left = (total - class_separation**2 * between).clamp_min(0)
    return middle + class_separation * (centres - middle), float((left / spare).sqrt())


def _pooled(bank: Tensor) -> Tensor:
    """Return the covariance (k, k) within classes, over all of them."""
    centred = (bank - bank.mean(1, keepdim=True)).flatten(0, 1)
    return centred.T @ centred / (len(centred) - len(bank))


def _noisy(
    plan: Plan, noise: int, means: Tensor, n: int, neighbours: str, generator: torch.Generator
) -> Moments:
    """Return moments of n records around the class means, with noise of the release's scales."""
    classes, k = means.shape
    clip, sd = sums_clip(plan), noise * spread(plan.noise, 1 + k)
    sd_sums = torch.from_numpy(clip.steps) * sd
    sd_counts = sd / clip.count
    each = n / classes

    def white(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sums, counts = means * each + white(classes, k) * sd_sums, each + sd_counts * white(classes)
    known = n if neighbours == "replace-one" else float(counts.sum())
    return Moments(sums, counts, sd_sums, sd_counts, known)


# ---- Simulate the release of a table on synthetic records: nothing is spent and no private record is read.
#
# Columns are filled at random within their declared domains and labels follow a random additive rule, so
# that the real release and the real model run on data of the right shape and size. How well a table's
# columns predict its label is not known beforehand; the forecast shows how much of that noise leaves.

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
    plan: Plan
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
        return TableForecast(float(budget), float(slack), plan, min(r2, most), most)
    shares = _shares(logits[count:])  # expected accuracies: no guess exceeds that of the rule itself
    right = np.take_along_axis(shares, fit(release).predict(x[count:])[:, None], axis=1)
    return TableForecast(float(budget), float(slack), plan, float(right.mean()), float(shares.max(1).mean()))


def _shares(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The probabilities of classes for each row of logits."""
    probability = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(probability / probability.sum(1, keepdims=True))


def _drawn(logits: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw a class for each row of logits."""
    probability = _shares(logits)
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
        z = IndicatorTable(table)(torch.from_numpy(x)).double().numpy()
    scores = z @ rng.normal(size=(z.shape[1], max(1, len(table.answer.classes))))
    return np.asarray(SPREAD * (scores - scores.mean(0)) / scores.std())
