"""Drafts of a domain file, from names and types alone; checks of files against one, which are not private."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from adlm.data.arrow import class_names, opened_arrow, pieces_of_arrow
from adlm.data.csv import BLOCK, DELIMITERS, CsvPiece, Lines, split
from adlm.data.files import ARROW, PARQUET, UNREADABLE, Raw, check_header, data_file, explain, opened
from adlm.data.images import CSV, LISTS, cells_of, decoded, label_codes
from adlm.data.reading import pieces_of
from adlm.domain.columns import IMAGE_FAMILIES, Column, iso_day, plain_number
from adlm.domain.domain import FAMILY_USES, FITS
from adlm.domain.encoding import CellError, Survey, cell_text, person_texts, survey_column
from adlm.domain.table import TableDomain
from adlm.errors import UserError

# ---- Drafts of a domain file: names of columns and of subfolders, and the types of a schema.

FILL_IN = "# Domain of {}: what is known of it without reading it. Fill in what is public."
_TEMPLATE = """#
# A section of a column has one of these, with what is public of it:
#   kind = "numeric"      and  lower = 0, upper = 100; optionally scale = "log", integer = true
#   kind = "categorical"  and  values = ["a", "b"]; optionally other = "rest", for all other values
#   kind = "ordinal"      and  values = ["low", "middle", "high"]
#   kind = "boolean"      and  values = ["no", "yes"]
#   kind = "date"         and  lower = 2000-01-01, upper = 2030-12-31
#   kind = "label"        and  classes = ["no", "yes"], or for a number to predict
#   kind = "target"       and  lower = 0, upper = 100
#   kind = "person"       and  records = 1, the most that one person may have
# Where values may be missing, add missing = "category".
#"""
_HINTS = {
    "numeric": '# lower = \n# upper = \n# scale = "log", cuts = [...] and missing = "category" if they fit\n',
    "categorical": '# values = [...]\n# missing = "category" and other = "other" if they fit\n',
    "boolean": "",
    "date": "# lower = 2000-01-01\n# upper = 2030-12-31\n",
    "label": '# classes = ["no", "yes"]\n# for a number to predict: kind = "target", with lower and upper\n',
    "person": "records = 1\n",
    "ignored": "# choose a kind from the list above to use this column\n",
}


def header_of(path: Path, *, header: bool | None = None, delimiter: str | None = None) -> dict[str, str]:
    """Column names and the kinds that the file's schema suggests; no record is shown.

    Parameters
    ----------
    header : whether a CSV file has a header row; None refuses a first line that looks like a record. Without
        a header row the columns are numbered, and only the number of cells of the first line is used.
    delimiter : of a CSV file; by default inferred from the header row, or a comma.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}; give a CSV or Parquet file")
    if path.suffix.lower() in PARQUET:
        if header is False:
            raise UserError(f"{path} is a Parquet file, which names its columns; leave out --no-header")
        schema = _schema(path)
        return {name: _kind(schema.field(i).type) for i, name in enumerate(schema.names)}
    try:
        with opened(path) as (stream, _):
            line = Lines(path, stream, BLOCK).header(None)
    except UNREADABLE as error:
        raise UserError(f"{path}: {explain(error)}") from None
    if header is False:
        return {f"column{at + 1}": "ignored" for at in range(len(split(line, delimiter or ",", '"')))}
    names = [name.strip() for name in split(line, delimiter or max(DELIMITERS, key=line.count), '"')]
    why = None if header else _unlike_a_header(names)
    if why is not None:
        raise UserError(
            f"the first line of {path} does not look like a header row ({why}); if it is a record use "
            "--no-header, if it is a header row use --header"
        )
    check_header(path, names, names)
    return dict.fromkeys(names, "ignored")


def _unlike_a_header(names: list[str]) -> str | None:
    """Return the reason why a line is not a header row, without its cells."""
    for at, name in enumerate(names):
        if not name or name in ("?", "NA"):
            return f"cell {at + 1} is empty"
        if names.count(name) > 1:
            return f"cell {at + 1} is there twice"
        with contextlib.suppress(ValueError):
            plain_number(name)
            return f"cell {at + 1} is a number"
        with contextlib.suppress(ValueError):
            iso_day(name)
            return f"cell {at + 1} is a date"
    return None


def _schema(path: Path) -> Any:
    with opened_arrow(data_file(path)) as (schema, _):
        return schema


def _kind(kind: Any) -> str:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "numeric"
    return "date" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else "categorical"


def _named(path: Path, names: Sequence[str], *given: str | None) -> None:
    """Refuse a column that the file does not have."""
    for name in given:
        if name is not None and name not in names:
            raise UserError(
                f"{path} has no column {name!r}; name one of its {len(names)} columns as the header row does "
                "(column1, column2 and so on if there is none)"
            )


def draft(
    path: Path,
    *,
    label: str | None = None,
    person: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
) -> str:
    """Draft a domain file of a table from the header and the schema's types alone.

    Parameters
    ----------
    path : the file.
    label, person : columns of that kind; by default the last column is the label.
    header, delimiter : of a CSV file; inferred by default.
    """
    kinds = header_of(path, header=header, delimiter=delimiter)
    _named(path, list(kinds), label, person)
    label = label or list(kinds)[-1]
    lines = [
        FILL_IN.format(path.name),
        "# Bounds and values come from what the columns mean, never from the records.",
        _TEMPLATE,
        'neighbours = "replace-one"',
        'missing = ["", "?", "NA"]',
    ]
    if header is False:
        lines += ["# The file has no header row: rename the columns, and keep their order.", "header = false"]
    if delimiter is not None:
        lines.append(f"delimiter = {json.dumps(delimiter)}")
    lines.append("")
    for name, kind in kinds.items():
        kind = "label" if name == label else "person" if name == person else kind
        lines += [f"[columns.{_quoted(name)}]", f'kind = "{kind}"', _HINTS[kind]]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    plain = text.replace("-", "").replace("_", "")
    return text if plain.isascii() and plain.isalnum() else json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class Choices:
    """The user's options for a draft of images or vectors; unset ones are left to fill in."""

    label: str | None = None
    person: str | None = None
    family: str | None = None
    size: int | None = None
    colour: str | None = None

    @property
    def of_images(self) -> bool:
        """Whether an option was set that only images have."""
        return (self.family, self.size, self.colour) != (None, None, None)


def draft_inputs(path: Path, choices: Choices) -> str | None:
    """Draft a domain of images or vectors, or return None for what is a table.

    Parameters
    ----------
    path : a folder, or a file of any form that holds images or vectors.
    choices : the user's options.
    """
    files = sorted(entry for entry in path.iterdir() if entry.is_file()) if path.is_dir() else [path]
    tables = [entry for entry in files if entry.suffix.lower() in (*PARQUET, *ARROW)]
    if tables:
        found = _of_schema(path, _schema(tables[0]), choices)
        if found is None and path.is_dir():
            raise UserError(f"{tables[0]} has no column of image bytes or of lists of numbers; give the file")
        return found
    lists = [entry for entry in files if entry.suffix.lower() in (CSV if path.is_dir() else (*CSV, ".gz"))]
    if lists and (path.is_dir() or choices.of_images):
        names = list(header_of(lists[0]))
        _named(lists[0], names, choices.label, choices.person)
        label = choices.label or names[-1]
        rest = [name for name in names if name not in (label, choices.person)]
        if not rest:
            raise UserError(f"{lists[0]} has no column of file names beside the label")
        return _text(lists[0], rest[0], _image_lines(choices), label, None, choices.person)
    if not path.is_dir():
        return None
    classes = sorted(e.name for e in path.iterdir() if e.is_dir() and not e.name.startswith("."))
    if not classes:
        raise UserError(f"{path} has neither a subfolder for each class, nor a CSV or Parquet file")
    if choices.person is not None:
        raise UserError(f"{path} has a subfolder for each class, which names no person; leave out --person")
    return _text(path, "image", _image_lines(choices), choices.label or "label", classes, None)


def _of_schema(path: Path, schema: Any, choices: Choices) -> str | None:
    names = list(schema.names)
    kinds = {name: _input_kind(schema.field(name).type) for name in names}
    column = next((name for name in names if kinds[name]), None)
    if column is None:
        return None
    _named(path, names, choices.label, choices.person)
    others = [name for name in names if name != column]
    label = choices.label or ("label" if "label" in others else others[-1] if others else "label")
    lines = _image_lines(choices)
    if kinds[column] == "vector":
        size = getattr(schema.field(column).type, "list_size", -1)
        lines = ['kind = "vector"', f"size = {size}" if size > 0 else "# size = ", "# norm = 1.0"]
    return _text(path, column, lines, label, class_names(schema, label), choices.person)


def _input_kind(kind: Any) -> str | None:
    if pa.types.is_struct(kind):
        return "image" if any(kind.field(at).name == "bytes" for at in range(kind.num_fields)) else None
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "image"
    return "vector" if any(test(kind) for test in LISTS) else None


def _image_lines(choices: Choices) -> list[str]:
    return [
        'kind = "image"',
        "# Every image is resized to this many pixels a side, or to [height, width]; features are made for",
        "# 28, 32, 64 and 96.",
        f"size = {choices.size or (28 if choices.family in ('drawn', 'garments') else 32)}",
        f'colour = "{choices.colour or ("grey" if choices.family in ("drawn", "garments") else "rgb")}"',
        f'fit = "{FITS[0]}"  # or "pad", "stretch"',
        "# What kind of images these are; a public choice, which must not depend on the records:",
        *(f'#   "{name}": {FAMILY_USES[name]}' for name in IMAGE_FAMILIES),
        f'family = "{choices.family}"' if choices.family else "# family = ",
    ]


def _text(
    path: Path, column: str, lines: list[str], label: str, classes: list[str] | None, person: str | None
) -> str:
    listed = (
        "# classes = [...]" if classes is None else f"classes = {json.dumps(classes, ensure_ascii=False)}"
    )
    sections = [FILL_IN.format(path.name), 'neighbours = "replace-one"', ""]
    sections += [f"[columns.{_quoted(column)}]", *lines, ""]
    sections += [f"[columns.{_quoted(label)}]", 'kind = "label"', listed]
    if person is not None:
        sections += ["", f"[columns.{_quoted(person)}]", 'kind = "person"', "records = 1"]
    return "\n".join(sections) + "\n"


# ---- A domain learnt from the data. Every artefact made with it states that.

MOST_VALUES = (50, 256)  # distinct texts of a peeked categorical column: in any file, in a long one
RECORDS_EACH = 10  # records per text from which a file is long


def peek(
    path: Path,
    *,
    label: str | None = None,
    person: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
) -> TableDomain:
    """Fill in a table's domain from the data; the parameters are those of `draft`."""
    names = list(header_of(path, header=header, delimiter=delimiter))
    _named(path, names, label, person)
    label = label or names[-1]
    if len(names) < 2:
        raise UserError(f"{path} has one column; a table has a label and at least one column beside it")
    kinds = dict.fromkeys(names, "boolean") | {label: "label"}  # unused: cells are read as texts
    written: dict[str, Any] = {"header": header is not False, "delimiter": delimiter}
    plain = TableDomain(
        tuple(Column(n, k, classes=("a", "b") if k == "label" else ()) for n, k in kinds.items()), **written
    )
    seen: dict[str, _Summary] = {name: _Summary() for name in names}
    for raw in _raws(path, plain, names):
        for name in names:
            seen[name].add(raw.cells[name], plain.missing)
    columns = {name: seen[name].column(name) for name in names if name not in (label, person)}
    columns[label] = Column(label, "label", classes=tuple(sorted(seen[label].texts)))
    if person is not None:
        columns[person] = Column(person, "person", records=1)
    return TableDomain(tuple(columns[name] for name in names), bounds_learnt_from_data=True, **written)


@dataclass
class _Summary:
    """Summary of a column's cells so far, in bounded memory."""

    texts: set[str] = field(default_factory=set)
    many: bool = False
    numeric: bool = True
    date: bool = True
    low: float = float("inf")
    high: float = float("-inf")
    first: str = "9999-12-31"
    last: str = "0001-01-01"
    gaps: bool = False
    cells: int = 0

    def add(self, cells: Any, missing: tuple[str, ...]) -> None:
        self.cells += len(cells)
        for value in cells.unique().to_pylist():
            text = cell_text(value)
            if text is None or text in missing:
                self.gaps = True
                continue
            if not self.many:
                self.texts.add(text)
                self.many = len(self.texts) > MOST_VALUES[1]
            try:
                number = plain_number(text)
            except ValueError:
                number = math.inf
            self.numeric = self.numeric and math.isfinite(number)
            self.low, self.high = min(self.low, number), max(self.high, number)
            try:
                day = datetime.date.fromordinal(iso_day(text if "-" in text else "none")).isoformat()
            except ValueError:
                self.date = False
            else:
                self.first, self.last = min(self.first, day), max(self.last, day)

    def column(self, name: str) -> Column:
        gaps = "category" if self.gaps else None
        if self.numeric and self.high > self.low:
            return Column(name, "numeric", self.low, self.high, missing=gaps)
        if self.texts and self.date and self.last > self.first:
            return Column(name, "date", self.first, self.last, missing=gaps)
        if {text.lower() for text in self.texts} in ({"false", "true"}, {"no", "yes"}):
            return Column(name, "boolean", missing=gaps)
        if self.many or not self.texts or len(self.texts) > max(MOST_VALUES[0], self.cells / RECORDS_EACH):
            return Column(name, "ignored")
        return Column(name, "categorical", values=tuple(sorted(self.texts)), missing=gaps)


def _raws(path: Path, table: TableDomain, wanted: Sequence[str]) -> Iterator[Raw]:
    """Yield columns of a file as they are written, a few rows at a time."""
    file = data_file(path)
    pieces = [CsvPiece(file)] if file.is_text else pieces_of_arrow(file, wanted)
    for piece in pieces:
        yield from piece.raw(table, wanted, 8192)


# ---- Checks of files against a domain. Not private: for the data owner only.


@dataclass
class Check:
    """What a check found; that it was made is no secret, what it says is.

    Attributes
    ----------
    records : their number.
    columns : of a table: the cells that do not fit, column by column.
    classes, broken, refused : of images or vectors: records of each class, how many cannot be read, and the
        first few sentences why.
    persons, most_records, dropped, unnamed : where persons are declared: their number, most records of one,
        records beyond the declared number per person, and records that name nobody, which are refused.
    """

    records: int = 0
    columns: dict[str, Survey] = field(default_factory=dict)
    classes: Counter[str] = field(default_factory=Counter)
    broken: int = 0
    refused: list[str] = field(default_factory=list)
    persons: int | None = None
    most_records: int | None = None
    dropped: int | None = None
    unnamed: int | None = None

    def count(self, people: Counter[str], most: int) -> Check:
        """Add the counts of persons."""
        self.unnamed = people.pop("", 0)
        self.persons, self.most_records = len(people), max(people.values(), default=0)
        self.dropped = sum(max(0, count - most) for count in people.values())
        return self


def check(path: Path, table: TableDomain) -> Check:
    """Count the cells of a table that do not fit, column by column, in one pass."""
    watched = [c for c in table.columns if c.kind not in ("ignored", "person")]
    names = [c.name for c in watched] + ([table.person.name] if table.person else [])
    result, people = Check(), Counter[str]()
    for raw in _raws(path, table, names):
        try:
            for column in watched:
                required = column is table.answer and column.missing is None
                new = survey_column(column, raw.cells[column.name], () if required else table.missing)
                old = result.columns.get(column.name)
                result.columns[column.name] = new if old is None else old + new
            if table.person:
                people.update(person_texts(table.person, raw.cells[table.person.name], table.missing))
        except CellError as error:
            raise UserError(f"{raw.where(error.row)}, column {error.column!r}: {error.reason}") from None
        result.records += raw.rows
    return result if not table.person else result.count(people, table.contributions)


def check_inputs(path: Path, declared: TableDomain) -> Check:
    """Read every image or vector, and collect the errors of those that cannot be read."""
    result, people, given = Check(), Counter[str](), declared.input
    assert given is not None
    person, label = declared.person, declared.label
    names = [column.name for column in (given, label, person) if column is not None]
    for piece in pieces_of(path, declared):
        for raw in piece.raw(declared, names, 256):
            try:
                codes = label_codes(label, raw.cells[label.name], raw.class_names)
                if person is not None:
                    people.update(person_texts(person, raw.cells[person.name]))
                cells = list(cells_of(given, raw.cells[given.name]))
            except CellError as error:
                raise UserError(f"{raw.where(error.row)}: {error.reason}") from None
            result.records += raw.rows
            result.classes.update(label.classes[code] for code in codes.tolist())
            for at, cell in enumerate(cells):
                try:
                    decoded(given, [cell])
                except CellError as error:
                    result.broken += 1
                    result.refused += [f"{raw.where(at)}: {error.reason}"] if len(result.refused) < 5 else []
    return result if person is None else result.count(people, person.records)
