"""`adlm release-records`: every record with its own noise, as in the paper (Algorithm 1)."""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adlm.cli import release_options as option
from adlm.cli.console import AsJson, Output, Quiet, Sign
from adlm.cli.release_job import Request, caution
from adlm.errors import UserError, WeakReleaseWarning

if TYPE_CHECKING:
    from adlm.domain.table import TableDomain
    from adlm.paper.release import PrivateRecords
    from adlm.paper.relevance import RelevanceNetwork
    from adlm.privacy.release import Release


def release_records(
    context: typer.Context,
    file: option.File = None,
    data: option.Data = None,
    domain: option.DomainFile = None,
    epsilon: option.Epsilon = "1",
    out: option.Out = Path("release"),
    method: Annotated[str, typer.Option(help="adlm (noise by relevance) or ilm (identical noise).")] = "adlm",
    neighbours: option.Neighbours = None,
    ledger: option.LedgerFile = None,
    budget: option.Total = None,
    allocation: Annotated[
        str | None, typer.Option(help="identical, linear or optimal noise over features.")
    ] = None,
    split: Annotated[str, typer.Option(help="Shares for relevance, features and labels.")] = "0.25,0.5,0.25",
    network: Annotated[
        str | None,
        typer.Option(
            help="The network to be trained. By default mlp for tables, paper-mnist for grey images, "
            "paper-cifar10 for colour images."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="|L|. By default 7200 for paper-cifar10, 1800 for every other.")
    ] = None,
    delta_h0: Annotated[
        str, typer.Option(help="counted, per-patch (the authors' code) or a number.")
    ] = "counted",
    mode: Annotated[str, typer.Option(help="economical or literal loss noise.")] = "economical",
    loss: Annotated[str, typer.Option(help="cross-entropy or square.")] = "cross-entropy",
    relevance_network: Annotated[
        Path | None, typer.Option(help="A folder of adlm pretrain; by default one is trained.")
    ] = None,
    relevance_provenance: Annotated[
        str | None,
        typer.Option(
            help="public or private: provenance of a --relevance-network without a trusted signature."
        ),
    ] = None,
    trust: Annotated[
        list[Path] | None,
        typer.Option(help="Public key that signed the --relevance-network.", metavar="PUBKEY"),
    ] = None,
    limit: option.Limit = None,
    seed: option.Seed = None,
    sign: Sign = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read private records and release every one of them with noise, by the paper's Algorithm 1.

    It is for comparison; the certificate states what is claimed and what is proved. Every charge is
    in the ledger before its noise is drawn. With --json: the keys of adlm release.
    """
    output = Output(as_json, quiet)
    request = Request(file, data, domain, epsilon, "0", out, neighbours, limit, ledger, budget, seed, sign)
    request.check(context, method)
    if method == "ilm" and allocation not in (None, "identical"):
        raise UserError("--method ilm is identical noise: leave out --allocation, or take --method adlm")
    if method == "ilm" and relevance_network is not None:
        raise UserError("--method ilm asks no relevance network; leave out --relevance-network")
    if relevance_network is None and (relevance_provenance is not None or trust):
        raise UserError("--relevance-provenance and --trust are for a --relevance-network; leave them out")
    job = request.open()
    # Only now what is slow to import: a mistake above is refused at once.
    from adlm.paper import Budgets, RecordOptions, make_release, networks

    if file is None:
        records = request.records()
    else:
        records = (_from_inputs if request.of_inputs else _from_table)(file, request)
    shape, classes = records.domain.shape, len(records.domain.classes)
    network = network or networks.proposed(shape)
    built = networks.build(network, shape, classes)
    budgets = Budgets.split(epsilon, tuple(split.split(",")), method)
    size = networks.batch_size(network) if batch_size is None else batch_size
    options = RecordOptions(_delta_h0(delta_h0), allocation or "linear", loss, mode, folder=out)

    def make() -> Release:
        explained = (
            _relevance_network(relevance_network, relevance_provenance, trust or [], shape)
            if method == "adlm"
            else None
        )
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", WeakReleaseWarning)
            release = make_release(
                records,
                built,
                budgets,
                size,
                explained=explained,
                options=options,
                ledger=job.ledger,
                source=job.source,
            )
        for warning in found:
            caution(str(warning.message))
        return release

    job.run(make, "records", output)


def _relevance_network(
    folder: Path | None, provenance: str | None, trusted: list[Path], shape: tuple[int, ...]
) -> RelevanceNetwork:
    """Read the relevance network, or make a public one."""
    from adlm.paper.relevance import RelevanceNetwork, make_public
    from adlm.privacy.signature import load_public

    keys = [load_public(path) for path in trusted]
    known = (
        make_public(shape, name="mlp", epochs=4)
        if folder is None
        else RelevanceNetwork.load(folder, provenance=provenance, trusted=keys)
    )
    if known.shape != shape:
        raise UserError(
            f"the relevance network {folder} is for records of shape {known.shape}, and these have shape "
            f"{shape}; make one for them with adlm pretrain, or leave it out"
        )
    return known


def _declared(request: Request) -> TableDomain:
    """Read the domain file, with the requested relation; a person must have one record."""
    from adlm.domain.table import TableDomain

    declared = TableDomain.load(request.domain_file())
    if request.neighbours is not None:
        declared = replace(declared, neighbours=request.neighbours)
    if declared.contributions > 1:
        raise UserError(
            f"a record release protects single records, and a person may have {declared.contributions} of "
            "them here; declare one record a person, or make a moment release"
        )
    return declared


def _from_table(file: str, request: Request) -> PrivateRecords:
    """Read a whole table."""
    import numpy as np

    from adlm.data.tables import read_batches
    from adlm.paper.release import PrivateRecords

    table = _declared(request)
    batches = list(read_batches(file, table))
    if not batches:
        raise UserError(f"{file} holds no records; give at least one")
    return PrivateRecords(
        np.concatenate([b.x for b in batches]),
        np.concatenate([b.y for b in batches]),
        table.domain,
        {"spec": {"name": "tabular", "table": table.to_dict()}},
    )


def _from_inputs(path: str, request: Request) -> PrivateRecords:
    """Read all images or vectors of a file or a folder."""
    from adlm.data.images import read_inputs
    from adlm.paper.release import PrivateRecords

    declared = _declared(request)
    x, codes = read_inputs(path, declared)
    return PrivateRecords(x, codes, declared.domain)


def _delta_h0(text: str) -> str | Fraction:
    """Read --delta-h0: how to count, or a positive number."""
    from adlm.privacy.accounting import parse_epsilon

    if text in ("counted", "per-patch"):
        return text
    try:
        return parse_epsilon(text)
    except UserError:
        raise UserError(
            f"--delta-h0 must be counted, per-patch or a positive number (got {text!r})"
        ) from None
