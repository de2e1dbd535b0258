"""`adlm domain check` says that a file fits exactly when a release would read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.declared import AGE, column
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.data.reading import read_batches
from adlm.domain.table import TableDomain
from adlm.errors import UserError

TOML = column("id", "person", records=1) + AGE


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


RECORDS = "39, State-gov, 2020-01-02, no\n50, Private, 2020-05-06, yes\n"


def asked(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("first", ["39,a,no", "a,2020-01-02,no", "a,,no", "a,?,no", "a,b,a"])
def test_a_first_line_that_looks_like_a_record_is_not_drafted(tmp_path: Path, first: str) -> None:
    (tmp_path / "r.csv").write_text(first + "\n" + RECORDS)
    for peek in ([], ["--peek"]):
        told = asked("domain", "init", tmp_path / "r.csv", "--out", tmp_path / "r.toml", *peek)
        assert told.exit_code != 0
        assert isinstance(told.exception, UserError)
        assert "does not look like a header row (cell" in str(told.exception)
        assert "--no-header" in str(told.exception)
        assert not any(cell in str(told.exception).split("(")[1] for cell in ("39", "2020", "no\n"))
        assert not (tmp_path / "r.toml").exists()
    if first != "a,b,a" and ",," not in first:
        told = asked("domain", "init", tmp_path / "r.csv", "--out", tmp_path / "r.toml", "--header")
        assert told.exit_code == 0


def test_a_file_without_a_header_row_is_drafted_with_numbered_columns(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(RECORDS)
    (tmp_path / "s.csv").write_text(RECORDS.replace(",", ";"))
    for name, more in (("r", []), ("s", ["--delimiter", ";"])):
        out = tmp_path / f"{name}.toml"
        start = ["domain", "init", tmp_path / f"{name}.csv", "--no-header", *more]
        told = asked(*start, "--out", out, "--person", "column2")
        assert told.exit_code == 0, told.output
        text = out.read_text()
        assert "header = false" in text
        assert [line for line in text.splitlines() if line.startswith("[")] == [
            f"[columns.column{i}]" for i in (1, 2, 3, 4)
        ]
        assert not any(cell in text for cell in ("39", "State", "no\n"))
        peeked = tmp_path / f"{name}-peeked.toml"
        assert asked(*start, "--out", peeked, "--peek").exit_code == 0
        table = TableDomain.load(peeked)
        assert [c.kind for c in table.columns] == ["numeric", "categorical", "date", "label"]
        assert sum(len(b.y) for b in read_batches(tmp_path / f"{name}.csv", table)) == 2
    told = asked(
        "domain", "init", tmp_path / "r.csv", "--out", tmp_path / "x.toml", "--no-header", "--label", "y"
    )
    assert "has no column 'y'" in str(told.exception)
    assert "State" not in str(told.exception)
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "a.parquet")
    told = asked("domain", "init", tmp_path / "a.parquet", "--no-header")
    assert "leave out --no-header" in str(told.exception)


def test_a_check_says_that_its_output_is_not_protected(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,age,ill\np,7,no\n")
    _, said = checked(tmp_path, tmp_path / "a.csv")
    assert "this output is not protected: it is for the data owner alone" in " ".join(said.split())
    shown = asked("domain", "check", "--help").output
    assert "none of it is private" not in shown


def test_a_plan_of_a_table_draws_its_picture(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text(TOML)
    words = ["plan", "--domain", tmp_path / "d.toml", "--size", 200, "--epsilon", "1,3"]
    assert asked(*words, "--picture", tmp_path / "p.svg").exit_code == 0
    assert "<svg" in (tmp_path / "p.svg").read_text()
    told = asked(*words, "--picture", tmp_path / "p.txt")
    assert "a picture is an .svg file" in str(told.exception)


def test_a_peeked_domain_names_the_columns_that_it_leaves_out(tmp_path: Path) -> None:
    rows = [f"{i % 7},name{i},{'inf' if i == 3 else i / 8},x{i % 200},{i % 2}" for i in range(3000)]
    (tmp_path / "r.csv").write_text("a,who,b,many,y\n" + "\n".join(rows) + "\n")
    start = ("domain", "init", tmp_path / "r.csv", "--peek", "--out")
    told = asked(*start, tmp_path / "r.toml")
    assert told.exit_code == 0
    assert told.output.strip().endswith("dates: who, b")
    figures = json.loads(asked(*start, tmp_path / "s.toml", "--json").output)
    assert figures["ignored"] == ["who", "b"]
    kinds = {column.name: column.kind for column in TableDomain.load(tmp_path / "r.toml").columns}
    assert kinds["many"] == "categorical"  # 200 values in 3,000 records


def test_a_draft_holds_nothing_of_the_cells_and_a_peeked_domain_stamps_its_releases(tmp_path: Path) -> None:
    from adlm.data.drafts import draft, peek
    from adlm.domain.table import TableDomain
    from adlm.mechanism.privatise import privatise

    file = tmp_path / "p.csv"
    rows = [
        f"p{i},{20 + i % 60},{'south' if i % 3 else 'north'},{'yes' if i % 2 else 'no'}" for i in range(400)
    ]
    file.write_text("\n".join(["id,age,town,back", *rows]) + "\n")
    text = draft(file, label="back", person="id")
    assert "south" not in text
    with pytest.raises(UserError, match="the label needs at least two classes"):
        TableDomain.from_toml(text)
    table = peek(file, label="back", person="id")
    assert TableDomain.from_toml(table.to_toml()) == table
    release = privatise(file, domain=table, epsilon=1, seed=0)
    assert "NOT PRIVATE: bounds learnt from data" in release.certificate.stamps
