"""The contents of a report: a release, the models trained on it, their evaluations, an audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adlm.analyst.model import DESCRIPTION, read_folder
from adlm.errors import UserError
from adlm.privacy.certificate import Certificate
from adlm.privacy.release import CERTIFICATE, TENSORS, Release
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
    """

    folder: Path
    place: Path
    certificate: Certificate
    release: Release | None
    models: tuple[Trained, ...] = ()
    audit: Mapping[str, Any] | None = field(default=None)
    signature: Signature | None = None

    @property
    def stamps(self) -> tuple[str, ...]:
        """Warnings of the release and of its models."""
        own = [stamp for model in self.models for stamp in model.stamps]
        return tuple(dict.fromkeys((*self.certificate.stamps, *own)))


def find(
    folder: Path, *, evaluation: Mapping[str, Any] | None = None, audit: Mapping[str, Any] | None = None
) -> Subject:
    """Read and check a release, a model, or a folder of artefacts with one certificate."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a release, a model, or a folder that holds them")
    places = [folder] if (folder / CERTIFICATE).exists() else _inside(folder)
    if not places:
        raise UserError(f"{folder} holds no release and no model: there is no {CERTIFICATE} in it")
    certificates = {str(c.to_dict()["digest"]): c for c in map(_certificate, places)}
    if len(certificates) > 1:
        named = ", ".join(place.name for place in places)
        raise UserError(f"{folder} holds artefacts of different releases ({named}); give one of them")
    models = [place for place in places if (place / DESCRIPTION).exists()]
    released = [place for place in places if (place / TENSORS).exists()]
    if not models and not released:
        raise UserError(f"{places[0]} holds a certificate but neither {TENSORS} nor {DESCRIPTION}")
    alone = evaluation if len(models) == 1 else None
    if evaluation is not None and alone is None:
        raise UserError(f"an evaluation was given, but {folder} holds {len(models)} models; give one of them")
    return Subject(
        folder,
        (released or models)[0],
        next(iter(certificates.values())),
        _release(released, folder, next(iter(certificates))),
        tuple(_model(place, alone, single=len(models) == 1) for place in models),
        audit if audit is not None else _first(folder / AUDIT, places[0].parent / AUDIT),
        _signature(models, released, next(iter(certificates.values()))),
    )


def _signature(made: list[Path], released: list[Path], certificate: Certificate) -> Signature | None:
    """Read the release's signature, from its folder or from that of a model."""
    files = [place / FILE for place in released] + [place / OF_RELEASE for place in made]
    statement = certificate.statement()
    signatures = (Signature.read(file, statement, f"the release of {file.parent}") for file in files)
    return next((signature for signature in signatures if signature is not None), None)


def _release(released: list[Path], folder: Path, digest: str) -> Release | None:
    """Read the release, or the one next to a model with the model's certificate."""
    for place in released or _inside(folder.resolve().parent):
        if (place / TENSORS).exists() and str(_certificate(place).to_dict()["digest"]) == digest:
            return Release.load(place)
    return None


def _inside(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and (p / CERTIFICATE).exists())


def _certificate(place: Path) -> Certificate:
    return Certificate.from_dict(read_json(place / CERTIFICATE, what="certificate"))


def _model(place: Path, given: Mapping[str, Any] | None, *, single: bool) -> Trained:
    read = read_folder(place)
    raw = read.description
    places = [place / EVALUATION, place.parent / f"{place.name}.{EVALUATION}"]
    places += [place.parent / EVALUATION] if single else []
    evaluation = given if given is not None else _first(*places)
    return Trained(place.name, raw["training"], raw["architecture"], evaluation, read.stamps)


def _first(*paths: Path) -> Mapping[str, Any] | None:
    for path in paths:
        if path.exists():
            figures = read_json(path, what="figures file")
            if not isinstance(figures, dict):
                raise UserError(f"{path} must hold one JSON object, got {type(figures).__name__}")
            return figures
    return None
