"""The report in a real browser: it loads alone, shows its figures, and its contents lead where they say."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.report import artefacts, chromium

from adlm.report import write_report

pytestmark = chromium.needed()
BOXES = """[...document.querySelectorAll('figure svg')].map(
    s => {const b = s.getBoundingClientRect(); return [b.left, b.width, b.height]})"""
STAMP = """(() => {
    const s = document.querySelector('.stamp'), b = s.getBoundingClientRect();
    return [s.textContent, b.top, b.height, parseFloat(getComputedStyle(s).fontSize)]})()"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = artefacts.demo(tmp_path_factory.mktemp("report"))
    return write_report(folder, folder / "report.html")


def colours(png: bytes) -> tuple[tuple[int, int], int]:
    """Size of a picture and how many colours it has."""
    with Image.open(io.BytesIO(png)) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
        return image.size, len(np.unique(pixels[::89], axis=0))


@pytest.mark.parametrize(("width", "dark"), [(375, True), (1280, False)])
def test_it_loads_alone_and_every_figure_is_inside_the_page(
    page: chromium.Page, report: Path, width: int, dark: bool
) -> None:
    page.open(report, width=width, dark=dark)
    page.evaluate("new Promise(done => setTimeout(done, 300))")
    assert page.complaints() == []
    assert [url for url in page.requests() if not url.startswith("data:")] == [report.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.evaluate(BOXES)
    assert len(boxes) == 8
    for left, wide, high in boxes:
        assert wide > 200
        assert high > 15
        assert left >= 0
        assert left + wide <= width
    drawn = page.evaluate("[...document.querySelectorAll('figure svg')].map(s => s.getBBox().width)")
    assert min(drawn) > 100
    size, many = colours(page.screenshot())
    assert size[0] == width
    assert size[1] > 2000
    assert many > 50


def test_a_page_that_does_ask_would_be_caught(page: chromium.Page, tmp_path: Path) -> None:
    """The control of the test above: an outside picture is seen as a request and as a complaint."""
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><img src='http://outside.invalid/x.png'><script>nowhere()</script>")
    page.open(bad, width=375)
    assert "http://outside.invalid/x.png" in page.requests()
    assert any("nowhere is not defined" in line for line in page.complaints())


def test_the_contents_lead_where_they_say(page: chromium.Page, report: Path) -> None:
    page.open(report, width=375)
    links = page.evaluate("[...document.querySelectorAll('nav a')].map(a => [a.textContent, a.hash])")
    assert len(links) == 6
    for words, hash_ in links:
        page.evaluate("document.documentElement.style.scrollBehavior = 'auto'; scrollTo(0, 0)")
        page.evaluate(f"document.querySelector('nav a[href=\"{hash_}\"]').click()")
        heading = f"document.querySelector('{hash_}')"
        assert page.evaluate(f"{heading}.textContent") == words
        top = page.evaluate(f"{heading}.getBoundingClientRect().top")
        bottom = page.evaluate("document.documentElement.scrollHeight - innerHeight - scrollY")
        assert abs(top) < 5 or bottom < 5
        assert page.evaluate("scrollY") > 0


def test_stamps_are_seen_first_and_large(page: chromium.Page, report: Path) -> None:
    page.open(report, width=375)
    stamp = page.evaluate(STAMP)
    assert stamp[0].startswith("NOT PRIVATE: seeded")
    assert stamp[1] + stamp[2] < 900
    assert stamp[3] > 16


def test_light_and_dark_differ_and_both_can_be_read(page: chromium.Page, report: Path) -> None:
    seen = []
    for dark in (False, True):
        page.open(report, width=1280, dark=dark)
        style = "getComputedStyle(document.body)"
        ground = brightness(page.evaluate(f"{style}.backgroundColor"))
        ink = brightness(page.evaluate(f"{style}.color"))
        label = brightness(page.evaluate("getComputedStyle(document.querySelector('svg text')).fill"))
        assert abs(ground - ink) > 0.6
        assert abs(ground - label) > 0.5  # tick labels are softer than words
        seen.append(ground)
    assert seen[0] > 0.9
    assert seen[1] < 0.2


def brightness(colour: str) -> float:
    red, green, blue = (int(v) for v in colour.removeprefix("rgb(").removesuffix(")").split(","))
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


def test_it_prints(page: chromium.Page, report: Path) -> None:
    page.open(report, width=1280)
    printed = page.printed()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 30_000
