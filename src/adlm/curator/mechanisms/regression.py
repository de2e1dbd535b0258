"""Privatise a table with a numeric target: counts of indicators and of the target, gradients, a check.

The gradient of the squared loss of one record is (w.x - t) x, bounded like that of a classifier: in exact
integers, record by record. Proof: docs/proof-gradients.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.curator.clipping import Clip
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms import second_moments as stage
from adlm.curator.mechanisms.calibration import off_diagonal
from adlm.curator.mechanisms.gradient_rounds import GradientRecords, run_rounds, stored
from adlm.curator.mechanisms.moments import Indicators
from adlm.curator.mechanisms.regression_calibration import (
    ERROR_UNIT,
    RegressionConfig,
    RegressionScales,
    TargetClip,
    calibrate,
    shares_of,
    target_bins,
)
from adlm.curator.noise import Source
from adlm.curator.passes import Records
from adlm.curator.table_records import IndicatorCounts, TableFeatures, encoded_records
from adlm.curator.totals import clamped
from adlm.errors import UserError
from adlm.estimation.gradient_head import FEATURE_UNIT, Head, final_head
from adlm.estimation.regression import BINS, FARTHEST, TargetScale, ridge_head
from adlm.privacy.budget import Budget
from adlm.privacy.certificate import SEEDED
from adlm.privacy.release import Release
from adlm.privacy.triangle import symmetric
from adlm.public.domain.encoding import TARGET_UNIT
from adlm.public.domain.table import TableDomain
from adlm.public.features import described
from adlm.public.features.frequencies import frequencies
from adlm.public.features.scaled_table import ScaledTable
from adlm.public.features.table_indicators import TableIndicators
from adlm.public.planning.regression import RegressionPlan
from adlm.runtime import progress
from adlm.runtime.part_store import Part

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Encoded = tuple[npt.NDArray[np.float32], Integers]


def bins_of(positions: Integers) -> Reals:
    """Return (n, BINS + 1) piecewise-linear bins of positions in 0..TARGET_UNIT, exactly."""
    width = TARGET_UNIT // BINS
    below = np.minimum(positions // width, BINS - 1)
    rest = (positions - below * width) / width
    out = np.zeros((len(positions), BINS + 1))
    out[np.arange(len(positions)), below] = 1 - rest
    out[np.arange(len(positions)), below + 1] = rest
    return out


def release(
    passes: Records | Callable[[], Iterable[Encoded]],
    table: TableDomain,
    *,
    plan: RegressionPlan,
    budget: Budget,
    ledger: Ledger,
    source: Source,
    stamps: tuple[str, ...] = (),
) -> Release:
    """Make the release of a table with a numeric target.

    Parameters
    ----------
    passes : records that an engine holds, or a function that yields (encoded records, positions of the
        target) batches, the same ones each time it is called.
    table : the declared table.
    plan : the public settings.
    budget : epsilon and delta; delta 0 gives radial noise.
    ledger : the charges are written there before noise is drawn.
    source : of the noise.
    stamps : warnings that travel with the release.

    Formal guarantees
    -----------------
    Relation: the table's, of persons with at most `table.contributions` records. Guarantee: the charges of
    `calibrate`, all of them in the ledger before the first noise is drawn. Proved in docs/proof-gradients.md.
    """
    counted = TableIndicators(table)
    first = Indicators(counted.width, len(counted.blocks), shares_of(budget.delta).indicators)
    width = ScaledTable.width_of(table, plan.fourier)
    width = width if plan.width is None else min(width, plan.width)
    config = RegressionConfig(budget, width, plan, first, table.contributions)
    scales, charges = calibrate(config, table.neighbours)
    clip, bins = first.clip(), target_bins()
    records = encoded_records(passes, table)
    with progress.bar(records.rows, "counts of indicators and target", "records") as advance:
        counts = records.total(RegressionCounts(IndicatorCounts(counted, clip), bins), advance)
    if counts is None:
        raise UserError("there are no records to release; give at least one")
    ledger.charge(*charges)
    of_records, of_positions, (n,) = (part.integers() for part in counts)
    total = clamped(source.add(of_records, config.mechanism, scales.indicators))
    of_target = clamped(source.add(of_positions, config.mechanism, scales.target))
    scale = TargetScale.of(of_target)
    features = ScaledTable(table, frequencies(total * clip.steps, counted.blocks), fourier=plan.fourier)
    target = config.clip(scale)
    with progress.bar(records.rows, "features", "records") as advance:
        mapped, _ = records.mapped(TableFeatures(features)).keep(OnGrid(target, width), advance)
    gradient_records = GradientRecords(mapped, target, width, int(n))
    tensors: dict[str, npt.NDArray[Any]] = {"indicators": total, "target": of_target}
    if plan.method == "rounds":
        noise = (config.mechanism, scales.learnt)
        gradients = run_rounds(gradient_records, plan.rounds, np.zeros(1), noise, source)
        head = final_head(gradients, plan.rounds, np.zeros(1))
        tensors["gradients"] = gradients
    else:
        second = _noisy_products(gradient_records, config, scales.learnt, source)
        head = moments_head(second, config, scales.learnt)
        tensors |= {"second": second, "weights": head.integers.astype(np.int64)}
    squared_errors = mapped.total(SquaredErrors(target, head))
    assert squared_errors is not None
    tensors["errors"] = clamped(source.add(squared_errors[0].integers(), config.mechanism, scales.errors))
    mapped.close()
    public = table.neighbours == "replace-one" and table.contributions == 1  # else n is private
    return Release.make(
        {name: torch.from_numpy(value) for name, value in tensors.items()},
        kind="regression",
        domain=table.domain,
        features=described(features),
        settings=_facts(config, scales, int(n) if public else None),
        charges=charges,
        stamps=stamps + ((SEEDED,) if source.seeded else ()),
    )


def moments_head(second: Integers, config: RegressionConfig, scale: int) -> Head:
    """Ridge regression on released second moments, from the upper triangle in grid steps squared."""
    clip, constant = config.second_clip(), config.plan.rounds.constant
    unit = float(clip.steps[0]) ** 2
    products = symmetric(second) * unit
    return ridge_head(products, second_sd(config, scale) * unit, constant, config.plan.weight)


def second_sd(config: RegressionConfig, scale: int) -> float:
    """Return the standard deviation of the noise off the diagonal of second moments, in grid steps."""
    if config.budget.delta:
        return float(off_diagonal(scale))
    q = config.k + 2
    return scale * math.sqrt(1.0 + q * (q + 1) // 2) / stage.OFF_DIAGONAL


@dataclass(frozen=True, eq=False)
class RegressionCounts:
    """Partial sums of the counts of indicators and of the target's bins, and of n."""

    indicators: IndicatorCounts
    bins: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        of_target = self.bins.integers(bins_of(part[1])).sum(0).astype(np.int64)
        return (*self.indicators(part), of_target, np.array([len(part[1])], dtype=np.int64))


@dataclass(frozen=True)
class OnGrid:
    """Stores features on their grid; nothing is summed."""

    clip: TargetClip
    width: int

    def __call__(self, part: Part) -> tuple[Part, tuple[Integers, ...]]:
        """Return the part to store for later passes."""
        return stored(part[0][:, : self.width], part[1], self.clip), ()


@dataclass(frozen=True)
class TargetProducts:
    """Partial sums of products of (constant, z, weight t / FARTHEST)."""

    clip: Clip
    target: TargetClip
    weight: float

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum products: (k + 2, k + 2)."""
        z, positions, _ = part
        last = self.target.targets(positions) * (self.weight / FARTHEST)
        first = np.full((len(last), 1), self.target.constant)
        rows = self.clip.integers(np.hstack([first, z / FEATURE_UNIT, last[:, None]]))
        return (stage.products_of(rows, rows),)


@dataclass(frozen=True)
class SquaredErrors:
    """Partial sums of the clipped squared errors of the head and of the mean: (2,)."""

    clip: TargetClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum squared errors."""
        z, positions, _ = part
        return (self.clip.squared_errors(z.astype(np.float64), positions, self.head).sum(0),)


def _noisy_products(
    gradient_records: GradientRecords, config: RegressionConfig, noise_scale: int, source: Source
) -> Integers:
    """Sum the products of (constant, z, weight t / FARTHEST), and add noise to the upper triangle."""
    target = gradient_records.clip
    assert isinstance(target, TargetClip)
    total = gradient_records.records.total(TargetProducts(config.second_clip(), target, config.plan.weight))
    assert total is not None
    off = off_diagonal(noise_scale) if config.budget.delta else noise_scale
    return clamped(stage.noisy_triangle(total[0].integers(), config.mechanism, off, noise_scale, source))


def _facts(config: RegressionConfig, scales: RegressionScales, n: int | None) -> dict[str, Any]:
    """Return the design and its noise, for the certificate; deviations are in grid steps."""

    def spread(width: int) -> float:
        return 1.0 if config.budget.delta else math.sqrt(1.0 + width)

    learnt = scales.learnt * spread(1 + config.k)
    if config.plan.method == "moments":
        learnt = second_sd(config, scales.learnt)
    return {
        "n": n,
        "mechanism": config.mechanism,
        "k": config.k,
        "method": config.plan.method,
        "rounds": config.plan.rounds.to_dict(),
        "plan": config.plan.to_dict(),
        "asked": config.budget.to_dict(),
        "indicators": config.indicators.to_dict(),
        "contributions": config.contributions,
        "sd_indicators": scales.indicators * spread(config.indicators.width),
        "sd_target": scales.target * spread(BINS + 1),
        "sd_learnt": learnt,
        "sd_errors": scales.errors * spread(2),
        "error_unit": ERROR_UNIT,
        "target_unit": target_bins().record_norm_bound,
    }
