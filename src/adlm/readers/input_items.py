"""One raw image or vector of a file: its value, its class and its person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adlm.errors import UserError
from adlm.public.domain.column import Column
from adlm.public.domain.inputs import InputDomain
from adlm.public.domain.labels import encode_labels


@dataclass(frozen=True, eq=False)
class Item:
    """One raw record of a file.

    Attributes
    ----------
    name : for messages.
    value : path of an image, its bytes, or an array.
    label : class code, or None if labels were not requested.
    person : its owner, if persons are declared and requested.
    """

    name: str
    value: Any
    label: int | None = None
    person: Any = None


@dataclass(frozen=True)
class Columns:
    """The requested columns of a file."""

    input: str
    label: Column | None
    person: Column | None

    @classmethod
    def of(cls, declared: InputDomain, *, labels: bool, persons: bool) -> Columns:
        """Take the input's column, and those of the label and the person if requested."""
        person = declared.person if persons else None
        return cls(declared.input.name, declared.label if labels else None, person)

    @property
    def names(self) -> list[str]:
        """Names of the columns, the input's first."""
        return [self.input, *(column.name for column in (self.label, self.person) if column is not None)]


def item_at(
    where: str, value: Any, columns: Columns, cells: dict[str, list[Any]], at: int, names: Any = None
) -> Item:
    """Assemble a record from the cells of its row.

    Parameters
    ----------
    where : file and row, for messages.
    value : the image or the vector.
    columns : the requested columns.
    cells, at : values of the other columns, by name, and the row's place in them.
    names : classes that the file itself names, in the order of its numbers.
    """
    code = None
    if columns.label is not None:
        code = class_code(cells[columns.label.name][at], columns.label, where, names)
    return Item(where, value, code, cells[columns.person.name][at] if columns.person else None)


def class_code(value: Any, label: Column, where: str, names: Sequence[str] | None = None) -> int:
    """Code of a label: a class, an alias, or an integer that indexes `names` or the classes.

    Parameters
    ----------
    value : the cell.
    label : the declared label.
    where : file and row, for the sentence.
    names : classes that the file itself names, in the order of its numbers.
    """
    if names is not None and isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < len(names):
            raise UserError(f"{where}: unknown label {value}; the file names {len(names)} classes")
        value = names[value]
    if isinstance(value, str):
        value = dict(label.aliases).get(value, value)
    if value is None:
        raise UserError(f"{where}: the label is missing; remove such records first")
    try:
        return int(encode_labels([value], label.classes)[0])
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
