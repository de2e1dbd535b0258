"""Figures of results: one style, and reproducible SVG files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from adlm.runtime.artefact import write_file


def new(width: float = 6.4, height: float = 4.2) -> tuple[Any, Any]:
    """Return a figure and its axes."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.grid(True, alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, path: Path) -> Path:
    """Write a figure and return its path."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "adlm", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    write_file(path, buffer.getvalue(), what="figure")
    return path
