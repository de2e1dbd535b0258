"""The contents of a report: a release, the models trained on it, their evaluations, an audit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlm.errors import UserError
from adlm.model.synthetic import Comparison
from adlm.privacy.certificate import Certificate
from adlm.privacy.folders import CERTIFICATE, DESCRIPTION, TENSORS, read_model
from adlm.privacy.release import Release
from adlm.privacy.signature import FILE, OF_RELEASE, Signature
from adlm.runtime.artefact import read_json

EVALUATION, AUDIT = "evaluation.json", "audit.json"


@dataclass(frozen=True)
class Trained:
    """A model by name, with its training and its evaluation, if any."""

    name: str
    training: Mapping[str, Any]
    architecture: Mapping[str, Any]
    evaluation: Mapping[str, Any] | None
    stamps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """One certificate and the artefacts that carry it.

    Attributes
    ----------
    folder : the folder of the report.
    place : the artefact to verify, within the folder.
    certificate : of the release; every model here carries the same one.
    release : the release itself, if available.
    models : in order of their names.
    audit : the findings of `adlm audit`, if saved.
    signature : of the release, if signed.
    comparison : of records drawn from a synthetic release with real ones, if these were given.
    """

    folder: Path
    place: Path
    certificate: Certificate
    release: Release | None
    models: tuple[Trained, ...] = ()
    audit: Mapping[str, Any] | None = None
    signature: Signature | None = None
    comparison: Comparison | None = None

    @property
    def stamps(self) -> tuple[str, ...]:
        """Warnings of the release and of its models."""
        own = [stamp for model in self.models for stamp in model.stamps]
        return tuple(dict.fromkeys((*self.certificate.stamps, *own)))


def find(folder: Path) -> Subject:
    """Read and check a release, a model, or a folder of artefacts with one certificate.

    A model's evaluation is `evaluation.json` in its folder or beside it, an audit `audit.json` beside the
    artefacts.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a release, a model, or a folder that holds them")
    places = [folder] if (folder / CERTIFICATE).exists() else _inside(folder)
    if not places:
        raise UserError(f"{folder} holds no release and no model: there is no {CERTIFICATE} in it")
    certificates = {c.digest: c for c in map(_certificate, places)}
    if len(certificates) > 1:
        named = ", ".join(place.name for place in places)
        raise UserError(f"{folder} holds artefacts of different releases ({named}); give one of them")
    (certificate,) = certificates.values()
    models = [place for place in places if (place / DESCRIPTION).exists()]
    released = [place for place in places if (place / TENSORS).exists()]
    if not models and not released:
        raise UserError(f"{places[0]} holds a certificate but neither {TENSORS} nor {DESCRIPTION}")
    known = released or [p for p in _inside(folder.resolve().parent) if (p / TENSORS).exists()]
    releases = (place for place in known if _certificate(place).digest == certificate.digest)
    signed = [place / FILE for place in released] + [place / OF_RELEASE for place in models]
    statement = certificate.statement()
    signatures = (Signature.read(file, statement, f"the release of {file.parent}") for file in signed)
    return Subject(
        folder,
        (released or models)[0],
        certificate,
        next((Release.load(place) for place in releases), None),
        tuple(_model(place, single=len(models) == 1) for place in models),
        _audit(folder / AUDIT, places[0].parent / AUDIT),
        next((signature for signature in signatures if signature is not None), None),
    )


def _inside(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and (p / CERTIFICATE).exists())


def _certificate(place: Path) -> Certificate:
    return Certificate.from_dict(read_json(place / CERTIFICATE, what="certificate"))


def _model(place: Path, *, single: bool) -> Trained:
    read = read_model(place)
    places = [place / EVALUATION, place.parent / f"{place.name}.{EVALUATION}"]
    places += [place.parent / EVALUATION] if single else []
    raw = read.description
    return Trained(place.name, raw["training"], raw["architecture"], _evaluation(*places), read.stamps)


def _evaluation(*paths: Path) -> Mapping[str, Any] | None:
    """Read the figures of `adlm evaluate`: an accuracy and a confusion matrix, or errors of numbers."""
    found = _first(*paths)
    if found is None or isinstance(found[1].get("rmse"), int | float):
        return found and found[1]
    path, figures = found
    accuracy, confusion = figures.get("accuracy"), figures.get("confusion", [])
    share = isinstance(accuracy, int | float) and 0 <= accuracy <= 1
    square = isinstance(confusion, list) and all(
        isinstance(row, list) and len(row) == len(confusion) and all(isinstance(v, int | float) for v in row)
        for row in confusion
    )
    if not share or not square:
        raise UserError(
            f"{path} must hold an accuracy between 0 and 1 and a square confusion matrix; "
            "give a file that adlm evaluate --save wrote"
        )
    return figures


def _audit(*paths: Path) -> Mapping[str, Any] | None:
    """Read the output of `adlm audit --json`: findings with a mechanism and a verdict each."""
    found = _first(*paths)
    if found is None:
        return None
    findings = found[1].get("findings")
    if not isinstance(findings, list) or not all(
        isinstance(one, dict) and {"mechanism", "verdict"} <= one.keys() for one in findings
    ):
        raise UserError(
            f"{found[0]} must hold findings of an audit; give a file that adlm audit --json wrote"
        )
    return found[1]


def _first(*paths: Path) -> tuple[Path, dict[str, Any]] | None:
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return None
    try:
        figures = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"{path} is not JSON; give a file that adlm evaluate or adlm audit wrote") from None
    if not isinstance(figures, dict):
        raise UserError(f"{path} must hold one JSON object, got {type(figures).__name__}")
    return path, figures
