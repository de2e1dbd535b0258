"""The report: one HTML file about a release and the models trained on it."""

from __future__ import annotations

from pathlib import Path

from adlm.report import sections
from adlm.report.html import join, page
from adlm.report.subject import Subject, find
from adlm.runtime.artefact import write_file

__all__ = ["render", "write_report"]


def write_report(folder: Path, out: Path) -> Path:
    """Write the report of a release, a model, or a folder that holds both, as one HTML file.

    Parameters
    ----------
    folder : a release or model folder, or one that holds artefacts of one release. Evaluations and an audit
        are read from `evaluation.json` and `audit.json` beside them.
    out : the file to write; its path is returned.

    Raises
    ------
    UserError : the folder holds no artefact, or artefacts of several releases, or one that was altered.

    Examples
    --------
    >>> write_report("M", "report.html")  # doctest: +SKIP
    """
    write_file(Path(out), render(find(Path(folder))).encode(), what="report")
    return Path(out)


def render(subject: Subject) -> str:
    """Return the page. It shows the contents of artefacts, and nothing of the records."""
    certificate = subject.certificate
    parts = [
        sections.plain_words(certificate),
        sections.synthetic(subject),
        sections.charges(certificate),
        sections.relevance_maps(subject),
        sections.allocation(subject),
        sections.accuracy(subject.models, certificate.domain.classes),
        sections.audit(subject.audit),
        sections.rerun(certificate, _relative(subject), subject.signature),
    ]
    top = join([sections.stamps(subject), sections.summary(subject)])
    lead = (
        f"Privatised once, by adlm {certificate.software.get('adlm', '')}; {certificate.totals.sentence()}."
    )
    if "synthetic" in certificate.settings:
        lead = f"Records drawn from this release are synthetic. {lead}"
    return page(
        f"Privacy report: {subject.folder.resolve().name}", lead, top, [s for s in parts if s is not None]
    )


def _relative(subject: Subject) -> str:
    """Path of the artefact relative to its folder: absolute paths may be sensitive."""
    folder = subject.folder.resolve()
    return str(Path(folder.name) / subject.place.resolve().relative_to(folder))
