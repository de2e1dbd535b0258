"""Stages that release plain sums over the records: class sums, counts, the centre of a table, second moments.

Every sum is of clipped records in exact integers; sensitivities are asked of the clip. Proofs:
docs/proof-moments.md, docs/proof-gradients.md (counts) and docs/proof-objective.md (centre and distance).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.engine.passes import Part, Transform, halved
from adlm.engine.records import IndicatorCounts
from adlm.features.tables import (
    CentredTable,
    ScaledTable,
    TableIndicators,
    decorrelation,
    frequencies,
    unit_rows,
)
from adlm.mechanism.stages import Run, Stage, Stored, spread
from adlm.model.estimates import class_offsets
from adlm.model.head import BINS, TargetScale
from adlm.privacy.accounting import Mechanism
from adlm.privacy.clipping import EXACT_ROWS, Clip, Reals
from adlm.privacy.noise import Source
from adlm.runtime import loops

Integers = npt.NDArray[np.int64]

PROOF = "docs/proof-moments.md"
COUNTS_PROOF = "docs/proof-gradients.md Theorem 1"
CENTRE_PROOF = "docs/proof-objective.md Lemma 2"
LENGTH_STEPS = 1 << 20  # grid steps of the longest possible distance to the centre
GRID_POINTS = 129  # values of a mean that its prior may put weight on
PRIOR_STEPS = 200


# ---- Class sums and counts


def add_class_sums(table: Integers, rows: Reals, codes: Integers, count: int) -> None:
    """Add records to a table of class sums, in blocks for which doubles are exact.

    Parameters
    ----------
    table : (M, 1 + k), changed in place: `count` for each record of a class, then sums of its rows.
    rows : (n, k) clipped records in grid steps, integers as doubles.
    codes : (n,) classes.
    count : increment of a class's count for one record, in grid steps.
    """
    if len(codes) and not (codes.min() >= 0 and codes.max() < len(table)):  # compiled code checks no index
        raise IndexError(f"classes are 0 to {len(table) - 1}, got {codes.min()} to {codes.max()}")
    loops.add_class_sums(table, rows, codes, count)


@dataclass(frozen=True)
class ClassSums:
    """Partial sums of clipped records and their number by class: (M, 1 + k)."""

    classes: int
    clip: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum."""
        table = np.zeros((self.classes, 1 + len(self.clip.scales)), dtype=np.int64)
        rows = self.clip.integers(np.asarray(part[0])[:, : len(self.clip.scales)])
        add_class_sums(table, rows, part[1], self.clip.count)
        return (table,)


def class_sums_stage(
    share: Fraction,
    clip: Clip,
    noise: Mechanism,
    neighbours: str,
    classes: int,
    form: Transform | None = None,
) -> Stage:
    """Release class sums and counts; class offsets follow from the counts.

    Parameters
    ----------
    share : of the budget.
    clip : of a record's features, with a share of it that counts the record.
    noise : `laplace` (L1 clip), `radial` (by rows) or `gaussian`.
    neighbours : the relation.
    classes : number of classes.
    form : what to store of the records for later passes, if there are any.
    """
    radial, width = noise == "radial", 1 + len(clip.scales)
    sums = ClassSums(classes, clip)

    def then(run: Run, table: Integers, scale: int) -> None:
        sd = scale * spread(noise, width)
        run.offsets = class_offsets(table[:, 0], sd)
        step = np.concatenate([[1 / clip.count if clip.count else 0.0], clip.steps])
        run.tensors |= {"class_sums": table, "step": step}
        run.facts["sd_sums"] = sd

    return Stage(
        "class sums and counts",
        share,
        noise,
        (clip.rows_sensitivity if radial else clip.sums_sensitivity)(neighbours),
        f"{PROOF} {'Theorem 2' if noise == 'gaussian' else 'Theorem 1'}",
        lambda _: sums if form is None else Stored(sums, form),
        then,
        stores=form is not None,
        by_row=radial,
    )


# ---- Counts of a numeric target's bins


def bins_of(positions: npt.NDArray[Any]) -> Reals:
    """Return (n, BINS + 1) piecewise-linear bins of positions, which are clipped to 0..TARGET_UNIT."""
    inside = np.clip(np.asarray(positions, dtype=np.int64), 0, TARGET_UNIT)
    width = TARGET_UNIT // BINS
    below = np.minimum(inside // width, BINS - 1)
    rest = (inside - below * width) / width
    out = np.zeros((len(inside), BINS + 1))
    out[np.arange(len(inside)), below] = 1 - rest
    out[np.arange(len(inside)), below + 1] = rest
    return out


@dataclass(frozen=True)
class TargetCounts:
    """Partial sums of the bins of a target, which are not negative and sum to one: (BINS + 1,)."""

    clip: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        return (self.clip.counts(bins_of(part[1])).sum(0).astype(np.int64),)


def target_stage(share: Fraction, noise: Mechanism, neighbours: str, form: Transform) -> Stage:
    """Release counts of a target's bins, from which its mean and spread follow; store the records.

    Parameters
    ----------
    share, noise, neighbours : of the budget, of the counts, and the relation.
    form : what to store of the records for later passes.
    """
    gaussian = noise == "gaussian"
    clip = Clip("l2" if gaussian else "l1", (1.0,) * (BINS + 1), 1.0)

    def then(run: Run, counts: Integers, scale: int) -> None:
        run.target = TargetScale.of(counts)
        run.tensors["target"] = counts
        run.facts |= {"sd_target": scale * spread(noise, 1), "target_unit": clip.record_norm_bound}

    return Stage(
        "counts of the target's bins",
        share,
        noise,
        (clip.counts_sensitivity if gaussian else clip.sums_sensitivity)(neighbours),
        COUNTS_PROOF if gaussian else f"{PROOF} Theorem 1",
        lambda _: Stored(TargetCounts(clip), form),
        then,
        stores=True,
    )


# ---- A table with delta: counts of indicators, and second moments of values


def indicators_clip(counted: TableIndicators) -> Clip:
    """The clip of a record's indicators: in each block they are not negative and sum to one."""
    return Clip("l2", (1.0,) * counted.width, math.sqrt(len(counted.blocks)))


def indicators_stage(
    share: Fraction,
    table: TableDomain,
    *,
    fourier: int,
    value_energy: float,
    last: bool,
    shrunk: bool,
) -> Stage:
    """Release counts of a table's indicators, by which its columns are centred and scaled.

    Parameters
    ----------
    share : of the budget, in mu^2.
    table : the declared table.
    fourier, value_energy : of the features, see `ScaledTable`.
    last : whether later passes read these features; else values are decorrelated first.
    shrunk : whether frequencies are estimated by the noise on them.
    """
    counted = TableIndicators(table)
    clip = indicators_clip(counted)

    def then(run: Run, counts: Integers, scale: int) -> None:
        sd = float(scale) * float(clip.steps[0]) if shrunk else 0.0
        shares = frequencies(counts * clip.steps, counted.blocks, sd)
        features = ScaledTable(table, shares, fourier=fourier, value_energy=value_energy)
        run.tensors["indicators"] = counts
        run.facts["sd_indicators"] = float(scale)
        run.features = features
        if last:
            run.map_tables(features)

    return Stage(
        "counts of indicators",
        share,
        "gaussian",
        clip.counts_sensitivity(table.neighbours),
        COUNTS_PROOF,
        lambda _: IndicatorCounts(counted, clip),
        then,
    )


@dataclass(frozen=True, eq=False)
class ValueProducts:
    """Partial sums of second moments of standardised values, in rows of length 1: (d, d)."""

    features: ScaledTable
    clip: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum products of clipped rows, in blocks for which doubles are exact."""
        rows = self.clip.integers(unit_rows(self.features.values(torch.from_numpy(part[0])).numpy()))
        total = np.zeros((rows.shape[1], rows.shape[1]), dtype=np.int64)
        for start in range(0, len(rows), EXACT_ROWS):
            block = rows[start : start + EXACT_ROWS]
            total += (block.T @ block).astype(np.int64)
        return (total,)


@dataclass(frozen=True)
class TriangleStage(Stage):
    """The upper triangle of second moments, with less noise above the diagonal than on it.

    Beyond 2^22 records they are divided by a power of 4 to fit in 64 bits; only their ratios matter.
    """

    @property
    def draws(self) -> int:
        """Above the diagonal, and on it."""
        return 2

    def noisy(self, sums: npt.NDArray[Any], scale: int, source: Source) -> npt.NDArray[Any]:
        """Return the triangle with noise, zeros below it."""
        above, corner = np.triu_indices(len(sums), 1), np.diag_indices(len(sums))
        noisy = np.zeros_like(sums)
        noisy[above] = source.add(sums[above], "gaussian", off_diagonal(scale))
        noisy[corner] = source.add(sums[corner], "gaussian", scale)
        return halved(noisy)[0]


def off_diagonal(diagonal: int) -> int:
    """Return the smallest integer scale that is at least the diagonal's over sqrt(2)."""
    return math.isqrt((diagonal * diagonal - 1) // 2) + 1


def values_stage(share: Fraction, neighbours: str, columns: int) -> Stage:
    """Release second moments of a table's values, by which correlations are taken out of them.

    Parameters
    ----------
    share : of the budget, in mu^2.
    neighbours : the relation.
    columns : number of values of a record.
    """
    clip = Clip("l2", (1.0,) * columns, 1.0)

    def summed(run: Run) -> ValueProducts:
        assert isinstance(run.features, ScaledTable)
        return ValueProducts(run.features, clip)

    def then(run: Run, triangle: Integers, scale: int) -> None:
        run.tensors["values"] = triangle
        run.facts["sd_values"] = scale
        plain, mixing = run.features, decorrelation(triangle, scale)
        assert isinstance(plain, ScaledTable)
        run.map_tables(
            ScaledTable(
                plain.table,
                plain.frequencies,
                fourier=plain.fourier,
                mixing=mixing,
                value_energy=plain.value_energy,
            )
        )

    return TriangleStage(
        "second moments of values",
        share,
        "gaussian",
        clip.second_sensitivity(neighbours),
        f"{PROOF} Theorem 2",
        summed,
        then,
    )


# ---- A centred table: the mean of its records, and their mean distance to it


def centre_clip(width: int) -> Clip:
    """The clip of encoded records around the middle of their domain, and of one half, which counts them."""
    return Clip("l2", (1.0,) * (width + 1), math.sqrt(width + 1) / 2)


@dataclass(frozen=True)
class CentreSum:
    """Partial sums of clipped encoded records less the middle of their domain, and of one half: (d + 1,)."""

    clip: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum."""
        rows = np.full((len(part[0]), part[0].shape[1] + 1), 0.5)
        rows[:, :-1] = np.clip(part[0], 0, 1) - 0.5
        return (self.clip.integers(rows).sum(0).astype(np.int64),)


@dataclass(frozen=True)
class DistanceSum:
    """Partial sums of distances to the centre, in shares of the longest possible one: (1,)."""

    centre: Reals

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum, each distance rounded down to its grid."""
        apart = np.clip(part[0], 0, 1).astype(np.float64) - self.centre
        ratio = np.sqrt((apart * apart).sum(1)) / longest(self.centre)
        steps = np.clip(np.floor(ratio * LENGTH_STEPS), 0, LENGTH_STEPS)
        return (np.array([steps.sum()], dtype=np.int64),)


def longest(centre: Reals) -> float:
    """Return the longest distance of a point in [0, 1]^d to a centre."""
    return math.sqrt(float((np.maximum(centre, 1 - centre) ** 2).sum()))


def likely_means(noisy: Reals, sd: float) -> Reals:
    """Return the posterior means of numbers in [0, 1], given their noise.

    All share one prior, which is the most likely one given the noisy numbers (Kiefer and Wolfowitz 1956, by
    expectation maximisation on a grid). So numbers that noise hides are taken to be alike.

    Parameters
    ----------
    noisy : (d,) noisy numbers.
    sd : standard deviation of their noise.
    """
    grid = np.linspace(0.0, 1.0, GRID_POINTS)
    log = -0.5 * ((noisy[:, None] - grid) / max(sd, 1e-6)) ** 2
    likelihood = np.exp(log - log.max(1, keepdims=True))
    prior = np.full(GRID_POINTS, 1 / GRID_POINTS)
    posterior = likelihood * prior
    for _ in range(PRIOR_STEPS):
        posterior = likelihood * prior
        posterior /= posterior.sum(1, keepdims=True)
        prior = posterior.mean(0)
    return np.asarray(np.rint((posterior @ grid) * (1 << 20)) / (1 << 20))


def centre_stages(
    shares: tuple[Fraction, Fraction],
    table: TableDomain,
    *,
    size: int,
    fourier: int,
    length: float,
    gaussian: bool = False,
) -> tuple[Stage, Stage]:
    """Release the mean of a table's records, then their mean distance to it; both scale its features.

    Parameters
    ----------
    shares : of the budget, for the mean and for the distance.
    table : the declared table.
    size : public number of records, used where the number is public.
    fourier : number of random Fourier features.
    length : what records are divided by, over their mean distance to the centre.
    gaussian : whether the noise is Gaussian; else it is radial and Laplace.
    """
    rows: Mechanism = "gaussian" if gaussian else "radial"
    numbers: Mechanism = "gaussian" if gaussian else "laplace"
    clip = centre_clip(sum(column.width for column in table.features))

    def found(run: Run, sums: Integers, scale: int) -> None:
        step = float(clip.steps[0])
        records = float(size) if run.terms.size_is_public else max(2 * step * float(sums[-1]), 1.0)
        sd = scale * spread(rows, len(sums)) * step / records
        centre = likely_means(np.asarray(0.5 + sums[:-1] * (step / records), dtype=np.float64), sd)
        run.known |= {"centre": centre, "records": records}
        run.tensors["centre"] = sums

    def scaled(run: Run, distance: Integers, scale: int) -> None:
        del scale
        centre = run.known["centre"]
        mean = float(distance[0]) / (LENGTH_STEPS * run.known["records"]) * longest(centre)
        run.tensors["distance"] = distance
        divisor = max(length * mean, 0.01 * longest(centre))
        run.map_tables(CentredTable(table, centre, round(divisor, 6), fourier))

    moved = clip.rows_sensitivity(table.neighbours)
    return (
        Stage("mean of the records", shares[0], rows, moved, CENTRE_PROOF, lambda _: CentreSum(clip), found),
        Stage(
            "mean distance to it",
            shares[1],
            numbers,
            Fraction(LENGTH_STEPS),
            CENTRE_PROOF,
            lambda run: DistanceSum(run.known["centre"]),
            scaled,
        ),
    )
