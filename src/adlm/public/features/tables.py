"""Features of tables for the perturbed loss: the encoded record around a released centre, or its indicators.

Few records for each class and column: one number a column, centred and scaled, which radial noise suits.
Many: piecewise-linear bins and categories, of which a record touches few, so that Laplace noise is small.
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
from adlm.public.features.base import Features
from adlm.public.features.cosine import cosine
from adlm.public.features.table_indicators import TableIndicators, is_ordered

FREQUENCY = 2.0  # standard deviation of the angle of a random Fourier feature, over standardised values
FOURIER_ENERGY = 0.5  # of the squared length of a record, where there are random Fourier features
FARTHEST = 3.0  # standard deviations at which a value is clipped before it is mixed into an angle

_PLACE = 2.0**20  # grid of an encoded number
_UNIT = 2.0**14  # grid of a feature
_ANGLE = 2.0**20  # grid of a frequency: products with values on the grid add up exactly
_VALUE = 2.0**12


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
        values = apart * (math.sqrt(1 - FOURIER_ENERGY if self.fourier else 1.0) / self.length)
        rows = torch.round(values * _UNIT)
        if self.fourier:
            spread = self.length / math.sqrt(self.inputs)
            standard = (apart[:, self._ordered] * (1 / spread)).clamp(-FARTHEST, FARTHEST)
            angle = torch.round(standard * _VALUE) @ self._directions.to(x)
            waves = cosine(angle.mul_(1 / (_VALUE * _ANGLE)).add_(self._phases.to(x)))
            waves = torch.round(waves * (math.sqrt(2 * FOURIER_ENERGY / self.fourier) * _UNIT))
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
