"""How to cite, verify and repeat a release."""

from __future__ import annotations

import json
from collections.abc import Mapping

from adlm.privacy.accounting import show
from adlm.privacy.certificate import Certificate
from adlm.privacy.signature import Signature
from adlm.public.features import TABLES
from adlm.report.html import join, paragraph, table, tag
from adlm.report.page import Section

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
