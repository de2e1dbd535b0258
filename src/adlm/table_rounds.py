"""Privatise a table by gradient rounds: counts of indicators, class sums, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.certificate import gaussian_mu
from adlm.curator.clipping import EXACT_ROWS
from adlm.curator.ledger import Ledger
from adlm.curator.moments import Design, Indicators, calibrate, release_moments
from adlm.curator.noise import Source, gaussian
from adlm.errors import UserError
from adlm.estimation.gradient_head import GradientRounds
from adlm.public.features.scaled_table import ScaledTable, TableIndicators, frequencies, is_ordered
from adlm.public.rounds_rule import plan_rounds, signal
from adlm.public.tables import TableDomain
from adlm.release import Release

Encoded = tuple[NDArray[np.float32], NDArray[np.int64]]
FOURIER = 200
INDICATORS_SHARE, SUMS_SHARE = Fraction(1, 10), Fraction(1, 10)
ROWS = 1 << 12


@dataclass(frozen=True)
class TableRoundsPlan:
    """The public settings of a table's release with gradient rounds."""

    rounds: GradientRounds
    fourier: int
    indicators_share: Fraction = INDICATORS_SHARE
    sums_share: Fraction = SUMS_SHARE
    reasons: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "rounds": self.rounds.to_dict(),
            "fourier": self.fourier,
            "indicators_share": str(self.indicators_share),
            "sums_share": str(self.sums_share),
            "reasons": list(self.reasons),
        }


def plan_table(table: TableDomain, n: int, epsilon: Fraction, delta: Fraction, fourier: int | None = None) -> TableRoundsPlan:
    ordered = any(is_ordered(c) for c in table.features)
    fourier = (FOURIER if ordered else 0) if fourier is None else fourier
    mu = float(gaussian_mu(epsilon, delta)) * float((1 - INDICATORS_SHARE) * (1 - SUMS_SHARE)) ** 0.5
    strength = signal(n, mu, table.neighbours, table.contributions)
    return TableRoundsPlan(plan_rounds(n, strength), fourier)


def release_table(
    passes: Callable[[], Iterable[Encoded]],
    table: TableDomain,
    plan: TableRoundsPlan,
    *,
    epsilon: Fraction,
    delta: Fraction,
    ledger: Ledger,
    source: Source,
    stamps: tuple[str, ...] = (),
) -> Release:
    counted = TableIndicators(table)
    probe = ScaledTable(table, [1.0] * counted.width, fourier=plan.fourier)
    design = Design(
        epsilon, delta, probe.width, 1.0, constant=0.2, share_sums=plan.sums_share, contributions=table.contributions,
        rounds=plan.rounds, indicators=Indicators(counted.width, len(counted.blocks), plan.indicators_share),
    )
    scales, charges = calibrate(design, table.neighbours)
    clip = design.indicators.clip()
    total = np.zeros(counted.width, dtype=np.int64)
    n = 0
    with torch.inference_mode():
        for x, y in passes():
            for start in range(0, len(y), ROWS):
                rows = clip.integers(counted(torch.from_numpy(x[start : start + ROWS])).numpy())
                total += rows.sum(0).astype(np.int64)
                n += len(rows)
    if n == 0:
        raise UserError("there are no records to release; give at least one")
    ledger.charge(*charges)
    total += gaussian(total.shape, scales.indicators, source)
    shares = frequencies(total * clip.steps, counted.blocks)
    features = ScaledTable(table, shares, fourier=plan.fourier)

    def batches() -> Iterable[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        with torch.inference_mode():
            for x, y in passes():
                for start in range(0, len(y), ROWS):
                    yield features(torch.from_numpy(x[start : start + ROWS])).numpy(), y[start : start + ROWS]

    return release_moments(
        batches, domain=table.domain, features=features, design=design, ledger=ledger, source=source,
        settings={"plan": plan.to_dict()}, stamps=stamps, extra={"indicators": torch.from_numpy(total)}, charged=True,
    )
