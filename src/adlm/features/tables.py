"""Features of tables: encoded values, indicators of categories and bins, random Fourier features."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adlm.domain.columns import MISSING, Column
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features.base import Features
from adlm.features.linear import is_plain_tensor
from adlm.runtime.arithmetic import symmetric
from adlm.runtime.compiled import Compiled

# ---- The innermost loops of a table's features, to be compiled (`runtime.compiled`): the same bits as
# PyTorch's.
#
# Their twins, which small data sets, exports and accelerators use: `cosine`, `table_indicators.indicators`
# and `ScaledTable.forward`.

Reals = npt.NDArray[np.float64]
SINE = tuple((-1) ** i / math.factorial(2 * i + 1) for i in range(9, -1, -1))  # of x^19 to x
HALF_PI = (1.5707963267341256, 6.077100506506192e-11)  # high part, whose small multiples are exact, and low


def _waves(angles: Reals, factor: float, phases: Reals) -> None:
    """Replace (n, k) angles by the cosines of angle x factor + phase."""
    for row in range(len(angles)):
        wave = angles[row]
        for j in range(len(phases)):
            angle = wave[j] * factor + phases[j]
            quarter = np.rint(angle * (2 / np.pi))
            inner = (angle - quarter * HALF_PI[0]) - quarter * HALF_PI[1]
            turn = quarter + 1.0
            turn -= np.floor(turn * 0.25) * 4.0
            back = np.floor(turn * 0.5)
            odd = turn - back * 2.0
            inner = (np.pi / 2 - abs(inner)) * odd + inner * (1.0 - odd)
            square = inner * inner
            value = (square * SINE[0] + SINE[1]) * square  # written out, so that the loop is vectorised
            value = (value + SINE[2]) * square
            value = (value + SINE[3]) * square
            value = (value + SINE[4]) * square
            value = (value + SINE[5]) * square
            value = (value + SINE[6]) * square
            value = (value + SINE[7]) * square
            value = (value + SINE[8]) * square
            value = (value + SINE[9]) * inner
            wave[j] = value * (back * -2.0 + 1.0)


def _hats(places: Reals, knots: Reals, out: Reals) -> None:
    """Write the memberships of (n, c) places in the c m piecewise-linear bins of m knots: (n, c m)."""
    width = len(knots)
    for row in range(len(places)):
        for column in range(places.shape[1]):
            place, bins = places[row, column], out[row, column * width : (column + 1) * width]
            below = 1.0  # cumulative membership of the bins from this one on
            for j in range(width - 1):
                above = min(max((place - knots[j]) / (knots[j + 1] - knots[j]), 0.0), 1.0)
                bins[j] = below - above
                below = above
            bins[width - 1] = below


def _table_rows(
    values: Reals,
    counted: Reals,
    waves: Reals,
    centre: Reals,
    scales: tuple[float, Reals, float],
    unit: float,
    out: npt.NDArray[np.float32],
) -> None:
    """Write rows of scaled values, centred indicators and waves, of length 1, on a grid of 1 / `unit`.

    Parameters
    ----------
    values, counted, waves : (n, d) values, (n, e) indicators and (n, f) cosines.
    centre : (e,) what to subtract from each indicator.
    scales : what to multiply values, each indicator, and cosines by.
    unit : grid steps in one.
    out : (n, d + e + f).
    """
    d, e, f = values.shape[1], counted.shape[1], waves.shape[1]
    value_scale, scale, wave_scale = scales
    row = np.empty(d + e + f)
    for i in range(len(out)):
        for j in range(d):
            row[j] = np.rint(values[i, j] * value_scale)
        for j in range(e):
            row[d + j] = np.rint((counted[i, j] - centre[j]) * scale[j])
        for j in range(f):
            row[d + e + j] = np.rint(waves[i, j] * wave_scale)
        square = np.int64(0)
        for j in range(len(row)):
            square += np.int64(row[j]) * np.int64(row[j])  # exact, like a sum of doubles below 2^53
        length, target = max(np.sqrt(float(square)), 1.0) * (1 / unit), out[i]
        for j in range(len(row)):
            target[j] = np.float32(np.trunc(row[j] / length)) * np.float32(1 / unit)


hats = Compiled(_hats)
table_rows = Compiled(_table_rows)
fourier_waves = Compiled(_waves)


# ---- A cosine that gives the same bits in every batch, thread and machine.


def cosine(x: Tensor) -> Tensor:
    """Return cos(x) for |x| below 10^6, by elementary IEEE operations, to about 15 digits."""
    quarter = (x * (2 / math.pi)).round_()
    inner = (x - quarter * HALF_PI[0]).sub_(quarter * HALF_PI[1])
    # cos(q pi/2 + r) = sin((q + 1) pi/2 + r); an odd quarter turn makes a cosine of r, sin(pi/2 - |r|)
    turn = quarter.add_(1.0)
    turn.sub_(torch.floor(turn * 0.25).mul_(4.0))
    back = torch.floor(turn * 0.5)  # 1 in the half turn where the sine is negative, else 0
    odd = turn.sub_(back * 2.0)
    # products with 0 and 1 are exact, and faster than torch.where
    inner = (math.pi / 2 - inner.abs()).mul_(odd).add_(inner.mul_(1.0 - odd))
    square = inner * inner
    value: Tensor = square * SINE[0]
    for coefficient in SINE[1:-1]:
        value.add_(coefficient).mul_(square)
    value.add_(SINE[-1]).mul_(inner)
    value.mul_(back.mul_(-2.0).add_(1.0))
    return value


# ---- Indicators of a table's columns: categories, bins of numbers, missing cells; what the first pass
# counts.

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
        if column.missing is None and place.ndim == 3 and is_plain_tensor(place) and hats.pays(len(place)):
            entries = torch.empty(len(place), place.shape[1] * len(at), dtype=place.dtype)
            hats(place[..., 0].contiguous().numpy(), at.numpy(), entries.numpy())
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


# ---- Features of tables: every column becomes indicators that sum to one, by public rules alone.
#
# A categorical column has an indicator for each value, a numeric one for each interval between public cuts
# or hat functions on an even grid, a cross of two columns for each pair. A random Fourier feature is a wave
# over the numeric columns together, and has two indicators, high and low. Sums of indicators over records
# are then contingency tables, and an additive model is linear in the indicators.

DETAIL = (4, 16)  # least and most indicators of a numeric column without cuts
_GRID = 2.0**20  # of positions and frequencies
WAVE_FREQUENCY = 3.0  # standard deviation of a wave's angle over the whole range of one column


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
        names: list[tuple[str, list[str]]] = [(c.name, detailed_names(c, detail)) for c in table.features]
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
        self.register_buffer("_frequencies", WAVE_FREQUENCY * drawn)
        # sums of integer products are exact, so that a record's features do not depend on its batch
        self._frequencies_on_grid = torch.round(WAVE_FREQUENCY * drawn.double() * _GRID)
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


def detailed_names(column: Column, detail: int) -> list[str]:
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


# ---- Shares of a table's records from noisy counts of its indicators.
#
# Counts of a small table are mostly noise. Numeric columns are often roughly normal, exponential from a
# bound, or binary. So noisy counts of their bins are shrunk towards such distributions, by the noise's part
# of the difference: without noise they do not change. Distributions and constants were fixed on synthetic
# tables and held-out training records (docs/guide-tables.md). The threshold, noise above an average bin,
# was fixed after the test splits of ring and segment had been seen.


MIDDLES = (*(i / 20 for i in range(21)), 0.01, 0.02, 0.03)  # of normal distributions, between the bounds
SPREADS = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4)
DECAYS = (0.01, 0.03, 0.1, 0.3)  # means of exponential distributions
DUMMIES = tuple(i / 20 for i in range(21))  # share of the upper bound in binary columns
CLEAR = 2.0  # standard deviations by which the square of a difference must exceed that of noise
# of a shrunk share
_POINTS = 2001  # at which a density is evaluated


def frequencies(counts: Reals, blocks: Sequence[Block], spread: float = 0.0) -> Reals:
    """Turn noisy counts of indicators into shares: non-negative, those of a block summing to one.

    Where noise exceeds the share of an average bin, the bins of a numeric column are shrunk towards common
    distributions; with less noise that would cost more than it gains. Each block is then projected on the
    simplex (the nearest point in Euclidean distance). The number of records is the mean of the blocks' sums.

    Parameters
    ----------
    counts : (entries,) noisy counts.
    blocks : what they count.
    spread : standard deviation of their noise, in records; with 0 nothing is shrunk.
    """
    n = float(np.mean([counts[block.span].sum() for block in blocks]))
    out = np.empty_like(counts)
    for block in blocks:
        size = block.stop - block.start
        shares = counts[block.span] / n if n > 0 else np.full(size, 1 / size)
        if block.knots and spread * len(block.knots) > n > 0:  # noise above the share of an average bin
            shares = _shrunk(shares, block.knots, spread / n)
        falling = np.sort(shares)[::-1]
        excess = (np.cumsum(falling) - 1) / np.arange(1, size + 1)
        out[block.span] = np.maximum(shares - excess[falling > excess][-1], 0.0)
    return out


def _shrunk(shares: Reals, knots: tuple[float, ...], spread: float) -> Reals:
    """Shrink shares towards the posterior mean over common distributions (James and Stein).

    The part of the difference that exceeds the noise is kept; pure noise has a square of about `bins`.
    An entry past the bins is the share of missing cells, which is not shrunk.
    """
    bins = len(knots)
    present = 1 - min(max(float(shares[bins:].sum()), 0.0), 1.0)
    candidates = usual_laws(knots) * present
    distance = ((candidates - shares[:bins]) ** 2).sum(1)
    odds = np.exp((distance.min() - distance) / (2 * spread**2))
    expected = (odds[:, None] * candidates).sum(0) / odds.sum()
    rest = shares[:bins] - expected
    noise = (bins + CLEAR * math.sqrt(2 * bins)) * spread**2
    kept = max(0.0, 1 - noise / max(float((rest * rest).sum()), 1e-300))
    return np.concatenate([np.rint((expected + kept * rest) * _GRID) / _GRID, shares[bins:]])


@cache
def usual_laws(knots: tuple[float, ...]) -> Reals:
    """Shares of piecewise-linear bins under normal, exponential and binary distributions: (m, bins)."""
    x = np.linspace(0, 1, _POINTS)
    hats = np.stack([np.interp(x, knots, row) for row in np.eye(len(knots))], 1)
    density = [np.exp(-0.5 * ((x - middle) / spread) ** 2) for middle in MIDDLES for spread in SPREADS]
    density += [np.exp(-x / decay) for decay in DECAYS]
    bounds = np.eye(len(knots))[[0, -1]]
    binary = [(1 - share) * bounds[0] + share * bounds[1] for share in DUMMIES]
    return np.array([*(curve @ hats / curve.sum() for curve in density), *binary])


# ---- A decorrelation matrix for a table's values, computed from their released second moments.
#
# Gradient descent with noise learns first what varies most. Redundant columns vary together, but their
# differences often separate the classes. The matrix (S + r I)^(-1/2) corrects this as far as S is known: r
# follows the noise on S, so that only directions whose variance exceeds the noise count.


RIDGE = 1.0  # over the spectral norm of the noise; fixed with the other constants of tables
LEAST_RIDGE = 1e-3  # over the mean eigenvalue
GRID = 2.0**20  # grid of an entry: products with standardised values add up exactly
MOST_COLUMNS = 512
LARGEST_ENTRY = 2.0**8


def unit_rows(values: Reals) -> Reals:
    """Scale (n, d) rows to length 1; a row of zeros stays. On a grid, so no row depends on its batch."""
    length = np.sqrt((values * values).sum(1, keepdims=True))
    return np.asarray(values / np.maximum(length, 1e-9))


def noise_norm(sd: float, columns: int) -> float:
    """Approximate spectral norm of symmetric noise with this standard deviation on its diagonal."""
    return sd * math.sqrt(2.0 * columns)


def decorrelation(triangle: npt.NDArray[np.int64], sd: float) -> Reals:
    """Return the (d, d) matrix that values are multiplied by, on its grid.

    Rows had length 1, so the trace is their number. Multiplied by the result, their mean square is still 1.

    Parameters
    ----------
    triangle : (d, d) released second moments of rows of length 1, the upper half.
    sd : standard deviation of the noise on the diagonal, in the same unit.
    """
    second = symmetric(triangle)
    total, columns = float(np.trace(second)), len(second)
    if total <= noise_norm(sd, columns):  # dominated by noise
        return np.eye(columns)
    variance, directions = np.linalg.eigh(second / total)
    variance = np.maximum(variance, 0.0)
    ridge = max(RIDGE * noise_norm(sd, columns) / total, LEAST_RIDGE / columns)
    stretch = 1 / np.sqrt(variance + ridge)
    variance_ratio = float((variance * stretch**2).sum()) / max(float(variance.sum()), 1e-9)
    matrix = (directions * (stretch / math.sqrt(max(variance_ratio, 1e-9)))) @ directions.T
    return np.asarray(np.rint(np.clip(matrix, -LARGEST_ENTRY, LARGEST_ENTRY) * GRID) / GRID)


# ---- Features of tables: standardised values, indicators and random Fourier features, rows of unit L2
# norm.
#
# The first pass over a table counts indicators: categories, piecewise-linear bins of numeric columns,
# missing cells. The released counts give the location and scale of each column, by which features are
# centred and scaled. So bounds that were declared too wide, skewed columns and rare categories cost little.
# Everything is computed on grids or by elementary IEEE operations, so that a record's features do not
# depend on its batch.

# Fixed on parts of the training records of the tables in docs/guide-tables.md.
FREQUENCY = 2.0  # standard deviation of the angle of a random Fourier feature, over standardised values
VALUE_ENERGY, BIN_ENERGY, FOURIER_ENERGY = 4.0, 1.0, 1.0  # squared lengths per column; the first is a default
FARTHEST = 3.0  # standard deviations at which a value is clipped
LEAST_SPREAD = 0.01  # of a column's declared range

_VALUE = 2.0**12  # grid of a standardised value
_ANGLE = 2.0**20  # grid of a frequency: d products of both add up exactly
_LENGTH = 2.0**16  # grid for the length of a record
_UNIT = 2.0**14  # grid of a feature


class ScaledTable(Features):
    """Standardised values, centred indicators and random Fourier features of a table, of unit L2 norm.

    Parameters
    ----------
    table : the declared table.
    frequencies : (entries,) released shares of records in each indicator of `TableIndicators`; those of a
        column or cross sum to one.
    fourier : random Fourier features of the ordered columns together; their weights come from a fixed seed.
    mixing : (d, d) matrix from `decorrelation` that the d standardised values are multiplied by; None leaves
        them as they are.
    value_energy : squared length that a column's value gets, where its bins together get 1 and categories
        get 1 more than a value.
    """

    def __init__(
        self,
        table: TableDomain,
        frequencies: npt.ArrayLike,
        *,
        fourier: int = 0,
        mixing: npt.ArrayLike | None = None,
        value_energy: float = VALUE_ENERGY,
    ) -> None:
        super().__init__()
        self.table, self.fourier, self.value_energy = table, fourier, value_energy
        self.indicators = TableIndicators(table)
        self.frequencies = np.asarray(frequencies, dtype=np.float64)
        if self.frequencies.shape != (self.indicators.width,) or not np.isfinite(self.frequencies).all():
            raise UserError(
                f"the table has {self.indicators.width} indicators, got {self.frequencies.size} frequencies"
            )
        if fourier < 0:
            raise UserError(f"fourier must be at least 0, got {fourier}")
        if not 0 < value_energy < math.inf:
            raise UserError(f"value_energy must be a positive number, got {value_energy}")
        valued = [c for c in table.features if c.kind != "categorical"]
        ordered = [i for i, c in enumerate(valued) if is_ordered(c)]
        if fourier and not ordered:
            raise UserError("random Fourier features need a numeric, date or ordinal column; leave them out")
        self._valued, columns = valued, len(table.features)
        self._first = _span([self.indicators.spans[c.name].start for c in valued])
        self.mixing = None if mixing is None else np.rint(np.asarray(mixing, dtype=np.float64) * GRID)
        if self.mixing is not None and self.mixing.shape != (len(valued),) * 2:
            raise UserError(
                f"the table has {len(valued)} columns with a value, got a mixing matrix of shape "
                f"{self.mixing.shape}"
            )
        self._mean, self._spread = self._moments()
        kept, weights = [], []
        named = {c.name: c for c in table.features}
        self._owners = [block.name for block in self.indicators.blocks for _ in block.entries]
        for block in self.indicators.blocks:
            column = named.get(block.name)
            bins = column is not None and is_ordered(column)
            if column is not None and column.kind == "boolean":
                if column.missing is None:
                    continue  # its value is the only indicator
                kept.append(np.array([block.stop - 1]))
            else:
                kept.append(np.arange(block.start, block.stop))
            weights.append(np.full(len(kept[-1]), BIN_ENERGY if bins else value_energy + BIN_ENERGY))
        self._kept = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
        self._needed = None if table.crosses else {self._owners[entry] for entry in self._kept}
        self._entries = _span(self._places().tolist())
        variance = self.frequencies * (1 - self.frequencies)
        scale = np.zeros(len(self._kept))
        if len(self._kept):
            # Entries of one kind share the energy of their columns, in proportion to their variance.
            kind = np.concatenate(weights)
            for energy in np.unique(kind):
                of = kind == energy
                blocks = len({self._owners[entry] for entry in self._kept[of]})
                varying = max(float(variance[self._kept[of]].sum()), 0.05 * blocks)
                scale[of] = math.sqrt(energy * blocks / columns / varying)
        self._scale = scale
        self._value_scale = math.sqrt(value_energy / columns)
        self._fourier_scale = (
            math.sqrt(2 * FOURIER_ENERGY * len(ordered) / columns / fourier) if fourier else 0.0
        )
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(max(len(ordered), 1), fourier, generator=generator, dtype=torch.float64)
        drawn *= FREQUENCY / math.sqrt(max(len(ordered), 1))
        self._mixed_in = _span(ordered)
        self._directions = torch.round(drawn * _ANGLE)
        self._phases = torch.rand(fourier, generator=generator, dtype=torch.float64) * (2 * math.pi)
        self.width = len(valued) + len(self._kept) + fourier
        entries = [entry for block in self.indicators.blocks for entry in block.entries]
        self.names = (
            *(c.name for c in valued),
            *(entries[i] for i in self._kept),
            *(f"random Fourier feature {i + 1}" for i in range(fourier)),
        )

    @classmethod
    def width_of(cls, table: TableDomain, fourier: int) -> int:
        """Number of features, which does not depend on the frequencies."""
        indicators = TableIndicators(table)
        even = [1 / len(block.entries) for block in indicators.blocks for _ in block.entries]
        return cls(table, even, fourier=fourier if any(is_ordered(c) for c in table.features) else 0).width

    @property
    def valued(self) -> int:
        """Number of columns that have a value: all but categorical ones."""
        return len(self._valued)

    def _places(self) -> npt.NDArray[np.int64]:
        """Indices of the kept entries among those of the needed columns."""
        if self._needed is None:
            return self._kept
        there = {column.name for run in self.indicators.runs(self._needed) for column in run}
        blocks = [block for block in self.indicators.blocks if block.name in there]
        standing = np.concatenate([np.arange(b.start, b.stop) for b in blocks]) if blocks else self._kept
        return np.searchsorted(standing, self._kept)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each value, among records where it is not missing."""
        means, spreads = [], []
        spans = {block.name: block.span for block in self.indicators.blocks[: len(self.table.features)]}
        for column in self._valued:
            share = self.frequencies[spans[column.name]]
            share = share[:-1] if column.missing is not None else share
            if column.kind == "boolean":
                at = np.array([0.0, 1.0])
            elif column.cuts:
                cuts = [0.0, *(column.position(column.number(c)) for c in column.cuts), 1.0]
                at = (np.array(cuts[1:]) + np.array(cuts[:-1])) / 2
            else:
                at = np.array(knots(column))
            total = max(float(share.sum()), 1e-9)
            mean = float(share @ at) / total
            means.append(mean)
            spreads.append(math.sqrt(max(float(share @ at**2) / total - mean**2, LEAST_SPREAD**2)))
        return torch.tensor(means, dtype=torch.float64), torch.tensor(spreads, dtype=torch.float64)

    def column_of(self, feature: int) -> str | None:
        """Name of the column or cross that a feature belongs to; None for a random Fourier feature."""
        if feature < len(self._valued):
            return self._valued[feature].name
        if feature < len(self._valued) + len(self._kept):
            return self._owners[int(self._kept[feature - len(self._valued)])]
        return None

    def of_values(self, weight: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Weights of standardised values from (M, width) weights of features, whose values may be mixed."""
        if self.mixing is None:
            return weight
        columns = len(self._valued)
        return np.concatenate([weight[:, :columns] @ (self.mixing.T / GRID), weight[:, columns:]], 1)

    def variances(self) -> npt.NDArray[np.float64]:
        """Approximate variance of each feature, by the released frequencies, before rows get unit length."""
        entries = (self.frequencies * (1 - self.frequencies))[self._kept] * self._scale**2
        values = np.full(len(self._valued), self._value_scale**2)
        return np.concatenate([values, entries, np.full(self.fourier, self._fourier_scale**2 / 2)])

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs) encoded records to (n, width) float32 on a grid of 2^-14, rows of norm 1."""
        x = x.flatten(1).double()
        nothing = x[:, :0]
        values = self._mixed(self.values(x)) if self._valued else nothing
        counted = angle = nothing
        if len(self._kept):
            needed = self._needed
            counted = self.indicators(x) if needed is None else self.indicators.of_columns(x, needed)
            counted = counted[:, self._entries]
        if self.fourier:
            angle = (values[:, self._mixed_in] * _VALUE) @ self._directions.to(x)
        if is_plain_tensor(x) and table_rows.pays(len(x)):
            return self._compiled(values, counted, angle)
        centre = torch.from_numpy(self.frequencies[self._kept]).to(x)
        scale = torch.from_numpy(self._scale * _LENGTH).to(x)
        parts = [values * (self._value_scale * _LENGTH), (counted - centre).mul_(scale)]
        if self.fourier:
            angle = angle.mul_(1 / (_VALUE * _ANGLE)).add_(self._phases.to(x))
            parts.append(cosine(angle).mul_(self._fourier_scale * _LENGTH))
        rows = torch.cat(parts, 1)
        integers = rows.round_()  # in place: this dominates the time of a pass
        length = (integers * integers).sum(1, keepdim=True).sqrt_().clamp_min_(1.0).mul_(1 / _UNIT)
        unit = integers.div_(length)
        if torch.onnx.is_in_onnx_export():  # ONNX has no trunc
            unit = torch.where(unit < 0, torch.ceil(unit), torch.floor(unit))
        else:
            unit.trunc_()
        return unit.float().mul_(1 / _UNIT)

    def _compiled(self, values: Tensor, counted: Tensor, angle: Tensor) -> Tensor:
        """Do the same from values, indicators and angles, faster."""
        waves = angle.contiguous().numpy()
        if self.fourier:
            fourier_waves(waves, 1 / (_VALUE * _ANGLE), self._phases.numpy())
        unit = torch.empty((len(values), self.width), dtype=torch.float32)
        table_rows(
            values.contiguous().numpy(),
            counted.contiguous().numpy(),
            waves,
            self.frequencies[self._kept],
            (self._value_scale * _LENGTH, self._scale * _LENGTH, self._fourier_scale * _LENGTH),
            _UNIT,
            unit.numpy(),
        )
        return unit

    def values(self, x: Tensor) -> Tensor:
        """Standardised values of (n, inputs) encoded records, (n, d) on a grid; 0 where missing."""
        x = x.flatten(1).double()
        values = places(x[:, self._first])
        values = ((values - self._mean.to(x)) / self._spread.to(x)).clamp(-FARTHEST, FARTHEST)
        if any(c.missing is not None for c in self._valued):
            missing = [
                x[:, self.indicators.spans[c.name]][:, 1:2]
                if c.missing is not None
                else torch.zeros_like(x[:, :1])
                for c in self._valued
            ]
            values = values * (1 - torch.cat(missing, 1))
        return torch.round(values * _VALUE) * (1 / _VALUE)

    def _mixed(self, values: Tensor) -> Tensor:
        """Decorrelate values; sums of products on grids are exact, in any order."""
        if self.mixing is None:
            return values
        product = (values * _VALUE) @ torch.from_numpy(self.mixing).to(values) * (1 / (_VALUE * GRID))
        return torch.round(product.clamp(-2 * FARTHEST, 2 * FARTHEST) * _VALUE) * (1 / _VALUE)

    def spec(self) -> dict[str, Any]:
        """Describe the map, with the declared table and its released numbers."""
        spec: dict[str, Any] = {
            "name": "scaled-table",
            "table": self.table.to_dict(),
            "frequencies": [float(f) for f in self.frequencies],
            "fourier": self.fourier,
        }
        if self.mixing is not None:
            spec["mixing"] = [[int(v) for v in row] for row in self.mixing]
        if self.value_energy != VALUE_ENERGY:
            spec["value_energy"] = self.value_energy
        return spec

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> ScaledTable:
        """Make it from its description."""
        mixing = np.array(spec["mixing"], dtype=np.float64) / GRID if "mixing" in spec else None
        table = TableDomain.from_dict(spec["table"])
        energy = float(spec.get("value_energy", VALUE_ENERGY))
        return cls(
            table, spec["frequencies"], fourier=int(spec["fourier"]), mixing=mixing, value_energy=energy
        )


def _span(places: list[int]) -> slice | list[int]:
    """Return consecutive indices as a slice, which copies nothing."""
    start = places[0] if places else 0
    return slice(start, start + len(places)) if places == list(range(start, start + len(places))) else places


# ---- Features of tables for the perturbed loss: the encoded record around a released centre, or its
# indicators.
#
# Few records for each class and column: one number a column, centred and scaled, which radial noise suits.
# Many: piecewise-linear bins and categories, of which a record touches few, so that Laplace noise is small.

# standard deviation of the angle of a random Fourier feature, over standardised values
FOURIER_SHARE = 0.5  # of the squared length of a record, where there are random Fourier features
# standard deviations at which a value is clipped before it is mixed into an angle

# grid of an encoded number
# grid of a feature
# grid of a frequency: products with values on the grid add up exactly


class CentredTable(Features):
    """Encoded records less a released centre, over a released length; rows of L2 norm at most 1.

    Parameters
    ----------
    table : the declared table.
    centre : (inputs,) released mean of the encoded records.
    length : what a typical distance to the centre is divided by.
    fourier : random Fourier features of the ordered columns together; their weights come from a fixed seed.
    """

    def __init__(self, table: TableDomain, centre: npt.ArrayLike, length: float, fourier: int = 0) -> None:
        super().__init__()
        self.table, self.length, self.fourier = table, float(length), fourier
        self.centre = np.asarray(centre, dtype=np.float64)
        widths = [column.width for column in table.features]
        starts = np.concatenate([[0], np.cumsum(widths)])
        self.inputs = int(starts[-1])
        if self.centre.shape != (self.inputs,) or not np.isfinite(self.centre).all() or not length > 0:
            raise UserError(f"the centre must be {self.inputs} numbers and the length positive")
        ordered = [int(starts[i]) for i, c in enumerate(table.features) if is_ordered(c)]
        if fourier and not ordered:
            raise UserError("random Fourier features need a numeric, date or ordinal column; leave them out")
        self._ordered, self._owners = ordered, np.repeat(np.arange(len(widths)), widths)
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(max(len(ordered), 1), fourier, generator=generator, dtype=torch.float64)
        drawn *= FREQUENCY / math.sqrt(max(len(ordered), 1))
        self._directions = torch.round(drawn * _ANGLE)
        self._phases = torch.rand(fourier, generator=generator, dtype=torch.float64) * (2 * math.pi)
        self.width = self.inputs + fourier

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs) encoded records to (n, width) float32 on a grid of 2^-14."""
        # outside [0, 1], from a user's reader, squares would be too large to add up exactly
        x = torch.floor(x.flatten(1).double().clamp(0, 1) * _PLACE).mul_(1 / _PLACE)
        if x.shape[1] != self.inputs:
            raise UserError(f"encoded records have {self.inputs} numbers here, got {x.shape[1]}")
        apart = x - torch.from_numpy(self.centre).to(x)
        values = apart * (math.sqrt(1 - FOURIER_SHARE if self.fourier else 1.0) / self.length)
        rows = torch.round(values * _UNIT)
        if self.fourier:
            spread = self.length / math.sqrt(self.inputs)
            standard = (apart[:, self._ordered] * (1 / spread)).clamp(-FARTHEST, FARTHEST)
            angle = torch.round(standard * _VALUE) @ self._directions.to(x)
            waves = cosine(angle.mul_(1 / (_VALUE * _ANGLE)).add_(self._phases.to(x)))
            waves = torch.round(waves * (math.sqrt(2 * FOURIER_SHARE / self.fourier) * _UNIT))
            rows = torch.cat([rows, waves], 1)
        length = (rows * rows).sum(1, keepdim=True).sqrt_().clamp_min_(_UNIT)  # integers: exact
        shrunk = rows * (_UNIT / length)
        if torch.onnx.is_in_onnx_export():  # ONNX has no trunc
            shrunk = torch.where(shrunk < 0, torch.ceil(shrunk), torch.floor(shrunk))
        else:
            shrunk.trunc_()
        return shrunk.float().mul_(1 / _UNIT)

    def column_of(self, feature: int) -> str | None:
        """Name of the column that a feature belongs to; None for a random Fourier feature."""
        return self.table.features[self._owners[feature]].name if feature < self.inputs else None

    def variances(self, mean: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Approximate variance of each feature: nothing but the typical length is known."""
        return np.full(len(mean), 1 / len(mean))

    def spec(self) -> dict[str, Any]:
        """Describe the map, with the declared table and its released numbers."""
        return {
            "name": "centred-table",
            "table": self.table.to_dict(),
            "centre": [float(c) for c in self.centre],
            "length": self.length,
            "fourier": self.fourier,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> CentredTable:
        """Make it from its description."""
        table = TableDomain.from_dict(spec["table"])
        return cls(table, spec["centre"], float(spec["length"]), int(spec["fourier"]))


class IndicatorTable(Features):
    """Categories, piecewise-linear bins and missing cells, over the root of the number of columns.

    The indicators of a column or cross are not negative and sum to one, so the L1 norm of a record is the
    root of their number.

    Parameters
    ----------
    table : the declared table.
    """

    def __init__(self, table: TableDomain) -> None:
        super().__init__()
        self.table, self.indicators = table, TableIndicators(table)
        self.width, self.blocks = self.indicators.width, self.indicators.blocks
        self._owners = [block.name for block in self.blocks for _ in block.entries]

    @property
    def unit(self) -> float:
        """Value of an indicator that is 1."""
        return 1 / math.sqrt(len(self.blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs) encoded records to (n, width) float32."""
        return self.indicators(x).mul_(self.unit).float()

    def column_of(self, feature: int) -> str | None:
        """Name of the column or cross that a feature belongs to."""
        return self._owners[feature]

    def variances(self, mean: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Approximate variance of each feature, by their released means."""
        share = np.clip(mean / self.unit, 0.0, 1.0)
        return np.asarray(self.unit**2 * share * (1 - share))

    def possible(self, z: Tensor) -> Tensor:
        """Indicators are not negative, and those of a column sum to one."""
        out = z.clamp_min(0)
        for block in self.blocks:
            part = out[:, block.span]
            total = part.sum(1, keepdim=True)
            even = torch.full_like(part, 1 / len(block.entries))
            out[:, block.span] = torch.where(total > 0, part / total.clamp_min(1e-12), even) * self.unit
        return out

    def spec(self) -> dict[str, Any]:
        """Describe the map, with the declared table."""
        return {"name": "indicator-table", "table": self.table.to_dict()}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> IndicatorTable:
        """Make it from its description."""
        return cls(TableDomain.from_dict(spec["table"]))
