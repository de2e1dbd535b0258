"""Predictions for a file of records, batch by batch: written as CSV, atomically, or measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adlm.data.images import input_batches
from adlm.data.tables import read_batches, read_labelled, table_of
from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import TABLES
from adlm.model.metrics import Measures, NumericMeasures, measure, measure_values
from adlm.model.model import Model
from adlm.privacy.certificate import Certificate
from adlm.runtime.artefact import new_file


def predict_file(model: Model, file: Path | str, out: Path | str) -> int:
    """Write a prediction for each record; return the number of records.

    A prediction is the class with the probability of each class, or a number. For images, the first column
    names the record.
    """
    batches = _records(model, file)
    named = declared_of(model.certificate) is not None
    records = 0
    with new_file(Path(out), what="file of predictions", private=True) as written:
        stream = io.TextIOWrapper(written, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(stream, lineterminator="\n")
        first = ["record"] if named else []
        writer.writerow([*first, "prediction", *(f"probability of {name}" for name in model.classes)])
        for x, names in batches:
            records += len(x)
            if model.target is not None:
                writer.writerows([f"{value:.6g}"] for value in model.values(x))
                continue
            probabilities = model.probabilities(x)
            for at, (code, row) in enumerate(zip(probabilities.argmax(1), probabilities, strict=True)):
                who = [names[at]] if named else []
                writer.writerow([*who, model.classes[int(code)], *(f"{p:.6f}" for p in row)])
        if not records:
            raise UserError(f"{file} holds no records; give at least one")
        stream.detach()
    return records


def _records(model: Model, file: Path | str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Records of a file without labels, batch by batch, with their names where they have any."""
    declared = declared_of(model.certificate)
    if declared is not None:
        return ((b.x, b.names) for b in input_batches(file, declared, labels=False, bounded=False))
    read = read_batches(file, table_of(_spec(model)), labels=False, bounded=False, lenient=True)
    return ((batch.x, ()) for batch in read)


def declared_of(certificate: Certificate) -> TableDomain | None:
    """How files of images or vectors are read for a release's models; None for a table's.

    It is in the certificate if columns do not have the default names, and else follows from the domain.
    """
    spec = certificate.features.get("spec")
    if isinstance(spec, Mapping) and spec.get("name") in TABLES:
        return None
    stored = certificate.settings.get("input")
    return TableDomain.of_domain(certificate.domain) if stored is None else TableDomain.from_dict(stored)


def _spec(model: Model) -> Mapping[str, Any]:
    """The description of the features; a model of a record release of images has none."""
    spec = model.certificate.features.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def measure_file(model: Model, file: Path | str, *, device: str = "cpu") -> Measures:
    """Measure a model on a file of labelled records; only probabilities and labels are kept in memory."""
    return measure(*_answers(model.probabilities, model, file, device))


def measure_values_file(model: Model, file: Path | str, *, device: str = "cpu") -> NumericMeasures:
    """Measure a model of a numeric target on a file of records.

    A true value outside the declared bounds counts as the nearest one within.
    """
    predicted, positions = _answers(model.values, model, file, device)
    low, high = model.target or (0.0, 1.0)
    return measure_values(predicted, low + (high - low) * (positions / TARGET_UNIT))


def _answers(predict: Any, model: Model, file: Path | str, device: str) -> tuple[Any, Any]:
    """Predictions for a file's records, and their encoded labels or targets."""
    predicted, truth = [], []
    declared = declared_of(model.certificate)
    batches: Any = (
        read_labelled(file, _spec(model))
        if declared is None
        else input_batches(file, declared, bounded=False)
    )
    for batch in batches:
        predicted.append(predict(batch.x, device=device))
        truth.append(batch.y)
    if not truth:
        raise UserError(f"{file} holds no records; give at least one")
    return np.concatenate(predicted), np.concatenate(truth)
