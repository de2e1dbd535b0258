"""Signatures of artefacts: Ed25519 of the `cryptography` library.

What is signed is a statement: the kind of an artefact, its digest, and the digest of the certificate of the
release that it was made from. So a signed model cannot be combined with another certificate, nor a
certificate with other charges, stamps or tensors. A signature proves who signed an artefact; it cannot prove
that noise was drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from adlm.errors import UserError
from adlm.runtime.artefact import canonical, read_json, sha256, sync, write_file

FILE, OF_RELEASE = "signature.json", "release.signature.json"
ALGORITHM = "ed25519"
_CONTEXT = b"adlm statement 1\n"  # domain separation: no signature for another purpose is valid here


@dataclass(frozen=True)
class Statement:
    """The statement that is signed.

    Attributes
    ----------
    kind : `release`, `model`, `onnx` or `relevance network`.
    subject : SHA-256 of the artefact, as its kind defines it.
    release : digest of the release's certificate; empty if there is none.
    """

    kind: str
    subject: str
    release: str

    @property
    def message(self) -> bytes:
        """The bytes that are signed."""
        return _CONTEXT + canonical(asdict(self))


@dataclass(frozen=True)
class Signature:
    """A statement, the signer's public key, and the signature, both in hexadecimal."""

    statement: Statement
    key: str
    value: str

    @property
    def signer(self) -> str:
        """Fingerprint of the key: SHA-256 of its 32 bytes."""
        return sha256(bytes.fromhex(self.key))

    def check(self, expected: Statement, what: str) -> Signature:
        """Refuse a signature that is not valid for the expected statement and its key."""
        try:
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key))
            public.verify(bytes.fromhex(self.value), self.statement.message)
        except (InvalidSignature, ValueError):
            raise UserError(
                f"the signature of {what} does not hold: it, or what it signs, was altered"
            ) from None
        if self.statement != expected:
            raise UserError(
                f"the signature of {what} is that of another artefact: it states {self.statement.kind} "
                f"{self.statement.subject[:12]} of release {self.statement.release[:12]}, found were "
                f"{expected.subject[:12]} and {expected.release[:12]}"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "algorithm": ALGORITHM,
            "statement": asdict(self.statement),
            "key": self.key,
            "value": self.value,
        }

    @classmethod
    def from_dict(cls, raw: object, what: str) -> Signature:
        """Read a signature; it is not checked yet."""
        try:
            assert isinstance(raw, Mapping)
            stated = raw["statement"]
            statement = Statement(str(stated["kind"]), str(stated["subject"]), str(stated["release"]))
            if raw["algorithm"] != ALGORITHM or set(stated) != set(asdict(statement)):
                raise ValueError
            return cls(statement, str(raw["key"]), str(raw["value"]))
        except (AssertionError, KeyError, TypeError, ValueError):
            raise UserError(f"the signature of {what} cannot be read; it was altered") from None

    @classmethod
    def read(cls, path: Path, expected: Statement, what: str) -> Signature | None:
        """Read a signature file and check it; None when there is no file."""
        if not path.exists():
            return None
        return cls.from_dict(read_json(path, what="signature"), what).check(expected, what)


def sign(statement: Statement, key: Ed25519PrivateKey) -> Signature:
    """Sign a statement."""
    return Signature(statement, _raw(key.public_key()).hex(), key.sign(statement.message).hex())


def new_key(path: Path) -> str:
    """Write a new private key, readable by its owner alone, and its public key; return the fingerprint.

    The public key is PATH.pub; nothing is overwritten. Both are PEM files that other tools read too.
    """
    path = Path(path)
    public = path.with_name(f"{path.name}.pub")
    for taken in (path, public):
        if taken.exists():
            raise UserError(f"{taken} exists already, and keys are not overwritten; choose another name")
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
        sync(path)
    except OSError as error:
        raise UserError(f"the key cannot be written to {path}: {error.strerror or error}") from None
    write_file(
        public,
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        what="public key",
    )
    return fingerprint(key.public_key())


def load_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key; one that others can read is refused."""
    raw = _read(path, "private key")
    if Path(path).stat().st_mode & 0o077:
        raise UserError(
            f"the private key {path} can be read by others; keep it to yourself: chmod 600 {path}"
        )
    try:
        key = load_pem_private_key(raw, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{path} is not a private Ed25519 key; adlm key new makes one")
    return key


def load_public(path: Path) -> Ed25519PublicKey:
    """Read a public key."""
    raw = _read(path, "public key")
    try:
        key = load_pem_public_key(raw)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UserError(
            f"{path} is not a public Ed25519 key; adlm key new writes one beside each private key"
        )
    return key


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of a public key's 32 bytes, in hexadecimal."""
    return sha256(_raw(key))


def require(signature: Signature | None, trusted: Iterable[Ed25519PublicKey], what: str, remedy: str) -> None:
    """Refuse an artefact that is not signed, or not by a trusted key.

    Parameters
    ----------
    signature : that of the artefact, or None.
    trusted : public keys.
    what : the artefact, for the sentence.
    remedy : what to do, for the sentence.
    """
    if signature is None:
        raise UserError(f"{what} is not signed; {remedy}")
    if signature.key not in {_raw(key).hex() for key in trusted}:
        raise UserError(
            f"{what} is signed by {signature.signer}, which is none of the keys that were given; ask whoever "
            "made it for their public key"
        )


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _read(path: Path, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"the {what} {path} cannot be read: {error.strerror or error}") from None
