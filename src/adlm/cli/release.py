"""`adlm release`: read private records once, and write what may be known of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from adlm.cli.console import AsJson, Device, Output, Quiet, pick_device

if TYPE_CHECKING:
    from adlm.curator.ledger import Ledger
    from adlm.public.domain import Domain
    from adlm.release import Release

KINDS = ("moments", "records")
METHODS = ("adlm", "ilm")


def release(
    file: Annotated[Path | None, typer.Argument(help="A CSV or Parquet file; needs --domain.")] = None,
    data: Annotated[str | None, typer.Option(help="A data set by name (see adlm data list).")] = None,
    domain: Annotated[Path | None, typer.Option(help="The TOML file that declares the columns.")] = None,
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
    second: Annotated[
        int | None, typer.Option(help="Moments: coordinates with second moments, instead of the rule's.")
    ] = None,
    share: Annotated[
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
    split: Annotated[
        str, typer.Option(help="Records: shares for relevance, features and labels.")
    ] = "0.25,0.5,0.25",
    network: Annotated[str, typer.Option(help="Records: the network to be trained.")] = "paper-mnist",
    batch_size: Annotated[int, typer.Option(help="Records: |L|.")] = 1800,
    delta_h0: Annotated[
        str, typer.Option(help="Records: counted, per-patch (the authors' code) or a number.")
    ] = "counted",
    mode: Annotated[str, typer.Option(help="Records: economical or literal loss noise.")] = "economical",
    loss: Annotated[str, typer.Option(help="Records: cross-entropy or square.")] = "cross-entropy",
    relevance_network: Annotated[
        Path | None, typer.Option(help="Records: a folder of adlm pretrain; made anew when not given.")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(help="A public guess of the number of records, if that is private.", min=1),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Read only the first LIMIT records (public).", min=1)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Repeatable noise. The release is stamped NOT PRIVATE.")
    ] = None,
    cache: Annotated[bool, typer.Option("--cache", help="Keep features of the records on disk.")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read private records once and make a release: noisy tensors and a certificate.

    Every charge is in the ledger before its noise is drawn. With --json: {"out", "kind", "n",
    "epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved", "stamps", "ledger", "charges"}.
    """
    from adlm.artefact import require_room
    from adlm.certificate import parse_delta, parse_epsilon
    from adlm.curator.noise import Source
    from adlm.errors import UserError

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
    parse_epsilon(epsilon), parse_delta(delta)
    require_room(out, what="release")
    source = Source.system() if seed is None else Source.seeded_with(seed)
    book, place = _ledger(ledger, budget, data or str(file and file.resolve()))
    chosen = pick_device(device)
    make: Callable[[], Release]
    if kind == "records":
        records = _table(file, domain, neighbours) if file else _named(data, neighbours, limit)
        make = _records_maker(
            records, epsilon, delta, method, split, network, batch_size, delta_h0, allocation, mode, loss,
            relevance_network, book, source, out,
        )  # fmt: skip
    else:
        options = {"epsilon": epsilon, "delta": delta, "ledger": book, "source": source, "device": chosen,
                   "k": k, "second": second, "share_sums": share, "relevance": relevance, "size": size,
                   "allocation": allocation or ("identical" if method == "ilm" else None)}  # fmt: skip
        if fourier is not None:
            if file is None:
                raise UserError("--fourier is for tables from a file; leave it out")
            options["fourier"] = waves(fourier)
        make = _moments_maker(data, file, domain, neighbours, limit, cache, options, out)
    before = len(book.charges)
    try:
        made = make()
    except UserError as error:
        if len(book.charges) > before:
            raise UserError(f"{error}; the charge stays in {place}, for noise may have been drawn") from error
        raise
    certificate = made.certificate
    for stamp in certificate.stamps:
        output.say(f"stamped: {stamp}")
    figures = {
        "out": str(out), "kind": kind, "n": certificate.settings.get("n"), "stamps": list(certificate.stamps),
        "ledger": str(place), "charges": len(book.charges),
    }  # fmt: skip
    output.result(
        figures | certificate.totals.to_dict(), f"{out}: {certificate.totals.sentence()}; charged to {place}"
    )


def waves(text: str | None) -> int | Literal["auto"]:
    """Read --fourier: a number of random Fourier features, `auto`, or none of them."""
    from adlm.errors import UserError

    if text is None or text == "auto":
        return "auto" if text else 0
    if not text.isdecimal():
        raise UserError(f"--fourier must be auto or a whole number of at least 0 (got {text!r})")
    return int(text)


def _ledger(path: Path | None, budget: str | None, name: str) -> tuple[Ledger, Path]:
    """Open the ledger that was asked for, or the one this person keeps for the data set."""
    from adlm.certificate import parse_delta, parse_epsilon
    from adlm.curator.ledger import Budget, Ledger, default_path

    place = path or default_path(name)
    limit = None
    if budget is not None:
        epsilon, _, delta = budget.partition(",")
        limit = Budget(parse_epsilon(epsilon, "budget"), parse_delta(delta or "0"))
    return Ledger(place, limit), place


@dataclass(frozen=True, eq=False)
class _Records:
    """Private records in memory, and how they were encoded."""

    x: Any
    y: Any
    domain: Domain
    features: dict[str, Any] | None = None
    stamps: tuple[str, ...] = ()


def _named(data: str | None, neighbours: str | None, limit: int | None) -> _Records:
    from adlm.public import datasets

    assert data is not None
    records = datasets.load(data, "train")
    domain = records.domain if neighbours is None else replace(records.domain, neighbours=neighbours)
    return _Records(records.x[:limit], records.y[:limit], domain)


def _table(file: Path, domain: Path | None, neighbours: str | None) -> _Records:
    """Read a whole table for a record release."""
    import numpy as np

    from adlm.curator.tables import read_batches
    from adlm.errors import UserError
    from adlm.public.tables import TableDomain
    from adlm.release import PEEKED

    if domain is None:
        raise UserError("a file needs --domain FILE.toml; adlm domain init drafts one")
    table = TableDomain.load(domain)
    if neighbours is not None:
        table = replace(table, neighbours=neighbours)
    if table.contributions > 1:
        raise UserError(
            f"a record release protects single records, and a person may have {table.contributions} of them "
            "here; declare one record a person, or make a moment release"
        )
    batches = list(read_batches(file, table))
    if not batches:
        raise UserError(f"{file} holds no records; give at least one")
    return _Records(
        np.concatenate([b.x for b in batches]),
        np.concatenate([b.y for b in batches]),
        table.domain,
        {"spec": {"name": "tabular", "table": table.to_dict()}},
        (PEEKED,) if table.bounds_learnt_from_data else (),
    )


def _moments_maker(
    data: str | None,
    file: Path | None,
    domain: Path | None,
    neighbours: str | None,
    limit: int | None,
    cache: bool,
    options: dict[str, Any],
    out: Path,
) -> Callable[[], Release]:
    from adlm.curation import privatise
    from adlm.errors import UserError
    from adlm.privatise_table import privatise_table

    def make() -> Release:
        if data is not None:
            records = _named(data, neighbours, limit)
            made = privatise(records.x, records.y, domain=records.domain, cache=cache, **options)
        else:
            if domain is None:
                raise UserError("a file needs --domain FILE.toml; adlm domain init drafts one")
            assert file is not None
            made = privatise_table(file, domain, neighbours=neighbours, **options)
        made.save(out)
        return made

    return make


def _records_maker(
    records: _Records, epsilon: str, delta: str, method: str, split: str, network: str, batch_size: int,
    delta_h0: str, allocation: str | None, mode: str, loss: str, explained_by: Path | None, ledger: Ledger,
    source: Any, out: Path,
) -> Callable[[], Release]:  # fmt: skip
    from adlm.algorithm1 import Budgets, Explained, make_release
    from adlm.analyst import networks
    from adlm.errors import UserError
    from adlm.release import Release
    from adlm.relevance_network import RelevanceNetwork, make_public

    if Fraction(delta) != 0:
        raise UserError("a record release has pure epsilon; leave --delta at 0")
    shape, classes = records.domain.shape, len(records.domain.classes)
    built = networks.build(network, shape, classes)
    budgets = Budgets.split(epsilon, tuple(split.split(",")), method)

    def make() -> Release:
        explained = None
        if method == "adlm":
            known = (
                RelevanceNetwork.load(explained_by)
                if explained_by
                else make_public(shape, name="mlp", epochs=4)
            )
            explained = Explained(known.network, known.provenance)
        make_release(
            records.x, records.y, records.domain, built, budgets, explained=explained, L=batch_size,
            delta_h0=int(delta_h0) if delta_h0.isdigit() else delta_h0, allocation=allocation or "linear",
            loss=loss, mode=mode, ledger=ledger, source=source, folder=out, stamps=records.stamps,
            features=records.features,
        )  # fmt: skip
        return Release.load(out)

    return make
