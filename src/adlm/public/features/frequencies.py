"""Shares of a table's records from noisy counts of its indicators.

Counts of a small table are mostly noise. Numeric columns are often roughly normal, exponential from a bound,
or binary. So noisy counts of their bins are shrunk towards such distributions, by the noise's part of the
difference: without noise they do not change. Distributions and constants were fixed on synthetic tables and
held-out training records (docs/guide-tables.md). The threshold, noise above an average bin, was fixed after
the test splits of ring and segment had been seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from adlm.public.features.table_indicators import Block

Reals = npt.NDArray[np.float64]

MIDDLES = (*(i / 20 for i in range(21)), 0.01, 0.02, 0.03)  # of normal distributions, between the bounds
SPREADS = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4)
DECAYS = (0.01, 0.03, 0.1, 0.3)  # means of exponential distributions
DUMMIES = tuple(i / 20 for i in range(21))  # share of the upper bound in binary columns
CLEAR = 2.0  # standard deviations by which the square of a difference must exceed that of noise
_GRID = 2.0**20  # of a shrunk share
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
