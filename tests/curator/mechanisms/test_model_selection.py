"""The better of two models of a table, under pure epsilon."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlm import Ledger, Release, fit, privatise
from adlm.audit.artefact import audit_release
from adlm.curator.mechanisms import model_selection, table_rounds
from adlm.curator.mechanisms.model_selection import NOT_KEPT, SelectionPlan, calibrate, plan_selection
from adlm.curator.mechanisms.table_rounds import TableRoundsPlan
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.privacy.accounting import compose
from adlm.privacy.budget import Budget
from adlm.public.domain import NEIGHBOURS
from adlm.public.domain.column import Column
from adlm.public.domain.table import TableDomain
from adlm.public.planning.tables import TablePlan
from adlm.workflows.privatise_table import plan_release

Made = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def declared(columns: int = 3, classes: int = 2, neighbours: str = "replace-one") -> TableDomain:
    numbers = (Column(f"c{i}", "numeric", 0, 1) for i in range(columns))
    label = Column("y", "label", classes=tuple(f"y{i}" for i in range(classes)))
    return TableDomain((*numbers, label), neighbours=neighbours)


def additive_rule(n: int, seed: int = 0) -> Made:
    """Classes by a sum of functions of single columns: what an additive model is for."""
    rng = np.random.default_rng(seed)
    x = rng.random((n, 3)).astype(np.float32)
    score = 6 * np.abs(x[:, 0] - 0.5) + 4 * np.sin(9 * x[:, 1]) - 1.5
    return x, (rng.random(n) < 1 / (1 + np.exp(-score))).astype(np.int64)


def checkerboard(n: int, seed: int = 0) -> Made:
    """Classes by two columns together: no single column says anything."""
    rng = np.random.default_rng(seed)
    x = rng.random((n, 3)).astype(np.float32)
    return x, ((x[:, 0] > 0.5) ^ (x[:, 1] > 0.5)).astype(np.int64)


def made(rule: Any, epsilon: int, seed: int = 1, n: int = 6000) -> Release:
    x, y = rule(n)
    return privatise(lambda: [(x, y)], domain=declared(), epsilon=epsilon, seed=seed)


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("classes", [2, 4])
def test_charges_of_both_models_keep_to_the_budget_and_use_it(neighbours: str, classes: int) -> None:
    table = declared(classes=classes, neighbours=neighbours)
    plan, budget = plan_selection(table, 10_000, Fraction(30)), Budget(Fraction(30))
    charges = calibrate(plan, table, budget).charges
    assert Fraction(99, 100) * 30 < compose(charges).epsilon_proved <= 30
    assert sum("gets right" in charge.what for charge in charges) == 2
    first, second = plan.budgets(budget)
    assert first.epsilon + second.epsilon == 30


def test_each_table_gets_the_model_that_suits_it() -> None:
    kept = [made(rule, 20).kind for rule in (additive_rule, checkerboard)]
    assert kept == ["table", "rounds"]
    x, y = checkerboard(4000, seed=9)
    assert float((fit(made(checkerboard, 60)).predict(x) == y).mean()) > 0.8


def test_the_certificate_has_the_charges_of_both_and_the_ledger_the_same(tmp_path: Path) -> None:
    x, y = checkerboard(6000)
    ledger = Ledger(tmp_path / "L.jsonl")
    release = privatise(lambda: [(x, y)], domain=declared(), epsilon=60, ledger=ledger)
    charges = release.certificate.charges
    assert sum(charge.what.endswith(NOT_KEPT) for charge in charges) >= 2
    spent = ledger.totals()
    assert spent is not None
    assert spent.epsilon_proved == release.certificate.totals.epsilon_proved <= 60
    right = release.certificate.settings["selection"]["correct"]
    assert right[1] > right[0]
    release.save(tmp_path / "R")
    findings = audit_release(tmp_path / "R", 200, Source.system())
    assert not findings[0].fault, findings[0].note


def test_a_certificate_that_leaves_out_the_other_model_is_found(tmp_path: Path) -> None:
    release = made(checkerboard, 60)
    certificate = release.certificate
    kept = tuple(charge for charge in certificate.charges if not charge.what.endswith(NOT_KEPT))
    forged = Release.make(
        release.tensors,
        kind=certificate.kind,
        domain=certificate.domain,
        features=certificate.features,
        settings=certificate.settings,
        charges=kept,
    )
    forged.save(tmp_path / "R")
    note = audit_release(tmp_path / "R", 200, Source.system())[0].note
    assert "not kept are missing" in note


def test_a_budget_for_one_model_alone_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    x, y = checkerboard(6000)
    ledger = Ledger(tmp_path / "L.jsonl", budget=Budget(Fraction(40)))
    with pytest.raises(UserError, match="budget"):
        privatise(lambda: [(x, y)], domain=declared(), epsilon=60, ledger=ledger)
    assert ledger.charges == ()


def test_with_delta_or_little_signal_there_is_one_model() -> None:
    assert isinstance(plan_release(declared(), 300, Fraction(1), Fraction(0)), TablePlan)
    with_delta = plan_release(declared(), 10_000, Fraction(60), Fraction(1, 10**5))
    assert isinstance(with_delta, table_rounds.TableRoundsPlan)
    pure = (declared(), 10_000, Fraction(60), Fraction(0))
    assert isinstance(plan_release(*pure, model="additive"), TablePlan)
    assert isinstance(plan_release(*pure, model="rounds"), TableRoundsPlan)
    with pytest.raises(UserError, match="gradient rounds have no class tables"):
        plan_release(*pure, rounds="twice", model="rounds")
    plan = plan_release(declared(), 10_000, Fraction(60), Fraction(0))
    assert isinstance(plan, SelectionPlan)
    assert "the better of two" in plan.summary
    with pytest.raises(UserError, match="pure budget"):
        plan.budgets(Budget(Fraction(1), Fraction(1, 10**5)))


def test_shares_fall_with_the_signal_and_keep_a_tenth() -> None:
    shares = [plan_selection(declared(), 10_000, Fraction(e)).additive_share for e in (6, 20, 60, 600)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] <= Fraction(1, 2)
    assert shares[-1] == model_selection.LEAST_SHARE


@pytest.mark.parametrize("rule", [additive_rule, checkerboard])
def test_pure_accuracy_does_not_fall_as_epsilon_grows(rule: Any) -> None:
    """Means of three releases, on either side of the change of mechanism; their spread is under a point."""
    x, y = rule(6000, 9)
    found = [
        np.mean([float((fit(made(rule, e, seed)).predict(x) == y).mean()) for seed in (1, 2, 3)])
        for e in (2, 8, 20, 60, 250, 1000)
    ]
    highest = np.maximum.accumulate(found)
    assert (highest - found).max() < 0.015, found


def test_one_row_is_for_two_classes_alone() -> None:
    two, four = (plan_selection(declared(classes=m), 10_000, Fraction(60)).rounds for m in (2, 4))
    assert (two.rounds.one_row, four.rounds.one_row) == (True, False)
    assert replace(two.rounds, one_row=False).to_dict().keys() | {"one_row"} == two.rounds.to_dict().keys()
