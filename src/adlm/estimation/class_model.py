"""Draw labelled feature vectors from released moments, so that any network can be trained on them.

A class is a normal distribution around its released mean. Its covariance is that of records within classes,
from the released second moments if any, plus that of the noise on the mean, because a new record lies around
the *noisy* mean. Everything here reads the release alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.estimation.moments import Moments
from adlm.estimation.shrinkage import shrunk_counts, within_classes
from adlm.public.features import PriorStatistics


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
