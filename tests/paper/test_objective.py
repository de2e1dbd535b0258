"""The polynomial loss against the losses it stands for, Lemma 5, and the cure for parabolas that open
downwards.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from adlm.errors import UserError
from adlm.paper.networks import (
    CROSS_ENTROPY,
    SQUARE,
    Coefficients,
    by_name,
    coefficients,
    error_bound_paper,
    error_bound_remainder,
    error_bound_tight,
    exact_loss,
    loss,
    released,
)


def unbounded_below(phi: Coefficients) -> int:
    """How many parabolas open downwards: any one lets the loss fall without end."""
    return int((phi.second < 0).sum())


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
    phi = coefficients(CROSS_ENTROPY, torch.tensor([1 - y]), 2)
    found = (phi.zeroth, phi.first, phi.second)[order][0, 0]
    assert float(found) == pytest.approx(taylor(y, order), abs=1e-7)


def test_the_square_loss_is_its_polynomial_exactly() -> None:
    logits, labels = torch.randn(9, 4, dtype=torch.double), torch.arange(9) % 4
    assert float(loss(logits, coefficients(SQUARE, labels, 4))) == pytest.approx(
        float(exact_loss(SQUARE, logits, labels))
    )


@pytest.mark.parametrize("radius", [0.3, 1.0, 2.5])
def test_the_tight_bound_holds_and_is_attained(radius: float) -> None:
    labels = torch.tensor([2])
    grid = torch.linspace(-radius, radius, 4001, dtype=torch.double)
    gaps = [
        float(exact_loss(CROSS_ENTROPY, z.expand(1, 5), labels) - loss(z.expand(1, 5), exact_phi()))
        for z in grid[::40]
    ]
    span = max(gaps) - min(gaps)
    bound = error_bound_tight(5, radius)
    assert span == pytest.approx(bound, rel=1e-6)
    assert span <= error_bound_remainder(5, radius)
    if radius <= 1:
        assert span <= error_bound_paper(5)


def exact_phi() -> Coefficients:
    phi = coefficients(CROSS_ENTROPY, torch.tensor([2]), 5)
    return Coefficients(phi.zeroth.double() * 0 + math.log(2), phi.first.double(), phi.second.double())


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
            phi = [coefficients(polynomial, torch.randint(0, classes, (1,)), classes) for _ in range(2)]
            for l in range(classes):  # noqa: E741
                first = [p.first[0, l] * s for p, s in zip(phi, h, strict=True)]
                second = [p.second[0, l] * torch.outer(s, s) for p, s in zip(phi, h, strict=True)]
                total += float((first[0] - first[1]).abs().sum() + (second[0] - second[1]).abs().sum())
            worst = max(worst, total)
            assert total <= float(polynomial.delta_f(classes, hidden)) + 1e-9
    assert worst > 0


@pytest.mark.parametrize("polynomial", [CROSS_ENTROPY, SQUARE])
def test_a_label_moves_the_coefficients_by_what_the_charge_says(polynomial) -> None:  # type: ignore[no-untyped-def]
    a, b = (coefficients(polynomial, torch.tensor([label]), 4) for label in (0, 3))
    moved = [float((getattr(a, o) - getattr(b, o)).abs().sum()) for o in ("zeroth", "first", "second")]
    assert sum(moved) == polynomial.label_sensitivity((0, 1, 2))
    assert moved[1] == polynomial.label_sensitivity((1,))
    assert polynomial.informative() == (1,)


def test_a_loss_that_noise_made_unbounded_below_is_found_and_bounded() -> None:
    torch.manual_seed(0)
    phi = torch.randn(50, 3, 4) * 2
    raw = Coefficients(phi[:, 0], phi[:, 1], phi[:, 2])
    assert unbounded_below(raw) > 20
    downhill = torch.where(phi[:, 2] < 0, 1e6, 0.0)
    assert float(loss(downhill, raw)) < -1e9
    assert float(loss(downhill, released(CROSS_ENTROPY, phi))) > 0
    safe = released(CROSS_ENTROPY, phi)
    assert unbounded_below(safe) == 0
    assert safe.raised == int((phi[:, 2] < 0.125).sum())
    lowest = (safe.zeroth - safe.first.square() / (4 * 0.125)).sum(1).mean()
    for size in (1e3, 1e6, -1e6):
        assert float(loss(torch.full((50, 4), size), safe)) > float(lowest)


def test_economical_coefficients_equal_literal_ones_without_noise() -> None:
    labels = torch.arange(6) % 3
    phi = coefficients(CROSS_ENTROPY, labels, 3)
    logits = torch.randn(6, 3)
    short = released(CROSS_ENTROPY, phi.first)
    whole = released(CROSS_ENTROPY, torch.stack([phi.zeroth, phi.first, phi.second], dim=1))
    assert float(loss(logits, short)) == pytest.approx(float(loss(logits, whole)), rel=1e-6)
    rows = torch.tensor([4, 1])
    assert float(loss(logits[rows], short.take(rows))) == pytest.approx(
        float(loss(logits[rows], phi.take(rows)))
    )


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="floor must be positive"):
        released(CROSS_ENTROPY, torch.zeros(1, 2), floor=0.0)
    with pytest.raises(UserError, match="shape"):
        released(CROSS_ENTROPY, torch.zeros(1, 2, 2))
    with pytest.raises(UserError, match="loss must be one of cross-entropy, square"):
        by_name("hinge")
    with pytest.raises(UserError, match="at least 2 classes"):
        CROSS_ENTROPY.delta_f(1, 5)
