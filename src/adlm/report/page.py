"""One HTML file: inline style, no script, no external resources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adlm.report.html import Markup, join, tag

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b2430;--soft:#5a6675;--line:#d8dee6;--card:#f5f7fa;
--a:#1f6feb;--b:#c2571a;--bad:#b42318;--bad-bg:#fdecea;--good:#1a7f4b}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--fg:#e6eaf0;--soft:#9aa7b6;--line:#2c3542;
--card:#1a2029;
--a:#6ea8fe;--b:#f0a060;--bad:#ff8a80;--bad-bg:#3a1a18;--good:#62d096}}
*{box-sizing:border-box}
html{scroll-behavior:smooth}
body{margin:0 auto;max-width:60rem;padding:1.2rem 1rem 4rem;background:var(--bg);color:var(--fg);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.7rem;line-height:1.2;margin:.2rem 0 .4rem}
h2{font-size:1.25rem;margin:2.4rem 0 .6rem;padding-top:.6rem;border-top:1px solid var(--line)}
h3{font-size:1.02rem;margin:1.4rem 0 .3rem}
a{color:var(--a)}
.lead{color:var(--soft);margin-top:0}
nav{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:.7rem 1rem;
margin:1.2rem 0}
nav ol{margin:.2rem 0;padding-left:1.3rem;columns:2;column-gap:2rem}
.stamp{border:3px solid var(--bad);background:var(--bad-bg);color:var(--bad);border-radius:.6rem;
padding:.8rem 1rem;margin:1rem 0;font-weight:700;font-size:1.15rem}
.stamp small{display:block;font-weight:400;font-size:.92rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.7rem;margin:1rem 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:.6rem .8rem}
.tile b{display:block;font-size:1.35rem}
.tile span{color:var(--soft);font-size:.86rem}
figure{margin:1.1rem 0;background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:.8rem}
figcaption{color:var(--soft);font-size:.9rem;margin-top:.4rem}
.scroll{overflow-x:auto}
svg{display:block;max-width:100%;height:auto;margin:0 auto;font:12px system-ui,sans-serif}
svg text{fill:var(--fg)}svg .tick{fill:var(--soft)}
.grid{stroke:var(--line)}.axis,.edge{stroke:var(--soft);fill:none}
.line{fill:none;stroke-width:2.2}.line.a{stroke:var(--a)}.line.b{stroke:var(--b)}
.line.quiet{stroke:var(--soft);stroke-dasharray:5 5;stroke-width:1.4}
.area.a{fill:var(--a);fill-opacity:.24}
.bar.a,.dot.a,.cell{fill:var(--a)}.bar.b,.dot.b{fill:var(--b)}.bar.bad{fill:var(--bad)}
.whisker{stroke:var(--fg);stroke-width:1.6}
svg .cell-text.strong{fill:var(--bg)}
.legend{margin:.3rem 0;font-size:.88rem;color:var(--soft)}
.legend span{margin-right:1.2rem;white-space:nowrap}
.legend i{display:inline-block;width:1.5rem;height:.28rem;margin-right:.4rem;vertical-align:middle}
.legend i.a{background:var(--a)}.legend i.b{background:var(--b)}.legend i.quiet{background:var(--soft)}
table{border-collapse:collapse;font-size:.92rem;min-width:50%}
th,td{border-bottom:1px solid var(--line);padding:.35rem .7rem .35rem 0;text-align:left;vertical-align:top;
overflow-wrap:normal;min-width:4.5rem}
td:last-child{min-width:7rem}
th{color:var(--soft);font-weight:600}
pre{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.7rem;overflow-x:auto;
font:13px/1.45 ui-monospace,monospace}
code{font-family:ui-monospace,monospace;font-size:.9em}
.bad{color:var(--bad);font-weight:600}.good{color:var(--good);font-weight:600}
.warn{color:var(--b);font-weight:600}summary{cursor:pointer;color:var(--a)}
@media(max-width:34rem){svg{font-size:16px}nav ol{columns:1}h1{font-size:1.4rem}
body{padding:.8rem .7rem 3rem}}
@media print{body{max-width:none;font-size:11pt;color:#000;background:#fff}figure,table,.stamp,.tile
{break-inside:avoid}h2{break-after:avoid}nav{display:none}pre{white-space:pre-wrap}}
"""


@dataclass(frozen=True)
class Section:
    """A part of the report: its anchor, heading and content."""

    anchor: str
    heading: str
    body: Markup


def page(title: str, lead: object, top: Markup, sections: Sequence[Section]) -> str:
    """Assemble a page with a table of contents.

    Parameters
    ----------
    title : of the page.
    lead : the first paragraph.
    top : content above the sections.
    sections : in order.
    """
    entries = [tag("li", tag("a", s.heading, href=f"#{s.anchor}")) for s in sections]
    contents = tag("nav", tag("strong", "Contents"), tag("ol", *entries), aria_label="Contents")
    parts = [tag("section", tag("h2", s.heading, id=s.anchor), s.body) for s in sections]
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
            Markup(f"<style>{STYLE}</style>"),
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
