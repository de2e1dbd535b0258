"""`adlm card`: a model card in the form of the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlm.cli.console import AsJson, Output, Quiet, stamped
from adlm.errors import UserError

if TYPE_CHECKING:
    from adlm.privacy.certificate import Certificate


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
    registry: Annotated[
        bool,
        typer.Option(
            "--registry",
            help="Print an entry for a registry of DP deployments instead, as JSON.",
        ),
    ] = False,
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
    if registry:
        typer.echo(json.dumps(registry_entry(subject.certificate), indent=2))
        return
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


def registry_entry(certificate: Certificate) -> dict[str, Any]:
    """Return what a certificate knows of a deployment, by the groups of the registry's schema.

    The groups are those of arXiv 2509.13509: flavour, privacy unit, privacy loss, model, accounting,
    implementation. What a certificate cannot know, such as the curator, is null.

    Parameters
    ----------
    certificate : of the release.
    """
    totals = certificate.totals
    stated = totals.to_dict()
    replaced = totals.neighbours == "replace-one"
    return {
        "deployment": {"curator": None, "intended_use": None, "data_product": certificate.kind, "date": None},
        "dp_flavor": {
            "name": "approximate DP" if totals.delta else "pure DP",
            "data_domain": certificate.domain.to_dict(),
            "bounds_on_contributions": totals.contributions,
            "neighbours": "bounded (one replaced)" if replaced else "unbounded (one added or removed)",
            "unprotected_quantities": ["the number of records"] if replaced else [],
        },
        "privacy_unit": {"name": "person" if totals.person else "record", "description": totals.unit},
        "privacy_loss": {
            "epsilon": stated["epsilon_proved"],
            "epsilon_claimed": stated["epsilon_claimed"],
            "delta": stated["delta"],
            "unproved": stated["unproved"],
        },
        "model": {
            "name": "central",
            "actors": "a trusted curator; analysts read the release",
        },
        "accounting": {
            "composition": [
                {"released": c.what, "mechanism": c.mechanism, "proof": c.proof} for c in certificate.charges
            ],
            "post_processing": "training, search and prediction read the release alone",
        },
        "implementation": {
            "library": dict(certificate.software),
            "randomness": "AES-256 in counter mode, keyed by the system; integer noise",
            "warnings": list(certificate.stamps),
            "certificate": certificate.digest,
        },
    }
