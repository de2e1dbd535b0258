"""Bounded contributions: at most a few records of each person, chosen by that person's records alone.

Of a person's records, those with the smallest digests are kept, as many as the domain declares. A digest is
the BLAKE2b hash of the person's name and of the encoded record. So the choice depends neither on other
persons, nor on the files, nor on the order of reading. Records with the same digest are encoded alike, so it
does not matter which of them is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.domain.columns import Column
from adlm.domain.encoding import CellError, person_texts

Digests = NDArray[np.uint64]
AT_ONCE = 1 << 22  # records whose digests are sorted at once; about 100 MB


def person_digests(column: Column, names: Any, missing: tuple[str, ...] = ()) -> Digests:
    """Return (n, 2) integers: a 128-bit digest of the person of each record."""
    texts = person_texts(column, names, missing)
    if "" in texts:
        raise CellError(column.name, texts.index(""), "the person is not named; every record needs one")
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64).reshape(-1, 2)


def record_digests(persons: Digests, columns: Sequence[NDArray[Any]]) -> Digests:
    """Return (n,) digests of records, from the (n, ...) array of each column."""
    count = len(persons)
    flat = [np.ascontiguousarray(part).reshape(count, -1) for part in (persons, *columns)]
    rows = np.hstack([part.view(np.uint8).reshape(count, -1) for part in flat])
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def chosen(persons: Digests, records: Digests, most: int) -> NDArray[np.bool_]:
    """Mask of the records to keep, (n,): of each person the `most` with the smallest digests."""
    order = np.lexsort((records, persons[:, 1], persons[:, 0]))
    sorted_persons = persons[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (sorted_persons[1:] != sorted_persons[:-1]).any(1)
    starts = np.flatnonzero(new)
    place = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    keep = np.zeros(len(order), dtype=np.bool_)
    keep[order[place < most]] = True
    return keep


def chosen_in_parts(
    parts: Callable[[], Iterable[tuple[Digests, Digests]]], total: int, most: int, at_once: int = AT_ONCE
) -> NDArray[np.bool_]:
    """The same for parts of a large data set, a share of the persons at a time.

    Parameters
    ----------
    parts : returns digests of persons and of records, part by part; called several times.
    total : number of records.
    most : records of a person to keep.
    at_once : about how many records are sorted at a time; the result does not depend on it.
    """
    shares = max(1, -(-total // at_once))
    keep = np.zeros(total, dtype=np.bool_)
    for share in range(shares if total else 0):
        rows, persons, records, first = [], [], [], 0
        for some, digests in parts():
            of_share = np.flatnonzero(some[:, 0] % np.uint64(shares) == share)
            rows.append(first + of_share)
            persons.append(some[of_share])
            records.append(digests[of_share])
            first += len(some)
        keep[np.concatenate(rows)[chosen(np.concatenate(persons), np.concatenate(records), most)]] = True
    return keep
