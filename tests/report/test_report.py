"""A report says what its artefacts say, escaped; it fetches nothing, and refuses what was altered."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import typer
from tests.report import artefacts
from typer.testing import CliRunner

from adlm.cli.report import report
from adlm.errors import UserError
from adlm.model.closed_form import NOISE_EXCEEDS_SIGNAL
from adlm.privacy.certificate import PEEKED, SEEDED
from adlm.report import write_report
from adlm.report.html import (
    MOST_CELLS,
    Markup,
    accuracy_over_epsilon,
    bars,
    heatmap,
    logarithmic,
    nice,
    tag,
    text,
    thinned,
)
from adlm.report.sections import accuracy as accuracy_section
from adlm.report.sections import audit as audit_section
from adlm.report.subject import Trained
from adlm.runtime.artefact import canonical


class Reader(HTMLParser):
    """Collect elements, anchors and what is linked to; unbalanced elements are a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(name, attributes)
        if name not in ("meta", "link", "br"):
            self.open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(name)
        for key, value in attributes:
            if key == "id":
                self.ids.append(value or "")
            if key in ("href", "src", "action", "srcset", "data"):
                self.references.append(value or "")
            assert not key.startswith("on")

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text())
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = artefacts.demo(tmp_path_factory.mktemp("demo"))
    return read(write_report(folder, folder / "report.html"))


def said(reader: Reader) -> str:
    return " ".join("".join(reader.words).split())


def test_every_part_is_there_with_its_pictures(demo: Reader) -> None:
    assert demo.ids == ["plain-words", "charges", "allocation", "accuracy", "audit", "cite"]
    assert [r for r in demo.references if r.startswith("#")] == [f"#{name}" for name in demo.ids]
    assert demo.tags.count("svg") == demo.tags.count("figure") == 8
    assert demo.tags.count("svg") == demo.tags.count("title") - 1


def test_nothing_is_fetched_and_nothing_runs(demo: Reader) -> None:
    assert "script" not in demo.tags
    assert {r for r in demo.references if not r.startswith("#")} == {"data:,"}


def test_names_in_an_artefact_cannot_add_markup(demo: Reader) -> None:
    """A class is called <script>: it is shown, and no element came of it."""
    assert "<script>x()</script>" in said(demo)


def test_the_figures_are_those_of_the_artefacts(demo: Reader) -> None:
    words = said(demo)
    assert "epsilon 2, neighbours replace-one" in words
    assert "7.39-fold" in words
    assert "87.5%" in words
    assert "held-out records, test (31 records)" in words
    assert "Hardest class: dog, 81.8% right" in words
    assert "docs/proof-moments.md Theorem 1" in words
    assert "arXiv:1709.05750" in words


def test_the_command_to_check_names_the_artefact_and_not_where_it_lies(demo: Reader) -> None:
    assert re.search(r"adlm verify demo\d+/release adlm release", said(demo))
    assert "/tmp" not in said(demo)


def test_both_models_are_shown_with_their_epochs(demo: Reader) -> None:
    assert "model-1 linear 1 0.8750" in " ".join(demo.words)
    assert "model-100 linear 100 0.8750" in " ".join(demo.words)


def test_the_audit_is_shown_with_its_controls(demo: Reader) -> None:
    words = " ".join(demo.words)
    assert "class sums replace-one distinguishing 2 1.9 100000 holds" in words
    assert "float Laplace replace-one control 1 unbounded 1000 violated" in words


def test_a_long_audit_is_folded_under_its_count_with_the_nearest_attack_of_each_mechanism() -> None:
    first = artefacts.AUDIT["findings"][0]
    many = [dict(first) | {"epsilon_lower": 0.05 * i, "mechanism": f"m{i % 3}"} for i in range(30)]
    section = audit_section(
        {"findings": [*many, dict(first) | {"verdict": "VIOLATED", "epsilon_lower": 3.0}]}
    )
    assert section is not None
    assert "<details><summary>All 31 findings</summary>" in section.body
    assert '30 attacks on the product: <span class="good">holds</span>' in section.body
    assert '1 attacks on the product: <span class="bad">VIOLATED</span>' in section.body
    longest = re.findall(
        r'class="tick">([\d.]+)</text><text x="222" y="\d+" text-anchor="end"></text>', section.body
    )
    assert longest == ["3", "1.45", "1.4", "1.35"]


@pytest.mark.parametrize("words", [SEEDED, PEEKED])
def test_stamps_stand_above_everything(words: str, tmp_path: Path) -> None:
    stamps = () if words == SEEDED else (words,)
    artefacts.moments(seeded=words == SEEDED, stamps=stamps).save(tmp_path / "r")
    page = write_report(tmp_path / "r", tmp_path / "r.html").read_text()
    assert f'<div class="stamp" role="alert">{words}' in page
    assert page.index('class="stamp"') < page.index("<nav")


def test_an_unstamped_release_shows_no_stamp(tmp_path: Path) -> None:
    artefacts.moments(delta=Fraction(1, 10**5)).save(tmp_path / "r")
    page = write_report(tmp_path / "r", tmp_path / "r.html").read_text()
    assert 'class="stamp"' not in page
    assert "docs/proof-moments.md Theorem 2" in page


def test_where_nothing_is_proved_no_protection_is_described(tmp_path: Path) -> None:
    artefacts.noisy_records().save(tmp_path / "r")
    reader = read(write_report(tmp_path / "r", tmp_path / "r.html"))
    words = said(reader)
    assert (
        "No epsilon is proved for this release: the relevance network was trained on private records" in words
    )
    assert "-fold" not in words
    assert words.index("No epsilon is proved") < words.index("Contents")
    assert reader.ids == ["plain-words", "charges", "relevance", "allocation", "cite"]
    assert "Budget ratio of each feature" in words


def test_a_model_alone_takes_the_evaluation_beside_it_or_the_one_given(tmp_path: Path) -> None:
    release = artefacts.moments()
    artefacts.model(release).save(tmp_path / "m")
    assert "not measured" in write_report(tmp_path / "m", tmp_path / "1.html").read_text()
    (tmp_path / "evaluation.json").write_bytes(canonical(artefacts.EVALUATION))
    assert "0.8750" in write_report(tmp_path / "m", tmp_path / "2.html").read_text()
    page = write_report(tmp_path / "m", tmp_path / "3.html", evaluation={"accuracy": 0.5}).read_text()
    assert "0.5000" in page
    assert "0.8750" not in page


def test_a_report_of_the_same_artefacts_is_the_same_report(tmp_path: Path) -> None:
    artefacts.demo(tmp_path / "d")
    first = write_report(tmp_path / "d", tmp_path / "a.html").read_bytes()
    assert write_report(tmp_path / "d", tmp_path / "b.html").read_bytes() == first


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        write_report(tmp_path / "none", tmp_path / "r.html")
    with pytest.raises(UserError, match="holds no release and no model"):
        write_report(tmp_path, tmp_path / "r.html")
    artefacts.moments().save(tmp_path / "a")
    artefacts.moments().save(tmp_path / "b")
    with pytest.raises(UserError, match=r"artefacts of different releases \(a, b\)"):
        write_report(tmp_path, tmp_path / "r.html")
    with pytest.raises(UserError, match=r"an evaluation was given, but .* holds 0 models"):
        write_report(tmp_path / "a", tmp_path / "r.html", evaluation={"accuracy": 1.0})
    assert not (tmp_path / "r.html").exists()


def test_an_altered_artefact_gets_no_report(tmp_path: Path) -> None:
    artefacts.model(artefacts.moments()).save(tmp_path / "m")
    description = tmp_path / "m" / "model.json"
    description.write_bytes(description.read_bytes().replace(b'"epochs": 1', b'"epochs": 9'))
    with pytest.raises(UserError, match="was altered"):
        write_report(tmp_path / "m", tmp_path / "r.html")


def test_everything_that_is_not_markup_is_escaped() -> None:
    assert text('<a href="x">&') == "&lt;a href=&quot;x&quot;&gt;&amp;"
    assert tag("p", "<b>", tag("b", "<"), title='"') == '<p title="&quot;">&lt;b&gt;<b>&lt;</b></p>'
    assert text(Markup("<b>")) == "<b>"


def test_ticks_are_round_and_inside() -> None:
    assert nice(0, 100) == (0, 20, 40, 60, 80, 100)
    assert nice(0.3, 0.9) == pytest.approx((0.4, 0.6, 0.8))
    assert nice(2, 2) == (2,)


def test_large_maps_are_averaged_down_and_small_ones_kept() -> None:
    small = np.arange(12.0).reshape(3, 4)
    assert (thinned(small) == small).all()
    large = thinned(np.ones((300, 500)))
    assert large.size <= MOST_CELLS
    assert (large == 1).all()


def test_bars_and_cells_are_as_long_and_as_dark_as_their_values() -> None:
    widths = [
        float(w) for w in re.findall(r'width="([\d.]+)" height="16"', bars(["a", "b"], [1, 4], label=""))
    ]
    assert widths[1] == pytest.approx(4 * widths[0])
    shades = re.findall(r'fill-opacity="([\d.]+)"', heatmap(np.array([[0.0, 1.0, 2.0]]), label=""))
    assert [float(s) for s in shades] == [0, 0.5, 1]


def test_a_model_finds_the_release_beside_it_and_no_other(tmp_path: Path) -> None:
    release, other = artefacts.moments(), artefacts.moments()
    other.save(tmp_path / "a-other")
    artefacts.model(release).save(tmp_path / "m")
    assert "allocation" not in read(write_report(tmp_path / "m", tmp_path / "1.html")).ids
    release.save(tmp_path / "r")
    assert "allocation" in read(write_report(tmp_path / "m", tmp_path / "2.html")).ids


def test_the_command_writes_the_file_and_prints_the_totals(tmp_path: Path) -> None:
    artefacts.demo(tmp_path / "d")
    (tmp_path / "audit.json").write_text(json.dumps(artefacts.AUDIT))
    out = tmp_path / "report.html"
    words = [str(tmp_path / "d"), "--out", str(out), "--audit", str(tmp_path / "audit.json"), "--json"]
    ended = CliRunner().invoke(command(), words)
    assert ended.exit_code == 0
    told = json.loads(ended.stdout)
    assert told == {
        "out": str(out), "stamps": [SEEDED], "epsilon_claimed": 2.0, "epsilon_proved": 2.0, "delta": 0.0,
        "neighbours": "replace-one", "unproved": [],
    }  # fmt: skip
    assert "float Laplace" in out.read_text()


@pytest.mark.parametrize(
    ("content", "words"),
    [("[]", "must hold one JSON object"), ("{", "is not JSON"), (None, "cannot be read")],
)
def test_figures_that_cannot_be_read_are_one_sentence(
    content: str | None, words: str, tmp_path: Path
) -> None:
    artefacts.moments().save(tmp_path / "r")
    if content is not None:
        (tmp_path / "audit.json").write_text(content)
    ended = CliRunner().invoke(command(), [str(tmp_path / "r"), "--audit", str(tmp_path / "audit.json")])
    assert isinstance(ended.exception, UserError)
    assert words in str(ended.exception)


def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(report)
    return app


def shown(training: dict[str, object]) -> str:
    section = accuracy_section([Trained("M", training, {}, None, ())], ["no", "yes"])
    assert section is not None
    return str(section.body)


def test_the_report_says_when_a_model_is_mostly_noise() -> None:
    assert NOISE_EXCEEDS_SIGNAL in shown({"network": "linear", "warning": NOISE_EXCEEDS_SIGNAL})
    assert "noise" not in shown({"network": "linear"})


SVG = "{http://www.w3.org/2000/svg}"


def test_accuracy_rises_over_epsilons_that_stand_at_equal_factors(tmp_path: Path) -> None:
    accuracy_over_epsilon(tmp_path / "a.svg", [(4, 0.9, 0.01), (1, 0.5, 0.02), (2, 0.8, 0.01)], "forecast")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
    assert [x for x, _ in dots] == sorted(x for x, _ in dots)
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0], abs=0.1)
    assert dots[0][1] > dots[1][1] > dots[2][1]
    assert any("accuracy, % (forecast)" in (t.text or "") for t in root.iter(f"{SVG}text"))
    assert root.find(f"{SVG}style") is not None


def test_one_epsilon_can_be_drawn_and_none_cannot(tmp_path: Path) -> None:
    accuracy_over_epsilon(tmp_path / "a.svg", [(1, 0.5, 0.0)], "measured")
    ElementTree.parse(tmp_path / "a.svg")
    with pytest.raises(UserError, match="nothing to draw"):
        accuracy_over_epsilon(tmp_path / "b.svg", [], "measured")
    with pytest.raises(UserError, match=r"an \.svg file, got 'b\.png'"):
        accuracy_over_epsilon(tmp_path / "b.png", [(1, 0.5, 0.0)], "measured")


def test_a_logarithmic_axis_has_its_geometric_mean_in_the_middle() -> None:
    axis = logarithmic(0.1, 10, "", ())
    assert axis.at(1) == pytest.approx((axis.start + axis.stop) / 2, abs=0.01)
