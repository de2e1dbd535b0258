"""The record release: every record with adaptive noise, once (lines 8-19 of Algorithm 1).

Each feature has its own grid, fine enough for its noise to have the same integer scale as all others:
the unit is b_j / SCALE. Records are truncated to the grid, so a release is integer arithmetic and exact
noise; the product with the unit comes afterwards. Records pass in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.curator.allocation import budget_ratios
from adlm.curator.mechanisms.calibration import Calibration
from adlm.curator.noise import Source
from adlm.curator.relevance import PrivateRelevance
from adlm.errors import UserError
from adlm.estimation.polynomial import CROSS_ENTROPY, Polynomial
from adlm.privacy.accounting import Charge
from adlm.public.domain import Domain
from adlm.runtime import progress

SCALE = 1 << 30  # noise scale in grid steps, for every feature and coefficient
CHUNK = 1 << 20  # values perturbed at a time
MODES = ("economical", "literal")
DELTA_H0_RULES = ("counted", "per-patch", "given")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PrivateRecords:
    """Private records in memory, and how they were encoded.

    Attributes
    ----------
    x : (n, *shape) records in the units of the domain.
    labels : n labels; None where labels have no budget.
    domain : of the records.
    features : their encoding, for the certificate; a table's columns.
    stamps : warnings for every release of them.
    """

    x: npt.ArrayLike
    labels: npt.ArrayLike | None
    domain: Domain
    features: Mapping[str, Any] = field(default_factory=dict)
    stamps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The public settings of a record release.

    Attributes
    ----------
    epsilon2, epsilon3 : budgets that the paper gives to the features and to the labels; epsilon3 = 0 leaves
        labels out of the release, for unsupervised networks.
    batch_size : |L|.
    delta_h0 : sensitivity of the private layer, and `delta_h0_rule`, how it was found: `counted` (Lemma 3
        with the neurons of a network's first layer), `per-patch` (the authors' code), `given` (by the
        user).
    hidden : |h_(k)|, neurons of the last hidden layer, for Delta_F.
    allocation : `identical` (ILM), `linear` (AdLM) or `optimal`.
    loss : the polynomial whose coefficients are released.
    mode : `economical` releases the order that depends on the label; `literal` perturbs all three.
    network : name of the network that the sizes were counted from, for the certificate; empty if unknown.
    """

    epsilon2: Fraction
    epsilon3: Fraction
    batch_size: int
    delta_h0: Fraction
    delta_h0_rule: str
    hidden: int
    allocation: str = "linear"
    loss: Polynomial = field(default=CROSS_ENTROPY)
    mode: str = "economical"
    network: str = ""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UserError(f"mode must be one of {', '.join(MODES)} (got {self.mode!r}).")
        if self.delta_h0_rule not in DELTA_H0_RULES:
            raise UserError(
                f"delta_h0_rule must be one of {', '.join(DELTA_H0_RULES)} (got {self.delta_h0_rule!r})."
            )
        if self.batch_size < 1 or not self.delta_h0 > 0:
            raise UserError(
                f"batch_size and delta_h0 must be positive (got {self.batch_size} and {self.delta_h0})."
            )
        if not (self.epsilon2 > 0 and self.epsilon3 >= 0):
            raise UserError(
                f"epsilon2 must be positive and epsilon3 not negative (got {self.epsilon2} and "
                f"{self.epsilon3}); epsilon3 = 0 releases no labels."
            )

    @property
    def labelled(self) -> bool:
        """Whether labels are released."""
        return self.epsilon3 > 0

    @property
    def orders(self) -> tuple[int, ...]:
        """Orders of the loss that get noise and are released."""
        return (0, 1, 2) if self.mode == "literal" else self.loss.informative()


@dataclass(frozen=True)
class RecordMechanism:
    """The settings for one data set: ratios, units, and charges.

    Attributes
    ----------
    ratios : (d,) beta_j; a feature with ratio zero, or whose grid has no step, is not released.
    units : (d,) size of a grid step of each feature; infinite where it is not released.
    steps : (d,) grid steps between the bounds of each feature.
    label_unit, label_steps : the same for a label in {0, 1}.
    bias_unit : the same unit at ratio one, for the bias.
    """

    settings: Settings
    domain: Domain
    ratios: Floats
    units: Floats
    steps: npt.NDArray[np.int64]
    label_unit: float
    label_steps: int
    bias_unit: float

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The charges of the features and, if they are released, of the labels.

        Formal guarantees
        -----------------
        Neighbours: replace-one. All noisy records are released, so the bound is on the joint law of every
        value of the one record that differs. In grid steps feature j moves by at most ``steps[j]`` under
        discrete Laplace noise of scale SCALE, so the log ratio is at most sum_j steps[j] / SCALE = |L| d
        eps2 / Delta_h0, up to truncation. A label moves two coefficients of each released order by its
        slope. The bias and the orders without slope do not depend on records.
        """
        s, moved = self.settings, sum(map(int, self.steps))
        label = s.loss.label_sensitivity(s.orders) * self.label_steps
        if moved == 0 or (label == 0 and s.labelled):
            raise UserError(
                f"the noise is so large that nothing of a record would be left (Delta_h0 = {s.delta_h0}, "
                f"|L| = {s.batch_size}); raise epsilon or the batch size."
            )
        charge = partial(
            Charge, mechanism="laplace", neighbours=self.domain.neighbours, scale=Fraction(SCALE)
        )
        features = charge(
            what=f"{self.domain.size} features of every record, noise (1/|L|) Lap(Delta_h0/eps_j) each",
            sensitivity=Fraction(moved),
            proof="L1 distance of two records in grid steps, a grid for each feature; discrete Laplace noise",
            epsilon_claimed=s.epsilon2,
        )
        if not s.labelled:
            return (features,)
        labels = charge(
            what=f"loss coefficients of order {', '.join(map(str, s.orders))} of every record",
            sensitivity=Fraction(label),
            proof="a label moves two coefficients of an order by its slope; discrete Laplace noise",
            epsilon_claimed=s.epsilon3,
        )
        return features, labels

    def chunks(
        self, x: npt.ArrayLike, labels: npt.ArrayLike | None, source: Source
    ) -> Iterator[tuple[npt.NDArray[np.float32], ...]]:
        """Perturbed records (m, *shape) and coefficients (m, M) or (m, 3, M), in chunks (lines 12-19).

        Records alone where labels are not released.
        """
        records, codes = np.asarray(x), None if labels is None else np.asarray(labels)
        rows = max(1, CHUNK // self.domain.size)
        with progress.bar(len(records), "noise", "records") as advance:
            for start in range(0, len(records), rows):
                part = self.domain.scale(records[start : start + rows])
                if codes is None:
                    yield (self._records(part, source),)
                else:
                    y = self.domain.encode_labels(codes[start : start + rows])
                    yield self._records(part, source), self._coefficients(y, source)
                advance(len(part))

    def bias(self, source: Source) -> float:
        """The static bias b = 1 of the first layer with its noise (line 14). It depends on no record."""
        return 1.0 + int(source.laplace(1, SCALE)[0]) * self.bias_unit

    def _records(self, x: npt.NDArray[np.float32], source: Source) -> npt.NDArray[np.float32]:
        released = np.flatnonzero(self.ratios)
        flat = x.reshape(len(x), -1)
        unit = self.units[released]
        steps = np.floor(flat[:, released].astype(np.float64) / unit).astype(np.int64)
        steps += source.laplace(steps.shape, SCALE)
        if len(released) == flat.shape[1]:
            return (steps * unit).astype(np.float32).reshape(x.shape)
        noisy = np.zeros_like(flat)
        noisy[:, released] = steps * unit
        return noisy.reshape(x.shape)

    def _coefficients(self, y: npt.NDArray[np.int64], source: Source) -> npt.NDArray[np.float32]:
        loss, classes = self.settings.loss, len(self.domain.classes)
        hot = np.zeros((len(y), classes), dtype=np.int64)
        hot[np.arange(len(y)), y] = self.label_steps
        orders = [
            loss.constant[r] + (loss.slope[r] * hot + source.laplace(hot.shape, SCALE)) * self.label_unit
            for r in self.settings.orders
        ]
        phi = np.stack(orders, axis=1).astype(np.float32)
        return phi if self.settings.mode == "literal" else phi[:, 0]


def mechanism_for(settings: Settings, domain: Domain, relevance: PrivateRelevance | None) -> RecordMechanism:
    """Budget ratios, grids and charges of a release (lines 9-11 and 17); nothing private is read."""
    if domain.neighbours != "replace-one":
        raise UserError(
            "a record release shows how many records there are, so nothing holds under add-remove; declare "
            "neighbours = replace-one, or make a moment release."
        )
    if relevance is not None and len(relevance.values) != domain.size:
        raise UserError(f"there are {len(relevance.values)} relevances for {domain.size} features.")
    values = None if relevance is None else relevance.values
    ratios = budget_ratios(settings.allocation, values, size=domain.size)
    unit = float(settings.delta_h0 / settings.batch_size / settings.epsilon2)  # b_j where beta_j = 1
    delta_f = settings.loss.delta_f(len(domain.classes), settings.hidden)
    label = float(delta_f / settings.batch_size / (settings.epsilon3 or 1))
    units = np.divide(unit / SCALE, ratios, out=np.full_like(ratios, np.inf), where=ratios > 0)
    units[~np.isfinite(units)] = np.inf
    ratios = np.where(np.isfinite(units), ratios, 0.0)
    # floor(x / unit) in the same arithmetic as for records, at the largest possible x
    steps = np.where(ratios > 0, np.floor(1.0 / units), 0.0)
    if not math.isfinite(float(steps.max())) or float(steps.max()) > 2.0**60:
        raise UserError("a budget is so large that its grid does not fit in 64 bits; lower epsilon.")
    return RecordMechanism(
        settings,
        domain,
        np.where(steps > 0, ratios, 0.0),  # the others would be noise alone
        units,
        steps.astype(np.int64),
        label / SCALE,
        math.floor(1.0 / (label / SCALE)),
        unit / SCALE,
    )


def calibrate(
    settings: Settings, domain: Domain, relevance: PrivateRelevance | None
) -> Calibration[RecordMechanism]:
    """Return the grids of a release, on which all noise has the scale SCALE, and their charges."""
    mechanism = mechanism_for(settings, domain, relevance)
    return Calibration(mechanism, mechanism.charges)
