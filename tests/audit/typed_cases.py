"""Neighbouring data frames and Parquet files: ordinary records, and one with unusual values."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from tests.audit.reading_case import ODD_TEXTS, RELATIONS, Case, N, Record, Written, declared, neighbours

from adlm.domain.encoding import Frame
from adlm.domain.table import TableDomain

_EAST = datetime.timezone(datetime.timedelta(hours=9))
_NUMBERS = [0, 1, 2, -1, 2**53 + 1, 2**63, 2**70, 0.1, 1.0, 2.5, -0.0, float("inf"), 1e300]
_DECIMALS = [decimal.Decimal(text) for text in ("2.50", "1", "NaN")]
_OF_NUMPY = [np.float32(0.1), np.float32(-99.9), np.float16(2.5), np.int8(1), np.bool_(True)]
_DAYS = [np.datetime64("2020-05-01"), np.datetime64("NaT"), datetime.date(2020, 5, 1)]
_TIMES = [datetime.datetime(2020, 5, 1, 23, 30, tzinfo=zone) for zone in (None, _EAST)]
_OTHERS = [datetime.timedelta(1), b"north", b"\xff", [1], {"a": 1}, 1 + 2j, *ODD_TEXTS]
_VALUES: list[Any] = [None, float("nan"), True, False]
_VALUES += [*_NUMBERS, *_DECIMALS, *_OF_NUMPY, *_DAYS, *_TIMES, *_OTHERS]


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
