"""ARCHITECTURE.md names every package there is, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "adlm"
TOP = {"__init__", "__main__", "errors", "version"}


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
