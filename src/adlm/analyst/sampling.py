"""Draw labelled feature vectors from released moments, so that any network can be trained on them.

A class is a normal law around its released mean, with one covariance for all: from the released second
moments where there are any, and the public prior's elsewhere. Everything here reads the release alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.moments import Moments
from adlm.public.features import PriorStatistics


@dataclass(frozen=True)
class ClassLaws:
    """A normal law a class.

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


def class_laws(moments: Moments, prior: PriorStatistics | None) -> ClassLaws:
    """Fit class laws to released moments: shares, shrunk means, a covariance without its noise."""
    M = len(moments.sums)
    floor = moments.n / M / 20
    counts = moments.counts.clamp_min(floor)
    share = counts / counts.sum()
    mean = moments.sums / (share * moments.n)[:, None]
    mean = _shrink(mean, moments.sd_sums / (moments.n / M))
    within = _within(moments, share, mean, prior)
    values, vectors = torch.linalg.eigh((within + within.T) / 2)
    least = float(values.clamp_min(0).mean()) * 1e-3
    return ClassLaws(share, mean, vectors * values.clamp_min(least).sqrt())


def _shrink(mean: Tensor, noise: Tensor) -> Tensor:
    """Pull class means towards their centre, coordinate by coordinate, by signal / (signal + noise)."""
    centre = mean.mean(0)
    spread = (mean - centre).square().sum(0) / max(len(mean) - 1, 1)
    signal = (spread - noise.square()).clamp_min(0)
    return centre + (mean - centre) * (signal / (signal + noise.square()).clamp_min(1e-300))


def _within(moments: Moments, share: Tensor, mean: Tensor, prior: PriorStatistics | None) -> Tensor:
    k = mean.shape[1]
    within: Tensor
    room = (1 - (share[:, None] * mean.square()).sum()).clamp_min(0.05)  # records have norm at most 1
    if prior is not None:
        within = prior.within[:k, :k].double().clone()
        within *= room / within.trace().clamp_min(1e-12)
    else:
        within = torch.eye(k, dtype=mean.dtype) * (room / k)
    if moments.second is None:
        return within
    basis = moments.basis if moments.basis is not None else torch.eye(k, len(moments.second)).to(mean)
    inside = mean @ basis
    covariance = moments.second / moments.n - (inside.T * share) @ inside
    values, vectors = torch.linalg.eigh(covariance)
    assert moments.sd_second is not None
    noise = float(moments.sd_second.median()) / moments.n * len(covariance) ** 0.5
    public = (vectors.T @ (basis.T @ within @ basis) @ vectors).diagonal()
    values = torch.where(values > noise, values, torch.minimum(public, torch.full_like(public, noise)))
    rest = torch.eye(k, dtype=mean.dtype) - basis @ basis.T
    known: Tensor = basis @ ((vectors * values) @ vectors.T) @ basis.T
    return known + rest @ within @ rest
