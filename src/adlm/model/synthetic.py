"""Synthetic tables: records in the raw columns, drawn from the noisy tables of a release.

A release of kind `synthetic` has a table of (cell, class) for every column, tables of (cell, cell, class) for
a tree of columns, and a head that predicts the class. Records are drawn down the tree; the head then labels
them.
Everything here reads the release alone.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute, csv, parquet

from adlm.domain.columns import Column
from adlm.domain.encoding import TARGET_UNIT, expanded
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.model.fit import fit
from adlm.model.head import simplex
from adlm.model.model import Model
from adlm.privacy.release import Release
from adlm.runtime.artefact import canonical, new_file, write_file

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]

UNIT = 64  # grid steps in one record
TARGET_CELLS = 16  # of a numeric target, which is treated as a class
RARE = 3.0  # standard deviations of noise, below which categories are pooled in tables of pairs
FITTING_STEPS = 20  # of iterative proportional fitting
BATCH = 1 << 16  # records drawn together
LABELLED = 1 << 13  # records that the head labels together
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
    def of(cls, column: Column, cells: int = 64) -> Grid:
        """Return the cells of a column: `cells` of equal width and those of its cuts, or one an integer."""
        if column.kind == "categorical":
            return cls(column, (), column.width)
        if column.kind in ("ordinal", "boolean"):
            return cls(column, (), len(column.levels) + (column.missing is not None))
        low, high = column.number(column.lower), column.number(column.upper)
        cuts = [column.number(cut) for cut in column.cuts]
        inner = np.arange(1, cells) / cells
        if column.integer or column.kind == "date":
            shift = 0.5
            if high - low < 4 * cells:
                inner = np.array([column.position(low + k - shift) for k in range(1, int(high - low) + 1)])
            cuts = [math.ceil(cut) - shift for cut in cuts]
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


@dataclass(frozen=True)
class Margin:
    """The (bins, classes) margin of a column in a table of pairs, or its (bins, 1) sum over classes."""

    column: int
    counts: Reals
    variance: float


@dataclass(frozen=True, eq=False)
class Measured:
    """Noisy tables in numbers of records, as the curator and the analyst both read them.

    Attributes
    ----------
    one_way : (cells, classes) of each column.
    sd : standard deviation of their noise.
    bins : for each column, the bin of each cell in tables of pairs.
    margins : of the tables of pairs, once these are released.
    """

    one_way: tuple[Reals, ...]
    sd: float
    bins: tuple[Integers, ...]
    margins: tuple[Margin, ...] = ()

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
        found = [self.pooled(at).T for at in range(len(self.bins))]
        return [np.stack(list(map(simplex, table, self.class_counts.tolist())), 1) for table in found]

    def pooled(self, at: int) -> Reals:
        """(bins, classes) of a column: its cells, summed, and its margins, weighted by inverse variance.

        Least squares, but for several margins without classes, whose common noise is neglected.
        """
        table, bins = self.one_way[at], self.bins[at]
        found, variance = np.zeros((self.sizes[at], table.shape[1])), np.bincount(bins)[:, None] * self.sd**2
        np.add.at(found, bins, table)
        for margin in sorted((m for m in self.margins if m.column == at), key=lambda m: -m.counts.shape[1]):
            summed = table.shape[1] // margin.counts.shape[1]  # classes in one count of the margin
            gap = margin.counts - found.reshape(len(found), -1, summed).sum(2)
            gain = summed * variance / (summed * variance + margin.variance)
            found = found + np.repeat(gain * gap / summed, summed, 1)
            variance = variance * (1 - gain / summed)
        return np.asarray(found)

    def independent(self, first: int, second: int) -> Reals:
        """Expected (bins, bins, classes) of two columns that are independent within each class."""
        shares = self.binned[second] / self.class_counts
        return np.asarray(self.binned[first][:, None, :] * shares[None, :, :])


def shrunk(noisy: Reals, base: Reals, energy: float) -> Reals:
    """Shrink a noisy table towards what is expected of it, by the noise's part of the difference.

    The estimator of James and Stein; `energy` is the expected sum of squares of the noise.
    """
    apart = noisy - base
    return np.asarray(base + max(0.0, 1 - energy / max(float((apart * apart).sum()), 1e-9)) * apart)


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


@dataclass(frozen=True)
class Resolution:
    """How finely the columns are counted: cells of a bounded column, and classes (1: not by class)."""

    cells: int
    classes: int

    def grids(self, table: TableDomain) -> tuple[Grid, ...]:
        """Return the cells of all feature columns."""
        return tuple(Grid.of(column, self.cells) for column in table.features)


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
class Tree:
    """A distribution of cells: the class, then each column given its parent and the class.

    Attributes
    ----------
    classes : (classes,) weights.
    order : column, its parent or None, and (bins, contexts) weights; a context is a class, or a bin of the
        parent with a class.
    within : for each column (cells, bins x classes) weights of cells; None where cells are bins.
    """

    classes: Reals
    order: tuple[tuple[int, int | None, Reals], ...]
    within: tuple[Reals | None, ...]

    def given(self, masks: Mapping[int, Reals]) -> Tree:
        """Return the distribution of records whose cells are in masks: (cells,) of 0 and 1 by column.

        Each weight is multiplied by the probability that what is drawn below it meets all masks.
        """
        classes = len(self.classes)
        within, below = list(self.within), {}
        for column, mask in masks.items():
            table = within[column]
            if table is None:
                below[column] = np.repeat(mask[:, None], classes, 1)
            else:
                masked = table * mask[:, None]
                within[column] = masked
                below[column] = (masked.sum(0) / table.sum(0)).reshape(-1, classes)
        order = list(self.order)
        of_class = np.ones(classes)
        for at in range(len(order) - 1, -1, -1):
            column, parent, table = order[at]
            if column not in below:
                continue
            by_class = table.reshape(len(table), -1, classes)
            found = by_class * below[column][:, None, :]
            order[at] = (column, parent, found.reshape(table.shape))
            met = found.sum(0) / np.maximum(by_class.sum(0), 1e-300)
            if parent is None:
                of_class = of_class * met[0]
            else:
                below[parent] = below.get(parent, 1.0) * met
        return Tree(self.classes * of_class, tuple(order), tuple(within))

    @cached_property
    def _cumulative(self) -> tuple[list[Reals], list[Reals | None]]:
        return [_cumulative(table) for _, _, table in self.order], [
            None if table is None else _cumulative(table) for table in self.within
        ]

    def draw(self, rows: int, generator: np.random.Generator) -> tuple[list[Integers], Integers]:
        """Draw the cells of n records, by column, and their classes."""
        below, inside = self._cumulative
        classes = len(self.classes)
        labels = generator.choice(classes, rows, p=self.classes / self.classes.sum()).astype(np.int64)
        bins: list[Integers] = [labels] * len(self.within)
        for (column, parent, _), table in zip(self.order, below, strict=True):
            context = labels if parent is None else bins[parent] * classes + labels
            bins[column] = _drawn(table, context, generator)
        cells = [
            at if table is None else _drawn(table, at * classes + labels, generator)
            for at, table in zip(bins, inside, strict=True)
        ]
        return cells, labels


def _cumulative(table: Reals) -> Reals:
    """Return (contexts, cells) cumulative shares of (cells, contexts) weights, the context added to each."""
    below = np.cumsum(table + 1e-300, 0)
    return np.ascontiguousarray((below / below[-1] + np.arange(table.shape[1])).T)


def _drawn(below: Reals, contexts: Integers, generator: np.random.Generator) -> Integers:
    """Draw a cell for each of (n,) contexts, by inversion."""
    cells = below.shape[1]
    found = np.searchsorted(below.ravel(), contexts + generator.random(len(contexts)), side="right")
    return np.asarray(np.clip(found - contexts * cells, 0, cells - 1))


@dataclass(frozen=True, eq=False)
class Synthesiser:
    """What draws the records of a release. Made by `Synthesiser.of`."""

    table: TableDomain
    grids: tuple[Grid, ...]
    tree: Tree
    release: Release

    @classmethod
    def of(cls, release: Release) -> Synthesiser:
        """Fit the tables of a release."""
        table = table_of(release)
        facts = release.certificate.settings["synthetic"]
        resolution = Resolution(int(facts["cells"]), int(facts["classes"]))
        grids, classes = resolution.grids(table), resolution.classes
        tensors = {name: tensor.numpy() for name, tensor in release.tensors.items()}
        tables = measured(
            grids, classes, tensors["synthetic_columns"], tensors["synthetic_bins"], facts["sd_columns"]
        )
        pairs = [Pair(int(a), int(b), bool(c)) for a, b, c in facts["pairs"]]
        noisy, sd = _tables_of(pairs, tables, tensors["synthetic_pairs"]), facts["sd_pairs"] / UNIT
        tables = replace(tables, margins=tuple(_margins(noisy, sd)))
        fitted = [_fitted(tables, pair, table, sd) for pair, table in noisy]
        within = tuple(_within(tables, at) for at in range(len(grids)))
        tree = Tree(tables.class_counts, _down_the_tree(tables, fitted), within)
        return cls(table, grids, tree, release)

    @cached_property
    def _head(self) -> Model:
        """The released model that labels drawn records."""
        model = fit(self.release)
        if model.features is not None:
            model.features.batch = LABELLED
        return model

    def draw(
        self, rows: int, generator: np.random.Generator, tree: Tree | None = None
    ) -> tuple[list[NDArray[Any]], Integers]:
        """Draw n records: what `compact` stores of each column, and class codes or cells of the target."""
        cells, labels = (tree or self.tree).draw(rows, generator)
        kept = [grid.positions(at, generator) for grid, at in zip(self.grids, cells, strict=True)]
        if self.table.target is None:
            odds = self._head.probabilities(expanded(self.table.features, kept))
            below = np.cumsum(odds, 1)
            labels = (generator.random((rows, 1)) * below[:, -1:] > below).sum(1).astype(np.int64)
        return kept, labels

    def records(self, rows: int, where: Sequence[Condition], seed: int) -> Iterator[pa.Table]:
        """Draw records in the declared columns, a part at a time; see `synthesise`.

        Conditions on features are met by the tree. Values at the edge of a cell and labels are drawn until
        they meet theirs.
        """
        generator = np.random.default_rng(seed)
        tree = self._tree_given(where)
        found = tried = 0
        while found < rows:
            if tried >= MOST_TRIES * max(rows, BATCH // 8):
                raise UserError(
                    f"only {found} of {tried:,} drawn records meet the condition; ask for fewer rows, or for "
                    "a more frequent value"
                )
            wanted = min(BATCH, max(rows - found, BATCH // 8) if where else rows - found)
            part = decoded(self.table, *self.draw(wanted, generator, tree), generator)
            tried += wanted
            for condition in where:
                part = part.filter(condition.met(part[condition.column.name]))
            part = part.slice(0, rows - found)
            found += len(part)
            yield part

    def _tree_given(self, where: Sequence[Condition]) -> Tree:
        grids = {grid.column.name: (at, grid) for at, grid in enumerate(self.grids)}
        of_features = [(*grids[c.column.name], c) for c in where if c.column.name in grids]
        masks = {at: condition.cells(grid).astype(np.float64) for at, grid, condition in of_features}
        tree = self.tree.given(masks) if masks else self.tree
        if not tree.classes.sum() > 0:
            asked = ", ".join(condition.text for condition in where)
            raise UserError(f"no record of this release can meet {asked}; ask for another value")
        return tree


@dataclass(frozen=True)
class Condition:
    """What drawn values of a column must be: one of some texts, or from `first` to `last`.

    Attributes
    ----------
    column : a declared feature, label or target.
    text : as it was asked, such as `town=north`.
    texts : allowed values of a column without order.
    first, last : ends of the range of a numeric or date column, both allowed.
    """

    column: Column
    text: str
    texts: frozenset[str] = frozenset()
    first: Any = None
    last: Any = None

    @classmethod
    def read(cls, table: TableDomain, name: str, value: str) -> Condition:
        """Read `value` of a column: a text, the name of a declared group, a number, or a range of numbers."""
        columns = {c.name: c for c in (*table.features, table.answer)}
        if name not in columns:
            raise UserError(f"--where names {name!r}; the columns are {', '.join(columns)}")
        column, text = columns[name], f"{name}={value}"
        if column.kind not in ("numeric", "target", "date"):
            groups, allowed = dict(column.groups), column.classes or column.levels
            if column.kind == "categorical":
                allowed = tuple(member for members in _members(column) for member in members)
            texts = frozenset(groups.get(value, (value,))).intersection(allowed)
            if not texts:
                raise UserError(f"--where {text}: {name} is one of {', '.join((*groups, *allowed))}")
            return cls(column, text, texts)
        low, dots, high = value.partition("..")
        single = column.kind == "date" or column.integer
        try:
            read: Callable[[str], Any] = datetime.date.fromisoformat if column.kind == "date" else float
            first, last = read(low), read(high if dots or not single else low)
            ends = [column.number(end) for end in (first, last, column.lower, column.upper)]
            if not (ends[0] <= ends[1] and ends[1] >= ends[2] and ends[0] <= ends[3]):
                raise ValueError("an empty range")
        except (ValueError, UserError):
            kind = "a day, or a range of days" if column.kind == "date" else "a range"
            raise UserError(
                f"--where {text}: give {'a value or ' * column.integer}{kind} within the declared bounds, "
                f"such as {name}={column.lower}..{column.upper}"
            ) from None
        return cls(column, text, first=first, last=last)

    def cells(self, grid: Grid) -> NDArray[np.bool_]:
        """Return the (cells,) that have values which meet it."""
        out = np.zeros(grid.size, dtype=bool)
        if self.texts:
            levels = [[level] for level in self.column.levels]
            names = _members(self.column) if self.column.kind == "categorical" else levels
            out[: len(names)] = [not self.texts.isdisjoint(texts) for texts in names]
            return out
        half = 0.5 if self.column.integer or self.column.kind == "date" else 0.0  # values are rounded
        low = self.column.position(self.column.number(self.first) - half) - 1e-6
        high = self.column.position(self.column.number(self.last) + half) + 1e-6
        edges = np.array(grid.edges)
        out[: len(edges) - 1] = (edges[:-1] <= high) & (edges[1:] >= low)
        return out

    def met(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return which values meet it; a missing one does not."""
        if self.texts:
            return compute.is_in(values, value_set=pa.array(sorted(self.texts)))
        kind = pa.date32() if self.column.kind == "date" else pa.float64()
        first, last, values = pa.scalar(self.first, kind), pa.scalar(self.last, kind), values.cast(kind)
        found = compute.and_(compute.greater_equal(values, first), compute.less_equal(values, last))
        return found.fill_null(False)


def decoded(
    table: TableDomain, kept: list[NDArray[Any]], labels: Integers, generator: np.random.Generator
) -> pa.Table:
    """Turn what `compact` stores of each column, and class codes, into records in the declared columns."""
    columns = dict(zip((c.name for c in table.features), kept, strict=True))
    out: dict[str, pa.Array] = {}
    for column in table.columns:
        if column.name in columns:
            out[column.name] = _values(column, columns[column.name], generator)
        elif column.kind == "label":
            out[column.name] = pa.array(column.classes).take(pa.array(labels))
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
    return pa.concat_tables(drawn_parts(release, rows, where or {}, seed))


def drawn_parts(release: Release, rows: int, where: Mapping[str, str], seed: int) -> Iterator[pa.Table]:
    """Draw as `synthesise` does, a part of the records at a time."""
    if rows < 1:
        raise UserError(f"rows must be at least 1, got {rows}")
    table = table_of(release)
    conditions = [Condition.read(table, name, value) for name, value in where.items()]
    return Synthesiser.of(release).records(rows, conditions, seed)


def write(
    release: Release, rows: int, out: Path, *, where: Mapping[str, str] | None = None, seed: int = 0
) -> list[str]:
    """Draw records into a CSV or Parquet file, as their domain declares, with their certificate beside it.

    Records are written as they are drawn, so memory does not grow with their number.

    Parameters
    ----------
    release, rows, where, seed : as for `synthesise`.
    out : a new file, `.csv` or `.parquet`; the certificate is written to `OUT.certificate.json`.

    Returns
    -------
    The names of the columns.
    """
    if out.suffix not in (".csv", ".parquet"):
        raise UserError(f"--out must end in .csv or .parquet, got {out.name!r}")
    table, parts = table_of(release), drawn_parts(release, rows, where or {}, seed)
    first = next(parts)
    with new_file(out, what="synthetic table") as stream:
        if out.suffix == ".parquet":
            with parquet.ParquetWriter(stream, first.schema) as writer:
                for part in itertools.chain([first], parts):
                    writer.write_table(part)
        else:
            options = csv.WriteOptions(include_header=table.header, delimiter=table.delimiter or ",")
            with csv.CSVWriter(stream, _texts(table, first).schema, write_options=options) as writer:
                for part in itertools.chain([first], parts):
                    writer.write_table(_texts(table, part))
    beside = out.with_name(f"{out.name}.certificate.json")
    write_file(beside, canonical(release.certificate.to_dict()), what="certificate")
    return list(first.column_names)


# ---- beside real records


@dataclass(frozen=True)
class Comparison:
    """Drawn records beside real ones. It is not private: it is a statistic of the real ones.

    Attributes
    ----------
    drawn, real : numbers of records.
    columns : total variation between drawn and real shares of each column's cells, and of the label's.
    pairs : the same of each pair of columns that was counted together.
    accuracy : of gradient boosting on one half of the real records: trained on drawn records (`drawn`), and
        on the other half (`real`); empty for a numeric target.
    """

    drawn: int
    real: int
    columns: Mapping[str, float]
    pairs: Mapping[str, float]
    accuracy: Mapping[str, float]


def compare(
    release: Release, x: NDArray[np.float32], y: NDArray[np.int64], *, rows: int = 10_000, seed: int = 0
) -> Comparison:
    """Draw records and compare them with real ones.

    Parameters
    ----------
    release : made with `kind="synthetic"`.
    x, y : (n, width) encoded real records, and their (n,) class codes or positions of the target.
    rows : how many to draw.
    seed : of the draw.
    """
    made = Synthesiser.of(release)
    table, facts = made.table, release.certificate.settings["synthetic"]
    kept, labels = made.draw(rows, np.random.default_rng(seed))
    drawn = expanded(table.features, kept)
    answers = y * TARGET_CELLS // (TARGET_UNIT + 1) if table.target is not None else y

    def gap(one: list[Integers], two: list[Integers]) -> float:
        shape = tuple(max(int(a.max()), int(b.max())) + 1 for a, b in zip(one, two, strict=True))
        counts = [
            np.bincount(np.ravel_multi_index(tuple(side), shape), minlength=math.prod(shape)) / len(side[0])
            for side in (one, two)
        ]
        return float(np.abs(counts[0] - counts[1]).sum() / 2)

    cells: dict[str, tuple[Integers, Integers]] = {}
    stop = 0
    for grid in made.grids:
        start, stop = stop, stop + grid.column.width
        cells[grid.column.name] = (grid.cells(drawn[:, start:stop]), grid.cells(x[:, start:stop]))
    names = list(cells)
    cells[table.answer.name] = (labels, answers)
    pairs = {
        f"{names[a]} and {names[b]}": gap(*([cells[names[at]][side] for at in (a, b)] for side in (0, 1)))
        for a, b, _ in facts["pairs"]
    }
    accuracy = {}
    if table.target is None and len(np.unique(y)) > 1 and len(np.unique(labels)) > 1:
        from sklearn.ensemble import HistGradientBoostingClassifier

        half = np.random.default_rng(0).permutation(len(y))
        fit_on, test = half[: len(y) // 2], half[len(y) // 2 :]
        for name, train in (("drawn", (drawn, labels)), ("real", (x[fit_on], y[fit_on]))):
            model = HistGradientBoostingClassifier(random_state=0).fit(*train)
            accuracy[name] = float((model.predict(x[test]) == y[test]).mean())
    return Comparison(
        rows, len(y), {name: gap([one], [two]) for name, (one, two) in cells.items()}, pairs, accuracy
    )


# ---- fitting


def _tables_of(pairs: Sequence[Pair], tables: Measured, flat: Integers) -> list[tuple[Pair, Reals]]:
    """Read the flat released tables of pairs, (bins, bins, classes), or (bins, bins, 1) without classes."""
    classes, sizes = len(tables.class_counts), tables.sizes
    shapes = [(sizes[pair.first], sizes[pair.second], classes if pair.classes else 1) for pair in pairs]
    parts = np.split(flat / UNIT, np.cumsum([math.prod(shape) for shape in shapes]))  # and an empty one
    return [(pair, part.reshape(shape)) for pair, part, shape in zip(pairs, parts[:-1], shapes, strict=True)]


def _margins(noisy: Sequence[tuple[Pair, Reals]], sd: float) -> Iterator[Margin]:
    """List what tables of pairs say of their columns."""
    for pair, table in noisy:
        yield Margin(pair.first, table.sum(1), table.shape[1] * sd * sd)
        yield Margin(pair.second, table.sum(0), table.shape[0] * sd * sd)


def _fitted(tables: Measured, pair: Pair, noisy: Reals, sd: float) -> tuple[int, int, Reals]:
    """Estimate the (bins, bins, classes) table of a pair.

    It is shrunk towards independence within classes, and then fitted to the tables of its columns.
    """
    expected = tables.independent(pair.first, pair.second)
    base = expected if pair.classes else expected.sum(2, keepdims=True)
    found = np.maximum(shrunk(noisy, base, noisy.size * sd * sd), 0)
    if not pair.classes:
        found = expected * (found / np.maximum(base, 1e-9))
    found = found + 1e-6 * expected + 1e-12
    first, second = tables.binned[pair.first], tables.binned[pair.second]
    for _ in range(FITTING_STEPS):
        found = found * (first / np.maximum(found.sum(1), 1e-12))[:, None, :]
        found = found * (second / np.maximum(found.sum(0), 1e-12))[None, :, :]
    return pair.first, pair.second, found


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
            found = shrunk(part, base, len(cells) * tables.sd**2)
            out[cells, one * classes + code] = np.maximum(found, 0) + 1e-9
    return out


# ---- values as declared


def _values(column: Column, kept: NDArray[Any], generator: np.random.Generator) -> pa.Array:
    """Turn stored codes or positions into the values of a column; missing cells are null."""
    if column.kind == "categorical":
        members = _members(column)
        counts = np.array([*map(len, members), 1])
        starts = np.cumsum(counts) - counts
        texts = pa.array([*(text for texts in members for text in texts), None])
        codes = np.minimum(kept.astype(np.int64), len(members))
        pick = (generator.random(len(codes)) * counts[codes]).astype(np.int64) if column.groups else 0
        return texts.take(pa.array(starts[codes] + pick))
    missing = kept < 0
    if column.kind in ("ordinal", "boolean"):
        codes = np.rint(np.clip(kept, 0, 1) * (len(column.levels) - 1)).astype(np.int64)
        return pa.array(column.levels).take(pa.array(codes, mask=missing))
    low, high = column.number(column.lower), column.number(column.upper)
    place = np.clip(kept.astype(np.float64), 0, 1)
    if column.scale == "log":
        values = low + np.expm1(place * math.log1p(high - low))
    else:
        values = low + place * (high - low)
    values = np.clip(values, low, high)
    if column.kind == "date":
        days = np.rint(values).astype(np.int32) - np.int32(datetime.date(1970, 1, 1).toordinal())
        return pa.array(days, mask=missing).cast(pa.date32())
    if column.integer:
        return pa.array(np.rint(values).astype(np.int64), mask=missing)
    return pa.array(np.clip(_six_digits(values), low, high), mask=missing)


def _six_digits(values: Reals) -> Reals:
    """Round to six significant digits, to numbers that print with no more."""
    size = np.floor(np.log10(np.maximum(np.abs(values), 1e-15)))
    up, down = 10.0 ** np.clip(5 - size, 0, 20), 10.0 ** np.clip(size - 5, 0, 300)
    return np.asarray(np.rint(values * up / down) * down / up)


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
                numbers = pa.array(range(1, len(records) + 1)).cast(pa.string())
                out[column.name] = numbers if column.kind == "person" else pa.repeat(empty, len(records))
            continue
        values = records[column.name]
        if column.kind == "date":
            values = compute.strftime(values, format=column.format or "%Y-%m-%d")
        elif column.kind in ("numeric", "target"):
            values = values.cast(pa.string())
            if table.decimal != ".":
                values = compute.replace_substring(values, ".", table.decimal)
        out[column.name] = values.fill_null(empty)
    return pa.table(out)
