"""A domain of images or vectors is declared, whole, and says what is wrong in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adlm.data import datasets
from adlm.domain import Domain
from adlm.domain.table import TableDomain, load_domain
from adlm.errors import UserError

PHOTOS: dict[str, Any] = {
    "columns": {
        "image": {"kind": "image", "size": 32, "colour": "rgb", "family": "natural"},
        "label": {"kind": "label", "classes": ["cat", "dog"]},
    }
}


def changed(**image: Any) -> dict[str, Any]:
    column = {**PHOTOS["columns"]["image"], **image}
    return {"columns": {**PHOTOS["columns"], "image": {k: v for k, v in column.items() if v is not None}}}


def test_a_declaration_survives_toml_and_json() -> None:
    raw = changed(size=[24, 40], fit="pad")
    raw["columns"]["who"] = {"kind": "person", "records": 3}
    raw["neighbours"] = "add-remove"
    declared = TableDomain.from_dict(raw)
    assert TableDomain.from_toml(declared.to_toml()) == declared
    assert TableDomain.from_dict(declared.to_dict()) == declared
    assert declared.contributions == 3
    assert declared.domain.shape == (3, 24, 40)
    assert declared.domain.fit == "pad"
    assert Domain.from_dict(declared.domain.to_dict()) == declared.domain


def test_a_folder_of_a_known_data_set_has_its_domain() -> None:
    """So a release of the folder has the certificate of a release by name."""
    known = datasets.domain("cifar10")
    raw = changed()
    raw["columns"]["label"] = {"kind": "label", "classes": list(known.classes)}
    declared = TableDomain.from_dict(raw)
    assert declared.domain == known
    assert declared == TableDomain.of_domain(known)
    assert TableDomain.of_domain(datasets.domain("mnist")).domain == datasets.domain("mnist")


def test_columns_of_other_names_are_not_usual() -> None:
    raw = changed()
    raw["columns"]["picture"] = raw["columns"].pop("image")
    declared = TableDomain.from_dict(raw)
    assert declared != TableDomain.of_domain(declared.domain)


def test_the_kind_of_a_domain_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(TableDomain.from_dict(PHOTOS).to_toml())
    assert load_domain(file) == TableDomain.from_dict(PHOTOS)
    file.write_text(datasets.domain("mnist").to_toml())
    assert load_domain(file) == datasets.domain("mnist")


def test_auto_is_refused_with_the_list_of_families_and_their_uses() -> None:
    with pytest.raises(UserError) as told:
        TableDomain.from_dict(changed(family="auto"))
    for words in (
        "must not depend on the records",
        "'auto'",
        "pen strokes",
        "single objects",
        "photographs",
        "generic",
    ):
        assert words in str(told.value)
    with pytest.raises(UserError, match=r"got 'auto'.*photographs"):
        Domain((8, 8), 0, 255, ("a", "b"), family="auto")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (changed(size=2), "size is a number of pixels"),
        (changed(size=[32, 32, 3]), "size is a number of pixels"),
        (changed(size=None), "an image column needs size"),
        (changed(family=None), "an image column needs family; .*photographs"),
        (changed(colour="red"), 'colour must be "grey" or "rgb"'),
        (changed(fit="squeeze"), "fit must be one of crop, pad, stretch"),
        (changed(family="drawn"), 'looks at shapes alone; declare colour = "grey"'),
        (changed(norm=1), "has no setting 'norm'"),
        ({"columns": {"image": PHOTOS["columns"]["image"]}}, "one of kind label"),
        (PHOTOS | {"header": True}, "has no setting 'header'"),
        (PHOTOS | {"neighbours": "near"}, "neighbours must be one of"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        TableDomain.from_dict(raw)


def test_classes_that_differ_in_case_are_refused() -> None:
    raw = changed()
    raw["columns"]["label"] = {"kind": "label", "classes": ["cat", "Cat"]}
    with pytest.raises(UserError, match="'cat' and 'Cat' differ in case alone"):
        TableDomain.from_dict(raw)


@pytest.mark.parametrize("norm", [0, -1, "1", True, float("inf")])
def test_a_vector_has_a_public_bound_of_its_length(norm: Any) -> None:
    raw = changed()
    raw["columns"]["image"] = {"kind": "vector", "size": 4, "norm": norm}
    with pytest.raises(UserError, match="norm must be a public bound above 0"):
        TableDomain.from_dict(raw)
