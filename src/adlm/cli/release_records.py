"""Records for `adlm release --kind records`: read whole, and released as the paper does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adlm.curator.ledger import Ledger
    from adlm.privacy.release import Release
    from adlm.public.domain import Domain


@dataclass(frozen=True, eq=False)
class Records:
    """Private records in memory, and how they were encoded."""

    x: Any
    y: Any
    domain: Domain
    features: dict[str, Any] | None = None
    stamps: tuple[str, ...] = ()


def by_name(data: str | None, neighbours: str | None, limit: int | None) -> Records:
    """Read a data set by its name, or about `limit` records of it."""
    from adlm.curator.window import window
    from adlm.public import datasets

    assert data is not None
    records = datasets.load(data, "train")
    domain = records.domain if neighbours is None else replace(records.domain, neighbours=neighbours)
    if limit is None:
        return Records(records.x, records.y, domain)
    size = datasets.size(data, "train")
    kept = window(records.x, records.y, limit, neighbours=domain.neighbours, size=size)
    return Records(records.x[kept], records.y[kept], domain)


def from_table(file: Path, domain: Path | None, neighbours: str | None) -> Records:
    """Read a whole table for a record release."""
    import numpy as np

    from adlm.errors import UserError
    from adlm.privacy.release import PEEKED
    from adlm.public.domain.table import TableDomain
    from adlm.readers.tables import read_batches

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
    return Records(
        np.concatenate([b.x for b in batches]),
        np.concatenate([b.y for b in batches]),
        table.domain,
        {"spec": {"name": "tabular", "table": table.to_dict()}},
        (PEEKED,) if table.bounds_learnt_from_data else (),
    )


def from_inputs(path: Path, domain: Path | None, neighbours: str | None) -> Records:
    """Read all images or vectors of a file or a folder for a record release."""
    from adlm.errors import UserError
    from adlm.public.domain.inputs import InputDomain
    from adlm.readers.inputs import read_inputs

    assert domain is not None
    declared = InputDomain.load(domain)
    if neighbours is not None:
        declared = replace(declared, neighbours=neighbours)
    if declared.contributions > 1:
        raise UserError(
            f"a record release protects single records, and a person may have {declared.contributions} of "
            "them here; declare one record a person, or make a moment release"
        )
    x, y = read_inputs(path, declared)
    return Records(x, y, declared.domain)


def records_maker(
    records: Records, epsilon: str, delta: str, method: str, split: str, network: str | None,
    batch_size: int | None, delta_h0: str, allocation: str | None, mode: str, loss: str,
    explained_by: Path | None, declared: str | None, trusted: Sequence[Path], ledger: Ledger, source: Any,
    out: Path,
) -> Callable[[], Release]:  # fmt: skip
    """Check what a record release is asked for, and return what makes it."""
    from adlm.algorithm1 import Budgets, RelevanceSource, make_release
    from adlm.analyst import networks
    from adlm.errors import UserError
    from adlm.privacy.release import Release
    from adlm.privacy.signature import load_public
    from adlm.workflows.relevance_network import RelevanceNetwork, make_public

    if Fraction(delta) != 0:
        raise UserError("a record release has pure epsilon; leave --delta at 0")
    if method == "ilm" and explained_by is not None:
        raise UserError("--method ilm asks no relevance network; leave out --relevance-network")
    if explained_by is None and (declared is not None or trusted):
        raise UserError("--relevance-provenance and --trust are for a --relevance-network; leave them out")
    shape, classes = records.domain.shape, len(records.domain.classes)
    network = network or networks.proposed(shape)
    batch_size = networks.batch_size(network) if batch_size is None else batch_size
    built = networks.build(network, shape, classes)
    sensitivity = _delta_h0(delta_h0)
    budgets = Budgets.split(epsilon, tuple(split.split(",")), method)
    keys = [load_public(path) for path in trusted]

    def make() -> Release:
        explained = None
        if method == "adlm":
            known = (
                RelevanceNetwork.load(explained_by, provenance=declared, trusted=keys)
                if explained_by
                else make_public(shape, name="mlp", epochs=4)
            )
            if known.shape != shape:
                raise UserError(
                    f"the relevance network {explained_by} is for records of shape {known.shape}, and these "
                    f"have shape {shape}; make one for them with adlm pretrain, or leave it out"
                )
            explained = RelevanceSource(known.network, known.provenance)
        make_release(
            records.x, records.y, records.domain, built, budgets, explained=explained, L=batch_size,
            delta_h0=sensitivity, allocation=allocation or "linear",
            loss=loss, mode=mode, ledger=ledger, source=source, folder=out, stamps=records.stamps,
            features=records.features,
        )  # fmt: skip
        return Release.load(out)

    return make


def _delta_h0(text: str) -> str | Fraction:
    """Read --delta-h0: how to count, or a positive number."""
    from adlm.errors import UserError
    from adlm.privacy.accounting import parse_epsilon

    if text in ("counted", "per-patch"):
        return text
    try:
        return parse_epsilon(text)
    except UserError:
        raise UserError(
            f"--delta-h0 must be counted, per-patch or a positive number (got {text!r})"
        ) from None
