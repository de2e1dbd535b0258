"""What a budget can be chosen for: a public data set by name, or a user's declared domain."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from adlm.errors import UserError
from adlm.privacy.accounting import unit_words
from adlm.public import datasets
from adlm.public.domain import NEIGHBOURS, Domain
from adlm.public.domain.declaration import toml
from adlm.public.domain.table import TableDomain
from adlm.public.features import Features, for_domain

MOST_RECORDS = 10**9


@dataclass(frozen=True, eq=False)
class Choice:
    """A data set to plan for; only public facts about it are read.

    Attributes
    ----------
    key : its identifier within a page.
    title : its name for users.
    origin : its option on the command line: `--data NAME`, `--domain`, or nothing for arrays from Python.
    file : the domain file, if it comes from one.
    n : the number of records, public or guessed.
    domain : of images and other arrays; None for a table.
    table : of a table; None for arrays.
    """

    key: str
    title: str
    origin: str
    n: int
    file: str = ""
    domain: Domain | None = None
    table: TableDomain | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; none where a number is predicted."""
        if self.table is not None:
            return tuple(self.table.answer.classes)
        assert self.domain is not None
        return self.domain.classes

    @property
    def neighbours(self) -> str:
        """The relation that the domain declares."""
        if self.table is not None:
            return self.table.neighbours
        assert self.domain is not None
        return self.domain.neighbours

    @property
    def contributions(self) -> int:
        """The declared maximum of records per person."""
        return 1 if self.table is None else self.table.contributions

    @property
    def unit(self) -> str:
        """The unit of privacy: `record`, or `person (at most 3 records)`."""
        return unit_words(self.contributions, self.table is not None and self.table.person is not None)

    @cached_property
    def features(self) -> Features:
        """The public features of arrays."""
        assert self.domain is not None
        return for_domain(self.domain)

    def related(self, neighbours: str) -> TableDomain:
        """The table under a relation."""
        assert self.table is not None
        return replace(self.table, neighbours=neighbours)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for the page."""
        return {
            "key": self.key,
            "title": self.title,
            "origin": self.origin,
            "file": self.file,
            "named": self.origin.startswith("--data"),
            "kind": "table" if self.table is not None else "array",
            "n": self.n,
            "classes": len(self.classes),
            "measure": "accuracy" if self.classes else "R\u00b2",
            "neighbours": self.neighbours,
            "unit": self.unit,
        }


@lru_cache(maxsize=1)
def named() -> tuple[Choice, ...]:
    """Return the public data sets; no record of them is read or fetched."""
    return tuple(
        Choice(d["name"], d["title"], f"--data {d['name']}", d["train"], domain=datasets.domain(d["name"]))
        for d in datasets.describe()
    )


def declared(text: str, name: str, n: int) -> Choice:
    """Read the text of a domain file: of a table, or of arrays.

    Parameters
    ----------
    text : the TOML text.
    name : the file's name, for the title and the command.
    n : the number of records, public or guessed.
    """
    check_size(n)
    key = f"domain-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    short = Path(name).name or "domain.toml"
    if _is_table(text):
        return Choice(key, short, "--domain", n, name, table=TableDomain.from_toml(text))
    return Choice(key, short, "", n, name, domain=Domain.from_toml(text))


def _is_table(text: str) -> bool:
    try:
        return "columns" in toml(text)
    except UserError:
        return False  # the caller's parser reports the error


def from_file(path: Path, n: int | None) -> Choice:
    """Read a domain file."""
    if n is None:
        raise UserError("--domain needs --public-size, the number of records, public or guessed")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise UserError(f"the domain file {path} cannot be read: {why}") from None
    return declared(text, str(path), n)


def check_size(n: int) -> None:
    """Refuse a number of records that no data set has."""
    if not 1 <= n <= MOST_RECORDS:
        raise UserError(f"the number of records must lie between 1 and {MOST_RECORDS:,}, got {n:,}")


def check_relation(neighbours: str) -> None:
    """Refuse an unknown relation."""
    if neighbours not in NEIGHBOURS:
        raise UserError(f"the relation must be one of {', '.join(NEIGHBOURS)}, got {neighbours!r}")
