"""Published figures stand beside ours, each with what its epsilon means and how far it can be believed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from adlm.ui import figures as published
from benchmarks.experiments import frontier_page

ROOT = Path(__file__).parents[3]


def summary(data: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / f"frontier-{data}" / "summary.json").read_text())
    return found


@pytest.mark.parametrize("data", published.DATA)
def test_every_row_has_all_columns_and_every_source_a_link(data: str) -> None:
    text = frontier_page.table(summary(data))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + len(frontier_page.OURS) + len(published.rows_of(data))
    for row in published.rows_of(data):
        assert f"{row.source}: {row.link}" in text
        (line,) = (line for line in lines if line.startswith(f"| {row.what} |"))
        assert row.status in line
        assert all(f"| {100 * share:.4g} " in line for share in row.accuracies.values())


def test_ours_are_the_means_of_the_results_with_their_seeds() -> None:
    found = summary("mnist")
    (row,) = (r for r in found["rows"] if r["method"] == "moments-pure" and r["epsilon"] == 0.5)
    (line,) = (
        x for x in frontier_page.table(found).splitlines() if x.startswith("| **AdLM moment release, pure**")
    )
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[3:6] == ["replace-one", "0", str(row["seeds"])]
    assert f"{100 * row['accuracy']:.1f} ± {100 * row['sd']:.1f}" in cells


def test_a_figure_of_ours_with_fewer_than_five_releases_is_left_out() -> None:
    found = summary("mnist")
    (row,) = (r for r in found["rows"] if r["method"] == "moments" and r["epsilon"] == 8)
    shown = f"{100 * row['accuracy']:.1f} ± {100 * row['sd']:.1f} |"

    def line() -> str:
        lines = frontier_page.table(found).splitlines()
        (own,) = (x for x in lines if x.startswith("| **AdLM moment release, delta 1e-5** |"))
        return own

    with_five = line().count(shown)
    row["seeds"] = 4
    assert line().count(shown) == with_five - 1


def test_a_picture_is_drawn_of_each_data_set(tmp_path: Path) -> None:
    for data in published.DATA:
        (tmp_path / f"frontier-{data}").mkdir()
        shutil.copy(ROOT / "results" / f"frontier-{data}" / "summary.json", tmp_path / f"frontier-{data}")
    assert frontier_page.main([str(tmp_path)]) == 0
    text = (tmp_path / "frontier-cifar10" / frontier_page.PICTURE).read_text()
    for words in ("published, disputed", "published, reproduced", "as stated for theirs"):
        assert words in text


def test_results_that_are_not_there_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frontier_page.main([str(tmp_path)]) == 2
    assert "summary.json" in capsys.readouterr().err
    assert frontier_page.main([]) == 2
