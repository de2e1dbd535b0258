"""Privacy metadata in a file of tensors: epsilon, delta, relation, unit, digest, signatures.

The header of `release.safetensors` and `model.safetensors` has one entry, `adlm`: a JSON object that any tool
which reads such headers can show. An ONNX file has the same values as entries of its metadata. They repeat
the certificate for readers of the file alone; loading and `adlm verify` compare them with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adlm.errors import UserError
from adlm.privacy.signature import Signature

if TYPE_CHECKING:
    from adlm.privacy.certificate import Certificate

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
