"""`adlm domain`: a file fits exactly when a release would read it; drafts hold nothing of the records."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests.cli.commands import figures, run, runner
from tests.cli.commands import place as place
from tests.declared import AGE, AGE_COLUMN, DAYS, column

from adlm.cli.app import app
from adlm.data.reading import read_batches
from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.mechanism.privatise import privatise

TOML = column("id", "person", records=1) + AGE
RECORDS = "39, State-gov, 2020-01-02, no\n50, Private, 2020-05-06, yes\n"


@pytest.mark.parametrize(
    ("people", "sentence"),
    [
        (
            ["p1", "p2", "p1"],
            "it fits the domain (this output is not protected: it is for the data owner alone)",
        ),
        (["p1", "  ", None], "name no person would be refused (2 of them)"),
        ([], "needs at least one record"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_fits_if_a_release_would_read_it(
    place: Path, people: list[str | None], sentence: str, kind: str
) -> None:
    (place / "d.toml").write_text(TOML)
    file, n = place / f"a.{kind}", len(people)
    data = pd.DataFrame({"id": pd.Series(people, dtype="string"), "age": [7] * n, "ill": ["no"] * n})
    data.to_csv(file, index=False) if kind == "csv" else data.to_parquet(file)
    try:
        readable = bool(list(read_batches(file, TableDomain.from_toml(TOML))))
    except UserError:
        readable = False
    assert sentence in run("domain", "check", "d.toml", file, "--quiet", code=int(not readable))
    found = figures("domain", "check", "d.toml", file, code=int(not readable))
    assert found["fits"] is readable
    assert found["unnamed"] == sum(not (name or "").strip() for name in people)


@pytest.mark.parametrize("first", ["39,a,no", "a,2020-01-02,no", "a,,no", "a,?,no", "a,b,a"])
def test_a_first_line_that_looks_like_a_record_is_not_drafted(place: Path, first: str) -> None:
    (place / "r.csv").write_text(first + "\n" + RECORDS)
    for peek in ([], ["--peek"]):
        with pytest.raises(UserError, match=r"does not look like a header row \(cell.*--no-header") as told:
            run("domain", "init", "r.csv", "--out", "r.toml", *peek)
        assert not any(cell in str(told.value).split("(")[1] for cell in ("39", "2020", "no\n"))
        assert not (place / "r.toml").exists()
    if first != "a,b,a" and ",," not in first:
        run("domain", "init", "r.csv", "--out", f"{first}.toml", "--header")


def test_a_file_without_a_header_row_is_drafted_with_numbered_columns(place: Path) -> None:
    for name, delimiter in (("c", ","), ("s", ";")):
        (place / f"{name}.csv").write_text(RECORDS.replace(",", delimiter))
        start = ["domain", "init", f"{name}.csv", "--no-header", "--delimiter", delimiter]
        run(*start, "--out", f"{name}.toml", "--person", "column2")
        text = (place / f"{name}.toml").read_text()
        assert "header = false" in text
        assert [line for line in text.splitlines() if line.startswith("[")] == [
            f"[columns.column{i}]" for i in (1, 2, 3, 4)
        ]
        assert not any(cell in text for cell in ("39", "State", "no\n"))
        run(*start, "--out", f"{name}-peeked.toml", "--peek")
        table = TableDomain.load(place / f"{name}-peeked.toml")
        assert [c.kind for c in table.columns] == ["numeric", "categorical", "date", "label"]
        assert sum(len(b.y) for b in read_batches(place / f"{name}.csv", table)) == 2
    with pytest.raises(UserError, match="has no column 'y'") as told:
        run("domain", "init", "c.csv", "--out", "x.toml", "--no-header", "--label", "y")
    assert "State" not in str(told.value)
    pd.DataFrame({"a": [1]}).to_parquet(place / "q.parquet")
    with pytest.raises(UserError, match="leave out --no-header"):
        run("domain", "init", "q.parquet", "--no-header")


def test_a_peeked_domain_names_the_columns_that_it_leaves_out_and_stamps_its_releases(place: Path) -> None:
    rows = [f"{i % 7},name{i},{'inf' if i == 3 else i / 8},x{i % 200},{i % 2}" for i in range(3000)]
    (place / "many.csv").write_text("a,who,b,many,y\n" + "\n".join(rows) + "\n")
    run("domain", "init", "many.csv", "--out", "draft.toml")
    assert "name1" not in (place / "draft.toml").read_text()
    with pytest.raises(UserError, match="the label needs at least two classes"):
        TableDomain.load(place / "draft.toml")
    found = figures("domain", "init", "many.csv", "--peek", "--out", "many.toml")
    assert found["ignored"] == ["who", "b"]
    table = TableDomain.load(place / "many.toml")
    kinds = {column.name: column.kind for column in table.columns}
    assert kinds["many"] == "categorical"  # 200 values in 3,000 records
    assert TableDomain.from_toml(table.to_toml()) == table
    release = privatise(place / "many.csv", domain=table, epsilon=1, seed=0)
    assert "NOT PRIVATE: bounds learnt from data" in release.certificate.stamps


@pytest.mark.parametrize(
    ("days", "told"),
    [
        (column("days", "target"), "the target needs public bounds"),
        (column("days", "target", lower=0, upper=0), "upper must exceed lower"),
        (column("days", "numeric", lower=0, upper=20), "declare one column of kind label"),
        (DAYS + column("back", "label", classes=("no", "yes")), "declare one column of kind label"),
        (DAYS + "missing = 25\n", "missing must lie between"),
    ],
)
def test_wrong_declarations_of_a_target_are_one_sentence(days: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        TableDomain.from_toml(AGE_COLUMN + days)


def test_a_target_is_declared_once_and_has_no_classes() -> None:
    table = TableDomain.from_toml(AGE_COLUMN + DAYS + "missing = 5\n")
    assert TableDomain.from_toml(table.to_toml()) == table
    assert Domain.from_dict(table.domain.to_dict()) == table.domain
    with pytest.raises(UserError, match="numeric target"):
        _ = table.label
    with pytest.raises(UserError, match="no classes"):
        Domain((1,), 0, 1, ("a", "b"), target=(0, 1))


def test_records_without_a_label_are_named_by_peeking_and_by_checking(
    place: Path,
) -> None:
    (place / "gaps.csv").write_text("age,ill\n30,yes\n41,no\n52,\n53,NA\n")
    told = runner.invoke(app, ["domain", "init", "gaps.csv", "--peek", "--out", "gaps.toml"])
    assert "2 records without a label would be refused" in told.stderr
    checked = run("domain", "check", "gaps.toml", "gaps.csv", code=1)
    assert "empty (1), NA (1)" in checked
    text = (place / "gaps.toml").read_text()
    (place / "gaps.toml").write_text(text.replace('kind = "label"', 'kind = "label"\nmissing = "no"'))
    assert "it fits the domain" in run("domain", "check", "gaps.toml", "gaps.csv")
