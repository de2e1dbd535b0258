"""What attacks found: lower bounds beside proofs, and ROC curves inside what the proofs allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from adlm.report import attacker, drawing
from adlm.report.html import Markup, figure, join, paragraph, table, tag
from adlm.report.page import Section

MOST_CURVES = 4


def audit(found: Mapping[str, Any] | None) -> Section | None:
    """Show what attacks prove from below, beside what is proved from above."""
    findings = [f for f in (found or {}).get("findings", []) if isinstance(f, Mapping)]
    if not findings:
        return None
    rows = [
        (f.get("mechanism", "?"), f.get("neighbours", ""), f.get("rung", ""),
         _epsilon(f.get("epsilon_proved")),
         _epsilon(f.get("epsilon_lower"), "unbounded"), f.get("runs", ""), _verdict(f))
        for f in findings
    ]  # fmt: skip
    heading = ("mechanism", "relation", "attack", "proved", "lower bound found", "runs", "verdict")
    parts = [
        paragraph("An attack gives a lower bound on epsilon with stated confidence. It must never lie above "
                  "what is proved; controls are broken on purpose and must be caught."),
        table(heading, rows),
    ]  # fmt: skip
    return Section("audit", "Audit", join([*parts, *_bounds(findings), *_curves(findings)]))


def _verdict(finding: Mapping[str, Any]) -> Markup:
    verdict = str(finding.get("verdict", ""))
    return tag("span", verdict, class_="bad" if verdict in ("VIOLATED", "NOT CAUGHT") else "good")


def _bounds(findings: Sequence[Mapping[str, Any]]) -> list[Markup]:
    kept = [f for f in findings if _number(f.get("epsilon_proved")) and _number(f.get("epsilon_lower"))]
    if not kept:
        return []
    names = [str(f.get("mechanism", "?")) for f in kept for _ in range(2)]
    values = [float(f[key]) for f in kept for key in ("epsilon_lower", "epsilon_proved")]
    styles = ["b", "a"] * len(kept)
    picture = drawing.bars(names, values, label="Lower bounds by attack and proved epsilons", styles=styles)
    named = drawing.legend(("b", "proved by attack, from below"), ("a", "proved by theorem, from above"))
    return [figure(join([picture, named]), "The truth lies between each pair.")]


def _curves(findings: Sequence[Mapping[str, Any]]) -> list[Markup]:
    parts: list[Markup] = []
    for f in findings:
        points = sorted((float(p[0]), float(p[1])) for p in f.get("curve", []) if len(p) == 2)
        if not points or len(parts) == MOST_CURVES:
            continue
        x, y = drawing.horizontal(0, 1, "false alarms"), drawing.vertical(0, 1, "true alarms")
        marks = [drawing.curve(x, y, [0, 1], [0, 1], "quiet")]
        if _number(f.get("epsilon_proved")):
            rates = [i / 200 for i in range(201)]
            most = [
                attacker.detection(r, float(f["epsilon_proved"]), float(f.get("delta", 0))) for r in rates
            ]
            marks.insert(0, drawing.area(x, y, rates, rates, most, "a"))
        marks.append(drawing.curve(x, y, [p[0] for p in points], [p[1] for p in points], "b"))
        label = f"Attack on {f.get('mechanism', '?')} ({f.get('rung', '')})"
        caption = (
            f"{label}: the curve must stay inside the shaded region, which is all that the proof allows."
        )
        parts.append(figure(drawing.plot(x, y, *marks, label=label), caption))
    return parts


def _epsilon(value: object, otherwise: str = "none proved") -> str:
    return f"{float(value):.4g}" if isinstance(value, int | float) else otherwise


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
