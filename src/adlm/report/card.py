"""A model card for the Hugging Face hub: a YAML header, then Markdown.

It shows the contents of the model's folder and nothing of the records, except for a saved evaluation:
figures measured on private records are not private, and the card says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adlm.errors import UserError
from adlm.privacy.accounting import show
from adlm.privacy.certificate import Certificate, charge_table, unit_of
from adlm.privacy.signature import Signature
from adlm.report.sections import MEANINGS, meaning, relation_words
from adlm.report.subject import Subject, Trained

HEAD = "---\nlibrary_name: adlm\n"
MOST_ROWS = 60  # of a table in the card
MEASURES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
}
REPLACED = {"<": "&lt;", ">": "&gt;", "`": "'", "\n": " ", "\r": " "}
MARKUP = str.maketrans(REPLACED | {mark: f"\\{mark}" for mark in "\\|*_[]"})


def model_card(subject: Subject, *, licence: str | None = None) -> str:
    """Return the card of a folder that holds one model; `subject` is from `adlm.report.subject.find`."""
    if len(subject.models) != 1:
        raise UserError(f"a card is of one model, and {subject.folder} holds {len(subject.models)}; give one")
    model, certificate = subject.models[0], subject.certificate
    name = subject.folder.resolve().name
    parts = [
        _head(name, model, certificate, licence),
        f"# {plain(name)}\n",
        _warnings(subject),
        _use(model, certificate),
        _domain(certificate),
        _guarantee(certificate),
        _accuracy(model, certificate.domain.classes),
        _limits(certificate),
        _check(name, certificate, subject.signature),
    ]
    return "\n".join(part for part in parts if part)


def plain(value: object) -> str:
    """Escape a value for Markdown: nothing in an artefact can add markup."""
    return str(value).translate(MARKUP)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Make a Markdown table."""
    lines = [f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    lines += [f"| {' | '.join(plain(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _task(certificate: Certificate) -> str:
    if certificate.domain.target is not None:
        return "tabular-regression"
    return "image-classification" if len(certificate.domain.shape) > 1 else "tabular-classification"


def _head(name: str, model: Trained, certificate: Certificate, licence: str | None) -> str:
    """Write the YAML header; JSON strings are valid YAML, so they need no escaping."""
    totals = certificate.totals.to_dict()
    lines = [HEAD.rstrip("\n"), f"pipeline_tag: {_task(certificate)}"]
    lines += [f"license: {json.dumps(licence)}"] if licence else []
    lines += ["tags:", *(f"- {tag}" for tag in _tags(certificate))]
    privacy = {key: totals[key] for key in ("epsilon_claimed", "epsilon_proved", "delta")}
    if certificate.totals.composed is not None and certificate.totals.composed.mu:
        privacy["mu"] = certificate.totals.composed.mu
    privacy |= {
        "relation": totals["neighbours"],
        "unit": unit_of(certificate),
        "stamps": list(model.stamps),
        "release_digest": certificate.digest,
    }
    lines += ["privacy:", *(f"  {key}: {_yaml(value)}" for key, value in privacy.items())]
    figures = model.evaluation
    if figures is not None:
        named = ("accuracy", "balanced_accuracy", "rmse", "mae", "r2")
        kinds = [key for key in named if isinstance(figures.get(key), int | float)]
        of = json.dumps(_measured_on(figures))
        lines += ["model-index:", f"- name: {json.dumps(name)}", "  results:"]
        lines += [f"  - task: {{type: {_task(certificate)}}}", f"    dataset: {{name: {of}, type: {of}}}"]
        lines += [
            "    metrics:",
            *(f"    - {{type: {key}, value: {_yaml(float(figures[key]))}}}" for key in kinds),
        ]
    return "\n".join([*lines, "---", ""])


def _tags(certificate: Certificate) -> list[str]:
    """Tags of the hub; the paper's name only where noise is Laplace and adaptive."""
    requested = certificate.settings.get("asked") or {}
    stated = {certificate.settings.get("allocation"), requested.get("allocation")}
    adaptive = bool(stated & {"adaptive", "linear", "optimal"})
    laplace = any(charge.mechanism == "laplace" for charge in certificate.charges)
    return ["differential-privacy", *(["adaptive-laplace-mechanism"] if adaptive and laplace else [])]


def _yaml(value: object) -> str:
    """Write a value as JSON that YAML reads alike: 1e-05 would be a string, 1.0e-05 is a number."""
    text = json.dumps(value)
    return text.replace("e", ".0e", 1) if isinstance(value, float) and "." not in text else text


def _warnings(subject: Subject) -> str:
    other = "this warning was put on the release, or on the model, when it was made."
    lines = [f"> **{plain(stamp)}**: {MEANINGS.get(stamp, other)}" for stamp in subject.stamps]
    totals = subject.certificate.totals
    if math.isinf(totals.epsilon_proved):
        lines.append(f"> **No epsilon is proved**: {plain('; '.join(totals.unproved))}.")
    return "\n>\n".join(lines) + "\n" if lines else ""


def _use(model: Trained, certificate: Certificate) -> str:
    network = plain(model.training.get("network", "a model"))
    target = certificate.domain.target
    what = (
        f"Classifies one record into {len(certificate.domain.classes)} classes"
        if target is None
        else f"Predicts a number between {target[0]:g} and {target[1]:g} for one record"
    )
    warning = f"\n\n**{plain(model.training['warning'])}**" if model.training.get("warning") else ""
    return (
        "## Intended use\n\n"
        f"{what} ({network}). It was trained on a "
        "differentially private release of the records, and on nothing else of them; the weights may be "
        "published under the guarantee below.\n\n"
        "Not for: decisions about a person without human responsibility for them; records outside the domain "
        "below, which are clipped to it; guessing who was among the records."
        f"{warning}\n"
    )


def _domain(certificate: Certificate) -> str:
    domain, n = certificate.domain, certificate.settings.get("n")
    many = f"{n:,}, which is public" if isinstance(n, int) else "protected"
    lines = [
        "## Data domain\n",
        "What is declared of the records; nothing here was learnt from them unless a warning says so.\n",
        table(
            ("", ""),
            [
                ("shape of a record", " x ".join(map(str, domain.shape))),
                ("classes", _few(domain.classes))
                if domain.target is None
                else ("target", f"{domain.target[0]:g} to {domain.target[1]:g}"),
                ("number of records", many),
            ],
        ),
    ]
    spec = certificate.features.get("spec")
    declared = spec.get("table") if isinstance(spec, Mapping) else None
    columns = declared.get("columns", []) if isinstance(declared, Mapping) else []
    if columns:
        shown = [(c["name"], c["kind"], _values(c)) for c in columns[:MOST_ROWS]]
        left = len(columns) - len(shown)
        lines += [table(("column", "kind", "values"), shown), f"and {left} more columns\n" if left else ""]
    return "\n".join(lines)


def _values(column: Mapping[str, Any]) -> str:
    if column.get("lower") is not None:
        return f"{column['lower']} to {column['upper']}"
    listed = column.get("classes") or column.get("values")
    return _few(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else ""


def _few(names: Sequence[object], most: int = 12) -> str:
    rest = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + rest


def _guarantee(certificate: Certificate) -> str:
    totals = certificate.totals
    proved, claimed = show(totals.epsilon_proved), show(totals.epsilon_claimed)
    facts = (
        {"epsilon": proved} if proved == claimed else {"epsilon proved": proved, "epsilon claimed": claimed}
    )
    facts |= {
        "delta": f"{float(totals.delta):g}",
        "mu": totals.mu_or_why_not(),
        "relation": totals.neighbours,
        "unit": totals.unit,
    }
    lines = [
        "## Guarantee\n",
        table(tuple(facts), [tuple(facts.values())]),
        f"By {totals.neighbours}, {relation_words(totals)}. {_meaning(certificate)}\n",
        table(*charge_table(certificate.charges)),
        "Proofs are pages in the folder `docs` of the source of adlm "
        f"{certificate.software.get('adlm', '')}.\n",
    ]
    return "\n".join(lines)


def _meaning(certificate: Certificate) -> str:
    totals = certificate.totals
    if math.isinf(totals.epsilon_proved):
        return "No epsilon is proved, so nothing here should be read as protection."
    exact = f" {totals.about_mu()}" if totals.mu else ""
    meant = f"{meaning(totals)}{exact} Training costs nothing further, however long it went on."
    return meant if certificate.private else f"Without the warnings above it would mean: {meant}"


def _accuracy(model: Trained, classes: Sequence[str]) -> str:
    figures = model.evaluation
    if figures is None:
        return "## Accuracy\n\nNot measured.\n"
    rows = [
        (words, f"{figures[key]:.4f}")
        for key, words in MEASURES.items()
        if isinstance(figures.get(key), int | float)
    ]
    recalls = figures.get("recalls")
    parts = [
        "## Accuracy\n",
        f"Measured on {plain(_measured_on(figures))}, {figures.get('n', 'some')} records. If those records "
        "are private, these figures are not: no epsilon covers them.\n",
        table(("measure", "value"), rows),
    ]
    if isinstance(recalls, list) and len(recalls) == len(classes) <= MOST_ROWS:
        shown = [
            (c, "none there" if r is None else f"{r:.4f}") for c, r in zip(classes, recalls, strict=True)
        ]
        parts.append(table(("class", "recall"), shown))
    return "\n".join(parts)


def _measured_on(found: Mapping[str, Any]) -> str:
    """Name of the evaluation data; of a file its name alone, without the folder."""
    of = str(found.get("of") or "records")
    return f"{of}, {found['split']}" if found.get("split") else Path(of).name


def _limits(certificate: Certificate) -> str:
    unit = certificate.totals.unit
    people = (
        "The guarantee is for one record. A person with several records is protected less: epsilon grows "
        "with their number."
        if unit == "record"
        else f"The guarantee is for one {unit}, which was declared and charged."
    )
    return (
        "## Limits\n\n"
        f"- {people}\n"
        "- Other releases of the same records add to this epsilon; the data owner's ledger has the total.\n"
        "- Facts about the population are not protected: the model is made to learn them.\n"
        "- A file cannot show that noise was drawn, or that the records were as declared. For that, trust "
        "whoever signs.\n"
        + (
            "- Small classes are learnt worst: noise is the same for all of them.\n"
            if certificate.domain.target is None
            else "- Large errors were clipped in training: rare extreme values are predicted too mildly.\n"
        )
    )


def _check(name: str, certificate: Certificate, signature: Signature | None) -> str:
    signed = (
        f"The release is signed by the key {signature.signer}; compare that with its owner over another "
        "channel, and give their public key to `--trust`."
        if signature is not None
        else "The release is not signed: the arithmetic can be checked, where it comes from cannot."
    )
    return (
        "## Check it yourself\n\n"
        f"```sh\npip install .  # in the source of adlm {certificate.software.get('adlm', '')}\n"
        f"adlm verify {name if name.isidentifier() else 'FOLDER'}\n```\n\n"
        f"{signed}\n\n"
        f"Digest of the release: `{certificate.digest}`. The header of `model.safetensors` carries epsilon, "
        "delta, relation, unit, digest and signatures.\n\n"
        "Loading runs no code from these files: weights are safetensors, everything else is JSON. There is "
        "no pickle.\n"
    )


# ---- A paragraph for a privacy statement, and an entry for a registry of deployments.


def privacy_statement(certificate: Certificate) -> str:
    """Return a paragraph on the guarantee of a release, for people who know nothing of this library."""
    totals = certificate.totals
    if totals.unproved or not certificate.private:
        why = "; ".join((*totals.unproved, *certificate.stamps))
        return f"No differential privacy guarantee can be stated for this release: {why}."
    one = "person" if totals.person or totals.contributions > 1 else "record"
    differ = (
        f"one {totals.unit} is replaced by any other"
        if totals.neighbours == "replace-one"
        else f"one {totals.unit} is added or removed"
    )
    about = (
        f"about one {one}" if totals.neighbours == "replace-one" else f"on whether one {one} is among them"
    )
    delta = f" and delta = {float(totals.delta):g}" if totals.delta else ""
    delta += f" (mu = {totals.mu})" if totals.mu else ""
    factor = f"{math.exp(min(float(totals.epsilon_proved), 700.0)):.3g}"
    bound = (
        f"the probability of any result grows at most {factor} times, plus {float(totals.delta):g}"
        if totals.delta
        else f"the odds of any conclusion {about} change by a factor of at most {factor}"
    )
    return (
        "Random noise was added so that the result is differentially private with epsilon = "
        f"{show(totals.epsilon_proved)}{delta}. Two data sets are neighbours if {differ}. Between "
        f"neighbours, whatever else is known, {bound}. "
        "Facts about the population are not protected. The guarantee "
        "covers this release and all models made from it; further releases of the same data add to it. "
        f"Certificate: {certificate.digest}."
    )


def registry_entry(certificate: Certificate) -> dict[str, Any]:
    """Return what a certificate knows of a deployment, by the groups of the registry's schema.

    The groups are those of arXiv 2509.13509: flavour, privacy unit, privacy loss, model, accounting,
    implementation. What a certificate cannot know, such as the curator, is null.
    """
    totals = certificate.totals
    stated = totals.to_dict()
    replaced = totals.neighbours == "replace-one"
    return {
        "deployment": {"curator": None, "intended_use": None, "data_product": certificate.kind, "date": None},
        "dp_flavor": {
            "name": "approximate DP" if totals.delta else "pure DP",
            "data_domain": certificate.domain.to_dict(),
            "bounds_on_contributions": totals.contributions,
            "neighbours": "bounded (one replaced)" if replaced else "unbounded (one added or removed)",
            "unprotected_quantities": ["the number of records"] if replaced else [],
        },
        "privacy_unit": {"name": "person" if totals.person else "record", "description": totals.unit},
        "privacy_loss": {
            "epsilon": stated["epsilon_proved"],
            "epsilon_claimed": stated["epsilon_claimed"],
            "delta": stated["delta"],
            "mu": totals.mu or None,
            "unproved": stated["unproved"],
        },
        "model": {
            "name": "central",
            "actors": "a trusted curator; analysts read the release",
        },
        "accounting": {
            "composition": [
                {"released": c.what, "mechanism": c.mechanism, "proof": c.proof} for c in certificate.charges
            ],
            "post_processing": "training, search and prediction read the release alone",
        },
        "implementation": {
            "library": dict(certificate.software),
            "randomness": "AES-256 in counter mode, keyed by the system; integer noise",
            "warnings": list(certificate.stamps),
            "certificate": certificate.digest,
        },
    }
