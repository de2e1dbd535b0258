"""The objective from sums is the objective from records, and both ways to its minimum agree."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.estimation.moments import Moments
from adlm.estimation.polynomial_moments import noise_ridge, objective

M, K, N = 4, 6, 300


def records() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    z = torch.nn.functional.normalize(torch.randn(N, K, generator=generator, dtype=torch.float64), dim=1)
    return z, torch.randint(0, M, (N,), generator=generator)


def moments_of(z: Tensor, y: Tensor, noise: float = 0.0) -> Moments:
    member = torch.nn.functional.one_hot(y, M).double()
    zero = torch.full((K,), noise, dtype=torch.float64)
    sd = torch.full((K, K), noise, dtype=torch.float64)
    return Moments(member.T @ z, member.sum(0), zero, noise, len(z), z.T @ z, sd)


def test_the_objective_is_the_sum_over_records() -> None:
    z, y = records()
    weight = torch.randn(M, K, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    slow = 0.0
    for record, label in zip(z, y, strict=True):
        for output in range(M):
            score = float(weight[output] @ record)
            slow += math.log(2) + (0.5 - float(label == output)) * score + score**2 / 8  # Eq. 25
    assert float(objective(moments_of(z, y), ridge=0)(weight)) == pytest.approx(slow / N)


def test_closed_form_and_sgd_agree() -> None:
    z, y = records()
    built = objective(moments_of(z, y), ridge=0.01)
    closed, descended = built.minimiser(), built.descend(2000)
    assert torch.allclose(closed, descended, atol=1e-6)
    nudged = closed + 0.01 * torch.randn(
        M, K, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    assert built(closed) < built(nudged)


def test_noisy_second_moments_are_made_positive_and_the_ridge_follows_the_noise() -> None:
    z, y = records()
    moments = moments_of(z, y, noise=40.0)
    error = 40 * torch.randn(K, K, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert moments.second is not None
    noisy = Moments(
        moments.sums,
        moments.counts,
        moments.sd_sums,
        0.0,
        N,
        moments.second + error + error.T,
        moments.sd_second,
    )
    values = torch.linalg.eigvalsh(objective(noisy).curvature)
    assert values[0] >= noise_ridge(noisy) * 0.999
    assert noise_ridge(noisy) == pytest.approx(2 * 40 * math.sqrt(K) / N)


def test_without_second_moments_there_is_no_minimum() -> None:
    z, y = records()
    full = moments_of(z, y)
    with pytest.raises(UserError, match="needs second moments"):
        objective(Moments(full.sums, full.counts, full.sd_sums, 0.0, N))
