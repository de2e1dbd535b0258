"""Estimates from released numbers: counts, means, covariance, discriminants, a model of classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.features.base import PriorStatistics

# ---- Released class sums and counts, with the scale of their noise.
#
# A release stores integers and the size of a grid step per coordinate; `Moments` holds the same in
# real numbers, for the analyst.


@dataclass(frozen=True)
class Moments:
    """Noisy sums over the records, and the standard deviation of the noise on each.

    Attributes
    ----------
    sums : (M, k) class sums of the feature vectors z.
    counts : (M,) class counts.
    sd_sums : (k,) standard deviation of the noise on each column of `sums`.
    sd_counts : standard deviation of the noise on each count.
    n : number of records: public under replace-one, the sum of noisy counts under add-remove.
    """

    sums: Tensor
    counts: Tensor
    sd_sums: Tensor
    sd_counts: float
    n: float

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Moments:
        """Turn released integers into real numbers: integer times grid step."""
        step = tensors["step"].double()
        table = tensors["class_sums"].double()
        counts = table[:, 0] * step[0]
        sd = float(settings["sd_sums"])
        n = float(settings["n"]) if settings["n"] is not None else float(counts.sum())
        return cls(
            sums=table[:, 1:] * step[1:],
            counts=counts,
            sd_sums=sd * step[1:],
            sd_counts=sd * float(step[0]),
            n=n,
        )


# ---- Class counts and class offsets from noisy counts.
#
# Post-processing of released counts, for curator and analyst alike; the same bits on every machine.

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

GRID = 1024  # steps in one unit of a log share
CLEAR_COUNTS = 4.0  # standard deviations of noise in a uniform share above which counts are used as they are


def posterior_counts(counts: Sequence[float], spread: float) -> list[float] | None:
    """Return the posterior mean of class counts, given their noise; None where the noise is small.

    The prior of each count is exponential with the uniform share as its mean, so the posterior is a normal
    distribution truncated at zero. Pure noise then gives uniform shares; a count far above its noise hardly
    changes.

    Parameters
    ----------
    counts : of M classes, in any unit.
    spread : standard deviation of their noise, in the same unit.
    """
    uniform = sum(counts) / len(counts)
    if spread * CLEAR_COUNTS <= uniform or spread <= 0:
        return None
    uniform = max(uniform, 1e-9 * spread)
    posterior = [spread * _mean_above_zero(count / spread - spread / uniform) for count in counts]
    total = sum(posterior)
    return [count * uniform * len(counts) / total for count in posterior]


def _mean_above_zero(middle: float) -> float:
    """Mean of a normal variable with standard deviation 1, given that it is positive."""
    if middle < -8.0:  # expansion of the tail, where erfc loses precision
        return (1 - 2 / middle**2 + 10 / middle**4) / -middle
    return middle + math.sqrt(2 / math.pi) * math.exp(-middle * middle / 2) / math.erfc(
        -middle / math.sqrt(2)
    )


def plausible_counts(counts: Integers, spread: float) -> Integers:
    """Shrink released class counts, (M,), together; where noise is small they do not change.

    Parameters
    ----------
    counts : in any unit.
    spread : standard deviation of their noise, in the same unit.
    """
    together = posterior_counts([int(count) for count in counts], spread)
    return counts if together is None else np.array([round(count) for count in together], dtype=np.int64)


def class_offsets(counts: Integers, spread: float = 0.0) -> Reals:
    """Return log class shares from released counts, (M,), in any unit, on a grid of 2^-10.

    A class has at least a fiftieth of a uniform share, whatever its noisy count. `spread` is the standard
    deviation of the noise, see `plausible_counts`.
    """
    counts = plausible_counts(counts, spread)
    total = int(np.maximum(counts, 1).sum())
    least = max(1, total // (50 * len(counts)))
    clamped = [max(int(count), least) for count in counts]
    return np.array([round(GRID * math.log(count / sum(clamped))) / GRID for count in clamped])


def offset_moves(counts: Reals, predicted: Reals, spread: float) -> Reals:
    """Return log(counts / predicted) for each class, shrunk by the noise, on a grid: (M,), mean 0.

    It is one step of iterative scaling, which brings predicted class shares closer to those of the records.

    Parameters
    ----------
    counts, predicted : (M,) class counts, and sums of predicted probabilities, in records.
    spread : standard deviation of the noise on their difference, at least 1.
    """
    moved = [
        math.log((max(float(count), 0.0) + spread) / (max(float(sum_), 0.0) + spread))
        for count, sum_ in zip(counts, predicted, strict=True)
    ]
    middle = sum(moved) / len(moved)
    return np.array([round(GRID * (value - middle)) / GRID for value in moved])


# ---- Shrinkage estimates from released moments, for the closed form and the labelled draws

IMBALANCE = 0.1  # assumed spread of class sizes when counts are too noisy, relative to n / M


def shrunk_counts(moments: Moments) -> Tensor:
    """Class counts, shrunk towards n / M as far as their noise exceeds their differences: (M,).

    Differences count as signal only where they clearly exceed pure noise over M classes; a mild imbalance is
    always assumed.
    """
    M = len(moments.counts)
    n = max(moments.n, float(M))  # under add-remove, the noisy n can be negative
    balanced = n / M
    observed = float((moments.counts - balanced).square().mean())
    variance = moments.sd_counts**2
    clear = variance * (1 + 2 * math.sqrt(2 / max(M - 1, 1)))
    signal = max(observed - clear, 0.0) + (IMBALANCE * balanced) ** 2
    counts = balanced + (signal / (signal + variance)) * (moments.counts - balanced)
    # A mean is a sum over its count, and a tiny noisy count would inflate it. So the noisier counts are, the
    # nearer to n / M they are kept.
    counts = counts.clamp_min(balanced * min(max(0.02, math.sqrt(variance) / balanced), 0.5))
    return counts * (n / counts.sum())


@dataclass(frozen=True)
class ClassMeans:
    """Class means, with the spread of records around them.

    Attributes
    ----------
    share : (M,) class shares.
    mean : (M, k) class means: sums over shrunk counts.
    noise : (M, k) variance of the noise on a mean.
    within : variance of records within classes along one coordinate, if it is isotropic. A record has norm at
        most 1, so its variance is at most 1 less the squared norm of its mean.
    """

    share: Tensor
    mean: Tensor
    noise: Tensor
    within: Tensor

    @classmethod
    def of(cls, moments: Moments) -> ClassMeans:
        """Estimate them from released moments."""
        counts = shrunk_counts(moments)
        share, mean = counts / counts.sum(), moments.sums / counts[:, None]
        noise = (moments.sd_sums[None] / counts[:, None]).square()
        left = 1 - (share[:, None] * (mean.square() - noise)).sum().clamp(0.0, 0.95)
        return cls(share, mean, noise, left / mean.shape[1])


def linear(weight: Tensor, bias: Tensor, width: int | None = None) -> nn.Linear:
    """Return a layer with the given (M, k) weights and (M,) biases; features beyond k get zero weight."""
    layer = nn.Linear(width or weight.shape[1], len(bias), dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, : weight.shape[1]] = weight
        layer.bias.copy_(bias)
    return layer.requires_grad_(False)


def fit_discriminant(moments: Moments, prior: PriorStatistics | None = None) -> nn.Linear:
    """Fit linear discriminants to released moments; a public prior of the features helps to calibrate.

    With W the covariance within classes, which is assumed isotropic, N that of the noise on a class mean m_c,
    and A = W + N + N^2 / 2W, scores are z'A^-1 m_c - (m_c'A^-1 m_c - tr A^-1 N_c) / 2 + log share_c. The
    trace removes the bias of noise on the length of m_c. A new record lies around the *noisy* mean with
    covariance W + N; the last term of A pays for the noise on that length, so that coordinates dominated by
    noise are left out.
    """
    if moments.n <= 0:
        raise UserError(f"a model needs records: the release has n = {moments.n:g}; raise epsilon")
    found = ClassMeans.of(moments)
    centre = moments.sums.sum(0) / moments.n
    between, noise = found.mean - centre, found.noise.mean(0)
    effective = found.within + noise + noise.square() / (2 * found.within)
    precise = between / effective
    length = (between * precise).sum(1) - (found.noise / effective).sum(1)
    bias = -(precise @ centre) - length / 2 + found.share.log()
    temperature = _temperature(precise, prior)
    return linear(precise / temperature, bias / temperature)


def _temperature(precise: Tensor, prior: PriorStatistics | None) -> float:
    """Temperature that calibrates scores; predictions stay the same.

    Coordinates of one record are far from independent and normal, so scores are overconfident: up to the
    prior's `temperature`, a public constant, times the spread of scores under the prior's covariance over
    that under an isotropic one.
    """
    k = precise.shape[1]
    if prior is None or len(prior.mean) < k:
        return 1.0
    temperature = max(1.0, min(prior.temperature, k / 10))
    public = prior.within[:k, :k].to(precise)
    contrast = precise - precise.mean(0)
    expected = ((contrast @ public) * contrast).sum()
    isotropic = public.diagonal().mean().clamp_min(1e-12)
    ratio = expected / (isotropic * contrast.square().sum()).clamp_min(1e-300)
    return temperature * float(ratio.clamp(1.0, 50.0))


@dataclass(frozen=True)
class GaussianClassModel:
    """A normal distribution for each class, around its released mean.

    Attributes
    ----------
    share : (M,) probability of each class.
    mean : (M, k).
    root : (k, k) matrix square root of the common covariance.
    """

    share: Tensor
    mean: Tensor
    root: Tensor

    def sample(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw (n, k) float32 vectors and (n,) class codes."""
        codes = torch.multinomial(self.share, n, replacement=True, generator=generator)
        white = torch.randn(n, self.mean.shape[1], generator=generator, dtype=self.mean.dtype)
        return (self.mean[codes] + white @ self.root.T).float(), codes


def fit_class_model(moments: Moments, prior: PriorStatistics | None) -> GaussianClassModel:
    """Fit class distributions to released moments.

    The covariance is that of records within classes, the public prior's, scaled, or isotropic without one;
    and that of the noise on the mean, because a new record lies around the *noisy* mean.
    """
    found = ClassMeans.of(moments)
    k = found.mean.shape[1]
    public = torch.eye(k, dtype=found.mean.dtype)
    if prior is not None and len(prior.mean) >= k:
        public = prior.within[:k, :k].to(found.mean)
        public = public / public.diagonal().mean().clamp_min(1e-12)
    covariance, noise = found.within * public, found.noise.mean(0)
    covariance = covariance + torch.diag(noise + noise.square() / (2 * covariance.diagonal()))
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    return GaussianClassModel(found.share, found.mean, vectors * values.clamp_min(0).sqrt())
