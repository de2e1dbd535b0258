"""Reading lets no record change another; every reader that does, on purpose, is caught."""

from __future__ import annotations

import datetime
import decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.broken_readers import READING, WRONG
from tests.audit.reading import Outcome, Read, finding, others_changed, product, search
from tests.audit.reading_cases import FORMS, Case, Written, declared, text_files

from adlm.audit.statistics import CAUGHT, HOLDS, VIOLATED
from adlm.data.reading import read_batches
from adlm.domain.encoding import encode_frame
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.privacy.noise import Source

TABLE = declared(Random(0), persons=False)


@pytest.mark.parametrize("name", FORMS)
def test_no_record_changes_another_in_any_form(name: str) -> None:
    found = search(FORMS[name], product, 120, seed=1)  # `make audit` has 1,500 from a fresh seed
    assert found.changed == 0, found.example
    assert found.compared > 38  # a reader that refuses everything would pass otherwise
    assert finding(name, found).verdict == HOLDS


@pytest.mark.parametrize(("name", "control"), list(zip(WRONG, READING, strict=True)), ids=list(WRONG))
def test_a_reader_that_lets_one_record_change_others_is_caught(name: str, control: Any) -> None:
    found = control(100, Source.seeded_with(0))
    assert (found.mechanism, found.verdict) == (name, CAUGHT)
    form, _ = WRONG[name]
    assert search(form, product, 20).changed == 0  # on the same neighbours the product is not


def test_a_changed_record_is_a_violation_and_a_reader_that_refuses_all_a_fault() -> None:
    assert finding("x", Outcome(compared=3, changed=2)).verdict == VIOLATED
    assert finding("x", Outcome(compared=3, changed=2)).lower == 3
    assert finding("x", Outcome(refused=3)).verdict == VIOLATED


def test_others_are_compared_by_place_and_by_number() -> None:
    a, b, c = b"a", b"b", b"c"

    def changed(relation: str, one: list[bytes], two: list[bytes]) -> int:
        written = Written(TABLE)
        return others_changed(Case(written, written, relation, 1, ""), Read(tuple(one)), Read(tuple(two)))

    assert changed("replace-one", [a, b, c], [a, a, c]) == 0
    assert changed("replace-one", [a, b, c], [c, b, a]) == 2
    assert changed("replace-one", [a, b, c], [a, c]) == 1
    assert changed("add-remove", [a, b, c], [a, c]) == 0
    assert changed("add-remove", [a, b, c], [a, b]) == 1
    case = Case(Written(TABLE), Written(TABLE), "add-remove", 1, "")
    assert others_changed(case, Read((a, b), b"2"), Read((a,), b"1")) == 1


def test_the_search_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    draw = partial(text_files, Random("3"), tmp_path)
    first = draw()
    bytes_of = [w.file.read_bytes() for w in (first.one, first.two) if w.file]
    again = partial(text_files, Random("3"), tmp_path)()
    assert [w.file.read_bytes() for w in (again.one, again.two) if w.file] == bytes_of


LINES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n"), max_size=60)
RAW = LINES | st.text(alphabet="\",#'; a1?|\t", max_size=30)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(line=RAW, at=st.integers(0, 3), header=st.booleans(), end=st.sampled_from(["\n", "\r\n", "\r"]),
       block=st.sampled_from([16, 100, 1 << 20]), strict=st.booleans())  # fmt: skip
def test_any_line_at_all_leaves_the_others_alone(
    tmp_path_factory: pytest.TempPathFactory,
    line: str,
    at: int,
    header: bool,
    end: str,
    block: int,
    strict: bool,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    others = ['1,0.1,"north",2020-05-01,yes,no,', "2,7,1.0,,no,yes,x", '3,?,"a, b",2020-05-01,1,no,"#"']
    lines = [*others[:at], line, *others[at:]]
    table = TableDomain(
        TABLE.columns,
        header=header,
        comment="#",
        missing=TABLE.missing,
        bad_rows="error" if strict else "missing",
    )
    top = [",".join(c.name for c in table.columns)] if header else []
    (folder / "h.csv").write_bytes((end.join([*top, *others]) + end).encode())
    whole = np.concatenate([b.x for b in read_batches(folder / "h.csv", table)])
    (folder / "h.csv").write_bytes((end.join([*top, *lines]) + end).encode())
    try:
        found = np.concatenate([b.x for b in read_batches(folder / "h.csv", table, block=block)])
    except UserError:
        return
    assert np.array_equal(np.delete(found, at, 0), whole)


CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.decimals(), st.text(max_size=8),
    st.binary(max_size=4),
    st.dates(min_value=datetime.date(1700, 1, 1), max_value=datetime.date(2200, 1, 1)),
    st.datetimes(min_value=datetime.datetime(1700, 1, 1), max_value=datetime.datetime(2200, 1, 1)),
    st.sampled_from(["1", "1.0", "True", "?", "NA", "2020-05-01"]),
)  # fmt: skip
BASE: dict[str, list[list[Any]]] = {
    "age": [
        [1, 2],
        [2**53 + 1, 5],
        [0.1, 2.5],
        ["0.1", "7"],
        [decimal.Decimal("1"), decimal.Decimal("2.50")],
    ],
    "town": [["1", "north"], [1, 2]],
    "seen": [["2020-05-01", "2020-12-31"], [datetime.date(2020, 5, 1), datetime.date(2020, 7, 1)]],
    "smokes": [[True, False], [1, 0], ["yes", "no"]],
}


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=200, deadline=None, derandomize=True)
@given(column=st.sampled_from(sorted(BASE)), pick=st.integers(0, 9), cell=CELLS, at=st.integers(0, 2),
       kind=st.sampled_from(["plain", "convert", "pyarrow", "category", "object"]))  # fmt: skip
def test_any_cell_at_all_leaves_the_others_alone(
    column: str, pick: int, cell: Any, at: int, kind: str
) -> None:
    cells = BASE[column][pick % len(BASE[column])]
    declared_column = next(c for c in TABLE.columns if c.name == column)
    table = TableDomain((declared_column, TABLE.label), missing=TABLE.missing)

    def encoded(values: list[Any]) -> np.ndarray | None:
        try:
            frame = pd.DataFrame({column: pd.Series(values, dtype=object if kind == "object" else None)})
            if kind in ("convert", "pyarrow"):
                backend: Any = "pyarrow" if kind == "pyarrow" else "numpy_nullable"
                frame = frame.convert_dtypes(dtype_backend=backend)
            frame = frame.astype("category") if kind == "category" else frame
        except Exception:  # whatever a library says of such a column
            return None
        try:
            return encode_frame(table, frame)
        except UserError:
            return None

    whole, found = encoded(cells), encoded([*cells[:at], cell, *cells[at:]])
    assert whole is not None
    if found is not None:
        assert np.array_equal(np.delete(found, min(at, 2), 0), whole)
