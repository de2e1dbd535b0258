"""`adlm report`: one HTML file about a release or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet


def report(
    folder: Annotated[Path, typer.Argument(help="A release, a model, or a folder that holds both.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    evaluation: Annotated[
        Path | None, typer.Option(help="Figures that adlm evaluate --save kept; found beside a model.")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(help="What adlm audit --json printed; found beside the folder.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML file that explains the guarantee, and shows where the noise went and what was learnt.

    It needs no network and no script, and holds nothing that the artefacts do not. With --json: {"out",
    "epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved", "stamps"}.
    """
    from adlm.report import render
    from adlm.report.subject import find

    subject = find(folder, evaluation=_figures(evaluation), audit=_figures(audit))
    from adlm.artefact import write_file

    write_file(out, render(subject).encode(), what="report")
    certificate = subject.certificate
    Output(as_json, quiet).result(
        {"out": str(out), "stamps": list(certificate.stamps)} | certificate.totals.to_dict(),
        f"{out}: {certificate.totals.sentence()}",
    )


def _figures(path: Path | None) -> dict[str, object] | None:
    import json

    from adlm.errors import UserError

    if path is None:
        return None
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"{path} is not JSON; give a file that adlm evaluate or adlm audit wrote") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold one JSON object, got {type(found).__name__}")
    return found
