"""A domain scales, labels and serialises as declared, and refuses everything else in one sentence."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adlm.domain import FAMILIES, NEIGHBOURS, Domain
from adlm.errors import UserError

PIXELS = Domain(shape=(2, 2), lower=0, upper=255, classes=("0", "1", "2"))
PATIENT = Domain(
    shape=(2,),
    lower=(0, -1.5),
    upper=(90, 4),
    classes=("no", "yes"),
    features=("age", "blood"),
    family="tabular",
)
UNIT = Domain(shape=(2, 2), lower=0, upper=1, classes=("a", "b"))

# A busy machine is no failure: what is tested is what comes out, not how soon.
calm = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])

finite = st.floats(allow_nan=False, allow_infinity=False)
bounded = st.floats(-1e150, 1e150)


@st.composite
def domains(draw: st.DrawFn) -> Domain:
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    size = math.prod(shape)

    def pair() -> tuple[float, float]:
        low, high = sorted(draw(st.tuples(bounded, bounded).filter(lambda two: two[0] != two[1])))
        return low, high

    if draw(st.booleans()):
        pairs = [pair() for _ in range(size)]
        lower: Any = tuple(low for low, _ in pairs)
        upper: Any = tuple(high for _, high in pairs)
    else:
        lower, upper = pair()
    names = st.text(min_size=1, max_size=8)
    features = st.none() | st.lists(names, min_size=size, max_size=size, unique=True).map(tuple)
    return Domain(
        shape=shape,
        lower=lower,
        upper=upper,
        classes=tuple(draw(st.lists(names, min_size=2, max_size=5, unique=True))),
        neighbours=draw(st.sampled_from(NEIGHBOURS)),
        family=draw(st.sampled_from(FAMILIES)),
        features=draw(features),
    )


@st.composite
def domains_and_records(draw: st.DrawFn) -> tuple[Domain, np.ndarray[Any, np.dtype[np.float64]]]:
    domain = draw(domains())
    rows = draw(
        st.lists(st.lists(finite, min_size=domain.size, max_size=domain.size), min_size=1, max_size=4)
    )
    return domain, np.array(rows)


# Scaling


@calm
@given(domains_and_records())
def test_scaling_gives_single_floats_in_the_unit_interval_in_the_declared_shape(case: Any) -> None:
    domain, records = case
    scaled = domain.scale(records)
    assert scaled.dtype == np.float32
    assert scaled.shape == (len(records), *domain.shape)
    assert scaled.min() >= 0
    assert scaled.max() <= 1


@calm
@given(domains_and_records(), finite)
def test_scaling_never_turns_the_order_of_two_values_round(case: Any, value: float) -> None:
    domain, records = case
    other = np.full_like(records, value)
    low, high = np.minimum(records, other), np.maximum(records, other)
    assert (domain.scale(low) <= domain.scale(high)).all()


@calm
@given(domains_and_records())
def test_scaling_what_is_scaled_changes_nothing(case: Any) -> None:
    domain, records = case
    unit = Domain(shape=domain.shape, lower=0, upper=1, classes=("a", "b"))
    scaled = domain.scale(records)
    assert np.array_equal(unit.scale(scaled), scaled)


@calm
@given(domains_and_records())
def test_values_outside_the_bounds_scale_like_the_bounds_and_are_counted(case: Any) -> None:
    domain, records = case
    clipped = np.clip(records, domain.lower, domain.upper)
    assert np.array_equal(domain.scale(clipped), domain.scale(records))
    assert domain.outside(records) == int((clipped != records).sum())
    assert domain.outside(clipped) == 0


def test_the_bounds_become_zero_and_one_and_the_middle_a_half() -> None:
    assert PATIENT.scale([[0, -1.5], [90, 4], [45, 1.25]]).tolist() == [[0, 0], [1, 1], [0.5, 0.5]]


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        lambda rows: np.asarray(rows, dtype=np.uint8),
        lambda rows: np.asarray(rows, dtype=object),
        torch.tensor,
        lambda rows: torch.tensor(rows, dtype=torch.bfloat16),
        lambda rows: torch.tensor(rows, dtype=torch.float32, requires_grad=True),
    ],
)
def test_arrays_tensors_and_lists_scale_alike_flat_or_not(convert: Any) -> None:
    flat = [[0, 1, 2, 4], [128, 16, 32, 64]]
    expected = np.array(flat, dtype=np.float64).reshape(2, 2, 2) / 255
    assert np.array_equal(PIXELS.scale(convert(flat)), expected.astype(np.float32))
    square = [[[0, 1], [2, 4]], [[128, 16], [32, 64]]]
    assert np.array_equal(PIXELS.scale(convert(square)), expected.astype(np.float32))


def test_many_blocks_scale_as_one_and_leave_the_records_alone() -> None:
    wide = Domain(shape=(1 << 21,), lower=0, upper=255, classes=("a", "b"))
    records = np.random.default_rng(0).integers(0, 256, (5, 1 << 21), dtype=np.uint8)
    before = records.copy()
    assert np.array_equal(wide.scale(records), (records / 255).astype(np.float32))
    assert np.array_equal(records, before)


def test_scaling_does_not_write_into_float_records() -> None:
    records = np.array([[-5.0, 9.0, 0.5, 0.25]])
    UNIT.scale(records)
    assert records.tolist() == [[-5.0, 9.0, 0.5, 0.25]]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (np.zeros((3, 5)), r"shape \(n, 2, 2\) or \(n, 4\).*got \(3, 5\)"),
        (np.zeros(4), r"got \(4,\)"),
        (3.0, r"got \(\)"),
        (np.zeros((0, 4)), "no records"),
        ([[1, 2, 3, 4], [1, 2]], "uneven rows"),
        ([["a", "b", "c", "d"]], "real numbers"),
        (np.array([[1, "2", 3, 4]], dtype=object), "real numbers"),
        (np.zeros((1, 4), dtype=complex), "real numbers"),
        (np.zeros((1, 4), dtype="datetime64[s]"), "real numbers"),
        ([[1, 2, 3, math.nan]], "record 0 has nan for feature 3"),
        ([[1, 2, 3, 4], [1, -math.inf, 3, 4]], "record 1 has -inf for feature 1"),
        ([[1, 2, 3, 10**400]], "fit a double"),
    ],
)
def test_records_that_cannot_be_scaled_are_refused_in_one_sentence(records: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        PIXELS.scale(records)


# Labels


def test_names_and_numbers_that_name_classes_are_encoded() -> None:
    years = Domain(shape=(1,), lower=0, upper=1, classes=("1999", "2001"))
    assert years.encode_labels(["2001", "1999"]).tolist() == [1, 0]
    assert years.encode_labels([2001, 1999]).tolist() == [1, 0]
    assert years.encode_labels(torch.tensor([2001, 1999])).tolist() == [1, 0]
    assert years.encode_labels(np.array([2001, "1999"], dtype=object)).tolist() == [1, 0]
    with pytest.raises(UserError, match="unknown label 0"):
        years.encode_labels([0, 1])


def test_numbers_are_codes_when_no_class_is_named_by_one() -> None:
    codes = PATIENT.encode_labels(np.array([1, 0, 1], dtype=np.uint8))
    assert codes.dtype == np.int64
    assert codes.tolist() == [1, 0, 1]
    assert PATIENT.encode_labels([1.0, 0.0]).tolist() == [1, 0]
    assert PATIENT.encode_labels(["yes", "no"]).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["yes", "maybe"], "unknown label 'maybe'; the domain's classes are no, yes"),
        ([0, 2], "unknown label 2; codes run from 0 to 1"),
        ([-1], "unknown label -1"),
        ([0.5], "0.5 is neither a class name nor an integer"),
        ([math.nan], "nan is neither"),
        ([math.inf], "inf is neither"),
        ([True, False], "True|False is neither"),
        ([None], "None is neither"),
        ([b"yes"], "b'yes' is neither"),
        ([[0], [1]], r"got shape \(2, 1\)"),
        ([[0], [1, 0]], "uneven rows"),
        ("yes", r"got shape \(\)"),
        ([], "no labels"),
    ],
)
def test_unknown_labels_are_named(labels: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        PATIENT.encode_labels(labels)


@calm
@given(domains(), st.data())
def test_every_class_name_is_its_position(domain: Domain, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, len(domain.classes) - 1), min_size=1))
    names = np.array([domain.classes[code] for code in codes], dtype=object)
    assert domain.encode_labels(names).tolist() == codes


# Files


@calm
@given(domains())
def test_a_domain_comes_back_from_its_dictionary_json_and_toml(domain: Domain) -> None:
    assert Domain.from_dict(domain.to_dict()) == domain
    assert Domain.from_dict(json.loads(json.dumps(domain.to_dict(), allow_nan=False))) == domain
    assert Domain.from_toml(domain.to_toml()) == domain


def test_what_python_gives_and_what_a_file_gives_is_the_same_domain(tmp_path: Path) -> None:
    given_in_python = Domain(
        shape=[2],  # type: ignore[arg-type]
        lower=np.array([0, -1.5]),  # type: ignore[arg-type]
        upper=np.array([90, 4]),  # type: ignore[arg-type]
        classes=["no", "yes"],  # type: ignore[arg-type]
        family="tabular",
        features=["age", "blood"],  # type: ignore[arg-type]
    )
    path = tmp_path / "patient.toml"
    path.write_text(PATIENT.to_toml(), encoding="utf-8")
    assert given_in_python == Domain.load(path) == PATIENT
    assert hash(given_in_python) == hash(PATIENT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"upper": (0, 4)}, r"domain.upper must exceed domain.lower for feature 'age' \(got 0 and 0\)"),
        ({"upper": (90, 4, 5)}, "one for each of the 2 features .got 3."),
        ({"upper": (90, "4")}, "domain.upper must hold numbers .got '4'."),
        ({"upper": "90"}, "domain.upper must be a list"),
        ({"upper": True}, "domain.upper must hold numbers"),
        ({"lower": (0, math.nan)}, "domain.lower must be finite"),
        ({"lower": -math.inf}, "domain.lower must be finite"),
        ({"lower": -(10**400)}, "domain.lower must be finite"),
        ({"lower": -1.5e308, "upper": 1.5e308}, "must be a finite number"),
        ({"shape": ()}, "at least one dimension"),
        ({"shape": (0,)}, "at least 1 .got 0."),
        ({"shape": (2.0,)}, "integers"),
        ({"shape": (True, True)}, "integers"),
        ({"shape": 2}, "domain.shape must be a list"),
        ({"shape": (10**6, 10**6)}, "fewer than"),
        ({"classes": ("yes",)}, "at least two classes"),
        ({"classes": ("yes", "yes")}, "name each class once .got 'yes' twice."),
        ({"classes": (0, 1)}, "names in quotes .got 0."),
        ({"classes": ("", "yes")}, "names in quotes"),
        ({"classes": ("\ud800", "yes")}, "names in quotes"),
        ({"classes": "no"}, "domain.classes must be a list"),
        ({"neighbours": "remove-all"}, "one of replace-one, add-remove .got 'remove-all'."),
        ({"family": "drawings"}, "domain.family must be one of"),
        ({"features": ("age",)}, "each of the 2 features"),
        ({"bounds": 1}, "no setting 'bounds'"),
    ],
)
def test_a_mistaken_domain_is_refused_in_one_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Domain.from_dict(PATIENT.to_dict() | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["shape", "lower", "upper", "classes"])
def test_a_missing_setting_is_named(missing: str) -> None:
    values = PATIENT.to_dict()
    del values[missing]
    with pytest.raises(UserError, match=f"must set {missing}"):
        Domain.from_dict(values)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.toml.*No such file"):
        Domain.load(tmp_path / "absent.toml")
    with pytest.raises(UserError, match="directory"):
        Domain.load(tmp_path)
    path = tmp_path / "latin.toml"
    path.write_bytes(b'classes = ["caf\xe9"]')
    with pytest.raises(UserError, match=r"latin.toml.*utf-8"):
        Domain.load(path)
    path.write_text("shape = [1]\nlower = \n")
    with pytest.raises(UserError, match=r"latin.toml: a domain must be valid TOML"):
        Domain.load(path)


def domain_or_sentence(make: Callable[[], Domain]) -> Domain | str:
    """What came of it; anything but a `UserError` fails the test that asked."""
    try:
        return make()
    except UserError as error:
        return str(error)


def fuzzed(rng: random.Random) -> bytes:
    """A domain file with a few bytes, words or values spoilt."""
    text = rng.choice([PIXELS, PATIENT, UNIT]).to_toml()
    words = [
        "nan",
        "-inf",
        "1e999",
        "9" * 5000,
        "[" * 3000,
        "{a=1}",
        "1979-05-27",
        '"\\uD800"',
        "true",
        "[[x]]",
    ]
    words += [
        "'",
        '"""',
        "0x7fffffffffffffffff",
        "[]",
        '""',
        "=",
        "#",
        "\r",
        "\x00",
        "é",
        "lower=3\n",
        "[a.b]\n",
    ]
    for _ in range(rng.randint(0, 3)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice([0, 0, 1, 1, 2, 5, 40]))
        text = text[:start] + rng.choice([*words, *"0123456789-,.][ \n"]) + text[end:]
    raw = bytearray(text.encode())
    if rng.random() < 0.2:
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def spoilt_values(rng: random.Random) -> bytes:
    """A well-formed file in which one or two settings have another type or value."""
    values = ["nan", "inf", "-1", "0", "1e308", "[]", '[""]', '["a", "a"]', "[[1]]", "{}", '"x"', "1" * 400]
    values += [
        "[1, 'a']",
        "12:00:00",
        "true",
        "[true, false]",
        "-1.7e308",
        "[1.0, 2.0]",
        "['no', 'yes', '0']",
    ]
    lines = dict.fromkeys(["shape", "lower", "upper", "classes"], "")
    lines |= {"shape": "[2]", "lower": "0", "upper": "1", "classes": '["a", "b"]'}
    for _ in range(rng.randint(1, 2)):
        key = rng.choice([*lines, "neighbours", "family", "features", "other"])
        lines[key] = rng.choice(values)
    return "\n".join(f"{key} = {value}" for key, value in lines.items()).encode()


def test_five_hundred_fuzzed_files_give_a_domain_or_a_sentence(tmp_path: Path) -> None:
    rng = random.Random(20)
    outcomes = {"domain": 0, "sentence": 0}
    path = tmp_path / "fuzzed.toml"
    for trial in range(500):
        path.write_bytes(fuzzed(rng) if trial % 2 else spoilt_values(rng))
        made = domain_or_sentence(lambda: Domain.load(path))
        if isinstance(made, Domain):
            outcomes["domain"] += 1
            assert Domain.from_toml(made.to_toml()) == made
        else:
            outcomes["sentence"] += 1
            assert "\n" not in made
            assert len(made) < 600
    assert min(outcomes.values()) >= 20, outcomes


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@settings(calm, max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(["shape", "lower", "upper", "classes", "neighbours", "family", "features", "x"]),
        json_values,
    )
)
def test_any_json_gives_a_domain_or_a_sentence(change: dict[str, Any]) -> None:
    made = domain_or_sentence(lambda: Domain.from_dict(PATIENT.to_dict() | change))
    if isinstance(made, Domain):
        assert Domain.from_dict(made.to_dict()) == made
    else:
        assert "\n" not in made


def test_a_label_in_a_list_is_read_by_itself() -> None:
    """NumPy gives a list one type: beside a float, 2^53 + 1 would be another class."""
    names = (str(2**53), str(2**53 + 1))
    domain = Domain((1,), 0, 1, names)
    assert domain.encode_labels([2**53, 2**53 + 1]).tolist() == [0, 1]
    assert domain.encode_labels([float(2**53), 2**53 + 1]).tolist() == [0, 1]
    assert domain.encode_labels([str(2**53), 2**53 + 1]).tolist() == [0, 1]
    assert domain.encode_labels([torch.tensor(2**53 + 1), np.int64(2**53)]).tolist() == [1, 0]
