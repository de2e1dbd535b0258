"""Features of tables: every column becomes indicators that sum to one, by public rules alone.

A categorical column has an indicator for each value, a numeric one for each interval between public cuts
or hat functions on an even grid, a cross of two columns for each pair. A random Fourier feature is a wave
over the numeric columns together, and has two indicators, high and low. Sums of indicators
over records are then contingency tables, and an additive model is linear in the indicators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.public.domain.column import MISSING, Column
from adlm.public.domain.table import TableDomain
from adlm.public.features.base import Features
from adlm.public.features.cosine import cosine

DETAIL = (4, 16)  # least and most indicators of a numeric column without cuts
_GRID = 2.0**20  # of positions and frequencies
FREQUENCY = 3.0  # standard deviation of a wave's angle over the whole range of one column


class TabularFeatures(Features):
    """Indicators of the columns, divided by sqrt(c) for c blocks, so that norms are at most 1.

    A block is a column, a cross or a wave.

    Parameters
    ----------
    table : the declared table.
    detail : indicators of a numeric column without cuts (and most of an ordinal one).
    fourier : random Fourier features of the columns that are not categorical; 0 for none. Frequencies and
        phases come from a fixed seed. A wave w in [-1, 1] has the indicators (1 + w) / 2 and (1 - w) / 2.

    Notes
    -----
    The L1 norm of a record is sqrt(c) exactly. `blocks` gives the span of each block's indicators.
    """

    _frequencies: Tensor
    _phases: Tensor

    def __init__(self, table: TableDomain, *, detail: int = 12, fourier: int = 0) -> None:
        super().__init__()
        if detail < 2 or fourier < 0:
            raise UserError(f"detail must be at least 2 and fourier at least 0 (got {detail} and {fourier})")
        numeric = [c for c in table.features if c.kind != "categorical"]
        if fourier and not numeric:
            raise UserError("random Fourier features need a column that is not categorical; leave them out")
        self.table, self.detail, self.fourier = table, detail, fourier
        self._spans: dict[str, tuple[int, int]] = {}
        start = 0
        for column in table.features:
            self._spans[column.name] = (start, start + column.width)
            start += column.width
        self.inputs = start
        self._runs = [tuple(run) for _, run in groupby(table.features, key=lambda c: _alike(c, detail))]
        names: list[tuple[str, list[str]]] = [(c.name, indicator_names(c, detail)) for c in table.features]
        indicators = dict(names)
        for left, right in table.crosses:
            names.append(
                (f"{left} x {right}", [f"{a}, {b}" for a in indicators[left] for b in indicators[right]])
            )
        names += [(f"wave {i + 1}", [f"wave {i + 1} high", f"wave {i + 1} low"]) for i in range(fourier)]
        self.block_names = tuple(name for name, _ in names)
        self.indicator_names = tuple(name for _, block in names for name in block)
        edges = [0]
        for _, block in names:
            edges.append(edges[-1] + len(block))
        self.edges = tuple(edges)
        self.indicators = self.width = edges[-1]
        self._first = [self._spans[c.name][0] for c in numeric]
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(len(numeric), fourier, generator=generator)
        self.register_buffer("_frequencies", FREQUENCY * drawn)
        # sums of integer products are exact, so that a record's features do not depend on its batch
        self._frequencies_on_grid = torch.round(FREQUENCY * drawn.double() * _GRID)
        self.register_buffer("_phases", 2 * math.pi * torch.rand(fourier, generator=generator))

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """First and last (exclusive) coordinate of the indicators of each column, cross and wave."""
        return tuple(zip(self.edges[:-1], self.edges[1:], strict=True))

    @property
    def ordered(self) -> tuple[bool, ...]:
        """Whether the indicators of each block are ordered."""
        kinds = [c.kind in ("numeric", "ordinal", "date") for c in self.table.features]
        return (*kinds, *(False for _ in self.block_names[len(kinds) :]))

    def is_fourier(self, index: int) -> bool:
        """Whether an indicator is one of a random Fourier feature."""
        return index >= self.indicators - 2 * self.fourier

    @property
    def unit(self) -> float:
        """Value in a feature vector of an indicator that is 1."""
        return 1 / math.sqrt(len(self.block_names))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs) encoded records to (n, width)."""
        x = x.flatten(1)
        if x.shape[1] != self.inputs:
            raise UserError(f"encoded records have {self.inputs} numbers here, got {x.shape[1]}")
        indicators: list[Tensor] = []
        parts: dict[str, Tensor] = {}
        for run in self._runs:  # columns that are alike, together
            cells = x[:, self._spans[run[0].name][0] : self._spans[run[-1].name][1]]
            block = column_indicators(run[0], cells.reshape(-1, len(run), run[0].width), self.detail)
            indicators.append(block.flatten(1))
            if self.table.crosses:
                parts |= {column.name: block[:, at] for at, column in enumerate(run)}
        for left, right in self.table.crosses:
            indicators.append((parts[left].unsqueeze(2) * parts[right].unsqueeze(1)).flatten(1))
        if self.fourier:
            turned = torch.round(x[:, self._first].double() * _GRID) @ self._frequencies_on_grid.to(x.device)
            cosines = cosine(turned * (1 / _GRID**2) + self._phases.double()).float()
            indicators.append(torch.stack([(1 + cosines) / 2, (1 - cosines) / 2], 2).flatten(1))
        return indicators[0] * self.unit if len(indicators) == 1 else torch.cat(indicators, 1).mul_(self.unit)

    def possible(self, z: Tensor) -> Tensor:
        """Indicators are not negative, and those of a block sum to one."""
        out = z.clamp_min(0)
        for start, stop in self.blocks:
            total = out[:, start:stop].sum(1, keepdim=True)
            even = torch.full_like(out[:, start:stop], 1 / (stop - start))
            out[:, start:stop] = torch.where(total > 0, out[:, start:stop] / total.clamp_min(1e-12), even)
        return out * self.unit

    def spec(self) -> dict[str, Any]:
        """Describe the map, with the whole declared table."""
        return {
            "name": "tabular",
            "table": self.table.to_dict(),
            "detail": self.detail,
            "fourier": self.fourier,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> TabularFeatures:
        """Make it from its description."""
        return cls(TableDomain.from_dict(spec["table"]), detail=spec["detail"], fourier=spec["fourier"])


def detail_rule(n: float, spread: float) -> int:
    """Indicators of a numeric column, from the number of records and the noise on one count.

    A count should be about eight times its noise: four to sixteen indicators.
    """
    return int(min(max(n / (8 * max(spread, 1e-9)), DETAIL[0]), DETAIL[1]))


def column_indicators(column: Column, x: Tensor, detail: int) -> Tensor:
    """Indicators of one column, or of several that are alike: (..., indicators), rows summing to one."""
    if column.kind == "categorical":
        return x
    position = x[..., :1]
    if column.kind == "boolean":
        indicators = torch.cat([1 - position, position], -1)
    elif column.cuts:
        cuts = torch.tensor(_cut_positions(column), dtype=x.dtype, device=x.device)
        above = (position >= cuts).to(x.dtype)
        indicators = torch.cat([1 - above[..., :1], above[..., :-1] - above[..., 1:], above[..., -1:]], -1)
    else:
        knots = _knots(column, detail)
        place = position * (knots - 1)
        indicators = place - torch.arange(knots, dtype=x.dtype, device=x.device)
        indicators.abs_().neg_().add_(1).clamp_min_(0)  # in place: this dominates the time of a pass
    if column.missing is None:
        return indicators
    missing = x[..., 1:2]
    return torch.cat([indicators * (1 - missing), missing], -1)


def _alike(column: Column, detail: int) -> tuple[object, ...]:
    """What the indicators of a column depend on."""
    if column.kind == "categorical":
        return column.kind, column.width
    cuts = tuple(_cut_positions(column)) if column.cuts else ()
    return column.kind, cuts, _knots(column, detail), column.missing is None


def indicator_names(column: Column, detail: int) -> list[str]:
    """A name for each indicator, in the units of the file."""
    if column.kind == "categorical":
        return list(column.names)
    if column.kind == "boolean":
        names = [f"{column.name}={level}" for level in column.levels]
    elif column.cuts:
        low = [str(column.lower), *map(str, column.cuts)]
        names = [f"{column.name}>={value}" for value in low]
    elif column.kind == "ordinal" and _knots(column, detail) == len(column.levels):
        names = [f"{column.name}={level}" for level in column.levels]
    else:
        names = [
            f"{column.name}~{i / (_knots(column, detail) - 1):.2f}" for i in range(_knots(column, detail))
        ]
    return names + ([f"{column.name}={MISSING}"] if column.missing is not None else [])


def _knots(column: Column, detail: int) -> int:
    return min(detail, len(column.levels)) if column.kind == "ordinal" else detail


def _cut_positions(column: Column) -> list[float]:
    """Cuts on the scale of encoded cells, lowered so that rounding keeps a value at a cut above it."""
    return [column.position(column.number(cut)) - 1e-6 for cut in column.cuts]
