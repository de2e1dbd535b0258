"""A release: tensors and a certificate, in a folder. It is all that passes from curator to analyst.

The folder holds `release.safetensors`, `certificate.json` and, when it is signed, `signature.json`. Nothing
private, no seed and no generator state is in it. Loading checks everything: the certificate's digest, the
charges' arithmetic, the totals, and the hash, shape and type of each tensor. No pickle.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.features import Features, checked
from adlm.model.estimates import Moments
from adlm.privacy import signature
from adlm.privacy.accounting import Charge, compose
from adlm.privacy.certificate import (
    ENGINE,
    Certificate,
    Part,
    box,
    charges_part,
    guarantee,
    header_entries,
    implied_stamps,
)
from adlm.privacy.folders import CERTIFICATE, TENSORS, read_release
from adlm.privacy.signature import Signature, sign
from adlm.runtime.artefact import canonical, new_folder, sha256
from adlm.version import __version__


@dataclass(frozen=True)
class Release:
    """Noisy tensors and their certificate: all that training needs, at no further privacy cost.

    Made by `adlm.privatise`, or read by `Release.load`.

    Attributes
    ----------
    tensors : the released numbers, by name.
    certificate : what was released, its privacy cost, and its warnings.
    signature : over the certificate's digest, which covers the tensors; None if it is not signed.
    engine : where the passes over the records ran. The digest does not cover it, as it changes no result.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from adlm import Domain, Release, privatise
    >>> domain = Domain((2,), 0, 1, ("no", "yes"))
    >>> release = privatise(np.eye(2).repeat(50, 0), np.arange(100) // 50, domain, epsilon=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     release.save(f"{folder}/R")
    ...     Release.load(f"{folder}/R").certificate == release.certificate
    True
    >>> z, codes = release.sample(1000)  # labelled feature vectors, drawn from the release alone
    """

    tensors: Mapping[str, Tensor]
    certificate: Certificate
    signature: Signature | None = None
    engine: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        """`moments` (classes), `regression` (a numeric target) or `records`; as the certificate says."""
        return self.certificate.kind

    @classmethod
    def make(
        cls,
        tensors: Mapping[str, Tensor],
        *,
        kind: str,
        domain: Domain,
        features: Mapping[str, Any],
        settings: Mapping[str, Any],
        charges: tuple[Charge, ...],
        stamps: tuple[str, ...] = (),
    ) -> Release:
        """Make a release from tensors and their description.

        Parameters
        ----------
        stamps : those of all inputs of the release. Those that follow from its domain and totals are added.
        """
        implied = implied_stamps(domain, compose(charges), settings.get("n")) if charges else ()
        stamps = tuple(dict.fromkeys((*stamps, *implied)))
        tensors = {name: t.detach().cpu().contiguous() for name, t in sorted(tensors.items())}
        made_by = {"adlm": __version__, "torch": torch.__version__, "python": platform.python_version()}
        described = describe(tensors)
        return cls(
            tensors, Certificate(kind, domain, features, settings, charges, stamps, described, made_by)
        )

    def __repr__(self) -> str:
        """Kind and guarantee, in one line."""
        return f"Release({self.kind!r}, {self.certificate.totals.sentence()})"

    def _repr_html_(self) -> str:
        certificate = self.certificate
        signer = "nobody" if self.signature is None else self.signature.signer[:12]
        facts = [("kind", certificate.kind), *guarantee(certificate.totals), ("signed by", signer)]
        rows = [(name, " x ".join(map(str, t.shape)), t.dtype) for name, t in self.tensors.items()]
        tensors = Part(f"{len(rows)} tensors", ("name", "shape", "type"), rows)
        return box("Release", facts, [charges_part(certificate.charges), tensors], certificate.stamps)

    def features(self, given: Features | None = None) -> Features:
        """Build the public features of the release, or check that given ones are the same.

        Parameters
        ----------
        given : the features, if they are a user-supplied backbone, which a certificate cannot rebuild.

        Raises
        ------
        UserError : the features must be given, or their fingerprint is not the certificate's.
        """
        return checked(self.certificate.features, given)

    def moments(self) -> Moments:
        """Return the released moments with the standard deviations of their noise.

        Raises
        ------
        UserError : the release is one of records, or for a numeric target.
        """
        if self.certificate.kind != "moments":
            raise UserError(f"a release of kind {self.certificate.kind!r} holds no moments")
        return Moments.from_tensors(self.tensors, self.certificate.settings)

    def sample(self, n: int, seed: int = 0, features: Features | None = None) -> tuple[Tensor, Tensor]:
        """Draw labelled feature vectors from the released numbers, to train on. Draws cost no privacy.

        Parameters
        ----------
        n : how many.
        seed : of the draw; it has nothing to do with privacy.
        features : those of the release, if they are a user-supplied backbone.

        Returns
        -------
        z, labels : (n, k) feature vectors and (n,) class codes, or targets in their units.

        Raises
        ------
        UserError : the release is one of records.
        """
        from adlm.model.draws import sample

        return sample(self, self.features(features), n, seed)

    def synthesise(self, rows: int, *, where: Mapping[str, str] | None = None, seed: int = 0) -> Any:
        """Draw synthetic records in the declared columns, as a pandas data frame. Draws cost no privacy.

        Parameters
        ----------
        rows : how many.
        where : conditions, a value for each of some columns; for a bounded column a range such as "30..40".
        seed : of the draw; it has nothing to do with privacy.

        Raises
        ------
        UserError : the release was not made with `kind="synthetic"`, or a condition is never met.
        """
        from adlm.model.synthetic import synthesise

        return synthesise(self, rows, where=where, seed=seed).to_pandas()

    def signed(self, key: Ed25519PrivateKey) -> Release:
        """Return the release with a signature.

        Parameters
        ----------
        key : the signer's private key (`adlm.privacy.signature.load_key`).
        """
        return replace(self, signature=sign(self.certificate.statement(), key))

    def save(self, folder: Path | str) -> None:
        """Write the release to a new folder, atomically.

        Parameters
        ----------
        folder : must not exist.

        Raises
        ------
        UserError : the folder exists, or cannot be written.
        """
        # Noisy records are written as they are made, before their digest is known: no header names it.
        certificate = self.certificate
        entries = None
        if certificate.kind != "records":
            entries = header_entries(certificate, certificate.stamps, release_signature=self.signature)
        with new_folder(Path(folder), what="release") as temporary:
            if self.signature is not None:
                (temporary / signature.FILE).write_bytes(canonical(self.signature.to_dict()))
            (temporary / TENSORS).write_bytes(save_tensors(dict(self.tensors), entries))
            engine = {} if self.engine is None else {ENGINE: dict(self.engine)}
            (temporary / CERTIFICATE).write_bytes(canonical(certificate.to_dict() | engine))

    @classmethod
    def load(cls, folder: Path | str) -> Release:
        """Read a release and check digests, charges, totals, tensors and signature.

        Parameters
        ----------
        folder : one that `save` or `adlm release` wrote.

        Raises
        ------
        UserError : the folder is no release, or something in it was altered; the sentence names it.
        """
        read = read_release(Path(folder))
        return cls(load_tensors(read.tensors), read.certificate, read.signature, read.engine)


def describe(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Return hash, shape and type of each tensor, by name."""
    return {
        name: {
            "dtype": str(t.dtype).removeprefix("torch."),
            "shape": list(t.shape),
            "sha256": sha256(t.numpy().tobytes()),
        }
        for name, t in tensors.items()
    }
