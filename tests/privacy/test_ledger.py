"""The ledger never forgets a charge and never lets a budget be spent twice."""

from __future__ import annotations

import multiprocessing
import resource
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.errors import UserError
from adlm.privacy.accounting import Budget, Charge, compose, gaussian_epsilon, gaussian_mu
from adlm.privacy.ledger import Ledger, _hashed


def charge(epsilon: Fraction | str, **other: object) -> Charge:
    fields: dict[str, object] = {"mechanism": "laplace", "neighbours": "replace-one", "scale": Fraction(1)}
    fields |= {"what": "sums", "sensitivity": Fraction(epsilon), "proof": "a theorem"}
    return Charge(**(fields | other))  # type: ignore[arg-type]


def test_charges_survive_in_the_file(tmp_path: Path) -> None:
    Ledger(tmp_path / "l", Budget(Fraction(1))).charge(charge("1/3"), charge("1/4"))
    again = Ledger(tmp_path / "l")
    assert again.charges == (charge("1/3"), charge("1/4"))
    assert again.budget == Budget(Fraction(1))
    assert (tmp_path / "l").stat().st_mode & 0o077 == 0


def test_the_count_is_that_of_the_file_and_not_of_one_object(tmp_path: Path) -> None:
    for expected in (1, 2):
        ledger = Ledger(tmp_path / "l")
        ledger.charge(charge("1/3"))
        assert ledger.count == len(ledger.charges) == expected


@given(st.lists(st.fractions(min_value=Fraction(1, 100), max_value=1), max_size=30))
def test_a_budget_is_never_overspent(epsilons: list[Fraction]) -> None:
    ledger, spent = Ledger(budget=Budget(Fraction(2))), Fraction(0)
    for epsilon in epsilons:
        if spent + epsilon <= 2:
            ledger.charge(charge(epsilon))
            spent += epsilon
        else:
            with pytest.raises(UserError, match="overspent"):
                ledger.charge(charge(epsilon))
    assert sum(c.loss for c in ledger.charges) == spent


def test_a_refusal_says_what_is_left_and_writes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l", Budget(Fraction(1)))
    ledger.charge(charge("3/4"))
    before = (tmp_path / "l").read_bytes()
    with pytest.raises(
        UserError, match=r"left for a release with delta 0 under replace-one per record is epsilon 0\.25"
    ):
        ledger.charge(charge("1/8"), charge("1/4"))
    assert (tmp_path / "l").read_bytes() == before


def _spend(path: str, wins: multiprocessing.Queue[bool]) -> None:
    try:
        Ledger(Path(path), Budget(Fraction(1))).charge(charge("3/5"))
        wins.put(True)
    except UserError:
        wins.put(False)


def test_two_processes_cannot_both_have_the_last_of_a_budget(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(10):
        path = tmp_path / f"l{attempt}"
        wins: multiprocessing.Queue[bool] = context.Queue()
        racers = [context.Process(target=_spend, args=(str(path), wins)) for _ in range(2)]
        for racer in racers:
            racer.start()
        assert sorted(wins.get(timeout=30) for _ in racers) == [False, True]
        for racer in racers:
            racer.join()
        assert len(Ledger(path).charges) == 1


def test_a_torn_last_line_was_never_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "l"
    ledger = Ledger(path, Budget(Fraction(1)))
    ledger.charge(charge("1/4"))
    whole = path.read_bytes()
    ledger.charge(charge("1/2"))
    path.write_bytes(path.read_bytes()[:-20])
    assert Ledger(path).charges == (charge("1/4"),)
    assert path.read_bytes() == whole


def test_an_altered_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "l"
    Ledger(path, Budget(Fraction(1))).charge(charge("1/4"))
    path.write_bytes(path.read_bytes().replace(b'"1/4"', b'"1/9"'))
    with pytest.raises(UserError, match="line 2 of the ledger"):
        Ledger(path)


def test_a_budget_cannot_be_changed_afterwards(tmp_path: Path) -> None:
    Ledger(tmp_path / "l", Budget(Fraction(1))).charge(charge("1/4"))
    with pytest.raises(UserError, match="was made with epsilon 1"):
        Ledger(tmp_path / "l", Budget(Fraction(2)))


def test_what_fails_before_it_charges_decides_nothing(tmp_path: Path) -> None:
    Ledger(tmp_path / "l")
    Ledger(tmp_path / "l", Budget(Fraction(7)))
    assert Ledger(tmp_path / "l").totals() is None
    assert not (tmp_path / "l").exists()
    Ledger(tmp_path / "l", Budget(Fraction(1))).charge(charge("3/4"))
    with pytest.raises(UserError, match="overspent"):
        Ledger(tmp_path / "l").charge(charge("1/2"))


def test_the_first_charge_keeps_that_there_is_no_budget(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.charge(charge("1/4"))
    ledger.charge(charge("1/2"))
    assert Ledger(tmp_path / "l").charges == (charge("1/4"), charge("1/2"))
    with pytest.raises(UserError, match="was made with no budget"):
        Ledger(tmp_path / "l", Budget(Fraction(1)))


def test_two_that_open_a_new_ledger_with_different_budgets_cannot_both_charge(tmp_path: Path) -> None:
    free = Ledger(tmp_path / "l")
    bound = Ledger(tmp_path / "l", Budget(Fraction(1)))
    bound.charge(charge("3/4"))
    with pytest.raises(UserError, match="overspent"):
        free.charge(charge("1/2"))
    assert free.charges == (charge("3/4"),)


def test_a_first_charge_torn_anywhere_was_never_acknowledged(tmp_path: Path) -> None:
    """Nothing of the two lines is believed but what is whole, and the ledger goes on."""
    path = tmp_path / "l"
    Ledger(path).charge(charge("1/4"))
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        ledger = Ledger(path)
        assert ledger.charges == ()
        assert path.read_bytes() == whole[: header if length >= header else 0]
        ledger.charge(charge("1/4"))
        assert path.read_bytes() == whole


def test_a_disk_that_takes_no_first_charge_is_left_empty(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
    try:
        with pytest.raises(UserError, match=r"cannot be written: .*; nothing was released"):
            ledger.charge(charge("1/4"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "l").read_bytes() == b""


def test_another_file_is_not_taken_for_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("hello\n")
    with pytest.raises(UserError, match="is not an adlm ledger, and was left as it is"):
        Ledger(tmp_path / "notes")
    (tmp_path / "table.csv").write_text("age,ill\n50,yes\n51,no\n")
    with pytest.raises(UserError, match="is not an adlm ledger"):
        Ledger(tmp_path / "table.csv")
    (tmp_path / "line").write_text("one line without an end")
    with pytest.raises(UserError, match="is not an adlm ledger"):
        Ledger(tmp_path / "line")
    assert (tmp_path / "line").read_text() == "one line without an end"


def test_what_is_not_proved_does_not_go_on_a_budget() -> None:
    with pytest.raises(UserError, match="no epsilon is proved"):
        Ledger(budget=Budget(Fraction(1))).charge(charge("1/4", unproved="trained on D"))


def test_a_disk_that_takes_no_more_is_one_sentence_and_spends_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l", Budget(Fraction(1)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(UserError, match=r"cannot be written: .*; nothing was released"):
            ledger.charge(charge("1/4"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ledger.charges == ()


DELTA = Fraction(1, 10**5)


def gaussian(mu: Fraction, delta: Fraction = DELTA) -> Charge:
    return charge(mu, mechanism="gaussian", delta=delta)


def test_what_is_left_of_gaussian_noise_is_said_for_the_delta_asked() -> None:
    """Epsilons of Gaussian noise do not add: after two of 0.3, another 0.3 fits within one."""
    ledger = Ledger(budget=Budget(Fraction(1), DELTA))
    for _ in range(2):
        ledger.charge(gaussian(gaussian_mu(Fraction(3, 10), DELTA)))
    left = ledger.left(DELTA)
    assert left is not None
    assert left > Fraction(8, 10)
    assert ledger.left() == Fraction(1) - compose(ledger.charges).epsilon_proved
    with pytest.raises(UserError, match=r"with delta 1e-05 under replace-one per record is epsilon 0\.8"):
        ledger.charge(gaussian(gaussian_mu(Fraction(95, 100), DELTA)))
    ledger.charge(gaussian(gaussian_mu(left, DELTA)))


@given(
    st.lists(st.fractions(min_value=Fraction(1, 100), max_value=Fraction(1, 4)), max_size=4),
    st.lists(st.fractions(min_value=Fraction(1, 100), max_value=Fraction(1, 10)), max_size=3),
    st.sampled_from([Fraction(0), DELTA, DELTA / 10]),
)
def test_what_is_left_can_be_spent_and_no_more(
    pure: list[Fraction], noisy: list[Fraction], delta: Fraction
) -> None:
    ledger = Ledger(budget=Budget(Fraction(2), DELTA))
    ledger.charge(charge("1/100"), *map(charge, pure), *map(gaussian, noisy))
    left = ledger.left(delta)
    assert left is not None
    more = left + Fraction(1, 1000)
    with pytest.raises(UserError, match="overspent"):
        ledger.check(gaussian(gaussian_mu(more, delta), delta) if delta else charge(more))
    ledger.charge(gaussian(gaussian_mu(left, delta), delta) if delta else charge(left))


def test_a_budget_that_delta_exceeds_says_delta() -> None:
    with pytest.raises(UserError, match="allows delta 0 and this release asks for delta 1e-05"):
        Ledger(budget=Budget(Fraction(1))).charge(gaussian(Fraction(1, 100)))
    with pytest.raises(UserError, match=r"allows delta 1e-05 and this release asks for delta 0\.001"):
        Ledger(budget=Budget(Fraction(1), DELTA)).charge(gaussian(Fraction(1, 100), Fraction(1, 1000)))


def test_releases_of_different_deltas_compose_within_a_budget() -> None:
    ledger = Ledger(budget=Budget(Fraction(1), DELTA))
    ledger.charge(gaussian(Fraction(1, 20), DELTA / 100))
    ledger.charge(gaussian(Fraction(1, 20)))
    totals = ledger.totals()
    assert totals is not None
    assert totals.delta == DELTA
    assert totals.epsilon_proved <= gaussian_epsilon(Fraction(71, 1000), DELTA)


def test_a_ledger_knows_its_own_charges_from_those_of_others(tmp_path: Path) -> None:
    mine, other = Ledger(tmp_path / "l"), Ledger(tmp_path / "l")
    other.charge(charge("1/4"))
    assert mine.made == []
    mine.charge(charge("1/2"))
    assert mine.made == [charge("1/2")]
    assert len(mine.charges) == 2


@pytest.mark.parametrize(
    "lines",
    [
        [{"adlm ledger": 1}],
        [{"adlm ledger": 1, "budget": [1]}],
        [{"adlm ledger": 1, "budget": {"epsilon": "9" * 10**6, "delta": "0"}}],
        [{"adlm ledger": 1, "budget": {"epsilon": "1e400000000", "delta": "0"}}],
        [{"adlm ledger": 1, "budget": None}, {"charge": []}],
        [{"adlm ledger": 1, "budget": None}, {"charges": 5}],
        [{"adlm ledger": 1, "budget": None}, {"charges": [{"sensitivity": "1e30000"}]}],
    ],
)
def test_a_ledger_of_other_content_is_refused_in_a_sentence(tmp_path: Path, lines: list[Any]) -> None:
    """Whoever alters a file can write its digests again."""
    path = tmp_path / "ledger"
    path.write_bytes(b"".join(map(_hashed, lines)))
    with pytest.raises(UserError):
        Ledger(path)
