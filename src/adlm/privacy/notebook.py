"""HTML display of values in a notebook: one line of facts, and details that unfold. No outside assets.

`box` escapes all of its inputs, so nothing in an artefact can add markup to a page.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adlm.privacy.accounting import Charge, Totals, show

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


def charge_rows(charges: Iterable[Charge]) -> list[tuple[str, ...]]:
    """Return a row for each charge: content, noise, epsilon claimed and proved, delta, and the proof."""
    return [
        (
            c.what,
            c.mechanism,
            show(c.claimed),
            show(c.epsilon_proved),
            f"{float(c.delta):g}",
            f"not proved: {c.unproved}" if c.unproved else c.proof,
        )
        for c in charges
    ]


def charges_part(charges: Sequence[Charge], *, units: bool = False) -> Part:
    """List the charges, and where each bound is proved.

    Parameters
    ----------
    charges : of one release, or of a ledger.
    units : whether each row ends with the unit of its charge, which may differ in a ledger.
    """
    rows = charge_rows(charges)
    if units:
        rows = [(*row, charge.unit) for row, charge in zip(rows, charges, strict=True)]
    return Part(
        f"{len(rows)} charge{'s' * (len(rows) != 1)}",
        ("released", "noise", "claimed", "proved", "delta", "proof", *(("per",) if units else ())),
        rows,
    )


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
