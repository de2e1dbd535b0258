"""The release of a table: class tables of every column, column weights, residual tables.

Three stages, each a noisy sum over the records of vectors that depend on one record and on what the stages
before it released. All vectors pass through a `Clip`, in integers. Proofs: docs/proof-tables.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.curator.clipping import EXACT_ROWS, Clip, Norm, Reals
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.moments import Batches, off_diagonal, root_down
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.estimation import additive
from adlm.privacy.accounting import Charge, gaussian_mu, root_up
from adlm.privacy.release import SEEDED, Release
from adlm.public.domain import Domain
from adlm.public.features.tabular import TabularFeatures
from adlm.public.planning.tables import TablePlan

PROOF = "docs/proof-tables.md"
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Calibration:
    """Noise for each stage: integer scales, in grid steps, and what they cost."""

    norm: Norm
    tables: int
    second_round: int  # 0: no second look
    gradient: int  # 0: stage two is left out
    curvature: int  # off the diagonal
    diagonal: int
    residuals: int  # 0: not released
    charges: tuple[Charge, ...]

    @property
    def spread(self) -> float:
        """Standard deviation of noise of scale one."""
        return math.sqrt(2.0) if self.norm == "l1" else 1.0


def calibrate(
    plan: TablePlan, epsilon: Fraction, delta: Fraction, neighbours: str, contributions: int
) -> Calibration:
    """Share a budget between the stages.

    Formal guarantees
    -----------------
    Relation: the given one, of persons with at most `contributions` records. Sensitivities: in grid
    steps, the same whatever the earlier stages released, so the charges can be made before the first noise is
    drawn. Guarantee: they compose to at most epsilon and delta. Proved in docs/proof-tables.md.
    """
    norm: Norm = "l2" if delta else "l1"
    mu = gaussian_mu(epsilon, delta) if delta else Fraction(0)
    unit = Clip(norm, (1.0,), 1.0)
    charges: list[Charge] = []

    def scale(what: str, sensitivity: Fraction, share: Fraction, theorem: str) -> int:
        moved = contributions * sensitivity
        steps = math.ceil(moved / (mu * root_down(share)) if delta else moved / (share * epsilon))
        charges.append(
            Charge(what, "gaussian" if delta else "laplace", neighbours, moved, Fraction(steps),
                   f"{PROOF} {theorem}", delta)
        )  # fmt: skip
        return steps

    tables = scale(
        "class tables and counts", _table_sensitivity(unit, neighbours), plan.shares[0], "Theorem 1"
    )
    second_round = gradient = off = diagonal = residuals = 0
    if plan.shares[1]:
        second_round = scale(
            "class tables again, noise by relevance", _table_sensitivity(unit, neighbours), plan.shares[1],
            "Theorem 1",
        )  # fmt: skip
    if plan.weights == "columns":
        gradient = scale(
            "gradient in column weights", unit.sums_sensitivity(neighbours), plan.shares[2], "Theorem 2"
        )
        curvature = scale(
            "curvature in column weights", unit.second_sensitivity(neighbours), plan.shares[3], "Theorem 2"
        )
        off, diagonal = (off_diagonal(curvature), curvature) if delta else (curvature, 2 * curvature)
    if plan.residuals:
        residuals = scale("residual tables", unit.sums_sensitivity(neighbours), plan.shares[4], "Theorem 2")
    return Calibration(norm, tables, second_round, gradient, off, diagonal, residuals, tuple(charges))


def _table_sensitivity(unit: Clip, neighbours: str) -> Fraction:
    """Distance of class tables of neighbours: cells are not negative, so two records are never opposite."""
    if neighbours == "add-remove":
        return Fraction(unit.record_norm_bound)
    return (
        Fraction(2 * unit.record_norm_bound)
        if unit.norm == "l1"
        else root_up(Fraction(2 * unit.record_norm_bound**2))
    )


def release_additive(
    batches: Batches,
    *,
    domain: Domain,
    features: TabularFeatures,
    plan: TablePlan,
    epsilon: Fraction,
    delta: Fraction,
    ledger: Ledger,
    source: Source,
    contributions: int = 1,
    stamps: tuple[str, ...] = (),
) -> Release:
    """Make the release of a table: two or three passes over the records.

    Parameters
    ----------
    batches : gives ((n, width) features, (n,) codes) batches, the same ones each time it is called.

    Formal guarantees
    -----------------
    Relation: the domain's, of persons with at most `contributions` records. Guarantee: `calibrate`. Every
    charge is in the ledger before noise is drawn. n is kept only where it is public: under replace-one with
    one record a person.
    """
    budget = calibrate(plan, epsilon, delta, domain.neighbours, contributions)
    stage = _Stages(batches, features, len(domain.classes), budget, source)
    table, n = stage.class_tables(stage.clip)
    if n == 0:
        raise UserError("there are no records to release; give at least one")
    ledger.charge(*budget.charges)
    known = n if domain.neighbours == "replace-one" and contributions == 1 else None
    tensors, facts = stage.finish(table, known, plan)
    settings = {
        "n": known,
        "mechanism": "gaussian" if delta else "laplace",
        "model": "additive",
        "plan": plan.to_dict(),
        "contributions": contributions,
        "sd_sums": budget.spread * budget.tables,
    }
    return Release.make(
        tensors,
        kind="moments",
        domain=domain,
        features={"spec": features.spec(), "fingerprint": features.fingerprint()},
        settings=settings | facts,
        charges=budget.charges,
        stamps=stamps + ((SEEDED,) if source.seeded else ()),
    )


class _Stages:
    """The passes over the records, in order."""

    def __init__(
        self,
        batches: Batches,
        features: TabularFeatures,
        classes: int,
        budget: Calibration,
        source: Source,
    ) -> None:
        self.size: float
        self.batches, self.features, self.classes = batches, features, classes
        self.budget, self.source = budget, source
        blocks = len(features.blocks)
        # the count is a column of one cell; a record's cells have L1 norm `blocks`, L2 norm at most its root
        self.size, whole = float(blocks), float(blocks + 1)
        if budget.norm == "l2":
            self.size, whole = math.sqrt(self.size), math.sqrt(whole)
        self.clip = Clip(budget.norm, (1.0,) * features.indicators, self.size, 1 / whole)

    def indicators(self, z: npt.ArrayLike) -> Reals:
        """Undo the features' unit: cells that are on are 1."""
        values = np.asarray(z, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != self.features.indicators:
            raise UserError(f"a table's features are (n, {self.features.indicators}), got {values.shape}")
        return np.asarray(np.clip(values / self.features.unit, 0.0, 1.0))

    def class_tables(self, clip: Clip) -> tuple[Integers, int]:
        table = np.zeros((self.classes, 1 + self.features.indicators), dtype=np.int64)
        n = 0
        for z, codes in self.batches():
            rows = clip.integers(self.indicators(z))
            n += len(rows)
            for start in range(0, len(rows), EXACT_ROWS):
                block, labels = rows[start : start + EXACT_ROWS], codes[start : start + EXACT_ROWS]
                member = np.zeros((len(block), self.classes))
                member[np.arange(len(block)), labels] = 1.0
                table[:, 1:] += (member.T @ block).astype(np.int64)
                table[:, 0] += clip.count * member.sum(0).astype(np.int64)
        return table, n

    def finish(
        self, table: Integers, n: int | None, plan: TablePlan
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Draw the noise of stage one, and make the stages that look at what it gave."""
        budget, unit = self.budget, self.features.unit
        table = table + self._noise(table.shape, budget.tables)
        step = np.concatenate([[1 / self.clip.count], self.clip.steps])
        sums, sd = table * step, budget.spread * budget.tables * step
        summary = self._summary(sums, sd, n)
        second: dict[str, Integers | Reals] = {}
        if budget.second_round:
            scales = additive.noise_by_relevance(summary, self.features.blocks, budget.norm)
            clip = Clip(budget.norm, tuple(map(float, scales)), self.size)
            second_round = self.class_tables(clip)[0][:, 1:]
            second_round = second_round + self._noise(second_round.shape, budget.second_round)
            fine = budget.spread * budget.second_round * clip.steps
            best = sd[1:] ** -2 / (sd[1:] ** -2 + fine**-2)  # weight of the first look
            sums[:, 1:] = best * sums[:, 1:] + (1 - best) * second_round * clip.steps
            sd[1:] = (sd[1:] ** -2 + fine**-2) ** -0.5
            summary = self._summary(sums, sd, n)
            second = {"class_sums_again": second_round, "step_again": clip.steps * unit}
        tensors = {
            "class_sums": table,
            "step": np.concatenate([step[:1], step[1:] * unit]),
            "scores": summary.scores,
            "prior": summary.prior,
            "rates": summary.rates,
            "records": summary.records,
        } | second
        facts: dict[str, Any] = {"told_n": summary.n}
        weighing = additive.Weighing.of(summary.scores, summary.prior, self.features.blocks)
        if budget.gradient:
            gradient, curvature, small, coarse = self._derivatives(
                weighing, weighing.length(summary, budget.norm)
            )
            tensors |= {
                "gradient": gradient,
                "curvature": curvature,
                "step_gradient": np.array([coarse]),
                "step_curvature": np.array([small]),
            }
            facts |= {
                "sd_gradient": budget.spread * budget.gradient * coarse,
                "sd_curvature": budget.spread * budget.curvature * small**2,
            }
        if budget.residuals:
            point = weighing.linear(additive.newton(*_real(tensors, facts)))
            residual, size = self._residuals(point)
            tensors |= {"residuals": residual, "step_residuals": np.array([size])}
            facts["sd_residuals"] = budget.spread * budget.residuals * size
        return {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in tensors.items()}, facts

    def _summary(self, sums: Reals, sd: Reals, n: int | None) -> additive.Scores:
        blocks, ordered = self.features.blocks, self.features.ordered
        return additive.class_scores(sums[:, 1:], sums[:, 0], sd[1:], float(sd[0]), n, blocks, ordered)

    def _derivatives(
        self, weighing: additive.Weighing, length: float
    ) -> tuple[Integers, Integers, float, float]:
        size = weighing.size
        rows_each = 1 if self.classes == 2 else self.classes
        first = Clip(self.budget.norm, (1.0,) * size, length)
        second = Clip(self.budget.norm, (1.0,) * (size * rows_each), length / 2)
        gradient = np.zeros(size, dtype=np.int64)
        curvature = np.zeros((size, size), dtype=np.int64)
        for z, codes in self.batches():
            slope, rows = weighing.derivatives(self.indicators(z), codes)
            gradient += first.integers(slope).sum(0).astype(np.int64)
            whole = second.integers(rows.reshape(len(rows), -1)).reshape(-1, rows_each, size)
            for start in range(0, len(whole), EXACT_ROWS):
                block = whole[start : start + EXACT_ROWS]
                for row in range(rows_each):
                    curvature += (block[:, row].T @ block[:, row]).astype(np.int64)
        gradient += self._noise(gradient.shape, self.budget.gradient)
        noisy = np.zeros_like(curvature)
        above, corner = np.triu_indices(size, 1), np.diag_indices(size)
        noisy[above] = curvature[above] + self._noise(above[0].shape, self.budget.curvature)
        noisy[corner] = curvature[corner] + self._noise((size,), self.budget.diagonal)
        return gradient, noisy, float(second.steps[0]), float(first.steps[0])

    def _residuals(self, point: additive.Linear) -> tuple[Integers, float]:
        rows = 1 if self.classes == 2 else self.classes
        width = self.features.indicators
        # |y - p| is at most 1 for two classes; for more its L1 norm is at most 2 and its L2 norm sqrt(2)
        clip_norm = self.clip.clip_norm * (
            1.0 if rows == 1 else 2.0 if self.budget.norm == "l1" else math.sqrt(2.0)
        )
        clip = Clip(self.budget.norm, (1.0,) * (rows * width), clip_norm)
        total = np.zeros(rows * width, dtype=np.int64)
        for z, codes in self.batches():
            indicators = self.indicators(z)
            wrong = -additive.softmax(point.logits(indicators))
            wrong[np.arange(len(codes)), codes] += 1.0
            wrong = wrong[:, 1:] if rows == 1 else wrong
            outer = (wrong[:, :, None] * indicators[:, None, :]).reshape(len(indicators), -1)
            total += clip.integers(outer).sum(0).astype(np.int64)
        total += self._noise(total.shape, self.budget.residuals)
        return total.reshape(rows, width), float(clip.steps[0])

    def _noise(self, shape: tuple[int, ...], scale: int) -> Integers:
        return self.source.draw("laplace" if self.budget.norm == "l1" else "gaussian", shape, scale)


def _real(tensors: dict[str, Any], facts: dict[str, Any]) -> tuple[Reals, Reals, float, float]:
    """Return gradient and curvature in real numbers, with their noise."""
    upper = tensors["curvature"] * float(tensors["step_curvature"][0]) ** 2
    full = upper + np.triu(upper, 1).T
    gradient = tensors["gradient"] * float(tensors["step_gradient"][0])
    return gradient, full, facts["sd_gradient"], facts["sd_curvature"]
