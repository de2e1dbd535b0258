"""The columns of records, as declared in a domain file: what each may hold, and how it is encoded.

A `Column` is the public declaration of one column: its bounds, its values and the meaning of a missing cell.
Encoding turns a cell into numbers in [0, 1] that depend on that cell and on the declaration alone.
"""

from __future__ import annotations

import datetime
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from adlm.domain.domain import FAMILY_USES, FITS, show
from adlm.errors import UserError

FEATURE_KINDS = ("numeric", "categorical", "ordinal", "boolean", "date")
INPUT_KINDS = ("image", "vector")
BOUNDED = ("numeric", "date", "target")
KINDS = (*FEATURE_KINDS, *INPUT_KINDS, "label", "target", "person", "ignored")
SCALES = ("linear", "log")
MISSING = "(missing)"
IMAGE_FAMILIES = ("drawn", "garments", "natural", "generic")
SIDES = (4, 1024)  # smallest and largest number of pixels that a side can be resized to

_ALLOWED: dict[str, frozenset[str]] = {
    "numeric": frozenset({"lower", "upper", "scale", "cuts", "integer", "missing"}),
    "categorical": frozenset({"values", "groups", "other", "missing"}),
    "ordinal": frozenset({"values", "missing"}),
    "boolean": frozenset({"values", "missing"}),
    "date": frozenset({"lower", "upper", "format", "cuts", "missing"}),
    "image": frozenset({"size", "colour", "family", "fit"}),
    "vector": frozenset({"size", "norm"}),
    "label": frozenset({"classes", "aliases", "missing"}),
    "target": frozenset({"lower", "upper", "integer", "missing"}),
    "person": frozenset({"records"}),
    "ignored": frozenset(),
}
_TRUTH = (("false", "no", "n", "f", "0"), ("true", "yes", "y", "t", "1"))
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)")


def iso_day(text: str) -> int:
    """Return the day of an ISO date, alone or with a time after it; ValueError for any other text."""
    if text[10:11] not in ("", "T", " "):
        raise ValueError(text)
    return day_of(datetime.datetime.fromisoformat(text))


def day_of(moment: datetime.datetime) -> int:
    """Return the day of a time: in UTC if it has a zone, because libraries give a column one zone."""
    if moment.tzinfo is not None:
        try:
            moment = moment.astimezone(datetime.UTC)
        except OverflowError:
            raise ValueError(str(moment)) from None
    return moment.date().toordinal()


def plain_number(text: str) -> float:
    """Parse a number; ValueError for Python literals that are not plain numbers, such as 1_000."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


@dataclass(frozen=True)
class Column:
    """One declared column.

    Parameters
    ----------
    name : the column's name in the file.
    kind : numeric, categorical, ordinal, boolean, date, image, vector, label, target, person or ignored. A
        label is a class to be predicted, a target a number. An image is the bytes of an image file in a
        Parquet file, a file name in a CSV file, or an entry of an array; a folder with a subfolder for each
        class has no columns, and the name is not used. A vector is a list of numbers, such as an embedding of
        a text by a public encoder.
    lower, upper : public bounds of a numeric column or of the target, or ISO dates of a date column. Values
        outside are clipped to them.
    scale : `linear` or `log`; `log` spreads small values of a column that starts at 0 or above.
    cuts : public cut points of a numeric or date column; without them the range is divided evenly.
    values : the public values of a categorical or ordinal column (in order), or (false, true) of a boolean.
    groups : groups of values of a categorical column, each a list of values or of ranges such as "390..459";
        the groups are then the categories.
    other : name of the category of values that are not listed; without it they are refused.
    missing : `category` makes a missing cell a category; a constant replaces it, and an indicator is added;
        None refuses missing cells.
    format : of a date, for strptime; ISO without it.
    classes, aliases : of the label; aliases map further texts to classes. A label's `missing` is the class
        that replaces a missing label; a target's is a number within its bounds.
    records : of the person column: how many records each person may contribute.
    integer : whether a numeric column or target has integers alone; synthetic tables then have, too.
    size : how many numbers a vector has; height and width that every image is resized to, or one number for a
        square.
    colour : of images, `grey` or `rgb`: every image is converted to it.
    family : the kind of images, which determines their public features.
    fit : how an image of another aspect is fitted to the size: `crop` its centre, `pad` it with black, or
        `stretch` it.
    norm : public bound of the L2 norm of a vector; a longer one is scaled down to it.
    """

    name: str
    kind: str
    lower: float | str | None = None
    upper: float | str | None = None
    scale: str = "linear"
    cuts: tuple[float | str, ...] = ()
    values: tuple[str, ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    other: str | None = None
    missing: str | float | None = None
    format: str | None = None
    classes: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    records: int = 1
    integer: bool = False
    size: int | tuple[int, int] | None = None
    colour: str | None = None
    family: str | None = None
    fit: str = FITS[0]
    norm: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise self._wrong(f"kind must be one of {', '.join(KINDS)} (got {self.kind!r})")
        if self.kind in BOUNDED:
            self._check_range()
        if self.kind == "vector":
            self._check_vector()
        if self.kind == "image":
            self._check_image()
        if self.kind == "categorical" and not (self.values or self.groups):
            raise self._wrong("a categorical column needs values or groups; list its public values")
        if self.kind == "ordinal" and len(self.values) < 2:
            raise self._wrong("an ordinal column needs at least two values, lowest first")
        if self.kind == "boolean" and self.values and len(self.values) != 2:
            raise self._wrong(f"a boolean column has two values, false then true (got {len(self.values)})")
        if self.kind == "label" and len(self.classes) < 2:
            raise self._wrong("the label needs at least two classes")
        if self.kind == "person" and self.records < 1:
            raise self._wrong(f"records must be at least 1 (got {self.records})")
        self._check_missing()
        self._check_names()
        if self.format is not None:
            try:
                datetime.datetime.strptime(datetime.date(2024, 5, 31).strftime(self.format), self.format)
            except (ValueError, re.error):
                raise self._wrong(
                    f"format must be one that strptime reads, such as %d.%m.%Y (got {self.format!r})"
                ) from None
        if self.kind == "categorical":
            self._check_categories()

    def _wrong(self, sentence: str) -> UserError:
        return UserError(f"column {self.name!r}: {sentence}")

    def _check_range(self) -> None:
        if self.lower is None or self.upper is None:
            name = "the target" if self.kind == "target" else f"a {self.kind} column"
            raise self._wrong(f"{name} needs public bounds; set lower and upper")
        low, high = self.number(self.lower), self.number(self.upper)
        if not high > low:
            raise self._wrong(f"upper must exceed lower (got {self.upper} and {self.lower})")
        if not math.isfinite(high - low):
            raise self._wrong(
                f"the range from {self.lower} to {self.upper} is too wide to compute with; declare less"
            )
        if self.scale not in SCALES:
            raise self._wrong(f"scale must be linear or log (got {self.scale!r})")
        if self.scale == "log" and low < 0:
            raise self._wrong(f"a log scale needs a lower bound of at least 0 (got {self.lower})")
        cuts = [self.number(cut) for cut in self.cuts]
        if any(not low < cut <= high for cut in cuts) or sorted(set(cuts)) != cuts:
            raise self._wrong("cuts must rise, and lie above lower and not above upper")

    def _check_vector(self) -> None:
        for key in ("size", "norm"):
            if getattr(self, key) is None:
                raise self._wrong(f"a vector column needs {key}, which is public; set {key}")
        if type(self.size) is not int or self.size < 1:
            raise self._wrong(f"size must be an integer of at least 1 (got {self.size!r})")
        number = isinstance(self.norm, int | float) and not isinstance(self.norm, bool)
        if not number or not 0 < float(self.norm or 0) < math.inf:
            raise self._wrong(
                f"norm must be a public bound above 0 of the vectors' length (got {self.norm!r})"
            )

    def _check_image(self) -> None:
        for key in ("size", "colour", "family"):
            if getattr(self, key) is None:
                hint = _family_choices(None) if key == "family" else f"set {key}"
                raise self._wrong(f"an image column needs {key}; {hint}")
        sides = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if len(sides) != 2 or not all(type(one) is int and SIDES[0] <= one <= SIDES[1] for one in sides):
            raise self._wrong(
                f"size is a number of pixels or [height, width], from {SIDES[0]} to {SIDES[1]} each "
                f"(got {show(self.size)}); the shipped feature maps are made for 28, 32, 64 and 96"
            )
        object.__setattr__(self, "size", sides)
        if self.colour not in ("grey", "rgb"):
            raise self._wrong(f'colour must be "grey" or "rgb" (got {self.colour!r})')
        if self.fit not in FITS:
            raise self._wrong(f"fit must be one of {', '.join(FITS)} (got {self.fit!r})")
        if self.family not in IMAGE_FAMILIES:
            raise self._wrong(_family_choices(self.family))
        if self.family in ("drawn", "garments") and self.colour == "rgb":
            raise self._wrong(f'family = "{self.family}" looks at shapes alone; declare colour = "grey"')

    def _check_names(self) -> None:
        """Refuse names that are listed twice, cannot occur, or stand for two things."""
        for what, names in (("values", self.values), ("classes", self.classes), ("groups", self.categories)):
            if len(set(names)) != len(names):
                twice = next(v for v in names if names.count(v) > 1)
                raise self._wrong(f"{what} must be listed once each (got {twice!r} twice)")
        members = (text for _, listed in self.groups for text in listed)
        for text in (*self.values, *self.classes, *(text for text, _ in self.aliases), *members):
            if text != text.strip():
                raise self._wrong(
                    f"cells are read without outer spaces, so {text!r} never occurs; write {text.strip()!r}"
                )
        for text, name in self.aliases:
            if name not in self.classes:
                raise self._wrong(f"alias {text!r} names {name!r}, which is not one of the classes")
            if text in self.classes and text != name:
                raise self._wrong(f"alias {text!r} names {name!r}, but is a class itself; remove the alias")

    def _check_categories(self) -> None:
        if self.other in self.values:
            raise self._wrong(
                f"other names {self.other!r}, which is one of the values; remove it from the values"
            )
        (_, ranges), _ = self.category_ranges()
        for low, high, _ in ranges:
            if low > high:
                raise self._wrong(f"the range {low:g}..{high:g} holds nothing; write the lower number first")
        for (low, high, group), (start, end, another) in itertools.combinations(ranges, 2):
            if group != another and max(low, start) <= min(high, end):
                raise self._wrong(
                    f"ranges {low:g}..{high:g} and {start:g}..{end:g} of two groups overlap; separate them"
                )

    def _check_missing(self) -> None:
        if self.missing is None or (self.missing == "category" and self.kind not in ("label", "target")):
            return
        if self.kind == "label":
            if self.missing not in self.classes:
                raise self._wrong(f"missing must be one of the classes (got {self.missing!r})")
        elif self.kind in BOUNDED:
            if not self.number(self.lower) <= self.number(self.missing) <= self.number(self.upper):
                raise self._wrong(f"missing must lie between lower and upper (got {self.missing})")
        elif self.kind not in ("ordinal", "boolean") or str(self.missing) not in self.levels:
            raise self._wrong(f"missing must be 'category' or a value of the column (got {self.missing!r})")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an image or a vector."""
        size = self.size if isinstance(self.size, tuple) else (int(self.size or 0),)
        return (3, *size) if self.colour == "rgb" else size

    def number(self, value: Any) -> float:
        """Return a bound as a number: itself, or the day of a date."""
        if self.kind == "date":
            return float(self.day(value))
        try:
            number = float(value) if isinstance(value, int | float) else math.nan
        except OverflowError:  # an integer beyond all doubles
            number = math.inf
        if isinstance(value, bool) or not math.isfinite(number):
            raise self._wrong(f"bounds, cuts and constants must be finite numbers (got {show(value)})")
        return number

    def day(self, value: Any) -> int:
        """Return a date as a number of days; bounds are ISO dates or TOML dates."""
        if isinstance(value, datetime.datetime):
            return day_of(value)
        if isinstance(value, datetime.date):
            return value.toordinal()
        try:
            return iso_day(str(value).strip())
        except ValueError:
            raise self._wrong(f"dates are written like 2024-05-31 (got {value!r})") from None

    @property
    def levels(self) -> tuple[str, ...]:
        """Values of an ordinal or boolean column, lowest first."""
        return self.values or ("false", "true")

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories that a categorical column is encoded in, without the missing one."""
        names = tuple(name for name, _ in self.groups) if self.groups else self.values
        return names + ((self.other,) if self.other and self.other not in names else ())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers that encode a cell."""
        if self.kind == "categorical":
            cells = [f"{self.name}={value}" for value in self.categories]
        elif self.kind in FEATURE_KINDS:
            cells = [self.name]
        else:
            return ()
        return (*cells, f"{self.name}={MISSING}") if self.missing is not None else tuple(cells)

    @property
    def width(self) -> int:
        """How many numbers encode a cell."""
        return len(self.names)

    def position(self, value: float) -> float:
        """Place a number (or day) in [0, 1] between the bounds, on the declared scale."""
        low, high = self.number(self.lower), self.number(self.upper)
        value = min(max(value, low), high)
        if self.scale == "log":
            return math.log1p(value - low) / math.log1p(high - low)
        return (value - low) / (high - low)

    def truth(self) -> dict[str, int]:
        """Texts of a boolean column and their codes."""
        if self.values:
            return {text: code for code, text in enumerate(self.values)}
        return {text: code for code, texts in enumerate(_TRUTH) for text in texts}

    def category_ranges(self) -> tuple[tuple[dict[str, int], list[tuple[float, float, int]]], int | None]:
        """Categories of values: exact texts, integer ranges, and the code of all others."""
        exact: dict[str, int] = {}
        ranges: list[tuple[float, float, int]] = []
        groups = self.groups or tuple((value, (value,)) for value in self.values)
        for code, (_, members) in enumerate(groups):
            for member in members:
                match = _RANGE.fullmatch(member)
                if match:
                    ranges.append((float(match[1]), float(match[2]), code))
                elif member in exact:
                    raise self._wrong(f"value {member!r} is in two groups; put it in one")
                else:
                    exact[member] = code
        rest = self.categories.index(self.other) if self.other else None
        return (exact, ranges), rest

    def to_dict(self) -> dict[str, Any]:
        """JSON values, without unset ones. Groups are a list of pairs, because order matters."""
        out: dict[str, Any] = {"name": self.name, "kind": self.kind}
        for key in (f.name for f in fields(self) if f.name in _ALLOWED[self.kind]):
            value = getattr(self, key)
            if (
                value is False
                or value in (None, ())
                or (key, value) in (("scale", "linear"), ("fit", FITS[0]))
            ):
                continue
            if key == "groups":
                value = [[name, list(members)] for name, members in value]
            elif key == "aliases":
                value = dict(value)
            elif key == "size" and isinstance(value, tuple) and value[0] == value[1]:
                value = value[0]
            elif isinstance(value, tuple):
                value = list(value)
            out[key] = value
        return out

    @classmethod
    def from_dict(cls, name: str, raw: Any) -> Column:
        """Read one column's settings; a setting that its kind does not have is refused."""
        if not isinstance(raw, Mapping) or not isinstance(raw.get("kind"), str):
            raise UserError(f"column {name!r}: set kind to one of {', '.join(KINDS)}")
        options = dict(raw)
        kind = options.pop("kind")
        if kind not in KINDS:
            raise UserError(f"column {name!r}: kind must be one of {', '.join(KINDS)} (got {kind!r})")
        for key in options:
            if key not in _ALLOWED[kind]:
                allowed = ", ".join(sorted(_ALLOWED[kind])) or "no settings"
                article = "an" if kind[0] in "aeiou" else "a"
                raise UserError(
                    f"column {name!r}: {article} {kind} column has no setting {key!r}; it has {allowed}"
                )
        for key in ("lower", "upper", "missing"):
            if key in options:
                options[key] = _iso(options[key])
        for key in ("values", "classes", "cuts"):
            if key in options:
                options[key] = _listed(name, key, options[key], texts=key != "cuts")
        if "groups" in options:
            groups = _mapping(name, "groups", options["groups"])
            options["groups"] = tuple((str(g), _listed(name, "groups", m, texts=True)) for g, m in groups)
        if "aliases" in options:
            options["aliases"] = tuple(
                (str(k), str(v)) for k, v in _mapping(name, "aliases", options["aliases"])
            )
        if type(options.get("records", 1)) is not int:  # a bool is an int in Python
            raise UserError(f"column {name!r}: records must be an integer (got {options['records']!r})")
        if type(options.get("integer", False)) is not bool:
            raise UserError(f"column {name!r}: integer must be true or false (got {options['integer']!r})")
        if isinstance(options.get("size"), list):
            options["size"] = tuple(options["size"])
        for key in ("other", "format", "scale", "colour", "family", "fit"):
            if key in options and not isinstance(options[key], str):
                raise UserError(f"column {name!r}: {key} must be a text in quotes (got {options[key]!r})")
        return cls(name, kind, **options)


def _family_choices(given: str | None) -> str:
    """Return a sentence with the families of images and their uses."""
    listed = "; ".join(f'"{name}" for {FAMILY_USES[name]}' for name in IMAGE_FAMILIES)
    got = "" if given is None else f" (got {given!r})"
    return f"family must say what kind of images these are, and must not depend on the records{got}: {listed}"


def _listed(name: str, key: str, value: Any, *, texts: bool) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"column {name!r}: {key} must be a list with at least one entry (got {value!r})")
    return tuple(str(v) if texts else _iso(v) for v in value)


def _iso(value: Any) -> Any:
    """A TOML date as its text, so that a domain is the same in TOML, in JSON and in memory."""
    return value.isoformat() if isinstance(value, datetime.date) else value


def _mapping(name: str, key: str, value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, list | tuple) and all(isinstance(v, list | tuple) and len(v) == 2 for v in value):
        return [(pair[0], pair[1]) for pair in value]
    if not isinstance(value, Mapping) or not value:
        raise UserError(f"column {name!r}: {key} must be a table of names (got {value!r})")
    return list(value.items())
