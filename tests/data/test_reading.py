"""Statements about reading private tables: every dialect, every mistake named, a person's share bounded."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.declared import AGE_COLUMN, ILL, PERSON, column

from adlm.data import csv as files
from adlm.data import persons as contributions
from adlm.data.drafts import check, peek
from adlm.data.reading import read_batches
from adlm.domain.table import TableDomain
from adlm.errors import UserError

TOML = PERSON + AGE_COLUMN + column("town", "categorical", values=("Ulm, north", "Köln")) + ILL
TOWNS = ["Ulm, north", "Köln"]
ROWS = [("p1", 10, "Ulm, north", "no"), ("p2", 20, "Köln", "yes"), ("p1", 30, "Köln", "no"),
        ("p1", 40, "Köln", "no"), ("p3", 50, "Ulm, north", "yes")]  # fmt: skip


@pytest.fixture
def table() -> TableDomain:
    return TableDomain.from_toml(TOML)


def frame() -> pd.DataFrame:
    return pd.DataFrame(ROWS, columns=["person", "age", "town", "ill"])


def ages(path: Path, table: TableDomain, **options: bool) -> list[float]:
    column = (table.domain.features or ()).index("age")
    return [round(float(v) * 100) for b in read_batches(path, table, **options) for v in b.x[:, column]]


def kept(data: pd.DataFrame, most: int = 2) -> list[int]:
    """The ages that the rule keeps, by hand: those of the smallest digests of each person, the slow twin."""

    def digest(row: Any) -> int:
        who = hashlib.blake2b(row.person.encode(), digest_size=16).digest()
        age, town = np.float32(row.age / 100).tobytes(), bytes([TOWNS.index(row.town)])
        ill = np.int64(["no", "yes"].index(row.ill)).tobytes()
        return int.from_bytes(hashlib.blake2b(who + age + town + ill, digest_size=8).digest(), "little")

    rows: list[Any] = list(data.itertuples())
    smallest: dict[str, list[int]] = {}
    for row in rows:
        smallest[row.person] = sorted([*smallest.get(row.person, []), digest(row)])[:most]
    return [int(row.age) for row in rows if digest(row) in smallest[row.person]]


KEPT = kept(frame())


def test_a_person_has_at_most_the_declared_number_of_records(tmp_path: Path, table: TableDomain) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    assert len(KEPT) == 4
    assert ages(tmp_path / "a.csv", table) == KEPT
    assert ages(tmp_path / "a.csv", table, bounded=False) == [10, 20, 30, 40, 50]


def people(rows: int = 200) -> pd.DataFrame:
    """Records of three persons; no two of a person are alike."""
    generator = np.random.default_rng(0)
    data = frame().loc[generator.integers(0, 5, rows)].reset_index(drop=True)
    return data.assign(age=np.arange(rows) % 100).drop_duplicates(ignore_index=True)


def test_what_is_kept_of_a_person_does_not_depend_on_others(tmp_path: Path, table: TableDomain) -> None:
    data = people()
    data.to_csv(tmp_path / "all.csv", index=False)
    data[data.person != "p2"].to_csv(tmp_path / "without.csv", index=False)
    assert ages(tmp_path / "without.csv", table) == kept(data[data.person != "p2"])
    assert ages(tmp_path / "all.csv", table) == kept(data)


def test_what_is_kept_does_not_depend_on_files_or_on_their_order(tmp_path: Path, table: TableDomain) -> None:
    """A person's records in three files, shuffled, as CSV and as Parquet: the same ones are kept."""
    data = people()
    shuffled = data.sample(frac=1, random_state=1)
    folder = tmp_path / "visits"
    (folder / "2024").mkdir(parents=True)
    shuffled[:50].to_csv(folder / "b.csv", index=False)
    shuffled[50:90].to_parquet(folder / "a.parquet", row_group_size=7)
    shuffled[90:].to_csv(folder / "2024" / "c.csv.gz", index=False)
    (folder / "_notes.csv").write_text("not a table", encoding="utf-8")
    assert sorted(ages(folder, table)) == sorted(kept(data))
    assert sorted(ages(folder, table, bounded=False)) == sorted(data.age)


def test_persons_are_sorted_alike_at_once_and_a_share_at_a_time() -> None:
    generator = np.random.default_rng(1)
    persons = generator.integers(0, 2**64, (50, 2), dtype=np.uint64)[generator.integers(0, 50, 500)]
    records = generator.integers(0, 2**64, 500, dtype=np.uint64)
    expected = contributions.chosen(persons, records, 3)
    parts = [(persons[i : i + 60], records[i : i + 60]) for i in range(0, 500, 60)]
    assert np.array_equal(contributions.chosen_in_parts(lambda: parts, 500, 3, at_once=40), expected)
    assert expected.sum() == 150


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_usual_dialect_reads_alike(tmp_path: Path, table: TableDomain, delimiter: str, end: str) -> None:
    path = tmp_path / "d.csv"
    text = frame().to_csv(index=False, sep=delimiter, lineterminator=end)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert ages(path, table) == KEPT


def compressed(text: bytes, kind: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, kind) as stream:
        stream.write(text)
    return bytes(sink.getvalue().to_pybytes())


def test_compressed_files_and_parquet_read_alike(tmp_path: Path, table: TableDomain) -> None:
    text = frame().to_csv(index=False).encode()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.csv.bz2").write_bytes(bz2.compress(text))
    (tmp_path / "a.csv.xz").write_bytes(lzma.compress(text))
    for name, kind in (("a.csv.zst", "zstd"), ("a.csv.lz4", "lz4")):
        (tmp_path / name).write_bytes(compressed(text, kind))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.csv", text)
    frame().to_parquet(tmp_path / "a.parquet")
    names = "a.csv.gz", "a.csv.bz2", "a.csv.xz", "a.csv.zst", "a.csv.lz4", "a.zip", "a.parquet"
    for name in names:
        assert ages(tmp_path / name, table) == KEPT, name


def test_a_file_without_header_and_with_comments_is_read_in_the_declared_order(tmp_path: Path) -> None:
    table = TableDomain.from_toml('header = false\ncomment = "|"\n' + TOML)
    text = "|a, comment\n" + frame().to_csv(index=False, header=False, sep=",") + "\n"
    (tmp_path / "a.data.gz").write_bytes(gzip.compress(text.encode()))
    assert ages(tmp_path / "a.data.gz", table, lenient=True) == KEPT


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("p2,20", "p2,twenty", r"row 2, column 'age': 'twenty' is not a number"),
        ("p2,20,Köln", "p2,20,Bonn", r"row 2, column 'town': unknown category 'Bonn'"),
        ("p2,20,Köln,yes", "p2,20,Köln", r"row 2 has 3 cells, 4 are expected"),
        ("p2,20,Köln,yes", "p2,20,Köln,perhaps", r"row 2, column 'ill': unknown label 'perhaps'"),
        ("person,age,town", "person,age,city", r"has no column 'town'"),
        ("person,age,town,ill", "person,age,town,ill,age", r"has the column 'age' twice"),
        ("p2,", ",", r"row 2, column 'person': the person is not named"),
        ("p2,20", "p2,", r"row 2, column 'age': the cell is missing"),
    ],
)
def test_a_mistake_is_told_with_file_row_and_column(
    tmp_path: Path, table: TableDomain, old: str, new: str, message: str
) -> None:
    text = frame().to_csv(index=False)
    if new.endswith("ill,age"):
        text = "\n".join(line + (",1" if line else "") for line in text.splitlines()).replace("ill,1", "ill")
    assert old in text
    (tmp_path / "bad.csv").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UserError, match=message) as told:
        list(read_batches(tmp_path / "bad.csv", table))
    assert "bad.csv" in str(told.value)
    assert "\n" not in str(told.value)


def test_decimals_may_stand_after_a_comma(tmp_path: Path) -> None:
    table = TableDomain.from_toml('decimal = ","\n' + TOML)
    assert TableDomain.from_dict(table.to_dict()) == table
    text = frame().to_csv(index=False, sep=";").replace(";20;", ";20,9;")
    (tmp_path / "d.csv").write_text(text, encoding="utf-8")
    assert ages(tmp_path / "d.csv", table, bounded=False) == [10, 21, 30, 40, 50]
    with pytest.raises(UserError, match="decimal must be a point or a comma"):
        TableDomain.from_toml('decimal = "x"\n' + TOML)


def test_a_nested_column_is_refused_in_a_sentence(tmp_path: Path, table: TableDomain) -> None:
    data = frame()
    data["town"] = [[town] for town in data["town"]]
    data.to_parquet(tmp_path / "n.parquet")
    for read in (lambda path: list(read_batches(path, table)), lambda path: check(path, table)):
        with pytest.raises(UserError, match=r"n\.parquet, row 1, column 'town': a cell holds one value"):
            read(tmp_path / "n.parquet")


def test_a_file_that_is_no_text_is_refused_without_noise(
    tmp_path: Path, table: TableDomain, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.csv").write_bytes(frame().to_csv(index=False).encode() + bytes(range(256)) * 50)
    with pytest.raises(UserError, match=r"b\.csv"):
        list(read_batches(tmp_path / "b.csv", table))
    assert capfd.readouterr() == ("", "")


def test_a_peeked_domain_reads_the_file_that_it_was_learnt_from(tmp_path: Path) -> None:
    rows = 80
    data = pd.DataFrame(
        {
            "id": range(rows),
            "ok": [i % 3 == 0 for i in range(rows)],
            "seen": pd.date_range("2021-01-05", periods=rows),
            "town": ["a", "b"] * (rows // 2),
            "age": [None if i == 7 else float(i) for i in range(rows)],
            "note": [f"note {i}" for i in range(rows)],
            "y": ["no", "yes"] * (rows // 2),
        }
    )
    data.to_parquet(tmp_path / "p.parquet")
    data.to_csv(tmp_path / "p.csv", index=False)
    read = []
    for name in ("p.parquet", "p.csv"):
        table = peek(tmp_path / name, person="id")
        assert table.bounds_learnt_from_data
        kinds = {column.name: column.kind for column in table.columns}
        assert kinds == {
            "id": "person", "ok": "boolean", "seen": "date", "town": "categorical", "age": "numeric",
            "note": "ignored", "y": "label",
        }  # fmt: skip
        assert check(tmp_path / name, table).records == rows
        read.append(np.concatenate([batch.x for batch in read_batches(tmp_path / name, table)]))
    assert np.array_equal(read[0], read[1])
    with pytest.raises(UserError, match="has no column 'who'"):
        peek(tmp_path / "p.csv", person="who")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_wrong_encoding_is_told(tmp_path: Path, table: TableDomain, encoding: str) -> None:
    (tmp_path / "e.csv").write_bytes(frame().to_csv(index=False).encode(encoding))
    with pytest.raises(UserError, match="UTF-8") as told:
        list(read_batches(tmp_path / "e.csv", table))
    if encoding == "latin-1":
        assert "row 2, column 'town'" in str(told.value)


def test_truncated_and_empty_and_absent_files_are_refused(tmp_path: Path, table: TableDomain) -> None:
    frame().to_parquet(tmp_path / "a.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-40])
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(frame().to_csv(index=False).encode() * 99)[:-60])
    (tmp_path / "empty.csv").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "hurt.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", frame().to_csv(index=False) * 99)
    whole = (tmp_path / "hurt.zip").read_bytes()
    (tmp_path / "hurt.zip").write_bytes(whole[:60] + b"\xff" * 20 + whole[80:])
    for name in ("cut.parquet", "cut.csv.gz", "empty.csv", "absent.csv", "hurt.zip"):
        with pytest.raises(UserError, match=name):
            list(read_batches(tmp_path / name, table))


def test_rows_in_later_batches_are_counted_from_the_start_of_the_file(
    tmp_path: Path, table: TableDomain
) -> None:
    data = pd.concat([frame()] * 40, ignore_index=True).astype(object)
    data.loc[150, "age"] = "x"
    data.to_csv(tmp_path / "long.csv", index=False)
    with pytest.raises(UserError, match="row 151, column 'age'"):
        list(read_batches(tmp_path / "long.csv", table, rows=16))


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's and numpy's peak while reading, for a file and for one four times as long.

    Blocks are small here so that what is read ahead is less than the smaller file.
    """
    import tracemalloc

    monkeypatch.setattr(files, "BLOCK", 1 << 14)
    table = TableDomain.from_toml(TOML.replace('kind = "person"\nrecords = 2', 'kind = "ignored"'))
    line = "someone,42,Köln,yes\n" * 4000
    peaks = []
    for times in (10, 40):
        path = tmp_path / f"{times}.csv"
        path.write_text("person,age,town,ill\n" + line * times, encoding="utf-8")
        tracemalloc.start()
        assert sum(len(batch.y) for batch in read_batches(path, table)) == 4000 * times
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
