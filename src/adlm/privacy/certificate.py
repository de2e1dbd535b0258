"""The certificate of a release: its content and cost, its header in files of tensors, its notebook view."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.privacy.accounting import Charge, Totals, compose, show
from adlm.privacy.signature import Signature, Statement
from adlm.runtime.artefact import canonical, sha256

# ---- HTML display of values in a notebook: one line of facts, and details that unfold. No outside assets.
#
# `box` escapes all of its inputs, so nothing in an artefact can add markup to a page.

MOST_ROWS = 50  # of a table
STYLE = (
    "<style>.adlm-box{font:13px/1.5 system-ui,sans-serif;border:1px solid #8888;border-radius:4px;"
    "padding:.4em .7em;display:inline-block;max-width:100%;color:inherit}.adlm-box b.adlm-warn{color:#c33}"
    ".adlm-box table{border-collapse:collapse;margin:.3em 0}.adlm-box td,.adlm-box th{text-align:left;"
    "padding:.1em .7em .1em 0;border:0;background:none}.adlm-box summary{cursor:pointer}</style>"
)


@dataclass(frozen=True)
class Part:
    """A part that unfolds: its summary, headings and rows."""

    summary: str
    headings: Sequence[str]
    rows: Iterable[Sequence[object]]


def box(
    title: str, facts: Sequence[tuple[str, object]], parts: Sequence[Part] = (), warnings: Sequence[str] = ()
) -> str:
    """Return the HTML of a value.

    Parameters
    ----------
    facts : the main facts, name and value; always shown.
    parts : tables that unfold on a click; empty ones are left out.
    warnings : always shown, first.
    """
    line = " &middot; ".join(f"{_text(name)} <strong>{_text(value)}</strong>" for name, value in facts)
    warned = "".join(f'<br><b class="adlm-warn">{_text(words)}</b>' for words in warnings)
    folded = "".join(_folded(part) for part in parts)
    return f'{STYLE}<div class="adlm-box"><strong>{_text(title)}</strong>{warned}<br>{line}{folded}</div>'


def guarantee(totals: Totals) -> list[tuple[str, object]]:
    """Return the facts that every box begins with."""
    return [
        ("epsilon proved", show(totals.epsilon_proved)),
        ("claimed", show(totals.epsilon_claimed)),
        ("delta", f"{float(totals.delta):g}"),
        *([("mu", totals.mu)] if totals.mu else []),
        ("neighbours", totals.neighbours),
        ("per", f"{totals.unit}{totals.multiplied()}"),
    ]


def charge_table(
    charges: Sequence[Charge], *, units: bool = False
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return headings and rows of charges, and where each bound is proved.

    Claimed and proved epsilon are one column where they are the same; Gaussian noise has its mu beside them.

    Parameters
    ----------
    charges : of one release, or of a ledger.
    units : whether each row ends with relation and unit of its charge, which may differ in a ledger.
    """
    columns = {
        "released": [c.what for c in charges],
        "noise": [str(c.mechanism) for c in charges],
        "claimed": [show(c.claimed) for c in charges],
        "proved": [show(c.epsilon_proved) for c in charges],
        "delta": [f"{float(c.delta):g}" for c in charges],
        "mu": [c.mu for c in charges],
        "proof": [f"not proved: {c.unproved}" if c.unproved else c.proof for c in charges],
        "neighbours": [c.neighbours for c in charges],
        "per": [c.unit for c in charges],
    }
    left_out = set() if units else {"neighbours", "per"}
    left_out |= set() if any(columns["mu"]) else {"mu"}
    same = columns["claimed"] == columns["proved"]
    left_out |= {"claimed"} if same else set()
    shown = {name: column for name, column in columns.items() if name not in left_out}
    headings = ["epsilon" if same and name == "proved" else name for name in shown]
    return headings, list(zip(*shown.values(), strict=True))


def charges_part(charges: Sequence[Charge], *, units: bool = False) -> Part:
    """List the charges in a part that unfolds; parameters as for `charge_table`."""
    return Part(f"{len(charges)} charge{'s' * (len(charges) != 1)}", *charge_table(charges, units=units))


def _folded(part: Part) -> str:
    rows = list(part.rows)
    if not rows:
        return ""
    head = "".join(f"<th>{_text(name)}</th>" for name in part.headings)
    body = "".join(f"<tr>{''.join(f'<td>{_text(c)}</td>' for c in row)}</tr>" for row in rows[:MOST_ROWS])
    rest = f"and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
    table = f"<table><tr>{head}</tr>{body}</table>"
    return f"<details><summary>{_text(part.summary)}</summary>{table}{rest}</details>"


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


# ---- Privacy metadata in a file of tensors: epsilon, delta, relation, unit, digest, signatures.
#
# The header of `release.safetensors` and `model.safetensors` has one entry, `adlm`: a JSON object that any
# tool which reads such headers can show. An ONNX file has the same values as entries of its metadata. They
# repeat the certificate for readers of the file alone; loading and `adlm verify` compare them with it.

ENTRY = "adlm"
SIGNATURES = ("release_signature", "signature")


def unit_of(certificate: Certificate) -> str:
    """The unit of privacy: one record, or one person with at most so many records."""
    most = certificate.settings.get("contributions", 1)
    if isinstance(most, int) and most > 1:
        return f"person, of at most {most} records"
    spec = certificate.features.get("spec")
    table = spec.get("table") if isinstance(spec, Mapping) else None
    kinds = []
    for declared in (table, certificate.settings.get("input")):  # of a table; of images or vectors
        columns = declared.get("columns") if isinstance(declared, Mapping) else None
        kinds += [column.get("kind") for column in columns] if isinstance(columns, list) else []
    return "person, of at most 1 record" if "person" in kinds else "record"


def privacy_header(
    certificate: Certificate,
    stamps: Sequence[str] = (),
    *,
    release_signature: Signature | None = None,
    signature: Signature | None = None,
) -> dict[str, Any]:
    """Return the privacy metadata of a release's file, or of a file made from it, in JSON values.

    Parameters
    ----------
    stamps : of the artefact: those of the release and its own.
    release_signature, signature : of the release, and of the model that the file belongs to.
    """
    totals = certificate.totals.to_dict()
    header: dict[str, Any] = {
        "epsilon": totals["epsilon_proved"],
        "epsilon_claimed": totals["epsilon_claimed"],
        "delta": totals["delta"],
        "relation": totals["neighbours"],
        "unit": unit_of(certificate),
        "stamps": list(stamps),
        "release_digest": certificate.digest,
    }
    if release_signature is not None:
        header["release_signature"] = release_signature.to_dict()
    if signature is not None:
        header["signature"] = signature.to_dict()
    return header


def header_entries(
    certificate: Certificate, stamps: Sequence[str], **signatures: Signature | None
) -> dict[str, str]:
    """Return `privacy_header` as a single entry, because safetensors writes several in any order."""
    header = privacy_header(certificate, stamps, **signatures)
    return {ENTRY: json.dumps(header, sort_keys=True, allow_nan=False)}


def entries_of(raw: bytes) -> dict[str, str] | None:
    """Return the entries in the header of a safetensors file, None where it has none."""
    size = int.from_bytes(raw[:8], "little")
    metadata = json.loads(raw[8 : 8 + size]).get("__metadata__")
    return dict(metadata) if isinstance(metadata, dict) else None


def check_entries(found: Mapping[str, str], expected: Mapping[str, Any] | None, what: str) -> None:
    """Refuse a header that differs from the certificate; signatures may be missing."""
    try:
        header = json.loads(found[ENTRY]) if set(found) == {ENTRY} else None
    except ValueError:
        header = None
    if not isinstance(header, dict) or expected is None:
        raise UserError(f"the header of {what} was altered: it is not one that adlm wrote")
    kept = {key: value for key, value in expected.items() if key not in SIGNATURES or key in header}
    if header != kept:
        wrong = sorted(key for key in {*header, *kept} if header.get(key) != kept.get(key))
        raise UserError(
            f"the header of {what} was altered: {', '.join(wrong)} is not what the certificate says"
        )


# ---- The certificate of a release: its content, its cost and how to check both, with stamps that warn.

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
