"""`adlm ledger`: what was spent on a data set, and what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet
from adlm.errors import UserError

KEYS = ("epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved")
app = typer.Typer(
    help="What was spent on a data set, and what is left. Example: adlm ledger show L.jsonl",
    no_args_is_help=True,
)


@app.command("show", epilog="Example: adlm ledger show L.jsonl --delta 1e-5")
def show_ledger(
    ledger: Annotated[Path, typer.Argument(help="The ledger's file, as adlm release printed it.")],
    delta: Annotated[str, typer.Option(help="Delta of the next release; 0 for pure epsilon.")] = "0",
    neighbours: Annotated[
        str | None, typer.Option(help="Relation of the next release; that of the charges by default.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """List the charges of a ledger, their total, and what is left for a release of this delta and relation.

    Nothing is changed. With --json: {"ledger", "budget": {"epsilon", "delta"} or null, "charges": [{"what",
    "mechanism", "neighbours", "unit", "epsilon_claimed", "epsilon_proved", "delta"}], "left", "asked":
    {"delta", "neighbours"}} and the totals, null where charges of different relations do not add up.
    """
    from adlm.domain import NEIGHBOURS
    from adlm.privacy.accounting import compose, number, parse_delta, show, unit_words
    from adlm.privacy.ledger import Ledger

    output, requested = Output(as_json, quiet), parse_delta(delta)
    if neighbours is not None and neighbours not in NEIGHBOURS:
        raise UserError(f"--neighbours must be one of {', '.join(NEIGHBOURS)}, got {neighbours!r}")
    if not ledger.is_file():
        raise UserError(f"there is no ledger {ledger}; adlm release prints where it keeps one")
    book = Ledger(ledger)
    charges, budget, left = book.charges, book.budget, book.left(requested, neighbours)
    relations = sorted({c.neighbours for c in charges})
    rows = [
        [
            c.what,
            c.mechanism,
            c.neighbours,
            c.unit,
            show(c.claimed),
            show(c.epsilon_proved),
            f"{float(c.delta):g}",
        ]
        for c in charges
    ]
    output.table(["charged for", "noise", "neighbours", "per", "claimed", "proved", "delta"], rows)
    totals = compose(charges) if len(relations) == 1 else None
    if totals is not None:
        spent = f"spent: {totals.sentence()}"
    else:
        spent = f"charges under {' and '.join(relations)} do not add up" if relations else "nothing is spent"
    if budget is None or left is None:
        rest = "there is no budget" if charges else "no budget is fixed yet"
    else:
        relation = neighbours or " or ".join(relations) or "any relation"
        unit = unit_words(max((c.contributions for c in charges), default=1))
        rest = (
            f"of a budget of epsilon {show(budget.epsilon)}, delta {float(budget.delta):g}, epsilon "
            f"{show(left)} is left for a release with delta {float(requested):g} under {relation} per {unit}"
        )
    output.result(
        {
            "ledger": str(ledger),
            "budget": budget and {"epsilon": float(budget.epsilon), "delta": float(budget.delta)},
            "charges": [
                {
                    "what": c.what,
                    "mechanism": c.mechanism,
                    "neighbours": c.neighbours,
                    "unit": c.unit,
                    "epsilon_claimed": number(c.claimed),
                    "epsilon_proved": number(c.epsilon_proved),
                    "delta": float(c.delta),
                }
                for c in charges
            ],
            "left": None if left is None else float(left),
            "asked": {"delta": float(requested), "neighbours": neighbours},
        }
        | (totals.to_dict() if totals else dict.fromkeys(KEYS)),
        f"{ledger}: {spent}; {rest}",
    )
