"""Documents hold: code and commands run, tests that proofs name exist, links lead somewhere."""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
RUN_ELSEWHERE = {  # on data that the test makes first
    "guide-tables.md": "test_guide_tables.py",
    "guide-images.md": "test_guide_images.py",
}
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[a-z ]+): (?P<reason>[^>]*?) -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.M | re.S
)
RUN = ("python", "console")


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
    return [b for b in blocks(page) if b.kind in RUN and b.mark != "not run"]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if runnable(p) and p.name not in RUN_ELSEWHERE], ids=lambda p: p.name
)
def test_every_block_of_a_page_runs_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python blocks of a page share one namespace; commands share one folder, cache and ledger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ADLM_LEDGERS", str(tmp_path / "ledgers"))
    names: dict[str, Any] = {"__name__": page.stem}
    for block in runnable(page):
        where = f"{page.name}, line {block.line}"
        if block.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * block.line + block.body, str(page), "exec"), names)
            continue
        for line in filter(None, map(str.strip, block.body.splitlines())):
            code, said = command(line)
            if block.mark == "fails":
                assert code == 2, f"{where}: {line} should fail and did not"
                assert len(said.strip().splitlines()) == 1
            else:
                assert code == 0, f"{where}: {line} ended with {code}: {said}"


def command(line: str) -> tuple[int, str]:
    """Run a command of the product in this process, as a person's shell would."""
    from adlm.cli import main

    words = shlex.split(line.removeprefix("$ "))
    assert words[0] == "adlm", f"only adlm commands are run, got {line!r}"
    said = io.StringIO()
    before = sys.argv
    sys.argv = words
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        return int(end.code or 0), said.getvalue()
    finally:
        sys.argv = before
    return 0, said.getvalue()


def test_blocks_that_do_not_run_say_why_and_are_few() -> None:
    skipped = [b for page in PAGES for b in blocks(page) if b.mark == "not run"]
    assert all(len(b.reason) > 10 for b in skipped)
    assert len(skipped) <= 6
    assert sum(len(runnable(page)) for page in PAGES) >= 12
    assert all(name in (ROOT / "tests" / test).read_text() for name, test in RUN_ELSEWHERE.items())


def test_no_block_is_of_a_kind_that_nobody_checks() -> None:
    """`sh` is for what a person does around the product: make, apt, and examples of single commands."""
    kinds = {b.kind for page in PAGES for b in blocks(page)}
    assert kinds <= {"python", "console", "sh", "toml", "json", "csv", "text", "bibtex"}


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
    """`paper.lrp.relevance` is adlm.paper.lrp.relevance; `Budgets.split` is found by its class."""
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
    import subprocess

    command_line = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    built = subprocess.run(command_line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list((tmp_path / "site").glob("*.html"))
    assert len(pages) >= 12
    from adlm.cli.app import COMMANDS

    reference = (tmp_path / "site" / "commands.html").read_text()
    assert [name for name, *_ in COMMANDS if f'id="adlm-{name}"' not in reference] == []
    for page in pages:
        fetched = re.findall(r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)"', page.read_text())
        fetched += re.findall(
            r'<link[^>]+rel="(?:stylesheet|preconnect|icon)"[^>]+href="(https?:[^"]+)"', page.read_text()
        )
        assert fetched == []
