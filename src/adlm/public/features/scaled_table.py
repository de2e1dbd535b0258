"""Features of tables: standardised values, indicators and random Fourier features, rows of unit L2 norm.

The first pass over a table counts indicators: categories, piecewise-linear bins of numeric columns, missing
cells. The released counts give the location and scale of each column, by which features are centred and
scaled. So bounds that were declared too wide, skewed columns and rare categories cost little. Everything is
computed on grids or by elementary IEEE operations, so that a record's features do not depend on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.public.domain.table import TableDomain
from adlm.public.features import loops
from adlm.public.features.base import Features
from adlm.public.features.cosine import cosine
from adlm.public.features.decorrelation import GRID as _MIXING
from adlm.public.features.table_indicators import TableIndicators, is_ordered, knots, places

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
        self.mixing = None if mixing is None else np.rint(np.asarray(mixing, dtype=np.float64) * _MIXING)
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
        return np.concatenate([weight[:, :columns] @ (self.mixing.T / _MIXING), weight[:, columns:]], 1)

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
        if loops.plain(x) and loops.table_rows.pays(len(x)):
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
            loops.waves(waves, 1 / (_VALUE * _ANGLE), self._phases.numpy())
        unit = torch.empty((len(values), self.width), dtype=torch.float32)
        loops.table_rows(
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
        product = (values * _VALUE) @ torch.from_numpy(self.mixing).to(values) * (1 / (_VALUE * _MIXING))
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
        mixing = np.array(spec["mixing"], dtype=np.float64) / _MIXING if "mixing" in spec else None
        table = TableDomain.from_dict(spec["table"])
        energy = float(spec.get("value_energy", VALUE_ENERGY))
        return cls(
            table, spec["frequencies"], fourier=int(spec["fourier"]), mixing=mixing, value_energy=energy
        )


def _span(places: list[int]) -> slice | list[int]:
    """Return consecutive indices as a slice, which copies nothing."""
    start = places[0] if places else 0
    return slice(start, start + len(places)) if places == list(range(start, start + len(places))) else places
