"""Statements about rows of CSV files: each is one record or an error, and none reaches into the next."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from tests.declared import AGE_COLUMN, ILL, column

from adlm.data import csv as files
from adlm.data.csv import Dialect, Lines
from adlm.data.drafts import check
from adlm.data.reading import read_batches
from adlm.domain.table import TableDomain
from adlm.errors import UserError

TOML = AGE_COLUMN + column("town", "categorical", values=("a", "b"), other="rest") + ILL
LENIENT = TOML.replace("upper = 100", 'upper = 100\nmissing = "category"').replace(
    'other = "rest"', 'other = "rest"\nmissing = "category"'
).replace('["no", "yes"]', '["no", "yes"]\nmissing = "no"')  # fmt: skip
RECORDS = ["10,a,no", "20,b,yes", "30,a,no", "40,b,yes", "50,a,no"]


def read(folder: Path, text: str, toml: str, **options: bool) -> list[tuple[float, ...]]:
    (folder / "t.csv").write_bytes(text.encode())
    table = TableDomain.from_toml(toml)
    return [
        (*x, y)
        for batch in read_batches(folder / "t.csv", table, **options)
        for x, y in zip(batch.x.tolist(), batch.y.tolist(), strict=True)
    ]


def cells_of(line: str, quote: str) -> int:
    """Count cells by hand, -1 for a misplaced quote: the slow twin."""
    cells, at = 1, 0
    while True:
        if quote and line[at : at + 1] == quote:
            at += 1
            while True:
                if at >= len(line):
                    return -1
                if line[at] == quote:
                    at += 1
                    if line[at : at + 1] != quote:
                        break
                at += 1
            if at < len(line) and line[at] != ",":
                return -1
        else:
            while at < len(line) and line[at] != ",":
                if quote and line[at] == quote:
                    return -1
                at += 1
        if at >= len(line):
            return cells
        cells, at = cells + 1, at + 1


def lines_of(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


@pytest.mark.parametrize("quote", ['"', "'", ""])
def test_rows_are_counted_as_by_hand_whatever_the_block(quote: str) -> None:
    rng = random.Random(7)
    for _ in range(200):
        text = "".join(rng.choices(["a", ",", '"', "'", "\n", "\r", "\r\n", '""', '","', " "], k=40))
        expected = [cells_of(line, quote) for line in lines_of(text)]
        for block in (1, 3, 16, 1000):
            lines = Lines(Path("t.csv"), io.BytesIO(text.encode()), block)
            rows = list(lines.rows(Dialect(",", quote, 3)))
            assert [int(n) for r in rows for n in r.cells] == expected, (text, block)
            whole = b"".join(r.data for r in rows).decode()
            kept = [line for line in lines_of(text) if cells_of(line, quote) == 3]
            assert lines_of(whole) == kept


@pytest.mark.parametrize("hostile", [
    '60,"a,no', '"60,a,no', '60,a,"no', '60,a",no', '60,a,no"', '"60,a,no"', '60,"a"b,no', '60,a', '60,a,no,',
    "", " ", '"', '""', '60,"a\n",no', "60,\ra,no", "60,a,no\n70,a",
])  # fmt: skip
def test_a_bad_row_is_an_error_that_names_it_or_a_record_of_missing_values(
    tmp_path: Path, hostile: str
) -> None:
    lines = [*RECORDS[:2], hostile, *RECORDS[3:]]
    text = "age,town,ill\n" + "\n".join(lines) + "\n"
    with pytest.raises(UserError, match=r"t\.csv: row [34] (has|is empty)"):
        read(tmp_path, text, TOML)
    whole = read(tmp_path, "age,town,ill\n" + "\n".join(RECORDS) + "\n", LENIENT)
    found = read(tmp_path, text, 'bad_rows = "missing"\n' + LENIENT)
    parts = hostile.replace("\r", "\n").count("\n") + 1
    assert len(found) == 4 + parts
    assert found[:2] == whole[:2]
    assert found[2 + parts :] == whole[3:]
    if hostile == "":
        assert found[2] == (0, 1, 0, 0, 0, 1, 0)


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("hostile", ['60,"a', "#60", "'60", "60;a;no", '"60"'])
def test_no_first_record_decides_how_the_others_are_read(tmp_path: Path, header: bool, hostile: str) -> None:
    """Without a header row the dialect is declared or the default; a first record changes nothing."""
    toml = f'header = {str(header).lower()}\ncomment = "#"\n' + TOML
    top = "age,town,ill\n" if header else ""
    whole = read(tmp_path, top + "\n".join(RECORDS), toml)
    for record in (hostile + ",a,no", hostile):
        try:
            found = read(tmp_path, top + "\n".join([record, *RECORDS[1:]]), toml)
        except UserError:
            continue
        assert found[1:] == whole[1:]
        assert len(found) == len(whole)


def test_a_comment_mark_hides_no_record(tmp_path: Path) -> None:
    """Comments stand above the header row; below it, a line that starts with the mark is a record."""
    toml = 'comment = "#"\n' + TOML.replace(
        'kind = "numeric"\nlower = 0\nupper = 100', 'kind = "categorical"\nvalues = ["1"]\nother = "rest"'
    )
    text = "# made by hand\n\n#\nage,town,ill\n1,a,no\n#1,a,yes\n"
    assert [row[-1] for row in read(tmp_path, text, toml)] == [0, 1]
    bare = "header = false\n" + toml
    assert [row[-1] for row in read(tmp_path, "#1,a,yes\n1,a,no\n", bare)] == [1, 0]
    with pytest.raises(UserError, match="row 1 has 1 cells, 3 are expected; comment lines of a file"):
        read(tmp_path, "# a comment\n1,a,no\n", bare)
    assert [row[-1] for row in read(tmp_path, "# a comment\n1,a,no\n", bare, lenient=True)] == [0]


def test_a_declared_dialect_is_used(tmp_path: Path) -> None:
    expected = read(tmp_path, "age,town,ill\n" + "\n".join(RECORDS), TOML)
    semicolons = [f"'{line.replace(',', ';')}'".replace(";", "';'") for line in RECORDS]
    bare = 'header = false\ndelimiter = ";"\nquote = "\'"\n' + TOML
    assert read(tmp_path, "\n".join(semicolons), bare) == expected
    assert TableDomain.from_toml(TableDomain.from_toml(bare).to_toml()) == TableDomain.from_toml(bare)
    plain = 'quote = ""\n' + TOML
    assert read(tmp_path, 'age,town,ill\n10,"a,no\n20,b,yes\n', plain)[1:] == expected[1:2]
    with pytest.raises(UserError, match="row 1 has 1 cells, 3 are expected; declare delimiter"):
        read(tmp_path, "\n".join(RECORDS).replace(",", ";"), "header = false\n" + TOML)


def test_a_cell_of_several_lines_is_read_where_it_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'age,town,ill\n10,"a",no\r\n20,"b\r\n""\nx",yes\n30,a,no\n'
    toml = "newlines_in_values = true\n" + TOML
    for block in (1, 7, 1 << 20):
        monkeypatch.setattr(files, "BLOCK", block)
        assert [row[0] for row in read(tmp_path, text, toml)] == pytest.approx([0.1, 0.2, 0.3])
        for more in ('40,"b,no\n50,a,no\n', '40,"'):
            with pytest.raises(UserError, match="row 4 has a quote"):
                read(tmp_path, text + more, toml)
    with pytest.raises(UserError, match="row 2 has a quote"):
        read(tmp_path, text, TOML)


def test_an_empty_line_is_a_bad_row_also_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it were skipped, replacing the last record by an empty line would show in the number of records."""
    text = "age,town,ill\n" + "\n".join(RECORDS)
    for block in (5, 30, 1 << 20):
        monkeypatch.setattr(files, "BLOCK", block)
        for end in ("", "\n", "\r\n"):
            assert len(read(tmp_path, text + end, TOML)) == 5
        for more in ("\n\n", "\n\r\n", "\n\n\n60,a,no\n", "\n\nx"):
            with pytest.raises(UserError, match="row 6 is empty; remove the line"):
                read(tmp_path, text + more, TOML)
        assert len(read(tmp_path, text + "\n\n\r\n", TOML, lenient=True)) == 5  # without privacy
        assert len(read(tmp_path, text + "\n\n", 'bad_rows = "missing"\n' + LENIENT)) == 6


def test_a_file_of_one_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlm.data.csv.LONGEST", 100)
    lines = Lines(Path("t.csv"), io.BytesIO(b"x" * 300), 16)
    with pytest.raises(UserError, match=r"t\.csv: a row is longer than"):
        list(lines.rows(Dialect(",", '"', 3)))


def test_a_first_line_that_may_be_a_record_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no column 'age' in its first line; if that line") as told:
        read(tmp_path, "\n".join(["77,secret,no", *RECORDS]), TOML)
    assert "77" not in str(told.value)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('delimiter = ",,"', "delimiter must be one plain character"),
        ('delimiter = "\\n"', "delimiter must be one plain character"),
        ('quote = "ab"', "quote must be one plain character, or empty"),
        ('delimiter = "|"\nquote = "|"', "must differ"),
        ('bad_rows = "skip"', 'bad_rows must be "error" or "missing"'),
        ('bad_rows = "missing"', "needs missing in every column; column 'age' has none"),
        ("newlines_in_values = 1", "newlines_in_values must be true or false"),
    ],
)
def test_a_dialect_that_cannot_be_is_refused(settings: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TableDomain.from_toml(settings + "\n" + TOML)


def test_bad_rows_of_missing_values_end_with_their_line() -> None:
    """A row that an unclosed quote makes of all lines after it would be one record in place of many."""
    with pytest.raises(UserError, match="does not go with newlines_in_values = true: one unclosed quote"):
        TableDomain.from_toml('bad_rows = "missing"\nnewlines_in_values = true\n' + LENIENT)


def test_a_bad_row_needs_no_person_and_a_class(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not go with persons"):
        TableDomain.from_toml('bad_rows = "missing"\n[columns.id]\nkind = "person"\n' + LENIENT)
    with pytest.raises(UserError, match="column 'ill': missing must be one of the classes"):
        TableDomain.from_toml(LENIENT.replace('missing = "no"', 'missing = "category"'))
    assert [row[-1] for row in read(tmp_path, "age,town,ill\n1,a,\n2,a,yes\n", LENIENT)] == [0, 1]


def test_rows_keep_their_cells_in_every_block_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = [f'{a},"b{"," * c}",{y}' for a, c, y in zip(rng.integers(0, 99, 300), rng.integers(0, 3, 300),
            rng.choice(["no", "yes"], 300), strict=True)]  # fmt: skip
    text = "age,town,ill\n" + "\n".join(rows)
    whole = read(tmp_path, text, TOML)
    for block in (13, 64, 500):
        monkeypatch.setattr(files, "BLOCK", block)
        assert read(tmp_path, text, TOML) == whole


def test_a_header_row_without_end_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the header row cannot be read"):
        read(tmp_path, "x" * 200_000 + "\n1,a,no\n", TOML)


def test_a_check_counts_labels_as_a_release_reads_them(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,town,ill\n1,a,?\n2,a,yes\n")
    for toml, missing, refused in ((LENIENT, 1, {}), (TOML, 0, {"?": 1})):
        found = check(tmp_path / "t.csv", TableDomain.from_toml(toml)).columns["ill"]
        assert (found.missing, found.refused) == (missing, refused)
