"""Plots as stand-alone SVG files, with their style inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adlm.errors import UserError
from adlm.report import drawing
from adlm.report.html import Markup, tag
from adlm.report.page import STYLE
from adlm.runtime.artefact import write_file

GROUND = "svg{background:var(--bg)}"


def write_svg(path: Path, drawn: Markup) -> None:
    """Write a drawing as a file, with the style of the report inside."""
    if path.suffix != ".svg":
        raise UserError(f"a picture is an .svg file, got {path.name!r}")
    inside = drawn.replace(">", f">{tag('style', Markup(STYLE + GROUND))}", 1)
    named = inside.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    write_file(path, f"{named}\n".encode(), what="picture")


def accuracy_over_epsilon(path: Path, points: Sequence[tuple[float, float, float]], what: str) -> None:
    """Draw accuracy (fractions) over epsilon, with whiskers of one spread.

    Parameters
    ----------
    points : (epsilon, accuracy, spread) in any order.
    what : which accuracy it is, such as `forecast`.
    """
    if not points:
        raise UserError("there is nothing to draw: give at least one epsilon")
    ordered = sorted(points)
    budgets = [p[0] for p in ordered]
    low, high = (budgets[0], budgets[-1]) if budgets[-1] > budgets[0] else (budgets[0] / 2, budgets[0] * 2)
    bottom = max(0.0, min(100 * (a - s) for _, a, s in ordered) - 5)
    x = drawing.logarithmic(low, high, "epsilon", budgets)
    y = drawing.vertical(bottom, 100, f"accuracy, % ({what})")
    marks = [drawing.whisker(x, y, e, 100 * (a - s), 100 * (a + s)) for e, a, s in ordered]
    marks.append(drawing.curve(x, y, budgets, [100 * a for _, a, _ in ordered], "a"))
    marks += [drawing.dot(x, y, e, 100 * a, "a") for e, a, _ in ordered]
    write_svg(path, drawing.plot(x, y, *marks, label=f"Accuracy over epsilon ({what})"))
