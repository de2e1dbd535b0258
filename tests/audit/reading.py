"""Does reading let one record change another? A search over neighbouring files and frames, before any noise.

The proofs assume that every other record's encoded row is the same in neighbouring data sets. Here neighbours
are written as files and as frames, with one record as unusual as the format allows. The rows of all others
are compared byte for byte. A refusal is no violation: it is an error before anything is charged or released.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
from tests.audit.reading_cases import FOREIGN, FORMS, TAG, Case, Form, Written

from adlm.audit.statistics import Finding
from adlm.data.reading import read_batches, read_frame
from adlm.errors import UserError

CASES = 250  # neighbours of each form


@dataclass(frozen=True)
class Read:
    """A data set as read: each record's row and label, and what else the reader would print."""

    rows: tuple[bytes, ...]
    shown: bytes = b""


Reader = Callable[[Written], Read]


def rows_of(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> Iterable[bytes]:
    """Each record's encoded row and label, as bytes; the first number identifies the record."""
    return (row.tobytes() + int(code).to_bytes(2, "big") for row, code in zip(x, y, strict=True))


def product(written: Written) -> Read:
    """Read as the product does: a file by `read_batches`, a frame as the estimator."""
    table = written.table
    if written.file is not None:
        batches = read_batches(written.file, table, rows=written.rows, block=written.block)
        return Read(tuple(row for batch in batches for row in rows_of(batch.x, batch.y)))
    batch = read_frame(written.frame, table)
    return Read(tuple(rows_of(batch.x, batch.y)))


@dataclass
class Outcome:
    """The result of a search.

    Attributes
    ----------
    compared : neighbours of which both could be read; `refused` : the others.
    changed : largest number of other records that one record changed, added or removed.
    example : the record that did so.
    """

    compared: int = 0
    refused: int = 0
    changed: int = 0
    example: str = ""


def search(form: Form, reader: Reader, cases: int, seed: int = 0, *, until_found: bool = False) -> Outcome:
    """Compare the rows that a reader returns for random neighbours.

    Parameters
    ----------
    form : what the files or frames look like.
    reader : returns the encoded rows of one.
    cases : pairs of neighbours drawn.
    seed : of the draw.
    until_found : end with the first violation.
    """
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="adlm-audit-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a library's, about odd columns
        for number in range(cases):
            case = form(Random(f"{seed} {number}"), Path(folder))
            if case is None:
                outcome.refused += 1
                continue
            try:
                one, two = reader(case.one), reader(case.two)
            except UserError:
                outcome.refused += 1
                continue
            outcome.compared += 1
            changed = others_changed(case, one, two)
            if changed > outcome.changed:
                outcome.changed, outcome.example = changed, case.summary
                if until_found:
                    break
    return outcome


def others_changed(case: Case, one: Read, two: Read) -> int:
    """Count the records that differ, except the one that may."""
    rest_one, rest_two = list(one.rows), list(two.rows)
    if case.relation == "persons":
        rest_one, rest_two = (_of_others(rows) for rows in (rest_one, rest_two))
    elif len(rest_one) > case.at:
        del rest_one[case.at]
    if case.relation == "replace-one" and len(rest_two) > case.at:
        del rest_two[case.at]
    if len(rest_one) == len(rest_two):
        differ = sum(a != b for a, b in zip(rest_one, rest_two, strict=True))
    else:  # positions differ: count the records that are on one side only
        here, there = Counter(rest_one), Counter(rest_two)
        differ = max((here - there).total(), (there - here).total())
    return differ + (one.shown != two.shown)


def _of_others(rows: list[bytes]) -> list[bytes]:
    """All rows except those of the person who was exchanged, identified by their number."""
    own = np.float32(FOREIGN / TAG).tobytes()
    return [row for row in rows if not row.startswith(own)]


def finding(name: str, found: Outcome, *, control: bool = False) -> Finding:
    """Report a search as an attack on a release of epsilon 1."""
    return Finding(
        attack="control" if control else "reading",
        mechanism=name,
        neighbours="both",
        claimed=Fraction(1),
        proved=float("inf") if control else Fraction(1),
        lower=1.0 + found.changed if found.changed else 0.0,
        confidence=1.0,
        runs=found.compared + found.refused,
        control=control,
        fault=not control and found.compared == 0,
        note=f"{found.compared} neighbours compared, {found.refused} refused; one record changes "
        f"{found.changed} others" + (f" ({found.example[:80]})" if found.changed else ""),
    )


def product_reading(cases: int = CASES, seed: int = 0) -> list[Finding]:
    """Search every form of file and frame for a record that changes another."""
    return [finding(f"reading {name}", search(form, product, cases, seed)) for name, form in FORMS.items()]
