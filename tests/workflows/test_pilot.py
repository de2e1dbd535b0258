"""A budget that is split for private relevances is kept to."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm import Budget, Ledger, UserError, privatise
from adlm.privacy.accounting import Charge, compose, gaussian_mu
from adlm.public import datasets
from adlm.workflows.pilot import shares

TRAIN = datasets.load("digits", "train")


def spent(epsilon: Fraction, delta: Fraction) -> Charge:
    """All that a release may spend of its budget."""
    mu = gaussian_mu(epsilon, delta) if delta else epsilon
    return Charge(
        "sums", "gaussian" if delta else "laplace", "replace-one", mu, Fraction(1), "a theorem", delta
    )


@given(
    st.fractions(min_value=Fraction(1, 200), max_value=20),
    st.sampled_from(
        [Fraction(0), Fraction(1, 10**9), Fraction(1, 10**5), Fraction(1, 1000), Fraction(1, 50)]
    ),
)
def test_both_parts_together_keep_to_the_budget(epsilon: Fraction, delta: Fraction) -> None:
    if delta > epsilon / 10:
        return
    parts = shares(Budget(epsilon, delta))
    total = compose([spent(part.epsilon, part.delta) for part in parts]).epsilon_proved
    assert total <= epsilon
    assert total > epsilon * Fraction(99, 100) - Fraction(1, 10**4)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [("0.01", "0.01"), ("0.05", "0.01"), ("1", "1e-5"), ("2", "0")]
)
def test_private_relevance_certifies_no_more_than_was_asked(epsilon: str, delta: str) -> None:
    made = privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=epsilon, delta=delta, relevance="private")
    assert Fraction(epsilon) * Fraction(98, 100) < made.certificate.totals.epsilon_proved <= Fraction(epsilon)


def test_a_second_part_that_does_not_fit_leaves_the_first_uncharged() -> None:
    ledger = Ledger(budget=Budget(Fraction(1, 2)))
    with pytest.raises(UserError, match="overspent"):
        privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=1, relevance="private", ledger=ledger)
    assert ledger.charges == ()


@pytest.mark.parametrize("delta", ["0", "1e-5"])
def test_second_moments_of_one_coordinate_can_be_released(delta: str) -> None:
    made = privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=1, delta=delta, second=1)
    assert made.tensors["second"].shape == (1, 1)
