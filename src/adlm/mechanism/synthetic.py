"""A release from which tables can be drawn: noisy counts of single columns and of chosen pairs, and a head.

Two stages come before those of the head, the usual model of a table: counts of (cell, class) for each
column; a tree of columns, chosen by the exponential mechanism, and counts of (bin, bin, class) for its pairs.
`adlm.model.synthetic` draws records from what is released here.

Formal guarantees
-----------------
Relation: the table's, of persons with at most `contributions` records. Sensitivity: `Counts.sensitivity`, of
the code that counts. Guarantee: the charges of the stages, which `adlm.mechanism.stages` composes with those
of the head. Proved in docs/proof-synthetic.md.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.engine.passes import Part, clamped
from adlm.errors import UserError
from adlm.features import Features
from adlm.mechanism.stages import Run, Stage, Terms, spread
from adlm.model.synthetic import (
    TARGET_CELLS,
    UNIT,
    Grid,
    Integers,
    Measured,
    Pair,
    Resolution,
    bins_of,
    classes_of,
    measured,
)
from adlm.privacy.accounting import Budget, Charge, Mechanism, gaussian_epsilon, gaussian_mu
from adlm.privacy.noise import Source
from adlm.runtime import progress
from adlm.runtime.arithmetic import root_down, root_up

PROOF = "docs/proof-synthetic.md"
# Shares of the tables (of mu^2 with delta, of epsilon without): columns, the choice of pairs, pairs. The head
# has the rest; under pure epsilon, where parts add up, more of it (held-out records of segment alone).
# Held-out training records of Adult, satimage, ring, segment, spambase and optdigits, epsilon 1, with delta.
TABLES = (Fraction(40, 100), Fraction(10, 100), Fraction(50, 100))
HEAD = {True: Fraction(3, 10), False: Fraction(1, 2)}  # with delta, and without
# Held-out training records of Adult, satimage, ring and segment, epsilon 1.
CELLS = (64, 48, 32, 24, 16)  # of a bounded column, in tables of one column: the most with
RECORDS = 10.0  # times as many records in a cell, on average, as the standard deviation of its noise
BINS = (16, 12, 8, 6, 4)  # of a column in tables of pairs: the most with one such deviation, and that fit
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


def head_budget(budget: Budget) -> Budget:
    """Return the share of a budget that the head is planned with."""
    if not budget.delta:
        return Budget(budget.epsilon * HEAD[False])
    mu = gaussian_mu(budget.epsilon, budget.delta) * root_down(HEAD[True])
    return Budget(gaussian_epsilon(mu, budget.delta), budget.delta)


def stages(table: TableDomain, size: int, *, gaussian: bool) -> tuple[Stage, ...]:
    """List the stages of the tables, which come before those of the head.

    Parameters
    ----------
    table : the declared table.
    size : number of records, public or guessed.
    gaussian : whether there is a delta.
    """
    noise: Mechanism = "gaussian" if gaussian else "laplace"
    columns = len(table.features)

    def counted(run: Run) -> ColumnCounts:
        return ColumnCounts(table, run.known["resolution"])

    def then(run: Run, noisy: Integers, scale: int) -> None:
        run.known["columns"] = noisy, scale * spread(noise, 1)
        if columns == 1:
            _released(run, noisy, np.zeros(0, dtype=np.int64), (), (scale * spread(noise, 1), 0.0), BINS[0])

    moved = Counts(columns).sensitivity(noise, table.neighbours, 1)
    tables = 1 - HEAD[gaussian]
    share = tables * (TABLES[0] if columns > 1 else 1)
    first = ColumnsStage(
        "counts of each column by class",
        share,
        noise,
        moved,
        f"{PROOF} Lemma 1",
        counted,
        then,
        table=table,
        size=size,
    )
    if columns == 1:
        return (first,)
    pairs = Counts(columns - 1).sensitivity(noise, table.neighbours, 1)
    second = PairsStage(
        "counts of pairs of columns by class",
        tables * (TABLES[1] + TABLES[2]),
        noise,
        pairs,
        f"{PROOF} Lemma 1",
        counted,
        then,
        table=table,
        size=size,
    )
    return first, second


@dataclass(frozen=True, kw_only=True)
class ColumnsStage(Stage):
    """Counts of (cell, class) of every column, in cells that their noise leaves something of."""

    table: TableDomain
    size: int

    def run(self, run: Run, scale: Any) -> None:
        """Choose the cells, count, and add noise."""
        noise = scale * spread(self.noise, 1) / UNIT
        run.known["table"], run.known["resolution"] = self.table, resolution_for(self.table, self.size, noise)
        super().run(run, scale)


@dataclass(frozen=True, kw_only=True)
class PairsStage(ColumnsStage):
    """The choice of a tree of columns, and counts of (bin, bin, class) of its pairs, with a charge each."""

    @property
    def draws(self) -> int:
        """One for each choice, and one for the counts."""
        return len(self.table.features)

    def calibrated(self, loss: Fraction, terms: Terms) -> tuple[Any, tuple[Charge, ...]]:
        """Return the scales of the choice, in records, and of the counts, and both charges."""
        draws, delta = len(self.table.features) - 1, terms.budget.delta
        of_choice, of_counts = (part / (TABLES[1] + TABLES[2]) for part in TABLES[1:])
        if delta:
            of_choice, of_counts = root_down(of_choice), root_down(of_counts)
        one = Fraction(score_sensitivity(terms.neighbours, terms.contributions))
        moved = CHOICE_MU * one * root_up(Fraction(draws)) if delta else 2 * one * draws
        choice = LEAST_SCALE * math.ceil(moved / (loss * of_choice) / LEAST_SCALE)
        scale, cost = super().calibrated(loss * of_counts, terms)
        chosen = Charge(
            "choice of pairs of columns",
            self.noise,
            terms.neighbours,
            moved,
            choice,
            f"{PROOF} Lemma 2",
            delta,
            contributions=terms.contributions,
        )
        return (choice, scale), (chosen, *cost)

    def run(self, run: Run, scale: Any) -> None:
        """Count all pairs, choose a tree, and add noise to the counts of its pairs."""
        choice, of_counts = scale
        sd = of_counts * spread(self.noise, 1)
        resolution: Resolution = run.known["resolution"]
        grids, classes = resolution.grids(self.table), resolution.classes
        most = min(bins_that_fit(self.table, resolution), pair_bins(self.size, sd / UNIT))
        noisy, sd_columns = run.known["columns"]
        bins = np.concatenate(_bins(grids, classes, noisy, sd_columns / UNIT, most))
        tables = measured(grids, classes, noisy, bins, sd_columns)
        with progress.bar(run.records.rows, self.name, "records") as advance:
            sums = run.total(PairCounts(self.table, resolution, tables.bins), advance, stores=False)
        counts = _split(sums[0] // UNIT, tables.sizes, classes)
        apart = of_counts / UNIT * (math.sqrt(2 / math.pi) if self.noise == "gaussian" else 1)
        pairs = chosen_pairs(counts, tables, apart, choice, run.source)
        places = {pair: at for at, pair in enumerate(itertools.combinations(range(len(grids)), 2))}
        flat = []
        for pair in pairs:
            exact = counts[places[pair.first, pair.second]]
            flat.append((exact if pair.classes else exact.sum(2)).ravel())
        of_pairs = clamped(run.source.add(np.concatenate(flat) * UNIT, self.noise, of_counts))
        _released(run, noisy, of_pairs, pairs, (sd_columns, sd), most)


@dataclass(frozen=True, kw_only=True)
class MapStage(Stage):
    """No release: the stages after it read the features of a table's records."""

    features: Features

    @classmethod
    def of(cls, features: Features) -> MapStage:
        """Map by public features."""

        def nothing(*_: Any) -> Any:
            raise AssertionError

        none = Fraction(0)
        return cls("features", none, "laplace", none, PROOF, nothing, nothing, times=0, features=features)

    def calibrated(self, loss: Fraction, terms: Terms) -> tuple[Any, tuple[Charge, ...]]:
        """Return that nothing is charged."""
        return None, ()

    def run(self, run: Run, scale: Any) -> None:
        """Map the records."""
        run.map_tables(self.features)


def _released(
    run: Run,
    columns: Integers,
    pairs: Integers,
    chosen: tuple[Pair, ...],
    sds: tuple[float, float],
    most: int,
) -> None:
    """Take the noisy tables into the release."""
    resolution: Resolution = run.known["resolution"]
    grids = resolution.grids(run.known["table"])
    bins = _bins(grids, resolution.classes, columns, sds[0] / UNIT, most)
    run.tensors |= {
        "synthetic_columns": columns,
        "synthetic_bins": np.concatenate(bins),
        "synthetic_pairs": pairs,
    }
    run.facts["synthetic"] = {
        "pairs": [[pair.first, pair.second, pair.classes] for pair in chosen],
        "sd_columns": sds[0],
        "sd_pairs": sds[1],
        "cells": resolution.cells,
        "classes": resolution.classes,
    }


def resolution_for(table: TableDomain, n: int, noise: float) -> Resolution:
    """Choose how finely columns are counted, so that a cell has more records than its noise.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    noise : standard deviation of the noise of a cell, in records.
    """
    classes = classes_of(table)
    for by_class in (classes, 1) if table.target is None else (classes,):
        for cells in CELLS:
            if n >= RECORDS * noise * cells * by_class:
                return Resolution(cells, by_class)
    return Resolution(CELLS[-1], by_class)


def pair_bins(n: int, noise: float) -> int:
    """Return the most bins of a column in tables of pairs whose cells have more records than their noise."""
    return next((bins for bins in BINS if n >= noise * bins * bins), BINS[-1])


def bins_that_fit(table: TableDomain, resolution: Resolution | None = None) -> int:
    """Return the number of bins of a column in tables of pairs; refuse a table with too many cells.

    Formal guarantees
    -----------------
    A function of the declaration, called before anything is read or charged.
    """
    resolution = resolution or Resolution(CELLS[0], classes_of(table))
    grids, classes = resolution.grids(table), resolution.classes
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
    resolution: Resolution

    def __call__(self, part: Part) -> NDArray[np.int64]:
        """Return cells; each depends on its record alone."""
        encoded, answers = np.asarray(part[0]), np.asarray(part[1], dtype=np.int64)
        grids, stop = self.resolution.grids(self.table), 0
        out = np.empty((len(encoded), len(grids) + 1), dtype=np.int64)
        for at, grid in enumerate(grids):
            start, stop = stop, stop + grid.column.width
            out[:, at] = grid.cells(encoded[:, start:stop])
        if self.table.target is not None:
            answers = answers * TARGET_CELLS // (TARGET_UNIT + 1)
        out[:, -1] = np.clip(answers, 0, self.resolution.classes - 1)
        return out


@dataclass(frozen=True)
class ColumnCounts:
    """Counts of (cell, class) of every column in a part, one after another, in grid steps."""

    table: TableDomain
    resolution: Resolution
    block_rows: int = 1 << 14

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        cells, classes = Cells(self.table, self.resolution)(part), self.resolution.classes
        found = [
            np.bincount(cells[:, at] * classes + cells[:, -1], minlength=grid.size * classes)
            for at, grid in enumerate(self.resolution.grids(self.table))
        ]
        return (np.concatenate(found).astype(np.int64) * UNIT,)


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Counts of (bin, bin, class) of every pair of columns in a part, one after another, in grid steps."""

    table: TableDomain
    resolution: Resolution
    bins: tuple[Integers, ...]
    block_rows: int = 1 << 16

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        cells, classes = Cells(self.table, self.resolution)(part), self.resolution.classes
        sizes = [int(bins.max()) + 1 for bins in self.bins]
        binned = [bins[cells[:, at]] for at, bins in enumerate(self.bins)]
        found = []
        for first, second in itertools.combinations(range(len(binned)), 2):
            code = (binned[first] * sizes[second] + binned[second]) * classes + cells[:, -1]
            found.append(np.bincount(code, minlength=sizes[first] * sizes[second] * classes))
        return (np.concatenate(found).astype(np.int64) * UNIT,)


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
        for classes in (True, False) if exact.shape[2] > 1 else (False,):
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
