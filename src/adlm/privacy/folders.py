"""Folders of releases and models: what they hold, and every check of it, without importing torch.

A release folder holds `release.safetensors`, `certificate.json` and, when it is signed, `signature.json`. A
model folder holds `model.safetensors`, `model.json`, the release's certificate, and the signatures of both.
`Release.load`, `Model.load` and `adlm verify` read them here, so that all three check the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load, save

from adlm.errors import UserError
from adlm.privacy.certificate import ENGINE, Certificate, check_entries, entries_of, privacy_header
from adlm.privacy.signature import FILE, OF_RELEASE, Signature, Statement
from adlm.runtime.artefact import canonical, read_json, sha256

TENSORS, CERTIFICATE = "release.safetensors", "certificate.json"
WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
MODEL_SCHEMA = 1
INITIAL_WEIGHTS = {  # stamps of a network with initial weights, by their declared provenance
    "undeclared": ("where the network's weights came from before training was not declared",),
    "private": ("NOT PRIVATE: private records had a part in the network before training",),
}


@dataclass(frozen=True)
class ReleaseFolder:
    """A release on disk, checked.

    Attributes
    ----------
    certificate : of the release.
    tensors : the bytes of its safetensors file.
    signature : None if it is not signed.
    engine : where the passes over the records ran, if that is stated.
    """

    certificate: Certificate
    tensors: bytes
    signature: Signature | None
    engine: Mapping[str, Any] | None


@dataclass(frozen=True)
class ModelFolder:
    """A model on disk, checked; its network is not built.

    Attributes
    ----------
    certificate : of the release that it was trained on.
    description : the content of `model.json`.
    weights : the bytes of its safetensors file.
    release_signature, signature : of the release and of the model; None if not signed.
    """

    certificate: Certificate
    description: Mapping[str, Any]
    weights: bytes
    release_signature: Signature | None
    signature: Signature | None

    @property
    def stamps(self) -> tuple[str, ...]:
        """Warnings of the release and of the network's initial weights."""
        return stamps_of(self.certificate, self.description["training"])


def require_release(folder: Path) -> None:
    """Refuse a folder that holds no release, before anything slow is imported."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a release: it must be a folder with {TENSORS} and {CERTIFICATE}")
    if not (folder / TENSORS).exists() and (folder / DESCRIPTION).exists():
        raise UserError(f"{folder} is a model, not a release; give the release that it was trained on")


def require_model(folder: Path) -> None:
    """Refuse a folder that holds no model, before anything slow is imported."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a model: it must be a folder written by adlm train")
    if not (folder / DESCRIPTION).exists() and (folder / TENSORS).exists():
        raise UserError(f"{folder} is a release, not a model; adlm train {folder} makes one of it")


def read_release(folder: Path) -> ReleaseFolder:
    """Read a release folder and check digests, charges, totals, tensors and signature.

    Raises
    ------
    UserError : the folder is no release, or something in it was altered; the sentence names it.
    """
    require_release(folder)
    raw = read_json(folder / CERTIFICATE, what="certificate")
    certificate, engine = Certificate.from_dict(raw), raw.get(ENGINE)
    signed = Signature.read(folder / FILE, certificate.statement(), f"the release {folder}")
    header = privacy_header(certificate, certificate.stamps, release_signature=signed)
    tensors = _read_tensors(folder / TENSORS, certificate.tensors, header)
    return ReleaseFolder(certificate, tensors, signed, engine if isinstance(engine, Mapping) else None)


def read_model(folder: Path) -> ModelFolder:
    """Read a model folder and check digests, hashes, signatures, and that all of it belongs together.

    Raises
    ------
    UserError : the folder is no model, or something in it was altered; the sentence names it.
    """
    require_model(folder)
    certificate = Certificate.from_dict(read_json(folder / CERTIFICATE, what="certificate"))
    raw = read_json(folder / DESCRIPTION, what="model description")
    body = {key: value for key, value in raw.items() if key != "digest"}
    if raw.get("schema") != MODEL_SCHEMA or raw.get("digest") != sha256(canonical(body)):
        raise UserError(f"the model description {folder / DESCRIPTION} was altered or is of another version")
    if raw.get("certificate") != certificate.digest:
        raise UserError(
            f"the model in {folder} was made from the release {str(raw.get('certificate'))[:12]}, and the "
            f"certificate there is that of {certificate.digest[:12]}: one of the two was exchanged"
        )
    own = Statement("model", raw["digest"], certificate.digest)
    released = Signature.read(folder / OF_RELEASE, certificate.statement(), f"the release of {folder}")
    signed = Signature.read(folder / FILE, own, f"the model {folder}")
    stamps = stamps_of(certificate, raw["training"])
    header = privacy_header(certificate, stamps, release_signature=released, signature=signed)
    weights = _read_tensors(folder / WEIGHTS, raw["weights"], header)
    return ModelFolder(certificate, raw, weights, released, signed)


def stamps_of(certificate: Certificate, training: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the warnings of a release, and of a network's initial weights."""
    initial = INITIAL_WEIGHTS.get(str(training.get("provenance", "public")), ())
    return tuple(dict.fromkeys((*certificate.stamps, *initial)))


def _read_tensors(path: Path, described: Mapping[str, Mapping[str, Any]], header: Mapping[str, Any]) -> bytes:
    """Read a safetensors file, and check every tensor and the header against their description."""
    try:
        raw = path.read_bytes()
        tensors = load(raw)
        entries = entries_of(raw)
    except OSError as error:
        raise UserError(f"the tensors {path} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"the tensors {path} are truncated or altered: {error}") from None
    if set(tensors) != set(described):
        raise UserError(
            f"{path} holds the tensors {sorted(tensors)}, its certificate names {sorted(described)}"
        )
    for name, tensor in tensors.items():
        found = {"dtype": str(tensor.dtype), "shape": list(tensor.shape), "sha256": sha256(tensor.tobytes())}
        if found != dict(described[name]):
            raise UserError(f"tensor {name!r} in {path} was altered: it does not match its certificate")
    if entries is not None:
        check_entries(entries, header, str(path))
    if save({name: tensors[name] for name in sorted(tensors)}, entries) != raw:
        raise UserError(f"the tensors {path} were altered outside their values")
    return raw
