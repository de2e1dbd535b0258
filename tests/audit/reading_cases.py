"""Neighbouring files and frames for the audit's search over reading, with one unusual record.

A case is drawn from a seed. Both neighbours are written in the same way, with the same declaration; what is
not declared (how a library types a column, row groups, blocks and batches) is free to differ.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from adlm.domain.columns import Column
from adlm.domain.encoding import Frame
from adlm.domain.table import TableDomain

Record = tuple[Any, ...]

N = 8  # records of a case
RELATIONS = ("replace-one", "add-remove", "persons")
TAG = 1024  # records are identified by a unique number, divided by this
FOREIGN = 1000  # the number of the record that differs, where it must be identified

_MARKS = ['"', '""', '"x', 'x"', 'a"b', "'", "'x", "#", "#x", "|x"]
_MISSING = ["?", "", " ", "NA", "nan"]
_SPELLINGS = ["1.0", "1", "01", "1e3", "True", "true", "TRUE", "yes", "9007199254740993", "2.50"]
_UNICODE = ["\ufeffx", "Ko\u0308ln", "K\u00f6ln", "\0", "\u2028", "\x85", "\x0b", "\x1c"]
_DELIMITERS = [",", ";", "\t", "|", "\\", '\\"', "1,5", "=1+1", "\U0001f600", "x" * 300]
_NUMBERS = ["-99.9", "2020-05-01", "01.05.2020", "inf", "1_000", "0x10"]
ODD_TEXTS = [*_MARKS, *_MISSING, *_SPELLINGS, *_UNICODE, *_DELIMITERS, *_NUMBERS, "NORTH", "north ", "a, b"]


@dataclass(frozen=True, eq=False)
class Written:
    """A data set as a reader takes it: a file or a frame, and its declared domain."""

    table: TableDomain
    file: Path | None = None
    frame: Any = None
    block: int = 1 << 20
    rows: int = 8192


@dataclass(frozen=True, eq=False)
class Case:
    """Two neighbours, and the relation between them; `at` is the record that differs."""

    one: Written
    two: Written
    relation: str
    at: int
    summary: str  # what differs, for a finding's note


def declared(rng: Random, *, persons: bool, **settings: Any) -> TableDomain:
    """Declare a table with a column of every kind."""
    person = (Column("id", "person", records=rng.choice([1, 2])),) if persons else ()
    towns = ("1", "2", "north", "true")
    return TableDomain(
        (
            Column("tag", "numeric", 0, TAG, missing="category"),
            *person,
            Column("age", "numeric", 0, 2.0**54, scale=rng.choice(["linear", "log"]), missing="category"),
            Column("town", "categorical", values=towns, other="rest", missing="category"),
            Column("seen", "date", "2020-01-01", "2020-12-31", missing="2020-02-02"),
            Column("smokes", "boolean", missing="category"),
            Column("ill", "label", classes=("no", "yes"), missing="no"),
            Column("note", "ignored"),
        ),
        missing=("", "?", "NA", "-99.9"),
        **settings,
    )


def people(rng: Random, n: int) -> list[str]:
    """Draw the persons that n records belong to."""
    return [f"p{rng.randrange(3)}" for _ in range(n)]


def neighbours(
    rng: Random, relation: str, records: list[Record], odd: Callable[[Record], Record]
) -> tuple[list[Record], int, Record]:
    """Change one record, remove it, or replace one person's records by another person's.

    Parameters
    ----------
    rng : of the choice of the record.
    relation : one of RELATIONS.
    records : of the first neighbour; under add-remove the record that differs is changed in place.
    odd : makes a record as unusual as possible.
    """
    at = rng.choice([0, 0, rng.randrange(len(records))])
    if relation == "add-remove":
        records[at] = odd(records[at])
        return records[:at] + records[at + 1 :], at, records[at]
    if relation == "replace-one":
        strange = odd(records[at])
        return [*records[:at], strange, *records[at + 1 :]], at, strange
    gone = records[at][1]
    for i, record in enumerate(records):  # the person who is replaced is identified by the number too
        if record[1] == gone:
            records[i] = (FOREIGN, *record[1:])
    strange = (FOREIGN, "p9", *odd(records[at])[2:])
    others = [record for record in records if record[1] != gone]
    for _ in range(rng.randrange(4)):
        others.insert(rng.randrange(len(others) + 1), strange)
    return others, at, strange


Form = Callable[[Random, Path], Case | None]  # None where a library itself refuses such a column


# ---- CSV files: ordinary records, and one line that may hold anything

BLOCKS = (64, 400, 1 << 20)  # bytes of a CSV file read at once

_AGES = ["1e3", " 7 ", "?", "-99.9", "", "-99.90000152587890625", "+1", "007", "\u0661", "1e400"]
_DAYS = ["2020-05-01T23:30+09:00", "20200501", "NA", "", "2020-12-31 10:00", "?"]


@dataclass
class _Dialect:
    delimiter: str
    quote: str
    quoted: str  # none, all, texts (towns alone)
    end: str
    bom: bytes
    last: str
    packed: bool
    settings: dict[str, Any] = field(default_factory=dict)

    def line(self, record: Record) -> bytes:
        """One record as an ordinary program writes it; a ready-made line is passed as bytes."""
        if len(record) == 1 and isinstance(record[0], bytes):
            return record[0]
        cells = [str(cell) for cell in record]
        town = len(cells) - 5
        for at, cell in enumerate(cells):
            if self.quoted == "all" or (self.quoted == "texts" and at == town):
                cells[at] = self.quote + cell.replace(self.quote, self.quote * 2) + self.quote
        return self.delimiter.join(cells).encode("utf-8", "surrogatepass")


def _text_record(rng: Random, at: int, name: str | None) -> Record:
    who = () if name is None else (name,)
    return (
        str(at),
        *who,
        rng.choice(["0.1", "7", "2.50", "1e3", "-99.9", "9007199254740993", "?"]),
        rng.choice(["1", "2", "north", "true", "1.0", "south", "?"]),
        rng.choice(["2020-05-01", "2020-12-31", "2019-01-01T10:00", ""]),
        rng.choice(["yes", "no", "1", "True"]),
        rng.choice(["no", "yes"]),
        "note",
    )


def text_files(
    rng: Random,
    folder: Path,
    *,
    usual: bool = False,
    quoted: str = "texts",
    header: bool | None = None,
    relation: str | None = None,
) -> Case:
    """CSV files in any dialect, with one line that may hold anything but a line end.

    Parameters
    ----------
    rng : decides everything that is not set.
    folder : where the files are written.
    usual : whether the dialect is commas and double quotes.
    quoted : which cells of a usual dialect have quotes.
    header : whether there is a header row.
    relation : `replace-one` or `add-remove`.
    """
    relation = relation or rng.choice(RELATIONS)
    dialect = _Dialect(
        rng.choice([",", ",", ";", "\t", "|"]),
        rng.choice(['"', '"', "'"]),
        rng.choice(["none", "all", "texts"]),
        rng.choice(["\n", "\r\n", "\r"]),
        rng.choice([b"", b"\xef\xbb\xbf"]),
        rng.choice(["", "end"]),
        rng.random() < 0.2,
    )
    if usual:
        dialect = _Dialect(",", '"', quoted, "\n", b"", "end", False)
    header = rng.random() < 0.5 if header is None else header
    strict = relation == "persons" or rng.random() < 0.5
    settings: dict[str, Any] = {"header": header, "bad_rows": "error" if strict else "missing"}
    if not header or rng.random() < 0.5 or dialect.quote == "'":
        settings |= {"delimiter": dialect.delimiter, "quote": dialect.quote}
    if dialect.quoted == "none" and rng.random() < 0.3:
        settings |= {"quote": ""}
    if rng.random() < 0.5:
        settings |= {"comment": "#"}
    table = declared(rng, persons=relation == "persons", **settings)
    names = people(rng, N) if relation == "persons" else [None] * N
    records: list[Record] = [_text_record(rng, i, name) for i, name in enumerate(names)]

    def odd(record: Record) -> Record:
        cells = _odd_texts(rng, record)
        if rng.random() < 0.3:
            cells[0] = rng.choice(["#{}", "'{}'", '"{}"', "{}.0", " {}", "?"]).format(cells[0])
        line = dialect.line(tuple(cells)) if rng.random() < 0.5 else _naive(dialect, cells)
        if rng.random() < 0.2 and relation != "persons":
            line = b"".join(rng.choices([b'"', b"'", b",", b";", b"a", b"#", b" ", b"\xff", b"|"], k=12))
        if rng.random() < 0.1 and not usual:
            line = b""
        return (line.replace(b"\n", b" ").replace(b"\r", b" "),)

    if relation == "persons":  # the person's name and number stay readable
        other, at, strange = neighbours(rng, relation, records, lambda r: tuple(_odd_texts(rng, r)))
    else:
        other, at, strange = neighbours(rng, relation, records, odd)
    top = [dialect.line(tuple(c.name for c in table.columns))] if header else []
    if header and table.comment:
        top.insert(0, b"# a comment, with 'quotes\" and ; all | that")
    return Case(
        _file(rng, folder / "one.csv", top, records, dialect, table),
        _file(rng, folder / "two.csv", top, other, dialect, table),
        relation,
        at,
        repr(dialect.line(strange)),
    )


def _odd_texts(rng: Random, record: Record) -> list[Any]:
    """Odd cells: any text in the categorical column, and elsewhere mostly one that can be parsed."""
    cells = list(record)
    age, town, seen, smokes, ill, note = range(len(cells) - 6, len(cells))
    cells[age] = rng.choice(_AGES)
    cells[town] = rng.choice(ODD_TEXTS)
    cells[seen] = rng.choice(_DAYS)
    cells[smokes] = rng.choice(["TRUE", "n", "?", "0", "F"])
    cells[note] = rng.choice(ODD_TEXTS)
    if rng.random() < 0.2:
        cells[rng.choice([age, seen, smokes, ill])] = rng.choice(ODD_TEXTS)
    return cells


def _naive(dialect: _Dialect, cells: list[Any]) -> bytes:
    """A line as a careless program writes it: nothing is quoted or escaped."""
    return dialect.delimiter.join(str(cell) for cell in cells).encode("utf-8", "surrogatepass")


def _file(
    rng: Random, path: Path, top: list[bytes], records: list[Record], dialect: _Dialect, table: TableDomain
) -> Written:
    end = dialect.end.encode()
    data = dialect.bom + end.join([*top, *(dialect.line(r) for r in records)])
    data += end if dialect.last or data.endswith(end) or not data else b""
    if dialect.packed:
        path = path.with_suffix(".csv.gz")
        data = gzip.compress(data)
    path.write_bytes(data)
    return Written(table, path, None, rng.choice(BLOCKS), rng.choice([3, 8192]))


def files_with_newlines(rng: Random, folder: Path) -> Case:
    """CSV files that are declared to have newlines in values, with doubled quotes."""
    table = declared(rng, persons=False, newlines_in_values=True, header=rng.random() < 0.5)
    records: list[Record] = [_text_record(rng, i, None) for i in range(N)]
    every = rng.random() < 0.5

    def odd(record: Record) -> Record:
        cells = list(record)
        cells[2] = "".join(rng.choices(["\n", "\r", '"', ",", "a", "#", "\r\n"], k=6))
        return tuple(cells)

    relation = rng.choice(RELATIONS[:2])
    other, at, strange = neighbours(rng, relation, records, odd)
    written = []
    for name, rows in (("one.csv", records), ("two.csv", other)):
        stream = io.StringIO(newline="")
        writer = csv.writer(
            stream,
            quoting=csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL,
            lineterminator=rng.choice(["\n", "\r\n"]),
        )
        writer.writerows(([[c.name for c in table.columns]] if table.header else []) + list(rows))
        (folder / name).write_bytes(stream.getvalue().encode())
        written.append(Written(table, folder / name, None, rng.choice(BLOCKS), rng.choice([3, 8192])))
    return Case(written[0], written[1], relation, at, repr(strange))


# ---- Data frames and Parquet files: ordinary records, and one with unusual values

_EAST = datetime.timezone(datetime.timedelta(hours=9))
_TYPED_NUMBERS = [0, 1, 2, -1, 2**53 + 1, 2**63, 2**70, 0.1, 1.0, 2.5, -0.0, float("inf"), 1e300]
_DECIMALS = [decimal.Decimal(text) for text in ("2.50", "1", "NaN")]
_OF_NUMPY = [np.float32(0.1), np.float32(-99.9), np.float16(2.5), np.int8(1), np.bool_(True)]
_TYPED_DAYS = [np.datetime64("2020-05-01"), np.datetime64("NaT"), datetime.date(2020, 5, 1)]
_TYPED_TIMES = [datetime.datetime(2020, 5, 1, 23, 30, tzinfo=zone) for zone in (None, _EAST)]
_TYPED_OTHERS = [datetime.timedelta(1), b"north", b"\xff", [1], {"a": 1}, 1 + 2j, *ODD_TEXTS]
_VALUES: list[Any] = [None, float("nan"), True, False]
_VALUES += [*_TYPED_NUMBERS, *_DECIMALS, *_OF_NUMPY, *_TYPED_DAYS, *_TYPED_TIMES, *_TYPED_OTHERS]


def _typed_columns(rng: Random, persons: bool) -> list[Record]:
    """Ordinary records whose columns each have one type, whatever it is."""
    age: list[Any] = rng.choice(
        [
            [3, 17, 2**53 + 1],
            [0.1, 2.5, 1e15],
            ["0.1", "2.50", "17"],
            [np.float32(0.1), np.float32(-99.9)],
            [decimal.Decimal("1"), decimal.Decimal("2.5")],
            [1, None, 5],
        ]
    )
    town: list[Any] = rng.choice([["1", "2", "north"], [1, 2, 3], ["1", None, "x"], ["1.0", "True", "2"]])
    town = rng.choice([[True, False], [1.0, 2.0]]) if rng.random() < 0.1 else town
    seen: list[Any] = rng.choice(
        [
            ["2020-05-01", "2020-12-31"],
            [datetime.date(2020, 5, 1), datetime.date(2021, 1, 1)],
            [datetime.datetime(2020, 5, 1, 23, 30), datetime.datetime(2020, 6, 1)],
        ]
    )
    smokes: list[Any] = rng.choice([[True, False], [0, 1], ["yes", "no"], [0.0, 1.0]])
    ids: list[Any] = rng.choice([["p0", "p1", "p2"], [2**53, 2**53 + 1, 2**53 + 2]])
    records = []
    for at in range(N):
        who = (rng.choice(ids),) if persons else ()
        others = (rng.choice(pool) for pool in (age, town, seen, smokes, ["no", "yes"], ["note", None]))
        cells = (*who, *others)
        records.append((at, *cells))
    return records


def _frames(columns: dict[str, list[Any]]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The columns as a data frame of every library."""
    yield "lists", lambda: Frame(columns)
    yield "NumPy", lambda: Frame({name: np.array(cells) for name, cells in columns.items()})
    yield "Arrow", lambda: pa.table({name: pa.array(cells) for name, cells in columns.items()})
    try:
        import pandas as pd
    except ImportError:  # an optional library
        return
    plain = {name: pd.Series(cells, dtype=object) for name, cells in columns.items()}
    yield "pandas", lambda: pd.DataFrame(columns)
    yield "pandas objects", lambda: pd.DataFrame(plain)
    yield "pandas converted", lambda: pd.DataFrame(columns).convert_dtypes()
    yield "pandas on Arrow", lambda: pd.DataFrame(columns).convert_dtypes(dtype_backend="pyarrow")
    yield "pandas categories", lambda: pd.DataFrame(columns).astype("category")
    yield (
        "pandas in parts",
        lambda: pd.concat(
            [
                pd.DataFrame({name: cells[:3] for name, cells in columns.items()}),
                pd.DataFrame({name: cells[3:] for name, cells in columns.items()}),
            ]
        ),
    )


def _odd_values(rng: Random, kept: int) -> Callable[[Record], Record]:
    def odd(record: Record) -> Record:
        cells = list(record)
        at = rng.randrange(kept, len(cells))
        cells[at] = rng.choice([None, float("nan"), "", "?"]) if rng.random() < 0.4 else rng.choice(_VALUES)
        return tuple(cells)

    return odd


def _columns(table: TableDomain, records: list[Record]) -> dict[str, list[Any]]:
    return {c.name: [record[i] for record in records] for i, c in enumerate(table.columns)}


def _typed(rng: Random) -> tuple[TableDomain, list[Record], list[Record], str, int, str]:
    relation = rng.choice(RELATIONS)
    persons = relation == "persons"
    table = declared(rng, persons=persons)
    records = _typed_columns(rng, persons)
    other, at, strange = neighbours(rng, relation, records, _odd_values(rng, 2 if persons else 1))
    if persons and not isinstance(records[0][1], str):
        other = [(r[0], 2**53 + 9 if r[1] == "p9" else r[1], *r[2:]) for r in other]
    return table, records, other, relation, at, repr(strange)


def _crashes_arrow(columns: dict[str, list[Any]]) -> bool:
    """Whether pyarrow 26 ends the process on a column: a datetime64 followed by other NumPy scalars."""
    kinds = [{type(cell) for cell in cells if isinstance(cell, np.generic)} for cells in columns.values()]
    return any(np.datetime64 in kind and len(kind) > 1 for kind in kinds)


_REFUSED = (TypeError, ValueError, OverflowError, NotImplementedError, pa.ArrowException, AttributeError)


def frames(rng: Random, folder: Path) -> Case | None:
    """Frames of every library, typed by that library."""
    del folder
    table, records, other, relation, at, strange = _typed(rng)
    columns = [_columns(table, rows) for rows in (records, other)]
    both = [dict(_frames(each)) for each in columns]
    name = rng.choice(sorted(both[0]))
    if "Arrow" in name and any(map(_crashes_arrow, columns)):
        return None
    try:
        written = [Written(table, None, each[name]()) for each in both]
    except _REFUSED:
        return None
    return Case(written[0], written[1], relation, at, f"{name}: {strange}")


def parquet_files(rng: Random, folder: Path) -> Case | None:
    """Parquet files, typed by a library, in row groups of any size."""
    table, records, other, relation, at, strange = _typed(rng)
    written = []
    library = rng.choice(["Arrow", "pandas", "pandas on Arrow", "pandas categories"])
    for name, rows in (("one.parquet", records), ("two.parquet", other)):
        columns = _columns(table, rows)
        if _crashes_arrow(columns):
            return None
        makers = dict(_frames(columns))
        maker = makers.get(library, makers["Arrow"])
        try:
            made = maker()
            arrow = made if isinstance(made, pa.Table) else pa.Table.from_pandas(made, preserve_index=False)
            groups, coded = rng.choice([1, 3, 100]), rng.random() < 0.5
            parquet.write_table(arrow, folder / name, row_group_size=groups, use_dictionary=coded)
        except _REFUSED:
            return None
        written.append(Written(table, folder / name, None, rows=rng.choice([1, 3, 8192])))
    return Case(written[0], written[1], relation, at, f"{library}: {strange}")


FORMS: dict[str, Form] = {
    "CSV files": text_files,
    "CSV files with newlines in values": files_with_newlines,
    "Parquet files": parquet_files,
    "frames": frames,
}
