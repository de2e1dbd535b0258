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

>>> photos = TableDomain.from_toml('''
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
from adlm.domain.columns import FEATURE_KINDS, IMAGE_FAMILIES, INPUT_KINDS, Column
from adlm.domain.domain import FITS, NEIGHBOURS, Domain
from adlm.errors import UserError


@dataclass(frozen=True)
class TableDomain(declaration.DomainFile):
    """The declaration of files of records. Nothing in it is learnt from them, except as marked below.

    The records are rows of a table, or one image or one vector each. Those have a label, an optional person,
    and of the settings below `neighbours` alone.

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
        if self.input is not None:
            self._check_input()
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
        if not self.features and self.input is None:
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

    def _check_input(self) -> None:
        """Refuse what images and vectors cannot have; ignored columns and the order have no meaning."""
        of_kind: dict[str, list[Column]] = {"input": [], "label": [], "person": [], "ignored": []}
        for column in self.columns:
            slot = "input" if column.kind in INPUT_KINDS else column.kind
            if slot not in of_kind:
                raise UserError(
                    f"column {column.name!r}: an image or vector domain also has a label, an optional person "
                    f"and ignored columns (got kind {column.kind!r})"
                )
            of_kind[slot].append(column)
        if len(of_kind["input"]) > 1:
            given = " and ".join(column.name for column in of_kind["input"])
            raise UserError(f"a record has one image or vector column (got {given})")
        if not of_kind["label"]:
            raise UserError("a domain needs one column of kind image or vector, and one of kind label")
        object.__setattr__(
            self, "columns", tuple(c for k in ("input", "label", "person") for c in of_kind[k])
        )
        label = self.label
        if label.missing is not None:
            raise UserError(f"column {label.name!r}: the label of an image or a vector cannot be missing")
        folded: dict[str, str] = {}
        for name in label.classes:
            other = folded.setdefault(name.casefold(), name)
            if other != name:
                raise UserError(
                    f"the classes {other!r} and {name!r} differ in case alone, and many file systems take "
                    "them for one; rename one of them"
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
    def input(self) -> Column | None:
        """The column of images or vectors; None for a table."""
        return next((column for column in self.columns if column.kind in INPUT_KINDS), None)

    @property
    def is_image(self) -> bool:
        """Whether records are images."""
        return self.input is not None and self.input.kind == "image"

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
        """The domain of a record's numbers: bytes, a vector, or for a table the encoding in [0, 1]."""
        given, classes = self.input, self.answer.classes
        if given is not None and given.kind == "image":
            fit = None if given.fit == FITS[0] else given.fit
            return Domain(given.shape, 0, 255, classes, self.neighbours, str(given.family), fit=fit)
        if given is not None:
            norm = float(given.norm or 0)
            return Domain(given.shape, -norm, norm, classes, self.neighbours, "vector")
        names = tuple(name for column in self.features for name in column.names)
        bounds = None
        if self.target is not None:
            bounds = self.target.number(self.target.lower), self.target.number(self.target.upper)
        return Domain(
            (len(names),),
            0.0,
            1.0,
            classes,
            self.neighbours,
            "tabular",
            names,
            target=bounds,
            bounds_learnt_from_data=self.bounds_learnt_from_data,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values; columns are a list, because their order matters."""
        columns = [column.to_dict() for column in self.columns]
        if self.input is not None:
            return {"neighbours": self.neighbours, "columns": columns}
        out: dict[str, Any] = {"neighbours": self.neighbours, "header": self.header}
        for key in ("delimiter", "quote", "newlines_in_values", "bad_rows", "comment", "decimal"):
            value = getattr(self, key)
            if value != _DEFAULTS[key] and (value or key == "quote"):
                out[key] = value
        out["missing"] = list(self.missing)
        if self.crosses:
            out["crosses"] = [list(pair) for pair in self.crosses]
        if self.bounds_learnt_from_data:
            out["bounds_learnt_from_data"] = True
        return out | {"columns": columns}

    @classmethod
    def from_dict(cls, raw: Any) -> Self:
        """Read the values of `to_dict` or of a domain file."""
        columns = declaration.named_columns(raw.get("columns")) if isinstance(raw, Mapping) else None
        if columns is None:
            raise UserError("a domain file has one section [columns.NAME] for each column")
        of_inputs = any(isinstance(c, Mapping) and c.get("kind") in INPUT_KINDS for _, c in columns)
        what = "a domain of images or vectors" if of_inputs else "a table's domain"
        allowed = ["neighbours", "columns"] if of_inputs else [field.name for field in fields(cls)]
        for key in raw:
            if key not in allowed:
                raise UserError(f"{what} has no setting {declaration.show(key)}; it has {', '.join(allowed)}")
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

    @classmethod
    def of_domain(cls, domain: Domain) -> TableDomain:
        """The declaration of records of a domain, with columns of the default names: image, vector, label.

        It lets any model of byte images read image files.
        """
        label = Column("label", "label", classes=domain.classes)
        if domain.family == "vector" and len(domain.shape) == 1 and not isinstance(domain.upper, tuple):
            given = Column("vector", "vector", size=domain.size, norm=domain.upper)
            return cls((given, label), domain.neighbours)
        of_image = len(domain.shape) == 2 or (len(domain.shape) == 3 and domain.shape[0] in (1, 3))
        if not of_image or (domain.lower, domain.upper) != (0, 255) or domain.family not in IMAGE_FAMILIES:
            raise UserError(
                f"records of shape {domain.shape} here are arrays, which no file of records holds; use "
                "--data NAME, or predict from Python"
            )
        colour = "rgb" if domain.shape[0] == 3 and len(domain.shape) == 3 else "grey"
        size = (domain.shape[-2], domain.shape[-1])
        given = Column(
            "image", "image", size=size, colour=colour, family=domain.family, fit=domain.fit or FITS[0]
        )
        return cls((given, label), domain.neighbours)

    def to_toml(self) -> str:
        """Text of a domain file."""
        raw = self.to_dict()
        sections = {}
        for column in raw.pop("columns"):
            if "groups" in column:
                column["groups"] = dict(column["groups"])
            sections[column.pop("name")] = column
        return tomli_w.dumps(raw | {"columns": sections})


_DEFAULTS = {setting.name: setting.default for setting in fields(TableDomain)}


def _mark(text: str) -> bool:
    """Whether a text is one character that can be a delimiter or a quote."""
    return len(text) == 1 and text.isascii() and (text.isprintable() or text == "\t") and not text.isalnum()


def load_domain(path: str | Path) -> Domain | TableDomain:
    """Read a domain file: one with columns, or one of an array's bounds."""
    raw = declaration.load(path, declaration.toml)
    return TableDomain.load(path) if "columns" in raw else Domain.load(path)
