"""What others see: `adlm verify`, `report`, `card`, `ledger`, `key` and `ui`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adlm.cli.console import Output, caution, stamped
from adlm.errors import UserError

if TYPE_CHECKING:
    from adlm.model.synthetic import Comparison
    from adlm.privacy.release import Release


def verify(
    artefact: Annotated[Path, "A release folder, a model folder or an ONNX file."],
    *,
    trust: list[Path] | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Recompute the totals from the charges and the hashes from the tensors; check who signed it.

    Without --trust this proves arithmetic and integrity: the epsilon follows from the charges, and all
    bytes match their digests. It does not prove origin, as digests can be rewritten. With --trust
    the release must be signed by one of the keys, and so must a model or an ONNX file, together with its
    release. Nothing here proves that noise was drawn.

    With --json: {"whole", "kind", "epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved",
    "stamps", "charges", "artefact", "digest", "signed_by", "release_signed_by", "trusted", "says", "mu",
    "unit"}.
    """
    from adlm.export.verification import verify as check
    from adlm.privacy.accounting import number
    from adlm.privacy.certificate import charge_table
    from adlm.privacy.signature import load_public

    output = Output(as_json, quiet)
    verified = check(artefact, [load_public(path) for path in trust or ()])
    certificate = verified.certificate
    totals = certificate.totals
    headings, rows = charge_table(certificate.charges)
    output.table(headings, rows)
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


def report(
    folder: Annotated[Path, "A release, a model, or a folder that holds both."],
    *,
    out: Annotated[Path, "The HTML file to write."] = Path("report.html"),
    real: Annotated[
        Path | None, "Real records to set beside those that a synthetic release draws; not private."
    ] = None,
    statement: Annotated[bool, "Print a paragraph for a privacy statement instead."] = False,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Write one HTML file that explains the guarantee, and shows the noise and the models.

    It needs no network and no script, and holds nothing that the artefacts do not. A model's figures are
    those that adlm evaluate --save wrote to evaluation.json in its folder or beside it, and an audit's those
    of adlm audit --json in audit.json beside the artefacts.

    With --json: {"out", "epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved", "stamps"}.
    """
    from adlm.report import render
    from adlm.report.card import privacy_statement
    from adlm.report.subject import find
    from adlm.runtime.artefact import write_file

    subject = find(folder)
    if statement:
        text = privacy_statement(subject.certificate)
        Output(as_json, quiet).result({"statement": text} | subject.certificate.totals.to_dict(), text)
        return
    if real is not None:
        subject = replace(subject, comparison=_compared(subject.release, real))
    write_file(out, render(subject).encode(), what="report")
    certificate = subject.certificate
    Output(as_json, quiet).result(
        {"out": str(out), "stamps": list(certificate.stamps)} | certificate.totals.to_dict(),
        f"{out}: {certificate.totals.sentence()}",
    )


def _compared(release: Release | None, file: Path) -> Comparison:
    """Set records drawn from a synthetic release beside those of a file."""
    import numpy as np

    from adlm.data.reading import read_batches
    from adlm.model.synthetic import compare, table_of

    if release is None:
        raise UserError("--real needs the release itself; give its folder")
    batches = list(read_batches(file, table_of(release), bounded=False, lenient=True))
    return compare(release, np.concatenate([b.x for b in batches]), np.concatenate([b.y for b in batches]))


def card(
    model: Annotated[Path, "A model folder."],
    *,
    out: Annotated[Path | None, "The file to write; by default README.md in the model's folder."] = None,
    licence: Annotated[str | None, "The model's, as the hub names it."] = None,
    registry: Annotated[bool, "Print an entry for a registry of DP deployments instead, as JSON."] = False,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Write a model card: intended use, data domain, guarantee, accuracy, limits, signature.

    The folder can then be pushed to a hub with the hub's own tools. Accuracy is in the card if it was
    measured (adlm evaluate --save M/evaluation.json); on private records that figure is not private. An
    earlier card is replaced, any other file is not.

    With --json: {"out", "measured", "stamps"} and the totals.
    """
    from adlm.report.card import HEAD, model_card, registry_entry
    from adlm.report.subject import find
    from adlm.runtime.artefact import write_file

    subject = find(model)
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
        caution(
            "the card has figures measured on a file of yours; if its records are private, the figures are "
            "not, and no epsilon covers them"
        )
    Output(as_json, quiet).result(
        {"out": str(place), "measured": figures is not None, "stamps": list(subject.stamps)}
        | totals.to_dict(),
        f"{place}: {totals.sentence()}{stamped(subject.stamps)}",
    )


# ---- adlm ledger

KEYS = ("epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved")


def ledger_show(
    ledger: Annotated[Path, "The ledger's file, as adlm release printed it."],
    *,
    delta: Annotated[str, "Delta of the next release; 0 for pure epsilon."] = "0",
    neighbours: Annotated[str | None, "Relation of the next release; that of the charges by default."] = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """List the charges of a ledger, their total, and what is left for a release of this delta and relation.

    Nothing is changed.

    With --json: {"ledger", "budget": {"epsilon", "delta"} or null, "charges": [{"what", "mechanism",
    "neighbours", "unit", "epsilon_claimed", "epsilon_proved", "delta", "mu"}], "left"} and the totals, null
    where charges of different relations do not add up.
    """
    from adlm.domain import NEIGHBOURS
    from adlm.privacy.accounting import compose, number, parse_delta, show, unit_words
    from adlm.privacy.certificate import charge_table
    from adlm.privacy.ledger import Ledger

    output, requested = Output(as_json, quiet), parse_delta(delta)
    if neighbours is not None and neighbours not in NEIGHBOURS:
        raise UserError(f"--neighbours must be one of {', '.join(NEIGHBOURS)}, got {neighbours!r}")
    if not ledger.is_file():
        raise UserError(f"there is no ledger {ledger}; adlm release prints where it keeps one")
    book = Ledger(ledger)
    charges, budget, left = book.charges, book.budget, book.left(requested, neighbours)
    relations = sorted({c.neighbours for c in charges})
    output.table(*charge_table(charges, units=True))
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
                    "mu": c.mu or None,
                }
                for c in charges
            ],
            "left": None if left is None else float(left),
        }
        | (totals.to_dict() if totals else dict.fromkeys(KEYS)),
        f"{ledger}: {spent}; {rest}",
    )


# ---- adlm key


def key_new(
    path: Annotated[Path, "The private key to write; PATH.pub is its public key."],
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Make an Ed25519 key: a private file that only its owner can read, and a public one to share.

    Existing files are never overwritten.

    With --json: {"private", "public", "fingerprint"}.
    """
    from adlm.privacy.signature import new_key

    fingerprint = new_key(path)
    public = path.with_name(f"{path.name}.pub")
    Output(as_json, quiet).result(
        {"private": str(path), "public": str(public), "fingerprint": fingerprint},
        f"{path}: keep it to yourself; hand out {public}, fingerprint {fingerprint}",
    )


def key_show(
    path: Annotated[Path, "A public key."],
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Print a public key's fingerprint, to compare over another channel.

    With --json: {"fingerprint"}.
    """
    from adlm.privacy.signature import fingerprint, load_public

    digest = fingerprint(load_public(path))
    Output(as_json, quiet).result({"fingerprint": digest}, digest)


# ---- adlm ui


def ui(
    artefacts: Annotated[
        list[Path] | None, "Releases, models, or folders that hold them; by default those in this folder."
    ] = None,
    *,
    domain: Annotated[Path | None, "A domain file to plan for; needs --size."] = None,
    size: Annotated[int | None, typer.Option(min=1)] = None,
    ledger: Annotated[list[Path] | None, "A ledger to show; may be repeated. It is only read."] = None,
    static: Annotated[Path | None, "Write the page to this HTML file and exit."] = None,
    port: Annotated[int, "Port of the loopback address; 0 takes any.", typer.Option(min=0)] = 0,
    browser: Annotated[bool, "Open the page in a browser."] = True,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Explore the privacy-accuracy trade-off, and existing releases, on a local page.

    Pick a data set or a domain, drag epsilon and delta, and see the forecast, DP-SGD beside it, what an
    attacker could come to believe, the plan in words, and the command to copy. The page reads public numbers
    and certificates; nothing in it can spend budget. It listens on the loopback address under a random path
    and makes no network requests.

    With --json: {"address"} or, with --static, {"out", "bytes"}.
    """
    for folder in artefacts or ():
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; give a release, a model, or a folder that holds them")
    from adlm.ui.artefacts import around
    from adlm.ui.page import gather, write_static

    output = Output(as_json, quiet)
    folders = artefacts if artefacts is not None else around(Path())
    shown = gather(folders, ledger or [], domain, size)
    if static is not None:
        write_static(shown, static)
        size = static.stat().st_size
        output.result({"out": str(static), "bytes": size}, f"{static}: {size:,} bytes, works by itself")
        return
    from adlm.ui.server import Server

    with Server(shown, port) as server:
        output.result({"address": server.address}, f"open {server.address} and stop it with Ctrl-C")
        if browser:
            _open(server.address)
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C stops it
            server.serve_forever()


def _open(address: str) -> None:
    """Open the page through a private file: other users can read the arguments of a browser."""
    import tempfile
    import threading
    import webbrowser

    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="adlm-", delete=False) as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
    path = Path(file.name)  # readable by its owner alone
    timer = threading.Timer(30, lambda: path.unlink(missing_ok=True))
    timer.daemon = True
    timer.start()
    if not webbrowser.open(path.as_uri()):
        path.unlink(missing_ok=True)
