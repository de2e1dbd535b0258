"""What released moments say, once their noise is taken into account: counts, means, covariance.

Post-processing of a release. Both the closed form and the labelled draws are made of this.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adlm.moments import Moments

IMBALANCE = 0.1  # how much class sizes differ when counts are too noisy to tell, relative to n / M


def shrunk_counts(moments: Moments) -> Tensor:
    """Class counts, pulled towards n / M as far as their noise is larger than their differences: (M,).

    Differences count as real only where they clearly exceed what noise alone would show over M classes; a
    mild imbalance is always allowed for.
    """
    M, even = len(moments.counts), moments.n / len(moments.counts)
    seen = float((moments.counts - even).square().mean())
    variance = moments.sd_counts**2
    clear = variance * (1 + 2 * math.sqrt(2 / max(M - 1, 1)))
    signal = max(seen - clear, 0.0) + (IMBALANCE * even) ** 2
    counts = even + (signal / (signal + variance)) * (moments.counts - even)
    # A mean is a sum over its count: one that noise made tiny would blow the mean up, so the noisier counts
    # are, the nearer to n / M they are kept.
    counts = counts.clamp_min(even * min(max(0.02, math.sqrt(variance) / even), 0.5))
    return counts * (moments.n / counts.sum())


def second_floor(moments: Moments, q: int) -> float:
    """Smallest eigenvalue that noisy second moments can tell: half the edge of their noise's spectrum."""
    assert moments.sd_second is not None
    off = moments.sd_second[~torch.eye(q, dtype=torch.bool)] if q > 1 else moments.sd_second.flatten()
    return max(float(off.square().mean().sqrt()) / moments.n * math.sqrt(q), 1e-9)


def within_classes(
    moments: Moments, share: Tensor, means: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Energy within classes, variance along a coordinate outside, the basis (k, q), covariance in it or None.

    A record has norm at most 1, so what the means leave of that is what it varies by.
    """
    k = means.shape[1]
    energy = (share[:, None] * (means.square() - noise)).sum().clamp(0.0, 0.95)
    if moments.second is None:
        return 1 - energy, (1 - energy) / k, torch.zeros(k, 0, dtype=means.dtype), None
    q = len(moments.second)
    basis = torch.eye(k, q, dtype=means.dtype) if moments.basis is None else moments.basis
    inside = means @ basis
    lifted = (share[:, None] * noise).sum(0)  # what noise adds to the scatter of means, per coordinate
    scatter = (inside.T * share) @ inside - basis.T @ (lifted[:, None] * basis)
    within = moments.second / moments.n - scatter
    left = (1 - energy - within.trace().clamp_min(0)).clamp_min(0.02 * float(1 - energy))
    return 1 - energy, left / max(k - q, 1), basis, (within + within.T) / 2
