"""A report says what its artefacts say, escaped; it fetches nothing, and refuses what was altered."""

from __future__ import annotations

import re
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.cli.commands import figures
from tests.declared import AGE_COLUMN, ILL, TOWN
from tests.report import artefacts
from torch import nn

from adlm import TrainingConfig, UserError, fit, privatise
from adlm.data import datasets
from adlm.model.closed_form import NOISE_EXCEEDS_SIGNAL
from adlm.privacy.certificate import PEEKED, SEEDED
from adlm.privacy.signature import OF_RELEASE, fingerprint
from adlm.report import write_report
from adlm.report.html import MOST_CELLS, Markup, bars, heatmap, nice, tag, text, thinned
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


def said(reader: Reader) -> str:
    return " ".join("".join(reader.words).split())


def page_of(folder: Path) -> str:
    return write_report(folder, folder.with_suffix(".html")).read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return artefacts.demo(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def demo(place: Path) -> Reader:
    first = write_report(place, place / "report.html")
    assert write_report(place, place / "again.html").read_bytes() == first.read_bytes()
    return read(first)


def test_every_part_is_there_with_its_pictures_and_nothing_is_fetched_or_runs(demo: Reader) -> None:
    assert demo.ids == ["plain-words", "charges", "allocation", "accuracy", "audit", "cite"]
    assert [r for r in demo.references if r.startswith("#")] == [f"#{name}" for name in demo.ids]
    assert demo.tags.count("svg") == demo.tags.count("figure") == 8
    assert demo.tags.count("svg") == demo.tags.count("title") - 1
    assert "script" not in demo.tags
    assert {r for r in demo.references if not r.startswith("#")} == {"data:,"}


def test_the_figures_are_those_of_the_artefacts(demo: Reader) -> None:
    words, spaced = said(demo), " ".join(demo.words)
    for part in (
        "<script>x()</script>",  # the name of a class: it is shown, and no element came of it
        "epsilon 2, neighbours replace-one",
        "7.39-fold",
        "87.5%",
        "held-out records, test (31 records)",
        "Hardest class: dog, 81.8% right",
        "docs/proof-moments.md Theorem 1",
        "arXiv:1709.05750",
    ):
        assert part in words
    for part in (
        "model-1 linear 1 0.875",
        "model-100 linear 100 0.875",
        "class sums replace-one distinguishing 2 1.9 100000 holds",
        "float Laplace replace-one control 1 unbounded 1000 violated",
    ):
        assert part in spaced
    assert re.search(r"adlm verify demo\d+/release adlm release", words)
    assert "/tmp" not in words


def test_the_command_writes_the_file_and_prints_the_totals(place: Path) -> None:
    found = figures("report", place, "--out", place / "r.html")
    stated = {"epsilon_claimed": 2.0, "epsilon_proved": 2.0, "delta": 0.0, "neighbours": "replace-one"}
    assert found == stated | {"out": str(place / "r.html"), "stamps": [SEEDED], "unproved": []}


def test_a_long_audit_is_folded_under_its_count_with_the_nearest_attack_of_each_mechanism() -> None:
    first = artefacts.AUDIT["findings"][0]
    many = [dict(first) | {"epsilon_lower": 0.05 * i, "mechanism": f"m{i % 3}"} for i in range(30)]
    section = audit_section(
        {"findings": [*many, dict(first) | {"verdict": "VIOLATED", "epsilon_lower": 3.0}]}
    )
    assert section is not None
    assert "<details><summary>All 31 findings</summary>" in section.body
    assert '30 attacks on the product: <span class="good">holds</span>' in section.body
    assert '1 attack on the product: <span class="bad">VIOLATED</span>' in section.body
    longest = re.findall(
        r'class="tick">([\d.]+)</text><text x="222" y="\d+" text-anchor="end"></text>', section.body
    )
    assert longest == ["3", "1.45", "1.4", "1.35"]


@pytest.mark.parametrize("words", [SEEDED, PEEKED])
def test_stamps_stand_above_everything(words: str, tmp_path: Path) -> None:
    stamps = () if words == SEEDED else (words,)
    artefacts.moments(seeded=words == SEEDED, stamps=stamps).save(tmp_path / "r")
    page = page_of(tmp_path / "r")
    assert f'<div class="stamp" role="alert">{words}' in page
    assert page.index('class="stamp"') < page.index("<nav")


def test_a_report_names_who_signed_the_release_and_shows_no_stamp_without_one(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    release = artefacts.moments(delta=Fraction(1, 10**5))
    release.save(tmp_path / "unsigned")
    page = page_of(tmp_path / "unsigned")
    assert "nobody" in page
    assert 'class="stamp"' not in page
    assert "docs/proof-moments.md Theorem 2" in page
    release.signed(key).save(tmp_path / "signed")
    fit(release.signed(key)).save(tmp_path / "model")
    for name in ("signed", "model"):
        page = page_of(tmp_path / name)
        assert fingerprint(key.public_key()) in page
        assert release.certificate.digest in page
    altered = (tmp_path / "model" / OF_RELEASE).read_text().replace('"kind": "release"', '"kind": "model"')
    (tmp_path / "model" / OF_RELEASE).write_text(altered)
    with pytest.raises(UserError, match="does not hold"):
        page_of(tmp_path / "model")


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


def test_a_model_takes_the_evaluation_and_the_release_beside_it_and_no_other(tmp_path: Path) -> None:
    release, other = artefacts.moments(), artefacts.moments()
    other.save(tmp_path / "a-other")
    artefacts.model(release).save(tmp_path / "m")
    page = page_of(tmp_path / "m")
    assert "not measured" in page
    assert 'id="allocation"' not in page
    release.save(tmp_path / "r")
    (tmp_path / "evaluation.json").write_bytes(canonical(artefacts.EVALUATION))
    page = page_of(tmp_path / "m")
    assert 'id="allocation"' in page
    assert "0.875" in page
    (tmp_path / "m" / "evaluation.json").write_bytes(canonical({"accuracy": 0.5}))
    assert "0.875" not in page_of(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("evaluation.json", '{"foo": 1}', "give a file that adlm"),
        ("evaluation.json", '{"accuracy": "x", "confusion": [[1]]}', "give a file that adlm"),
        ("evaluation.json", '{"accuracy": 0.5, "confusion": [[1, 2]]}', "give a file that adlm"),
        ("audit.json", '{"foo": 1}', "give a file that adlm"),
        ("audit.json", '{"findings": [{"a": 1}]}', "give a file that adlm"),
        ("audit.json", "[]", "must hold one JSON object"),
        ("audit.json", "{", "JSON"),
    ],
)
def test_a_report_takes_no_other_files_for_figures(
    name: str, content: str, words: str, tmp_path: Path
) -> None:
    artefacts.model(artefacts.moments()).save(tmp_path / "m")
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=words) as told:
        page_of(tmp_path / "m")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "m.html").exists()


def test_what_does_not_belong_together_or_was_altered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        write_report(tmp_path / "none", tmp_path / "r.html")
    with pytest.raises(UserError, match="holds no release and no model"):
        write_report(tmp_path, tmp_path / "r.html")
    artefacts.moments().save(tmp_path / "a")
    artefacts.model(artefacts.moments()).save(tmp_path / "b")
    with pytest.raises(UserError, match=r"artefacts of different releases \(a, b\)"):
        write_report(tmp_path, tmp_path / "r.html")
    description = tmp_path / "b" / "model.json"
    description.write_bytes(description.read_bytes().replace(b'"epochs": 1', b'"epochs": 9'))
    with pytest.raises(UserError, match="was altered"):
        write_report(tmp_path / "b", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_noise_is_called_what_it_is_and_a_weak_budget_is_stamped(tmp_path: Path) -> None:
    train = datasets.load("digits", "train")
    x, y = train.x[:200], train.y[:200]
    privatise(x, y, domain=train.domain, epsilon=4, k=8, allocation="linear").save(tmp_path / "linear")
    assert "Noise over the features: adaptive." in page_of(tmp_path / "linear")
    release = privatise(x, y, domain=train.domain, epsilon=200, k=8)
    release.save(tmp_path / "weak")
    page = page_of(tmp_path / "weak")
    for words in ("Noise over the features: identical.", "NOT PRIVATE: epsilon above 100", "is not private"):
        assert words in page
    head = nn.Linear(release.features().width, 10)
    fit(release, head, TrainingConfig(epochs=1, batch_size=100), draws=200).save(tmp_path / "m")
    assert "was not declared" in page_of(tmp_path / "m")


def test_a_table_is_made_again_from_its_file_and_its_domain(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ages, towns = rng.integers(0, 100, 400), rng.choice(list("abc"), 400)
    lines = [f"{a},{t},{'yes' if a > 50 else 'no'}" for a, t in zip(ages, towns, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["age,town,ill", *lines]) + "\n")
    (tmp_path / "t.toml").write_text(AGE_COLUMN + TOWN + ILL)
    file, domain = tmp_path / "t.csv", tmp_path / "t.toml"
    release = privatise(file, domain=domain, epsilon=4, fourier=3)
    release.save(tmp_path / "r")
    page = page_of(tmp_path / "r")
    assert "adlm release TABLE.csv --domain DOMAIN.toml --epsilon 4" in page
    assert "--fourier 3" in page
    assert "--data" not in page
    assert "Noise over the features: identical." in page
    assert all(charge.what in page for charge in release.certificate.charges)
    privatise(file, domain=domain, epsilon=4, neighbours="add-remove", size=400).save(tmp_path / "a")
    assert "--size GUESS" in page_of(tmp_path / "a")


def test_the_report_says_when_a_model_is_mostly_noise() -> None:
    for warning in (NOISE_EXCEEDS_SIGNAL, ""):
        training = {"network": "linear", "warning": warning}
        section = accuracy_section([Trained("M", training, {}, None, ())], ["no", "yes"])
        assert section is not None
        assert (NOISE_EXCEEDS_SIGNAL in section.body) == bool(warning)


def test_everything_that_is_not_markup_is_escaped() -> None:
    assert text('<a href="x">&') == "&lt;a href=&quot;x&quot;&gt;&amp;"
    assert tag("p", "<b>", tag("b", "<"), title='"') == '<p title="&quot;">&lt;b&gt;<b>&lt;</b></p>'
    assert text(Markup("<b>")) == "<b>"


def test_pictures_are_as_long_and_as_dark_as_their_values() -> None:
    assert nice(0, 100) == (0, 20, 40, 60, 80, 100)
    assert nice(0.3, 0.9) == pytest.approx((0.4, 0.6, 0.8))
    assert nice(2, 2) == (2,)
    drawn = bars(["a", "b"], [1, 4], label="")
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="16"', drawn)]
    assert widths[1] == pytest.approx(4 * widths[0])
    shades = re.findall(r'fill-opacity="([\d.]+)"', heatmap(np.array([[0.0, 1.0, 2.0]]), label=""))
    assert [float(s) for s in shades] == [0, 0.5, 1]
    small, large = np.arange(12.0).reshape(3, 4), thinned(np.ones((300, 500)))
    assert (thinned(small) == small).all()
    assert large.size <= MOST_CELLS
    assert (large == 1).all()
