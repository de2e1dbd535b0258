"""`adlm verify`: check a release or a model without trusting whoever made it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet


def verify(
    folder: Annotated[Path, typer.Argument(help="A release or a model.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Recompute the totals from the charges and the hashes from the tensors.

    A byte changed anywhere in the tensors or the certificate is found and named. With --json: {"whole",
    "kind", "epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved", "stamps", "charges"}.
    """
    from adlm.analyst.model import DESCRIPTION, Model
    from adlm.certificate import number, show
    from adlm.release import Release

    output = Output(as_json, quiet)
    loaded: Model | Release
    loaded = Model.load(folder) if (folder / DESCRIPTION).exists() else Release.load(folder)
    certificate = loaded.certificate
    totals = certificate.totals
    rows = [
        [c.what, c.mechanism, show(c.claimed), show(c.epsilon_proved), f"{float(c.delta):g}", c.proof]
        for c in certificate.charges
    ]
    output.table(["released", "noise", "claimed", "proved", "delta", "proof"], rows)
    for stamp in certificate.stamps:
        output.say(f"stamped: {stamp}")
    charges = [
        {"what": c.what, "epsilon_claimed": number(c.claimed), "epsilon_proved": number(c.epsilon_proved)}
        for c in certificate.charges
    ]
    output.result(
        {"whole": True, "kind": certificate.kind, "stamps": list(certificate.stamps), "charges": charges}
        | totals.to_dict(),
        f"{folder} is whole: {totals.sentence()}",
    )
