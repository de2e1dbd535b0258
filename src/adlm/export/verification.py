"""Verification of a release, a model folder or an ONNX file: what can be proved of it, and what cannot.

Arithmetic and integrity are proved from the artefact alone: charges add up to the stated totals, and all
bytes match their digests. Anyone who can write a file can also rewrite its digests, so this does not prove
its origin. A signature by a key that the reader trusts does.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from adlm.errors import UserError
from adlm.privacy.certificate import Certificate, privacy_header
from adlm.privacy.folders import DESCRIPTION, read_model, read_release
from adlm.privacy.signature import Signature, Statement, require, sign
from adlm.runtime.artefact import sha256

CARRIED = ("certificate", "privacy", "stamps", "release")  # entries of an ONNX file about its release
SIGNATURE = "adlm.signature"  # key of the last entry of a signed ONNX file
ARITHMETIC = "proved: the stated totals are the sum of the charges"
INTEGRITY = "proved: all digests match"
NO_DIGEST = (
    "not proved: that the network is the one that was exported; an ONNX file has no digest but a signature"
)
UNSIGNED = "not proved: its origin; anyone who can edit the files can recompute the digests"
HONESTY = "not proved: that noise was drawn, and that the records were as declared"


@dataclass(frozen=True)
class Verified:
    """The result of verifying an artefact.

    Attributes
    ----------
    kind : `release`, `model` or `onnx`.
    certificate : of the release, or of the release it was made from.
    stamps : warnings of the artefact and of its release.
    release_signature, signature : of the release and of the artefact; the same for a release.
    trusted : whether both are by trusted keys.
    """

    kind: str
    certificate: Certificate
    stamps: tuple[str, ...]
    release_signature: Signature | None
    signature: Signature | None
    trusted: bool = False

    def sentences(self) -> list[str]:
        """Return sentences on what is proved and what is not."""
        integrity = INTEGRITY if self.kind != "onnx" or self.signature else NO_DIGEST
        if not self.trusted:
            return [ARITHMETIC, integrity, *map(self._summary, self._signatures()), UNSIGNED, HONESTY]
        assert self.signature is not None
        assert self.release_signature is not None
        signed = [f"proved: {self.release_signature.signer} signed the release's certificate"]
        if self.kind != "release":
            signed.append(f"proved: {self.signature.signer} signed that this {self.kind} is of that release")
        return [ARITHMETIC, integrity, *signed, HONESTY]

    @staticmethod
    def _summary(entry: tuple[str, Signature | None]) -> str:
        what, signature = entry
        if signature is None:
            return f"{what} is not signed"
        return f"{what} is signed by {signature.signer}, a key that was not given as trusted (--trust)"

    def _signatures(self) -> list[tuple[str, Signature | None]]:
        signatures: list[tuple[str, Signature | None]] = [("the release", self.release_signature)]
        return signatures if self.kind == "release" else [*signatures, (f"the {self.kind}", self.signature)]


def verify(path: Path | str, trusted: Sequence[Ed25519PublicKey] = ()) -> Verified:
    """Check an artefact; with trusted keys, refuse one that they did not sign.

    Parameters
    ----------
    path : a release folder, a model folder or an ONNX file.
    trusted : public keys. A release must be signed by one of them. A model and an ONNX file must be signed
        too: only a trusted signature proves that a model and its certificate belong together.

    Returns
    -------
    The result; its `sentences()` state what is proved and what is not.

    Raises
    ------
    UserError : something does not match its digest, or is not signed by a trusted key.

    Examples
    --------
    >>> print(*verify("R", [load_public("curator.key.pub")]).sentences(), sep="\\n")  # doctest: +SKIP
    """
    path = Path(path)
    if path.is_file():
        result = _onnx(path)
    elif (path / DESCRIPTION).exists():
        result = _model(path)
    else:
        read = read_release(path)
        result = Verified(
            "release", read.certificate, read.certificate.stamps, read.signature, read.signature
        )
    if not trusted:
        return result
    released = str(path) if result.kind == "release" else f"the release of {path}"
    require(result.release_signature, trusted, released, "adlm release --sign KEY signs one when it is made")
    if result.kind != "release":
        command = "train" if result.kind == "model" else "export"
        require(
            result.signature,
            trusted,
            str(path),
            "its release is, but nothing binds the two together until they are signed as one; adlm "
            f"{command} --sign KEY does",
        )
    return replace(result, trusted=True)


def _model(folder: Path) -> Verified:
    """Check a model folder. Its network is not built, so that user-supplied heads can be checked too."""
    read = read_model(folder)
    return Verified("model", read.certificate, read.stamps, read.release_signature, read.signature)


def _onnx(path: Path) -> Verified:
    """Check the certificate that an ONNX file carries, and its signatures."""
    onnx, what = library("onnx"), str(path)
    data = path.read_bytes()
    try:
        summary = {entry.key: entry.value for entry in onnx.load_model_from_string(data).metadata_props}
        entries = {key: json.loads(summary[f"adlm.{key}"]) for key in CARRIED}
    except Exception:  # protobuf has its own errors, and a file may hold anything
        raise UserError(f"{path} is not an ONNX file that adlm export wrote, or was altered") from None
    certificate = Certificate.from_dict(entries["release"])
    if entries["certificate"] != certificate.digest or entries["privacy"] != certificate.totals.to_dict():
        raise UserError(f"{path} states other totals than its certificate: it was altered")
    if not set(certificate.stamps) <= set(entries["stamps"]):
        raise UserError(f"{path} leaves out stamps of its certificate: it was altered")
    stated = privacy_header(certificate, entries["stamps"])
    for key, value in stated.items():
        if f"adlm.{key}" in summary and summary[f"adlm.{key}"] != json.dumps(value):
            raise UserError(f"{path} states another {key} than its certificate: it was altered")
    of_release = summary.get("adlm.release_signature")
    released = None
    if of_release is not None:
        released = _parsed(of_release, what).check(certificate.statement(), f"the release of {path}")
    signature = None
    if SIGNATURE in summary:
        tail = _tail(onnx, summary[SIGNATURE])
        statement = Statement("onnx", sha256(data.removesuffix(tail)), certificate.digest)
        if not data.endswith(tail):
            raise UserError(f"{path} was altered after it was signed")
        signature = _parsed(summary[SIGNATURE], what).check(statement, what)
    return Verified("onnx", certificate, tuple(entries["stamps"]), released, signature)


def sign_onnx(data: bytes, certificate: Certificate, key: Ed25519PrivateKey) -> bytes:
    """Sign a complete ONNX file: the signature is appended as a last entry."""
    signed = sign(Statement("onnx", sha256(data), certificate.digest), key)
    return data + _tail(library("onnx"), json.dumps(signed.to_dict(), sort_keys=True))


def _tail(onnx: Any, value: str) -> bytes:
    """Return a metadata entry for the end of a file: appended protobuf messages are merged."""
    part = onnx.ModelProto()
    part.metadata_props.add(key=SIGNATURE, value=value)
    return bytes(part.SerializeToString())


def _parsed(text: str, what: str) -> Signature:
    try:
        return Signature.from_dict(json.loads(text), what)
    except ValueError:
        raise UserError(f"the signature of {what} cannot be read; it was altered") from None


def library(name: str) -> Any:
    """Import a library that only export needs."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"ONNX files need {name}; install adlm[export]") from None
