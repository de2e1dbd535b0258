"""The public domain of files: columns of a table, or one of images or vectors; label and privacy unit.

>>> table = TableDomain.from_toml('''
... [columns.age]
... kind = "numeric"
... lower = 0
... upper = 120
... [columns.ill]
... kind = "label"
... classes = ["no", "yes"]
... ''')
>>> table.domain.shape, table.domain.classes
((1,), ('no', 'yes'))

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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import tomli_w

from adlm.domain import domain as declaration
from adlm.domain.columns import FEATURE_KINDS, Column
from adlm.domain.domain import FAMILY_USES, FITS, NEIGHBOURS, Domain
from adlm.errors import UserError

# ---- The public domain of files of images or of vectors: the input's column, the label, the privacy unit.

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


# ---- The public domain of a table: its columns, its label, its privacy unit, and the domain file.


@dataclass(frozen=True)
class TableDomain(declaration.DomainFile):
    """The declaration of a table. Nothing in it is learnt from the records, except as marked below.

    Parameters
    ----------
    columns : the columns; in a file without a header row, in the order of the file.
    neighbours : `replace-one` or `add-remove`, of persons if there is a person column, else of records.
    header : whether the file has a header row.
    delimiter, quote : between the values of a CSV file, and around a value that holds the delimiter. If not
        declared, inferred from the header row; without one, a comma and a double quote. With an empty quote,
        quotes are plain text.
    newlines_in_values : whether a quoted value may span several lines. Only for CSV files whose writer
        doubles quotes: an unclosed quote takes in the rows after it and ends in an error, so it cannot be
        combined with `bad_rows = "missing"`.
    bad_rows : how to treat a row with the wrong number of values or a misplaced quote: as an `error`, or as a
        record with all values `missing`. Then every column, also the label, must declare `missing`.
    comment : lines above the header row that start with this are skipped.
    decimal : decimal separator of a CSV file: a point or a comma.
    missing : texts that mean that a value is missing.
    crosses : pairs of columns whose combinations are features of their own.
    bounds_learnt_from_data : set by `adlm domain init --peek`: of a release with such a domain nothing is
        proved, and it is stamped `NOT PRIVATE`.

    Raises
    ------
    UserError : columns contradict each other, or a setting is not allowed.

    Examples
    --------
    >>> from adlm.domain.columns import Column
    >>> from adlm.domain.table import TableDomain
    >>> age, ill = Column("age", "numeric", 0, 110), Column("ill", "label", classes=("no", "yes"))
    >>> TableDomain((age, ill)).domain.classes
    ('no', 'yes')
    """

    columns: tuple[Column, ...]
    neighbours: str = "replace-one"
    header: bool = True
    comment: str | None = None
    missing: tuple[str, ...] = ("", "?", "NA", "NaN", "nan", "null")
    crosses: tuple[tuple[str, str], ...] = ()
    bounds_learnt_from_data: bool = False
    decimal: str = "."
    delimiter: str | None = None
    quote: str | None = None
    newlines_in_values: bool = False
    bad_rows: str = "error"

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"column {name!r} is declared twice; declare each column once")
        for kind in ("label", "target", "person"):
            of_kind = [column.name for column in self.columns if column.kind == kind]
            if len(of_kind) > 1:
                raise UserError(f"a table has at most one {kind} column (got {', '.join(of_kind)})")
        if sum(column.kind in ("label", "target") for column in self.columns) != 1:
            raise UserError(
                "a table's domain must declare one column of kind label, with its classes, or one of kind "
                "target, with its bounds; what is not to be predicted is a feature or ignored"
            )
        if not self.features:
            raise UserError("a table's domain must declare at least one column that is not ignored")
        if self.neighbours not in NEIGHBOURS:
            raise UserError(f"neighbours must be one of {', '.join(NEIGHBOURS)} (got {self.neighbours!r})")
        if self.decimal not in (".", ","):
            raise UserError(f"decimal must be a point or a comma (got {self.decimal!r})")
        self._check_dialect()
        usable = {column.name for column in self.features}
        for pair in self.crosses:
            if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= usable:
                raise UserError(f"a cross names two different feature columns (got {list(pair)})")
            if sum(set(pair) == set(other) for other in self.crosses) > 1:
                raise UserError(
                    f"the cross of {pair[0]!r} and {pair[1]!r} is declared twice; declare it once"
                )
        for column in self.features:
            both = next((value for value in column.values if value in self.missing), None)
            if both is not None:
                raise UserError(
                    f"column {column.name!r}: {both!r} is one of its values and means missing; "
                    "take it out of one of the two"
                )

    def _check_dialect(self) -> None:
        """Refuse an ambiguous CSV dialect, and bad rows without a declared meaning."""
        if self.delimiter is not None and not _mark(self.delimiter):
            raise UserError(f"delimiter must be one plain character (got {self.delimiter!r})")
        if self.quote and not _mark(self.quote):
            raise UserError(f"quote must be one plain character, or empty for none (got {self.quote!r})")
        if self.delimiter is not None and self.delimiter == self.quote:
            raise UserError(f"delimiter and quote must differ (got {self.delimiter!r} for both)")
        if self.bad_rows not in ("error", "missing"):
            raise UserError(f'bad_rows must be "error" or "missing" (got {self.bad_rows!r})')
        if self.bad_rows == "missing":
            if self.newlines_in_values:
                raise UserError(
                    'bad_rows = "missing" does not go with newlines_in_values = true: one unclosed quote '
                    "would make all records after it a single missing one; leave out one of the two"
                )
            if self.person is not None:
                raise UserError('bad_rows = "missing" does not go with persons: a bad row has no person')
            for column in (*self.features, self.answer):
                if column.missing is None:
                    raise UserError(
                        f'bad_rows = "missing" needs missing in every column; column {column.name!r} has none'
                    )

    @property
    def features(self) -> tuple[Column, ...]:
        """The columns that a model reads."""
        return tuple(column for column in self.columns if column.kind in FEATURE_KINDS)

    @property
    def label(self) -> Column:
        """The label's column; a table with a numeric target has none."""
        if self.answer.kind != "label":
            raise UserError(
                f"column {self.answer.name!r} is a numeric target, and this needs classes: declare a label"
            )
        return self.answer

    @property
    def answer(self) -> Column:
        """The column that a model predicts: the label, or the target."""
        return next(column for column in self.columns if column.kind in ("label", "target"))

    @property
    def target(self) -> Column | None:
        """The numeric target's column; None where classes are predicted."""
        return self.answer if self.answer.kind == "target" else None

    @property
    def person(self) -> Column | None:
        """The column that names the person, if records belong to persons."""
        return next((column for column in self.columns if column.kind == "person"), None)

    @property
    def contributions(self) -> int:
        """How many records one person may have."""
        return self.person.records if self.person else 1

    @property
    def domain(self) -> Domain:
        """The domain of encoded records: numbers in [0, 1], one or several for each column."""
        names = tuple(name for column in self.features for name in column.names)
        bounds = None
        if self.target is not None:
            bounds = self.target.number(self.target.lower), self.target.number(self.target.upper)
        return Domain(
            (len(names),),
            0.0,
            1.0,
            self.answer.classes,
            self.neighbours,
            "tabular",
            names,
            target=bounds,
            bounds_learnt_from_data=self.bounds_learnt_from_data,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values; columns are a list, because their order matters."""
        out: dict[str, Any] = {"neighbours": self.neighbours, "header": self.header}
        for key in ("delimiter", "quote"):
            if getattr(self, key) is not None:
                out[key] = getattr(self, key)
        if self.newlines_in_values:
            out["newlines_in_values"] = True
        if self.bad_rows != "error":
            out["bad_rows"] = self.bad_rows
        if self.comment:
            out["comment"] = self.comment
        if self.decimal != ".":
            out["decimal"] = self.decimal
        out["missing"] = list(self.missing)
        if self.crosses:
            out["crosses"] = [list(pair) for pair in self.crosses]
        if self.bounds_learnt_from_data:
            out["bounds_learnt_from_data"] = True
        return out | {"columns": [column.to_dict() for column in self.columns]}

    @classmethod
    def from_dict(cls, raw: Any) -> Self:
        """Read the values of `to_dict` or of a domain file."""
        columns = declaration.named_columns(raw.get("columns")) if isinstance(raw, Mapping) else None
        if columns is None:
            raise UserError("a table's domain file has one section [columns.NAME] for each column")
        allowed = [field.name for field in fields(cls)]
        for key in raw:
            if key not in allowed:
                raise UserError(f"a table's domain has no setting {key!r}; it has {', '.join(allowed)}")
        for key in ("header", "newlines_in_values", "bounds_learnt_from_data"):
            if not isinstance(raw.get(key, True), bool):
                raise UserError(f"{key} must be true or false (got {raw[key]!r})")
        for key in ("missing", "crosses"):
            if not isinstance(raw.get(key, []), list | tuple):
                raise UserError(f"{key} must be a list (got {raw[key]!r})")
        for key in ("comment", "delimiter", "quote"):
            if not isinstance(raw.get(key, ""), str):
                raise UserError(f"{key} must be a text in quotes (got {raw[key]!r})")
        options = {key: value for key, value in raw.items() if key != "columns"}
        if "missing" in options:
            options["missing"] = tuple(str(text) for text in options["missing"])
        if "crosses" in options:
            options["crosses"] = tuple(
                tuple(pair) if isinstance(pair, list | tuple) else (pair,) for pair in options["crosses"]
            )
        return cls(tuple(Column.from_dict(name, settings) for name, settings in columns), **options)

    def to_toml(self) -> str:
        """Text of a domain file."""
        raw = self.to_dict()
        sections = {}
        for column in raw.pop("columns"):
            if "groups" in column:
                column["groups"] = dict(column["groups"])
            sections[column.pop("name")] = column
        return tomli_w.dumps(raw | {"columns": sections})


def _mark(text: str) -> bool:
    """Whether a text is one character that can be a delimiter or a quote."""
    return len(text) == 1 and text.isascii() and (text.isprintable() or text == "\t") and not text.isalnum()


def is_table_domain(path: str | Path) -> bool:
    """Whether a domain file declares a table's columns, rather than an array's bounds, images or vectors."""
    try:
        return "columns" in declaration.load(path, declaration.toml) and not is_input_domain(path)
    except UserError:
        return False
