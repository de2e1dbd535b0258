"""Linear discriminants from moments: right without noise, and hard to ruin with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.features.base import PriorStatistics, unit_norm
from adlm.model.estimates import Moments, fit_class_model, shrunk_counts
from adlm.model.estimates import fit_discriminant as fit

M, K = 4, 12


def records(n: int, seed: int = 0, shares: tuple[float, ...] = (0.25,) * M) -> tuple[Tensor, Tensor]:
    """Classes with one skewed covariance, inside the unit ball: (n, K) and (n,)."""
    make = torch.Generator().manual_seed(99)
    centres = 0.05 * torch.randn(M, K, generator=make, dtype=torch.float64)
    skew = 0.03 * torch.randn(K, K, generator=make, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor(shares), n, True, generator=generator)
    z = centres[y] + torch.randn(n, K, generator=generator, dtype=torch.float64) @ skew
    return z, y


def moments(z: Tensor, y: Tensor, sd: float | Tensor = 0.0, seed: int = 1) -> Moments:
    """Moments of records with Gaussian noise."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    member = torch.nn.functional.one_hot(y, M).double()
    spread = torch.as_tensor(sd, dtype=torch.float64).expand(z.shape[1])
    sd_counts = float(spread.mean())
    return Moments(
        sums=member.T @ z + spread * normal(M, z.shape[1]),
        counts=member.sum(0) + sd_counts * normal(M),
        sd_sums=spread,
        sd_counts=sd_counts,
        n=float(len(z)),
    )


def accuracy(head: nn.Linear, z: Tensor, y: Tensor) -> float:
    return float((head(z).argmax(1) == y).double().mean())


def test_without_noise_it_is_linear_discriminant_analysis_of_isotropic_records() -> None:
    """Whitened records on the unit sphere: the covariance within classes is what the estimate assumes."""
    z, y = records(8000)
    means = torch.stack([z[y == c].mean(0) for c in range(M)])
    apart = z - means[y]
    white = torch.linalg.cholesky(torch.linalg.inv(apart.T @ apart / len(z)))
    z = (z @ white) / (z @ white).norm(dim=1).max()
    within = (z - torch.stack([z[y == c].mean(0) for c in range(M)])[y]).square().sum(1).mean()
    given = moments(z, y)
    head = fit(given)
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(z.numpy(), y.numpy())
    assert accuracy(head, z, y) > reference.score(z.numpy(), y.numpy()) - 0.01
    expected = torch.from_numpy(reference.decision_function(z.numpy()))
    assumed = 1 - (given.sums / given.counts[:, None]).square().sum(1).mean()
    found = head(z) * (assumed / within)  # records are shorter than the sphere, which is public
    found, expected = found - found.mean(1, keepdim=True), expected - expected.mean(1, keepdim=True)
    assert float(torch.corrcoef(torch.stack([found.flatten(), expected.flatten()]))[0, 1]) > 0.99


def test_unequal_classes_and_their_shares() -> None:
    shares = (0.7, 0.1, 0.1, 0.1)
    z, y = records(20000, shares=shares)
    held, truth = records(5000, seed=5, shares=shares)
    even = accuracy(fit(moments(*records(20000), sd=1.0)), held, truth)
    head = fit(moments(z, y, sd=1.0))
    assert accuracy(head, held, truth) > max(even, 0.68)
    assert float(head(held).softmax(1).mean(0)[0]) > 0.6


def test_coordinates_that_noise_hides_are_left_out() -> None:
    z, y = records(20000)
    held, truth = records(5000, seed=9)
    sd = torch.full((K,), 5.0)
    sd[K // 2 :] = 1e5
    kept = accuracy(fit(moments(z[:, : K // 2], y, sd=5.0)), held[:, : K // 2], truth)
    drowned = [accuracy(fit(moments(z, y, sd=sd, seed=s)), held, truth) for s in range(5)]
    assert min(drowned) > kept - 0.03


def test_counts_are_pulled_to_even_only_when_noise_hides_them() -> None:
    z, y = records(8000, shares=(0.7, 0.1, 0.1, 0.1))
    clear = moments(z, y, sd=10.0)
    torch.testing.assert_close(shrunk_counts(clear), clear.counts, rtol=0.02, atol=20.0)
    hidden = shrunk_counts(moments(z, y, sd=1e5))
    assert (hidden - 2000).abs().max() < 400
    assert float(hidden.sum()) == pytest.approx(8000)


def test_a_prior_cools_scores_and_leaves_decisions() -> None:
    z = unit_norm(torch.randn(500, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    y = torch.arange(500) % M
    z[:, 0] += 0.3 * y
    z = unit_norm(z)
    within = torch.eye(K)
    within[0, 0] = 30.0
    prior = PriorStatistics(torch.ones(K), torch.ones(K), within, torch.zeros(K))
    given = moments(z, y)
    cooled, plain = fit(given, prior), fit(given)
    assert cooled.weight.abs().max() < plain.weight.abs().max() / 2
    assert (cooled(z).argmax(1) == plain(z).argmax(1)).double().mean() > 0.99


def test_a_release_of_no_records_is_refused() -> None:
    z, y = records(10)
    given = moments(z, y)
    empty = Moments(given.sums, given.counts, given.sd_sums, given.sd_counts, -3.0)
    with pytest.raises(UserError, match="n = -3"):
        fit(empty)


def test_noise_alone_never_makes_a_class_vanish() -> None:
    """Counts that noise made negative stay near n / M, or a mean divided by one would swamp all others."""
    counts = torch.tensor([143.0, 23, 652, -141, 146, 258, 152, -92, -138, -102], dtype=torch.float64)
    sums = torch.ones(10, 3, dtype=torch.float64)
    noisy = Moments(sums, counts, torch.full((3,), 14.0, dtype=torch.float64), 138.6, 1437.0)
    assert shrunk_counts(noisy).min() > 0.3 * 143.7


def test_noise_that_says_nobody_is_there_leaves_shares_that_can_be_drawn_from() -> None:
    """Under add-remove the number of records is the sum of noisy counts, and that can be negative."""
    nobody = replace(moments(*records(50)), n=-40.0, counts=torch.tensor([-60.0, 30.0, -20.0, 10.0]).double())
    nobody = replace(nobody, sd_counts=40.0)
    drawn, codes = fit_class_model(nobody, None).sample(100, torch.Generator().manual_seed(0))
    assert drawn.isfinite().all()
    assert len(set(codes.tolist())) > 1


def test_drawn_records_vary_as_the_estimate_says() -> None:
    z, y = records(20_000)
    given = moments(unit_norm(z), y)
    drawn, codes = fit_class_model(given, None).sample(100_000, torch.Generator().manual_seed(0))
    means = given.sums / given.counts[:, None]
    apart = (drawn.double() - means[codes]).square().sum(1).mean()
    left = 1 - (given.counts / given.n) @ means.square().sum(1)
    assert float(apart) == pytest.approx(float(left), rel=0.03)
