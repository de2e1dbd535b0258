"""Privatise a table by gradient rounds: counts of indicators, class sums, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms import moments
from adlm.curator.mechanisms.calibration import Calibration, Upstream
from adlm.curator.mechanisms.moment_config import Indicators, MomentConfig, Scales
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.estimation.gradient_head import GradientRounds
from adlm.privacy.accounting import gaussian_mu
from adlm.privacy.budget import Budget
from adlm.privacy.release import Release
from adlm.public.domain.table import TableDomain
from adlm.public.features.scaled_table import ScaledTable, TableIndicators, frequencies, is_ordered
from adlm.public.planning.rounds import (
    PURE_ROUNDS,
    TABLE_PATH,
    TABLE_STEP,
    plan_rounds,
    signal,
    table_clip_norm,
)

Encoded = tuple[NDArray[np.float32], NDArray[np.int64]]
FOURIER = 200  # random Fourier features of the ordered columns
PURE_FROM = 1_500.0  # signal from which rounds with radial noise do better than an additive model
CATEGORICAL_FROM = 20_000.0  # the same with delta, for two classes and mostly categorical columns
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

    @property
    def summary(self) -> str:
        """The mechanism in a few words."""
        return f"{self.rounds.rounds} gradient rounds, clip norm {self.rounds.clip_norm:g}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "rounds": self.rounds.to_dict(),
            "fourier": self.fourier,
            "indicators_share": str(self.indicators_share),
            "sums_share": str(self.sums_share),
            "reasons": list(self.reasons),
        }


def plan_table(
    table: TableDomain, n: int, epsilon: Fraction, delta: Fraction, fourier: int = 0
) -> TableRoundsPlan:
    """Choose settings for n records of a declared table; `fourier` 0 leaves that number to the rule.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    fourier : number of random Fourier features; 0 leaves it to the rule.
    """
    if n < 1:
        raise UserError(f"a plan needs at least one record, got {n}")
    strength = table_signal(table, n, epsilon, delta)
    count = fourier or (FOURIER if any(is_ordered(c) for c in table.features) else 0)
    clip_norm = table_clip_norm(strength)
    rounds = plan_rounds(n, strength, path=TABLE_PATH, longest_step=TABLE_STEP, clip_norm=clip_norm)
    if not delta:
        rounds = replace(rounds, rounds=PURE_ROUNDS, step=rounds.step * rounds.rounds / PURE_ROUNDS)
    reasons = (
        f"{rounds.rounds} gradient rounds with steps of {rounds.step:g}: the signal n mu / sensitivity is "
        f"{strength:.0f}",
        f"gradients are clipped at {clip_norm:g}",
        f"{count} random Fourier features of the ordered columns together",
        "a tenth of the budget counts indicators, to centre and scale the columns; a tenth of the rest goes "
        "to class sums",
    )
    return TableRoundsPlan(rounds, count, reasons=reasons)


def table_signal(table: TableDomain, n: int, epsilon: Fraction, delta: Fraction) -> float:
    """Return n mu over the sensitivity for a table's gradient rounds.

    For radial noise on all M (1 + k) numbers of a round, mu is what Gaussian noise of the same standard
    deviation would cost.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    """
    share = (1 - INDICATORS_SHARE) * (1 - SUMS_SHARE)
    if delta:
        mu = float(gaussian_mu(epsilon, delta)) * math.sqrt(share)
    else:
        width = len(table.label.classes) * (1 + ScaledTable.width_of(table, FOURIER))
        mu = float(epsilon * share) / math.sqrt(PURE_ROUNDS * width)
    return signal(n, mu, table.neighbours, table.contributions)


def suits_rounds(table: TableDomain, n: int, epsilon: Fraction, delta: Fraction) -> bool:
    """Whether gradient rounds suit a table better than an additive model of noisy class tables.

    Additive models do better under pure epsilon, unless epsilon n is large, and with delta on two classes and
    columns that are mostly categories, unless the signal is strong.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    """
    strength = table_signal(table, n, epsilon, delta)
    if not delta:
        return strength >= PURE_FROM
    categorical = sum(column.kind == "categorical" for column in table.features)
    mostly = 2 * categorical >= len(table.features) and len(table.label.classes) == 2
    return not mostly or strength >= CATEGORICAL_FROM


def configured(plan: TableRoundsPlan, table: TableDomain, budget: Budget) -> MomentConfig:
    """The moment release that follows a plan."""
    counted = TableIndicators(table)
    return MomentConfig(
        budget.epsilon,
        budget.delta,
        ScaledTable.width_of(table, plan.fourier),
        1.0,
        constant=0.2,
        share_sums=plan.sums_share,
        contributions=table.contributions,
        pure="radial",
        rounds=plan.rounds,
        indicators=Indicators(counted.width, len(counted.blocks), plan.indicators_share),
    )


def calibrate(plan: TableRoundsPlan, table: TableDomain, budget: Budget) -> Calibration[Scales]:
    """Share a budget between counts of indicators, class sums and gradient rounds; see `moments`."""
    return moments.calibrate(configured(plan, table, budget), table.neighbours)


def release(
    passes: Callable[[], Iterable[Encoded]],
    table: TableDomain,
    *,
    plan: TableRoundsPlan,
    budget: Budget,
    ledger: Ledger,
    source: Source,
    stamps: tuple[str, ...] = (),
) -> Release:
    """Make the release of a table: counts of indicators, class sums and gradient rounds.

    Parameters
    ----------
    passes : gives ((n, width) encoded records, (n,) class codes) batches, the same ones each time.
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
    config, calibration = configured(plan, table, budget), calibrate(plan, table, budget)
    counted = TableIndicators(table)
    assert config.indicators is not None
    clip = config.indicators.clip()
    total, n = np.zeros(counted.width, dtype=np.int64), 0
    for x, _ in _blocks(passes):
        rows = clip.integers(counted(torch.from_numpy(x)).numpy())
        total += rows.sum(0).astype(np.int64)
        n += len(rows)
    if n == 0:
        raise UserError("there are no records to release; give at least one")
    ledger.charge(*calibration.charges)
    total = source.add(total, config.mechanism, calibration.scales.indicators)
    shares = frequencies(total * clip.steps, counted.blocks)
    features = ScaledTable(table, shares, fourier=plan.fourier)

    def batches() -> Iterable[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        return ((features(torch.from_numpy(x)).numpy(), y) for x, y in _blocks(passes))

    return moments.release(
        batches,
        domain=table.domain,
        features=features,
        config=config,
        ledger=ledger,
        source=source,
        upstream=Upstream(
            {"plan": plan.to_dict()}, stamps, tensors={"indicators": torch.from_numpy(total)}, charged=True
        ),
    )


def _blocks(passes: Callable[[], Iterable[Encoded]]) -> Iterable[Encoded]:
    """Cut batches into blocks that fit into a processor's cache."""
    with torch.inference_mode():
        for x, y in passes():
            for start in range(0, len(y), ROWS):
                yield x[start : start + ROWS], y[start : start + ROWS]
