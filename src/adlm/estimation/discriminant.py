"""Linear discriminants from released moments: the model in closed form.

Everything here is post-processing of a release. Class means are sums divided by shrunk counts. Where second
moments were released, the covariance within classes comes from them, less the noise's variance. Elsewhere it
is assumed isotropic, as public features are designed to be.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.estimation.moments import Moments
from adlm.estimation.shrinkage import WithinClassCovariance, shrunk_counts, within_classes
from adlm.public.features.base import PriorStatistics


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


def fit(moments: Moments, prior: PriorStatistics | None = None) -> LinearHead:
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
