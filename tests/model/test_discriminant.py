"""Linear discriminants from moments: right without noise, and hard to ruin with it."""

from __future__ import annotations

import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from adlm.errors import UserError
from adlm.features.base import PriorStatistics, unit_norm
from adlm.model.estimates import LinearHead, Moments, shrunk_counts
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


def moments(
    z: Tensor, y: Tensor, sd: float | Tensor = 0.0, q: int = 0, sd2: float = 0.0, seed: int = 1
) -> Moments:
    """Moments of records with Gaussian noise."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    member = torch.nn.functional.one_hot(y, M).double()
    spread = torch.as_tensor(sd, dtype=torch.float64).expand(z.shape[1])
    second = None
    if q:
        error = torch.triu(normal(q, q))
        second = z[:, :q].T @ z[:, :q] + sd2 * (error + error.triu(1).T)
    sd_counts = float(spread.mean())
    return Moments(
        sums=member.T @ z + spread * normal(M, z.shape[1]),
        counts=member.sum(0) + sd_counts * normal(M),
        sd_sums=spread,
        sd_counts=sd_counts,
        n=float(len(z)),
        second=second,
        sd_second=torch.full((q, q), sd2, dtype=torch.float64) if q else None,
    )


def accuracy(head: LinearHead, z: Tensor, y: Tensor) -> float:
    return float((head.logits(z).argmax(1) == y).double().mean())


def test_without_noise_it_is_linear_discriminant_analysis() -> None:
    z, y = records(4000)
    head = fit(moments(z, y, q=K))
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(z.numpy(), y.numpy())
    expected = torch.from_numpy(reference.predict_log_proba(z.numpy()))
    torch.testing.assert_close(torch.log_softmax(head.logits(z), 1), expected, atol=0.02, rtol=0.02)


def test_unequal_classes_and_their_shares() -> None:
    shares = (0.7, 0.1, 0.1, 0.1)
    z, y = records(20000, shares=shares)
    head = fit(moments(z, y, sd=1.0, q=K, sd2=0.1))
    held, truth = records(5000, seed=5, shares=shares)
    best = LinearDiscriminantAnalysis().fit(z.numpy(), y.numpy()).score(held.numpy(), truth.numpy())
    assert accuracy(head, held, truth) > best - 0.01
    torch.testing.assert_close(
        head.logits(held).softmax(1).mean(0), torch.tensor(shares).double(), atol=0.02, rtol=0.1
    )


def test_probabilities_are_calibrated() -> None:
    z, y = records(20000)
    held, truth = records(5000, seed=6)
    sure = fit(moments(z, y, sd=2.0, q=K, sd2=0.2)).logits(held).softmax(1)
    right = (sure.argmax(1) == truth).double()
    assert abs(float(sure.amax(1).mean() - right.mean())) < 0.02


def test_second_moments_help_when_clean_and_do_not_ruin_when_noisy() -> None:
    z, y = records(20000)
    held, truth = records(5000, seed=7)
    plain = accuracy(fit(moments(z, y)), held, truth)
    assert accuracy(fit(moments(z, y, q=K)), held, truth) > plain + 0.02
    assert accuracy(fit(moments(z, y, q=K, sd2=2000.0)), held, truth) > plain - 0.05


def test_second_moments_of_some_coordinates_or_in_a_basis() -> None:
    z, y = records(20000)
    held, truth = records(5000, seed=8)
    plain, some, all_of_them = (accuracy(fit(moments(z, y, q=q)), held, truth) for q in (0, 6, K))
    assert plain - 0.01 < some < all_of_them + 0.01
    given = moments(z, y, q=K)
    turn, _ = torch.linalg.qr(
        torch.randn(K, K, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    )
    assert given.second is not None
    turned = Moments(
        given.sums, given.counts, given.sd_sums, given.sd_counts, given.n, turn.T @ given.second @ turn,
        given.sd_second, turn,
    )  # fmt: skip
    torch.testing.assert_close(fit(turned).logits(held), fit(given).logits(held), atol=1e-6, rtol=1e-6)


def test_coordinates_drowned_in_noise_are_left_out() -> None:
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
    assert (cooled.logits(z).argmax(1) == plain.logits(z).argmax(1)).double().mean() > 0.99


def test_a_prior_warms_scores_that_noisy_second_moments_cooled() -> None:
    """Noise on the covariance makes a model less sure than it is right; what is public tells by how much."""
    z, y = records(20000)
    held, truth = records(5000, seed=6)
    within = torch.cov((z - torch.stack([z[y == c].mean(0) for c in range(M)])[y]).T).float()
    prior = PriorStatistics(torch.ones(K), torch.ones(K), within, torch.zeros(K), temperature=1.0)
    given = moments(z, y, sd=2.0, q=K, sd2=100.0)

    def gap(head: LinearHead) -> float:
        sure = head.logits(held).softmax(1)
        return float((sure.argmax(1) == truth).double().mean() - sure.amax(1).mean())

    assert gap(fit(given)) > 0.05
    assert abs(gap(fit(given, prior))) < 0.7 * gap(fit(given))
    clean = moments(z, y, sd=2.0, q=K, sd2=0.2)
    torch.testing.assert_close(fit(clean, prior).weight, fit(clean).weight, rtol=0.05, atol=0)


def test_nothing_released_is_told() -> None:
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
