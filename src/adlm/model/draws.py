"""Draws from a release, to train any network on, at no privacy cost.

Feature vectors are drawn from released statistics; the linear model of the release labels them where it is
more accurate than the class of a draw. Columns of a table follow their released frequencies, and values are
correlated by their released second moments, through a normal copula. All of it reads the release alone.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adlm.domain.columns import Column
from adlm.features import Features
from adlm.features.tables import CentredTable, IndicatorTable, ScaledTable, knots
from adlm.model.closed_form import (
    UNSURE,
    Weights,
    class_weights,
    closed_form_model,
    has_head,
    target_model,
    warning,
    weights_summary,
    with_class_weights,
)
from adlm.model.estimates import fit_class_model
from adlm.model.training import Examples
from adlm.privacy.release import Release
from adlm.runtime.arithmetic import symmetric

# Share of the first of two mixed draws; fixed by the agreement of a network and the head on 6,000 training
# images of MNIST.
MIXED = (0.25, 0.75)
LEAST_SHARE = 0.02  # least share of a value's variance that is independent of the others


def sample(release: Release, features: Features, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw (n, k) feature vectors with (n,) class codes, or targets in their units: `Release.sample`.

    A target is the linear model's, with normal errors of the estimated size, within its bounds.
    """
    generator = torch.Generator().manual_seed(seed)
    if release.kind != "regression":
        z, codes = fit_class_model(release.moments(), features.prior).sample(n, generator)
        return features.possible(z), codes
    model = target_model(release)
    z = draw_table(release, features, n, generator)
    with torch.inference_mode():
        middle = model.head(z.double())[:, 0]
    normal = torch.from_numpy(np.random.default_rng(seed).standard_normal(n))
    low, high = release.certificate.domain.target or (-math.inf, math.inf)
    return z, (middle + float(model.training["estimated_rmse"]) * normal).clamp(low, high)


def labelled_draws(
    release: Release, features: Features, n: int, *, seed: int = 0, class_weight: Weights | None = None
) -> tuple[Examples, dict[str, Any]]:
    """Draw n examples from a release of any kind but noisy records, with entries for a model's summary.

    A numeric target is in standard deviations from its mean, (n, 1).
    """
    generator = torch.Generator().manual_seed(seed)
    model = closed_form_model(release, features)
    if release.kind == "regression":
        facts = {k: v for k, v in model.training.items() if k in ("target_mean", "target_sd", "warning")}
        z = draw_table(release, features, n, generator)
        with torch.inference_mode():
            values = model.head(z.double()).clamp(*(release.certificate.domain.target or (None, None)))
        return Examples(z, ((values - facts["target_mean"]) / facts["target_sd"]).float().clone()), facts
    facts = {}
    if sentence := warning(release):  # draws of moments are not labelled by the head of the largest class
        facts["warning"] = sentence if has_head(release) else UNSURE
    if class_weight is not None:
        weights = class_weights(release, class_weight)
        facts |= weights_summary(weights, class_weight)
        model = with_class_weights(model, release, class_weight) if has_head(release) else model
    if isinstance(features, ScaledTable) and has_head(release):
        z = draw_table(release, features, n, generator)
    else:
        z, codes = fit_class_model(release.moments(), features.prior).sample(n, generator)
        if has_head(release):
            # A draw lies near its class mean, where the head is confident and teaches little. Mixes of two
            # lie near the decision boundaries.
            share = MIXED[0] + (MIXED[1] - MIXED[0]) * torch.rand(n, 1, generator=generator)
            z = share * z + (1 - share) * z.roll(1, 0)
    wide = torch.zeros(n, features.width)
    wide[:, : z.shape[1]] = z
    if not has_head(release):
        if class_weight is None:
            return Examples(wide, codes), facts
        factors = torch.tensor(list(weights.values()))
        rows = torch.nn.functional.one_hot(codes, len(factors)) * factors
        return Examples(wide, rows / factors[codes].mean()), facts
    if isinstance(features, IndicatorTable):
        wide = features.possible(wide)
    with torch.inference_mode():
        odds = model.head(wide).softmax(1)
    return Examples(wide, odds.clone()), facts


def draw_table(release: Release, features: Features, n: int, generator: torch.Generator) -> Tensor:
    """Draw features of n records of a table without their labels, (n, width).

    By released counts where there are any; else normal around the centre, or uniform over the categories and
    bins of each column.
    """
    if isinstance(features, ScaledTable):
        x = draw_records(release, features, n, generator)
        with torch.inference_mode():
            return torch.cat([features(part) for part in torch.split(x, 4096)]).clone()
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
    """Draw n encoded records of a table, (n, inputs)."""
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
        edges = [0.0, *((a + b) / 2 for a, b in pairwise(knots(column))), 1.0]
    below = np.concatenate([[0.0], np.cumsum(shares.numpy() + 1e-9)])
    return torch.from_numpy(np.interp(rank.numpy(), below / below[-1], edges))
