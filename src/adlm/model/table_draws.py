"""Draw records of a table from its released counts, to train a network on.

Each column follows its released frequencies; values are correlated by their released second moments, through
a normal copula. The head of the release then labels the features of such records. All of it reads the release
alone.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from adlm.domain.columns import Column
from adlm.features import Features
from adlm.features.tables import CentredTable, IndicatorTable, ScaledTable, knots
from adlm.privacy.release import Release
from adlm.runtime.arithmetic import symmetric

LEAST_SHARE = 0.02  # least share of a value's variance that is independent of the others


def draw_features(release: Release, features: ScaledTable, n: int, generator: torch.Generator) -> Tensor:
    """Draw features of n synthetic records, (n, width).

    Parameters
    ----------
    release, features, n, generator : as for `draw_records`.
    """
    x = draw_records(release, features, n, generator)
    with torch.inference_mode():
        return torch.cat([features(part) for part in torch.split(x, 4096)]).clone()


def draw_without_labels(release: Release, features: Features, n: int, generator: torch.Generator) -> Tensor:
    """Draw features of n records of a table whose release has no class sums, (n, width).

    By released counts where there are any; else normal around the centre, or uniform over the categories and
    bins of each column.
    """
    if isinstance(features, ScaledTable):
        return draw_features(release, features, n, generator)
    if isinstance(features, CentredTable):
        size = torch.full((), 1 / np.sqrt(features.width), dtype=torch.float64)
        return (torch.randn(n, features.width, generator=generator, dtype=torch.float64) * size).float()
    assert isinstance(features, IndicatorTable)
    z = torch.zeros(n, features.width)
    for block in features.blocks:
        entry = torch.randint(len(block.entries), (n, 1), generator=generator)
        z[:, block.span].scatter_(1, entry, features.unit)
    return z


def draw_records(release: Release, features: ScaledTable, n: int, generator: torch.Generator) -> Tensor:
    """Draw n encoded records, (n, inputs).

    Parameters
    ----------
    release : to draw from.
    features : of its table.
    n : how many.
    generator : of the draw.
    """
    blocks = {block.name: block for block in features.indicators.blocks}
    valued = [c.name for c in features.table.features if c.kind != "categorical"]
    root = _root(release, len(valued))
    normal = torch.randn(n, len(valued), generator=generator, dtype=torch.float64) @ root.T
    rank = dict(zip(valued, torch.special.ndtr(normal).T, strict=True))
    parts = []
    for column in features.table.features:
        shares = torch.from_numpy(features.frequencies[blocks[column.name].span])
        if column.kind == "categorical":
            codes = torch.multinomial(shares + 1e-9, n, replacement=True, generator=generator)
            parts.append(torch.nn.functional.one_hot(codes, len(shares)).double())
            continue
        missing = torch.zeros(n, dtype=torch.float64)
        if column.missing is not None:
            uniform = torch.rand(n, generator=generator, dtype=torch.float64)
            missing, shares = (uniform < shares[-1]).double(), shares[:-1]
        place = _place(column, shares, rank[column.name]) * (1 - missing)
        parts.append(torch.stack([place, missing], 1) if column.missing is not None else place[:, None])
    return torch.cat(parts, 1).float()


def _root(release: Release, columns: int) -> Tensor:
    """Square root of the values' correlations; the identity where none were released."""
    if "values" not in release.tensors:
        return torch.eye(columns, dtype=torch.float64)
    second = symmetric(release.tensors["values"].numpy())
    variance, directions = np.linalg.eigh(second / max(float(np.trace(second)), 1.0) * columns)
    covariance = (directions * np.maximum(variance, LEAST_SHARE)) @ directions.T
    scale = 1 / np.sqrt(np.diag(covariance))
    return torch.from_numpy(np.linalg.cholesky(covariance * scale[:, None] * scale))


def _place(column: Column, shares: Tensor, rank: Tensor) -> Tensor:
    """Positions in [0, 1] that follow the shares of a column's indicators, from ranks in (0, 1)."""
    if column.kind == "boolean":
        return (rank >= shares[0] / shares.sum().clamp_min(1e-9)).double()
    if column.cuts:
        edges = [0.0, *(column.position(column.number(cut)) for cut in column.cuts), 1.0]
    else:
        at = knots(column)
        edges = [0.0, *((a + b) / 2 for a, b in pairwise(at)), 1.0]
    below = np.concatenate([[0.0], np.cumsum(shares.numpy() + 1e-9)])
    return torch.from_numpy(np.interp(rank.numpy(), below / below[-1], edges))
