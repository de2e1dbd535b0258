"""Drafts of a domain file for images or vectors, and checks of files against one.

A draft reads names of subfolders, of columns and of a schema. Checks read records and are not private.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from adlm.errors import UserError
from adlm.public.domain.column import Column
from adlm.public.domain.domain import FAMILY_USES, FITS
from adlm.public.domain.inputs import IMAGE_FAMILIES, InputDomain
from adlm.public.domain.values import person_texts
from adlm.readers.input_files import CSV, items_of
from adlm.readers.input_tables import ARROW
from adlm.readers.inputs import decoded
from adlm.readers.table_draft import header_of
from adlm.readers.tables import PARQUET

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
    label = _named(path, choices.label, names) or names[-1]
    person = _named(path, choices.person, names)
    rest = [name for name in names if name not in (label, person)]
    if not rest:
        raise UserError(f"{path} has no column of file names beside the label")
    return _text(path, rest[0], _image_lines(choices), label, None, person)


def _of_schema(path: Path, schema: Any, choices: Choices) -> str | None:
    names = list(schema.names)
    kinds = {name: _kind(schema.field(name).type) for name in names}
    column = next((name for name in names if kinds[name]), None)
    if column is None:
        return None
    others = [name for name in names if name != column]
    label = _named(path, choices.label, names) or ("label" if "label" in others else None)
    label = label or (others[-1] if others else "label")
    person = _named(path, choices.person, names)
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


def _kind(kind: Any) -> str | None:
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


def _named(path: Path, name: str | None, names: list[str]) -> str | None:
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


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


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


def check_inputs(path: Path, declared: InputDomain) -> InputCheck:
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
