"""No figure in the README disagrees with the result file that it comes from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.experiments.readme import main, rewritten

from adlm.errors import UserError

ROOT = Path(__file__).parent.parent
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_making_the_tables_anew_changes_nothing(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert rewritten(text, page.parent) == text, f"run: python -m benchmarks.experiments.readme {page}"


def summary(accuracy: float) -> dict[str, Any]:
    row = {
        "method": "moments", "label": "ours", "epsilon": 0.5, "epsilon_claimed": 0.5, "epsilon_proved": 0.5,
        "delta": 1e-5, "neighbours": "replace-one", "accuracy": accuracy, "sd": 0.001, "seeds": 5,
    }  # fmt: skip
    return {"kind": "frontier", "rows": [row, row | {"method": "psgd-tanh", "label": "theirs"}]}


def page(tmp_path: Path, accuracy: float, inside: str = "old") -> Path:
    (tmp_path / "summary.json").write_text(json.dumps(summary(accuracy)))
    readme = tmp_path / "README.md"
    readme.write_text(f"Before\n<!-- results: summary.json moments -->\n{inside}\n<!-- /results -->\nAfter\n")
    return readme


def test_a_changed_result_is_noticed_and_written(tmp_path: Path) -> None:
    readme = page(tmp_path, 0.978)
    assert main([str(readme), "--check"]) == 1
    assert main([str(readme)]) == 0
    text = readme.read_text()
    assert "| ours (replace-one) | 97.8 ± 0.1 |" in text
    assert "theirs" not in text
    assert re.match(r"Before\n.*After\n", text, re.DOTALL)
    assert main([str(readme), "--check"]) == 0
    (tmp_path / "summary.json").write_text(json.dumps(summary(0.9)))
    assert main([str(readme), "--check"]) == 1


def test_a_figure_typed_by_hand_is_noticed(tmp_path: Path) -> None:
    readme = page(tmp_path, 0.978)
    main([str(readme)])
    readme.write_text(readme.read_text().replace("97.8", "99.8"))
    assert main([str(readme), "--check"]) == 1


def test_an_open_block_and_a_missing_file_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a <!-- /results --> line"):
        rewritten("<!-- results: a.json -->\n", tmp_path)
    with pytest.raises(UserError, match="run the experiment first"):
        rewritten("<!-- results: a.json -->\n<!-- /results -->", tmp_path)


def test_a_word_stands_for_every_experiment_that_begins_with_it(tmp_path: Path) -> None:
    for name, accuracy in (("frontier-mnist", 0.97), ("frontier-digits", 0.85)):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(summary(accuracy) | {"title": name.title()}))
    text = rewritten("<!-- results: frontier moments -->\n<!-- /results -->", tmp_path)
    assert text.index("Frontier-Mnist:") < text.index("97.0 ± 0.1") < text.index("Frontier-Digits:")
    with pytest.raises(UserError, match="begin with 'paper'"):
        rewritten("<!-- results: paper -->\n<!-- /results -->", tmp_path)
