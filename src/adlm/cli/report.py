"""`adlm report`: one HTML file about a release or a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlm.cli.console import AsJson, Output, Quiet
from adlm.errors import UserError

if TYPE_CHECKING:
    from adlm.privacy.certificate import Certificate


def report(
    folder: Annotated[Path, typer.Argument(help="A release, a model, or a folder that holds both.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    evaluation: Annotated[
        Path | None,
        typer.Option(help="Figures saved by adlm evaluate --save; by default those next to the model."),
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(help="Output of adlm audit --json; by default that next to the folder.")
    ] = None,
    statement: Annotated[
        bool,
        typer.Option("--statement", help="Print a paragraph for a privacy statement instead."),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML file that explains the guarantee, and shows the noise and the models.

    It needs no network and no script, and holds nothing that the artefacts do not. With --json: {"out",
    "epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved", "stamps"}.
    """
    from adlm.report import render
    from adlm.report.subject import find

    subject = find(folder, evaluation=_evaluation(evaluation), audit=_audit(audit))
    if statement:
        text = privacy_statement(subject.certificate)
        Output(as_json, quiet).result({"statement": text} | subject.certificate.totals.to_dict(), text)
        return
    from adlm.runtime.artefact import write_file

    write_file(out, render(subject).encode(), what="report")
    certificate = subject.certificate
    Output(as_json, quiet).result(
        {"out": str(out), "stamps": list(certificate.stamps)} | certificate.totals.to_dict(),
        f"{out}: {certificate.totals.sentence()}",
    )


def privacy_statement(certificate: Certificate) -> str:
    """Return a paragraph on the guarantee of a release, for people who know nothing of this library.

    Parameters
    ----------
    certificate : of the release.
    """
    import math

    from adlm.privacy.accounting import show

    totals = certificate.totals
    if totals.unproved or not certificate.private:
        why = "; ".join((*totals.unproved, *certificate.stamps))
        return f"No differential privacy guarantee can be stated for this release: {why}."
    one = "person" if totals.person or totals.contributions > 1 else "record"
    differ = (
        f"one {one} is replaced by any other"
        if totals.neighbours == "replace-one"
        else f"one {one} is added or removed"
    )
    delta = f" and delta = {float(totals.delta):g}" if totals.delta else ""
    factor = f"{math.exp(min(float(totals.epsilon_proved), 700.0)):.3g}"
    bound = (
        f"the probability of any result grows at most {factor} times, plus {float(totals.delta):g}"
        if totals.delta
        else f"the odds of any conclusion about one {one} change by a factor of at most {factor}"
    )
    return (
        "Random noise was added so that the result is differentially private with epsilon = "
        f"{show(totals.epsilon_proved)}{delta}. Two data sets are neighbours if {differ}. Between "
        f"neighbours, whatever else is known, {bound}. "
        "Facts about the population are not protected. The guarantee "
        "covers this release and all models made from it; further releases of the same data add to it. "
        f"Certificate: {certificate.digest}."
    )


def _evaluation(path: Path | None) -> dict[str, Any] | None:
    """Read the figures of `adlm evaluate`: an accuracy and a confusion matrix."""
    figures = _figures(path)
    if figures is None:
        return None
    accuracy, confusion = figures.get("accuracy"), figures.get("confusion", [])
    share = isinstance(accuracy, int | float) and 0 <= accuracy <= 1
    square = isinstance(confusion, list) and all(
        isinstance(row, list) and len(row) == len(confusion) and all(isinstance(v, int | float) for v in row)
        for row in confusion
    )
    if not share or not square:
        raise UserError(
            f"{path} must hold an accuracy between 0 and 1 and a square confusion matrix; "
            "give a file that adlm evaluate --save wrote"
        )
    return figures


def _audit(path: Path | None) -> dict[str, Any] | None:
    """Read the output of `adlm audit --json`: findings with a mechanism and a verdict each."""
    figures = _figures(path)
    if figures is None:
        return None
    findings = figures.get("findings")
    named = isinstance(findings, list) and all(
        isinstance(one, dict) and {"mechanism", "verdict"} <= one.keys() for one in findings
    )
    if not named:
        raise UserError(f"{path} must hold findings of an audit; give a file that adlm audit --json wrote")
    return figures


def _figures(path: Path | None) -> dict[str, Any] | None:
    import json

    if path is None:
        return None
    try:
        figures = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"{path} is not JSON; give a file that adlm evaluate or adlm audit wrote") from None
    if not isinstance(figures, dict):
        raise UserError(f"{path} must hold one JSON object, got {type(figures).__name__}")
    return figures
