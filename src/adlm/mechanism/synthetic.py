"""A release from which tables can be drawn: noisy counts of single columns and of chosen pairs, and a head.

Stages: the head of the table (as `adlm release` makes it), counts of (cell, class) for each column, a tree of
columns chosen by the exponential mechanism, and counts of (bin, bin, class) for the pairs of that tree.
`adlm.model.synthetic` draws records from what is released here.

Formal guarantees
-----------------
Relation: the table's, of persons with at most `contributions` records. Sensitivity: `Counts.sensitivity`, of
the code that counts. Guarantee: the charges of `calibrate` and of the head, at most the budget; all of them
are in the ledger before their noise is drawn. Proved in docs/proof-synthetic.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.engine.passes import Part, Records
from adlm.errors import UserError
from adlm.model.synthetic import (
    TARGET_CELLS,
    UNIT,
    Grid,
    Integers,
    Measured,
    Pair,
    bins_of,
    classes_of,
    grids_of,
    measured,
)
from adlm.privacy.accounting import Budget, Charge, Mechanism, compose, gaussian_epsilon, gaussian_mu
from adlm.privacy.certificate import LEARNT_BOUNDS, SEEDED
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import progress
from adlm.runtime.arithmetic import root_up

PROOF = "docs/proof-synthetic.md"
# Shares of the budget (of mu^2 with delta, of epsilon without), tried on held-out training records of Adult,
# Diabetes-130 and six numeric tables: the head, counts of columns, the choice, counts of pairs.
HEAD_SHARE = Fraction(3, 10)
SHARES = (Fraction(25, 100), Fraction(10, 100), Fraction(65, 100))
BINS = (16, 12, 8, 6, 4)  # of a column in tables of pairs: the most that fit
MOST_CELLS = 1 << 22  # of all tables that one pass counts
LEAST_SCALE = Fraction(1, 64)  # of the choice, in records
# An exponential mechanism of range r = 2 D / c is mu-GDP with mu = r sqrt(2 pi) / 4 (Lemma 2), rounded up.
CHOICE_MU = Fraction(125332, 100000)


@dataclass(frozen=True)
class Counts:
    """Tables that a record adds one to, in one cell of each."""

    tables: int

    def sensitivity(self, mechanism: Mechanism, neighbours: str, contributions: int) -> Fraction:
        """Return how far a person moves all counts, in grid steps: in L1, or in L2 for Gaussian noise.

        A record adds 1 to one cell of each table. A replaced one also takes 1 away from another cell.
        """
        cells = self.tables * (1 if neighbours == "add-remove" else 2)
        moved = root_up(Fraction(cells)) if mechanism == "gaussian" else Fraction(cells)
        return moved * contributions * UNIT


def score_sensitivity(neighbours: str, contributions: int) -> int:
    """Return how far a person moves the L1 distance of a table of counts to a fixed table, in records."""
    return contributions * (1 if neighbours == "add-remove" else 2)


@dataclass(frozen=True)
class Calibrated:
    """Noise scales, and their charges.

    Attributes
    ----------
    columns, pairs : noise scales of the counts, in grid steps.
    choice : of the exponential mechanism, in records; 0 where there is a single column.
    """

    mechanism: Mechanism
    columns: int
    choice: Fraction
    pairs: int
    charges: tuple[Charge, ...]

    def sd(self, scale: int) -> float:
        """Standard deviation of noise of a scale."""
        return scale * (1.0 if self.mechanism == "gaussian" else math.sqrt(2.0))


def calibrate(table: TableDomain, spend: Fraction, delta: Fraction) -> Calibrated:
    """Divide a budget between the tables of columns, the choice of pairs and the tables of pairs.

    Parameters
    ----------
    table : the declared table.
    spend : epsilon, or mu where delta is positive.
    delta : 0 for pure epsilon.

    Formal guarantees
    -----------------
    Theorem 1 of docs/proof-synthetic.md: pure charges add up to at most `spend`, the squares of Gaussian ones
    to at most its square.
    """
    mechanism: Mechanism = "gaussian" if delta else "laplace"
    columns, people, relation = len(table.features), table.contributions, table.neighbours
    shares = SHARES if columns > 1 else (Fraction(1), Fraction(0), Fraction(0))
    charges: list[Charge] = []

    def part(share: Fraction) -> Fraction:
        """Return the share of epsilon, or of mu."""
        if not delta:
            return spend * share
        down = math.isqrt(math.floor(share * 10**18))
        return spend * Fraction(down, 10**9)

    def charge(what: str, moved: Fraction, scale: Fraction, where: str) -> None:
        charges.append(
            Charge(
                what,
                mechanism,
                relation,
                moved,
                scale,
                f"{PROOF} {where}",
                delta=delta,
                contributions=people,
            )
        )

    def counted(what: str, tables: int, share: Fraction) -> int:
        moved = Counts(tables).sensitivity(mechanism, relation, people)
        scale = math.ceil(moved / part(share))
        charge(what, moved, Fraction(scale), "Lemma 1")
        return scale

    first = counted("counts of each column by class", columns, shares[0])
    if columns == 1:
        return Calibrated(mechanism, first, Fraction(0), 0, tuple(charges))
    draws, one = columns - 1, Fraction(score_sensitivity(relation, people))
    moved = CHOICE_MU * one * root_up(Fraction(draws)) if delta else 2 * one * draws
    choice = LEAST_SCALE * math.ceil(moved / part(shares[1]) / LEAST_SCALE)
    charge("choice of pairs of columns", moved, choice, "Lemma 2")
    pairs = counted("counts of pairs of columns by class", draws, shares[2])
    return Calibrated(mechanism, first, choice, pairs, tuple(charges))


def bins_that_fit(table: TableDomain) -> int:
    """Return the number of bins of a column in tables of pairs; refuse a table with too many cells.

    Formal guarantees
    -----------------
    A function of the declaration, called before anything is read or charged.
    """
    grids, classes = grids_of(table), classes_of(table)
    cells = sum(grid.size for grid in grids) * classes
    found = 0
    for most in BINS:
        sizes = [min(grid.size, most + 2) for grid in grids]
        found = sum(a * b for a, b in itertools.combinations(sizes, 2)) * classes
        if max(cells, found) <= MOST_CELLS:
            return most
    raise UserError(
        f"{len(grids)} columns and {classes} classes have {max(cells, found):,} cells in tables of pairs, "
        f'and at most {MOST_CELLS:,} are counted; declare some columns as kind = "ignored", or group values'
    )


# ---- passes


@dataclass(frozen=True)
class Cells:
    """From encoded records to the (n, columns + 1) cells of their columns, and their class."""

    table: TableDomain

    def __call__(self, part: Part) -> NDArray[np.int64]:
        """Return cells; each depends on its record alone."""
        encoded, answers = np.asarray(part[0]), np.asarray(part[1], dtype=np.int64)
        grids, stop = grids_of(self.table), 0
        out = np.empty((len(encoded), len(grids) + 1), dtype=np.int64)
        for at, grid in enumerate(grids):
            start, stop = stop, stop + grid.column.width
            out[:, at] = grid.cells(encoded[:, start:stop])
        classes = classes_of(self.table)
        if self.table.target is not None:
            answers = answers * TARGET_CELLS // (TARGET_UNIT + 1)
        out[:, -1] = np.clip(answers, 0, classes - 1)
        return out


@dataclass(frozen=True)
class ColumnCounts:
    """Counts of (cell, class) of every column in a part, one after another."""

    table: TableDomain
    block_rows: int = 1 << 14

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        cells, classes = Cells(self.table)(part), classes_of(self.table)
        found = [
            np.bincount(cells[:, at] * classes + cells[:, -1], minlength=grid.size * classes)
            for at, grid in enumerate(grids_of(self.table))
        ]
        return (np.concatenate(found).astype(np.int64),)


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Counts of (bin, bin, class) of every pair of columns in a part, one after another."""

    table: TableDomain
    bins: tuple[Integers, ...]
    block_rows: int = 1 << 16

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        cells, classes = Cells(self.table)(part), classes_of(self.table)
        sizes = [int(bins.max()) + 1 for bins in self.bins]
        binned = [bins[cells[:, at]] for at, bins in enumerate(self.bins)]
        found = []
        for first, second in itertools.combinations(range(len(binned)), 2):
            code = (binned[first] * sizes[second] + binned[second]) * classes + cells[:, -1]
            found.append(np.bincount(code, minlength=sizes[first] * sizes[second] * classes))
        return (np.concatenate(found).astype(np.int64),)


# ---- the choice


def chosen_pairs(
    counts: list[Integers], tables: Measured, noise: float, scale: Fraction, source: Source
) -> tuple[Pair, ...]:
    """Choose a tree of columns by the exponential mechanism, one pair after another.

    The score of a pair is how much its noisy table would say: the L1 distance of its counts to those of
    columns that are independent within each class, less the distance that noise alone would make.

    Parameters
    ----------
    counts : exact (bins, bins, classes) of all pairs of columns, in order.
    tables : the released tables of single columns.
    noise : expected absolute noise of a cell in a table of pairs, in records.
    scale : of the exponential mechanism, in records.
    source : of the randomness.

    Formal guarantees
    -----------------
    Scores are integers that a person moves by at most `score_sensitivity`: what they are compared with is
    released, and rounded to integers. Proved in docs/proof-synthetic.md (Lemma 2).
    """
    columns = len(tables.bins)
    candidates: list[Pair] = []
    scores: list[int] = []
    for (first, second), exact in zip(itertools.combinations(range(columns), 2), counts, strict=True):
        expected = tables.independent(first, second)
        for classes in (True, False):
            truth = exact if classes else exact.sum(2)
            known = np.rint(expected if classes else expected.sum(2)).astype(np.int64)
            candidates.append(Pair(first, second, classes))
            scores.append(int(np.abs(truth - known).sum()) - round(noise * truth.size))
    group = list(range(columns))
    chosen: list[Pair] = []
    for _ in range(columns - 1):
        open_pairs = [at for at, pair in enumerate(candidates) if group[pair.first] != group[pair.second]]
        pick = open_pairs[source.choose(np.array([scores[at] for at in open_pairs]), scale)]
        pair = candidates[pick]
        chosen.append(pair)
        before, after = group[pair.first], group[pair.second]
        group = [after if name == before else name for name in group]
    return tuple(chosen)


# ---- the release


def divided(budget: Budget) -> tuple[Budget, Fraction]:
    """Divide a budget: that of the head, and epsilon (or mu, with delta) of the tables."""
    if not budget.delta:
        pure = budget.epsilon * HEAD_SHARE
        return Budget(pure), budget.epsilon - pure
    mu = gaussian_mu(budget.epsilon, budget.delta)
    part = mu * Fraction(math.isqrt(math.floor(HEAD_SHARE * 10**18)), 10**9)
    head = Budget(gaussian_epsilon(part, budget.delta), budget.delta)
    spent = gaussian_mu(head.epsilon, budget.delta)
    rest = mu * mu - spent * spent
    return head, Fraction(math.isqrt(math.floor(rest * 10**24)), 10**12)


def within_budget(
    head: tuple[Charge, ...], table: TableDomain, spend: Fraction, budget: Budget
) -> Calibrated:
    """Calibrate the tables so that their charges and the head's compose to at most the budget."""
    while True:
        found = calibrate(table, spend, budget.delta)
        if compose([*head, *found.charges]).epsilon_proved <= budget.epsilon:
            return found
        spend *= Fraction(98, 100)


def release(
    records: Records,
    table: TableDomain,
    *,
    budget: Budget,
    ledger: Ledger,
    source: Source,
    head_charges: tuple[Charge, ...],
    head: Callable[[], Release],
    spend: Fraction,
) -> Release:
    """Make a release to draw tables from.

    Parameters
    ----------
    records : encoded, with class codes or positions of the target.
    table : the declared table.
    budget : of the whole release.
    ledger : the charges are written there before noise is drawn.
    source : of the noise.
    head_charges : what the head will cost.
    head : makes the head's release, and charges it.
    spend : epsilon or mu of the tables; see `divided`.
    """
    most = bins_that_fit(table)
    unproved = LEARNT_BOUNDS if table.bounds_learnt_from_data else ""
    calibrated = within_budget(head_charges, table, spend, budget)
    charges = tuple(replace(charge, unproved=unproved) for charge in calibrated.charges)
    ledger.check(*(replace(charge, unproved=unproved) for charge in head_charges), *charges)
    made = head()
    grids, classes = grids_of(table), classes_of(table)
    with progress.bar(records.rows, "counts of columns", "records") as advance:
        total = records.total(ColumnCounts(table), advance)
    if total is None:
        raise UserError("there are no records to release; give at least one")
    ledger.charge(*charges)
    noisy = source.add(total[0].integers() * UNIT, calibrated.mechanism, calibrated.columns)
    sd = calibrated.sd(calibrated.columns)
    bins = _bins(grids, classes, noisy, sd / UNIT, most)
    tables = measured(grids, classes, noisy, np.concatenate(bins), sd)
    pairs: tuple[Pair, ...] = ()
    of_pairs = np.zeros(0, dtype=np.int64)
    if len(grids) > 1:
        with progress.bar(records.rows, "counts of pairs", "records") as advance:
            total = records.total(PairCounts(table, tables.bins), advance)
        assert total is not None
        counts = _split(total[0].integers(), tables.sizes, classes)
        apart = (
            calibrated.pairs / UNIT * (math.sqrt(2 / math.pi) if calibrated.mechanism == "gaussian" else 1)
        )
        pairs = chosen_pairs(counts, tables, apart, calibrated.choice, source)
        places = {pair: at for at, pair in enumerate(itertools.combinations(range(len(grids)), 2))}
        flat = []
        for pair in pairs:
            exact = counts[places[pair.first, pair.second]]
            flat.append((exact if pair.classes else exact.sum(2)).ravel())
        of_pairs = source.add(np.concatenate(flat) * UNIT, calibrated.mechanism, calibrated.pairs)
    tensors = {
        "synthetic_columns": noisy,
        "synthetic_bins": np.concatenate(bins),
        "synthetic_pairs": of_pairs,
    }
    facts: dict[str, Any] = {
        "pairs": [[pair.first, pair.second, pair.classes] for pair in pairs],
        "sd_columns": sd,
        "sd_pairs": calibrated.sd(calibrated.pairs),
        "choice": str(calibrated.choice),
    }
    certificate = made.certificate
    return Release.make(
        {**made.tensors, **{name: torch.from_numpy(np.asarray(v)) for name, v in tensors.items()}},
        kind=certificate.kind,
        domain=certificate.domain,
        features=certificate.features,
        settings={**certificate.settings, "synthetic": facts, "asked": budget.to_dict()},
        charges=(*certificate.charges, *charges),
        stamps=(*certificate.stamps, *((SEEDED,) if source.seeded else ())),
    )


def _bins(
    grids: tuple[Grid, ...], classes: int, noisy: Integers, sd: float, most: int
) -> tuple[Integers, ...]:
    counts = noisy.reshape(-1, classes).sum(1) / UNIT
    parts = np.split(counts, np.cumsum([grid.size for grid in grids])[:-1])
    return tuple(
        bins_of(grid, part, sd * math.sqrt(classes), most) for grid, part in zip(grids, parts, strict=True)
    )


def _split(flat: Integers, sizes: list[int], classes: int) -> list[Integers]:
    """Split the counts of all pairs into (bins, bins, classes) tables."""
    out, start = [], 0
    for first, second in itertools.combinations(range(len(sizes)), 2):
        stop = start + sizes[first] * sizes[second] * classes
        out.append(flat[start:stop].reshape(sizes[first], sizes[second], classes))
        start = stop
    return out
