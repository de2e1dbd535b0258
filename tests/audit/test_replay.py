"""Replay: neighbours go into every mechanism within the sensitivity it declares, and nothing else differs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tests.audit.worst import ALL, NAMES, worst_of

from adlm.audit.replay import Records, Subject, record, replay, report
from adlm.audit.statistics import HOLDS
from adlm.mechanism.objective import NOISE_STEPS, Bounded
from adlm.privacy.accounting import Charge
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source

SOURCE = Source.seeded_with(7)


def draw(subject: Subject, rng: np.random.Generator, rows: int) -> Records:
    values = rng.random((rows, subject.width)) if subject.box else rng.normal(size=(rows, subject.width))
    return Records(values * rng.choice([0.1, 1.0, 100.0]), rng.integers(0, subject.classes, rows))


def neighbours(subject: Subject, rng: np.random.Generator) -> tuple[Records, Records]:
    """Two data sets that differ in as many records as one person may have."""
    rest, one, two = (draw(subject, rng, rows) for rows in (3, subject.contributions, subject.contributions))
    return (rest, rest.plus(two)) if subject.neighbours == "add-remove" else (rest.plus(one), rest.plus(two))


@pytest.mark.parametrize("subject", ALL, ids=NAMES)
def test_neighbours_stay_within_the_declared_sensitivity(subject: Subject) -> None:
    rng, seen = np.random.default_rng(7), False
    for _ in range(2):
        comparison = replay(subject, *neighbours(subject, rng), SOURCE)
        assert comparison.faults == ()
        assert comparison.within
        seen |= any(power > 0 for power in comparison.powers)  # clipped records can be the same
    assert seen  # the replay did see the neighbour


@pytest.mark.parametrize("subject", ALL, ids=NAMES)
def test_search_comes_near_the_bound_of_every_charge(subject: Subject) -> None:
    """The search knows no formula; half of the noise can then be seen in every part of a release."""
    worst = worst_of(subject)
    for charge in subject.charges:
        comparison = worst[charge].comparison
        assert comparison.within
        assert comparison.used(charge) >= (0.99 if "sum" in subject.name else 0.45)
    finding = report(subject, worst, 16)
    assert finding.verdict == HOLDS or float(finding.claimed) < float(finding.proved)


def one_number(run: object, covers: tuple[int | None, ...] = (0,)) -> Subject:
    return Subject("test", "replace-one", run, covers, 1)  # type: ignore[arg-type]


CHARGE = Charge("a sum", "laplace", "replace-one", Fraction(10), Fraction(10), "nowhere: a test")
ONE = Records(np.array([[1.0], [2.0]]), np.array([0, 1]))
TWO = Records(np.array([[1.0], [9.0]]), np.array([0, 1]))


def total(data: Records) -> np.ndarray:
    return np.asarray(data.values.sum(0), dtype=np.int64)


def test_distance_is_what_went_in() -> None:
    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        ledger.charge(CHARGE)
        total(data) + source.laplace((1,), 10)
        return (CHARGE,)

    comparison = replay(one_number(run), ONE, TWO, SOURCE)
    assert comparison.within
    assert comparison.powers == (Fraction(7, 10),)
    assert comparison.epsilon() == Fraction(7, 10)


def test_too_large_a_distance_is_found() -> None:
    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        ledger.charge(CHARGE)
        2 * total(data) + source.laplace((1,), 10)
        return (CHARGE,)

    assert not replay(one_number(run), ONE, TWO, SOURCE).within


def test_noise_before_its_charge_is_found() -> None:
    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        total(data) + source.laplace((1,), 10)
        ledger.charge(CHARGE)
        return (CHARGE,)

    assert "before it was in the ledger" in replay(one_number(run), ONE, TWO, SOURCE).faults[0]


def test_a_scale_that_depends_on_the_records_is_found() -> None:
    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        ledger.charge(CHARGE)
        total(data) + source.laplace((1,), int(total(data)[0]))
        return (CHARGE,)

    assert "depends on the records" in replay(one_number(run), ONE, TWO, SOURCE).faults[0]


def test_a_number_of_draws_that_depends_on_the_records_is_found() -> None:
    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        ledger.charge(CHARGE)
        for _ in range(1 + int(total(data)[0] > 5)):
            total(data) + source.laplace((1,), 10)
        return (CHARGE,)

    assert replay(one_number(run), ONE, TWO, SOURCE).faults


def test_charges_that_depend_on_the_records_are_found() -> None:
    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        charge = replace(CHARGE, sensitivity=Fraction(int(total(data)[0])))
        ledger.charge(charge)
        total(data) + source.laplace((1,), 10)
        return (charge,)

    assert "charges depend on the records" in replay(one_number(run), ONE, TWO, SOURCE).faults[0]


def test_private_input_of_uncharged_noise_is_found() -> None:
    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        ledger.charge(CHARGE)
        total(data) + source.laplace((1,), 10)
        return (CHARGE,)

    assert "charged to nobody" in replay(one_number(run, (None,)), ONE, TWO, SOURCE).faults[0]


def test_noise_past_the_tap_or_used_twice_or_multiplied_is_refused() -> None:
    def past(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        source.words(1)
        return (CHARGE,)

    def twice(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        drawn = source.laplace((1,), 10)
        total(data) + drawn
        total(data) + drawn
        return (CHARGE,)

    def scaled(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        source.laplace((1,), 10) * 2
        return (CHARGE,)

    for run, message in ((past, "past"), (twice, "used twice"), (scaled, "may be added")):
        with pytest.raises(AssertionError, match=message):
            record(one_number(run), ONE, SOURCE)


def test_later_stages_see_the_frozen_output_of_earlier_ones() -> None:
    """The head of a gradient comes from outputs of earlier stages, so it must be the same in both."""
    subject = next(s for s in ALL if s.name == "gradient rounds")
    comparison = worst_of(subject)[1].comparison
    for first, second in comparison.pairs:
        assert np.array_equal(first.output, second.output)
    assert not np.array_equal(comparison.pairs[1][0].inputs, comparison.pairs[1][1].inputs)


def test_the_noise_that_a_minimum_would_have_needed_is_that_which_was_drawn() -> None:
    """Minus the gradient of loss and ridge at the released weights is the linear term, but for rounding."""
    subject = next(s for s in ALL if s.name == "perturbed loss of one row, Laplace")
    first, _ = worst_of(subject)[subject.losses[0]].comparison.pairs[1]  # after class sums
    one, _ = worst_of(subject)[subject.losses[0]].comparison.minima[0]
    drawn = first.output.reshape(one.weights.shape) * (one.noise.scale / NOISE_STEPS)
    assert -one.slope(one.weights[None])[0] == pytest.approx(drawn, abs=0.1 * one.noise.scale)


def test_a_record_whose_gradient_is_longer_than_charged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: features that are not shrunk into the ball that the noise of the loss is calibrated to."""
    subject = next(s for s in ALL if s.name == "perturbed loss of one row, radial")
    pair = worst_of(subject)[subject.losses[0]]
    monkeypatch.setattr(Bounded, "_excess", lambda self, rows: np.zeros(len(rows)))
    broken = replay(subject, pair.data, pair.neighbour, SOURCE)
    assert not broken.within
    assert broken.powers[subject.losses[0]] > broken.charges[subject.losses[0]].loss


def test_the_tap_leaves_the_noise_functions_as_they_were() -> None:
    before = (Source.laplace, Source.gaussian, Source.radial)
    replay(ALL[0], ONE, TWO, SOURCE)
    assert (Source.laplace, Source.gaussian, Source.radial) == before
