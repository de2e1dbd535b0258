"""Drafts of a domain file, and checks of files against one. Checks are not private."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from adlm.data.csv import BLOCK, DELIMITERS, Lines, check_header, split
from adlm.data.files import PARQUET, UNREADABLE, explain, opened
from adlm.data.images import ARROW, CSV, decoded, items_of
from adlm.data.tables import naming_records, raw_batches
from adlm.domain.columns import IMAGE_FAMILIES, Column, iso_day, plain_number
from adlm.domain.domain import FAMILY_USES, FITS
from adlm.domain.encoding import Survey, survey_column
from adlm.domain.table import TableDomain
from adlm.domain.values import cell_text, person_texts
from adlm.errors import UserError

# ---- Drafts of a domain file for a table, and checks of a file against one. Checks are not private.

MOST_VALUES = (50, 256)  # distinct texts of a peeked categorical column: in any file, in a long one
RECORDS_EACH = 10  # records per text from which a file is long
_HINTS = {
    "numeric": '# lower = \n# upper = \n# scale = "log", cuts = [...] and missing = "category" if they fit\n',
    "categorical": '# values = [...]\n# missing = "category" and other = "other" if they fit\n',
    "boolean": "",
    "date": "# lower = 2000-01-01\n# upper = 2030-12-31\n",
    "label": '# classes = ["no", "yes"]\n# for a number to predict: kind = "target", with lower and upper\n',
    "person": "records = 1\n",
    "ignored": "# choose numeric, categorical, ordinal, boolean or date to use this column\n",
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
        try:
            schema = parquet.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} is not a whole Parquet file ({str(error).splitlines()[0]})") from None
        return {name: _kind(schema.field(i).type) for i, name in enumerate(schema.names)}
    try:
        with opened(path) as (stream, _):
            line = Lines(path, stream, BLOCK).header(None)
    except UNREADABLE as error:
        raise UserError(f"{path}: {explain(error)}") from None
    if header is False:
        cells = len(split(line, delimiter or ",", '"'))
        return {f"column{at + 1}": "ignored" for at in range(cells)}
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


def _kind(kind: Any) -> str:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "numeric"
    return "date" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else "categorical"


def draft(
    path: Path,
    *,
    label: str | None = None,
    person: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
) -> str:
    """Draft a domain file from the header and the schema's types alone, leaving what is public to fill in.

    Parameters
    ----------
    path : the file.
    label, person : columns of that kind.
    header, delimiter : of a CSV file; inferred by default.
    """
    kinds = _named(path, label, person, header_of(path, header=header, delimiter=delimiter))
    label = label or list(kinds)[-1]
    lines = [
        f"# Domain of {path.name}: what is known of it without reading it. Fill in what is public.",
        "# Bounds and values come from what the columns mean, never from the records.",
        'neighbours = "replace-one"',
        'missing = ["", "?", "NA"]',
    ]
    if header is False:
        lines += ["# The file has no header row: rename the columns, and keep their order.", "header = false"]
    if delimiter is not None:
        lines.append(f"delimiter = {_quoted(delimiter)}")
    lines.append("")
    for name, kind in kinds.items():
        kind = "label" if name == label else "person" if name == person else kind
        lines += [f"[columns.{_key(name)}]", f'kind = "{kind}"', _HINTS[kind]]
    return "\n".join(lines)


def _named(path: Path, label: str | None, person: str | None, kinds: dict[str, str]) -> dict[str, str]:
    """The header, which must contain the given columns."""
    for name in (label, person):
        if name is not None and name not in kinds:
            raise UserError(
                f"{path} has no column {name!r}; name one of its {len(kinds)} columns as the header row does "
                "(column1, column2 and so on if there is none)"
            )
    return kinds


def _key(name: str) -> str:
    plain = name.replace("-", "").replace("_", "")
    return name if plain.isascii() and plain.isalnum() else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def peek(
    path: Path,
    *,
    label: str | None = None,
    person: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
) -> TableDomain:
    """Fill in a domain from the data. Every artefact made with it states that.

    Parameters
    ----------
    path, label, person, header, delimiter : as for `draft`.
    """
    names = list(_named(path, label, person, header_of(path, header=header, delimiter=delimiter)))
    label = label or names[-1]
    if len(names) < 2:
        raise UserError(f"{path} has one column; a table has a label and at least one column beside it")
    kinds = dict.fromkeys(names, "boolean") | {label: "label"}  # unused: cells are read as texts
    written: dict[str, Any] = {"header": header is not False, "delimiter": delimiter}
    plain = TableDomain(
        tuple(Column(n, k, classes=("a", "b") if k == "label" else ()) for n, k in kinds.items()), **written
    )
    seen: dict[str, _Summary] = {name: _Summary() for name in names}
    for batch in raw_batches(path, plain, names):
        for name in names:
            seen[name].add(batch[name], plain.missing)
    columns = []
    for name in names:
        if name == label:
            columns.append(Column(name, "label", classes=tuple(sorted(map(str, seen[name].texts)))))
        elif name == person:
            columns.append(Column(name, "person", records=1))
        else:
            columns.append(seen[name].column(name))
    return TableDomain(tuple(columns), bounds_learnt_from_data=True, **written)


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
            self._as_number(text)
            self._as_date(text)

    def _as_number(self, text: str) -> None:
        try:
            number = plain_number(text)
        except ValueError:
            number = math.inf
        self.numeric = self.numeric and math.isfinite(number)
        self.low, self.high = min(self.low, number), max(self.high, number)

    def _as_date(self, text: str) -> None:
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
        few, most = MOST_VALUES[0], self.cells / RECORDS_EACH
        if self.many or not self.texts or len(self.texts) > max(few, most):
            return Column(name, "ignored")
        return Column(name, "categorical", values=tuple(sorted(self.texts)), missing=gaps)


@dataclass(frozen=True)
class Check:
    """Result of checking a file against a domain. Not private."""

    records: int
    columns: dict[str, Survey]
    persons: int | None
    most_records: int | None  # of one person
    dropped: int | None  # records beyond the declared number per person
    unnamed: int | None = None  # records that name no person, which are refused


def check(path: Path, table: TableDomain) -> Check:
    """Count the cells that do not fit, column by column, in one pass."""
    watched = [c for c in table.columns if c.kind not in ("ignored", "person")]
    names = [c.name for c in watched] + ([table.person.name] if table.person else [])
    surveys: dict[str, Survey] = {}
    people: Counter[str] = Counter()
    records = 0
    for batch in raw_batches(path, table, names):
        for column in watched:
            required = column is table.answer and column.missing is None
            missing = () if required else table.missing
            with naming_records(path, records + 1):
                new = survey_column(column, batch[column.name], missing)
            surveys[column.name] = _sum(surveys.get(column.name), new)
        if table.person:
            with naming_records(path, records + 1):
                people.update(person_texts(table.person, batch[table.person.name], table.missing))
        records += len(batch[names[0]])
    if not table.person:
        return Check(records, surveys, None, None, None)
    unnamed = people.pop("", 0)
    dropped = sum(max(0, count - table.contributions) for count in people.values())
    return Check(records, surveys, len(people), max(people.values(), default=0), dropped, unnamed)


def _sum(old: Survey | None, new: Survey) -> Survey:
    if old is None:
        return new
    refused = Counter(old.refused)
    refused.update(new.refused)
    return Survey(old.cells + new.cells, old.missing + new.missing, old.outside + new.outside, dict(refused))


# ---- Drafts of a domain file for images or vectors, and checks of files against one.
#
# A draft reads names of subfolders, of columns and of a schema. Checks read records and are not private.

LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


@dataclass(frozen=True)
class Choices:
    """The user's options for a draft; unset ones are left to fill in."""

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
    if path.is_dir():
        return _of_folder(path, choices)
    if path.suffix.lower() in (*PARQUET, *ARROW):
        return _of_schema(path, _schema(path), choices)
    if path.suffix.lower() in (*CSV, ".gz") and choices.of_images:
        return _of_csv(path, choices)
    return None


def _of_folder(folder: Path, choices: Choices) -> str:
    files = sorted(entry for entry in folder.iterdir() if entry.is_file())
    tables = [entry for entry in files if entry.suffix.lower() in (*PARQUET, *ARROW)]
    if tables:
        found = _of_schema(folder, _schema(tables[0]), choices)
        if found is None:
            raise UserError(f"{tables[0]} has no column of image bytes or of lists of numbers; give the file")
        return found
    lists = [entry for entry in files if entry.suffix.lower() in CSV]
    if lists:
        return _of_csv(lists[0], choices)
    classes = sorted(e.name for e in folder.iterdir() if e.is_dir() and not e.name.startswith("."))
    if not classes:
        raise UserError(f"{folder} has neither a subfolder for each class, nor a CSV or Parquet file")
    if choices.person is not None:
        raise UserError(f"{folder} has a subfolder for each class, which names no person; leave out --person")
    return _text(folder, "image", _image_lines(choices), choices.label or "label", classes, None)


def _of_csv(path: Path, choices: Choices) -> str:
    names = list(header_of(path))
    label = _input_column(path, choices.label, names) or names[-1]
    person = _input_column(path, choices.person, names)
    rest = [name for name in names if name not in (label, person)]
    if not rest:
        raise UserError(f"{path} has no column of file names beside the label")
    return _text(path, rest[0], _image_lines(choices), label, None, person)


def _of_schema(path: Path, schema: Any, choices: Choices) -> str | None:
    names = list(schema.names)
    kinds = {name: _input_kind(schema.field(name).type) for name in names}
    column = next((name for name in names if kinds[name]), None)
    if column is None:
        return None
    others = [name for name in names if name != column]
    label = _input_column(path, choices.label, names) or ("label" if "label" in others else None)
    label = label or (others[-1] if others else "label")
    person = _input_column(path, choices.person, names)
    lines = _image_lines(choices)
    if kinds[column] == "vector":
        size = getattr(schema.field(column).type, "list_size", -1)
        lines = ['kind = "vector"', f"size = {size}" if size > 0 else "# size = ", "# norm = 1.0"]
    return _text(path, column, lines, label, _names_in(schema, label), person)


def _schema(path: Path) -> Any:
    try:
        if path.suffix.lower() in PARQUET:
            return parquet.read_schema(path)
        with pa.memory_map(str(path)) as source:
            try:
                return pa.ipc.open_stream(source).schema
            except pa.ArrowInvalid:
                return pa.ipc.open_file(source).schema
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path} is not a whole Parquet or Arrow file ({str(error).splitlines()[0]})"
        ) from None


def _input_kind(kind: Any) -> str | None:
    if pa.types.is_struct(kind):
        return "image" if any(kind.field(at).name == "bytes" for at in range(kind.num_fields)) else None
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "image"
    return "vector" if any(test(kind) for test in LISTS) else None


def _names_in(schema: Any, label: str) -> list[str] | None:
    try:
        names = json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return [str(name) for name in names]


def _input_column(path: Path, name: str | None, names: list[str]) -> str | None:
    if name is not None and name not in names:
        raise UserError(f"{path} has no column {name!r}; its columns are {', '.join(names)}")
    return name


def _image_lines(choices: Choices) -> list[str]:
    uses = [f'#   "{name}": {FAMILY_USES[name]}' for name in IMAGE_FAMILIES]
    family = f'family = "{choices.family}"' if choices.family else "# family = "
    colour = choices.colour or ("grey" if choices.family in ("drawn", "garments") else "rgb")
    return [
        'kind = "image"',
        "# Every image is resized to this many pixels a side, or to [height, width]; features are made for",
        "# 28, 32, 64 and 96.",
        f"size = {choices.size or 32}",
        f'colour = "{colour}"',
        f'fit = "{FITS[0]}"  # or "pad", "stretch"',
        "# What kind of pictures these are; no record may decide it:",
        *uses,
        family,
    ]


def _text(
    path: Path, column: str, lines: list[str], label: str, classes: list[str] | None, person: str | None
) -> str:
    listed = "# classes = [...]" if classes is None else f"classes = [{', '.join(map(_quoted, classes))}]"
    sections = [
        f"# Domain of {path.name}: what is known of it without reading it. Fill in what is public.",
        'neighbours = "replace-one"',
        "",
        f"[columns.{_quoted(column)}]",
        *lines,
        "",
        f"[columns.{_quoted(label)}]",
        'kind = "label"',
        listed,
    ]
    if person is not None:
        sections += [
            "",
            f"[columns.{_quoted(person)}]",
            'kind = "person"',
            "records = 1",
        ]
    return "\n".join(sections) + "\n"


@dataclass
class InputCheck:
    """Result of checking files against a domain. Not private: for the data owner only.

    Attributes
    ----------
    records : number of records.
    classes : records of each class.
    refused : the first few errors.
    broken : number of records that cannot be read.
    persons, most_records, dropped : of persons, where they are declared.
    """

    records: int = 0
    broken: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    persons: int | None = None
    most_records: int | None = None
    dropped: int = 0

    @property
    def fits(self) -> bool:
        """Whether a release could be made."""
        return self.records > 0 and not self.broken


def check_inputs(path: Path, declared: TableDomain) -> InputCheck:
    """Read every record, and collect the errors of those that cannot be read."""
    result, per_person = InputCheck(), Counter[str]()
    person: Column | None = declared.person
    for item in items_of(path, declared, labels=True, persons=person is not None):
        result.records += 1
        assert item.label is not None
        result.classes[declared.label.classes[item.label]] += 1
        if person is not None:
            per_person[person_texts(person, [item.person])[0]] += 1
        try:
            decoded(item, declared)
        except UserError as error:
            result.broken += 1
            result.refused += [str(error)] if len(result.refused) < 5 else []
    if person is not None:
        result.persons, result.most_records = len(per_person), max(per_person.values(), default=0)
        result.dropped = sum(max(0, count - person.records) for count in per_person.values())
    return result
