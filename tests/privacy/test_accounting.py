"""Charges cost what their numbers say, and add up exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.errors import UserError
from adlm.privacy.accounting import (
    Budget,
    Charge,
    Gaussians,
    compose,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    left_over,
    parse_delta,
    parse_epsilon,
    round_up,
    show,
)
from adlm.privacy.ledger import Ledger

DELTA = Fraction(1, 100_000)


def laplace(epsilon: Fraction, **other: object) -> Charge:
    fields: dict[str, object] = {"mechanism": "laplace", "neighbours": "replace-one", "scale": Fraction(1)}
    fields |= {"what": "sums", "sensitivity": epsilon, "proof": "a theorem"}
    return Charge(**(fields | other))  # type: ignore[arg-type]


def gaussian(mu: Fraction) -> Charge:
    return laplace(mu, mechanism="gaussian", delta=DELTA)


@given(st.lists(st.fractions(min_value=Fraction(1, 1000), max_value=10), min_size=1, max_size=20))
def test_pure_epsilons_add_exactly(epsilons: list[Fraction]) -> None:
    totals = compose([laplace(e) for e in epsilons])
    assert totals.epsilon_proved == sum(epsilons)
    assert round_up(totals.epsilon_proved) >= totals.epsilon_proved


def test_ten_tenths_are_one() -> None:
    """In floating point they are not."""
    assert compose([laplace(parse_epsilon(0.1))] * 10).epsilon_proved == 1


@pytest.mark.parametrize(("mu", "delta"), [("0.2", "1e-5"), ("1", "1e-6"), ("2.5", "1e-3"), ("0.01", "1e-5")])
def test_the_gaussian_epsilon_is_tight(mu: str, delta: str) -> None:
    """Enough at the stated epsilon, and not enough a hair below it."""
    epsilon = gaussian_epsilon(Fraction(mu), Fraction(delta))
    assert gaussian_delta(Fraction(mu), epsilon) <= Fraction(delta)
    assert gaussian_delta(Fraction(mu), epsilon - Fraction(1, 10**6)) > Fraction(delta)


@given(st.floats(0.01, 30), st.sampled_from(["1e-3", "1e-5", "1e-9"]))
def test_the_gaussian_epsilon_is_what_an_independent_solver_finds(mu: float, delta: str) -> None:
    from dp_accounting import get_epsilon_gaussian

    theirs = get_epsilon_gaussian(1 / mu, float(delta))
    assert float(gaussian_epsilon(Fraction(mu), Fraction(delta))) == pytest.approx(theirs, abs=2e-6, rel=1e-9)


@pytest.mark.parametrize("power", [3, 20, 40, 100])
def test_the_epsilon_of_hardly_any_noise_is_not_understated(power: int) -> None:
    """For a large mu it lies between mu^2 / 2, where delta is about 1/2, and mu^2 / 2 + 5 mu."""
    mu = Fraction(10**power)
    assert mu**2 / 2 < gaussian_epsilon(mu, DELTA) < mu**2 / 2 + 5 * mu


def test_a_delta_too_small_to_compute_with_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1e-50"):
        laplace(Fraction(1), mechanism="gaussian", delta=Fraction(1, 10**70))


def test_gaussian_charges_compose_as_the_accountant_says() -> None:
    """A privacy-loss-distribution accountant, which knows nothing of our formula, agrees from above."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    mus = [Fraction(1, 5), Fraction(3, 10), Fraction(1, 2)]
    accountant = PLDAccountant()
    for mu in mus:
        accountant.compose(dp_accounting.GaussianDpEvent(float(1 / mu)))
    ours = float(compose([gaussian(mu) for mu in mus]).epsilon_proved)
    assert ours == pytest.approx(accountant.get_epsilon(float(DELTA)), rel=2e-3)


def test_gaussian_charges_of_different_deltas_compose_as_the_accountant_says() -> None:
    """A delta says where an epsilon is read off; the noise is the same."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    mus = {Fraction(1, 5): DELTA / 10, Fraction(3, 10): DELTA, Fraction(1, 2): DELTA / 1000}
    accountant = PLDAccountant()
    for mu in mus:
        accountant.compose(dp_accounting.GaussianDpEvent(float(1 / mu)))
    charges = [laplace(mu, mechanism="gaussian", delta=delta) for mu, delta in mus.items()]
    for delta in (None, DELTA, DELTA / 100):
        totals = compose(charges, delta)
        assert totals.delta == (delta or DELTA)
        theirs = accountant.get_epsilon(float(totals.delta))
        assert float(totals.epsilon_proved) == pytest.approx(theirs, rel=2e-3)
    with pytest.raises(UserError, match="no epsilon at delta 0"):
        compose(charges, Fraction(0))


def test_pure_and_gaussian_charges_add_by_basic_composition() -> None:
    together = compose([laplace(Fraction(1, 2)), gaussian(Fraction(1, 4))])
    assert together.epsilon_proved == Fraction(1, 2) + gaussian_epsilon(Fraction(1, 4), DELTA)
    assert together.delta == DELTA


@given(st.fractions(min_value=Fraction(1, 50), max_value=8))
def test_mu_for_an_epsilon_keeps_to_it(epsilon: Fraction) -> None:
    mu = gaussian_mu(epsilon, DELTA)
    assert (
        epsilon * Fraction(999, 1000) - Fraction(1, 10**5)
        <= gaussian_epsilon(mu, DELTA)
        <= epsilon + Fraction(1, 10**6)
    )


def test_claimed_and_proved_are_always_shown_together() -> None:
    totals = compose([laplace(Fraction(3), epsilon_claimed=Fraction(1, 2))])
    assert totals.sentence().startswith("epsilon claimed 0.5, proved 3")
    assert {"epsilon_claimed", "epsilon_proved", "delta", "neighbours"} <= set(totals.to_dict())


def test_nothing_proved_is_said_with_its_reason() -> None:
    totals = compose([laplace(Fraction(1)), laplace(Fraction(1), unproved="the network was trained on D")])
    assert math.isinf(totals.epsilon_proved)
    assert "none proved" in totals.sentence()
    assert "the network was trained on D" in totals.sentence()
    assert totals.to_dict()["epsilon_proved"] is None


def test_what_does_not_compose_is_refused() -> None:
    with pytest.raises(UserError, match="different neighbouring relations"):
        compose([laplace(Fraction(1)), laplace(Fraction(1), neighbours="add-remove")])
    with pytest.raises(UserError, match="no charge"):
        compose([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"proof": " "}, "where its bound is proved"),
        ({"scale": Fraction(0)}, "positive sensitivity and scale"),
        ({"mechanism": "uniform"}, "must be one of laplace, radial, gaussian"),
        ({"neighbours": "nobody"}, "must be one of replace-one, add-remove"),
        ({"delta": DELTA}, "and 0 for any other"),
    ],
)
def test_a_charge_that_proves_nothing_cannot_be_made(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        laplace(Fraction(1), **change)


def test_a_charge_that_states_another_epsilon_is_refused() -> None:
    raw = laplace(Fraction(1, 3)).to_dict()
    assert Charge.from_dict(raw) == laplace(Fraction(1, 3))
    with pytest.raises(UserError, match=r"states epsilon 0\.1, its numbers give 0\.333334"):
        Charge.from_dict(raw | {"epsilon_proved": "0.1"})


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        "nan",
        "inf",
        "one",
        None,
        "1/0",
        "1e-400",
        "1e400",
        "1e999999999",
        "1/" + "9" * 400,
        "9" * 400 + "/7",
    ],
)
def test_an_impossible_epsilon_is_one_sentence(value: object) -> None:
    with pytest.raises(UserError, match="epsilon must be"):
        parse_epsilon(value)


@pytest.mark.parametrize("value", [1, -0.1, "nan", "x"])
def test_an_impossible_delta_is_one_sentence(value: object) -> None:
    with pytest.raises(UserError, match="delta must be"):
        parse_delta(value)


def test_epsilons_are_printed_rounded_up() -> None:
    assert show(Fraction(1, 3)) == "0.333334"
    assert show(math.inf) == "none proved"


def test_charges_of_persons_and_of_records_are_not_added_as_they_are() -> None:
    """A person with three records loses three times what one record loses."""
    person, record = laplace(Fraction(1), contributions=3), laplace(Fraction(1))
    assert compose([person]).epsilon_proved == 1
    both = compose([person, record])
    assert both.epsilon_proved == 4
    assert both.unit == "person (at most 3 records)"
    assert "per person (at most 3 records), where a charge per record counts 3 times" in both.sentence()
    assert "per record" in compose([record]).sentence()
    two = laplace(Fraction(1), contributions=2)
    assert compose([person, two]).epsilon_proved == 3  # two groups of at most two records
    noise = compose([gaussian(Fraction(1)), replace(gaussian(Fraction(1)), contributions=3)])
    assert noise.composed is not None
    assert noise.composed.mu == pytest.approx(math.sqrt(10))


def test_a_budget_is_kept_for_persons_once_a_release_protects_them() -> None:
    ledger = Ledger(budget=Budget.of(2))
    ledger.charge(laplace(Fraction(1), contributions=3))
    assert ledger.left() == 1
    assert ledger.left(contributions=1) == Fraction(333333, 10**6)
    ledger.check(laplace(Fraction(333333, 10**6)))
    with pytest.raises(
        UserError, match=r"total would be epsilon 4, delta 0 per person \(at most 3 records\)"
    ):
        ledger.charge(laplace(Fraction(1)))
    ledger.charge(laplace(Fraction(1), contributions=3))
    assert ledger.left() == 0


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from(["0", "1e-5"]))
def test_what_is_left_for_another_unit_can_be_spent(first: int, second: int, delta: str) -> None:
    before = laplace(Fraction(1, 2), contributions=first)
    left = left_over(Fraction(3), DELTA, [before], Fraction(delta), second)
    after = laplace(left, contributions=second)
    if Fraction(delta):
        after = replace(after, mechanism="gaussian", sensitivity=gaussian_mu(left, DELTA), delta=DELTA)
    assert compose([before, after], DELTA if Fraction(delta) else None).epsilon_proved <= 3


def test_a_charge_of_single_records_is_written_as_before() -> None:
    assert "contributions" not in laplace(Fraction(1)).to_dict()
    person = laplace(Fraction(1), contributions=3)
    assert Charge.from_dict(person.to_dict()) == person


@pytest.mark.parametrize(
    "text", ["1e400000000", "1e-400000000", "1" * 10**6, "0." + "1" * 10**6, "1/0", "1e5/3"]
)
def test_a_number_that_would_never_end_is_refused_at_once(text: str) -> None:
    for parse in (parse_epsilon, parse_delta):
        with pytest.raises(UserError) as refused:
            parse(text)
        assert len(str(refused.value)) < 300


# ---- Gaussian noise in a loss


def in_loss(mechanism: str, mu: Fraction, neighbours: str = "replace-one", contributions: int = 1) -> Charge:
    return laplace(mu, mechanism=mechanism, delta=DELTA, neighbours=neighbours, contributions=contributions)


def slow_delta(mu: float, epsilon: float) -> float:
    """Delta of the Gaussian mechanism as the integral of its hockey stick."""
    if mu == 0:
        return max(0.0, 1 - math.exp(epsilon))
    with mpmath.workdps(30):
        start = epsilon / mu - mu / 2

        def height(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(x) * (1 - mpmath.exp(epsilon - mu * x - mu * mu / 2))

        return float(mpmath.quad(height, [start, start + 3, start + 12, start + 40]))


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("contributions", [1, 3])
def test_delta_of_a_perturbed_loss_of_labels_is_the_sum_over_its_corners(
    neighbours: str, contributions: int
) -> None:
    charge = in_loss("gaussian-label", Fraction(1, 2), neighbours, contributions)
    terms = contributions * (2 if neighbours == "replace-one" else 1)
    found = float(Gaussians(Fraction(1, 100), Gaussians.of([charge]).losses).delta(Fraction(1)))
    twin = sum(
        math.comb(terms, j) * slow_delta(math.hypot(0.1, j / terms / 2), 1.0) for j in range(terms + 1)
    )
    assert found == pytest.approx(twin, rel=1e-6)


@pytest.mark.parametrize("mechanism", ["gaussian-label", "gaussian-target"])
def test_no_set_of_moves_has_corners_that_cost_more_than_is_counted(mechanism: str) -> None:
    rng, best = np.random.default_rng(3), 0.0
    ends = (0, 1) if mechanism == "gaussian-label" else (-1, 1)
    for trial in range(60):
        contributions = 1 + trial % 2
        mu, epsilon = rng.choice([0.1, 0.5, 2.0]), rng.choice([0.2, 1.0, 3.0])
        charge = in_loss(mechanism, Fraction(mu), contributions=contributions)
        moves = rng.normal(size=(charge.terms, 2))
        if trial % 3 == 0:
            moves[:] = moves[0]
        moves *= mu / charge.terms / np.linalg.norm(moves, axis=1, keepdims=True)
        corners = [np.linalg.norm(np.array(signs) @ moves) for signs in product(ends, repeat=charge.terms)]
        true = sum(float(gaussian_delta(Fraction(float(c)), Fraction(epsilon))) for c in corners)
        counted = float(Gaussians.of([charge]).delta(Fraction(epsilon)))
        assert true <= counted * (1 + 1e-9) + 1e-40
        best = max(best, true / max(counted, 1e-300))
    assert best > 0.99


def test_noise_in_the_loss_of_one_label_costs_no_more_than_on_a_sum() -> None:
    for neighbours in ("replace-one", "add-remove"):
        mu = Fraction(1, 4)
        alone = in_loss("gaussian-label", mu, neighbours).epsilon_proved
        assert gaussian_epsilon(mu, DELTA) <= alone <= gaussian_epsilon(mu, DELTA) + Fraction(1, 10**4)
        both = in_loss("gaussian-target", mu, neighbours).epsilon_proved
        assert both == pytest.approx(float(gaussian_epsilon(mu, DELTA / 2)), abs=1e-5)


def test_a_perturbed_loss_composes_with_other_noise_and_pure_charges() -> None:
    loss, sums, ridge = (
        in_loss("gaussian-label", Fraction(1, 4)),
        gaussian(Fraction(1, 8)),
        laplace(Fraction(1)),
    )
    total = compose([loss, sums, ridge])
    noise = Gaussians.of([loss, sums])
    assert total.epsilon_proved == 1 + noise.epsilon(DELTA)
    assert noise.delta(noise.epsilon(DELTA)) <= DELTA < noise.delta(noise.epsilon(DELTA) - Fraction(1, 10**6))
    assert noise.epsilon(DELTA) >= gaussian_epsilon(Fraction(math.isqrt(5 * 10**16), 8 * 10**8), DELTA)
    for charge in (loss, in_loss("gaussian-target", Fraction(1, 4), "add-remove", 3)):
        assert Charge.from_dict(charge.to_dict()) == charge
        with pytest.raises(UserError, match="its numbers give"):
            Charge.from_dict(charge.to_dict() | {"epsilon_proved": "0.1"})


def test_an_attacker_of_a_perturbed_loss_is_never_understated() -> None:
    mu = Fraction(1, 4)
    plain, found = compose([gaussian(mu)]).trade_off, compose([in_loss("gaussian-label", mu)]).trade_off
    assert plain is not None
    assert found is not None
    assert not found.is_pure
    assert plain.best_guess() <= found.best_guess() < 0.6
    for alarms in (1e-4, 0.01, 0.1, 0.5):
        assert plain.detection(alarms) <= found.detection(alarms) + 1e-9
        assert found.detection(alarms) <= min(1.0, 1.5 * plain.detection(alarms))


def test_a_person_with_more_records_than_a_perturbed_loss_protects_is_refused() -> None:
    with pytest.raises(UserError, match="at most 32 records"):
        in_loss("gaussian-label", Fraction(1), contributions=33)


def test_what_a_perturbed_loss_leaves_can_be_spent() -> None:
    before = in_loss("gaussian-label", Fraction(1, 10))
    left = left_over(Fraction(1), DELTA, [before], DELTA)
    assert left > Fraction(1, 2)
    assert compose([before, gaussian(gaussian_mu(left, DELTA))]).epsilon_proved <= 1
