"""The certificate of a release: its content, its cost and how to check both, with stamps that warn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from adlm.errors import UserError
from adlm.privacy.accounting import Charge, Totals, compose
from adlm.privacy.header import unit_of
from adlm.privacy.notebook import Part, box, charges_part, guarantee
from adlm.privacy.signature import Statement
from adlm.public.domain import Domain
from adlm.runtime.artefact import canonical, sha256

Content = Literal["moments", "rounds", "records", "regression"]
SCHEMA = 1
SEEDED = "NOT PRIVATE: seeded"
PEEKED = "NOT PRIVATE: bounds learnt from data"
NOT_PUBLIC = "NOT PRIVATE: features are not public"
WEAK_EPSILON = "NOT PRIVATE: epsilon above 100"
WEAK_DELTA = "NOT PRIVATE: delta of 1/n or more"
MOST_EPSILON, MOST_DELTA = 100, Fraction(1, 100)  # beyond these a release is stamped as not private
LEARNT_BOUNDS = "the bounds of the domain were learnt from the records, and no noise protects them"
ENGINE = "engine"  # a field of the certificate that its digest does not cover


@dataclass(frozen=True)
class Certificate:
    """The content of a release, its privacy cost, and how to check both.

    Attributes
    ----------
    kind : `moments`, `records`, or `regression` for a numeric target.
    domain : the public domain of the records.
    features : spec and fingerprint of the public features.
    settings : the public settings of the mechanism.
    charges : every read of private records.
    stamps : warnings that travel with the release, such as `NOT PRIVATE: seeded`.
    tensors : hash, shape and type of each tensor, by name.
    software : versions that made it.

    Examples
    --------
    >>> from adlm import Release
    >>> certificate = Release.load("digits-release").certificate  # doctest: +SKIP
    >>> print(certificate.totals.sentence(), certificate.stamps)  # doctest: +SKIP
    """

    kind: str
    domain: Domain
    features: Mapping[str, Any]
    settings: Mapping[str, Any]
    charges: tuple[Charge, ...]
    stamps: tuple[str, ...] = ()
    tensors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> Content:
        """What was released: `rounds` is a special case of `moments`, and is stored as that."""
        if self.kind == "moments":
            return "rounds" if self.settings.get("rounds") or self.settings.get("objective") else "moments"
        return "regression" if self.kind == "regression" else "records"

    @property
    def totals(self) -> Totals:
        """The composed cost of the charges, for the unit of privacy that the release declares."""
        return replace(compose(self.charges), person=unit_of(self) != "record")

    @property
    def private(self) -> bool:
        """Whether the release is private: no stamp says otherwise, such as that of seeded noise."""
        return not any(stamp.startswith("NOT PRIVATE") for stamp in self.stamps)

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical certificate; it covers the charges, the stamps and every tensor."""
        return str(self.to_dict()["digest"])

    def statement(self) -> Statement:
        """The statement that is signed for a release."""
        digest = self.digest
        return Statement("release", digest, digest)

    def _repr_html_(self) -> str:
        facts = [("kind", self.kind), *guarantee(self.totals), ("digest", self.digest[:12])]
        settings = Part("settings", ("setting", "value"), self.settings.items())
        return box("Certificate", facts, [charges_part(self.charges), settings], self.stamps)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, with a digest over all of them."""
        body: dict[str, Any] = {
            "schema": SCHEMA,
            "kind": self.kind,
            "domain": self.domain.to_dict(),
            "features": dict(self.features),
            "settings": dict(self.settings),
            "charges": [c.to_dict() for c in self.charges],
            "totals": self.totals.to_dict(),
            "stamps": list(self.stamps),
            "tensors": {name: dict(entry) for name, entry in self.tensors.items()},
            "software": dict(self.software),
        }
        return body | {"digest": sha256(canonical(body))}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Certificate:
        """Read a certificate, recomputing its digest, its charges and its totals.

        Parameters
        ----------
        raw : the result of `to_dict`, or the JSON of `certificate.json`.

        Raises
        ------
        UserError : the schema is another version's, the digest does not match the content, or the totals are
            not what the charges add up to; or a stamp is missing that follows from the content.
        """
        body = {key: value for key, value in raw.items() if key not in ("digest", ENGINE)}
        if raw.get("schema") != SCHEMA:
            raise UserError(
                f"the certificate has schema {str(raw.get('schema'))[:40]}, this version reads {SCHEMA}"
            )
        if raw.get("digest") != sha256(canonical(body)):
            raise UserError("the certificate's digest does not match its content: it was altered")
        for key in ("domain", "features", "settings", "totals", "tensors", "software"):
            if not isinstance(raw.get(key), Mapping):
                raise UserError(f"the certificate cannot be read: {key} must be an object")
        for key in ("charges", "stamps"):
            if not isinstance(raw.get(key), list):
                raise UserError(f"the certificate cannot be read: {key} must be a list")
        try:
            certificate = cls(
                kind=raw["kind"],
                domain=Domain.from_dict(raw["domain"]),
                features=raw["features"],
                settings=raw["settings"],
                charges=tuple(Charge.from_dict(c) for c in raw["charges"]),
                stamps=tuple(raw["stamps"]),
                tensors=raw["tensors"],
                software=raw["software"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"the certificate cannot be read: {error!r}") from None
        if certificate.totals.to_dict() != raw["totals"]:
            raise UserError("the certificate's totals are not what its charges add up to")
        certificate._check_stamps()
        return certificate

    def _check_stamps(self) -> None:
        """Refuse a certificate without the stamps, or with the proofs, that its own content rules out."""
        if self.domain.bounds_learnt_from_data and not all(c.unproved for c in self.charges):
            raise UserError(
                "the certificate states an epsilon although its bounds were learnt from the records: it was "
                "altered, or made by an older version; make the release again"
            )
        for stamp in implied_stamps(self.domain, self.totals, self.settings.get("n")):
            if stamp not in self.stamps:
                raise UserError(
                    f"the certificate lacks the stamp {stamp!r}, which follows from its content: it was "
                    "altered, or made by an older version; make the release again"
                )


def implied_stamps(domain: Domain, totals: Totals, n: object = None) -> tuple[str, ...]:
    """Return the stamps that follow from the content of a certificate.

    Parameters
    ----------
    domain : of the release; learnt bounds are stamped.
    totals : of its charges.
    n : the number of records, if it is public.
    """
    return ((PEEKED,) if domain.bounds_learnt_from_data else ()) + weaknesses(totals, n)


def weaknesses(totals: Totals, n: object = None) -> tuple[str, ...]:
    """Return stamps for an epsilon or a delta that is too large to be private.

    A proved epsilon above 100, and a delta of at least 1/n (of at least 1/100 where n is private): a
    mechanism that publishes a random record in the clear has such a delta.
    """
    most = min(Fraction(1, n), MOST_DELTA) if isinstance(n, int) and n > 0 else MOST_DELTA
    return tuple(
        stamp
        for stamp, weak in (
            (WEAK_EPSILON, MOST_EPSILON < totals.epsilon_proved < math.inf),
            (WEAK_DELTA, totals.delta >= most),
        )
        if weak
    )
