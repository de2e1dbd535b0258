"""The contents of a report, and how to cite, verify and repeat a release."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adlm.errors import UserError
from adlm.features import TABLES
from adlm.privacy.accounting import show
from adlm.privacy.certificate import Certificate
from adlm.privacy.folders import CERTIFICATE, DESCRIPTION, TENSORS, read_model
from adlm.privacy.release import Release
from adlm.privacy.signature import FILE, OF_RELEASE, Signature
from adlm.report.html import Section, join, paragraph, table, tag
from adlm.runtime.artefact import read_json

# ---- The contents of a report: a release, the models trained on it, their evaluations, an audit.

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
    read = read_model(place)
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


# ---- How to cite, verify and repeat a release.

BIBTEX = """@inproceedings{phan2017adaptive,
  title     = {Adaptive {L}aplace Mechanism: Differential Privacy Preservation in Deep Learning},
  author    = {Phan, NhatHai and Wu, Xintao and Hu, Han and Dou, Dejing},
  booktitle = {IEEE International Conference on Data Mining (ICDM)},
  year      = {2017},
  note      = {arXiv:1709.05750}
}"""


def rerun(certificate: Certificate, folder: str, signature: Signature | None = None) -> Section:
    """Show the commands, the versions, the digest and the signer."""
    commands = f"adlm verify {_quoted(folder)}\n{rerun_command(certificate)}"
    facts = [
        ("certificate digest", tag("code", certificate.digest)),
        *_signed(signature),
        ("features", _features(certificate)),
        *_encoder(certificate),
        *((f"{name} version", version) for name, version in sorted(certificate.software.items())),
        *((name, _value(value)) for name, value in sorted(certificate.settings.items()) if value is not None),
    ]
    body = join(
        [
            paragraph(
                "Check this release, or make another one with the same settings. A new release draws new "
                "noise and spends again: its tensors will differ, its certificate only in their hashes."
            ),
            tag("pre", commands),
            paragraph(
                "Quote the digest when you cite this release; it covers the charges and every tensor. "
                "Digests show that nothing was altered since they were made, a signature shows who made "
                "them, and neither shows that noise was drawn."
            ),
            table(("fact", "value"), facts),
            tag("h3", "Paper"),
            tag("pre", BIBTEX),
        ]
    )
    return Section("cite", "Cite, check and rerun", body)


def rerun_command(certificate: Certificate) -> str:
    """Return the command that makes another release with the same settings."""
    command = "release-records" if certificate.kind == "records" else "release"
    guess = " --public-size GUESS" if certificate.settings.get("n") is None else ""  # n is private
    return (
        f"adlm {command} {_records(certificate)} {_requested_options(certificate)} "
        f"--neighbours {certificate.totals.neighbours}{guess} --out again"
    )


def _signed(signature: Signature | None) -> list[tuple[str, object]]:
    if signature is None:
        return [("signed by", "nobody")]
    value = tag("code", signature.value)
    return [("signed by", tag("code", signature.signer)), ("signature (Ed25519)", value)]


def _records(certificate: Certificate) -> str:
    """The command-line options of the records: a table's file, or a name."""
    spec = certificate.features.get("spec")
    of_table = isinstance(spec, Mapping) and spec.get("name") in TABLES
    if not of_table and certificate.settings.get("input") is not None:
        return "FILES --domain DOMAIN.toml"
    return "TABLE.csv --domain DOMAIN.toml" if of_table else "--data NAME"


def _requested_options(certificate: Certificate) -> str:
    """The options of the release, or its budget where they were not recorded."""
    totals, settings = certificate.totals, certificate.settings
    spent = totals.epsilon_proved if certificate.kind != "records" else totals.epsilon_claimed
    options = {"epsilon": show(spent)}
    if certificate.kind != "records":
        options["delta"] = f"{float(totals.delta):g}"
    requested = settings.get("asked")
    if isinstance(requested, Mapping):
        options |= {name: str(value) for name, value in requested.items() if value is not None}
    plan = settings.get("plan")
    if isinstance(plan, Mapping) and plan.get("fourier"):
        options["fourier"] = str(plan["fourier"])
    return " ".join(f"--{name} {_quoted(value)}" for name, value in options.items())


def _features(certificate: Certificate) -> object:
    spec = certificate.features.get("spec")
    if not isinstance(spec, dict):
        return "the records themselves"
    fingerprint = str(certificate.features.get("fingerprint", ""))
    return join([f"{spec.get('name', '?')}, fingerprint ", tag("code", fingerprint[:16])])


def _encoder(certificate: Certificate) -> list[tuple[str, object]]:
    """Show the declared origin of user-supplied features, which cannot be verified."""
    entry = certificate.features
    if "provenance" not in entry:
        return []
    spec = entry["spec"]
    while "of" in spec:
        spec = spec["of"]
    name = str(spec.get("file") or spec.get("encoder") or spec.get("module") or spec.get("name"))
    hashed = f", SHA-256 {spec['sha256']}" if "sha256" in spec else ""
    trained = entry.get("trained_on") or "not said"
    declared = (
        f"{name}{hashed}; declared {entry['provenance']}; declared to have been trained on: {trained}. "
        "Nothing in a file shows what it was trained on: this rests on the word of whoever made the release."
    )
    return [("encoder", declared)]


def _value(value: object) -> str:
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 300 else written[:300] + "…"


def _quoted(folder: str) -> str:
    import shlex

    return shlex.quote(folder)
