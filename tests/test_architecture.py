"""ARCHITECTURE.md names every package there is, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "adlm"
TOP = {"__init__", "__main__", "algorithm1", "errors", "version"}


def packages() -> set[str]:
    found = {p.parent.relative_to(PACKAGE.parent) for p in PACKAGE.rglob("__init__.py")}
    return {".".join(path.parts) for path in found} - {"adlm"}


def test_the_page_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    listed = set(re.findall(r"^\| `(adlm\.[\w.]+)` \|", text, re.M))
    assert listed == packages()


def test_only_a_handful_of_modules_lie_on_top() -> None:
    assert {p.stem for p in PACKAGE.glob("*.py")} == TOP


def test_every_package_says_what_it_is() -> None:
    for name in packages():
        text = (PACKAGE.parent / name.replace(".", "/") / "__init__.py").read_text()
        assert text.startswith('"""'), name
