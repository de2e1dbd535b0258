"""A case of the audit's search over files: two neighbours, written in the same way, with one declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from adlm.domain.columns import Column
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
