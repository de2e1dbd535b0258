"""HTML and SVG as values, plots, and the page around them: inline style, no script, nothing external."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
import numpy.typing as npt

# ---- HTML and SVG as values: other text is escaped, so nothing in an artefact can add markup.

VOID = frozenset({"meta", "br", "hr", "line", "rect", "circle", "path", "polyline", "polygon"})


class Markup(str):
    """Text that is markup already. Only `tag` and `join` make it."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Escape a value, unless it is markup already."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Make an element; `class_` and `aria_label` become `class` and `aria-label`, None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not children:
        return Markup(f"<{name}{written}/>" if name not in ("meta", "br", "hr") else f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Concatenate children."""
    return Markup("".join(text(child) for child in children))


def paragraph(*children: object) -> Markup:
    """Make a paragraph."""
    return tag("p", *children)


def table(headings: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """Make a table that scrolls by itself when the page is narrow; first column left, numbers right."""
    head = tag("thead", tag("tr", *(tag("th", h, scope="col") for h in headings)))
    body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    return tag("div", tag("table", head, body), class_="scroll")


def figure(picture: Markup, caption: object) -> Markup:
    """Put a picture above its caption."""
    return tag("figure", tag("div", picture, class_="scroll"), tag("figcaption", caption))


def _attribute(value: object) -> str:
    return html.escape(f"{value:.6g}" if isinstance(value, float) else str(value), quote=True)


# ---- Plots as SVG: lines, bars and heat maps, in colours that follow the page's light or dark theme.

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 14, 46
MOST_POINTS = 400  # longer curves are thinned to this many points
MOST_CELLS = 4096


@dataclass(frozen=True)
class Axis:
    """A range of values over a range of pixels, with its name and ticks."""

    low: float
    high: float
    start: float
    stop: float
    name: str = ""
    ticks: tuple[float, ...] = ()

    def at(self, value: float) -> float:
        """Return the pixel of a value; values outside the range are drawn at its end."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + min(1.0, max(0.0, share)) * (self.stop - self.start), 2)


def horizontal(low: float, high: float, name: str) -> Axis:
    """Make the x axis of a plot, with round numbers marked."""
    return Axis(low, high, LEFT, WIDTH - RIGHT, name, nice(low, high))


def vertical(low: float, high: float, name: str) -> Axis:
    """Make the y axis of a plot, with round numbers marked."""
    return Axis(low, high, HEIGHT - BOTTOM, TOP, name, nice(low, high))


def nice(low: float, high: float) -> tuple[float, ...]:
    """Return round numbers in a range, about five."""
    if not high > low:
        return (low,)
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * next(m for m in (1, 2, 5, 10) if m * unit >= raw)
    first = math.ceil(low / step - 1e-9)
    return tuple(i * step for i in range(first, math.floor(high / step + 1e-9) + 1))


def number(value: float) -> str:
    """Format a tick without rounding errors."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def plot(x: Axis, y: Axis, *marks: Markup, label: str) -> Markup:
    """Put marks on axes; `label` describes the plot for screen readers."""
    grid = [tag("line", class_="grid", x1=x.start, x2=x.stop, y1=y.at(t), y2=y.at(t)) for t in y.ticks]
    numbers = [_text(number(t), x.start - 8, y.at(t) + 4, "end", class_="tick") for t in y.ticks]
    numbers += [_text(number(t), x.at(t), y.start + 18, class_="tick") for t in x.ticks]
    middle = (y.start + y.stop) / 2
    names = [
        _text(x.name, (x.start + x.stop) / 2, HEIGHT - 8),
        _text(y.name, 14, middle, transform=f"rotate(-90 14 {middle:g})"),
    ]
    base = tag("line", class_="axis", x1=x.start, x2=x.stop, y1=y.start, y2=y.start)
    return canvas(WIDTH, HEIGHT, label, *grid, *marks, base, *numbers, *names)


def _text(words: str, x: float, y: float, anchor: str = "middle", **more: str) -> Markup:
    return tag("text", words, x=x, y=y, text_anchor=anchor, **more)


def canvas(width: float, height: float, label: str, *children: Markup) -> Markup:
    """Make a drawing that shrinks with the page."""
    return tag(
        "svg",
        tag("title", label),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        width=float(width),
        height=float(height),
        role="img",
        aria_label=label,
    )


def curve(x: Axis, y: Axis, xs: Sequence[float], ys: Sequence[float], style: str) -> Markup:
    """Draw a line through points."""
    step = max(1, math.ceil(len(xs) / MOST_POINTS))
    points = " ".join(f"{x.at(a):g},{y.at(b):g}" for a, b in list(zip(xs, ys, strict=True))[::step])
    return tag("polyline", points=points, class_=f"line {style}")


def area(
    x: Axis, y: Axis, xs: Sequence[float], low: Sequence[float], high: Sequence[float], style: str
) -> Markup:
    """Fill what lies between two curves."""
    there = [f"{x.at(a):g},{y.at(b):g}" for a, b in zip(xs, high, strict=True)]
    back = [f"{x.at(a):g},{y.at(b):g}" for a, b in zip(xs, low, strict=True)]
    return tag("polygon", points=" ".join(there + back[::-1]), class_=f"area {style}")


def legend(*entries: tuple[str, str]) -> Markup:
    """Make the legend of a plot."""
    return tag(
        "p", *(tag("span", tag("i", "", class_=style), name) for style, name in entries), class_="legend"
    )


def bars(
    names: Sequence[str],
    values: Sequence[float],
    *,
    label: str,
    spread: Sequence[float] | None = None,
    unit: str = "",
    styles: Sequence[str] | None = None,
    shown: Sequence[str] | None = None,
) -> Markup:
    """Draw bars from the left, one a row, with whiskers of length `spread` either way."""
    row, left, span = 26, 230, 215
    reach = [abs(v) + (spread[i] if spread else 0.0) for i, v in enumerate(values)]
    top = max([*reach, 1e-12])
    drawn: list[Markup] = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        middle, width = i * row + row / 2, max(0.0, value) / top * span
        drawn.append(_text(_short(name, 25), left - 8, middle + 4, "end"))
        style = styles[i] if styles else "a"
        drawn.append(
            tag("rect", x=left, y=middle - 8, width=round(width, 2), height=16, class_=f"bar {style}")
        )
        end = width
        if spread:
            low, high = max(0.0, value - spread[i]) / top * span, max(0.0, value + spread[i]) / top * span
            drawn.append(tag("line", x1=left + low, x2=left + high, y1=middle, y2=middle, class_="whisker"))
            end = max(width, high)
        text = shown[i] if shown else f"{number(value)}{unit}"
        drawn.append(tag("text", text, x=left + end + 6, y=middle + 4, class_="tick"))
    return canvas(WIDTH, row * len(names), label, *drawn)


def heatmap(
    values: npt.NDArray[np.float64],
    *,
    label: str,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    counts: bool = False,
) -> Markup:
    """Draw a matrix as squares, in fuller colour where a value is larger; `counts` writes the numbers too."""
    values = thinned(values)
    high, low = float(values.max()), float(min(values.min(), 0.0))
    left, top = (110.0 if rows else 2.0), (26.0 if columns else 2.0)
    size = min(34.0 if counts else 18.0, (WIDTH - left - 4) / values.shape[1])
    marks: list[Markup] = []
    for i, j in np.ndindex(*values.shape):
        share = (float(values[i, j]) - low) / (high - low) if high > low else 0.0
        x, y = left + j * size, top + i * size
        marks.append(
            tag("rect", x=x, y=y, width=size, height=size, class_="cell", fill_opacity=round(share, 3))
        )
        if counts and size >= 20:
            style = "cell-text strong" if share > 0.5 else "cell-text"
            marks.append(_text(number(float(values[i, j])), x + size / 2, y + size / 2 + 4, class_=style))
    edge = tag(
        "rect", x=left, y=top, width=size * values.shape[1], height=size * values.shape[0], class_="edge"
    )
    for i, name in enumerate(rows or ()):
        marks.append(_text(_short(name, 15), left - 6, top + (i + 0.5) * size + 4, "end"))
    for j, name in enumerate(columns or ()):
        short = _short(name, max(2, int(size / 7)))
        marks.append(_text(short, left + (j + 0.5) * size, top - 8, class_="tick"))
    width = left + size * values.shape[1] + 4
    return canvas(max(width, 120.0), top + size * values.shape[0] + 4, label, join(marks), edge)


def thinned(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Average blocks of a large matrix, so that a page stays small."""
    while values.size > MOST_CELLS:
        axis = int(values.shape[1] >= values.shape[0])
        even = np.take(values, range(values.shape[axis] // 2 * 2), axis=axis)
        halves = np.split(even, even.shape[axis] // 2, axis=axis)
        values = np.concatenate([half.mean(axis, keepdims=True) for half in halves], axis)
    return values


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


# ---- One HTML file: inline style, no script, no external resources.


@dataclass(frozen=True)
class Section:
    """A part of the report: its anchor, heading and content."""

    anchor: str
    heading: str
    body: Markup


def page(title: str, lead: object, top: Markup, sections: Sequence[Section]) -> str:
    """Assemble a page with a table of contents."""
    entries = [tag("li", tag("a", s.heading, href=f"#{s.anchor}")) for s in sections]
    contents = tag("nav", tag("strong", "Contents"), tag("ol", *entries), aria_label="Contents")
    parts = [tag("section", tag("h2", s.heading, id=s.anchor), s.body) for s in sections]
    style = (resources.files("adlm.report") / "report.css").read_text(encoding="utf-8")
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag(
                "meta",
                http_equiv="Content-Security-Policy",
                content="default-src 'none'; style-src 'unsafe-inline'; img-src data:",
            ),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", title),
            Markup('<link rel="icon" href="data:,">'),
            Markup(f"<style>{style}</style>"),
        ]
    )
    header = tag("header", tag("h1", title), tag("p", lead, class_="lead"))
    body = tag("body", header, top, contents, tag("main", *parts))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>{body}</html>\n'


def tile(value: object, name: object) -> Markup:
    """Show one figure in large type."""
    return tag("div", tag("b", value), tag("span", name), class_="tile")


def stamp(words: str, meaning: str) -> Markup:
    """Show a stamp of a release prominently."""
    return tag("div", words, tag("small", meaning), class_="stamp", role="alert")
