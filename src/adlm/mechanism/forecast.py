"""What to expect of a release, from public quantities alone: accuracy on images, noise on tables."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.engine.passes import Records
from adlm.features import Features, Narrowed
from adlm.mechanism.objective import Bounded, ObjectiveNoise, perturbed_minimum
from adlm.mechanism.planner import Plan, plan_arrays
from adlm.mechanism.privatise import Fourier, calibrated_plan, plan_release, sums_clip
from adlm.mechanism.stages import spread
from adlm.model.estimates import Moments, fit_discriminant
from adlm.model.head import objective_head
from adlm.privacy.accounting import Budget, gaussian_mu, parse_delta, parse_epsilon
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


# ---- A table: how well its columns predict the label is not known beforehand, so only the noise is stated.


@dataclass(frozen=True)
class TableNoise:
    """The plan of a table's release, and its noise.

    Attributes
    ----------
    plan : the settings that the planner chooses.
    size : number of records, public or guessed.
    records : the standard deviation of the noise on one coordinate of the sum of all gradients, over the
        largest length of one record's gradient. With gradient rounds, of their mean.
    """

    epsilon: float
    delta: float
    plan: Plan
    size: int
    records: float

    @property
    def sentence(self) -> str:
        """The noise in words."""
        return (
            f"on each weight of the model the noise is as strong as {self.records:,.1f} of {self.size:,} "
            f"records ({100 * self.records / self.size:.2g} %)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        stated = {"epsilon": self.epsilon, "delta": self.delta, "noise_records": self.records}
        return stated | self.plan.to_dict()


def table_noise(
    table: TableDomain, n: int, epsilon: object, delta: object = 0, fourier: Fourier = 0
) -> TableNoise:
    """Plan a release of n records of a declared table, and state its noise.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    fourier : random Fourier features: a number, or `auto`.

    Examples
    --------
    >>> table_noise(TableDomain.load("visits.toml"), 20_000, epsilon=1).records  # doctest: +SKIP
    """
    budget = Budget.of(epsilon, delta)
    plan = plan_release(table, n, budget.epsilon, budget.delta, fourier)
    if plan.objective is None:
        moved = table.contributions * (2 if table.neighbours == "replace-one" else 1)
        records = moved / (
            float(gaussian_mu(budget.epsilon, budget.delta)) * math.sqrt(plan.shares["gradients"])
        )
    else:
        scales = calibrated_plan(plan, table, budget, table.contributions).scales
        (noise,) = (scale for scale in scales if isinstance(scale, ObjectiveNoise))
        longest = float(plan.objective.gradient_bound) * plan.objective.length
        records = noise.scale * spread(plan.objective.noise, 1 + plan.k) / longest
    return TableNoise(float(budget.epsilon), float(budget.delta), plan, n, records)
