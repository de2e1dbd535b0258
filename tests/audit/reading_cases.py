"""Neighbouring CSV files for the audit's search, with one unusual record, and the list of all kinds.

A case is drawn from a seed. Both neighbours are written in the same way, with the same declaration; what is
not declared (how a library types a column, row groups, blocks and batches) is free to differ.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.audit.reading_case import (
    ODD_TEXTS,
    RELATIONS,
    Case,
    N,
    Record,
    Written,
    declared,
    neighbours,
    people,
)
from tests.audit.typed_cases import frames, parquet_files

from adlm.domain.table import TableDomain

BLOCKS = (64, 400, 1 << 20)  # bytes of a CSV file read at once

_AGES = ["1e3", " 7 ", "?", "-99.9", "", "-99.90000152587890625", "+1", "007", "\u0661", "1e400"]
_DAYS = ["2020-05-01T23:30+09:00", "20200501", "NA", "", "2020-12-31 10:00", "?"]


Form = Callable[[Random, Path], Case | None]  # None where a library itself refuses such a column


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


FORMS: dict[str, Form] = {
    "CSV files": text_files,
    "CSV files with newlines in values": files_with_newlines,
    "Parquet files": parquet_files,
    "frames": frames,
}
