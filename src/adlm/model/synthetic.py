"""Synthetic tables: records in the raw columns, drawn from the noisy tables of a release.

A release of kind `synthetic` has a table of (cell, class) for every column, tables of (cell, cell, class) for
a tree of columns, and a head that predicts the class. Records are drawn down the tree; the head then labels
them.
Everything here reads the release alone.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv, parquet

from adlm.domain.columns import Column
from adlm.domain.encoding import expanded
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.model.fit import fit
from adlm.model.model import Model
from adlm.privacy.release import Release
from adlm.runtime.artefact import canonical, new_file, write_file

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]

UNIT = 64  # grid steps in one record
CELLS = 64  # of a bounded column, in tables of one column
MOST_INTEGERS = 256  # an integer column of a shorter range has a cell for each integer
TARGET_CELLS = 16  # of a numeric target, which is treated as a class
RARE = 3.0  # standard deviations of noise, below which categories are pooled in tables of pairs
FITTING_STEPS = 20  # of iterative proportional fitting
BATCH = 1 << 16  # records drawn together
MOST_TRIES = 200  # draws for each record that is to meet a condition


@dataclass(frozen=True)
class Grid:
    """The cells of a column: a function of its declaration.

    Attributes
    ----------
    column : the declared column.
    edges : of the cells of a bounded column, positions in [0, 1]; empty for categories.
    size : number of cells; the last one is that of missing values, where they are declared.
    """

    column: Column
    edges: tuple[float, ...]
    size: int

    @classmethod
    def of(cls, column: Column) -> Grid:
        """Return the cells of a column."""
        if column.kind == "categorical":
            return cls(column, (), column.width)
        if column.kind in ("ordinal", "boolean"):
            return cls(column, (), len(column.levels) + (column.missing is not None))
        low, high = column.number(column.lower), column.number(column.upper)
        cuts = [column.number(cut) for cut in column.cuts]
        if column.integer or column.kind == "date":
            shift = 0.5
            inner = np.arange(1, CELLS) / CELLS
            if high - low < MOST_INTEGERS:
                inner = np.array([column.position(low + k - shift) for k in range(1, int(high - low) + 1)])
            cuts = [math.ceil(cut) - shift for cut in cuts]
        else:
            inner = np.arange(1, CELLS) / CELLS
        found = np.unique([*inner, *(column.position(cut) for cut in cuts)])
        edges = (0.0, *(float(edge) for edge in found if 0 < edge < 1), 1.0)
        return cls(column, edges, len(edges) - 1 + (column.missing is not None))

    @property
    def ordered(self) -> bool:
        """Whether neighbouring cells may be pooled."""
        return self.column.kind not in ("categorical", "boolean")

    @property
    def has_missing(self) -> bool:
        """Whether the last cell is that of missing values."""
        return self.column.missing is not None

    def cells(self, encoded: NDArray[Any]) -> Integers:
        """Return the (n,) cells of the (n, width) encoding of a column; each depends on its record alone."""
        if self.column.kind == "categorical":
            return np.asarray(encoded.argmax(1), dtype=np.int64)
        last = self.size - 1 - self.has_missing
        position = np.nan_to_num(np.clip(encoded[:, 0], 0, 1))
        if self.edges:
            found = np.searchsorted(np.array(self.edges[1:-1], dtype=np.float32), position, side="right")
        else:
            found = np.rint(position * last)
        found = np.clip(found, 0, last).astype(np.int64)
        return np.where(encoded[:, 1] > 0.5, self.size - 1, found) if self.has_missing else found

    def positions(self, cells: Integers, generator: np.random.Generator) -> NDArray[Any]:
        """Return what `compact` stores: a code, or a position, uniform within its cell; -1 is missing."""
        if self.column.kind == "categorical":
            return cells
        last = self.size - 1 - self.has_missing
        inside = np.minimum(cells, last)
        if self.edges:
            edges = np.array(self.edges)
            place = edges[inside] + generator.random(len(cells)) * (edges[inside + 1] - edges[inside])
        else:
            place = inside / max(last, 1)
        missing = self.has_missing & (cells == self.size - 1)
        return np.where(missing, -1.0, place).astype(np.float32)


@dataclass(frozen=True)
class Pair:
    """A chosen pair of columns; `classes` says whether its table also has the class."""

    first: int
    second: int
    classes: bool


@dataclass(frozen=True, eq=False)
class Measured:
    """Noisy tables in numbers of records, as the curator and the analyst both read them.

    Attributes
    ----------
    one_way : (cells, classes) of each column.
    sd : standard deviation of their noise.
    bins : for each column, the bin of each cell in tables of pairs.
    """

    one_way: tuple[Reals, ...]
    sd: float
    bins: tuple[Integers, ...]

    @property
    def sizes(self) -> list[int]:
        """Number of bins of each column."""
        return [int(bins.max()) + 1 for bins in self.bins]

    @cached_property
    def class_counts(self) -> Reals:
        """Estimated records of each class: the mean over all columns, at least 1."""
        return np.asarray(np.maximum(np.mean([table.sum(0) for table in self.one_way], 0), 1.0))

    @cached_property
    def binned(self) -> list[Reals]:
        """(bins, classes) of each column: not negative, with the class counts as sums."""
        out = []
        for table, bins, size in zip(self.one_way, self.bins, self.sizes, strict=True):
            pooled = np.zeros((size, table.shape[1]))
            np.add.at(pooled, bins, table)
            columns = [simplex(pooled[:, k], float(self.class_counts[k])) for k in range(table.shape[1])]
            out.append(np.stack(columns, 1))
        return out

    def independent(self, first: int, second: int) -> Reals:
        """Expected (bins, bins, classes) of two columns that are independent within each class."""
        shares = self.binned[second] / self.class_counts
        return np.asarray(self.binned[first][:, None, :] * shares[None, :, :])


def simplex(values: Reals, total: float) -> Reals:
    """Return the nearest non-negative numbers with a given sum."""
    falling = np.sort(values)[::-1]
    over = np.cumsum(falling) - total
    last = int(np.flatnonzero(falling - over / np.arange(1, len(values) + 1) > 0)[-1])
    return np.asarray(np.maximum(values - over[last] / (last + 1), 0))


def bins_of(grid: Grid, counts: Reals, sd: float, most: int) -> Integers:
    """Pool the cells of a column for tables of pairs: equal shares of an ordered one, rare categories.

    Parameters
    ----------
    grid : the cells.
    counts : (cells,) noisy counts.
    sd : standard deviation of their noise.
    most : number of bins, besides those of missing and of pooled values.
    """
    bins = np.zeros(grid.size, dtype=np.int64)
    found = np.maximum(counts, 0)
    if not grid.ordered:
        kept = found >= RARE * sd
        kept[np.argsort(-found, kind="stable")[most:]] = False
        if (~kept).sum() < 2:
            return np.arange(grid.size)
        bins[kept], bins[~kept] = np.arange(kept.sum()), kept.sum()
        return bins
    last = grid.size - grid.has_missing
    if last <= most:
        return np.arange(grid.size)
    share, filled, current = found[:last].sum() / most, 0.0, 0
    for cell in range(last):
        bins[cell] = current
        filled += found[cell]
        if filled >= 0.999 * share and cell < last - 1 and current < most - 1:
            current, filled = current + 1, 0.0
    bins[last:] = current + 1
    return bins


def table_of(release: Release) -> TableDomain:
    """Return the declared table of a synthetic release."""
    if "synthetic" not in release.certificate.settings:
        raise UserError(
            "this release draws no records in raw columns; make one with adlm release --kind synthetic"
        )
    return TableDomain.from_dict(dict(release.certificate.features["spec"])["table"])


def grids_of(table: TableDomain) -> tuple[Grid, ...]:
    """Return the cells of all feature columns."""
    return tuple(Grid.of(column) for column in table.features)


def classes_of(table: TableDomain) -> int:
    """Return the number of classes, or of cells of a numeric target."""
    return TARGET_CELLS if table.target is not None else len(table.label.classes)


def measured(
    grids: Sequence[Grid], classes: int, one_way: Integers, bins: Integers, scale: float
) -> Measured:
    """Read the flat released tables of single columns."""
    stops = np.cumsum([grid.size for grid in grids])[:-1]
    tables = np.split(one_way.reshape(-1, classes) / UNIT, stops)
    return Measured(tuple(tables), scale / UNIT, tuple(np.split(bins, stops)))


@dataclass(frozen=True, eq=False)
class Synthesiser:
    """What draws the records of a release. Made by `Synthesiser.of`."""

    table: TableDomain
    grids: tuple[Grid, ...]
    tables: Measured
    order: tuple[tuple[int, int | None, Reals], ...]  # column, parent, (bins, bins of the parent x classes)
    within: tuple[Reals | None, ...]  # (cells, bins x classes), None where they are the same
    release: Release

    @classmethod
    def of(cls, release: Release) -> Synthesiser:
        """Fit the tables of a release."""
        table = table_of(release)
        facts = release.certificate.settings["synthetic"]
        grids, classes = grids_of(table), classes_of(table)
        tensors = {name: tensor.numpy() for name, tensor in release.tensors.items()}
        tables = measured(
            grids, classes, tensors["synthetic_columns"], tensors["synthetic_bins"], facts["sd_columns"]
        )
        pairs = [Pair(int(a), int(b), bool(c)) for a, b, c in facts["pairs"]]
        fitted = _fitted(tables, pairs, tensors["synthetic_pairs"], facts["sd_pairs"] / UNIT)
        within = tuple(_within(tables, at) for at in range(len(grids)))
        return cls(table, grids, tables, _down_the_tree(tables, fitted), within, release)

    def cells(self, rows: int, generator: np.random.Generator) -> tuple[list[Integers], Integers]:
        """Draw the cells of n records, and their classes."""
        shares = self.tables.class_counts / self.tables.class_counts.sum()
        classes = len(shares)
        labels = generator.choice(classes, rows, p=shares).astype(np.int64)
        bins: list[Integers] = [labels] * len(self.grids)
        for column, parent, table in self.order:
            given = labels if parent is None else bins[parent] * classes + labels
            bins[column] = _drawn(table, given, generator)
        cells = [
            at if table is None else _drawn(table, at * classes + labels, generator)
            for at, table in zip(bins, self.within, strict=True)
        ]
        return cells, labels

    @cached_property
    def _head(self) -> Model:
        """The released model that labels drawn records."""
        return fit(self.release)

    def _encoded(
        self, cells: list[Integers], generator: np.random.Generator
    ) -> tuple[NDArray[np.float32], list[NDArray[Any]]]:
        kept = [grid.positions(at, generator) for grid, at in zip(self.grids, cells, strict=True)]
        return expanded(self.table.features, kept), kept

    def draw(self, rows: int, generator: np.random.Generator) -> tuple[list[NDArray[Any]], Integers]:
        """Draw n records: what `compact` stores of each column, and class codes or cells of the target."""
        cells, labels = self.cells(rows, generator)
        encoded, kept = self._encoded(cells, generator)
        if self.table.target is None:
            odds = self._head.probabilities(encoded)
            below = np.cumsum(odds, 1)
            labels = (generator.random((rows, 1)) * below[:, -1:] > below).sum(1).astype(np.int64)
        return kept, labels

    def records(self, rows: int, where: Mapping[str, str], seed: int) -> pa.Table:
        """Draw records in the declared columns; see `synthesise`."""
        if rows < 1:
            raise UserError(f"rows must be at least 1, got {rows}")
        generator = np.random.default_rng(seed)
        parts: list[pa.Table] = []
        found = tried = 0
        while found < rows:
            if tried >= MOST_TRIES * max(rows, BATCH // 8):
                raise UserError(
                    f"only {found} of {tried:,} drawn records meet the condition; ask for fewer rows, or for "
                    "a more frequent value"
                )
            wanted = min(BATCH, max(rows - found, BATCH // 8) if where else rows - found)
            part = self._decoded(*self.draw(wanted, generator), generator)
            tried += wanted
            for name, value in where.items():
                part = part.filter(_meets(self.table, part, name, value))
            parts.append(part.slice(0, rows - found))
            found += len(parts[-1])
        return pa.concat_tables(parts)

    def _decoded(
        self, kept: list[NDArray[Any]], labels: Integers, generator: np.random.Generator
    ) -> pa.Table:
        columns = dict(zip((c.name for c in self.table.features), kept, strict=True))
        out: dict[str, pa.Array] = {}
        for column in self.table.columns:
            if column.name in columns:
                out[column.name] = _values(column, columns[column.name], generator)
            elif column.kind == "label":
                out[column.name] = pa.array(np.array(column.classes)[labels])
            elif column.kind == "target":
                place = (labels + generator.random(len(labels))) / TARGET_CELLS
                out[column.name] = _values(column, place.astype(np.float32), generator)
        return pa.table(out)


def synthesise(
    release: Release, rows: int, *, where: Mapping[str, str] | None = None, seed: int = 0
) -> pa.Table:
    """Draw synthetic records in the declared columns. Draws cost no privacy.

    Parameters
    ----------
    release : made with `kind="synthetic"`.
    rows : how many.
    where : conditions, a value for each of some columns; for a bounded column a range such as "30..40".
    seed : of the draw; it has nothing to do with privacy.

    Returns
    -------
    An Arrow table of the declared columns, without ignored ones; missing cells are null.
    """
    return Synthesiser.of(release).records(rows, where or {}, seed)


def write(release: Release, records: pa.Table, out: Path) -> None:
    """Write drawn records as CSV or Parquet, as their domain declares, with their certificate beside them.

    Parameters
    ----------
    release : that they were drawn from.
    records : from `synthesise`.
    out : a new file, `.csv` or `.parquet`; the certificate is written to `OUT.certificate.json`.
    """
    if out.suffix not in (".csv", ".parquet"):
        raise UserError(f"--out must end in .csv or .parquet, got {out.name!r}")
    table = table_of(release)
    with new_file(out, what="synthetic table") as stream:
        if out.suffix == ".parquet":
            parquet.write_table(records, stream)
        else:
            texts = _texts(table, records)
            options = csv.WriteOptions(include_header=table.header, delimiter=table.delimiter or ",")
            csv.write_csv(texts, stream, options)
    beside = out.with_name(f"{out.name}.certificate.json")
    write_file(beside, canonical(release.certificate.to_dict()), what="certificate")


# ---- fitting


def _fitted(
    tables: Measured, pairs: Sequence[Pair], flat: Integers, sd: float
) -> list[tuple[int, int, Reals]]:
    """Estimate the (bins, bins, classes) table of each pair.

    A noisy table is shrunk towards independence within classes (James and Stein), and then fitted to the
    tables of its columns.
    """
    sizes, classes = tables.sizes, len(tables.class_counts)
    out, start = [], 0
    for pair in pairs:
        shape = (sizes[pair.first], sizes[pair.second]) + ((classes,) if pair.classes else ())
        noisy = flat[start : start + math.prod(shape)].reshape(shape) / UNIT
        start += noisy.size
        expected = tables.independent(pair.first, pair.second)
        base = expected if pair.classes else expected.sum(2)
        apart = noisy - base
        weight = max(0.0, 1 - noisy.size * sd * sd / max(float((apart * apart).sum()), 1e-9))
        found = np.maximum(base + weight * apart, 0)
        if not pair.classes:
            found = expected * (found / np.maximum(base, 1e-9))[:, :, None]
        found = found + 1e-6 * expected + 1e-12
        first, second = tables.binned[pair.first], tables.binned[pair.second]
        for _ in range(FITTING_STEPS):
            found = found * (first / np.maximum(found.sum(1), 1e-12))[:, None, :]
            found = found * (second / np.maximum(found.sum(0), 1e-12))[None, :, :]
        out.append((pair.first, pair.second, found))
    return out


def _down_the_tree(
    tables: Measured, fitted: list[tuple[int, int, Reals]]
) -> tuple[tuple[int, int | None, Reals], ...]:
    """Order the columns so that each follows its parent."""
    beside: dict[int, list[tuple[int, Reals]]] = {at: [] for at in range(len(tables.bins))}
    for first, second, table in fitted:
        beside[first].append((second, table.transpose(1, 0, 2)))
        beside[second].append((first, table))
    order: list[tuple[int, int | None, Reals]] = []
    seen: set[int] = set()
    for root in beside:
        if root in seen:
            continue
        seen.add(root)
        order.append((root, None, tables.binned[root]))
        waiting = [root]
        while waiting:
            parent = waiting.pop()
            for child, table in beside[parent]:
                if child not in seen:
                    seen.add(child)
                    order.append((child, parent, table.reshape(len(table), -1)))
                    waiting.append(child)
    return tuple(order)


def _within(tables: Measured, at: int) -> Reals | None:
    """Return the (cells, bins x classes) shares of cells within each bin, shrunk to those of all classes."""
    table, bins, size = tables.one_way[at], tables.bins[at], tables.sizes[at]
    if size == len(bins):
        return None
    classes = table.shape[1]
    out = np.zeros((len(bins), size * classes))
    for one in range(size):
        cells = np.flatnonzero(bins == one)
        total = table[cells].sum(1)
        shares = simplex(total, max(float(total.sum()), 1.0)) + 1e-6
        shares /= shares.sum()
        for code in range(classes):
            part = table[cells, code]
            base = shares * max(float(part.sum()), 1.0)
            apart = part - base
            weight = max(0.0, 1 - len(cells) * tables.sd**2 / max(float((apart * apart).sum()), 1e-9))
            out[cells, one * classes + code] = np.maximum(base + weight * apart, 0) + 1e-9
    return out


def _drawn(table: Reals, given: Integers, generator: np.random.Generator) -> Integers:
    """Draw from the columns of (cells, contexts) weights, one for each of (n,) contexts."""
    cells, contexts = table.shape
    below = np.cumsum(table + 1e-300, 0)
    below /= below[-1]
    flat = (below + np.arange(contexts)).T.ravel()
    found = np.searchsorted(flat, given + generator.random(len(given)), side="right") - given * cells
    return np.asarray(np.clip(found, 0, cells - 1))


# ---- values as declared


def _values(column: Column, kept: NDArray[Any], generator: np.random.Generator) -> pa.Array:
    """Turn stored codes or positions into the values of a column; missing cells are null."""
    if column.kind == "categorical":
        names = _members(column)
        count = len(names)
        codes = np.minimum(kept.astype(np.int64), count - 1)
        choice = generator.integers(0, 1 << 40, len(codes))
        texts = [
            names[code][pick % len(names[code])] for code, pick in zip(codes.tolist(), choice, strict=True)
        ]
        return pa.array(texts, mask=kept.astype(np.int64) >= count)
    missing = kept < 0
    if column.kind in ("ordinal", "boolean"):
        levels = np.array(column.levels)
        codes = np.rint(np.clip(kept, 0, 1) * (len(levels) - 1)).astype(np.int64)
        return pa.array(levels[codes], mask=missing)
    low, high = column.number(column.lower), column.number(column.upper)
    place = np.clip(kept.astype(np.float64), 0, 1)
    if column.scale == "log":
        values = low + np.expm1(place * math.log1p(high - low))
    else:
        values = low + place * (high - low)
    values = np.clip(values, low, high)
    if column.kind == "date":
        days = np.rint(values).astype(np.int64)
        dates = [datetime.date.fromordinal(day) for day in days.tolist()]
        return pa.array(dates, pa.date32(), mask=missing)
    if column.integer:
        return pa.array(np.rint(values).astype(np.int64), mask=missing)
    return pa.array(np.array([float(f"{value:.6g}") for value in values.tolist()]), mask=missing)


def _members(column: Column) -> list[list[str]]:
    """Texts that stand for each category: a group's members, for one that covers a range its bounds."""
    if not column.groups:
        return [[name] for name in column.categories]
    members = []
    for _, texts in column.groups:
        found = []
        for text in texts:
            low, dots, high = text.partition("..")
            found += [low, high] if dots else [text]
        members.append(found)
    return members if column.other is None else [*members, [column.other]]


def _texts(table: TableDomain, records: pa.Table) -> pa.Table:
    """Return the columns of a CSV file: without a header row all declared ones, in their order."""
    empty = "" if "" in table.missing or not table.missing else table.missing[0]
    out = {}
    for column in table.columns:
        if column.name not in records.column_names:
            if not table.header:
                numbers = (str(at + 1) for at in range(len(records)))
                out[column.name] = list(numbers) if column.kind == "person" else [empty] * len(records)
            continue
        values = records[column.name].to_pylist()
        if column.kind == "date":
            shown = [None if v is None else v.strftime(column.format or "%Y-%m-%d") for v in values]
        elif column.kind in ("numeric", "target"):
            shown = [None if v is None else f"{v}".replace(".", table.decimal) for v in values]
        else:
            shown = values
        out[column.name] = [empty if v is None else v for v in shown]
    return pa.table(out)


def _meets(table: TableDomain, records: pa.Table, name: str, value: str) -> pa.Array:
    """Return which records meet a condition."""
    if name not in records.column_names:
        raise UserError(f"--where names {name!r}; the columns are {', '.join(records.column_names)}")
    column = next(c for c in table.columns if c.name == name)
    values = records[name].to_pylist()
    if column.kind in ("numeric", "target", "date"):
        low, dots, high = value.partition("..")
        try:
            read = datetime.date.fromisoformat if column.kind == "date" else float
            first, last = read(low), read(high if dots else low)
        except ValueError:
            raise UserError(f"--where {name}={value}: give a value or a range such as 30..40") from None
        return pa.array([v is not None and first <= v <= last for v in values])
    allowed = (
        {text for texts in _members(column) for text in texts} if column.kind == "categorical" else set()
    )
    allowed |= set(column.classes) | (set(column.levels) if column.kind in ("ordinal", "boolean") else set())
    named = dict(column.groups)
    wanted = set(named.get(value, (value,)))
    if not wanted & allowed:
        raise UserError(f"--where {name}={value}: the column has no such value")
    return pa.array([v in wanted for v in values])
