"""Privatise a table with a numeric target: counts of indicators and of the target, gradients, a check.

The gradient of the squared loss of one record is (w.x - t) x, bounded like that of a classifier: in exact
integers, record by record. Proof: docs/proof-gradients.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.curator.clipping import Clip
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.gradient_rounds import GradientRecords, run_rounds, stored
from adlm.curator.mechanisms.moments import Indicators
from adlm.curator.mechanisms.regression_calibration import (
    RegressionConfig,
    RegressionScales,
    TargetClip,
    calibrate,
    target_bins,
)
from adlm.curator.noise import Source
from adlm.curator.passes import Records
from adlm.curator.table_records import IndicatorCounts, TableFeatures, encoded_records
from adlm.curator.totals import clamped
from adlm.errors import UserError
from adlm.estimation.gradient_head import Head, final_head
from adlm.estimation.regression import BINS, TargetScale
from adlm.privacy.budget import Budget
from adlm.privacy.certificate import SEEDED
from adlm.privacy.release import Release
from adlm.public.domain.encoding import TARGET_UNIT
from adlm.public.domain.table import TableDomain
from adlm.public.features import described
from adlm.public.features.frequencies import frequencies
from adlm.public.features.scaled_table import ScaledTable
from adlm.public.features.table_indicators import TableIndicators
from adlm.public.planning.regression import GAUSSIAN_SHARES, RegressionPlan
from adlm.runtime import progress
from adlm.runtime.part_store import Part

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Encoded = tuple[npt.NDArray[np.float32], Integers]


def bins_of(positions: Integers) -> Reals:
    """Return (n, BINS + 1) piecewise-linear bins, exactly, of positions clipped to 0..TARGET_UNIT."""
    width, positions = TARGET_UNIT // BINS, np.clip(positions, 0, TARGET_UNIT)
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
) -> Release:
    """Make the release of a table with a numeric target.

    Parameters
    ----------
    passes : records that an engine holds, or a function that yields (encoded records, positions of the
        target) batches, the same ones each time it is called.
    table : the declared table.
    plan : the public settings.
    budget : epsilon and delta.
    ledger : the charges are written there before noise is drawn.
    source : of the noise.

    Formal guarantees
    -----------------
    Relation: the table's, of persons with at most `table.contributions` records. Guarantee: the charges of
    `calibrate`, all of them in the ledger before the first noise is drawn. Proved in docs/proof-gradients.md.
    """
    counted = TableIndicators(table)
    first = Indicators(counted.width, len(counted.blocks), GAUSSIAN_SHARES.indicators)
    width = ScaledTable.width_of(table, plan.fourier)
    config = RegressionConfig(budget, width, plan, first, table.contributions)
    scales, charges = calibrate(config, table.neighbours).for_domain(table.domain)
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
    public = table.neighbours == "replace-one" and table.contributions == 1  # else n is private
    many = float(n) if public else float(of_target.sum()) / bins.record_norm_bound
    target = config.clip(scale)
    on_errors = scales.errors * error_spread(config) / (target.error_bound * max(many, 1.0))
    target = replace(target, error_limit=scale.error_limit(on_errors))
    with progress.bar(records.rows, "features", "records") as advance:
        mapped, _ = records.mapped(TableFeatures(features)).keep(OnGrid(target, width), advance)
    gradient_records = GradientRecords(mapped, target, width, int(n))
    tensors: dict[str, npt.NDArray[Any]] = {"indicators": total, "target": of_target}
    noise = (config.mechanism, scales.learnt)
    gradients = run_rounds(gradient_records, plan.rounds, np.zeros(1), noise, source)
    head = final_head(gradients, plan.rounds, np.zeros(1))
    tensors["gradients"] = gradients
    squared_errors = mapped.total(SquaredErrors(target, head))
    assert squared_errors is not None
    tensors["errors"] = clamped(source.add(squared_errors[0].integers(), config.mechanism, scales.errors))
    mapped.close()
    return Release.make(
        {name: torch.from_numpy(value) for name, value in tensors.items()},
        kind="regression",
        domain=table.domain,
        features=described(features),
        settings=_facts(config, scales, int(n) if public else None, target),
        charges=charges,
        stamps=(SEEDED,) if source.seeded else (),
    )


@dataclass(frozen=True, eq=False)
class RegressionCounts:
    """Partial sums of the counts of indicators and of the target's bins, and of n."""

    indicators: IndicatorCounts
    bins: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        of_target = self.bins.counts(bins_of(part[1])).sum(0).astype(np.int64)
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
class SquaredErrors:
    """Partial sums of the clipped squared errors of the head and of the mean: (2,)."""

    clip: TargetClip
    head: Head

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum squared errors."""
        z, positions, _ = part
        return (self.clip.squared_errors(z.astype(np.float64), positions, self.head).sum(0),)


def error_spread(config: RegressionConfig) -> float:
    """Return the standard deviation of the noise on a sum of squared errors, in units of its scale."""
    return 1.0 if config.budget.delta else math.sqrt(3.0)


def _facts(
    config: RegressionConfig, scales: RegressionScales, n: int | None, target: TargetClip
) -> dict[str, Any]:
    """Return the design and its noise, for the certificate; deviations are in grid steps."""

    def spread(width: int) -> float:
        return 1.0 if config.budget.delta else math.sqrt(1.0 + width)

    learnt = scales.learnt * spread(1 + config.k)
    return {
        "n": n,
        "mechanism": config.mechanism,
        "k": config.k,
        "method": "rounds",
        "rounds": config.plan.rounds.to_dict(),
        "plan": config.plan.to_dict(),
        "asked": config.budget.to_dict(),
        "indicators": config.indicators.to_dict(),
        "contributions": config.contributions,
        "sd_indicators": scales.indicators * spread(config.indicators.width),
        "sd_target": scales.target * spread(BINS + 1),
        "sd_learnt": learnt,
        "sd_errors": scales.errors * error_spread(config),
        "error_limit": target.error_limit,
        "error_unit": target.error_unit,
        "target_unit": target_bins().record_norm_bound,
    }
