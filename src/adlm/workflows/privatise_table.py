"""Privatise a table once: from batches of encoded records to a release."""

from __future__ import annotations

from fractions import Fraction

from adlm.curator.mechanisms import additive, model_selection, regression, table_rounds
from adlm.curator.mechanisms.model_selection import SelectionPlan, plan_selection, suits_selection
from adlm.curator.mechanisms.regression_calibration import plan_target
from adlm.curator.mechanisms.table_rounds import TableRoundsPlan, plan_table, suits_rounds
from adlm.curator.passes import Records
from adlm.curator.table_records import TableFeatures, encoded_records
from adlm.errors import UserError
from adlm.privacy.budget import Budget
from adlm.privacy.certificate import PEEKED
from adlm.privacy.release import Release
from adlm.public.domain.table import TableDomain
from adlm.public.features.table_indicators import is_ordered
from adlm.public.features.tabular import TabularFeatures
from adlm.public.planning.regression import RegressionPlan
from adlm.public.planning.tables import FOURIER_LIMIT, TablePlan
from adlm.public.planning.tables import plan_table as plan_additive
from adlm.workflows.options import Fourier, Reader, ReleaseOptions, TableReleasePlan, opened, public_size


def privatise_table(
    reader: Records | Reader, table: TableDomain, budget: Budget, options: ReleaseOptions
) -> Release:
    """Release a table from its encoded records; see `privatise`.

    Parameters
    ----------
    reader : records that an engine holds, or a function, called once a pass, that yields batches of
        (n, width) records in [0, 1] with their (n,) class codes, or positions of the target.
    table : the declared table.
    budget : epsilon and delta.
    options : those of `privatise` that are for tables.
    """
    allocation, relevance = options.get("allocation"), options.get("relevance", "prior")
    if allocation not in (None, "identical") or relevance not in ("prior", "private"):
        raise UserError("a table's allocation is identical or left out, its relevance prior or private")
    rounds = "once" if allocation == "identical" else "twice" if relevance == "private" else None
    stamps = (PEEKED,) if table.bounds_learnt_from_data else ()
    ledger, source = opened(options)
    plan = options.get("plan")
    if plan is None:
        n = public_size(table.neighbours, table.contributions, options.get("size"), lambda: _count(reader))
        plan = plan_release(
            table,
            n,
            budget.epsilon,
            budget.delta,
            options.get("fourier", 0),
            rounds,
            options.get("model", "auto"),
        )
    if isinstance(plan, RegressionPlan) != (table.target is not None):
        raise UserError("a numeric target needs a RegressionPlan, a label another plan; leave it to the rule")
    if isinstance(plan, RegressionPlan):
        if rounds is not None:
            raise UserError("a numeric target has no class tables; leave out allocation and relevance")
        return regression.release(
            reader, table, plan=plan, budget=budget, ledger=ledger, source=source, stamps=stamps
        )
    if isinstance(plan, TableRoundsPlan):
        return table_rounds.release(
            reader, table, plan=plan, budget=budget, ledger=ledger, source=source, stamps=stamps
        )
    if isinstance(plan, SelectionPlan):
        return model_selection.release(
            reader, table, plan=plan, budget=budget, ledger=ledger, source=source, stamps=stamps
        )
    if not isinstance(plan, TablePlan):
        raise UserError(f"a table's release follows a plan of tables, got {type(plan).__name__}")
    if rounds is not None:
        plan = plan.with_rounds(two_rounds=rounds == "twice")
    features = TabularFeatures(table, detail=plan.detail, fourier=plan.fourier)
    records = encoded_records(reader, table).mapped(TableFeatures(features))
    return additive.release(
        records, features=features, plan=plan, budget=budget, ledger=ledger, source=source, stamps=stamps
    )


def plan_release(
    table: TableDomain,
    n: int,
    epsilon: Fraction,
    delta: Fraction,
    fourier: Fourier = 0,
    rounds: str | None = None,
    model: str = "auto",
) -> TableReleasePlan:
    """Choose how to release a table: by gradient rounds, or as an additive model of noisy class tables.

    Under pure epsilon both are made where the signal allows it, and the better one is kept. A numeric target
    has its own gradient rounds.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    fourier : random Fourier features: a number, or 0 or `auto` to leave it to the rule.
    rounds : `once` or `twice` selects class tables, with identical noise or with noise by relevance.
    model : `additive`, `rounds`, or `auto` to leave it to the rule.
    """
    if table.target is not None:
        if model != "auto":
            raise UserError("a numeric target has one model; leave model out")
        return plan_target(table, n, epsilon, delta, checked_fourier(table, fourier))
    if model == "rounds":
        if rounds is not None:
            raise UserError("gradient rounds have no class tables; leave out allocation and relevance")
        return plan_table(table, n, epsilon, delta, checked_fourier(table, fourier))
    if model == "additive":
        return plan_additive(table, n, epsilon, delta, fourier)
    if rounds is None and delta and suits_rounds(table, n, epsilon, delta):
        return plan_table(table, n, epsilon, delta, checked_fourier(table, fourier))
    if rounds is None and not delta and suits_selection(table, n, epsilon):
        return plan_selection(table, n, epsilon, checked_fourier(table, fourier))
    return plan_additive(table, n, epsilon, delta, fourier)


def checked_fourier(table: TableDomain, fourier: Fourier) -> int:
    """Check a number of random Fourier features; 0 leaves it to the rule."""
    if fourier == "auto":
        return 0
    if not 0 <= fourier <= FOURIER_LIMIT:
        raise UserError(f"fourier must be auto or an integer from 0 to {FOURIER_LIMIT} (got {fourier!r})")
    if fourier and not any(is_ordered(column) for column in table.features):
        raise UserError("random Fourier features need a numeric, date or ordinal column; leave them out")
    return int(fourier)


def _count(reader: Records | Reader) -> int:
    n = reader.rows if isinstance(reader, Records) else sum(len(y) for _, y in reader())
    if n == 0:
        raise UserError("there are no records to release; give at least one")
    return n
