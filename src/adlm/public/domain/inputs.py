"""The public domain of files of images or of vectors: the input's column, the label, the privacy unit.

>>> photos = InputDomain.from_toml('''
... [columns.image]
... kind = "image"
... size = 32
... colour = "rgb"
... family = "natural"
... [columns.label]
... kind = "label"
... classes = ["cat", "dog"]
... ''')
>>> photos.domain.shape, photos.domain.classes
((3, 32, 32), ('cat', 'dog'))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tomli_w

from adlm.errors import UserError
from adlm.public.domain import declaration
from adlm.public.domain.column import Column
from adlm.public.domain.domain import FAMILY_USES, FITS, NEIGHBOURS, Domain

COLOURS = ("grey", "rgb")
INPUT_KINDS = ("image", "vector")
IMAGE_FAMILIES = ("drawn", "garments", "natural", "generic")
LEAST_SIDE, MOST_SIDE = 4, 1024  # pixels of a side that images can be resized to
_SETTINGS = ("neighbours", "columns")


@dataclass(frozen=True)
class ImageInput:
    """The declaration of an image column.

    Parameters
    ----------
    name : the column of image bytes in a Parquet file, of file names in a CSV file, or of the array in an
        .npz file. A folder with a subfolder for each class has no columns, and the name is not used.
    size : height and width that every image is resized to; one number for a square.
    colour : `grey` or `rgb`: every image is converted to it.
    family : the kind of images, which determines their public features.
    fit : how an image of another aspect is fitted to the size: `crop` its centre, `pad` it with black, or
        `stretch` it.
    """

    name: str
    size: tuple[int, int]
    colour: str
    family: str
    fit: str = "crop"

    def __post_init__(self) -> None:
        if self.colour not in COLOURS:
            raise self._wrong(f'colour must be "grey" or "rgb" (got {self.colour!r})')
        if self.fit not in FITS:
            raise self._wrong(f"fit must be one of {', '.join(FITS)} (got {self.fit!r})")
        if self.family not in IMAGE_FAMILIES:
            raise self._wrong(family_choices(self.family))
        if self.family in ("drawn", "garments") and self.colour == "rgb":
            raise self._wrong(f'family = "{self.family}" looks at shapes alone; declare colour = "grey"')

    def _wrong(self, sentence: str) -> UserError:
        return UserError(f"column {self.name!r}: {sentence}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self.size if self.colour == "grey" else (3, *self.size)

    def domain(self, classes: tuple[str, ...], neighbours: str) -> Domain:
        """The domain of resized records: bytes, 0 to 255."""
        fit = None if self.fit == FITS[0] else self.fit
        return Domain(self.shape, 0, 255, classes, neighbours, self.family, fit=fit)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        size = self.size[0] if self.size[0] == self.size[1] else list(self.size)
        fit = {} if self.fit == FITS[0] else {"fit": self.fit}
        return {
            "name": self.name,
            "kind": "image",
            "size": size,
            "colour": self.colour,
            "family": self.family,
        } | fit

    @classmethod
    def from_dict(cls, name: str, raw: Mapping[str, Any]) -> ImageInput:
        """Read the settings of a column of kind image."""
        _refuse_others(name, raw, ("size", "colour", "family", "fit"), "an image column")
        for key in ("size", "colour", "family"):
            if key not in raw:
                hint = family_choices(None) if key == "family" else f"set {key}"
                raise UserError(f"column {name!r}: an image column needs {key}; {hint}")
        for key in ("colour", "family", "fit"):
            if not isinstance(raw.get(key, ""), str):
                raise UserError(f"column {name!r}: {key} must be a text in quotes (got {raw[key]!r})")
        return cls(name, _sides(name, raw["size"]), raw["colour"], raw["family"], raw.get("fit", FITS[0]))


@dataclass(frozen=True)
class VectorInput:
    """The declaration of a vector column, such as embeddings of texts by a public encoder.

    Parameters
    ----------
    name : the column of lists of numbers in a Parquet file, or of the array in an .npz file.
    size : how many numbers a vector has.
    norm : public bound of its L2 norm; a longer one is scaled down to it.
    """

    name: str
    size: int
    norm: float = 1.0

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise UserError(
                f"column {self.name!r}: size must be an integer of at least 1 (got {self.size!r})"
            )
        number = isinstance(self.norm, int | float) and not isinstance(self.norm, bool)
        if not number or not 0 < self.norm < float("inf"):
            raise UserError(
                f"column {self.name!r}: norm must be a public bound above 0 of the vectors' length "
                f"(got {self.norm!r})"
            )

    def domain(self, classes: tuple[str, ...], neighbours: str) -> Domain:
        """The domain of vectors within the bound."""
        norm = float(self.norm)
        return Domain((self.size,), -norm, norm, classes, neighbours, "vector")

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"name": self.name, "kind": "vector", "size": self.size, "norm": self.norm}

    @classmethod
    def from_dict(cls, name: str, raw: Mapping[str, Any]) -> VectorInput:
        """Read the settings of a column of kind vector."""
        _refuse_others(name, raw, ("size", "norm"), "a vector column")
        for key in ("size", "norm"):
            if key not in raw:
                raise UserError(f"column {name!r}: a vector column needs {key}, which is public; set {key}")
        return cls(name, raw["size"], raw["norm"])


_READ = {"image": ImageInput.from_dict, "vector": VectorInput.from_dict}


@dataclass(frozen=True)
class InputDomain(declaration.DomainFile):
    """The declaration of a data set whose records are one image or one vector each, with a label.

    Parameters
    ----------
    input : the images or the vectors.
    label : the label's column, with its classes. Of a folder with a subfolder for each class, the classes are
        the names of the subfolders.
    person : the column that names the person, if records belong to persons.
    neighbours : `replace-one` or `add-remove`, of persons if there is a person column, else of records.
    """

    input: ImageInput | VectorInput
    label: Column
    person: Column | None = None
    neighbours: str = "replace-one"

    def __post_init__(self) -> None:
        if self.neighbours not in NEIGHBOURS:
            raise UserError(f"neighbours must be one of {', '.join(NEIGHBOURS)} (got {self.neighbours!r})")
        names = [self.input.name, self.label.name, *([self.person.name] if self.person else [])]
        if len(set(names)) != len(names):
            raise UserError(f"columns must have different names (got {', '.join(names)})")
        if self.label.missing is not None:
            raise UserError(
                f"column {self.label.name!r}: the label of an image or a vector cannot be missing"
            )
        folded: dict[str, str] = {}
        for name in self.label.classes:
            other = folded.setdefault(name.casefold(), name)
            if other != name:
                raise UserError(
                    f"the classes {other!r} and {name!r} differ in case alone, and many file systems take "
                    "them for one; rename one of them"
                )

    @property
    def contributions(self) -> int:
        """How many records one person may have."""
        return self.person.records if self.person else 1

    @property
    def domain(self) -> Domain:
        """The domain of a record's numbers."""
        return self.input.domain(self.label.classes, self.neighbours)

    @property
    def is_image(self) -> bool:
        """Whether records are images."""
        return isinstance(self.input, ImageInput)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; columns are a list, as those of a table."""
        columns = [self.input.to_dict(), self.label.to_dict()]
        if self.person is not None:
            columns.append(self.person.to_dict())
        return {"neighbours": self.neighbours, "columns": columns}

    @classmethod
    def from_dict(cls, raw: Any) -> Self:
        """Read the values of `to_dict` or of a domain file."""
        if not isinstance(raw, Mapping):
            raise UserError(f"a domain must be a table of settings (got {declaration.show(raw)})")
        for key in raw:
            if key not in _SETTINGS:
                raise UserError(
                    f"a domain of images or vectors has no setting {declaration.show(key)}; it has "
                    f"{' and '.join(_SETTINGS)}"
                )
        columns = declaration.named_columns(raw.get("columns"))
        if columns is None:
            raise UserError("a domain file has one section [columns.NAME] for each column")
        slots: dict[str, Any] = {}
        for name, settings in columns:
            kind = settings.get("kind") if isinstance(settings, Mapping) else None
            if kind == "ignored":
                continue
            slot = "input" if kind in INPUT_KINDS else kind
            if slot not in ("input", "label", "person"):
                raise UserError(
                    f"column {name!r}: an image or vector domain also has a label, an optional person and "
                    f"ignored columns (got kind {declaration.show(kind)})"
                )
            if slot in slots:
                what = "image or vector" if slot == "input" else slot
                raise UserError(f"a record has one {what} column (got {slots[slot].name} and {name})")
            rest = {key: value for key, value in settings.items() if key != "kind"}
            slots[slot] = (
                _READ[str(kind)](name, rest) if slot == "input" else Column.from_dict(name, settings)
            )
        if "input" not in slots or "label" not in slots:
            raise UserError("a domain needs one column of kind image or vector, and one of kind label")
        return cls(**slots, neighbours=raw.get("neighbours", "replace-one"))

    @classmethod
    def of_domain(cls, domain: Domain) -> InputDomain:
        """The declaration of records of a domain, with columns of the default names: image, vector, label.

        It lets any model of byte images read image files.
        """
        label = Column("label", "label", classes=domain.classes)
        if domain.family == "vector" and len(domain.shape) == 1 and not isinstance(domain.upper, tuple):
            return cls(VectorInput("vector", domain.size, domain.upper), label, None, domain.neighbours)
        of_image = len(domain.shape) == 2 or (len(domain.shape) == 3 and domain.shape[0] in (1, 3))
        if not of_image or (domain.lower, domain.upper) != (0, 255) or domain.family not in IMAGE_FAMILIES:
            raise UserError(
                "this was not made from a table, nor of images of bytes or of vectors; it cannot read a file"
            )
        colour = "rgb" if domain.shape[0] == 3 and len(domain.shape) == 3 else "grey"
        size = (domain.shape[-2], domain.shape[-1])
        images = ImageInput("image", size, colour, domain.family, domain.fit or FITS[0])
        return cls(images, label, None, domain.neighbours)

    @property
    def is_usual(self) -> bool:
        """Whether the declaration can be derived from the domain alone."""
        return self == InputDomain.of_domain(self.domain)

    def to_toml(self) -> str:
        """Text of a domain file."""
        raw = self.to_dict()
        sections = {column.pop("name"): column for column in raw.pop("columns")}
        return tomli_w.dumps(raw | {"columns": sections})


def is_input_domain(path: str | Path) -> bool:
    """Whether a domain file declares images or vectors, rather than a table or an array."""
    try:
        columns = declaration.load(path, declaration.toml).get("columns")
    except UserError:
        return False
    sections = columns.values() if isinstance(columns, Mapping) else ()
    return any(isinstance(one, Mapping) and one.get("kind") in INPUT_KINDS for one in sections)


def array_domain(path: str | Path) -> Domain:
    """Read the domain of a record's numbers from a file that declares images, vectors or an array."""
    return InputDomain.load(path).domain if is_input_domain(path) else Domain.load(path)


def family_choices(given: str | None) -> str:
    """Return a sentence with the families of images and their uses."""
    listed = "; ".join(f'"{name}" for {FAMILY_USES[name]}' for name in IMAGE_FAMILIES)
    got = "" if given is None else f" (got {given!r})"
    return f"family must say what kind of pictures these are, which no record may decide{got}: {listed}"


def _refuse_others(name: str, raw: Mapping[str, Any], allowed: tuple[str, ...], what: str) -> None:
    for key in raw:
        if key not in allowed:
            raise UserError(f"column {name!r}: {what} has no setting {key!r}; it has {', '.join(allowed)}")


def _sides(name: str, given: Any) -> tuple[int, int]:
    sides = list(given) if isinstance(given, list | tuple) else [given, given]
    integers = all(type(side) is int and LEAST_SIDE <= side <= MOST_SIDE for side in sides)
    if len(sides) != 2 or not integers:
        raise UserError(
            f"column {name!r}: size is a number of pixels or [height, width], from {LEAST_SIDE} to "
            f"{MOST_SIDE} each (got {declaration.show(given)}); the shipped feature maps are made for 28, "
            "32, 64 and 96"
        )
    return sides[0], sides[1]
