"""Make a record release: charge first, then perturb; in memory, or streamed to a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.records import PrivateRecords, RecordMechanism, Settings, calibrate
from adlm.curator.noise import Source
from adlm.curator.relevance import PrivateRelevance
from adlm.errors import UserError
from adlm.privacy.accounting import Charge
from adlm.privacy.certificate import SEEDED
from adlm.privacy.release import CERTIFICATE, TENSORS, Release
from adlm.runtime.artefact import canonical, new_folder


def release(
    records: PrivateRecords,
    settings: Settings,
    *,
    relevance: PrivateRelevance | None,
    ledger: Ledger,
    source: Source,
) -> Release:
    """Release all records, in memory: the tensors ``x``, ``phi``, ``bias``, ``budget_ratios``.

    There is no ``phi`` where settings give labels no budget; the records have no labels then.

    Parameters
    ----------
    records : the private records, with their domain.
    settings : the public settings.
    relevance : the private relevances; None for ILM, whose allocation is `identical`.
    ledger : all charges are written there first, except those of the relevances, which it already has.
    source : of the noise.

    Formal guarantees
    -----------------
    See `RecordMechanism.charges`. The certificate carries the relevances' charges too.
    """
    mechanism, small = _begin(records, settings, relevance, ledger, source)
    n = len(np.asarray(records.x))
    shapes = _streamed_shapes(mechanism, n)
    values_of = {name: np.empty(shape, dtype=np.float32) for name, shape in shapes.items()}
    start = 0
    for parts in mechanism.chunks(records.x, records.labels, source):
        for values, part in zip(values_of.values(), parts, strict=True):
            values[start : start + len(part)] = part
        start += len(parts[0])
    tensors = small | {name: torch.from_numpy(values) for name, values in values_of.items()}
    return _release(tensors, records, mechanism, relevance, source)


def write(
    folder: Path,
    records: PrivateRecords,
    settings: Settings,
    *,
    relevance: PrivateRelevance | None,
    ledger: Ledger,
    source: Source,
) -> None:
    """Write the same release to a new folder, chunk by chunk: memory does not grow with the records.

    Parameters
    ----------
    folder : must not exist; nothing is charged if it does.
    records, settings, relevance, ledger, source : as for `release`.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already; choose another place for the release or remove it first")
    mechanism, small = _begin(records, settings, relevance, ledger, source)
    certificate = _release(small, records, mechanism, relevance, source).certificate
    shapes = _streamed_shapes(mechanism, len(np.asarray(records.x)))
    with new_folder(folder, what="release") as temporary:
        with (temporary / TENSORS).open("wb") as file:
            offsets = _write_header(file, small, shapes)
            digests = {name: hashlib.sha256() for name in shapes}
            for part in mechanism.chunks(records.x, records.labels, source):
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
        complete = replace(certificate, tensors=dict(sorted((dict(certificate.tensors) | streamed).items())))
        (temporary / CERTIFICATE).write_bytes(canonical(complete.to_dict()))


def _begin(
    records: PrivateRecords,
    settings: Settings,
    relevance: PrivateRelevance | None,
    ledger: Ledger,
    source: Source,
) -> tuple[RecordMechanism, dict[str, Tensor]]:
    """Check, charge, and only then draw: the bias is the first noise of the release."""
    labels = records.labels
    if (labels is None) == settings.labelled:
        raise UserError("labels are given when, and only when, they have a budget: epsilon3 > 0.")
    n = len(np.asarray(records.x))
    m = n if labels is None else len(np.asarray(labels))
    if n != m or n == 0:
        raise UserError(f"there must be one label for each record, and a record (got {n} and {m} labels).")
    calibration = calibrate(settings, records.domain, relevance)
    mechanism = calibration.scales
    ledger.charge(*calibration.charges)
    small = {
        "bias": torch.tensor([mechanism.bias(source)], dtype=torch.float64),
        "budget_ratios": torch.from_numpy(mechanism.ratios),
    }
    if relevance is not None:
        small["relevance"] = torch.from_numpy(relevance.values)
    return mechanism, small


def _release(
    tensors: Mapping[str, Tensor],
    records: PrivateRecords,
    mechanism: RecordMechanism,
    relevance: PrivateRelevance | None,
    source: Source,
) -> Release:
    s = mechanism.settings
    settings: dict[str, Any] = {
        "method": "ilm" if relevance is None else "adlm",
        "n": len(np.asarray(records.x)),
        "allocation": s.allocation,
        "batch_size": s.batch_size,
        "delta_f": str(s.loss.delta_f(len(records.domain.classes), s.hidden)),
        "delta_h0": str(s.delta_h0),
        "delta_h0_rule": s.delta_h0_rule,
        "epsilon2": str(s.epsilon2),
        "epsilon3": str(s.epsilon3),
        "hidden": s.hidden,
        "loss": s.loss.name,
        "mode": s.mode,
        "withheld": int((mechanism.ratios == 0).sum()),
    }
    if s.network:
        settings["network"] = s.network
    carried: tuple[Charge, ...] = ()
    stamps = records.stamps
    if relevance is not None:
        carried, settings = relevance.charges, settings | relevance.settings
        stamps += relevance.stamps
    return Release.make(
        tensors,
        kind="records",
        domain=records.domain,
        features=records.features,
        settings=settings,
        charges=(*carried, *mechanism.charges),
        stamps=stamps + ((SEEDED,) if source.seeded else ()),
    )


def _streamed_shapes(mechanism: RecordMechanism, n: int) -> dict[str, tuple[int, ...]]:
    classes = len(mechanism.domain.classes)
    phi = (n, 3, classes) if mechanism.settings.mode == "literal" else (n, classes)
    x = {"x": (n, *mechanism.domain.shape)}
    return x | {"phi": phi} if mechanism.settings.labelled else x


def _write_header(
    file: IO[bytes], small: Mapping[str, Tensor], streamed: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Write the header of a safetensors file in the library's order: 64-bit tensors first, each by name.

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
