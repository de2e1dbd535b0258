"""`adlm verify`: check a release, a model or an ONNX file without trusting its sender."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet, Trust, stamped


def verify(
    artefact: Annotated[Path, typer.Argument(help="A release folder, a model folder or an ONNX file.")],
    trust: Trust = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Recompute the totals from the charges and the hashes from the tensors; check who signed it.

    Without --trust this proves arithmetic and integrity: the epsilon follows from the charges, and all
    bytes match their digests. It does not prove origin, as digests can be rewritten. With --trust
    the release must be signed by one of the keys, and so must a model or an ONNX file, together with its
    release. Nothing here proves that noise was drawn. With --json: {"whole", "kind", "epsilon_claimed",
    "epsilon_proved", "delta", "neighbours", "unproved", "stamps", "charges", "artefact", "digest",
    "signed_by", "release_signed_by", "trusted", "says", "mu", "unit"}.
    """
    from adlm.export.verification import verify as check
    from adlm.privacy.accounting import number, show
    from adlm.privacy.signature import load_public

    output = Output(as_json, quiet)
    verified = check(artefact, [load_public(path) for path in trust or ()])
    certificate = verified.certificate
    totals = certificate.totals
    rows = [
        [c.what, c.mechanism, show(c.claimed), show(c.epsilon_proved), f"{float(c.delta):g}", c.proof]
        for c in certificate.charges
    ]
    output.table(["released", "noise", "claimed", "proved", "delta", "proof"], rows)
    for line in (*verified.sentences(), totals.about_mu()):
        if line:
            output.say(line)
    charges = [
        {"what": c.what, "epsilon_claimed": number(c.claimed), "epsilon_proved": number(c.epsilon_proved)}
        for c in certificate.charges
    ]
    signers = (
        verified.signature and verified.signature.signer,
        verified.release_signature and verified.release_signature.signer,
    )
    origin = "signed by a trusted key" if verified.trusted else "origin unverified"
    output.result(
        {
            "whole": True,
            "kind": certificate.kind,
            "stamps": list(verified.stamps),
            "charges": charges,
            "artefact": verified.kind,
            "digest": certificate.digest,
            "signed_by": signers[0],
            "release_signed_by": signers[1],
            "trusted": verified.trusted,
            "says": verified.sentences(),
            "mu": totals.mu or None,
            "unit": totals.unit,
        }
        | totals.to_dict(),
        f"{artefact} is intact (all digests match), {origin}: {totals.sentence()}{stamped(verified.stamps)}",
    )
