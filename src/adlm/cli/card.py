"""`adlm card`: a model card in the form of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet, stamped
from adlm.errors import UserError


def card(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write; by default README.md in the model's folder.")
    ] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option(help="Figures saved by adlm evaluate --save; by default those next to the model."),
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--license", help="The model's, as the hub names it.", metavar="NAME")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a model card: intended use, data domain, guarantee, accuracy, limits, signature.

    The folder can then be pushed to a hub with the hub's own tools. Accuracy is in the card if it was
    measured; on private records that figure is not private. An earlier card is replaced, any other file
    is not. With --json: {"out", "measured", "stamps"} and the totals.
    """
    from adlm.cli.report import _evaluation
    from adlm.report.card import HEAD, model_card
    from adlm.report.subject import find
    from adlm.runtime.artefact import write_file

    subject = find(model, evaluation=_evaluation(evaluation))
    text = model_card(subject, licence=licence)
    place = model / "README.md" if out is None else out
    if place.exists() and not place.read_bytes().startswith(HEAD.encode()):
        raise UserError(f"{place} exists already and is no card of adlm's; choose another --out")
    write_file(place, text.encode(), what="model card")
    totals, figures = subject.certificate.totals, subject.models[0].evaluation
    if figures is not None and not figures.get("split"):
        typer.echo(
            "adlm: warning: the card has figures measured on a file of yours; if its records are private, "
            "the figures are not, and no epsilon covers them",
            err=True,
        )
    Output(as_json, quiet).result(
        {"out": str(place), "measured": figures is not None, "stamps": list(subject.stamps)}
        | totals.to_dict(),
        f"{place}: {totals.sentence()}{stamped(subject.stamps)}",
    )
