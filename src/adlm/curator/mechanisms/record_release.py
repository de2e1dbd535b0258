"""Make a record release: charge first, then perturb; in memory, or streamed to a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.records import RecordMechanism, Settings, prepare
from adlm.curator.noise import Source
from adlm.curator.relevance import PrivateRelevance
from adlm.errors import UserError
from adlm.privacy.accounting import Charge
from adlm.privacy.release import CERTIFICATE, SEEDED, TENSORS, Release
from adlm.public.domain import Domain
from adlm.runtime.artefact import canonical, new_folder


def release_records(
    x: npt.ArrayLike,
    labels: npt.ArrayLike | None,
    domain: Domain,
    settings: Settings,
    *,
    relevance: PrivateRelevance | None,
    ledger: Ledger,
    source: Source,
    stamps: tuple[str, ...] = (),
    features: Mapping[str, Any] | None = None,
) -> Release:
    """The release of all records, in memory: the tensors ``x``, ``phi``, ``bias``, ``budget_ratios``.

    There is no ``phi`` where settings give labels no budget; ``labels`` is None then.

    Parameters
    ----------
    x, labels : (n, *shape) private records in the units of the domain, and their n labels.
    relevance : the private relevances; None for ILM, whose allocation is `identical`.
    ledger : all charges but those of the relevances, which it has already, are written there first.
    features : what the certificate shall say of how the records were encoded; a table's columns.
    stamps : warnings that shall travel with the release.

    Formal guarantees
    -----------------
    See `Perturbation.charges`. The certificate carries the relevances' charges too.
    """
    perturbation, small = _begin(x, labels, domain, settings, relevance, ledger, source)
    n = len(np.asarray(x))
    shapes = _streamed_shapes(perturbation, n)
    whole = {name: np.empty(shape, dtype=np.float32) for name, shape in shapes.items()}
    start = 0
    for parts in perturbation.chunks(x, labels, source):
        for values, part in zip(whole.values(), parts, strict=True):
            values[start : start + len(part)] = part
        start += len(parts[0])
    tensors = small | {name: torch.from_numpy(values) for name, values in whole.items()}
    return _release(tensors, perturbation, relevance, n, source, stamps, features)


def write_records(
    folder: Path,
    x: npt.ArrayLike,
    labels: npt.ArrayLike | None,
    domain: Domain,
    settings: Settings,
    *,
    relevance: PrivateRelevance | None,
    ledger: Ledger,
    source: Source,
    stamps: tuple[str, ...] = (),
    features: Mapping[str, Any] | None = None,
) -> None:
    """The same release written to ``folder`` chunk by chunk: memory does not grow with the records."""
    n = len(np.asarray(x))
    if Path(folder).exists():  # before anything is charged
        raise UserError(f"{folder} exists already; choose another place for the release or remove it first")
    perturbation, small = _begin(x, labels, domain, settings, relevance, ledger, source)
    certificate = _release(small, perturbation, relevance, n, source, stamps, features).certificate
    shapes = _streamed_shapes(perturbation, n)
    with new_folder(Path(folder), what="release") as temporary:
        with (temporary / TENSORS).open("wb") as file:
            offsets = _write_header(file, small, shapes)
            digests = {name: hashlib.sha256() for name in shapes}
            for part in perturbation.chunks(x, labels, source):
                for name, values in zip(shapes, part, strict=True):
                    raw = np.ascontiguousarray(values).tobytes()
                    file.seek(offsets[name])
                    file.write(raw)
                    digests[name].update(raw)
                    offsets[name] += len(raw)
        streamed = {
            name: {"dtype": "float32", "shape": list(shape), "sha256": digests[name].hexdigest()}
            for name, shape in shapes.items()
        }
        whole = replace(certificate, tensors=dict(sorted((dict(certificate.tensors) | streamed).items())))
        (temporary / CERTIFICATE).write_bytes(canonical(whole.to_dict()))


def _begin(
    x: npt.ArrayLike,
    labels: npt.ArrayLike | None,
    domain: Domain,
    settings: Settings,
    relevance: PrivateRelevance | None,
    ledger: Ledger,
    source: Source,
) -> tuple[RecordMechanism, dict[str, Tensor]]:
    """Check, charge, and only then draw: the bias is the first noise of the release."""
    if (labels is None) == settings.labelled:
        raise UserError("labels are given when, and only when, they have a budget: epsilon3 > 0.")
    n = len(np.asarray(x))
    m = n if labels is None else len(np.asarray(labels))
    if n != m or n == 0:
        raise UserError(f"there must be one label for each record, and a record (got {n} and {m} labels).")
    perturbation = prepare(settings, domain, relevance)
    ledger.charge(*perturbation.charges)
    small = {
        "bias": torch.tensor([perturbation.bias(source)], dtype=torch.float64),
        "budget_ratios": torch.from_numpy(perturbation.ratios),
    }
    if relevance is not None:
        small["relevance"] = torch.from_numpy(relevance.values)
    return perturbation, small


def _release(
    tensors: Mapping[str, Tensor],
    perturbation: RecordMechanism,
    relevance: PrivateRelevance | None,
    n: int,
    source: Source,
    stamps: tuple[str, ...],
    features: Mapping[str, Any] | None,
) -> Release:
    s = perturbation.settings
    delta_f = s.loss.delta_f(len(perturbation.domain.classes), s.hidden)
    settings: dict[str, Any] = {
        "method": "ilm" if relevance is None else "adlm",
        "n": n,
        "allocation": s.allocation,
        "batch_size": s.batch_size,
        "delta_f": str(delta_f),
        "delta_h0": str(s.delta_h0),
        "delta_h0_rule": s.delta_h0_rule,
        "epsilon2": str(s.epsilon2),
        "epsilon3": str(s.epsilon3),
        "hidden": s.hidden,
        "loss": s.loss.name,
        "mode": s.mode,
        "withheld": int((perturbation.ratios == 0).sum()),
    }
    if s.network:
        settings["network"] = s.network
    carried: tuple[Charge, ...] = ()
    if relevance is not None:
        carried, settings = relevance.charges, settings | relevance.settings
    return Release.make(
        tensors,
        kind="records",
        domain=perturbation.domain,
        features=features or {},
        settings=settings,
        charges=(*carried, *perturbation.charges),
        stamps=stamps
        + (() if relevance is None else relevance.stamps)
        + ((SEEDED,) if source.seeded else ()),
    )


def _streamed_shapes(perturbation: RecordMechanism, n: int) -> dict[str, tuple[int, ...]]:
    classes = len(perturbation.domain.classes)
    phi = (n, 3, classes) if perturbation.settings.mode == "literal" else (n, classes)
    x = {"x": (n, *perturbation.domain.shape)}
    return x | {"phi": phi} if perturbation.settings.labelled else x


def _write_header(
    file: IO[bytes], small: Mapping[str, Tensor], streamed: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Begin a safetensors file as its own writer would: 64-bit tensors first, each group by name.

    Returns where each streamed tensor begins.
    """
    entries: dict[str, Any] = {}
    place, body = 0, b""
    for name, tensor in sorted(small.items()):
        raw = tensor.numpy().tobytes()
        entries[name] = _entry("F64", tensor.shape, place, len(raw))
        place, body = place + len(raw), body + raw
    starts = {}
    for name, shape in sorted(streamed.items()):
        size = 4 * int(np.prod(shape, dtype=np.int64))
        entries[name] = _entry("F32", shape, place, size)
        starts[name], place = place, place + size
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    file.write(len(header).to_bytes(8, "little") + header + body)
    return {name: 8 + len(header) + start for name, start in starts.items()}


def _entry(dtype: str, shape: tuple[int, ...] | torch.Size, place: int, size: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [place, place + size]}
