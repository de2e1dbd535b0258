"""Statements about the declared table, its encoding and its features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.declared import AGE_COLUMN, GROUPED, ILL, MISSING, SEEN, STAGE, column

from adlm.domain.columns import Column
from adlm.domain.encoding import encode_column, encode_frame, encode_labels
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features.tables import TableIndicators

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = (
    'missing = ["?", ""]\ncrosses = [["sex", "stage"]]\n'
    + column("id", "person", records=2)
    + AGE_COLUMN
    + "missing = 50\n"
    + column("sex", "boolean", values=("F", "M"))
    + STAGE
    + MISSING
    + GROUPED
    + SEEN
    + column("note", "ignored")
    + ILL
    + '[columns.ill.aliases]\n"1" = "yes"\n'
)


@pytest.fixture
def table() -> TableDomain:
    return TableDomain.from_toml(TEXT)


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [0, 100, None, 250],
            "sex": ["F", "M", "M", "F"],
            "stage": ["I", "II", "?", "III"],
            "code": ["401.1", "785", "V1", "E9"],
            "seen": ["2020-01-01", "2020-12-31", "2020-07-01", "2019-01-01"],
        }
    )


def test_a_domain_file_survives_a_round_trip(table: TableDomain) -> None:
    assert TableDomain.from_toml(table.to_toml()) == table
    assert TableDomain.from_dict(table.to_dict()) == table


@pytest.mark.parametrize("name", ["adult", "diabetes130"])
def test_the_committed_domain_files_are_sound(name: str) -> None:
    table = TableDomain.load(EXAMPLES / f"{name}.toml")
    assert TableDomain.from_toml(table.to_toml()) == table
    assert len(table.label.classes) == 2


def test_cells_are_encoded_as_declared(table: TableDomain, frame: pd.DataFrame) -> None:
    x = encode_frame(table, frame)
    assert x.shape == (4, table.domain.size)
    by_name = dict(zip(table.domain.features or (), x.T, strict=True))
    assert by_name["age"].tolist() == [0, 1, 0.5, 1]  # clipped, and the constant for the missing one
    assert by_name["age=(missing)"].tolist() == [0, 0, 1, 0]
    assert by_name["sex"].tolist() == [0, 1, 1, 0]
    assert by_name["stage"].tolist() == [0, 0.5, 0, 1]
    assert by_name["code=heart"].tolist() == [1, 1, 0, 0]
    assert by_name["code=lung"].tolist() == [0, 0, 1, 0]
    assert by_name["code=rest"].tolist() == [0, 0, 0, 1]
    assert by_name["seen"][[0, 1, 3]].tolist() == [0, 1, 0]
    assert encode_labels(table.label, ["no", "1", "yes"]).tolist() == [0, 1, 1]


def test_an_encoded_record_depends_on_its_own_cells_alone(table: TableDomain, frame: pd.DataFrame) -> None:
    whole = encode_frame(table, frame)
    for row in range(len(frame)):
        assert np.array_equal(encode_frame(table, frame.iloc[[row]]), whole[[row]])


def test_a_value_at_a_cut_belongs_to_the_cell_above() -> None:
    column = Column("x", "numeric", 0, 99999, scale="log", cuts=(1, 2000, 5000))
    table = TableDomain((column, Column("y", "label", classes=("a", "b"))))
    x = encode_frame(table, pd.DataFrame({"x": [0, 0.9, 1, 1999, 2000, 5000, 1e9]}))
    z = TableIndicators(table)(torch.from_numpy(x))
    assert z.argmax(1).tolist() == [0, 0, 1, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"upper": -1}, "column 'age': upper must exceed lower"),
        ({"kind": "number"}, "column 'age': kind must be one of numeric"),
        ({"bins": 3}, "column 'age': a numeric column has no setting 'bins'"),
        ({"cuts": [5, 3]}, "column 'age': cuts must rise"),
        ({"lower": "x"}, "column 'age': bounds, cuts and constants must be finite numbers"),
        ({"upper": 10**400}, "column 'age': bounds, cuts and constants must be finite numbers"),
        ({"lower": -1, "scale": "log"}, "a log scale needs a lower bound of at least 0"),
    ],
)
def test_a_mistake_in_a_column_is_one_sentence(change: dict[str, object], message: str) -> None:
    settings = {"kind": "numeric", "lower": 0, "upper": 100} | change
    with pytest.raises(UserError, match=message):
        Column.from_dict("age", settings)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "label"\nclasses', 'kind = "categorical"\nvalues', "has no setting 'aliases'"),
        ('["sex", "stage"]', '["sex", "weight"]', "a cross names two different feature columns"),
        ("missing = 50", 'missing = "often"', "finite numbers"),
        ("[columns.id]", "columns = 3\n[columns.id]", "valid TOML"),
        ('classes = ["no", "yes"]', 'classes = ["no"]', "at least two classes"),
        ('"1" = "yes"', '"1" = "maybe"', "not one of the classes"),
        ("records = 2", "records = 0", "records must be at least 1"),
        ("lower = 2020-01-01", 'lower = "soon"', "dates are written like"),
        ('"1" = "yes"', 'no = "yes"', "column 'ill': alias 'no' names 'yes', but is a class itself"),
        ("records = 2", "records = true", "column 'id': records must be an integer"),
        ('"390..459"', '"459..390"', "column 'code': the range 459..390 holds nothing"),
        ('"460..519"', '"459..519"', "column 'code': ranges 390..459 and 459..519 of two groups overlap"),
        ('"V1"', '"V1 "', "column 'code': cells are read without outer spaces, so 'V1 ' never occurs"),
        ('["F", "M"]', '[" F", "M"]', "column 'sex': cells are read without outer spaces"),
        ('["no", "yes"]', '["no ", "yes"]', "column 'ill': cells are read without outer spaces"),
        (
            '["sex", "stage"]',
            '["sex", "stage"], ["stage", "sex"]',
            "the cross of 'sex' and 'stage' is declared twice",
        ),
        ("lower = 2020-01-01", 'format = "%Q"\nlower = 2020-01-01', "column 'seen': format must be one that"),
        (
            "lower = 2020-01-01",
            'format = "%Y%Y"\nlower = 2020-01-01',
            "column 'seen': format must be one that",
        ),
        ("missing = 50", "missing = 500", "column 'age': missing must lie between lower and upper"),
        (
            "lower = 0\nupper = 100",
            "lower = -1.7e308\nupper = 1.7e308",
            "column 'age': the range .* is too wide",
        ),
        (
            '["I", "II", "III"]',
            '["I", "II", "?"]',
            "column 'stage': '\\?' is one of its values and means missing",
        ),
    ],
)
def test_a_mistake_in_a_domain_file_is_one_sentence(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(UserError, match=message):
        TableDomain.from_toml(TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("age", "old", "row 2, column 'age': 'old' is not a number"),
        ("sex", "X", "row 2, column 'sex': unknown value 'X'"),
        ("sex", None, "row 2, column 'sex': the cell is missing"),
        ("seen", "31/12/2020", "row 2, column 'seen': '31/12/2020' is not a date"),
        ("stage", "IV", "row 2, column 'stage': unknown value 'IV'"),
    ],
)
def test_a_wrong_cell_is_named(
    table: TableDomain, frame: pd.DataFrame, name: str, value: str | None, message: str
) -> None:
    frame[name] = frame[name].astype(object)
    frame.loc[1, name] = value
    with pytest.raises(UserError, match=message):
        encode_frame(table, frame)


def test_the_rest_has_a_name_of_its_own_among_values_and_may_join_a_group() -> None:
    with pytest.raises(UserError, match="column 'c': other names 'a', which is one of the values"):
        Column("c", "categorical", values=("a", "b"), other="a")
    grouped = Column("c", "categorical", groups=(("low", ("1..3",)), ("rest", ("9",))), other="rest")
    assert encode_column(grouped, ["2", "9", "z"], ()).tolist() == [[1, 0], [0, 1], [0, 1]]


def test_a_mistake_in_a_domain_file_is_told_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text(TEXT.replace("missing = 50", "missing = 500"))
    with pytest.raises(UserError, match=r"d\.toml: column 'age': missing must lie"):
        TableDomain.load(tmp_path / "d.toml")


def test_an_unknown_category_without_an_other_is_refused() -> None:
    column = Column("c", "categorical", values=("a", "b"))
    with pytest.raises(UserError, match="unknown category 'z'; the column has a, b"):
        encode_column(column, ["a", "z"], ())


def test_numbers_and_texts_of_the_same_value_are_encoded_alike() -> None:
    column = Column("c", "categorical", values=("1", "2"))
    assert np.array_equal(encode_column(column, [1, 2], ()), encode_column(column, ["1", " 2 "], ()))
    age = Column("a", "numeric", 0, 10, scale="log")
    for given in ([0, 3, 12], np.array([0.0, 3.0, 12.0])):
        assert np.array_equal(encode_column(age, given, ()), encode_column(age, ["0", "3", "12"], ()))


def test_a_long_cell_is_shortened_in_a_sentence(table: TableDomain) -> None:
    with pytest.raises(UserError, match=r"^row 1, column 'stage': unknown value 'x{60}…'; the column has I,"):
        encode_column(table.features[2], ["x" * 500], ())
