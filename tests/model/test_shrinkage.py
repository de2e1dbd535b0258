"""What released moments say of the spread within classes: around means, in a basis, and across it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from adlm.model.estimates import Moments, fit_class_model, within_classes
from adlm.model.estimates import fit_discriminant as fit

M, K, Q = 4, 20, 6


def records(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Classes in the unit ball whose spread is even but for three long directions."""
    make = torch.Generator().manual_seed(7)
    centres = 0.06 * torch.randn(M, K, generator=make, dtype=torch.float64)
    long = torch.linalg.qr(torch.randn(K, 3, generator=make, dtype=torch.float64))[0]
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, M, (n,), generator=generator)
    z = centres[y] + 0.09 * torch.randn(n, K, generator=generator, dtype=torch.float64)
    return z + 0.4 * torch.randn(n, 3, generator=generator, dtype=torch.float64) @ long.T, y


def staged(z: Tensor, y: Tensor, *, q: int = Q, cross: bool = False, sd: float = 0.0) -> Moments:
    """Moments as the second stage has them: around the means, in their span, with noise of deviation sd."""
    generator = torch.Generator().manual_seed(1)
    member = torch.nn.functional.one_hot(y, M).double()
    sums, counts = member.T @ z, member.sum(0)
    means = sums / counts[:, None]
    directions = torch.linalg.svd(means - means.mean(0), full_matrices=False)[2][: M - 1].T
    whole = torch.linalg.qr(torch.hstack([directions, torch.eye(K, dtype=torch.float64)]))[0]
    basis, outside = whole[:, :q], whole[:, q:]
    apart = z - means[y]
    scatter = apart.T @ apart

    def noise(*shape: int) -> Tensor:
        return sd * torch.randn(*shape, generator=generator, dtype=torch.float64)

    error = noise(q, q)
    return Moments(
        sums, counts, torch.zeros(K, dtype=torch.float64), 0.0, float(len(z)),
        second=basis.T @ scatter @ basis + (error + error.T) / 2**0.5,
        sd_second=torch.full((q, q), sd, dtype=torch.float64),
        basis=basis, centres=means,
        cross=outside.T @ scatter @ basis[:, : M - 1] + noise(K - q, M - 1) if cross else None,
        sd_cross=sd, outside=outside if cross else None,
    )  # fmt: skip


def spread(moments: Moments) -> Tensor:
    """Return the (k, k) covariance that the estimate amounts to."""
    share = moments.counts / moments.n
    means = moments.sums / moments.counts[:, None]
    found = within_classes(moments, share, means, torch.zeros(M, K, dtype=torch.float64))
    rest = torch.eye(K, dtype=torch.float64) - found.basis @ found.basis.T
    assert found.inside is not None
    return found.isotropic * rest + found.basis @ found.inside @ found.basis.T


def test_the_basis_holds_the_true_covariance() -> None:
    z, y = records(20_000, 0)
    moments = staged(z, y)
    assert moments.basis is not None
    apart = z - (moments.sums / moments.counts[:, None])[y]
    true = apart.T @ apart / len(z)
    torch.testing.assert_close(
        moments.basis.T @ spread(moments) @ moments.basis,
        moments.basis.T @ true @ moments.basis,
        atol=3e-4,
        rtol=0.02,
    )


def test_products_across_extend_it_as_a_slow_twin_does() -> None:
    """Nystroem, a pair of outside directions at a time: K A^-1 K off the diagonal, the products beside."""
    z, y = records(20_000, 0)
    moments = staged(z, y, cross=True)
    assert moments.basis is not None
    assert moments.outside is not None
    assert moments.cross is not None
    apart = (z - (moments.sums / moments.counts[:, None])[y]).numpy()
    whole = spread(moments).numpy()
    along, outside = moments.basis[:, : M - 1].numpy(), moments.outside.numpy()
    np.testing.assert_allclose(outside.T @ whole @ along, moments.cross / len(z), atol=2e-5)
    inverse = np.linalg.inv(along.T @ whole @ along)
    products = outside.T @ (apart.T @ apart / len(z)) @ along
    for i, j in ((0, 1), (3, 9), (12, 2)):
        expected = products[i] @ inverse @ products[j]
        assert outside[:, i] @ whole @ outside[:, j] == pytest.approx(expected, abs=2e-4)
    assert np.linalg.eigvalsh(whole).min() > 0


def test_products_across_are_worth_most_of_a_whole_covariance() -> None:
    """Accuracy on fresh records: the basis alone, with products across, and scikit-learn with everything."""
    (z, y), (fresh, truth) = records(20_000, 0), records(5_000, 1)

    def accuracy(moments: Moments) -> float:
        return float((fit(moments).logits(fresh).argmax(1) == truth).double().mean())

    alone, across = accuracy(staged(z, y)), accuracy(staged(z, y, cross=True))
    best = LinearDiscriminantAnalysis().fit(z.numpy(), y.numpy()).score(fresh.numpy(), truth.numpy())
    assert best > alone + 0.03
    assert across > best - 0.3 * (best - alone)


def test_products_drowned_in_noise_do_no_harm() -> None:
    (z, y), (fresh, truth) = records(20_000, 0), records(5_000, 1)

    def accuracy(moments: Moments) -> float:
        return float((fit(moments).logits(fresh).argmax(1) == truth).double().mean())

    assert accuracy(staged(z, y, cross=True, sd=1e4)) > accuracy(staged(z, y, sd=1e4)) - 0.02


def test_drawn_records_vary_as_the_estimate_says() -> None:
    z, y = records(20_000, 0)
    moments = staged(z, y, cross=True)
    drawn, codes = fit_class_model(moments, None).sample(200_000, torch.Generator().manual_seed(0))
    apart = drawn.double() - (moments.sums / moments.counts[:, None])[codes]
    torch.testing.assert_close(apart.T @ apart / len(apart), spread(moments), atol=2e-3, rtol=0.05)


def test_noise_that_says_nobody_is_there_leaves_shares_that_can_be_drawn_from() -> None:
    """Under add-remove the number of records is the sum of noisy counts, and that can be negative."""
    z, y = records(50, 0)
    nobody = replace(staged(z, y), n=-40.0, counts=torch.tensor([-60.0, 30.0, -20.0, 10.0]).double())
    nobody = replace(nobody, sd_counts=40.0, second=None, sd_second=None, basis=None, centres=None)
    drawn, codes = fit_class_model(nobody, None).sample(100, torch.Generator().manual_seed(0))
    assert drawn.isfinite().all()
    assert len(set(codes.tolist())) > 1
