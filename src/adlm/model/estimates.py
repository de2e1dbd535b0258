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
from adlm.runtime.arithmetic import symmetric

# ---- Released moments: class sums, counts and second moments, with the scale of their noise.
#
# A moment release stores integers and the size of a grid step per coordinate; `Moments` holds the same in
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
    second : (q, q) sum of z z' over all records, in the coordinates `basis`; None when not released.
    sd_second : (q, q) standard deviation of the noise on each entry.
    basis : (k, q) orthonormal columns: second moments are those of z @ basis. None means the first q
        coordinates.
    centres : (M, k) what was subtracted from z for the second moments, by class; None: nothing.
    cross : (k - q, p) sum of products of z @ outside with the first p coordinates of z @ basis, or None.
    sd_cross : standard deviation of the noise on each of its entries.
    outside : (k, k - q) orthonormal columns, orthogonal to the basis.
    """

    sums: Tensor
    counts: Tensor
    sd_sums: Tensor
    sd_counts: float
    n: float
    second: Tensor | None = None
    sd_second: Tensor | None = None
    basis: Tensor | None = None
    centres: Tensor | None = None
    cross: Tensor | None = None
    sd_cross: float = 0.0
    outside: Tensor | None = None

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Moments:
        """Turn released integers into real numbers: integer times grid step."""
        step = tensors["step"].double()
        table = tensors["class_sums"].double()
        counts = table[:, 0] * step[0]
        sd = float(settings["sd_sums"])
        n = float(settings["n"]) if settings["n"] is not None else float(counts.sum())
        second = sd_second = None
        if "second" in tensors:
            fine = tensors["step_second"].double()
            grid = torch.outer(fine, fine)
            second = torch.from_numpy(symmetric(tensors["second"].numpy())) * grid
            sd_second = torch.full_like(grid, float(settings["sd_second"]))
            sd_second.fill_diagonal_(float(settings["sd_second_diagonal"]))
            sd_second = sd_second * grid
        return cls(
            sums=table[:, 1:] * step[1:],
            counts=counts,
            sd_sums=sd * step[1:],
            sd_counts=sd * float(step[0]),
            n=n,
            second=second,
            sd_second=sd_second,
            basis=tensors["basis"].double() if "basis" in tensors else None,
            centres=tensors["centres"].double() if "centres" in tensors else None,
            cross=tensors["cross"].double() * tensors["step_cross"] if "cross" in tensors else None,
            sd_cross=float(settings["sd_cross"] * tensors["step_cross"]) if "cross" in tensors else 0.0,
            outside=tensors["outside"].double() if "cross" in tensors else None,
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


# ---- Shrinkage estimates from released moments: counts, means, covariance.
#
# Post-processing of a release, used by the closed form and the labelled draws.

ISOTROPIC = 1.0  # least variance around the means, relative to isotropic records
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


def second_floor(moments: Moments, q: int) -> float:
    """Smallest eigenvalue that noisy second moments resolve: half the edge of their noise's spectrum."""
    assert moments.sd_second is not None
    off = moments.sd_second[~torch.eye(q, dtype=torch.bool)] if q > 1 else moments.sd_second.flatten()
    return max(float(off.square().mean().sqrt()) / moments.n * math.sqrt(q), 1e-9)


def class_means(moments: Moments) -> Tensor:
    """Class means (M, k): sums over shrunk counts."""
    return moments.sums / shrunk_counts(moments)[:, None]


@dataclass(frozen=True)
class WithinClassCovariance:
    """Covariance of records within classes, less the noise's.

    Attributes
    ----------
    isotropic : variance along a coordinate outside the basis.
    basis : (k, q) orthonormal columns in which the covariance is known.
    inside : (q, q) covariance in them, positive definite; None when no second moments were released.
    """

    isotropic: Tensor
    basis: Tensor
    inside: Tensor | None


def within_classes(moments: Moments, share: Tensor, means: Tensor, noise: Tensor) -> WithinClassCovariance:
    """Estimate the covariance of records within classes.

    A record has norm at most 1, so its variance is at most 1 less the squared norm of its mean.

    Parameters
    ----------
    moments : as released.
    share : (M,) class shares.
    means : (M, k) class means.
    noise : (M, k) variance of the noise on a mean.
    """
    k = means.shape[1]
    left = 1 - (share[:, None] * (means.square() - noise)).sum().clamp(0.0, 0.95)
    if moments.second is None:
        return WithinClassCovariance(left / k, torch.zeros(k, 0, dtype=means.dtype), None)
    q = len(moments.second)
    basis = torch.eye(k, q, dtype=means.dtype) if moments.basis is None else moments.basis
    lifted = basis.T @ ((share[:, None] * noise).sum(0)[:, None] * basis)  # added by noise on the means
    if moments.centres is None:
        scattered = means @ basis
        within = moments.second / moments.n - ((scattered.T * share) @ scattered - lifted)
    else:
        within = moments.second / moments.n - lifted
    values, vectors = torch.linalg.eigh((within + within.T) / 2)
    least = second_floor(moments, q)
    if moments.basis is not None and q < k:
        # In the span of the means the variance is at least that outside; less is an effect of clipping.
        least = max(least, ISOTROPIC * min(float(left) / k, float(values.median())))
    inside = (vectors * values.clamp_min(least)) @ vectors.T
    if moments.cross is None:
        rest = (left - within.trace().clamp_min(0)).clamp_min(0.02 * left)
        return WithinClassCovariance(rest / max(k - q, 1), basis, inside)
    return _extended(moments, basis, inside, left)


def _extended(moments: Moments, basis: Tensor, inside: Tensor, left: Tensor) -> WithinClassCovariance:
    """Extend a covariance to directions outside, after Nystroem.

    With A the covariance along the p directions between means and K = U S V' that of the outside with them,
    less its noise, the outside has covariance K A^-1 K' plus an isotropic rest.
    """
    assert moments.cross is not None
    assert moments.outside is not None
    k, q = basis.shape
    left_vectors, sizes, right = signal(moments.cross / moments.n, moments.sd_cross / moments.n)
    common = sizes[:, None] * right  # (r, p)
    p = common.shape[1]
    pull = torch.linalg.solve(inside[:p, :p], common.T).T
    tied = pull @ common.T
    balanced = ((left - inside.trace() - tied.trace()) / (k - q)).clamp_min(0.02 * left / k)
    off_diagonal = pull @ inside[:p]
    outer = tied + balanced * torch.eye(len(sizes), dtype=tied.dtype)
    extended = torch.cat([torch.cat([inside, off_diagonal.T], 1), torch.cat([off_diagonal, outer], 1)])
    return WithinClassCovariance(balanced, torch.cat([basis, moments.outside @ left_vectors], 1), extended)


def signal(noisy: Tensor, sd: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular vectors and shrunk values of a matrix that exceed its noise.

    The shrinkage has the least squared error for noise of equal variance (Gavish and Donoho 2017).
    """
    left, sizes, right = torch.linalg.svd(noisy, full_matrices=False)
    rows, columns = max(noisy.shape), min(noisy.shape)
    unit = max(sd, 1e-9 * float(sizes.max()), 1e-300) * math.sqrt(rows)
    y, ratio = (sizes / unit).clamp_min(1e-12), columns / rows
    shrunk = unit * ((y.square() - ratio - 1).square() - 4 * ratio).clamp_min(0).sqrt() / y
    above_noise = y > 1 + math.sqrt(ratio)
    return left[:, above_noise], shrunk[above_noise], right[above_noise]


# ---- Linear discriminants from released moments: the model in closed form.
#
# Everything here is post-processing of a release. Class means are sums divided by shrunk counts. Where
# second moments were released, the covariance within classes comes from them, less the noise's variance.
# Elsewhere it is assumed isotropic, as public features are designed to be.


@dataclass(frozen=True)
class LinearHead:
    """Class scores that are linear in the features.

    Attributes
    ----------
    weight : (M, k).
    bias : (M,).
    """

    weight: Tensor
    bias: Tensor

    def logits(self, z: Tensor) -> Tensor:
        """Scores of features (n, k or more): (n, M)."""
        k = self.weight.shape[1]
        return z[:, :k].to(self.weight.dtype) @ self.weight.T + self.bias

    def module(self, width: int | None = None) -> nn.Linear:
        """Return the same scores as a layer, in single precision; further features get zero weight."""
        layer = nn.Linear(width or self.weight.shape[1], len(self.bias))
        with torch.no_grad():
            layer.weight.zero_()
            layer.weight[:, : self.weight.shape[1]] = self.weight.float()
            layer.bias.copy_(self.bias.float())
        return layer


def fit_discriminant(moments: Moments, prior: PriorStatistics | None = None) -> LinearHead:
    """Fit linear discriminants to released moments; a public prior of the features helps to calibrate.

    With W the covariance within classes, N that of the noise on a class mean m_c, and A = W + N + N^2 / 2W,
    scores are z'A^-1 m_c - (m_c'A^-1 m_c - tr A^-1 N_c) / 2 + log share_c. The trace removes the bias of
    noise on the length of m_c. A new record lies around the *noisy* mean with covariance W + N; the last
    term of A pays for the noise on that length, so that coordinates dominated by noise are left out.
    """
    if moments.n <= 0:
        raise UserError(f"a model needs records: the release has n = {moments.n:g}; raise epsilon")
    counts = shrunk_counts(moments)
    means = moments.sums / counts[:, None]
    centre = (moments.sums.sum(0) / moments.n)[None]
    between = means - centre
    noise = (moments.sd_sums[None] / counts[:, None]).square()  # (M, k) variance of the noise on a mean
    share = counts / counts.sum()
    spread = within_classes(moments, share, means, noise)
    pooled = noise.mean(0)
    outside = _with_noise(spread.isotropic, pooled)
    precise = between / outside
    traces = (noise / outside).sum(1)
    if spread.inside is not None:
        # Inside the basis the covariance is known; outside it is isotropic.
        values, vectors = torch.linalg.eigh(spread.inside)
        inner = spread.basis @ vectors  # (k, q)
        values = _with_noise(values.clamp_min(1e-12), pooled @ inner.square())
        coordinates = between @ inner
        rest = between - coordinates @ inner.T
        rest = rest / outside
        rest = rest - (rest @ inner) @ inner.T
        precise = rest + (coordinates / values) @ inner.T
        traces = (noise @ inner.square() / values).sum(1)
        traces = traces + (noise / outside * (1 - inner.square().sum(1)).clamp_min(0)).sum(1)
    length = (between * precise).sum(1) - traces
    bias = -(precise @ centre[0]) - length / 2
    bias = bias + share.log()
    temperature = _temperature(precise, prior, spread)
    return LinearHead(precise / temperature, bias / temperature)


def _with_noise(variance: Tensor, noise: Tensor) -> Tensor:
    """Effective variance of a coordinate along which class means carry noise of the given variance."""
    return variance + noise + noise.square() / (2 * variance)


def _temperature(precise: Tensor, prior: PriorStatistics | None, spread: WithinClassCovariance) -> float:
    """Temperature that calibrates scores; predictions stay the same.

    Coordinates of one record are far from independent and normal, so scores are overconfident: up to the
    prior's `temperature`, a public constant. Without second moments the spread of scores is that under the
    prior's covariance rather than an isotropic one. With all second moments, their noise makes the spread
    too wide at small budgets, and the prior's may not suit the data: the geometric mean of both is taken.
    """
    k = precise.shape[1]
    if prior is None or len(prior.mean) < k:
        return 1.0
    temperature = max(1.0, min(prior.temperature, k / 10))
    public = prior.within[:k, :k].to(precise)
    contrast = precise - precise.mean(0)
    expected = ((contrast @ public) * contrast).sum()
    if spread.inside is None:
        isotropic = public.diagonal().mean().clamp_min(1e-12)
        return temperature * float(
            (expected / (isotropic * contrast.square().sum()).clamp_min(1e-300)).clamp(1.0, 50.0)
        )
    if spread.basis.shape[1] < k:
        return temperature
    along = contrast @ spread.basis
    within = ((along @ spread.inside) * along).sum().clamp_min(1e-300)
    return temperature * float((expected / within).sqrt().clamp(0.2, 5.0))


# ---- Draw labelled feature vectors from released moments, so that any network can be trained on them.
#
# A class is a normal distribution around its released mean. Its covariance is that of records within
# classes, from the released second moments if any, plus that of the noise on the mean, because a new record
# lies around the *noisy* mean. Everything here reads the release alone.


@dataclass(frozen=True)
class GaussianClassModel:
    """A normal distribution for each class.

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
    """Fit class distributions to released moments; a public prior gives what was not released."""
    counts = shrunk_counts(moments)
    share = counts / counts.sum()
    mean = moments.sums / counts[:, None]
    covariance = spread_within(moments, prior)
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    return GaussianClassModel(share, mean, vectors * values.clamp_min(0).sqrt())


def spread_within(moments: Moments, prior: PriorStatistics | None) -> Tensor:
    """Return the covariance (k, k) of a new record around its class's released mean, noise on it included.

    Without second moments it is the public prior's, or isotropic without a prior.
    """
    counts = shrunk_counts(moments)
    means = moments.sums / counts[:, None]
    noise = (moments.sd_sums[None] / counts[:, None]).square()
    spread = within_classes(moments, counts / counts.sum(), means, noise)
    k = means.shape[1]
    public = torch.eye(k, dtype=means.dtype)
    if prior is not None and len(prior.mean) >= k:
        public = prior.within[:k, :k].to(means)
        public = public / public.diagonal().mean().clamp_min(1e-12)
    rest = torch.eye(k, dtype=means.dtype) - spread.basis @ spread.basis.T
    covariance = spread.isotropic * (rest @ public @ rest)
    if spread.inside is not None:
        covariance = covariance + spread.basis @ spread.inside @ spread.basis.T
    pooled = noise.mean(0)
    return covariance + torch.diag(pooled + pooled.square() / (2 * covariance.diagonal()))
