"""Indicators of a table's columns: categories, bins of numbers, missing cells; what the first pass counts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.public.domain.column import MISSING, Column
from adlm.public.domain.table import TableDomain
from adlm.public.features import loops

# Fixed with the constants of `scaled_table`.
KNOTS = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1.0)

_PLACE = 2.0**20  # grid of a cell's position between its bounds


@dataclass(frozen=True)
class Block:
    """The indicators of one column or cross.

    Attributes
    ----------
    name : of the column or cross.
    entries : a name for each.
    start : index of the first.
    knots : positions of the piecewise-linear bins of a numeric or date column without cuts.
    """

    name: str
    entries: tuple[str, ...]
    start: int
    knots: tuple[float, ...] = ()

    @property
    def stop(self) -> int:
        """One past the last entry."""
        return self.start + len(self.entries)

    @property
    def span(self) -> slice:
        """Slice of the entries."""
        return slice(self.start, self.stop)


def is_ordered(column: Column) -> bool:
    """Whether a column's cells lie anywhere between bounds: not a boolean or a category."""
    return column.kind in ("numeric", "date", "ordinal")


def knots(column: Column) -> tuple[float, ...]:
    """Positions of the piecewise-linear bins of an ordered column without cuts."""
    if column.kind == "ordinal":
        count = min(len(column.levels), len(KNOTS))
        return tuple(i / (count - 1) for i in range(count))
    return KNOTS


def indicator_names(column: Column) -> tuple[str, ...]:
    """A name for each indicator of a column, in the units of the file."""
    if column.kind == "categorical":
        return column.names
    if column.kind == "boolean":
        names = [f"{column.name}={level}" for level in column.levels]
    elif column.cuts:
        names = [f"{column.name}>={value}" for value in (column.lower, *column.cuts)]
    elif column.kind == "ordinal" and len(knots(column)) == len(column.levels):
        names = [f"{column.name}={level}" for level in column.levels]
    else:
        names = [f"{column.name}~{place:.3g}" for place in knots(column)]
    return (*names, *([f"{column.name}={MISSING}"] if column.missing is not None else ()))


def places(x: Tensor) -> Tensor:
    """Return positions on their grid."""
    return torch.floor(x * _PLACE).mul_(1 / _PLACE)


def indicators(column: Column, x: Tensor) -> Tensor:
    """Indicators of one column, (..., entries), non-negative, each row summing to one.

    `x` are the (..., width) numbers in [0, 1] that encode its cells, in double precision; several columns
    that are `alike` may be given at once.
    """
    if column.kind == "categorical":
        return x
    place = places(x[..., :1])
    if column.kind == "boolean":
        entries = torch.cat([1 - place, place], -1)
    elif column.cuts:
        entries = _steps((place >= torch.tensor(_cuts(column)).to(x)).to(x.dtype))
    else:
        at = torch.tensor(knots(column)).to(x)
        if column.missing is None and place.ndim == 3 and loops.plain(place) and loops.hats.pays(len(place)):
            entries = torch.empty(len(place), place.shape[1] * len(at), dtype=place.dtype)
            loops.hats(place[..., 0].contiguous().numpy(), at.numpy(), entries.numpy())
            return entries.view(*place.shape[:2], -1)
        entries = _steps(((place - at[:-1]) / (at[1:] - at[:-1])).clamp_(0.0, 1.0))
    if column.missing is None:
        return entries
    missing = x[..., 1:2]
    return torch.cat([entries * (1 - missing), missing], -1)


def alike(column: Column) -> tuple[object, ...]:
    """What the indicators of a column depend on: equal for columns that can be computed together."""
    if column.kind == "categorical":
        return column.kind, column.width
    at = _cuts(column) if column.cuts else () if column.kind == "boolean" else knots(column)
    return column.kind, bool(column.cuts), tuple(at), column.missing is None


def _cuts(column: Column) -> list[float]:
    return [column.position(column.number(cut)) - 1e-6 for cut in column.cuts]


def _steps(above: Tensor) -> Tensor:
    """Turn cumulative memberships (..., m) into memberships of the bins (..., m + 1)."""
    return torch.cat([1 - above[..., :1], above[..., :-1] - above[..., 1:], above[..., -1:]], -1)


class TableIndicators:
    """The indicators of a declared table: what the first pass counts."""

    def __init__(self, table: TableDomain) -> None:
        self.table = table
        self.spans: dict[str, slice] = {}
        start = 0
        for column in table.features:
            self.spans[column.name] = slice(start, start + column.width)
            start += column.width
        self.inputs = start
        names = {column.name: indicator_names(column) for column in table.features}
        named = list(names.items())
        for left, right in table.crosses:
            pairs = tuple(f"{a}, {b}" for a in names[left] for b in names[right])
            named.append((f"{left} x {right}", pairs))
        binned = (c for c in table.features if c.kind in ("numeric", "date") and not c.cuts)
        bins = {column.name: knots(column) for column in binned}
        blocks, start = [], 0
        for name, entries in named:
            blocks.append(Block(name, entries, start, bins.get(name, ())))
            start += len(entries)
        self.blocks, self.width = tuple(blocks), start
        self._runs = [tuple(run) for _, run in groupby(table.features, key=alike)]

    def __call__(self, x: Tensor) -> Tensor:
        """Map (n, inputs) encoded records to (n, width) indicators in double precision."""
        columns = self.of_columns(x, [column.name for column in self.table.features])
        if not self.table.crosses:
            return columns
        parts = {block.name: columns[:, block.span] for block in self.blocks[: len(self.table.features)]}
        crossed = [
            (parts[left].unsqueeze(2) * parts[right].unsqueeze(1)).flatten(1)
            for left, right in self.table.crosses
        ]
        return torch.cat([columns, *crossed], 1)

    def of_columns(self, x: Tensor, names: Collection[str]) -> Tensor:
        """Indicators of some columns of (n, inputs) encoded records, with adjacent ones of the same kind."""
        x = x.flatten(1)
        if x.shape[1] != self.inputs:
            raise UserError(f"encoded records have {self.inputs} numbers here, got {x.shape[1]}")
        x = x.double()
        parts = []
        for run in self.runs(names):  # columns that are alike, together
            cells = x[:, self.spans[run[0].name].start : self.spans[run[-1].name].stop]
            parts.append(indicators(run[0], cells.reshape(-1, len(run), run[0].width)).flatten(1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def runs(self, names: Collection[str]) -> list[tuple[Column, ...]]:
        """Runs of adjacent columns of the same kind that contain one of the names."""
        return [run for run in self._runs if any(column.name in names for column in run)]
