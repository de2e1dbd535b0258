"""The example notebooks run from top to bottom, as a kernel would run them, and show what they promise."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SHOWN = {
    "tour.ipynb": ("Plan of a release", "Release", "Ledger", "budget would be overspent", "Model",
                   "closed form: accuracy", "not proved: that noise was drawn", "Certificate"),
    "your-own-table.ipynb": ("Release", "budget would be overspent", "AdLMClassifier", "library_name"),
}  # fmt: skip


def outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; return what a notebook would keep of it: printed text, and its last value."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    kept: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        kept.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data = {"text/plain": repr(value)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_()
        kept.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return kept


def cells(notebook: Path) -> list[dict[str, Any]]:
    found = json.loads(notebook.read_text())
    assert found["nbformat"] == 4
    return [cell for cell in found["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.name)
def test_a_notebook_runs_and_shows_what_it_says(notebook: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [outputs("".join(cell["source"]), names) for cell in cells(notebook)]
    text = json.dumps(shown)
    assert [words for words in SHOWN[notebook.name] if words not in text] == []
    values = [o["data"] for kept in shown for o in kept if "data" in o]
    assert sum("text/html" in value for value in values) >= 2


def test_both_examples_are_there_and_keep_no_output_of_somebodys_machine() -> None:
    assert [path.name for path in NOTEBOOKS] == sorted(SHOWN)
    assert all(cell["outputs"] == [] for path in NOTEBOOKS for cell in cells(path))
