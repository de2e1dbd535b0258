"""`adlm domain check` says that a file fits exactly when a release would read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.curator.tables import read_batches
from adlm.errors import UserError
from adlm.public.tables import TableDomain

TOML = """
[columns.id]
kind = "person"
records = 1
[columns.age]
kind = "numeric"
lower = 0
upper = 100
[columns.ill]
kind = "label"
classes = ["no", "yes"]
"""


def checked(folder: Path, file: Path) -> tuple[dict[str, Any], str]:
    (folder / "d.toml").write_text(TOML)
    words = ["domain", "check", str(folder / "d.toml"), str(file)]
    told = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout
    return json.loads(told), CliRunner().invoke(app, [*words, "--quiet"], catch_exceptions=False).stdout


@pytest.mark.parametrize(
    ("people", "sentence"),
    [
        (["p1", "p2", "p1"], "it fits the domain"),
        (["p1", "  ", None], "name no person would be refused (2 of them)"),
        ([], "needs at least one record"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_fits_if_a_release_would_read_it(
    tmp_path: Path, people: list[str | None], sentence: str, kind: str
) -> None:
    file = tmp_path / f"a.{kind}"
    n = len(people)
    data = pd.DataFrame({"id": pd.Series(people, dtype="string"), "age": [7] * n, "ill": ["no"] * n})
    data.to_csv(file, index=False) if kind == "csv" else data.to_parquet(file)
    figures, said = checked(tmp_path, file)
    assert sentence in said
    try:
        readable = bool(list(read_batches(file, TableDomain.from_toml(TOML))))
    except UserError:
        readable = False
    assert figures["fits"] is readable
    assert figures["unnamed"] == sum(not (name or "").strip() for name in people)
