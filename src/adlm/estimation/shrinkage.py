"""Shrinkage estimates from released moments: counts, means, covariance.

Post-processing of a release, used by the closed form and the labelled draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.estimation.moments import Moments

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
