"""Privatise a table by gradient rounds: counts of indicators, second moments, class sums, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.domain.table import TableDomain
from adlm.engine.passes import Part, Records, clamped, halved
from adlm.engine.records import IndicatorCounts, TableFeatures, encoded_records
from adlm.errors import UserError
from adlm.features.tables import (
    MOST_COLUMNS,
    VALUE_ENERGY,
    ScaledTable,
    TableIndicators,
    decorrelation,
    frequencies,
    is_ordered,
    noise_norm,
    unit_rows,
)
from adlm.mechanism import class_sums as moments
from adlm.mechanism import second_moments as stage
from adlm.mechanism.calibration import (
    CHECK_SHARE,
    Calibration,
    Indicators,
    MomentConfig,
    Scales,
    Upstream,
    off_diagonal,
)
from adlm.mechanism.planning import (
    TABLE_PATH,
    TABLE_STEP,
    fewer_rounds,
    plan_rounds,
    signal_of,
    table_clip_norm,
)
from adlm.model.head import GradientRounds
from adlm.privacy.accounting import Budget, gaussian_mu
from adlm.privacy.clipping import Clip
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import progress

Encoded = tuple[NDArray[np.float32], NDArray[np.int64]]
FOURIER = (200, 512)  # fewest and most random Fourier features of the ordered columns
FOURIER_MANY, VERY_MANY = 100, 200_000  # fewest of a table with more records than these, where they cost time
FOURIER_EACH = 8  # for each of them
# A table whose columns are mostly categories: from this signal on, values weigh less than bins, and there are
# no random Fourier features. Settled on training records of Adult, whole and in parts, with and without cuts.
CATEGORICAL_FROM, CATEGORICAL_ENERGY = 300.0, 0.25
INDICATORS_SHARE, VALUES_SHARE, SUMS_SHARE = Fraction(1, 20), Fraction(1, 20), Fraction(1, 20)
MOST_NOISE = 0.5  # on second moments of rows of length 1, above which they are not released
MOST_CHECK, CHECK_NOISE = Fraction(1, 10), 0.03  # largest share of the accuracy check, noise over n
COUNT = 0.7  # share of a record's length that counts it; 0.7 costs replace-one nothing


@dataclass(frozen=True)
class TableRoundsPlan:
    """The public settings of a table's release with gradient rounds."""

    rounds: GradientRounds
    fourier: int
    indicators_share: Fraction = INDICATORS_SHARE
    sums_share: Fraction = SUMS_SHARE
    values_share: Fraction = Fraction(0)
    check_share: Fraction = CHECK_SHARE
    value_energy: float = VALUE_ENERGY
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
            "values_share": str(self.values_share),
            "check_share": str(self.check_share),
            "value_energy": self.value_energy,
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
    signal = table_signal(table, n, epsilon, delta)
    categories_lead = mostly_categorical(table) and signal >= CATEGORICAL_FROM
    count = fourier or (0 if categories_lead else fourier_count(table, n))
    rounds = _rounds(n, signal, len(table.features))
    values, check = values_share(table, n, epsilon, delta), check_share(signal, table.neighbours)
    reasons = (
        f"{rounds.rounds} gradient rounds with steps of {rounds.step:g}: the signal n mu / sensitivity is "
        f"{signal:.0f}",
        f"gradients are clipped at {rounds.clip_norm:g}",
        f"{count} random Fourier features of the ordered columns together"
        + ("; values weigh less than bins: most columns are categories" if categories_lead else ""),
        f"{_per_cent(INDICATORS_SHARE)} of the budget counts indicators, to centre "
        "and scale the columns"
        + (f"; {_per_cent(values)} goes to second moments, to take correlations out" if values else "")
        + f"; {_per_cent(SUMS_SHARE)} of the rest goes to class sums",
        f"{_per_cent(check)} of the rest counts correct predictions",
    )
    energy = CATEGORICAL_ENERGY if categories_lead else VALUE_ENERGY
    return TableRoundsPlan(
        rounds, count, values_share=values, check_share=check, value_energy=energy, reasons=reasons
    )


def _rounds(n: int, signal: float, columns: int) -> GradientRounds:
    clip_norm = table_clip_norm(signal)
    rounds = plan_rounds(n, signal, path=TABLE_PATH, longest_step=TABLE_STEP, clip_norm=clip_norm)
    return fewer_rounds(rounds, columns)


def _per_cent(share: Fraction) -> str:
    return f"{float(100 * share):g} %"


def fourier_count(table: TableDomain, n: int) -> int:
    """Return the number of random Fourier features: more where they have more columns to mix.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    """
    ordered = sum(is_ordered(column) for column in table.features)
    if not ordered:
        return 0
    fewest = FOURIER[0] if n <= VERY_MANY else FOURIER_MANY
    return min(max(FOURIER_EACH * ordered, fewest), FOURIER[1])


def check_share(signal: float, neighbours: str) -> Fraction:
    """Return the share for the count of correctly classified records: more where noise would hide it.

    Parameters
    ----------
    signal : n mu over the sensitivity of a gradient, in clip norms.
    neighbours : the relation; a replaced record moves the count by 1, a gradient by 2 clip norms.
    """
    clear = signal * (1.0 if neighbours == "add-remove" else 2.0) * CHECK_NOISE
    return max(CHECK_SHARE, min(MOST_CHECK, Fraction(f"{1 / max(clear, 1e-3) ** 2:.3f}")))


def values_share(table: TableDomain, n: int, epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the share of the budget for second moments of values; 0 where noise hides them or few matter.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    """
    columns = sum(column.kind != "categorical" for column in table.features)
    if not 2 <= columns <= MOST_COLUMNS or mostly_categorical(table):
        return Fraction(0)
    mu = float(gaussian_mu(epsilon, delta)) * math.sqrt(VALUES_SHARE) / table.contributions
    sd = (1.0 if table.neighbours == "add-remove" else math.sqrt(2.0)) / mu
    return VALUES_SHARE if noise_norm(sd, columns) <= MOST_NOISE * n else Fraction(0)


def table_signal(table: TableDomain, n: int, epsilon: Fraction, delta: Fraction) -> float:
    """Return n mu over the sensitivity for a table's gradient rounds.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    """
    share = (1 - INDICATORS_SHARE - values_share(table, n, epsilon, delta)) * (1 - SUMS_SHARE)
    mu = float(gaussian_mu(epsilon, delta)) * math.sqrt(share)
    return signal_of(n, mu, table.neighbours, table.contributions)


def mostly_categorical(table: TableDomain) -> bool:
    """Whether at least half of a table's columns are categories."""
    return 2 * sum(column.kind == "categorical" for column in table.features) >= len(table.features)


def configured(plan: TableRoundsPlan, table: TableDomain, budget: Budget) -> MomentConfig:
    """The moment release that follows a plan."""
    counted = TableIndicators(table)
    values = sum(column.kind != "categorical" for column in table.features) if plan.values_share else 0
    return MomentConfig(
        budget.epsilon,
        budget.delta,
        ScaledTable.width_of(table, plan.fourier),
        1.0,
        constant=COUNT,
        share_sums=plan.sums_share,
        check_share=plan.check_share,
        contributions=table.contributions,
        pure="radial",
        rounds=plan.rounds,
        indicators=Indicators(
            counted.width, len(counted.blocks), plan.indicators_share, values, plan.values_share
        ),
    )


def calibrate(plan: TableRoundsPlan, table: TableDomain, budget: Budget) -> Calibration[Scales]:
    """Divide a budget between counts of indicators, class sums and gradient rounds; see `moments`."""
    return moments.calibrate(configured(plan, table, budget), table.neighbours)


def release(
    passes: Records | Callable[[], Iterable[Encoded]],
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
    passes : records that an engine holds, or a function that yields ((n, width) encoded records, (n,) class
        codes) batches, the same ones each time.
    table : the declared table.
    plan : the public settings.
    budget : epsilon and delta.
    ledger : the charges are written there before noise is drawn.
    source : of the noise.
    stamps : warnings that travel with the release.

    Formal guarantees
    -----------------
    Relation: the table's, of persons with at most `table.contributions` records. Guarantee: the charges of
    `calibrate`, all of them in the ledger before the first noise is drawn. Proved in docs/proof-gradients.md.
    """
    config = configured(plan, table, budget)
    calibration = calibrate(plan, table, budget).for_domain(table.domain)
    counted = TableIndicators(table)
    assert config.indicators is not None
    clip = config.indicators.clip()
    records = encoded_records(passes, table)
    with progress.bar(records.rows, "counts of indicators", "records") as advance:
        counts = records.total(IndicatorCounts(counted, clip), advance)
    if counts is None:
        raise UserError("there are no records to release; give at least one")
    ledger.charge(*calibration.charges)
    noisy = source.add(counts[0].integers(), config.mechanism, calibration.scales.indicators)
    total = clamped(noisy)
    scale = calibration.scales.indicators * moments.noise_spread(config.mechanism, counted.width)
    shares = frequencies(total * clip.steps, counted.blocks, scale * float(clip.steps[0]))
    features = ScaledTable(table, shares, fourier=plan.fourier, value_energy=plan.value_energy)
    tensors = {"indicators": torch.from_numpy(total)}
    if config.indicators.values:
        scale = calibration.scales.values
        triangle = _second_moments(records, features, config.indicators, scale, source)
        tensors["values"] = torch.from_numpy(triangle)
        mixing = decorrelation(triangle, scale)
        features = ScaledTable(
            table, shares, fourier=plan.fourier, mixing=mixing, value_energy=plan.value_energy
        )
    settings = {"plan": plan.to_dict(), "asked": budget.to_dict()}
    return moments.release(
        records.mapped(TableFeatures(features)),
        domain=table.domain,
        features=features,
        config=config,
        ledger=ledger,
        source=source,
        upstream=Upstream(settings, stamps, tensors=tensors, charged=True),
    )


@dataclass(frozen=True, eq=False)
class ValueProducts:
    """Partial sums of second moments of standardised values, in rows of length 1: (d, d)."""

    features: ScaledTable
    clip: Clip

    def __call__(self, part: Part) -> tuple[NDArray[np.int64], ...]:
        """Sum products of clipped rows."""
        rows = self.clip.integers(unit_rows(self.features.values(torch.from_numpy(part[0])).numpy()))
        return (stage.products_of(rows, rows),)


def _second_moments(
    records: Records,
    features: ScaledTable,
    first: Indicators,
    scale: int,
    source: Source,
) -> NDArray[np.int64]:
    """Release the second moments of standardised values, in rows of length 1: the upper triangle, (d, d).

    Beyond 2^22 records they are divided by a power of 4 to fit in 64 bits; only their ratios matter.
    """
    with progress.bar(records.rows, "second moments of values", "records") as advance:
        total = records.total(ValueProducts(features, first.values_clip()), advance)
    assert total is not None
    noisy = stage.noisy_triangle(total[0].integers(), "gaussian", off_diagonal(scale), scale, source)
    return halved(noisy)[0]
