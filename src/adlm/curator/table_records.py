"""Transforms of a table's records in passes: stored columns to encoded records, features and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.curator.clipping import Clip
from adlm.curator.passes import Integers, Records, as_records
from adlm.public.domain.encoding import expanded
from adlm.public.domain.table import TableDomain
from adlm.public.features import Features
from adlm.public.features.table_indicators import TableIndicators
from adlm.runtime.memory import blocks_in_cache
from adlm.runtime.part_store import Part

Encoded = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class Expanded:
    """From the stored columns of a table's records, with their classes, to their encoding."""

    table: TableDomain

    def __call__(self, part: Part) -> Part:
        """Return (n, width) numbers in [0, 1], and (n,) classes."""
        *columns, codes = part
        return expanded(self.table.features, columns), codes


@dataclass(frozen=True, eq=False)
class TableFeatures:
    """From encoded records to the features of a table."""

    features: Features

    def __call__(self, part: Part) -> Part:
        """Return (n, width) features, and (n,) classes."""
        pieces = _in_cache(part[0], self.features.width)
        return torch.cat([self.features(x) for x in pieces]).numpy(), part[1]


@dataclass(frozen=True, eq=False)
class IndicatorCounts:
    """Counts of a table's active indicators in a part: (width,).

    Formal guarantees
    -----------------
    A record adds a row of `Clip.counts`, whatever its numbers are: one outside [0, 1], from a user's reader,
    moves the counts no further than others. Sensitivity: `Clip.counts_sensitivity`.
    """

    indicators: TableIndicators
    clip: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        counts = np.zeros(self.indicators.width, dtype=np.int64)
        for x in _in_cache(part[0], self.indicators.width):
            counts += self.clip.counts(self.indicators(x).numpy()).sum(0).astype(np.int64)
        return (counts,)


def encoded_records(given: Records | Callable[[], Iterable[Encoded]], table: TableDomain) -> Records:
    """Return encoded records: stored ones are expanded, others are encoded already."""
    return given.mapped(Expanded(table)) if isinstance(given, Records) else as_records(given)


def _in_cache(x: NDArray[np.float32], width: int) -> Iterator[Tensor]:
    """Split encoded records so that their rows of some width fit into a CPU cache."""
    for rows in blocks_in_cache(len(x), width // 3):  # fewer rows would spend more on calls
        yield torch.from_numpy(x[rows])
