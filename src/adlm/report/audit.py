"""Results of attacks: lower bounds next to proved bounds, and ROC curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from adlm.privacy.accounting import TradeOff
from adlm.report import drawing
from adlm.report.html import Markup, figure, join, paragraph, table, tag
from adlm.report.page import Section

MOST_ROWS = 12  # a longer table is collapsed
MOST_BARS = 12
MOST_CURVES = 4
STYLES = {"VIOLATED": "bad", "NOT CAUGHT": "bad", "above claim": "warn"}

Finding = Mapping[str, Any]


def audit(found: Mapping[str, Any] | None) -> Section | None:
    """Show lower bounds by attack next to proved upper bounds."""
    findings = [f for f in (found or {}).get("findings", []) if isinstance(f, Mapping)]
    if not findings:
        return None
    words = paragraph(
        "An attack gives a lower bound on epsilon with stated confidence. It must never lie above what is "
        "proved; controls are broken on purpose and must be caught."
    )
    parts = [words, _summary(findings), _rows(findings), *_bounds(findings), *_curves(findings)]
    return Section("audit", "Audit", join(parts))


def _summary(findings: Sequence[Finding]) -> Markup:
    """Count the verdicts, of the product and of the controls."""
    parts: list[object] = []
    for control, name in ((False, "attacks on the product"), (True, "controls")):
        verdicts = Counter(str(f.get("verdict", "")) for f in findings if bool(f.get("control")) is control)
        for verdict, count in verdicts.most_common():
            label = tag(
                "span", "caught" if control and verdict == "violated" else verdict, class_=_style(verdict)
            )
            parts += [f"{count} {name}: ", label, ". "]
    return paragraph(*parts)


def _rows(findings: Sequence[Finding]) -> Markup:
    rows = [
        (
            f.get("mechanism", "?"),
            f.get("neighbours", ""),
            f.get("attack", ""),
            _epsilon(f.get("epsilon_proved")),
            _epsilon(f.get("epsilon_lower"), "unbounded"),
            f.get("runs", ""),
            tag("span", f.get("verdict", ""), class_=_style(str(f.get("verdict", "")))),
        )
        for f in findings
    ]
    heading = ("mechanism", "relation", "attack", "proved", "lower bound found", "runs", "verdict")
    shown = table(heading, rows)
    if len(rows) <= MOST_ROWS:
        return shown
    return tag("details", tag("summary", f"All {len(rows)} findings"), shown)


def _style(verdict: str) -> str:
    return STYLES.get(verdict, "good")


def _tightness(finding: Finding) -> float:
    """Return the share of the proved epsilon that the attack reached; below zero where there is none."""
    proved, lower = finding.get("epsilon_proved"), finding.get("epsilon_lower")
    if not (_number(proved) and _number(lower)):
        return -1.0
    return float(lower or 0) / max(float(proved or 0), 1e-12)


def _bounds(findings: Sequence[Finding]) -> list[Markup]:
    """Show one pair of bars a mechanism: the proved epsilon and its tightest empirical lower bound."""
    tried = [f for f in findings if f.get("attack") == "distinguishing" and not f.get("control")] or list(
        findings
    )
    best: dict[str, Finding] = {}
    for f in sorted(tried, key=_tightness):
        best[str(f.get("mechanism", "?"))] = f
    tightest = [f for f in reversed(best.values()) if _tightness(f) >= 0][:MOST_BARS]
    if not tightest:
        return []
    names = [str(f.get("mechanism", "?")) if part == 0 else "" for f in tightest for part in range(2)]
    values = [float(f[key]) for f in tightest for key in ("epsilon_lower", "epsilon_proved")]
    styles = ["b", "a"] * len(tightest)
    picture = drawing.bars(names, values, label="Lower bounds by attack and proved epsilons", styles=styles)
    named = drawing.legend(("b", "proved by attack, from below"), ("a", "proved by theorem, from above"))
    return [figure(join([picture, named]), "The truth lies between each pair.")]


def _curves(findings: Sequence[Finding]) -> list[Markup]:
    parts: list[Markup] = []
    for f in sorted(findings, key=_tightness, reverse=True):
        points = sorted((float(p[0]), float(p[1])) for p in f.get("curve", []) if len(p) == 2)
        if not points or len(parts) == MOST_CURVES:
            continue
        x, y = drawing.horizontal(0, 1, "false alarms"), drawing.vertical(0, 1, "true alarms")
        marks = [drawing.curve(x, y, [0, 1], [0, 1], "quiet")]
        if _number(f.get("epsilon_proved")):
            rates = [i / 200 for i in range(201)]
            bound = TradeOff(epsilon=float(f["epsilon_proved"]), delta=float(f.get("delta", 0)))
            most = [bound.detection(r) for r in rates]
            marks.insert(0, drawing.area(x, y, rates, rates, most, "a"))
        marks.append(drawing.curve(x, y, [p[0] for p in points], [p[1] for p in points], "b"))
        label = f"Attack on {f.get('mechanism', '?')} ({f.get('attack', '')})"
        caption = f"{label}: but for sampling error, it must stay inside what the proof allows, shaded."
        parts.append(figure(drawing.plot(x, y, *marks, label=label), caption))
    return parts


def _epsilon(value: object, otherwise: str = "none proved") -> str:
    return f"{float(value):.4g}" if isinstance(value, int | float) else otherwise


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
