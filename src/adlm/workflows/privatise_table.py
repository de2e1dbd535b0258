"""Privatise a table once: from a private CSV or Parquet file, or a DataFrame, to a release."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.additive import release_additive
from adlm.curator.mechanisms.regression import plan_target, release_regression
from adlm.curator.mechanisms.table_rounds import TableRoundsPlan, plan_table, release_table, suits_rounds
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.privacy.accounting import parse_delta, parse_epsilon
from adlm.privacy.release import PEEKED, Release
from adlm.public.domain.table import TableDomain
from adlm.public.features.scaled_table import is_ordered
from adlm.public.features.tabular import TabularFeatures
from adlm.public.planning.regression import RegressionPlan
from adlm.public.planning.tables import ASKED_WAVES, TablePlan
from adlm.public.planning.tables import plan_table as choose
from adlm.readers.tables import read_batches

Encoded = tuple[NDArray[np.float32], NDArray[np.int64]]
Fourier = int | Literal["auto"]


def privatise_table(
    file: Path | str,
    domain: TableDomain | Path | str,
    *,
    epsilon: object,
    delta: object = 0,
    neighbours: str | None = None,
    ledger: Ledger | None = None,
    source: Source | None = None,
    seed: int | None = None,
    size: int | None = None,
    plan: TablePlan | TableRoundsPlan | RegressionPlan | None = None,
    allocation: str | None = None,
    relevance: str = "prior",
    fourier: Fourier = 0,
    device: str = "cpu",
    k: int | None = None,
    second: int | None = None,
    share_sums: float | None = None,
) -> Release:
    """Read a private table and release what an additive model needs.

    Parameters
    ----------
    file : CSV (compressed or not) or Parquet. It is read in batches, once for each stage and once to count.
    domain : the declared table, or its domain file.
    size : a public guess of the number of records for the rule to work with, where the number is private:
        under add-remove, or when a person may have several records.
    allocation : `identical` gives every column the same noise; by default noise follows relevance where
        that pays.
    relevance : `private` looks at the tables twice whatever the noise, the second time with noise by
        the relevance that the first look gave; `prior` leaves it to the rule.
    fourier : random Fourier features of the numeric columns together: a number, or `auto` for the rule's.
    device : not used; encoding a table is light work.
    k, second, share_sums : settings of other moment releases; a table's release has none of them.
    """
    given = [
        name for name, value in (("k", k), ("second", second), ("share", share_sums)) if value is not None
    ]
    if given:
        raise UserError(f"a table's release has no setting {given[0]}; leave it to the rule")
    if allocation not in (None, "identical") or relevance not in ("prior", "private"):
        raise UserError("a table's allocation is identical or left out, its relevance prior or private")
    rounds = "once" if allocation == "identical" else "twice" if relevance == "private" else None
    table = domain if isinstance(domain, TableDomain) else TableDomain.load(domain)
    if neighbours is not None:
        table = replace(table, neighbours=neighbours)

    def passes() -> Iterable[Encoded]:
        return ((batch.x, batch.y) for batch in read_batches(file, table))

    return privatise_encoded(
        passes,
        table,
        epsilon=epsilon,
        delta=delta,
        ledger=ledger,
        source=source,
        seed=seed,
        size=size,
        plan=plan,
        rounds=rounds,
        fourier=fourier,
    )


def privatise_encoded(
    passes: Callable[[], Iterable[Encoded]],
    table: TableDomain,
    *,
    epsilon: object,
    delta: object = 0,
    ledger: Ledger | None = None,
    source: Source | None = None,
    seed: int | None = None,
    size: int | None = None,
    plan: TablePlan | TableRoundsPlan | RegressionPlan | None = None,
    rounds: str | None = None,
    fourier: Fourier = 0,
) -> Release:
    """Release from batches of encoded records, (n, width) in [0, 1], with class codes or target positions.

    `rounds` at the class tables `once` or `twice`; None leaves it to the rule.
    """
    budget, slack = parse_epsilon(epsilon), parse_delta(delta)
    stamps = (PEEKED,) if table.bounds_learnt_from_data else ()
    book = ledger or Ledger()
    draw = source or (Source.system() if seed is None else Source.seeded_with(seed))
    if plan is None:
        plan = plan_release(table, _public_size(passes, table, size), budget, slack, fourier, rounds)
    if isinstance(plan, RegressionPlan) != (table.target is not None):
        raise UserError(
            "a numeric target needs a RegressionPlan, and a label another plan; leave it to the rule"
        )
    if isinstance(plan, RegressionPlan):
        if rounds is not None:
            raise UserError("a numeric target has no class tables; leave out allocation and relevance")
        return release_regression(
            passes, table, plan, epsilon=budget, delta=slack, ledger=book, source=draw, stamps=stamps
        )
    if isinstance(plan, TableRoundsPlan):
        return release_table(
            passes, table, plan, epsilon=budget, delta=slack, ledger=book, source=draw, stamps=stamps
        )
    if rounds is not None:
        plan = plan.with_rounds(two_rounds=rounds == "twice")
    features = TabularFeatures(table, detail=plan.detail, fourier=plan.fourier)

    def batches() -> Iterable[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        with torch.inference_mode():
            for x, y in passes():
                yield features(torch.from_numpy(x)).numpy(), y

    return release_additive(
        batches,
        domain=table.domain,
        features=features,
        plan=plan,
        epsilon=budget,
        delta=slack,
        ledger=book,
        source=draw,
        contributions=table.contributions,
        stamps=stamps,
    )


def plan_release(
    table: TableDomain,
    n: int,
    epsilon: Fraction,
    delta: Fraction,
    fourier: Fourier = 0,
    rounds: str | None = None,
) -> TablePlan | TableRoundsPlan | RegressionPlan:
    """Choose how to release a table: by gradient rounds, or as an additive model of noisy class tables.

    A numeric target has gradient rounds of its own.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    fourier : random Fourier features: a number, or 0 or `auto` for the rule's.
    rounds : `once` or `twice` asks for class tables, with the same noise or with noise by relevance.
    """
    if table.target is not None:
        return plan_target(table, n, epsilon, delta, waves_asked(table, fourier))
    if rounds is None and suits_rounds(table, n, epsilon, delta):
        return plan_table(table, n, epsilon, delta, waves_asked(table, fourier))
    return choose(table, n, epsilon, delta, fourier)


def waves_asked(table: TableDomain, fourier: Fourier) -> int:
    """Check a number of random Fourier features; 0 leaves it to the rule."""
    if fourier == "auto":
        return 0
    if not 0 <= fourier <= ASKED_WAVES:
        raise UserError(f"fourier must be auto or a whole number from 0 to {ASKED_WAVES} (got {fourier!r})")
    if fourier and not any(is_ordered(column) for column in table.features):
        raise UserError("random Fourier features need a numeric, date or ordinal column; leave them out")
    return int(fourier)


def _public_size(passes: Callable[[], Iterable[Encoded]], table: TableDomain, size: int | None) -> int:
    """Return the number of records that the rule may use: public under replace-one, one record a person."""
    if size is not None:
        return size
    if table.neighbours == "replace-one" and table.contributions == 1:
        n = sum(len(y) for _, y in passes())
        if n == 0:
            raise UserError("there are no records to release; give at least one")
        return n
    why = "under add-remove" if table.neighbours == "add-remove" else "when a person may have several records"
    raise UserError(
        f"{why} the number of records is private; give a public guess of it (size=..., --public-size)"
    )
