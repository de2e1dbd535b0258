"""Data frames with private records, encoded by their declared domain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.errors import UserError
from adlm.public.domain.encoding import column_names, compact, encode_answer, encode_frame
from adlm.public.domain.table import TableDomain
from adlm.readers.contributions import chosen, person_digests, record_digests

ROWS = 8192
Encoded = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def kept_records(
    table: TableDomain, frame: Any, codes: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.bool_]:
    """Mask of the records to keep: a few of each person, as declared; all without a person column.

    The rule is that of files (`contributions`); `codes` are the (n,) classes of the records.
    """
    if table.person is None:
        return np.ones(len(frame), dtype=np.bool_)
    name = table.person.name
    if name not in column_names(frame):
        raise UserError(f"the domain bounds records by person, but there is no column {name!r}; add it")
    persons = person_digests(table.person, frame[name], table.missing)
    columns = [compact(column, frame[column.name], table.missing) for column in table.features]
    digests = record_digests(persons, columns if codes is None else [*columns, codes])
    return chosen(persons, digests, table.contributions)


def frame_reader(frame: Any, labels: Any, table: TableDomain) -> Callable[[], Iterable[Encoded]]:
    """Encode a frame's records; labels default to its label column.

    Formal guarantees
    -----------------
    An encoded record depends on its own row and on the declaration. Which of a person's records are kept
    depends on that person's records alone.
    """
    if labels is None:
        name = table.answer.name
        if name not in column_names(frame):
            raise UserError(f"the frame has no column {name!r}; add it, or give the labels as y")
        labels = frame[name]
    if len(labels) != len(frame):
        raise UserError(f"there must be one label for each record, got {len(frame)} and {len(labels)}")
    codes = encode_answer(table, labels)
    keep = kept_records(table, frame, codes)
    x, y = encode_frame(table, frame)[keep], codes[keep]
    return lambda: ((x[i : i + ROWS], y[i : i + ROWS]) for i in range(0, len(y), ROWS))
