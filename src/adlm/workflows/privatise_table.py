"""Privatise a table once: from batches of encoded records to a release."""

from __future__ import annotations

from fractions import Fraction

from adlm.curator.mechanisms import regression, table_rounds
from adlm.curator.mechanisms.regression_calibration import plan_target
from adlm.curator.mechanisms.table_rounds import TableRoundsPlan, plan_table
from adlm.curator.passes import Records
from adlm.curator.table_records import encoded_records
from adlm.errors import UserError
from adlm.mechanism import pure
from adlm.mechanism.planner import PurePlan
from adlm.mechanism.planner import plan_table as plan_pure
from adlm.privacy.budget import Budget
from adlm.privacy.release import Release
from adlm.public.domain.table import TableDomain
from adlm.public.features.table_indicators import is_ordered
from adlm.public.planning.regression import RegressionPlan
from adlm.workflows.options import Fourier, Reader, ReleaseOptions, TableReleasePlan, opened, public_size

FOURIER_LIMIT = 1000  # random Fourier features, when requested by number


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
    ledger, source = opened(options)
    plan = options.get("plan")
    if plan is None:
        n = public_size(table.neighbours, table.contributions, options.get("size"), lambda: _count(reader))
        plan = plan_release(table, n, budget.epsilon, budget.delta, options.get("fourier", 0))
    if isinstance(plan, RegressionPlan) != (table.target is not None) and not isinstance(plan, PurePlan):
        raise UserError("a numeric target needs a RegressionPlan, a label another plan; leave it to adlm")
    if isinstance(plan, PurePlan):
        return pure.release(
            encoded_records(reader, table),
            table,
            plan=plan,
            budget=budget,
            ledger=ledger,
            source=source,
            contributions=table.contributions,
        )
    if isinstance(plan, RegressionPlan):
        return regression.release(reader, table, plan=plan, budget=budget, ledger=ledger, source=source)
    if not isinstance(plan, TableRoundsPlan):
        raise UserError(f"a table's release follows a plan of tables, got {type(plan).__name__}")
    return table_rounds.release(reader, table, plan=plan, budget=budget, ledger=ledger, source=source)


def plan_release(
    table: TableDomain, n: int, epsilon: Fraction, delta: Fraction, fourier: Fourier = 0
) -> TableReleasePlan:
    """Choose how to release a table: by a perturbed loss under pure epsilon, by gradient rounds with delta.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    fourier : random Fourier features: a number, or 0 or `auto` to leave it to the planner.
    """
    count = checked_fourier(table, fourier)
    if not delta:
        return plan_pure(table, n, float(epsilon / table.contributions), count)
    if table.target is not None:
        return plan_target(table, n, epsilon, delta, count)
    return plan_table(table, n, epsilon, delta, count)


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
