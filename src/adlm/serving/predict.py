"""Predictions for a file of records, batch by batch: written as CSV, whole or not at all, or measured."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adlm.analyst.metrics import Measures, measure
from adlm.analyst.model import Model
from adlm.errors import UserError
from adlm.privacy.release import Certificate
from adlm.public.domain.inputs import InputDomain
from adlm.public.features import TABLES
from adlm.readers.inputs import input_batches
from adlm.readers.tables import read_batches, read_labelled, table_of


def predict_file(model: Model, file: Path | str, out: Path | str) -> int:
    """Write the predicted class and the probability of each class for each record; return how many.

    Records of images are named by a first column.
    """
    batches = _records(model, file)
    named = declared_of(model.certificate) is not None
    out = Path(out)
    records = 0
    temporary: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            first = ["record"] if named else []
            writer.writerow([*first, "prediction", *(f"probability of {name}" for name in model.classes)])
            for x, names in batches:
                chance = model.probabilities(x)
                for at, (code, row) in enumerate(zip(chance.argmax(1), chance, strict=True)):
                    who = [names[at]] if named else []
                    writer.writerow([*who, model.classes[int(code)], *(f"{p:.6f}" for p in row)])
                records += len(x)
            if not records:
                raise UserError(f"{file} holds no records; give at least one")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(out)
    except OSError as error:
        raise UserError(f"predictions were not written to {out}: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return records


def _records(model: Model, file: Path | str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Records of a file without labels, batch by batch, with their names where they have any."""
    declared = declared_of(model.certificate)
    if declared is not None:
        return ((b.x, b.names) for b in input_batches(file, declared, labels=False, bounded=False))
    read = read_batches(file, table_of(_spec(model)), labels=False, bounded=False, comments=True)
    return ((batch.x, ()) for batch in read)


def declared_of(certificate: Certificate) -> InputDomain | None:
    """How files of images or vectors are read for a release's models; None for a table's.

    It stands in the certificate where columns have names of their own, and else follows from the domain.
    """
    spec = certificate.features.get("spec")
    if isinstance(spec, Mapping) and spec.get("name") in TABLES:
        return None
    kept = certificate.settings.get("input")
    return InputDomain.of_domain(certificate.domain) if kept is None else InputDomain.from_dict(kept)


def _spec(model: Model) -> Mapping[str, Any]:
    """The description of the features; a model of a release record by record of images has none."""
    spec = model.certificate.features.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def measure_file(model: Model, file: Path | str, *, device: str = "cpu") -> Measures:
    """Measure a model on a file of labelled records; only probabilities and labels are kept of them."""
    chances, codes = [], []
    declared = declared_of(model.certificate)
    batches: Any
    if declared is not None:
        batches = input_batches(file, declared, bounded=False)
    else:
        batches = read_labelled(file, _spec(model))
    for batch in batches:
        chances.append(model.probabilities(batch.x, device=device))
        codes.append(batch.y)
    if not codes:
        raise UserError(f"{file} holds no records; give at least one")
    return measure(np.concatenate(chances), np.concatenate(codes))
