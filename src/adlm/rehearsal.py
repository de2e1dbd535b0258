"""Plan before you spend: rehearse a release on synthetic classes, which costs nothing and reads no record.

A release cannot be taken back. From the number of records, the classes and the budget alone, the rule's plan
is followed on classes drawn from the public prior, with noise of the very scales that the release would have,
and the classifier that the analyst would fit is tested on further draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adlm.analyst.discriminant import fit
from adlm.certificate import parse_delta, parse_epsilon
from adlm.curator.clipping import Clip
from adlm.curator.moments import Design, calibrate
from adlm.moments import Moments
from adlm.curation import design
from adlm.public.features import Features, Narrowed, PriorStatistics
from adlm.public.rule import Plan, choose

TESTS = 100  # synthetic test vectors a class


@dataclass(frozen=True)
class Rehearsal:
    """What to expect of a release.

    Attributes
    ----------
    plan : the settings that the rule chooses.
    accuracy, spread : mean and standard deviation over rehearsals, on synthetic classes.
    signal_to_noise : of the class means: spread of a coordinate between classes over the noise on it.
    signal_to_noise_second : of the second moments, or None when there are none.
    """

    epsilon: float
    delta: float
    plan: Plan
    accuracy: float
    spread: float
    signal_to_noise: float
    signal_to_noise_second: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "epsilon": self.epsilon, "delta": self.delta, "accuracy": self.accuracy, "spread": self.spread,
            "signal_to_noise": self.signal_to_noise,
            "signal_to_noise_second": self.signal_to_noise_second,
        } | self.plan.to_dict()  # fmt: skip


def rehearse(
    features: Features,
    n: int,
    classes: int,
    epsilon: object,
    delta: object = 0,
    neighbours: str = "replace-one",
    *,
    plan: Plan | None = None,
    times: int = 4,
    seed: int = 0,
) -> Rehearsal:
    """Rehearse a release of n records of some classes; public quantities alone."""
    budget, slack = parse_epsilon(epsilon), parse_delta(delta)
    plan = plan or choose(n, classes, float(budget), float(slack), neighbours, features)
    narrow = Narrowed(features, plan.k) if plan.k < features.width else features
    followed = design(plan, budget, slack)
    prior = narrow.prior or _flat(narrow.width)
    generator = torch.Generator().manual_seed(seed)
    scores, ratios, seconds = [], [], []
    for _ in range(times):
        means = _class_means(prior, classes, generator)
        moments = _noisy(followed, means, prior, n, neighbours, generator)
        head = fit(moments, narrow.prior)
        test, codes = _draw(means, prior, generator)
        scores.append(float((head.logits(test.double()).argmax(1) == codes).double().mean()))
        ratios.append(float(means.std(0).mean() / (moments.sd_sums / (n / classes)).mean()))
        if moments.sd_second is not None:
            spread = float(prior.within.diagonal()[: len(moments.sd_second)].mean())
            seconds.append(spread * n / (float(moments.sd_second[0, -1]) * math.sqrt(len(moments.sd_second))))
    result = torch.tensor(scores)
    return Rehearsal(
        float(budget), float(slack), plan, float(result.mean()), float(result.std(correction=0)),
        sum(ratios) / times, sum(seconds) / times if seconds else None,
    )  # fmt: skip


def _flat(width: int) -> PriorStatistics:
    """Stand in for features without a prior: classes a fifth as far apart as records are wide."""
    one = torch.full((width,), 1 / width)
    return PriorStatistics(one.sqrt() * 0.8, one * 0.04, torch.diag(one * 0.96), torch.zeros(width))


def _class_means(prior: PriorStatistics, classes: int, generator: torch.Generator) -> Tensor:
    white = torch.randn(classes, len(prior.mean), generator=generator, dtype=torch.float64)
    return prior.mean.double() + white * prior.weight.double().sqrt()


def _draw(means: Tensor, prior: PriorStatistics, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    codes = torch.arange(len(means)).repeat_interleave(TESTS)
    values, vectors = torch.linalg.eigh(prior.within.double())
    white = torch.randn(len(codes), means.shape[1], generator=generator, dtype=torch.float64)
    return means[codes] + (white * values.clamp_min(0).sqrt()) @ vectors.T, codes


def _noisy(
    followed: Design,
    means: Tensor,
    prior: PriorStatistics,
    n: int,
    neighbours: str,
    generator: torch.Generator,
) -> Moments:
    """Return moments of n records around the class means, with noise of the release's own size."""
    scales, _ = calibrate(followed, neighbours)
    classes, k = means.shape
    spread = {"laplace": math.sqrt(2.0), "radial": math.sqrt(2.0 + k), "gaussian": 1.0}
    clip = followed.clip()
    sd_sums = torch.from_numpy(clip.steps) * (scales.sums * spread[followed.mechanism])
    sd_counts = scales.sums * spread[followed.mechanism] / clip.count
    each = n / classes
    white = torch.randn(classes, k, generator=generator, dtype=torch.float64)
    counts = each + sd_counts * torch.randn(classes, generator=generator, dtype=torch.float64)
    known = n if neighbours == "replace-one" else float(counts.sum())
    fine = followed.second_clip()
    if followed.second is None or fine is None:
        return Moments(means * each + white * sd_sums, counts, sd_sums, sd_counts, known)
    q = followed.second.q
    basis = torch.eye(k, q, dtype=torch.float64)
    if followed.second.basis == "means":
        centred = means - means.mean(0)
        directions = torch.linalg.svd(centred, full_matrices=False)[2][: min(classes - 1, q)].T
        basis = torch.linalg.qr(torch.hstack([directions, basis]))[0][:, :q]
    raw = n * (prior.within.double() + means.T @ means / classes)
    sd_second = _second_sd(fine, scales.second, scales.second_diagonal, q) * spread[followed.second_mechanism]
    error = torch.randn(q, q, generator=generator, dtype=torch.float64) * sd_second
    second = basis.T @ raw @ basis + error.triu() + error.triu(1).T
    return Moments(
        means * each + white * sd_sums, counts, sd_sums, sd_counts, known, second, sd_second,
        basis if followed.second.basis == "means" else None,
    )  # fmt: skip


def _second_sd(fine: Clip, off: int, diagonal: int, q: int) -> Tensor:
    grid = torch.outer(torch.from_numpy(fine.steps[:q].copy()), torch.from_numpy(fine.steps[:q].copy()))
    sd = torch.full((q, q), float(off), dtype=torch.float64)
    sd.fill_diagonal_(float(diagonal))
    return sd * grid
