"""Statements about where files lie: a folder, a glob and an address give files by name, or a sentence."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow import fs
from tests.declared import AGE

from adlm.data import arrow, files
from adlm.data.files import DataFile, find_files
from adlm.data.reading import pieces_of, read_batches, read_piece
from adlm.domain.table import TableDomain
from adlm.errors import UserError

TOML = AGE
TEXT = "age,ill\n10,no\n20,yes\n30,no\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub" / "_temporary").mkdir(parents=True)
    (tmp_path / "b.csv").write_text(TEXT, encoding="utf-8")
    (tmp_path / "sub" / "a.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    pa.parquet.write_table(
        pa.table({"age": [1.0, 2.0], "ill": ["no", "yes"]}), tmp_path / "sub" / "c.parquet"
    )
    for name in ("notes.md", ".hidden.csv", "_part.csv", "sub/_temporary/d.csv"):
        (tmp_path / name).write_text("nothing", encoding="utf-8")
    return tmp_path


def names(source: Path | str, base: Path) -> list[str]:
    return [str(Path(file.path).relative_to(base)) for file in find_files(source)]


def test_a_folder_means_the_tables_in_it_and_below_it(folder: Path) -> None:
    assert names(folder, folder) == ["b.csv", "sub/a.csv.gz", "sub/c.parquet"]
    assert names(f"file://{folder}", folder) == ["b.csv", "sub/a.csv.gz", "sub/c.parquet"]
    table = TableDomain.from_toml(TOML)
    for source in (folder, f"file://{folder}"):
        x = np.concatenate([batch.x[:, 0] for batch in read_batches(source, table)])
        assert np.rint(100 * x).tolist() == [10, 20, 30, 10, 20, 30, 1, 2]


def test_a_star_stays_within_a_folder_and_two_go_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(folder / "*.csv", folder) == [".hidden.csv", "_part.csv", "b.csv"]
    assert names(folder / "**" / "[a-z].*", folder) == [
        "b.csv",
        "sub/_temporary/d.csv",
        "sub/a.csv.gz",
        "sub/c.parquet",
    ]
    assert names(f"file://{folder}/sub/?.parquet", folder) == ["sub/c.parquet"]
    monkeypatch.chdir(folder)
    assert [Path(file.path) for file in find_files("sub/*.gz")] == [Path("sub/a.csv.gz")]
    assert [Path(file.path) for file in find_files("b*.csv")] == [Path("b.csv")]


def test_a_name_with_a_bracket_is_a_file_before_it_is_a_glob(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").write_text(TEXT, encoding="utf-8")
    assert names(tmp_path / "a[1].csv", tmp_path) == ["a[1].csv"]


@pytest.mark.parametrize("source", ["none.csv", "none/*.csv", "*.csv", "", "file:///no/such/folder/x.csv"])
def test_what_is_not_there_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"there is no file .*; give a CSV or Parquet file, a folder"):
        find_files(source)


def test_an_unknown_kind_of_address_is_told_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"gopher://x/y\.csv cannot be listed \(.*\)") as told:
        find_files("gopher://x/y.csv")
    assert "\n" not in str(told.value)


def test_a_file_of_another_file_system_is_read_alike(folder: Path) -> None:
    table = TableDomain.from_toml(TOML)
    system = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
    for name in ("b.csv", "sub/a.csv.gz", "sub/c.parquet"):
        here = list(read_batches(folder / name, table))
        there = list(read_batches(DataFile(f"far://{name}", name, 1, system), table))
        assert np.array_equal(here[0].x, there[0].x)
    (folder / "b.csv").write_text(TEXT.replace("20", "twenty"), encoding="utf-8")
    with pytest.raises(UserError, match=r"far://b\.csv, row 2, column 'age'"):
        list(read_batches(DataFile("far://b.csv", "b.csv", 1, system), table))


def test_pieces_of_a_parquet_file_have_every_row_once_and_name_rows_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableDomain.from_toml(TOML)
    ages = pa.array([*map(str, range(40)), "old", *map(str, range(41, 90))])
    whole = pa.table({"age": ages, "ill": ["no", "yes"] * 45})
    pa.parquet.write_table(whole, tmp_path / "t.parquet", row_group_size=7)
    monkeypatch.setattr(arrow, "GROUP_BYTES", 200)
    pieces = pieces_of(tmp_path / "t.parquet", table)
    assert len(pieces) > 3
    firsts = [piece.first for piece in pieces if isinstance(piece, arrow.ArrowPiece)]
    ends = [*firsts[1:], 91]
    rows = 0
    for piece, first, end in zip(pieces, firsts, ends, strict=True):
        if first <= 41 < end:
            with pytest.raises(UserError, match=r"t\.parquet, row 41, column 'age': 'old' is not a number"):
                list(read_piece(piece, table))
        else:
            rows += sum(len(batch) for batch in read_piece(piece, table))
            assert rows == end - 1 or first > 41
    pa.parquet.write_table(whole.drop_columns("ill"), tmp_path / "u.parquet")
    with pytest.raises(UserError, match=r"has no column 'ill'"):
        pieces_of(tmp_path / "u.parquet", table)


def test_the_bytes_that_are_told_of_a_file_add_up_to_it(folder: Path) -> None:
    table = TableDomain.from_toml(TOML)
    for name in ("b.csv", "sub/a.csv.gz", "sub/c.parquet"):
        file = files.data_file(folder / name)
        told = sum(batch.raw.size for piece in pieces_of(file, table) for batch in read_piece(piece, table))
        assert 0 < told <= max(file.size, 200)
