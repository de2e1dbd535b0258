"""`adlm release`: read private records once, and write what may be known of them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from adlm.cli.console import AsJson, Device, Output, Quiet, Sign, given, key_of, pick_device, stamped
from adlm.cli.release_records import by_name, from_inputs, from_table, records_maker

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from adlm.curator.ledger import Ledger
    from adlm.privacy.release import Release
    from adlm.public.domain import Domain
    from adlm.public.features import Features

KINDS = ("moments", "records")
METHODS = ("adlm", "ilm")
LARGE_EPSILON = 10  # from here on a person is warned
# Options that mean something for one kind of release, or for one place of the records, and nothing elsewhere
# fmt: off
ONLY_FOR = {
    "--kind moments": (
        "backbone", "provenance", "trained_on",
        "k", "second_moment_dim", "sums_budget_share", "relevance", "fourier", "public_size", "cache",
    ),
    "--kind records": (
        "split", "network", "batch_size", "delta_h0", "mode", "loss", "relevance_network",
        "relevance_provenance", "trust",
    ),
    "records from a file": ("domain",),
    "tables from a file": ("fourier",),
    "--data": ("limit", "cache"),
}
# fmt: on


def release(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="A file or a folder of records; needs --domain.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A data set by name (see adlm data list).")] = None,
    domain: Annotated[Path | None, typer.Option(help="The TOML file that declares the records.")] = None,
    epsilon: Annotated[str, typer.Option(help="The privacy budget of this release.")] = "1",
    delta: Annotated[str, typer.Option(help="0 for pure epsilon (Laplace), else Gaussian noise.")] = "0",
    out: Annotated[Path, typer.Option(help="Folder to make.")] = Path("release"),
    kind: Annotated[
        str, typer.Option(help="moments (proved, accurate) or records (the paper's).")
    ] = "moments",
    method: Annotated[
        str,
        typer.Option(
            help="Records: adlm (noise by relevance) or ilm (identical noise). Moments: noise is identical "
            "unless --allocation or --relevance ask for more; ilm refuses them."
        ),
    ] = "adlm",
    neighbours: Annotated[str | None, typer.Option(help="replace-one or add-remove.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="The data set's ledger; made if need be.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Epsilon (or EPSILON,DELTA) that the ledger may spend in all.")
    ] = None,
    k: Annotated[int | None, typer.Option(help="Moments: coordinates, instead of the rule's.")] = None,
    second_moment_dim: Annotated[
        int | None, typer.Option(help="Moments: coordinates with second moments, instead of the rule's.")
    ] = None,
    sums_budget_share: Annotated[
        float | None, typer.Option(help="Moments: share of the budget for class sums, instead of the rule's.")
    ] = None,
    allocation: Annotated[
        str | None, typer.Option(help="identical, linear or optimal noise over coordinates or features.")
    ] = None,
    relevance: Annotated[
        str, typer.Option(help="Moments: prior (public, free) or private (LRP on a first release, charged).")
    ] = "prior",
    fourier: Annotated[
        str | None,
        typer.Option(help="Tables: random Fourier features of the numeric columns.", metavar="N|auto"),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Moments of images or vectors: a public encoder, as FILE.onnx, timm:NAME or a folder that "
            "transformers saved.",
            metavar="ENCODER",
        ),
    ] = None,
    provenance: Annotated[
        str | None,
        typer.Option(help="public or private, declared of the --backbone: had private records a part in it?"),
    ] = None,
    trained_on: Annotated[
        str | None, typer.Option(help="What the --backbone was trained on; it is said in the report.")
    ] = None,
    split: Annotated[
        str, typer.Option(help="Records: shares for relevance, features and labels.")
    ] = "0.25,0.5,0.25",
    network: Annotated[
        str | None,
        typer.Option(
            help="Records: the network to be trained. When not given: mlp for tables, paper-mnist for grey "
            "images, paper-cifar10 for colour images."
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Records: |L|. When not given: 7200 for paper-cifar10, 1800 for every other."),
    ] = None,
    delta_h0: Annotated[
        str, typer.Option(help="Records: counted, per-patch (the authors' code) or a number.")
    ] = "counted",
    mode: Annotated[str, typer.Option(help="Records: economical or literal loss noise.")] = "economical",
    loss: Annotated[str, typer.Option(help="Records: cross-entropy or square.")] = "cross-entropy",
    relevance_network: Annotated[
        Path | None, typer.Option(help="Records: a folder of adlm pretrain; made anew when not given.")
    ] = None,
    relevance_provenance: Annotated[
        str | None,
        typer.Option(
            help="Records: public or private, declared of the --relevance-network if nobody trusted "
            "signed it."
        ),
    ] = None,
    trust: Annotated[
        list[Path] | None,
        typer.Option(help="Records: public key that signed the --relevance-network.", metavar="PUBKEY"),
    ] = None,
    public_size: Annotated[
        int | None,
        typer.Option(help="A public guess of the number of records, if that is private.", min=1),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Read only LIMIT records (public): the first ones; under add-remove about so many, "
            "chosen by a hash of each.",
            min=1,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Repeatable noise. The release is stamped NOT PRIVATE.")
    ] = None,
    cache: Annotated[bool, typer.Option("--cache", help="Keep features of the records on disk.")] = False,
    sign: Sign = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read private records once and make a release: noisy tensors and a certificate.

    Every charge is in the ledger before its noise is drawn. With --json: {"out", "kind", "n",
    "epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved", "stamps", "ledger", "charges",
    "signed_by"}.
    """
    from adlm.analyst.class_sizes import sentences, small_classes
    from adlm.curator.noise import Source
    from adlm.errors import StoppedError, UserError
    from adlm.runtime.artefact import require_room

    output = Output(as_json, quiet)
    if kind not in KINDS:
        raise UserError(f"--kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if method not in METHODS:
        raise UserError(f"--method must be one of {', '.join(METHODS)}, got {method!r}")
    if method == "ilm" and (relevance != "prior" or allocation not in (None, "identical")):
        raise UserError(
            "--method ilm is identical noise: leave out --allocation and --relevance, or take --method adlm"
        )
    if (file is None) == (data is None):
        raise UserError("give either a file with --domain, or --data NAME; adlm data list shows the names")
    source_kind = _source_kind(file, domain)
    _check_options(context, kind, *(("--data",) if file is None else ("records from a file", source_kind)))
    if (backbone is None) != (provenance is None) or (backbone is None and trained_on is not None):
        raise UserError(
            "--backbone ENCODER needs --provenance public or private, and both --provenance and --trained-on "
            "are for a --backbone"
        )
    if backbone is not None and source_kind == "tables from a file":
        raise UserError("--backbone is for images and vectors; leave it out for a table")
    _warn(epsilon, delta, public_size)
    key = key_of(sign)
    require_room(out, what="release")
    source = Source.system() if seed is None else Source.seeded_with(seed)
    book, place = _ledger(ledger, budget, data or str(file and file.resolve()))
    chosen = pick_device(device)
    make: Callable[[], Release]
    if kind == "records":
        if file is None:
            records = by_name(data, neighbours, limit)
        elif source_kind == "tables from a file":
            records = from_table(file, domain, neighbours)
        else:
            records = from_inputs(file, domain, neighbours)
        make = records_maker(
            records, epsilon, delta, method, split, network, batch_size, delta_h0, allocation, mode, loss,
            relevance_network, relevance_provenance, trust or (), book, source, out,
        )  # fmt: skip
    else:
        options = {
            "epsilon": epsilon,
            "delta": delta,
            "ledger": book,
            "source": source,
            "device": chosen,
            "k": k,
            "second": second_moment_dim,
            "share_sums": sums_budget_share,
            "relevance": relevance,
            "size": public_size,
            "allocation": allocation or ("identical" if method == "ilm" else None),
        }
        if fourier is not None:
            options["fourier"] = random_fourier_features(fourier)
        encoder = None if backbone is None else (backbone, provenance or "", trained_on or "")
        make = _moments_maker(data, file, domain, neighbours, limit, cache, encoder, options, out, key)
    try:
        made = make()
        if kind == "records" and key is not None:  # it was written chunk by chunk
            made = _signed(made, key, out)
    except UserError as error:
        if book.made:
            raise UserError(f"{error}; the charge stays in {place}, for noise may have been drawn") from error
        raise
    except KeyboardInterrupt:
        raise StoppedError(_stopped(book, place, out)) from None
    certificate = made.certificate
    for words in sentences(small_classes(made)):
        _caution(words)
    figures = {
        "out": str(out), "kind": kind, "n": certificate.settings.get("n"), "stamps": list(certificate.stamps),
        "ledger": str(place), "charges": len(book.charges),
        "signed_by": made.signature and made.signature.signer,
    }  # fmt: skip
    output.result(
        figures | certificate.totals.to_dict(),
        f"{out}: {certificate.totals.sentence()}; charged to {place}{stamped(certificate.stamps)}",
    )


def _warn(epsilon: str, delta: str, size: int | None) -> None:
    """Say so before anything is read, when a budget is one that protects hardly anybody."""
    from adlm.privacy.accounting import parse_delta, parse_epsilon
    from adlm.privacy.release import MOST_DELTA, MOST_EPSILON

    asked, slack = parse_epsilon(epsilon), parse_delta(delta)
    if asked > LARGE_EPSILON:
        stamp = (
            f", and above {MOST_EPSILON} the release is stamped NOT PRIVATE" if asked > MOST_EPSILON else ""
        )
        _caution(f"epsilon {epsilon} is large: the odds about a record can change e^{epsilon} times{stamp}")
    most = min(MOST_DELTA, Fraction(1, size)) if size else MOST_DELTA
    if slack >= most:
        _caution(
            f"delta {delta} is at least {float(most):g}: so much is met by publishing a random record as it "
            "is; the release is stamped NOT PRIVATE"
        )


def _caution(words: str) -> None:
    typer.echo(f"adlm: warning: {words}", err=True)


def _stopped(book: Ledger, place: Path, out: Path) -> str:
    """Say what a release that its user stopped has cost, and whether it was made."""
    from adlm.privacy.accounting import compose

    made = (
        f"{out} was written" if out.exists() else f"{out} was not made; nothing half-written is left behind"
    )
    if not book.made:
        return f"stopped; nothing was charged, and {made}"
    return (
        f"stopped after the charge: {compose(book.made).sentence()} stays in {place}, for noise may have "
        f"been drawn, and {made}"
    )


def _signed(release: Release, key: Ed25519PrivateKey, out: Path) -> Release:
    """Sign a release that is on disk already."""
    from adlm.privacy.signature import FILE
    from adlm.runtime.artefact import canonical, write_file

    signed = release.signed(key)
    assert signed.signature is not None
    write_file(out / FILE, canonical(signed.signature.to_dict()), what="signature")
    return signed


def _source_kind(file: Path | None, domain: Path | None) -> str:
    """Say where records come from, in the words of ONLY_FOR."""
    from adlm.public.domain.inputs import is_input_domain

    if file is None:
        return "--data"
    return "images or vectors" if domain is not None and is_input_domain(domain) else "tables from a file"


def _encoder(
    encoder: tuple[str, str, str] | None, domain: Domain, options: dict[str, Any]
) -> Features | None:
    """Load the encoder that was asked for, before a record is read."""
    from adlm.public.features import load_backbone

    if encoder is None:
        return None
    name, provenance, trained_on = encoder
    return load_backbone(
        name, domain.shape, provenance=provenance, trained_on=trained_on, device=options["device"]
    )


def _check_options(context: typer.Context, kind: str, *places: str) -> None:
    """Refuse an option that was given and would have no effect."""
    from adlm.errors import UserError

    for needed, names in ONLY_FOR.items():
        for name in names:
            if needed not in (f"--kind {kind}", *places) and given(context, name):
                raise UserError(f"--{name.replace('_', '-')} is for {needed}; leave it out")


def random_fourier_features(text: str | None) -> int | Literal["auto"]:
    """Read --fourier: a number of random Fourier features, `auto`, or none of them."""
    from adlm.errors import UserError

    if text is None or text == "auto":
        return "auto" if text else 0
    if not text.isdecimal():
        raise UserError(f"--fourier must be auto or a whole number of at least 0 (got {text!r})")
    return int(text)


def _ledger(path: Path | None, budget: str | None, name: str) -> tuple[Ledger, Path]:
    """Open the ledger that was asked for, or the one this person keeps for the data set."""
    from adlm.curator.ledger import Budget, Ledger, default_path
    from adlm.privacy.accounting import parse_delta, parse_epsilon

    place = path or default_path(name)
    limit = None
    if budget is not None:
        epsilon, _, delta = budget.partition(",")
        limit = Budget(parse_epsilon(epsilon, "budget"), parse_delta(delta or "0"))
    return Ledger(place, limit), place


def _moments_maker(
    data: str | None,
    file: Path | None,
    domain: Path | None,
    neighbours: str | None,
    limit: int | None,
    cache: bool,
    encoder: tuple[str, str, str] | None,
    options: dict[str, Any],
    out: Path,
    key: Ed25519PrivateKey | None,
) -> Callable[[], Release]:
    from adlm.errors import UserError
    from adlm.public.domain.inputs import InputDomain, is_input_domain
    from adlm.workflows.privatise import privatise
    from adlm.workflows.privatise_inputs import privatise_inputs
    from adlm.workflows.privatise_table import privatise_table

    def make() -> Release:
        if data is not None:
            records = by_name(data, neighbours, limit)
            options["features"] = _encoder(encoder, records.domain, options)
            made = privatise(records.x, records.y, domain=records.domain, cache=cache, **options)
        elif domain is not None and is_input_domain(domain):
            assert file is not None
            declared = InputDomain.load(domain)
            options["features"] = _encoder(encoder, declared.domain, options)
            made = privatise_inputs(file, declared, neighbours=neighbours, **options)
        else:
            if domain is None:
                raise UserError("a file needs --domain FILE.toml; adlm domain init drafts one")
            assert file is not None
            made = privatise_table(file, domain, neighbours=neighbours, **options)
        made = made if key is None else made.signed(key)
        made.save(out)
        return made

    return make
