"""The polynomial loss against the losses it stands for, Lemma 5, and the cure for parabolas that open
downwards.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.errors import UserError
from adlm.paper.loss import (
    CROSS_ENTROPY,
    SQUARE,
    Polynomial,
    by_name,
    error_bound_paper,
    error_bound_remainder,
    error_bound_tight,
    mean_loss,
)


def exact_loss(polynomial: Polynomial, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss that the polynomial approximates: logistic cross-entropy (Eq. 24) or square error."""
    y = F.one_hot(labels, logits.shape[1]).to(logits)
    if polynomial is SQUARE:
        return (y - logits).square().sum(1).mean()
    return F.binary_cross_entropy_with_logits(logits, y, reduction="none").sum(1).mean()


def taylor(y: int, order: int) -> float:
    """Coefficient of the cross-entropy of one output by automatic differentiation at z = 0."""
    z = torch.zeros((), dtype=torch.double, requires_grad=True)
    value = torch.nn.functional.softplus(-z if y else z)
    for _ in range(order):
        (value,) = torch.autograd.grad(value, z, create_graph=True)
    return float(value.detach()) / math.factorial(order)


@pytest.mark.parametrize("y", [0, 1])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_coefficients_of_the_cross_entropy_are_its_derivatives_at_zero(y: int, order: int) -> None:
    phi = CROSS_ENTROPY.coefficients(torch.tensor([1 - y]), 2)
    assert float(phi[0, order, 0]) == pytest.approx(taylor(y, order), abs=1e-7)


def test_the_square_loss_is_its_polynomial_exactly() -> None:
    logits, labels = torch.randn(9, 4, dtype=torch.double), torch.arange(9) % 4
    assert float(mean_loss(logits, SQUARE.coefficients(labels, 4))) == pytest.approx(
        float(exact_loss(SQUARE, logits, labels))
    )


@pytest.mark.parametrize("radius", [0.3, 1.0, 2.5])
def test_the_tight_bound_holds_and_is_attained(radius: float) -> None:
    labels = torch.tensor([2])
    phi = CROSS_ENTROPY.coefficients(labels, 5).double()
    phi[:, 0] = math.log(2)
    gaps = [
        float(exact_loss(CROSS_ENTROPY, z.expand(1, 5), labels) - mean_loss(z.expand(1, 5), phi))
        for z in torch.linspace(-radius, radius, 101, dtype=torch.double)
    ]
    span = max(gaps) - min(gaps)
    assert span == pytest.approx(error_bound_tight(5, radius), rel=1e-6)
    assert span <= error_bound_remainder(5, radius)
    if radius <= 1:
        assert span <= error_bound_paper(5)


def test_the_paper_bound_is_its_formula_and_larger_than_the_others_on_its_range() -> None:
    e = math.e
    bracket = 4 * e / (1 + e) ** 3 + (e * (e - 1) + (e - 1) / e) / (1 + e) ** 3
    assert error_bound_paper(10) == pytest.approx(10 * bracket)
    assert error_bound_tight(10) < error_bound_remainder(10) < error_bound_paper(10)


def test_the_third_derivative_is_largest_at_one_over_six_root_three() -> None:
    s = torch.linspace(0, 1, 100_001, dtype=torch.double)
    assert float((s * (1 - s) * (1 - 2 * s)).max()) == pytest.approx(1 / (6 * math.sqrt(3)), rel=1e-8)


def test_delta_f_is_lemma_5_for_the_paper_settings() -> None:
    assert CROSS_ENTROPY.delta_f(10, 25) == Fraction(3625, 2)
    assert CROSS_ENTROPY.delta_f(3, 7) == 3 * (7 + Fraction(49, 4))


def test_delta_f_bounds_every_pair_of_records_with_hidden_states_in_the_unit_box() -> None:
    """The quantity of Appendix D, by brute force over labels and random corners of [0, 1]^h."""
    torch.manual_seed(0)
    classes, hidden, worst = 3, 4, 0.0
    for polynomial in (CROSS_ENTROPY, SQUARE):
        for _ in range(200):
            total = 0.0
            h = [torch.randint(0, 2, (hidden,)).double() for _ in range(2)]
            phi = [polynomial.coefficients(torch.randint(0, classes, (1,)), classes) for _ in range(2)]
            for l in range(classes):  # noqa: E741
                first = [p[0, 1, l] * s for p, s in zip(phi, h, strict=True)]
                second = [p[0, 2, l] * torch.outer(s, s) for p, s in zip(phi, h, strict=True)]
                total += float((first[0] - first[1]).abs().sum() + (second[0] - second[1]).abs().sum())
            worst = max(worst, total)
            assert total <= float(polynomial.delta_f(classes, hidden)) + 1e-9
    assert worst > 0


@pytest.mark.parametrize("polynomial", [CROSS_ENTROPY, SQUARE])
def test_a_label_moves_the_coefficients_by_what_the_charge_says(polynomial) -> None:  # type: ignore[no-untyped-def]
    a, b = (polynomial.coefficients(torch.tensor([label]), 4) for label in (0, 3))
    moved = (a - b).abs().sum((0, 2))
    assert float(moved.sum()) == polynomial.label_sensitivity((0, 1, 2))
    assert float(moved[1]) == polynomial.label_sensitivity((1,))
    assert polynomial.informative() == (1,)


def test_a_loss_that_noise_made_unbounded_below_is_bounded() -> None:
    torch.manual_seed(0)
    phi = torch.randn(50, 3, 4) * 2
    assert int((phi[:, 2] < 0).sum()) > 20
    downhill = torch.where(phi[:, 2] < 0, 1e6, 0.0)
    assert float(mean_loss(downhill, phi)) < -1e9
    safe = CROSS_ENTROPY.released(phi)
    assert float(mean_loss(downhill, safe)) > 0
    assert float(safe[:, 2].min()) == 0.125
    lowest = (safe[:, 0] - safe[:, 1].square() / (4 * 0.125)).sum(1).mean()
    for size in (1e3, 1e6, -1e6):
        assert float(mean_loss(torch.full((50, 4), size), safe)) > float(lowest)


def test_economical_coefficients_equal_literal_ones_without_noise() -> None:
    phi = CROSS_ENTROPY.coefficients(torch.arange(6) % 3, 3)
    torch.testing.assert_close(CROSS_ENTROPY.released(phi[:, 1]), CROSS_ENTROPY.released(phi))


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="shape"):
        CROSS_ENTROPY.released(torch.zeros(1, 2, 2))
    with pytest.raises(UserError, match="loss must be one of cross-entropy, square"):
        by_name("hinge")
    with pytest.raises(UserError, match="at least 2 classes"):
        CROSS_ENTROPY.delta_f(1, 5)
