"""Predictions for a file of records, batch by batch: written as CSV, atomically, or measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adlm.data.reading import pieces_of, read_batches, read_piece
from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import TABLES
from adlm.model.metrics import Measures, NumericMeasures, measure, measure_values
from adlm.model.model import Model
from adlm.privacy.certificate import Certificate
from adlm.runtime.artefact import new_file


def predict_file(model: Model, file: Path | str, out: Path | str, keep: Sequence[str] = ()) -> int:
    """Write a prediction for each record; return the number of records.

    A prediction is the class with the probability of each class, or a number. For images, the first column
    names the record; of a table, columns to `keep` are copied first.
    """
    declared = declared_of(model.certificate)
    named, records = declared.input is not None, 0
    if named and keep:
        raise UserError("--keep is for tables; predictions of images and vectors name each record already")
    needed: Any = {"labels": False, "persons": False, "keep": keep}
    batches = (
        batch
        for piece in pieces_of(file, declared, **needed)
        for batch in read_piece(piece, declared, **needed, lenient=True)
    )
    with new_file(Path(out), what="file of predictions", private=True) as written:
        stream = io.TextIOWrapper(written, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(stream, lineterminator="\n")
        first = ["record"] if named else list(keep)
        writer.writerow([*first, "prediction", *(f"probability of {name}" for name in model.classes)])
        for batch in batches:
            records += len(batch)
            kept = [batch.names] if named else [batch.raw.cells[name].to_pylist() for name in keep]
            who = list(zip(*kept, strict=True)) or [()] * len(batch)
            if model.target is not None:
                rows = [[f"{value:.6g}"] for value in model.values(batch.x)]
            else:
                found = model.probabilities(batch.x)
                rows = [
                    [model.classes[int(code)], *(f"{p:.6f}" for p in row)]
                    for code, row in zip(found.argmax(1), found, strict=True)
                ]
            writer.writerows([*first, *row] for first, row in zip(who, rows, strict=True))
        if not records:
            raise UserError(f"{file} holds no records; give at least one")
        stream.detach()
    return records


def declared_of(certificate: Certificate) -> TableDomain:
    """How files of records are read for a release's models.

    Of images and vectors it is in the certificate if columns do not have the default names, and else follows
    from the domain.
    """
    spec = certificate.features.get("spec")
    if isinstance(spec, Mapping) and spec.get("name") in TABLES:
        return TableDomain.from_dict(spec["table"])
    stored = certificate.settings.get("input")
    return TableDomain.of_domain(certificate.domain) if stored is None else TableDomain.from_dict(stored)


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
    for batch in read_batches(file, declared, bounded=False, lenient=True):  # evaluation is not private
        predicted.append(predict(batch.x, device=device))
        truth.append(batch.y)
    if not truth:
        raise UserError(f"{file} holds no records; give at least one")
    return np.concatenate(predicted), np.concatenate(truth)
