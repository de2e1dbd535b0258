"""HTML and SVG as values: other text is escaped, so nothing in an artefact can add markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

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
