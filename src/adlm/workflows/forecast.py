"""Plan before you spend: simulate a release on synthetic classes, which costs nothing and reads no record.

A release cannot be undone. So the rule's plan, which depends only on the number of records, the classes and
the budget, is simulated on groups of the most similar classes of the public random process. Noise has the
scales of the release. The analyst's classifier is tested on held-out synthetic records. Real classes of some
kinds of images are closer together: one public constant for each kind (`class_separation`) corrects for
this, fixed on images that no result is computed on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from adlm.curator.mechanisms.moments import MomentConfig, calibrate, facts
from adlm.curator.mechanisms.second_moments import frame
from adlm.estimation.discriminant import fit
from adlm.estimation.moments import Moments
from adlm.estimation.shrinkage import class_means
from adlm.privacy.accounting import parse_delta, parse_epsilon
from adlm.privacy.budget import Budget
from adlm.public.features import Features, Narrowed
from adlm.public.features.threads import records_together
from adlm.public.planning.moments import MomentPlan, plan_moments

BANK = (120, 50)  # synthetic classes, and records of each
TIMES = 8  # groups of similar classes that a release is simulated on


@dataclass(frozen=True)
class Forecast:
    """The expected accuracy of a release.

    Attributes
    ----------
    plan : the settings that the rule chooses.
    accuracy, spread : mean and standard deviation over groups of similar synthetic classes.
    signal_to_noise : of the class means: a coordinate's standard deviation between classes over its noise's.
    signal_to_noise_second : of the second moments, or None when there are none.
    """

    epsilon: float
    delta: float
    plan: MomentPlan
    accuracy: float
    spread: float
    signal_to_noise: float
    signal_to_noise_second: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accuracy": self.accuracy,
            "spread": self.spread,
            "signal_to_noise": self.signal_to_noise,
            "signal_to_noise_second": self.signal_to_noise_second,
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
    Synthetic classes have too few records to learn from their residuals, so where the plan has gradient
    rounds, moments under the same budget are simulated instead. The rule chooses rounds where they do
    better than moments, so the forecast is then pessimistic.
    """
    budget, slack = parse_epsilon(epsilon), parse_delta(delta)
    plan = plan_moments(n, classes, float(budget), float(slack), neighbours, features)
    simulated = plan
    if plan.rounds is not None:
        simulated = plan_moments(n, classes, float(budget), float(slack), neighbours, features, rounds=False)
    config = MomentConfig.of(simulated, Budget(budget, slack))
    features = features.part(simulated.k)
    bank = torch.nn.functional.normalize(_bank(features, seed)[:, :, : simulated.k], dim=2)
    half = bank.shape[1] // 2
    centres, pooled = bank[:, :half].mean(1), _pooled(bank)
    prior = None if features.prior is None else Narrowed(features, simulated.k).prior
    generator = torch.Generator().manual_seed(seed)
    scores, ratios, seconds = [], [], []
    for anchor in torch.randperm(len(bank), generator=generator)[:times].tolist():
        group = torch.cdist(centres[anchor][None], centres)[0].argsort()[:classes]
        means, wider = _with_class_separation(centres[group], features.class_separation)
        within = wider**2 * pooled
        moments = _noisy(config, means, within, n, neighbours, generator)
        records = means[:, None] + wider * (bank[group, half:] - centres[group, None])
        if moments.n > 0:
            logits = fit(moments, prior).logits(records.flatten(0, 1))
            codes = torch.arange(len(group)).repeat_interleave(bank.shape[1] - half)
            scores.append(float((logits.argmax(1) == codes).double().mean()))
        else:  # add-remove: the noisy counts sum to no records, so no model can be fitted
            scores.append(1 / classes)
        ratios.append(float(means.std(0).mean() / (moments.sd_sums / (n / classes)).mean()))
        if moments.sd_second is not None:
            spread = float(within.diagonal()[: len(moments.sd_second)].mean())
            seconds.append(spread * n / (float(moments.sd_second[0, -1]) * math.sqrt(len(moments.sd_second))))
    result = torch.tensor(scores)
    return Forecast(
        float(budget),
        float(slack),
        plan,
        float(result.mean()),
        float(result.std(correction=0)),
        sum(ratios) / len(ratios),
        sum(seconds) / len(seconds) if seconds else None,
    )


@lru_cache(maxsize=4)
def _bank(features: Features, seed: int) -> Tensor:
    """Return synthetic classes (classes, per_class, width); normal ones for features without a process."""
    with records_together():  # synthetic ones
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
    config: MomentConfig, means: Tensor, within: Tensor, n: int, neighbours: str, generator: torch.Generator
) -> Moments:
    """Return moments of n records around the class means, with noise of the release's scales."""
    scales, _ = calibrate(config, neighbours)
    classes, k = means.shape
    stated = facts(config, scales, None, classes)
    clip, fine = config.clip(), config.second_clip()
    sd_sums = torch.from_numpy(clip.steps) * stated["sd_sums"]
    sd_counts = stated["sd_sums"] / clip.count
    each = n / classes

    def white(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sums, counts = means * each + white(classes, k) * sd_sums, each + sd_counts * white(classes)
    known = n if neighbours == "replace-one" else float(counts.sum())
    first = Moments(sums, counts, sd_sums, sd_counts, known)
    second = config.second
    if second is None or fine is None:
        return first
    q = second.q
    axes = torch.from_numpy(frame(sums.numpy(), k)) if second.basis == "means" else torch.eye(k).double()
    basis, outside = axes[:, :q], axes[:, q:]
    raw = within + means.T @ means / classes
    if second.around == "means":
        raw = within + torch.diag((sd_sums / each).square())
    grid = torch.outer(*(torch.from_numpy(fine.steps[:q].copy()) for _ in range(2)))
    sd_second = torch.full((q, q), stated["sd_second"], dtype=torch.float64)
    sd_second.fill_diagonal_(stated["sd_second_diagonal"])
    sd_second = sd_second * grid
    error = white(q, q) * sd_second
    cross, sd_cross = None, 0.0
    if second.cross is not None:
        step = second.cross.inside * second.cross.outside / clip.record_norm_bound**2
        sd_cross, along = stated["sd_cross"] * step, min(classes - 1, q)
        cross = n * outside.T @ within @ basis[:, :along] + sd_cross * white(k - q, along)
    return replace(
        first,
        second=n * basis.T @ raw @ basis + error.triu() + error.triu(1).T,
        sd_second=sd_second,
        basis=basis if second.basis == "means" else None,
        centres=class_means(first) if second.around == "means" else None,
        cross=cross,
        sd_cross=sd_cross,
        outside=outside if second.cross is not None else None,
    )
