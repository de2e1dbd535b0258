"""At most a few records of each person, by a rule that looks at that person's records alone."""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.public.domain.column import Column
from adlm.public.domain.values import CellError, person_texts

IN_MEMORY = 1 << 20  # persons; about 100 MB


class Contributions:
    """Counts records of persons, by a 128-bit digest, to keep the first few of each.

    Whether a record is kept depends on that person's earlier records alone. Counts move from memory to a
    temporary database, readable by its owner alone and removed at the end, once there are many persons.
    """

    def __init__(self, column: Column, missing: tuple[str, ...] = ()) -> None:
        self.column, self.most, self.missing = column, column.records, missing
        self._counts: dict[bytes, int] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._base: sqlite3.Connection | None = None

    def __enter__(self) -> Contributions:
        return self

    def __exit__(self, *_: object) -> None:
        if self._base is not None:
            self._base.close()
        if self._folder is not None:
            self._folder.cleanup()

    def keep(self, names: Any) -> NDArray[np.bool_]:
        """Say which of the records are among the first `most` of their person."""
        texts = person_texts(self.column, names, self.missing)
        if "" in texts:
            raise CellError(
                self.column.name, texts.index(""), "the person is not named; every record needs one"
            )
        if len(self._counts) > IN_MEMORY:
            self._spill()
        add = self._add_stored if self._base is not None else self._add
        return np.array([add(hashlib.blake2b(t.encode(), digest_size=16).digest()) for t in texts], bool)

    def _add(self, digest: bytes) -> bool:
        count = self._counts.get(digest, 0)
        if count < self.most:
            self._counts[digest] = count + 1
        return count < self.most

    def _add_stored(self, digest: bytes) -> bool:
        assert self._base is not None
        found = self._base.execute("SELECT seen FROM persons WHERE digest = ?", (digest,)).fetchone()
        count = found[0] if found else 0
        if count < self.most:
            self._base.execute("INSERT OR REPLACE INTO persons VALUES (?, ?)", (digest, count + 1))
        return bool(count < self.most)

    def _spill(self) -> None:
        if self._base is None:
            self._folder = tempfile.TemporaryDirectory(prefix="adlm-persons-")  # made with mode 0700
            self._base = sqlite3.connect(Path(self._folder.name) / "persons.db")
            self._base.execute("CREATE TABLE persons (digest BLOB PRIMARY KEY, seen INTEGER) WITHOUT ROWID")
        self._base.executemany("INSERT INTO persons VALUES (?, ?)", self._counts.items())
        self._counts = {}
