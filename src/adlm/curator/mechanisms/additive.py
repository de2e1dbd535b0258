"""The release of a table: class tables of every column, then column weights and residual tables.

Where noise would dominate column weights, class offsets and one temperature are released instead. Each stage
is a noisy sum over the records of vectors that depend on one record and on the output of earlier stages. All
of them are bounded in integers. Proofs: docs/proof-tables.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.curator.clipping import Clip, Reals
from adlm.curator.ledger import Ledger
from adlm.curator.loops import unscale
from adlm.curator.mechanisms.additive_calibration import SCALING_STEPS, TableScales, calibrate
from adlm.curator.mechanisms.second_moments import products_of
from adlm.curator.noise import Source
from adlm.curator.passes import Batches, Partial, Records, as_records
from adlm.curator.sums import add_class_sums
from adlm.curator.totals import clamped, halved
from adlm.errors import UserError
from adlm.estimation import additive
from adlm.estimation.additive_model import final_model
from adlm.estimation.additive_scaling import UNIT, Scaling
from adlm.privacy.budget import Budget
from adlm.privacy.certificate import SEEDED
from adlm.privacy.release import Release
from adlm.public.features import described
from adlm.public.features.tabular import TabularFeatures
from adlm.public.planning.tables import TablePlan
from adlm.runtime import progress
from adlm.runtime.compiled import readable
from adlm.runtime.part_store import Part

Integers = npt.NDArray[np.int64]


def release(
    batches: Records | Batches,
    *,
    features: TabularFeatures,
    plan: TablePlan,
    budget: Budget,
    ledger: Ledger,
    source: Source,
    stamps: tuple[str, ...] = (),
) -> Release:
    """Make the release of a table: two or three passes over the records.

    Parameters
    ----------
    batches : records of an engine, or a function that yields ((n, width) features, (n,) codes) batches, the
        same ones each time it is called.
    features : the public map that made them; its table declares the relation and a person's records.
    plan : the public settings.
    budget : epsilon and delta; delta 0 gives Laplace noise.
    ledger : the charges are written there before noise is drawn.
    source : of the noise.
    stamps : warnings that travel with the release.

    Formal guarantees
    -----------------
    Relation: the table's, of persons with at most `contributions` records. Guarantee: `calibrate`. Every
    charge is in the ledger before noise is drawn. n is kept only where it is public: under replace-one with
    one record a person.
    """
    domain, contributions = features.table.domain, features.table.contributions
    calibration = calibrate(plan, budget, domain.neighbours, contributions)
    scales = calibration.scales
    stage = _Stages(batches, features, len(domain.classes), scales, source)
    table, n = stage.class_tables(stage.clip)
    ledger.charge(*calibration.charges)
    known = n if domain.neighbours == "replace-one" and contributions == 1 else None
    tensors, facts = stage.finish(table, known, plan)
    settings = {
        "n": known,
        "mechanism": scales.mechanism,
        "model": "additive",
        "plan": plan.to_dict(),
        "asked": budget.to_dict(),
        "contributions": contributions,
        "sd_sums": scales.spread * scales.tables,
    }
    return Release.make(
        tensors,
        kind="moments",
        domain=domain,
        features=described(features),
        settings=settings | facts,
        charges=calibration.charges,
        stamps=stamps + ((SEEDED,) if source.seeded else ()),
    )


@dataclass(frozen=True)
class UnscaledIndicators:
    """Indicators of a table's records, from features of unit length."""

    width: int
    unit: float

    def __call__(self, z: npt.ArrayLike) -> Reals:
        """Undo the features' scaling to unit length: active indicators are 1."""
        values = np.asarray(z)
        if values.ndim != 2 or values.shape[1] != self.width:
            raise UserError(f"a table's features are (n, {self.width}), got {values.shape}")
        if readable(values) and unscale.pays(len(values)):
            indicators = np.empty(values.shape)
            unscale(values, self.unit, indicators)
            return indicators
        indicators = values.astype(np.float64)
        indicators /= self.unit
        return np.asarray(np.clip(indicators, 0.0, 1.0, out=indicators))


@dataclass(frozen=True)
class ClassTables:
    """Partial sums of the class tables and counts, (M, 1 + k), and of n."""

    indicators_of: UnscaledIndicators
    clip: Clip
    classes: int

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum clipped indicators by class."""
        rows, codes = self.clip.integers(self.indicators_of(part[0])), part[1]
        table = np.zeros((self.classes, 1 + self.indicators_of.width), dtype=np.int64)
        add_class_sums(table, rows, codes, self.clip.count)
        return table, np.array([len(rows)], dtype=np.int64)


@dataclass(frozen=True)
class Derivatives:
    """Partial sums of the gradient and the curvature in column weights."""

    indicators_of: UnscaledIndicators
    column_weights: additive.ColumnWeights
    first: Clip
    second: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum clipped derivatives: (size,) and (size, size)."""
        slope, rows = self.column_weights.derivatives(self.indicators_of(part[0]), part[1])
        size, each = slope.shape[1], rows.shape[1]
        gradient = self.first.integers(slope).sum(0).astype(np.int64)
        clipped = self.second.integers(rows.reshape(len(rows), -1)).reshape(-1, each, size)
        curvature = np.zeros((size, size), dtype=np.int64)
        for row in range(each):
            curvature += products_of(clipped[:, row], clipped[:, row])
        return gradient, curvature


@dataclass(frozen=True)
class Residuals:
    """Partial sums of the residual tables: (rows k,)."""

    indicators_of: UnscaledIndicators
    point: additive.Linear
    clip: Clip
    rows: int

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum clipped products of residuals and indicators."""
        indicators, codes = self.indicators_of(part[0]), part[1]
        wrong = -additive.softmax(self.point.logits(indicators))
        wrong[np.arange(len(codes)), codes] += 1.0
        wrong = wrong[:, 1:] if self.rows == 1 else wrong
        outer = (wrong[:, :, None] * indicators[:, None, :]).reshape(len(indicators), -1)
        return (self.clip.integers(outer).sum(0).astype(np.int64),)


@dataclass(frozen=True)
class ScalingSums:
    """Partial sums of a step of offsets and temperature: (M + 2,)."""

    indicators_of: UnscaledIndicators
    model: additive.Linear
    scaling: Scaling

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum the numbers of each record."""
        scores = self.model.logits(self.indicators_of(part[0])) - self.model.bias
        return (self.scaling.shares_of(scores, part[1]).sum(0),)


@dataclass(frozen=True)
class RightCount:
    """Number of records that a model classifies correctly: (1,). One record changes it by at most one."""

    indicators_of: UnscaledIndicators
    model: additive.Linear

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        right = self.model.logits(self.indicators_of(part[0])).argmax(1) == part[1]
        return (np.array([right.sum()], dtype=np.int64),)


class _Stages:
    """The passes over the records, in order."""

    def __init__(
        self,
        records: Records | Batches,
        features: TabularFeatures,
        classes: int,
        scales: TableScales,
        source: Source,
    ) -> None:
        self.size: float
        self.records, self.features, self.classes = as_records(records), features, classes
        self.indicators_of, self.curvature_step = UnscaledIndicators(features.indicators, features.unit), 0.0
        self.noise, self.source = scales, source
        blocks = len(features.blocks)
        # the count is a column of one indicator; a record's have L1 norm `blocks`, L2 norm at most its root
        self.size, with_count = float(blocks), float(blocks + 1)
        if scales.norm == "l2":
            self.size, with_count = math.sqrt(self.size), math.sqrt(with_count)
        self.clip = Clip(scales.norm, (1.0,) * features.indicators, self.size, 1 / with_count)

    def _total(self, partial: Partial, what: str) -> list[npt.NDArray[Any]]:
        with progress.bar(self.records.rows, what, "records") as advance:
            total = self.records.total(partial, advance)
        if total is None:
            raise UserError("there are no records to release; give at least one")
        return [part.integers() for part in total]

    def class_tables(self, clip: Clip) -> tuple[npt.NDArray[Any], int]:
        table, (n,) = self._total(ClassTables(self.indicators_of, clip, self.classes), "class tables")
        return table, int(n)

    def finish(
        self, table: Integers, n: int | None, plan: TablePlan
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Draw the noise of stage one, and make the stages that depend on it."""
        noise, unit = self.noise, self.features.unit
        table = clamped(table + self._noise(table.shape, noise.tables))
        step = np.concatenate([[1 / self.clip.count], self.clip.steps])
        sums, sd = table * step, noise.spread * noise.tables * step
        summary = self._summary(sums, sd, n)
        second: dict[str, Integers | Reals] = {}
        if noise.second_round:
            scales = additive.noise_by_relevance(summary, self.features.blocks, noise.norm)
            clip = Clip(noise.norm, tuple(map(float, scales)), self.size)
            second_round = self.class_tables(clip)[0][:, 1:]
            second_round = clamped(second_round + self._noise(second_round.shape, noise.second_round))
            fine = noise.spread * noise.second_round * clip.steps
            best = sd[1:] ** -2 / (sd[1:] ** -2 + fine**-2)  # weight of the first round
            sums[:, 1:] = best * sums[:, 1:] + (1 - best) * second_round * clip.steps
            sd[1:] = (sd[1:] ** -2 + fine**-2) ** -0.5
            summary = self._summary(sums, sd, n)
            second = {"class_sums_again": second_round, "step_again": clip.steps * unit}
        tensors = {
            "class_sums": table,
            "step": np.concatenate([step[:1], step[1:] * unit]),
            "scores": summary.scores,
            "prior": summary.prior,
            "offsets": summary.offsets,
            "rates": summary.rates,
            "records": summary.records,
        } | second
        facts: dict[str, Any] = {"n_estimated": summary.n}
        column_weights = additive.ColumnWeights.of(summary.scores, summary.offsets, self.features.blocks)
        if noise.gradient:
            gradient, curvature, small, coarse = self._derivatives(
                column_weights, column_weights.typical_norm(summary, noise.norm)
            )
            tensors |= {
                "gradient": gradient,
                "curvature": curvature,
                "step_gradient": np.array([coarse]),
                "step_curvature": np.array([small]),
            }
            facts |= {
                "sd_gradient": noise.spread * noise.gradient * coarse,
                "sd_curvature": noise.spread * noise.curvature * self.curvature_step**2,
            }
        if noise.residuals:
            residual, size = self._residuals(final_model(tensors, facts, self.features.blocks, stages=2))
            tensors |= {"residuals": residual, "step_residuals": np.array([size])}
            facts["sd_residuals"] = noise.spread * noise.residuals * size
        if noise.scaling:
            facts["sd_scaling"] = noise.spread * noise.scaling
            tensors["scaling"] = self._scaling(column_weights.linear(), summary, facts["sd_scaling"])
        if noise.correct:
            model = final_model(tensors, facts, self.features.blocks, self.features.ordered)
            (right,) = self._total(RightCount(self.indicators_of, model), "records that the model gets right")
            tensors["correct"] = clamped(right + self._noise(right.shape, noise.correct))
            facts["sd_correct"] = noise.spread * noise.correct
        return {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in tensors.items()}, facts

    def _summary(self, sums: Reals, sd: Reals, n: int | None) -> additive.Scores:
        blocks, ordered = self.features.blocks, self.features.ordered
        return additive.class_scores(sums[:, 1:], sums[:, 0], sd[1:], float(sd[0]), n, blocks, ordered)

    def _derivatives(
        self, column_weights: additive.ColumnWeights, length: float
    ) -> tuple[Integers, Integers, float, float]:
        size = column_weights.size
        rows_each = 1 if self.classes == 2 else self.classes
        first = Clip(self.noise.norm, (1.0,) * size, length)
        second = Clip(self.noise.norm, (1.0,) * (size * rows_each), length / 2)
        self.curvature_step = float(second.steps[0])  # of the noise, whatever bits are dropped after it
        partial = Derivatives(self.indicators_of, column_weights, first, second)
        gradient, curvature = self._total(partial, "gradient and curvature")
        gradient = clamped(gradient + self._noise(gradient.shape, self.noise.gradient))
        noisy = np.zeros_like(curvature)
        above, corner = np.triu_indices(size, 1), np.diag_indices(size)
        noisy[above] = curvature[above] + self._noise(above[0].shape, self.noise.curvature)
        noisy[corner] = curvature[corner] + self._noise((size,), self.noise.diagonal)
        fitted, bits = halved(noisy)
        return gradient, fitted, float(second.steps[0]) * 2.0 ** (bits // 2), float(first.steps[0])

    def _scaling(self, model: additive.Linear, summary: additive.Scores, sd: float) -> Integers:
        """Release the sums of all steps: (steps, M + 2)."""
        scaling = Scaling(model.bias)
        released = np.empty((SCALING_STEPS, self.classes + 2), dtype=np.int64)
        for row in released:
            (total,) = self._total(ScalingSums(self.indicators_of, model, scaling), "offsets and temperature")
            row[...] = clamped(total + self._noise(total.shape, self.noise.scaling))
            scaling = scaling.moved(row, summary.n * np.exp(summary.prior), sd / UNIT)
        return released

    def _residuals(self, point: additive.Linear) -> tuple[Integers, float]:
        rows = 1 if self.classes == 2 else self.classes
        width = self.features.indicators
        # |y - p| is at most 1 for two classes; for more its L1 norm is at most 2 and its L2 norm sqrt(2)
        clip_norm = self.clip.clip_norm * (
            1.0 if rows == 1 else 2.0 if self.noise.norm == "l1" else math.sqrt(2.0)
        )
        clip = Clip(self.noise.norm, (1.0,) * (rows * width), clip_norm)
        (total,) = self._total(Residuals(self.indicators_of, point, clip, rows), "residual tables")
        total = clamped(total + self._noise(total.shape, self.noise.residuals))
        return total.reshape(rows, width), float(clip.steps[0])

    def _noise(self, shape: tuple[int, ...], scale: int) -> Integers:
        return self.source.draw(self.noise.mechanism, shape, scale)
