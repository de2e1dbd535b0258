"""Documents hold: code and commands run, tests that proofs name exist, links lead somewhere."""

from __future__ import annotations

import contextlib
import csv
import doctest
import functools
import importlib
import io
import pkgutil
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import adlm
from adlm.domain.table import TableDomain

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[a-z ]+): (?P<reason>[^>]*?) -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block: what kind it is, what it holds, and what stands above it in a comment."""

    kind: str
    body: str
    line: int
    mark: str
    reason: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            m["kind"], m["body"], text[: m.start("body")].count("\n") + 1, m["mark"] or "", m["reason"] or ""
        )
        for m in BLOCK.finditer(text)
    ]


def runnable(page: Path) -> list[Block]:
    return [b for b in blocks(page) if b.kind in ("python", "console") and b.mark != "not run"]


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Pages read 400 digits, share relevance networks, and train for fewer steps by default."""
    from adlm.data import datasets
    from adlm.paper import algorithm1, relevance

    load = datasets.load

    def few(name: str, split: str = "train") -> datasets.Records:
        found = load(name, split)
        few = name == "digits" and split == "train"
        return replace(found, x=found.x[:400], y=found.y[:400]) if few else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load", few)
        shared = functools.cache(relevance.make_public)
        patch.setattr(relevance, "make_public", shared)
        patch.setattr(algorithm1, "make_public", shared)
        patch.setattr("adlm.model.training.ENOUGH_STEPS", 100)
        yield


def patients(n: int, seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    age = generator.integers(18, 100, n)
    smokes = generator.random(n) < 0.3
    town = generator.choice(["north", "south", "east", "west"], n)
    back = generator.random(n) < 1 / (1 + np.exp(-(age - 60) / 8 - 2 * smokes + 1 - (town == "south")))
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(generator.integers(0, 1400, n), "D")
    frame = pd.DataFrame(
        {
            "id": [f"p{i}" for i in generator.integers(0, 4 * n, n)],
            "age": age.astype(object),
            "town": town,
            "admitted": days.strftime("%Y-%m-%d"),
            "smokes": np.where(smokes, "yes", "no"),
            "back": np.where(back, "yes", "no"),
        }
    )
    frame.loc[frame.index % 50 == 0, "age"] = "?"
    return frame


def tables(page: Path) -> None:
    """The files of the guide to tables, with the domains that the page shows."""
    patients(3000, 0).to_csv("patients.csv", index=False)
    patients(1000, 1).to_csv("test.csv", index=False)
    patients(20, 2).drop(columns="back").to_csv("new.csv", index=False)
    declared = [b.body for b in blocks(page) if b.kind == "toml"]
    Path("patients.toml").write_text(declared[0])
    Path("stays.toml").write_text(declared[1])


def photographs(page: Path) -> None:
    """Pictures of three kinds of scene: 60 of each to release, 10 of each held out."""
    from adlm.features.priors import scenes

    classes, suffixes = ("coast", "forest", "street"), (".png", ".jpg", ".webp", ".tif")
    drawn, labels = scenes.draw(3, 70, torch.Generator().manual_seed(0), 32)
    sizes = np.random.default_rng(0).integers(33, 120, (len(drawn), 2))
    for i, (pixels, code) in enumerate(zip(drawn, labels, strict=True)):
        place = i % 70
        folder = Path("photos" if place < 60 else "held-out") / classes[int(code)]
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((pixels * 255).byte().permute(1, 2, 0).numpy())
        image = image.resize((int(sizes[i, 0]), int(sizes[i, 1])))
        image = image.convert("RGBA") if place % 8 == 0 else image
        image.save(folder / f"{place:03}-{code}{suffixes[place % 4]}")
    Path("new").mkdir()
    kept = next(Path("held-out/coast").glob("*.jpg")).read_bytes()
    Path("new/one.jpg").write_bytes(kept)
    Path("new.jpg").write_bytes(kept)


FILES: dict[str, Callable[[Path], None]] = {
    "guide-tables.md": tables,
    "guide-images.md": photographs,
}


def served_as_predicted(names: dict[str, Any], said: str) -> None:
    """Probabilities of the ONNX file that a guide serves are those that `adlm predict` wrote."""
    with Path("predictions.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    written = [value for key, value in rows[0].items() if key.startswith("probability of")]
    assert [float(value) for value in written] == pytest.approx(names["probabilities"][0].tolist(), abs=1e-5)


CHECKS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "guide-tables.md": served_as_predicted,
    "guide-images.md": served_as_predicted,
}
LEAST = {"guide-tables.md": 0.75, "guide-images.md": 0.5}  # accuracy that `adlm evaluate` prints


@pytest.mark.parametrize("page", [p for p in PAGES if runnable(p)], ids=lambda p: p.name)
def test_every_block_of_a_page_runs_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python blocks of a page share one namespace; commands share one folder, cache and ledger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ADLM_LEDGERS", str(tmp_path / "ledgers"))
    if page.name in FILES:
        FILES[page.name](page)
    names: dict[str, Any] = {"__name__": page.stem}
    printed = ""
    for block in runnable(page):
        where = f"{page.name}, line {block.line}"
        if block.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * block.line + block.body, str(page), "exec"), names)
            continue
        for line in filter(None, map(str.strip, block.body.splitlines())):
            code, out, said = command(line)
            printed += out
            if block.mark == "fails":
                assert code == 2, f"{where}: {line} should fail and did not"
                assert len(said.strip().splitlines()) == 1
            else:
                assert code == 0, f"{where}: {line} ended with {code}: {said}"
    if page.name in CHECKS:
        CHECKS[page.name](names, printed)
    if page.name in LEAST:
        accuracy = re.search(r"^accuracy ([01]\.\d+)", printed, re.M)
        assert accuracy
        assert float(accuracy[1]) > LEAST[page.name]


def command(line: str) -> tuple[int, str, str]:
    """Run a command in this process, as a shell would: its exit code, output and errors."""
    from adlm.cli import main

    words = shlex.split(line.removeprefix("$ "), comments=True)
    assert words[0] == "adlm", f"only adlm commands are run, got {line!r}"
    out, said, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = words
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        return int(end.code or 0), out.getvalue(), said.getvalue()
    finally:
        sys.argv = before
    return 0, out.getvalue(), said.getvalue()


def test_the_domains_of_the_guide_to_images_are_what_it_says() -> None:
    found = blocks(ROOT / "docs" / "guide-images.md")
    declared = TableDomain.from_toml(next(b.body for b in found if b.kind == "toml"))
    assert declared.domain.shape == (3, 32, 32)
    assert declared == TableDomain.of_domain(declared.domain)
    vectors = TableDomain.from_toml(next(b.body for b in found if "vector" in b.body and b.kind == "text"))
    assert (vectors.domain.shape, vectors.domain.lower, vectors.domain.upper) == ((384,), -1.0, 1.0)


@pytest.mark.parametrize("module", sorted({getattr(adlm, n).__module__ for n in adlm.__all__ if n[0] != "_"}))
def test_the_examples_of_the_public_surface_run(module: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert failed == 0


def test_blocks_that_do_not_run_say_why() -> None:
    assert all(len(b.reason) > 10 for page in PAGES for b in blocks(page) if b.mark == "not run")


@pytest.mark.parametrize("page", [p for p in PAGES if p.name.startswith("proof-")], ids=lambda p: p.name)
def test_every_test_that_a_proof_names_exists(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert not [name for name in named if f"def {name}(" not in written]


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("[AC]*.md"))], ids=lambda p: p.name)
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_name_that_the_paper_is_mapped_to_is_in_the_code() -> None:
    """`paper.networks.build` is adlm.paper.networks.build; `Budgets.split` is found by its class."""
    text = (ROOT / "docs" / "paper-to-code.md").read_text()
    dotted = set(re.findall(r"`([A-Za-z_]\w*(?:\.\w+)+)`", text)) - {"torch.optim"}
    single = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+|[A-Z]+(?:_[A-Z0-9]+)+|[A-Z][a-z]+[A-Z]\w+)`", text))
    assert len(dotted) > 50
    assert len(single) > 5
    modules = [module for found in _modules() if (module := _imported(found)) is not None]
    for name in sorted(dotted | single):
        parts = name.removeprefix("adlm.").removeprefix("benchmarks.").split(".")
        assert any(_leads(module, parts) for module in modules), f"the code has no {name}"


def _modules() -> list[str]:
    found = []
    for name in ("adlm", "benchmarks"):
        found.append(name)
        package = importlib.import_module(name)
        found += [module.name for module in pkgutil.walk_packages(package.__path__, f"{name}.")]
    return [name for name in found if not name.endswith("__main__")]


def _imported(name: str) -> Any:
    """The module; none for one that times another library which is not here."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "adlm").startswith("adlm"):
            raise
        return None


def _leads(start: Any, parts: list[str]) -> bool:
    """Whether attributes, or fields of a class, lead from a module along these names."""
    for part in parts:
        if not hasattr(start, part):
            return start is not None and part in getattr(start, "__annotations__", {}) and part == parts[-1]
        start = getattr(start, part)
    return True


def test_every_path_that_the_paper_is_mapped_to_exists() -> None:
    text = (ROOT / "docs" / "paper-to-code.md").read_text()
    paths = set(re.findall(r"`((?:tests|docs|results|examples|src)/[\w./-]+)`", text))
    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_the_architecture_names_every_room_and_files_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "src" / "adlm").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `adlm\.(\w+)` \|", text, re.MULTILINE)) == rooms
    paths = set(re.findall(r"`((?:\w+/)+\w+\.\w+)`", text))
    assert len(paths) > 20
    places = (ROOT, ROOT / "src" / "adlm")
    assert [path for path in sorted(paths) if not any((place / path).exists() for place in places)] == []


def test_every_row_that_maps_the_paper_has_a_verdict() -> None:
    """In the tables of the paper's own content; the last ones say why, or tell of the authors' code."""
    verdicts = ("exact", "deviates", "holds", "refuted", "reproduced", "not found")
    text = (ROOT / "docs" / "paper-to-code.md").read_text().partition("## Where the code departs")[0]
    for section in text.split("\n## ")[1:]:
        head, _, rest = section.partition("\n")
        rows = [line for line in rest.partition("\n### ")[0].splitlines() if line.startswith("| ")][2:]
        assert len(rows) > 5, head
        assert [row for row in rows if not any(word in row.split(" | ")[-1] for word in verdicts)] == []


def _numbers(text: str, word: str) -> set[int]:
    """1, 3, 4 and 5 of `Eq. 1`, `Eqs. 3-5`, in the first cell of a row."""
    found: set[int] = set()
    for first, last in re.findall(rf"^\| [^|]*?{word} ?(\d+)(?:-(\d+))?", text, re.MULTILINE):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_every_line_equation_lemma_and_figure_of_the_paper_has_a_row() -> None:
    """The corrected version has 30 lines in Algorithm 1, 39 equations, 7 lemmas, one theorem, 5 figures."""
    text = (ROOT / "docs" / "paper-to-code.md").read_text()
    assert _numbers(text, r"Eqs?\.") == set(range(1, 40))
    assert _numbers(text, "Lemma") == set(range(1, 8))
    assert _numbers(text, r"Fig\.") >= set(range(1, 6))
    assert {"Theorem 1", "Def. 1", *(f"Appendix {letter}" for letter in "ABCDEFG")} <= set(
        re.findall(r"Theorem \d|Def\. \d|Appendix [A-G]", text)
    )
    algorithm = text.partition("## Algorithm 1")[2].partition("\n## ")[0]
    assert _numbers(algorithm, "") == set(range(1, 31))


def test_the_documentation_builds_strictly(tmp_path: Path) -> None:
    """As `make docs` does; nothing is fetched, and no page asks for anything from outside."""
    mkdocs = pytest.importorskip("mkdocs", reason="the documentation needs mkdocs-material")
    assert mkdocs
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build(config)
    pages = list((tmp_path / "site").glob("*.html"))
    assert len(pages) >= 12
    from adlm.cli.app import COMMANDS

    reference = (tmp_path / "site" / "commands.html").read_text()
    headings = [f"adlm-{name.replace(' ', '-')}" for name, *_ in COMMANDS]
    assert [name for name in headings if f'id="{name}"' not in reference] == []
    assert reference.count("With --json") > 20
    for page in pages:
        fetched = re.findall(r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)"', page.read_text())
        fetched += re.findall(
            r'<link[^>]+rel="(?:stylesheet|preconnect|icon)"[^>]+href="(https?:[^"]+)"', page.read_text()
        )
        assert fetched == []
