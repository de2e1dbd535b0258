"""What the page shows: certificates, ledgers, audits, figures of others; and that it stands by itself."""

from __future__ import annotations

import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from tests.report import artefacts as sample
from tests.ui import made
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.errors import UserError
from adlm.privacy.ledger import Ledger, LedgerView
from adlm.runtime import progress
from adlm.ui import artefacts
from adlm.ui import figures as published
from adlm.ui.choices import Budget, declared, named, point
from adlm.ui.page import figures, gather, render
from adlm.ui.server import Server
from benchmarks import pages

ROOT = Path(__file__).parent.parent.parent
runner = CliRunner()


@pytest.fixture(autouse=True)
def quiet() -> None:
    progress.enable(False)


def test_measured_curves_are_those_of_the_results() -> None:
    """After new results: python -m benchmarks.pages --ui."""
    assert published.measured() == pages.measured_curves(ROOT / "results")


def test_every_figure_of_others_says_where_it_is_from() -> None:
    rows = published.rows()
    assert {row.status for row in rows} == set(published.STATUSES)
    assert all(row.source and row.link and row.accuracies for row in rows)
    assert all(0.2 < a < 1 for row in rows for a in row.accuracies.values())
    assert {row.relation for row in rows} <= {"", "replace-one", "add-remove"}
    assert any(row.status == "disputed" and row.what == "DPSUR" for row in rows)
    assert all(f.data == "cifar10" for f in published.of("cifar10"))
    assert {f.epsilon for f in published.of_paper("mnist")} == {0.25, 0.5}


def test_releases_of_one_folder_are_told_once_with_their_models(tmp_path: Path) -> None:
    folders, _ = made.everything(tmp_path)
    one, two = artefacts.artefacts(artefacts.subjects(folders))
    assert (one["name"], two["name"]) == ("one", "two")
    assert (one["proved"], one["delta"], one["private"]) == (2.0, 0.0, False)
    assert one["stamps"][0]["words"] == "NOT PRIVATE: seeded"
    assert one["models"][0]["accuracy"] == 0.875
    assert one["audit"]["summary"] == "1 attacks, none broke what is proved"
    assert (two["private"], two["audit"], two["models"]) == (True, None, [])
    assert [name for name, _ in one["facts"]] == [name for name, _ in two["facts"]]
    assert str(tmp_path) not in json.dumps([one, two])


def test_a_folder_of_different_releases_is_taken_apart(tmp_path: Path) -> None:
    for name, delta in (("a", 0), ("b", Fraction(1, 10**6))):
        sample.moments(delta=Fraction(delta)).save(tmp_path / name)
    found = artefacts.artefacts(artefacts.subjects([tmp_path]))
    assert [a["name"] for a in found] == ["a", "b"]
    with pytest.raises(UserError, match="holds no release"):
        artefacts.subjects([ROOT / "docs"])


def test_two_releases_of_the_same_records_are_composed(tmp_path: Path) -> None:
    folders, _ = made.everything(tmp_path)
    assert artefacts.pairs(artefacts.subjects(folders))["0 1"].startswith(
        "Of the same records, both together cost epsilon"
    )


def test_a_ledger_is_read_and_not_opened_for_writing(tmp_path: Path) -> None:
    _, path = made.everything(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"torn')  # a charge that was never acknowledged
    raw = path.read_bytes()
    path.chmod(0o400)
    (told,) = artefacts.ledgers([path])
    assert path.read_bytes() == raw
    assert (told["name"], told["spent"], told["budget"]) == (
        "ledger.jsonl",
        1.0,
        {"epsilon": 4.0, "delta": 1e-5},
    )
    path.chmod(0o600)
    book = Ledger(path)
    for delta, relation in (("0", "replace-one"), ("1e-5", "replace-one"), ("0", "add-remove")):
        left = book.left(Fraction(delta), relation)
        assert left is not None
        assert told["left"][f"{delta} {relation}"] == float(left)
    assert told["left"]["0 replace-one"] == 3.0
    assert not hasattr(LedgerView, "charge")


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), (b"hello\n", "is not an adlm ledger")]
)
def test_what_is_no_ledger_is_one_sentence(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "L.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        LedgerView.read(path)
    assert path.exists() == (content is not None)


def test_names_of_artefacts_cannot_end_the_script_that_holds_them(tmp_path: Path) -> None:
    folder = tmp_path / "</script><script>alert(1)</script>"
    sample.moments().save(folder)
    text = render(gather([folder], []), live=True)
    assert text.count("</script>") == 2
    assert "<script>alert" not in text


def test_the_static_page_holds_every_curve_and_asks_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adlm.ui.page.DELTAS", ("0", "1e-5"))
    folders, ledger = made.everything(tmp_path)
    out = tmp_path / "page.html"
    words = ["ui", *map(str, folders), "--ledger", str(ledger), "--static", str(out), "--json"]
    done = runner.invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"out": str(out), "bytes": out.stat().st_size}
    text = out.read_text()
    assert out.stat().st_size < 1_000_000
    assert re.findall(r"https?://[^\s\"'`]+", text) == ["http://www.w3.org/2000/svg"]
    assert "connect-src" not in text
    (raw,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    found = json.loads(raw)
    assert not found["live"]
    assert [c["key"] for c in found["choices"]] == [c.key for c in named()]
    for choice in found["choices"]:
        assert len(choice["curves"]) == len(found["deltas"]) * len(found["relations"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "is not a folder"),
        (["--domain", "d.toml"], "needs --size"),
        (["--size", "5"], "is for a --domain"),
        (["--domain", "nowhere.toml", "--size", "5"], "nowhere.toml cannot be read: No such file"),
        (["--ledger", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        runner.invoke(app, ["ui", *words, "--static", "p.html"], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_the_command_serves_until_it_is_stopped_and_prints_one_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.moments().save(tmp_path / "release")
    monkeypatch.chdir(tmp_path)
    pages = []

    def visit(server: Server) -> None:
        """Serve one request, then be stopped."""
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(urllib.request.urlopen, server.address, timeout=60)
            server.handle_request()
            with asked.result() as answer:
                pages.append(answer.read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", visit)
    done = runner.invoke(app, ["ui", "--no-browser", "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", json.loads(done.stdout)["address"])
    assert '"name":"release"' in pages[0]


def test_a_domain_is_shown_first_with_its_noise_and_without_a_forecast(tmp_path: Path) -> None:
    (tmp_path / "patients.toml").write_text(made.DOMAIN)
    shown = gather([], [], tmp_path / "patients.toml", 1000)
    first = figures(replace(shown, choices=shown.choices[:1]), live=False)["choices"][0]
    assert (first["title"], first["n"], first["named"]) == ("patients.toml", 1000, False)
    for relation in ("replace-one", "add-remove"):
        for delta in ("0", "1e-5"):
            points = first["curves"][f"{delta} {relation}"]
            noises = [p["noise"] for p in points]
            assert noises == sorted(noises, reverse=True)
            assert all(p["words"] and p["accuracy"] is None for p in points)


def test_a_numeric_target_is_measured_by_the_variance_that_is_explained() -> None:
    label = 'kind = "label"\nclasses = ["no", "yes"]'
    assert label in made.DOMAIN
    text = made.DOMAIN.replace(label, 'kind = "target"\nlower = 0\nupper = 14')
    choice = declared(text, "days.toml", 2000)
    assert (choice.classes, choice.to_dict()["measure"]) == ((), "R\u00b2")
    found = point(choice, 2000, Budget("3", "0", "replace-one"))
    assert found["accuracy"] is None
    assert found["noise"] > 0
    assert found["words"]


def test_a_domain_of_arrays_gets_lines_of_python_for_there_is_no_command(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text('shape = [4]\nlower = 0\nupper = 1\nclasses = ["a", "b"]\n')
    (choice, *_) = gather([], [], path, 100).choices
    assert (choice.origin, choice.file, choice.neighbours) == ("", str(path), "replace-one")
