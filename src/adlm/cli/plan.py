"""`adlm plan`: forecast a release, before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from adlm.cli.console import AsJson, Output, Quiet
from adlm.errors import UserError

if TYPE_CHECKING:
    from adlm.mechanism.forecast import Forecast, TableForecast
    from adlm.mechanism.planner import PurePlan
    from adlm.mechanism.planning import MomentPlan

Simulated = TypeVar("Simulated", "Forecast", "TableForecast")

EPSILONS = "0.05,0.1,0.25,0.5,1,3"


def plan(
    data: Annotated[str | None, typer.Option(help="A data set by name; it is not read.")] = None,
    domain: Annotated[Path | None, typer.Option(help="A domain file; needs --public-size.")] = None,
    public_size: Annotated[
        int | None,
        typer.Option("--size", "--public-size", help="Number of records, public or guessed.", min=1),
    ] = None,
    epsilon: Annotated[str, typer.Option(help="One or more budgets, separated by commas.")] = EPSILONS,
    delta: Annotated[str, typer.Option(help="0 for pure epsilon; such as 1e-5 for Gaussian noise.")] = "0",
    neighbours: Annotated[str | None, typer.Option(help="replace-one or add-remove.")] = None,
    fourier: Annotated[
        str | None, typer.Option(help="Tables: random Fourier features.", metavar="N|auto")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Write accuracy over epsilon to this SVG.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Forecast the settings and the accuracy of a release, from public quantities alone.

    The release is simulated on the most similar classes of a public random process: it spends nothing and
    reads no record, and a release is then made with the same settings. The separation of such classes is a
    public constant for each kind of image; yours may differ, so the accuracy is only a forecast.
    With --json: {"n", "classes", "features", "neighbours", "plans": [{"epsilon", "delta", "accuracy",
    "spread", "signal_to_noise", "signal_to_noise_second", "k", "reasons", ...}]}, with all settings.
    """
    from adlm.privacy.accounting import Budget

    for one in epsilon.split(","):
        Budget.of(one, delta)
    from adlm.data import datasets
    from adlm.domain.table import TableDomain, load_domain
    from adlm.features import for_domain
    from adlm.mechanism.forecast import forecast

    output = Output(as_json, quiet)
    if (data is None) == (domain is None):
        raise UserError("give either --data NAME, or --domain FILE with --public-size N")
    declared = None if domain is None else load_domain(domain)
    of_table = isinstance(declared, TableDomain) and declared.input is None
    if fourier is not None and not of_table:
        raise UserError("--fourier is for tables; leave it out, or give the --domain of a table")
    if data is not None:
        known = datasets.domain(data)
        n = public_size or next(d["train"] for d in datasets.describe() if d["name"] == data)
    else:
        assert domain is not None
        if public_size is None or public_size < 1:
            raise UserError("--domain needs --public-size, the number of records, public or guessed")
        if of_table:
            _plan_table(domain, public_size, epsilon.split(","), delta, neighbours, fourier, output, picture)
            return
        assert declared is not None
        known, n = declared.domain if isinstance(declared, TableDomain) else declared, public_size
    features = for_domain(known)
    relation = neighbours or known.neighbours
    plans = _simulated(
        epsilon.split(","), lambda budget: forecast(features, n, len(known.classes), budget, delta, relation)
    )
    rows = [
        [
            f"{p.epsilon:g}",
            _mechanism(p.plan),
            f"{p.signal_to_noise:.2f}" if p.signal_to_noise is not None else "-",
            f"{p.signal_to_noise_second:.2f}" if p.signal_to_noise_second is not None else "-",
            f"{100 * p.accuracy:.1f} ± {100 * p.spread:.1f}",
        ]
        for p in plans
    ]
    output.table(
        ["epsilon", "mechanism", "signal/noise", "of second moments", "forecast, %"],
        rows,
        title=f"{n} records, {len(known.classes)} classes, {relation}, delta {delta}; nothing is spent",
    )
    remarks = [
        "forecasts are for synthetic classes with the separation of handwriting, garments or photographs; "
        "yours may be easier or harder"
    ]
    if any("gradient rounds" in _mechanism(p.plan) for p in plans):
        remarks.append(
            "plans with gradient rounds: moments under the same budget were simulated; expect rather more"
        )
    facts = {"n": n, "classes": len(known.classes), "features": features.spec(), "neighbours": relation}
    _finish(output, plans, facts, remarks, picture)


def _mechanism(plan: MomentPlan | PurePlan) -> str:
    """Describe in a few words what is released."""
    from adlm.mechanism.planner import PurePlan

    if isinstance(plan, PurePlan):
        return plan.summary
    told = f"class sums of {plan.k} features, {plan.noise} noise"
    if plan.rounds is not None:
        return f"{told}, then {plan.rounds.rounds} gradient rounds"
    return f"{told}, second moments of {plan.q}" if plan.q else told


def _plan_table(
    domain: Path,
    n: int,
    budgets: list[str],
    delta: str,
    neighbours: str | None,
    fourier: str | None,
    output: Output,
    picture: Path | None,
) -> None:
    from dataclasses import replace

    from adlm.cli.release import random_fourier_features
    from adlm.domain.table import TableDomain
    from adlm.mechanism.forecast import forecast_table

    table = TableDomain.load(domain)
    table = table if neighbours is None else replace(table, neighbours=neighbours)
    features = random_fourier_features(fourier)
    plans = _simulated(budgets, lambda budget: forecast_table(table, n, budget, delta, fourier=features))
    rows = [
        [
            f"{p.epsilon:g}",
            p.plan.summary,
            str(p.plan.fourier),
            f"{100 * p.accuracy:.1f}",
            f"{100 * p.ceiling:.1f}",
        ]
        for p in plans
    ]
    measure = "accuracy" if table.target is None else "R2"
    output.table(
        ["epsilon", "mechanism", "Fourier features", f"{measure} on simulated records, %", "at best, %"],
        rows,
        title=f"{n} records, {len(table.features)} columns, {table.neighbours}, delta {delta}; nothing spent",
    )
    remark = (
        "how well columns predict the label is unknown beforehand: these records are synthetic, so do not "
        "rely on the accuracy for yours; compare budgets by it"
    )
    facts = {"n": n, "classes": len(table.answer.classes), "features": {"name": "tabular"}}
    _finish(output, plans, facts | {"neighbours": table.neighbours}, [remark], picture)


def _simulated(budgets: list[str], simulate: Callable[[str], Simulated]) -> list[Simulated]:
    """Forecast a release for each budget."""
    from adlm.runtime import progress

    plans = []
    with progress.bar(len(budgets), "simulations") as advance:
        for budget in budgets:
            plans.append(simulate(budget))
            advance(1)
    return plans


def _finish(
    output: Output,
    plans: Sequence[Forecast | TableForecast],
    facts: dict[str, Any],
    remarks: Sequence[str],
    picture: Path | None,
) -> None:
    """Print reasons and remarks, draw the picture, and print the figures."""
    from adlm.report.html import accuracy_over_epsilon

    for p in plans:
        for reason in p.plan.reasons:
            output.say(f"epsilon {p.epsilon:g}: {reason}")
    for remark in remarks:
        output.say(remark)
    if picture is not None:
        points = [(p.epsilon, p.accuracy, getattr(p, "spread", 0.0)) for p in plans]
        accuracy_over_epsilon(picture, points, "forecast")
    output.result(facts | {"plans": [p.to_dict() for p in plans]})
