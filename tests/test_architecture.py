"""ARCHITECTURE.md names every package there is, and none that there is not."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import house

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "adlm"
TOP = {"__init__", "__main__", "algorithm1", "errors", "version"}


def packages() -> dict[str, Path]:
    """Every package by its dotted name: those of the wheel, and those of the checkout alone."""
    found = {}
    for base in (PACKAGE, ROOT / "benchmarks"):
        for path in base.rglob("__init__.py"):
            found[".".join(path.parent.relative_to(base.parent).parts)] = path
    del found["adlm"]
    return found


def test_the_page_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    listed = set(re.findall(r"^\| `((?:adlm\.|benchmarks)[\w.]*)` \|", text, re.M))
    assert listed == set(packages())


def test_only_a_handful_of_modules_lie_on_top() -> None:
    assert {p.stem for p in PACKAGE.glob("*.py")} == TOP


def test_every_package_says_what_it_is() -> None:
    for name, path in packages().items():
        assert path.read_text().startswith('"""'), name


def test_the_counts_that_the_page_quotes_are_true(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and small counts exactly; the numbers of functions, modules and lines within 3 %."""
    house.main()
    printed = capsys.readouterr().out.splitlines()
    text = (ROOT / "ARCHITECTURE.md").read_text()
    quoted = (
        text.partition("`python benchmarks/house.py` prints:\n\n```text\n")[2]
        .partition("```")[0]
        .splitlines()
    )
    assert [re.sub(r"\d+", "N", line) for line in quoted] == [re.sub(r"\d+", "N", line) for line in printed]
    for said, true in zip(quoted, printed, strict=True):
        numbers = zip(re.findall(r"\d+", said), re.findall(r"\d+", true), strict=True)
        assert all(abs(int(a) - int(b)) <= 0.03 * int(b) for a, b in numbers), f"{said!r} is now {true!r}"


def test_a_record_walks_straight_through_the_packages() -> None:
    """At most 40 changes of package, and at most two round trips between any two; the page says how many."""
    done = subprocess.run(  # in a process of its own, where nothing was called or cached before
        [sys.executable, str(ROOT / "benchmarks" / "walk.py"), "digits"],
        capture_output=True,
        text=True,
        check=True,
    )
    said = re.search(r"digits: (\d+) changes of package, 0 through the top", done.stdout)
    assert said is not None
    assert int(said[1]) <= 40
    times = [int(found) for found in re.findall(r"^ +(\d+) between ", done.stdout, re.M)]
    assert times
    assert max(times) <= 4
    text = " ".join((ROOT / "ARCHITECTURE.md").read_text().split())
    assert f"with `digits` (no second moments) the number is {said[1]}" in text


def test_the_walk_that_the_page_shows_has_as_many_changes_as_it_says() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    shown = re.search(r"```text\n(runtime →[^`]*)```", text)
    said = re.search(r"mnist: (\d+) changes of package", text)
    assert shown is not None
    assert said is not None
    packages = re.split(r"\s*→\s*", shown[1].strip())
    assert len(packages) - 1 == int(said[1]) <= 40
    pairs = Counter(frozenset(pair) for pair in itertools.pairwise(packages))
    assert max(pairs.values()) <= 4
