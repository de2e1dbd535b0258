"""Descriptions of existing releases, models and ledgers, in JSON values for the page.

Certificates, evaluations and audits are read from their files; nothing is opened for writing, and no record
is read. Folders are shown by name, without their path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

from adlm.domain import NEIGHBOURS, Domain
from adlm.errors import UserError
from adlm.privacy.accounting import Charge, compose, number, show
from adlm.privacy.folders import CERTIFICATE
from adlm.privacy.ledger import LedgerView
from adlm.report.sections import ALARM, MEANINGS, rerun_command
from adlm.report.subject import Subject, find
from adlm.ui.choices import DELTAS

OTHER_STAMP = "This warning was put on the release, or on a model of it, when it was made."


def around(folder: Path) -> list[Path]:
    """Return the folders up to two levels below one that hold a release or a model; itself if it is one."""
    if (folder / CERTIFICATE).exists():
        return [folder]
    return sorted(path.parent for level in ("*", "*/*") for path in folder.glob(f"{level}/{CERTIFICATE}"))


def subjects(folders: Sequence[Path]) -> list[Subject]:
    """Read folders; one that holds artefacts of several releases is split by release."""
    subjects_found = []
    for folder in folders:
        try:
            subjects_found.append(find(folder))
        except UserError:
            parts = around(folder) if folder.is_dir() else []
            if len(parts) < 2:
                raise
            subjects_found.extend(find(part) for part in parts)
    return _distinct(subjects_found)


def _distinct(found: Iterable[Subject]) -> list[Subject]:
    """Keep one subject for each release: the one with the most models."""
    best: dict[str, Subject] = {}
    for subject in found:
        digest = subject.certificate.digest
        old = best.get(digest)
        if old is None or len(subject.models) > len(old.models):
            best[digest] = subject
    return list(best.values())


def artefacts(found: Sequence[Subject]) -> list[dict[str, Any]]:
    """Describe releases and the models trained on them."""
    names = [subject.folder.resolve().name for subject in found]
    return [_artefact(subject, _unique(names, i)) for i, subject in enumerate(found)]


def _unique(names: Sequence[str], index: int) -> str:
    same = names[:index].count(names[index])
    return names[index] if not same else f"{names[index]} ({same + 1})"


def _artefact(subject: Subject, name: str) -> dict[str, Any]:
    certificate, totals = subject.certificate, subject.certificate.totals
    signer = subject.signature.signer if subject.signature else None
    bound = totals.trade_off
    n = certificate.settings.get("n")
    plan = certificate.settings.get("plan")
    reasons = plan.get("reasons", []) if isinstance(plan, Mapping) else []
    return {
        "name": name,
        "private": certificate.private,
        "proved": number(totals.epsilon_proved),
        "claimed": number(totals.epsilon_claimed),
        "delta": float(totals.delta),
        "neighbours": totals.neighbours,
        "unit": totals.unit,
        "odds": None if bound is None else {"factor": bound.odds_factor(ALARM), "guess": bound.best_guess()},
        "sentence": f"{totals.sentence()}. {totals.about_mu()}".strip(),
        "stamps": [{"words": s, "meaning": MEANINGS.get(s, OTHER_STAMP)} for s in subject.stamps],
        "charges": [_charge(c) for c in certificate.charges],
        "models": [_model(m.name, m.training, m.evaluation) for m in subject.models],
        "audit": _audit(subject.audit),
        "words": [str(r) for r in reasons],
        "verify": f"adlm verify {name}",
        "again": rerun_command(certificate),
        "facts": [
            ["epsilon proved", show(totals.epsilon_proved)],
            ["epsilon claimed", show(totals.epsilon_claimed)],
            ["delta", f"{float(totals.delta):g}"],
            ["mu", totals.mu_or_why_not()],
            ["neighbours", totals.neighbours],
            ["kind", certificate.kind],
            ["records", f"{n:,}" if isinstance(n, int) else "protected"],
            ["unit of privacy", totals.unit],
            ["predicts", _answer(certificate.domain)],
            ["noise", ", ".join(dict.fromkeys(str(c.mechanism) for c in certificate.charges))],
            ["features", _features(certificate.features)],
            ["signed by", signer[:16] if signer else "nobody"],
            ["best accuracy" if certificate.domain.classes else "best R\u00b2", _best(subject)],
            ["digest", certificate.digest[:16]],
            ["made with", ", ".join(f"{k} {v}" for k, v in sorted(certificate.software.items()))],
        ],
    }


def _charge(charge: Charge) -> dict[str, Any]:
    return {
        "what": charge.what,
        "noise": str(charge.mechanism),
        "neighbours": charge.neighbours,
        "unit": charge.unit,
        "claimed": show(charge.claimed),
        "proved": show(charge.epsilon_proved),
        "delta": f"{float(charge.delta):g}",
        "mu": charge.mu,
        "proof": f"not proved: {charge.unproved}" if charge.unproved else charge.proof,
    }


def _features(features: Mapping[str, Any]) -> str:
    spec = features.get("spec")
    if not isinstance(spec, Mapping):
        return "the records themselves"
    inner = spec.get("of")
    return str((inner if isinstance(inner, Mapping) else spec).get("name", "?"))


def _model(name: str, training: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    measured = evaluation or {}
    of = " ".join(str(measured[key]) for key in ("of", "split") if measured.get(key))
    return {
        "name": name,
        "network": str(training.get("network", "?")),
        "epochs": str(training.get("epochs", "")),
        "accuracy": _score(measured),
        "balanced": _share(measured.get("balanced_accuracy")),
        "of": of or "not measured",
    }


def _score(measured: Mapping[str, Any]) -> float | None:
    """Return accuracy, or R2 where a number is predicted."""
    return _share(measured.get("accuracy", measured.get("r2")))


def _answer(domain: Domain) -> str:
    if domain.target is None:
        return f"{len(domain.classes)} classes"
    return f"a number between {domain.target[0]:g} and {domain.target[1]:g}"


def _share(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(str(value)) if good else None


def _best(subject: Subject) -> str:
    shares = [_score(m.evaluation or {}) for m in subject.models]
    known = [s for s in shares if s is not None]
    return f"{max(known):.1%}" if known else "not measured"


def _audit(audit: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Summarise the attacks: lower bound, proved epsilon and verdict of each."""
    raw = [f for f in (audit or {}).get("findings", []) if isinstance(f, Mapping)]
    if not raw:
        return None
    rows = [
        {
            "mechanism": str(f.get("mechanism", "?")),
            "attack": str(f.get("attack", "")),
            "proved": _share(f.get("epsilon_proved")),
            "lower": _share(f.get("epsilon_lower")),
            "verdict": str(f.get("verdict", "")),
            "control": bool(f.get("control")),
        }
        for f in raw
    ]
    violated = sum(r["verdict"] == "VIOLATED" for r in rows)
    attacks = sum(not r["control"] for r in rows)
    outcome = "none broke what is proved" if not violated else f"{violated} broke what is proved"
    return {"rows": rows, "violated": violated, "summary": f"{attacks} attacks, {outcome}"}


def pairs(found: Sequence[Subject]) -> dict[str, str]:
    """Describe the total cost of every two releases, if the same records went into both."""
    sentences = {}
    for (i, a), (j, b) in combinations(enumerate(found), 2):
        charges = (*a.certificate.charges, *b.certificate.charges)
        if len({c.neighbours for c in charges}) == 1:
            sentences[f"{i} {j}"] = f"Of the same records, both together cost {compose(charges).sentence()}."
        else:
            sentences[f"{i} {j}"] = "Their relations differ, so their epsilons do not add up."
    return sentences


def ledgers(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Describe ledgers: budget, charges, and the remaining epsilon by delta and relation."""
    return [_ledger(LedgerView.read(path)) for path in paths]


def _ledger(book: LedgerView) -> dict[str, Any]:
    relations = sorted({c.neighbours for c in book.charges})
    one = len(relations) == 1
    totals = compose(book.charges) if one else None
    left = {
        f"{delta} {relation}": _left(book, delta, relation) for delta in DELTAS for relation in NEIGHBOURS
    }
    return {
        "name": book.path.name,
        "budget": book.budget and {"epsilon": float(book.budget.epsilon), "delta": float(book.budget.delta)},
        "spent": number(totals.epsilon_proved) if totals else (None if relations else 0.0),
        "sentence": f"{totals.sentence()}." if totals else _unadded(relations),
        "charges": [_charge(c) for c in book.charges],
        "left": left,
    }


def _left(book: LedgerView, delta: str, relation: str) -> float | None:
    left = book.left(Fraction(delta), relation)
    return None if left is None else float(left)


def _unadded(relations: Sequence[str]) -> str:
    if not relations:
        return "Nothing is spent."
    return f"Charges under {' and '.join(relations)} do not add up."


def as_script(value: object) -> str:
    """Return JSON that is safe inside a script element, whatever an artefact is called."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
