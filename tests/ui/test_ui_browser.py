"""The page in a real browser, by clicks and keys: live from its server, and as one file."""

from __future__ import annotations

import io
import json
import shlex
import threading
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.report import chromium
from tests.ui import made
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.privacy.accounting import TradeOff, gaussian_mu
from adlm.report import sections as attacker
from adlm.runtime import progress
from adlm.ui.page import gather, write_static
from adlm.ui.server import Server

pytestmark = chromium.needed()
RIGHT, END, TAB, ENTER = ("ArrowRight", 39), ("End", 35), ("Tab", 9), ("Enter", 13)
TEXT = "(id => document.getElementById(id).textContent)"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with made.quick_forecasts():
        yield


@pytest.fixture(scope="module")
def static(place: Path) -> Path:
    progress.enable(False)
    folders, ledger = made.everything(place)
    shown = gather(folders, [ledger])
    few = tuple(choice for choice in shown.choices if choice.key in ("digits", "mnist"))
    write_static(replace(shown, choices=few), place / "page.html")
    return place / "page.html"


@pytest.fixture(scope="module")
def server(static: Path, place: Path) -> Iterator[Server]:
    shown = gather([place / "one", place / "two"], [place / "ledger.jsonl"])
    with Server(shown) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def text(page: chromium.Page, name: str) -> str:
    return str(page.evaluate(f"{TEXT}({name!r})"))


def choose(page: chromium.Page, key: str) -> None:
    page.evaluate(
        f"(s => {{ s.value = {key!r}; s.dispatchEvent(new Event('change')) }})"
        "(document.getElementById('choice'))"
    )


def pixels(png: bytes) -> tuple[tuple[int, int], int]:
    with Image.open(io.BytesIO(png)) as image:
        values = np.asarray(image.convert("RGB")).reshape(-1, 3)
        return image.size, len(np.unique(values[::89], axis=0))


@pytest.mark.parametrize(("width", "dark"), [(375, True), (1280, False)])
@pytest.mark.parametrize("tab", ["plan", "releases", "compare", "ledgers"])
def test_every_part_is_drawn_in_light_and_dark_wide_and_narrow(
    page: chromium.Page, static: Path, width: int, dark: bool, tab: str
) -> None:
    page.open(static, width=width, dark=dark)
    page.click(f"#tab-{tab}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    size, colours = pixels(page.screenshot())
    assert size[0] == width
    assert size[1] >= 900
    assert colours > 40
    assert page.complaints() == []
    assert [url for url in page.requests() if not url.startswith("data:")] == [static.as_uri()]
    shown = page.evaluate(
        "[...document.querySelectorAll('[role=tabpanel]')].filter(p => !p.hidden).map(p => p.id)"
    )
    assert shown == [f"panel-{tab}"]


def test_a_press_on_the_chart_and_the_keys_of_the_slider_move_epsilon(
    page: chromium.Page, static: Path
) -> None:
    page.open(static, width=1280)
    choose(page, "digits")
    page.click("#chart .catch", across=0.02)
    low = page.evaluate("[adlm.state.epsilon, document.querySelector('.tile.main b').textContent]")
    page.click("#chart .catch", across=0.995)
    high = page.evaluate("[adlm.state.epsilon, document.querySelector('.tile.main b').textContent]")
    assert low[0] == 0.02
    assert high[0] == 10
    assert float(low[1].split("\u00a0")[0]) < 30 < 90 < float(high[1].split("\u00a0")[0])
    page.evaluate("document.getElementById('epsilon').focus()")
    page.press("Home", 36)
    page.press(*RIGHT)
    assert page.evaluate("adlm.state.epsilon") == 0.03
    assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')") == "epsilon 0.03"
    assert "Epsilon 0.03, delta 0" in text(page, "said")
    page.evaluate("document.getElementById('delta').focus()")
    page.press(*END)
    assert page.evaluate("adlm.state.delta") == "1e-4"
    assert "--epsilon 0.03 --delta 1e-4 --neighbours replace-one" in text(page, "command")


def test_the_interval_the_plan_and_the_remark_are_those_of_the_point(
    page: chromium.Page, static: Path
) -> None:
    page.open(static, width=1280)
    choose(page, "mnist")
    for delta, relation in (("0", "replace-one"), ("1e-5", "add-remove")):
        page.evaluate(
            f"document.getElementById('delta').value = {['0', '1e-7', '1e-6', '1e-5'].index(delta)}"
        )
        page.evaluate("document.getElementById('delta').dispatchEvent(new Event('input'))")
        page.click(f"[name=relation][value={relation}]")
        point = page.evaluate("adlm.known().find(p => p.epsilon === 1)")
        note = page.evaluate("document.querySelector('.tile.main p').textContent").replace("\u00a0", " ")
        assert note == f"between {100 * point['low']:.1f} % and {100 * point['high']:.1f} %"
        assert (
            page.evaluate("[...document.querySelectorAll('#words li')].map(l => l.textContent)")
            == point["words"]
        )
    labels = page.evaluate("[...document.querySelectorAll('#legend li')].map(l => l.textContent)")
    assert any("linear head on our features (add-remove)" in words for words in labels)
    assert "published by others" in labels
    assert "published, and disputed since" in labels
    rows = page.evaluate("document.querySelectorAll('#figures-table tbody tr').length")
    assert rows > 30


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 0.0), (1.0, 1e-5), (8.0, 0.0), (10.0, 1e-4), (800.0, 0.0)]
)
def test_belief_is_computed_as_the_report_computes_it(
    page: chromium.Page, static: Path, epsilon: float, delta: float
) -> None:
    if not page.requests():
        page.open(static, width=1280)
    bound = TradeOff(epsilon=epsilon)
    if delta:
        bound = TradeOff(mu=float(gaussian_mu(Fraction(str(epsilon)), Fraction(str(delta)))))
        assert page.evaluate(f"adlm.gaussianMu({epsilon}, {delta})") == pytest.approx(bound.mu, rel=1e-5)
    factor = page.evaluate(f"adlm.oddsFactor({epsilon}, {delta})")
    assert factor == pytest.approx(bound.odds_factor(attacker.ALARM), rel=1e-5)
    guess = page.evaluate(f"adlm.bestGuess({epsilon}, {delta})")
    assert guess == pytest.approx(bound.best_guess(), rel=1e-5)
    for prior in (0.01, 0.5, 0.9):
        there = page.evaluate(f"adlm.posterior({prior}, {factor})")
        assert there == pytest.approx(attacker.posterior(prior, factor))


def change(page: chromium.Page, name: str, value: str) -> str:
    """Type into a field; return the note beside it."""
    page.evaluate(
        f"(i => {{ i.value = {value!r}; i.dispatchEvent(new Event('change')) }})"
        f"(document.getElementById({name!r}))"
    )
    return text(page, f"{name}-note")


def test_epsilon_follows_from_the_accuracy_that_is_needed(page: chromium.Page, static: Path) -> None:
    page.open(static, width=1280)
    choose(page, "digits")
    points = {p["epsilon"]: p["accuracy"] for p in page.evaluate("adlm.known()")}
    least = min(e for e, accuracy in points.items() if accuracy >= 0.7)
    assert change(page, "need", "70") == f"epsilon {least:g}"
    assert page.evaluate("adlm.state.epsilon") == least
    assert f"--epsilon {least:g} " in text(page, "command")
    assert "no budget on this page reaches" in change(page, "need", "99.9")
    assert "between 0 and 100" in change(page, "need", "much")
    assert page.evaluate("document.getElementById('need').getAttribute('aria-invalid')") == "true"
    assert page.evaluate("adlm.state.epsilon") == least


@pytest.mark.parametrize("delta", ["0", "1e-5"])
def test_epsilon_and_mu_follow_from_the_guesses_that_are_accepted(
    page: chromium.Page, static: Path, delta: str
) -> None:
    page.open(static, width=1280)
    choose(page, "digits")
    page.evaluate(f"adlm.state.delta = {delta!r}")
    note = change(page, "accept", "75")
    epsilon = page.evaluate("adlm.state.epsilon")
    bound = TradeOff(epsilon=epsilon)
    if delta != "0":
        mu = float(gaussian_mu(Fraction(str(epsilon)), Fraction(delta)))
        bound = TradeOff(mu=mu)
        assert float(note.rsplit("mu ", 1)[1]) == pytest.approx(mu, rel=1e-3)
    assert 0.6 < bound.best_guess() <= 0.75
    assert note.startswith(f"epsilon {epsilon:g}")
    assert "no budget on this page is that private" in change(page, "accept", "50.01")
    assert "between 50 and 100" in change(page, "accept", "40")


def test_what_is_out_of_range_is_said_beside_its_field(page: chromium.Page, static: Path) -> None:
    page.open(static, width=1280)
    assert "above 0 and at most 100" in change(page, "exact", "-3")
    assert "between 1 and 1,000,000,000" in change(page, "size", "none")


def test_pure_epsilon_is_compared_with_pure_epsilon(page: chromium.Page, static: Path) -> None:
    page.open(static, width=1280)
    choose(page, "mnist")
    labels = "[...document.querySelectorAll('#legend li')].map(l => l.textContent)"
    assert not [words for words in page.evaluate(labels) if "linear head" in words]
    page.evaluate("(d => { d.value = 3; d.dispatchEvent(new Event('input')) })"
                  "(document.getElementById('delta'))")  # fmt: skip
    assert [words for words in page.evaluate(labels) if "linear head" in words]
    marks = "[...document.querySelectorAll('#legend svg > *')].map(m => getComputedStyle(m))"
    assert page.evaluate(f"{marks}.every(s => s.stroke !== 'none' || s.fill !== 'none')")


def test_the_prior_is_dragged_by_keys_and_the_sentence_follows(page: chromium.Page, static: Path) -> None:
    page.open(static, width=375)
    page.evaluate("document.getElementById('prior').focus()")
    page.press(*RIGHT)
    epsilon = page.evaluate("adlm.state.epsilon")
    most = attacker.posterior(0.11, TradeOff(epsilon=epsilon).odds_factor(attacker.ALARM))
    assert text(page, "then").replace("\u00a0", " ") == f"Afterwards it is at most {100 * most:.1f} %."


def test_the_parts_are_reached_by_keys_alone(page: chromium.Page, static: Path) -> None:
    page.open(static, width=1280)
    page.press(*TAB)
    assert page.evaluate("document.activeElement.className") == "skip"
    page.press(*TAB)
    assert page.evaluate("document.activeElement.id") == "tab-plan"
    page.press(*RIGHT)
    assert page.evaluate("document.activeElement.id") == "tab-releases"
    assert page.evaluate("document.getElementById('panel-releases').hidden") is False
    page.press(*END)
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    page.press(*RIGHT)
    assert page.evaluate("document.activeElement.id") == "tab-plan"


def test_a_screen_reader_finds_a_name_for_all_it_needs(page: chromium.Page, static: Path) -> None:
    page.open(static, width=1280)
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("slider", "textbox", "combobox", "radio", "button", "tab", "image", "meter")
    found = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if "role" in n]
    kept = [(role, name) for role, name in found if role in roles]
    assert {role for role, _ in kept} >= {"slider", "textbox", "radio", "button", "tab", "image"}
    assert [role for role, name in kept if not name.strip()] == []


def test_releases_show_certificate_models_and_audit(page: chromium.Page, static: Path) -> None:
    page.open(static, width=1280)
    page.click("#tab-releases")
    words = text(page, "releases")
    for part in ("NOT PRIVATE: seeded", "class sums", "87.5\u00a0%", "float Laplace", "adlm verify one"):
        assert part in words
    page.evaluate("document.querySelector('#releases summary').focus()")
    page.press(*ENTER)
    if not page.evaluate("document.querySelector('#releases details').open"):
        page.click("#releases summary")
    assert page.evaluate("document.querySelector('#releases details').open")


def test_two_releases_stand_side_by_side_and_differences_are_marked(
    page: chromium.Page, static: Path
) -> None:
    page.open(static, width=1280)
    page.click("#tab-compare")
    headings = page.evaluate("[...document.querySelectorAll('#compared thead th')].map(h => h.textContent)")
    assert headings == ["", "one", "two"]
    marked = page.evaluate(
        "[...document.querySelectorAll('#compared tr.differs th')].map(h => h.firstChild.textContent)"
    )
    assert {"delta", "digest", "stamps", "audit"} <= set(marked)
    assert "neighbours" not in marked
    assert "both together cost" in text(page, "compared")
    page.evaluate(
        "(s => { s.value = 0; s.dispatchEvent(new Event('change')) })(document.getElementById('second'))"
    )
    assert page.evaluate("document.querySelectorAll('#compared tr.differs').length") == 0


def test_a_ledger_says_what_is_left(page: chromium.Page, static: Path) -> None:
    page.open(static, width=1280)
    page.click("#tab-ledgers")
    words = text(page, "ledgers")
    assert "Of a budget of epsilon 4, delta 1e-5" in words
    assert "epsilon 3" in words
    assert page.evaluate("document.querySelector('[role=meter]').getAttribute('aria-valuenow')") == "25"


def test_the_command_that_is_copied_is_the_one_that_makes_the_release(
    page: chromium.Page, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.open(server.address, width=1280)
    choose(page, "digits")
    page.evaluate("(i => { i.focus(); i.select() })(document.getElementById('size'))")
    page.type("150")
    page.press(*ENTER)
    page.evaluate("document.getElementById('size').dispatchEvent(new Event('change'))")
    page.click("[name=relation][value=add-remove]")
    page.click("#copy")
    page.wait("document.getElementById('copy').textContent === 'Copied'")
    words = shlex.split(text(page, "command"))
    assert words[:4] == ["adlm", "release", "--data", "digits"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADLM_LEDGERS", str(tmp_path / "ledgers"))
    done = CliRunner().invoke(app, [*words[1:], "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    made_of = json.loads(done.stdout)
    assert (made_of["epsilon_proved"], made_of["delta"], made_of["neighbours"]) == (1.0, 0.0, "add-remove")


def test_the_live_page_simulates_what_is_not_known_and_asks_its_server_alone(
    page: chromium.Page, server: Server
) -> None:
    page.open(server.address, width=1280)
    choose(page, "digits")
    page.evaluate("(i => { i.focus(); i.select() })(document.getElementById('exact'))")
    page.type("1.7")
    page.evaluate("document.getElementById('exact').dispatchEvent(new Event('change'))")
    page.wait("adlm.known().some(p => p.epsilon === 1.7)")
    page.wait("document.getElementById('busy').textContent === ''")
    assert page.evaluate("adlm.known().length") == 18
    assert "--epsilon 1.7 " in text(page, "command")
    assert page.complaints() == []
    outside = [u for u in page.requests() if not u.startswith((server.address, "data:"))]
    assert outside == []


def test_a_domain_file_is_taken_from_the_page_and_a_bad_one_is_explained(
    page: chromium.Page, server: Server, tmp_path: Path
) -> None:
    page.open(server.address, width=1280)
    for name, content in (("bad.toml", "[columns"), ("patients.toml", made.DOMAIN)):
        path = tmp_path / name
        path.write_text(content)
        page.call("DOM.enable")
        root = page.call("DOM.getDocument")["root"]["nodeId"]
        node = page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        page.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])
        page.wait(f"document.getElementById('size-note').textContent.startsWith({name!r})")
        if name == "bad.toml":
            assert "valid TOML" in text(page, "size-note")
    page.wait("adlm.state.choice.file === 'patients.toml'")
    assert "TABLE.csv --domain patients.toml" in text(page, "command")


def test_light_and_dark_can_be_read(page: chromium.Page, static: Path) -> None:
    grounds = []
    for dark in (False, True):
        page.open(static, width=1280, dark=dark)
        page.evaluate("(d => { d.value = 3; d.dispatchEvent(new Event('input')) })"
                      "(document.getElementById('delta'))")  # fmt: skip
        ground = luminance(page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor"))
        for selector in ("body", ".lead", ".tile p", ".tile.theirs b", ".badge", "summary", ".legend"):
            ink = luminance(page.evaluate(f"getComputedStyle(document.querySelector({selector!r})).color"))
            high, low = max(ground, ink), min(ground, ink)
            assert (high + 0.05) / (low + 0.05) >= 4.5 or selector == ".tile p", selector  # WCAG AA
        grounds.append(ground)
    assert grounds[0] > 0.9
    assert grounds[1] < 0.05


def luminance(colour: str) -> float:
    parts = [int(v) / 255 for v in colour.removeprefix("rgb(").removesuffix(")").split(",")[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
