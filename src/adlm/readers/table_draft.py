"""Drafts of a domain file for a table, and checks of a file against one. Checks are not private."""

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

from adlm.errors import UserError
from adlm.public.domain.column import Column, iso_day, plain_number
from adlm.public.domain.encoding import Survey, survey_column
from adlm.public.domain.table import TableDomain
from adlm.public.domain.values import cell_text, person_texts
from adlm.readers.csv_rows import DELIMITERS, Lines, split
from adlm.readers.table_csv import BLOCK, check_header
from adlm.readers.tables import PARQUET, naming_records, raw_batches
from adlm.readers.text_files import UNREADABLE, explain, opened

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
