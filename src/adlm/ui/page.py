"""The page: one HTML file with its style, script and figures inside. It loads nothing from other hosts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from adlm.domain import NEIGHBOURS
from adlm.errors import UserError
from adlm.report.sections import ALARM
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from adlm.ui import artefacts
from adlm.ui.choices import DELTAS, EPSILONS, Budget, Choice, from_file, full_curve, named
from adlm.ui.choices import curve as precomputed_curve
from adlm.ui.figures import reference_curves
from adlm.version import __version__


@dataclass(frozen=True)
class Shown:
    """The contents of a page."""

    choices: tuple[Choice, ...]
    found: list[dict[str, Any]]
    pairs: dict[str, str]
    ledgers: list[dict[str, Any]]


def gather(
    folders: Sequence[Path], ledgers: Sequence[Path], domain: Path | None = None, size: int | None = None
) -> Shown:
    """Read the contents of a page: public numbers and certificates alone."""
    if domain is None and size is not None:
        raise UserError("--size is for a --domain; leave it out, or give the domain file")
    own = () if domain is None else (from_file(domain, size),)
    subjects = artefacts.subjects(folders)
    return Shown(
        (*own, *named()), artefacts.artefacts(subjects), artefacts.pairs(subjects), artefacts.ledgers(ledgers)
    )


def figures(shown: Shown, *, live: bool) -> dict[str, Any]:
    """Return the data of the script; a static page contains every curve."""
    return {
        "version": __version__,
        "live": live,
        "epsilons": [float(e) for e in EPSILONS],
        "deltas": list(DELTAS),
        "relations": list(NEIGHBOURS),
        "alarm": ALARM,
        "choices": [
            c.to_dict() | reference_curves(c.key) | {"curves": {} if live else _curves(c)}
            for c in shown.choices
        ],
        "artefacts": shown.found,
        "pairs": shown.pairs,
        "ledgers": shown.ledgers,
    }


def _curves(choice: Choice) -> dict[str, list[dict[str, Any]]]:
    """Return every curve: stored ones for public data sets, others simulated now."""
    take = precomputed_curve if choice.origin.startswith("--data") else full_curve
    wanted = [(delta, relation) for delta in DELTAS for relation in NEIGHBOURS]
    curves = {}
    with progress.bar(len(wanted), f"simulations for {choice.title}") as advance:
        for delta, relation in wanted:
            curves[Budget("1", delta, relation).curve] = take(choice, choice.n, delta, relation)
            advance(1)
    return curves


def render(shown: Shown, *, live: bool) -> str:
    """Return the HTML of the page."""
    style, script = asset("page.css"), asset("page.js")
    parts = {
        "{{csp}}": policy(live=live),
        "{{style}}": style,
        "{{figures}}": artefacts.as_script(figures(shown, live=live)),
        "{{script}}": script,
    }
    text = asset("page.html")
    for mark, part in parts.items():
        before, separator, after = text.partition(mark)
        assert separator, mark
        text = before + part + after
    return text


def policy(*, live: bool) -> str:
    """Return the content security policy: this style, this script, and no other origin."""
    hashes = {name: _hash(asset(f"page.{name}")) for name in ("css", "js")}
    reach = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; {reach}style-src '{hashes['css']}'; script-src '{hashes['js']}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def asset(name: str) -> str:
    """Return the text of a file that comes with the package."""
    return (resources.files("adlm.ui") / name).read_text(encoding="utf-8")


def write_static(shown: Shown, out: Path) -> None:
    """Write the page as one file, with everything computed beforehand."""
    write_file(out, render(shown, live=False).encode(), what="page")
