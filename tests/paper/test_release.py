"""The record release: the charges of the design, the noise of lines 12-19, streaming, and order of events."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.paper.loss import SQUARE
from adlm.paper.release import SCALE, PrivateRecords, Settings, mechanism_for
from adlm.paper.release import release as release_records
from adlm.paper.relevance import PrivateRelevance
from adlm.privacy.accounting import Budget, compose
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source

DOMAIN = Domain(shape=(4,), lower=0.0, upper=2.0, classes=("a", "b", "c"))
MNIST = Domain(shape=(28, 28), lower=0.0, upper=255.0, classes=tuple("0123456789"))
SETTINGS = Settings(
    epsilon2=Fraction(1, 2),
    epsilon3=Fraction(1, 4),
    batch_size=10,
    delta_h0=Fraction(8),
    delta_h0_rule="given",
    hidden=5,
    allocation="identical",
)
PAPER = replace(SETTINGS, batch_size=1800, delta_h0=Fraction(9800), delta_h0_rule="per-patch", hidden=25)


def relevance(values: list[float]) -> PrivateRelevance:
    return PrivateRelevance(np.array(values), (), {"epsilon1": "1"})


def made(x, y, settings: Settings = SETTINGS, seed: int = 1, **more):  # type: ignore[no-untyped-def]
    given = {"relevance": None, "ledger": Ledger(), "source": Source.seeded_with(seed)} | more
    return release_records(PrivateRecords(x, y, DOMAIN), settings, **given)


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(2)])
@pytest.mark.parametrize(("delta_h0", "factor"), [(9_800, 144.0), (2 * 25_088 * 784, 0.0358737)])
def test_the_proved_epsilon_of_features_and_labels_is_that_of_the_design(
    epsilon: Fraction, delta_h0: int, factor: float
) -> None:
    settings = replace(PAPER, epsilon2=epsilon, epsilon3=epsilon, delta_h0=Fraction(delta_h0))
    features, labels = mechanism_for(settings, MNIST, None).charges
    assert float(features.epsilon_proved) == pytest.approx(factor * float(epsilon), rel=1e-3)
    assert float(features.epsilon_proved) <= 1800 * 784 * float(epsilon) / delta_h0
    assert float(labels.epsilon_proved) == pytest.approx(1.98621 * float(epsilon), rel=1e-4)
    assert (features.claimed, labels.claimed) == (epsilon, epsilon)


@pytest.mark.parametrize("allocation", ["linear", "optimal"])
def test_the_proved_epsilon_of_features_does_not_depend_on_the_relevances(allocation: str) -> None:
    even = mechanism_for(SETTINGS, DOMAIN, None).charges[0].epsilon_proved
    for values in ([0.1, 0.2, 0.3, 0.4], [5.0, -1e-3, 1.0, 0.0]):
        skewed = mechanism_for(replace(SETTINGS, allocation=allocation), DOMAIN, relevance(values))
        assert float(skewed.charges[0].epsilon_proved) == pytest.approx(float(even), rel=1e-5)


def test_worst_neighbours_move_exactly_the_stated_number_of_grid_steps() -> None:
    """Truncation and scaling together, on the records as the mechanism itself puts them on the grid."""
    p = mechanism_for(replace(SETTINGS, allocation="linear"), DOMAIN, relevance([0.5, 0.2, 0.9, 0.1]))
    ends = DOMAIN.scale(np.array([[-5.0] * 4, [9.0] * 4])).astype(np.float64)
    steps = np.floor(ends / p.units)
    assert np.abs(steps[1] - steps[0]).sum() == p.charges[0].sensitivity
    assert p.charges[0].scale == SCALE


@pytest.mark.parametrize("mode", ["economical", "literal"])
@pytest.mark.parametrize("loss", [SETTINGS.loss, SQUARE])
def test_a_changed_label_moves_the_coefficients_by_what_the_label_charge_says(mode, loss) -> None:  # type: ignore[no-untyped-def]
    settings = replace(SETTINGS, mode=mode, loss=loss)
    a, b = (made([[0.0] * 4], [label], settings).tensors["phi"].double() for label in ("a", "c"))
    p = mechanism_for(settings, DOMAIN, None)
    moved = float((a - b).abs().sum()) / p.label_unit
    assert moved == pytest.approx(float(p.charges[1].sensitivity), rel=1e-5)


def test_records_are_released_in_an_order_that_says_nothing_of_the_files() -> None:
    """Where a person is replaced whose record is read at another place, other records would move.

    A record is at each of 4 places in 160 releases equally often: a false alarm is below 1e-6.
    """
    x, labels = np.repeat([[0.0], [0.5], [1.0], [2.0]], 4, axis=1), np.array(["a", "b", "c", "c"])
    clear = replace(SETTINGS, epsilon2=Fraction(10**6), epsilon3=Fraction(10**6))
    places = np.zeros((4, 4), dtype=int)
    for seed in range(160):
        release = made(x, labels, clear, seed)
        order = np.searchsorted([0.1, 0.4, 0.8], release.tensors["x"][:, 0].numpy())
        places[order, np.arange(4)] += 1
        assert release.tensors["phi"].argmin(1).tolist() == [[0, 1, 2, 2][i] for i in order]
    assert np.abs(places - 40).max() < 6 * math.sqrt(160 * 3 / 16)


def test_noise_on_features_has_scale_delta_over_batch_size_times_budget() -> None:
    """Mean |noise| of 20,000 draws a feature: a false alarm is a 6-sigma event, below 1e-8."""
    n = 20_000
    settings = replace(SETTINGS, allocation="linear")
    x = np.tile([0.0, 0.5, 1.0, 2.0], (n, 1))
    release = made(x, ["a"] * n, settings, relevance=relevance([1.0, 2.0, 3.0, 2.0]), source=Source.system())
    noise = release.tensors["x"].double().numpy() - x / 2  # all records are alike
    beta = 4 * np.array([1, 2, 3, 2]) / 8
    expected = 8 / (10 * beta * 0.5)
    assert np.abs(noise).mean(0) == pytest.approx(expected, rel=6 / math.sqrt(n))
    assert np.abs(np.median(noise, axis=0) / expected).max() < 6 / math.sqrt(n)
    assert np.abs(np.corrcoef(noise.T) - np.eye(4)).max() < 6 / math.sqrt(n)
    assert len(set(noise[:50].flatten().tolist())) == 200  # each record has its own


def test_noise_on_coefficients_has_scale_delta_f_over_batch_size_times_budget() -> None:
    n = 20_000
    release = made(np.zeros((n, 4)), ["b"] * n, source=Source.system())
    noise = release.tensors["phi"].double().numpy() - np.array([0.5, -0.5, 0.5])
    expected = 3 * (5 + 25 / 4) / 10 * 4
    assert np.abs(noise).mean(0) == pytest.approx([expected] * 3, rel=6 / math.sqrt(n))


def test_literal_mode_releases_three_orders_around_their_noise_free_values() -> None:
    settings = replace(SETTINGS, mode="literal", epsilon3=Fraction(10**6))
    phi = made(np.zeros((2, 4)), ["a", "a"], settings).tensors["phi"].numpy()
    assert phi.shape == (2, 3, 3)
    assert phi[:, 0] == pytest.approx(np.full((2, 3), math.log(2)), abs=1e-3)
    assert phi[0, 1] == pytest.approx([-0.5, 0.5, 0.5], abs=1e-3)
    assert phi[:, 2] == pytest.approx(np.full((2, 3), 0.125), abs=1e-3)


def test_features_without_budget_are_withheld_and_the_certificate_counts_them() -> None:
    settings = replace(SETTINGS, allocation="linear")
    release = made(np.ones((30, 4)), ["a"] * 30, settings, relevance=relevance([0.0, 1.0, 1e-300, 2.0]))
    x = release.tensors["x"]
    assert not x[:, [0, 2]].any()
    assert x[:, [1, 3]].all()
    assert release.certificate.settings["withheld"] == 2
    assert float(release.tensors["budget_ratios"].sum()) == pytest.approx(4)


def test_charges_are_written_before_noise_is_drawn_and_an_overspent_budget_stops_it() -> None:
    events: list[str] = []

    class Told(Source):
        def octets(self, count: int):  # type: ignore[no-untyped-def]
            events.append("noise")
            return super().octets(count)

    class Watched(Ledger):
        def charge(self, *charges) -> None:  # type: ignore[no-untyped-def]
            super().charge(*charges)
            events.append("charge")

    made(np.ones((3, 4)), ["a"] * 3, ledger=Watched(), source=Told(bytes(32), seeded=True))
    assert events[0] == "charge"
    assert set(events[1:]) == {"noise"}
    events.clear()
    with pytest.raises(UserError, match="overspent"):
        made(
            np.ones((3, 4)),
            ["a"] * 3,
            ledger=Watched(budget=Budget(Fraction(1, 100))),
            source=Told(bytes(32), seeded=True),
        )
    assert events == []


def test_the_certificate_adds_claims_to_the_paper_total_and_proofs_to_the_design_total() -> None:
    release = made(np.ones((3, 4)), ["a"] * 3)
    totals = release.certificate.totals
    assert totals.epsilon_claimed == Fraction(3, 4)
    assert totals == compose(mechanism_for(SETTINGS, DOMAIN, None).charges)
    assert float(totals.epsilon_proved) == pytest.approx(10 * 4 * 0.5 / 8 + 2 * 10 * 0.25 / 33.75, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mechanism_for(SETTINGS, replace(DOMAIN, neighbours="add-remove"), None), "replace-one"),
        (lambda: mechanism_for(SETTINGS, DOMAIN, relevance([1.0])), "1 relevances for 4 features"),
        (lambda: replace(SETTINGS, mode="both"), "mode must be one of economical, literal"),
        (lambda: replace(SETTINGS, batch_size=0), "must be positive"),
        (lambda: replace(SETTINGS, epsilon2=Fraction(0)), "must be positive"),
        (lambda: replace(SETTINGS, delta_h0_rule="guess"), "counted, per-patch, given"),
        (lambda: made(np.ones((2, 4)), ["a"]), "one label for each"),
        (
            lambda: mechanism_for(replace(SETTINGS, delta_h0=Fraction(10**12)), DOMAIN, None).charges,
            "nothing of a record",
        ),
    ],
)
def test_mistakes_are_told(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=message):
        call()
