"""The planner: every setting of a release under pure epsilon, from public quantities alone.

Its inputs are the declared domain, the number of records, and the budget; it never reads a record. Every
constant stands in `SETTLED`, with the data that it was settled on; docs/reproduction.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import Features, PriorStatistics
from adlm.features.narrowed import narrow
from adlm.features.tables import TableIndicators, is_ordered
from adlm.mechanism.objective import MOST_PRECISION, PRECISION_UNIT, Objective
from adlm.privacy.accounting import Mechanism
from adlm.privacy.clipping import check_allocation, noise_scales

TableForm = Literal["centred", "indicators"]


@dataclass(frozen=True)
class Constants:
    """Constants of the planner, settled on held-out training records."""

    # images: the last 10,000 training images of MNIST and Fashion-MNIST, the last 5,000 of CIFAR-10
    features_per_signal: float = 0.33  # number of features over sqrt(n epsilon)
    fewest_features: int = 10
    many_images: int = 10_000  # with a public prior: fewer records, or a smaller n epsilon, get class sums
    image_signal: float = 4_000.0
    image_ridge: float = 4.0  # ridge times epsilon, over sqrt(number of features)
    # tables: a quarter of the training records of the six tables of docs/reproduction.md and of 13 others
    centred_ridge: float = 1.6  # the same, times the bound on the gradient
    indicator_ridge: float = 4.0  # ridge times epsilon, over the noise on an indicator
    records_per_indicator: float = 3.0  # n epsilon for each class and indicator, from which they are used
    records_of_many_classes: float = 1_000.0  # the same for more than two classes of mostly ordered columns
    few_columns: int = 3  # up to so many ordered columns get random Fourier features
    fourier: int = 50
    length: float = 0.75  # what records are divided by, over their mean distance to the centre
    # all: a cap of 1 leaves the gradient of an untrained model as it is
    cap: float = 1.0
    target_cap: float = 1.0  # standard deviations of the target
    centre_share: Fraction = Fraction(1, 10)
    length_share: Fraction = Fraction(1, 50)
    sums_share: Fraction = Fraction(1, 20)
    check_share: Fraction = Fraction(1, 50)
    target_share: Fraction = Fraction(1, 20)


SETTLED = Constants()
SHARES = ("centre_share", "length_share", "sums_share", "check_share")


@dataclass(frozen=True)
class PurePlan:
    """The public settings of a release under pure epsilon.

    Attributes
    ----------
    objective : the perturbed loss.
    k : number of features.
    form : of a table's features; None for images and vectors.
    fourier : random Fourier features of a centred table.
    centre_share, length_share, sums_share, check_share : of the budget, for the released centre and length of
        records, for class sums (or counts of a target's bins), and for the count of correct predictions (or
        squared errors). The objective gets the rest.
    reasons : one sentence for each choice.
    """

    objective: Objective
    k: int
    form: TableForm | None = None
    fourier: int = 0
    centre_share: Fraction = Fraction(0)
    length_share: Fraction = Fraction(0)
    sums_share: Fraction = SETTLED.sums_share
    check_share: Fraction = SETTLED.check_share
    reasons: tuple[str, ...] = ()

    @property
    def objective_share(self) -> Fraction:
        """Share of the budget for the perturbed loss."""
        return 1 - self.centre_share - self.length_share - self.sums_share - self.check_share

    @property
    def summary(self) -> str:
        """Short description of the mechanism."""
        return f"loss perturbed once, {self.objective.noise} noise, {self.k} features"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "objective": self.objective.to_dict(),
            "k": self.k,
            "form": self.form,
            "fourier": self.fourier,
            "centre_share": str(self.centre_share),
            "length_share": str(self.length_share),
            "sums_share": str(self.sums_share),
            "check_share": str(self.check_share),
            "reasons": list(self.reasons),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> PurePlan:
        """Read what `to_dict` wrote."""
        try:
            shares = {name: Fraction(str(raw[name])) for name in SHARES}
            return cls(
                Objective.from_dict(dict(raw["objective"])),
                int(raw["k"]),
                raw["form"],
                int(raw["fourier"]),
                reasons=tuple(raw["reasons"]),
                **shares,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the plan of a release cannot be read: {error}") from None


def plan_features(
    n: int,
    classes: int,
    epsilon: float,
    neighbours: str,
    features: Features,
    k: int | None = None,
    allocation: str = "identical",
) -> PurePlan:
    """Choose settings for n records of images or vectors.

    Parameters
    ----------
    n : number of records, public or guessed.
    classes : number of classes.
    epsilon : the budget for one record.
    neighbours : `replace-one` or `add-remove`.
    features : the public map of the records.
    k : number of features, instead of the planner's.
    allocation : `identical`, or noise by the relevance of the public prior: `linear` or `optimal`.
    """
    check_allocation(allocation)
    if n < 1 or classes < 2:
        raise UserError(f"a plan needs at least one record and two classes, got {n} and {classes}")
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise UserError(f"a budget needs epsilon > 0, got {epsilon}")
    signal = n * epsilon * (2 if neighbours == "add-remove" else 1) * (2 if classes == 2 else 1)
    width = features.moments_width()
    wanted = max(SETTLED.fewest_features, round(SETTLED.features_per_signal * math.sqrt(signal)))
    count = min(width, wanted) if k is None else k
    plan = PurePlan(_objective(n, classes, "radial", norm=1.0, constant=0.2), count)
    plan = with_ridge(plan, epsilon, neighbours, SETTLED.image_ridge)
    if allocation != "identical":
        precision = precisions(features, count, allocation)
        plan = replace(plan, objective=replace(plan.objective, precision=precision))
    reasons: tuple[str, ...] = (
        f"{count} features: {SETTLED.features_per_signal:g} sqrt(n epsilon), between "
        f"{SETTLED.fewest_features} and {width}",
        f"a ridge of {plan.objective.ridge:.3g}, in proportion to the noise in the loss",
        f"{float(plan.sums_share):.0%} of epsilon for class sums, which networks and checks need, "
        f"{float(plan.check_share):.0%} to count correct predictions",
    )
    if features.prior is None and count < features.width:
        why = "the coordinates are random directions: nothing public says which of the features matter"
        reasons = (*reasons, why)
    return replace(plan, reasons=reasons)


def precisions(features: Features, k: int, allocation: str) -> tuple[int, ...]:
    """Return whole-number precisions of the first k features, by the relevance of the public prior.

    The noise on the weights of a feature is divided by its precision; a typical record is as long as under
    identical noise.

    Parameters
    ----------
    features : the public map, with a prior.
    k : number of features.
    allocation : `linear` or `optimal`, see `adlm.privacy.clipping`.
    """
    if features.prior is None:
        raise UserError(f"allocation {allocation!r} needs features with a public prior; leave it out")
    prior = features.prior if features.width == k else narrow(features.prior, k)
    whole = np.rint(PRECISION_UNIT / np.array(prior_scales(allocation, prior)))
    return tuple(int(p) for p in np.clip(whole, 1, MOST_PRECISION))


def prior_scales(allocation: str, prior: PriorStatistics) -> tuple[float, ...]:
    """Return relative noise scales by a public prior; a typical record is as long as under identical ones.

    Parameters
    ----------
    allocation : `linear` or `optimal`, see `adlm.privacy.clipping`.
    prior : of the features.
    """
    typical, weight = prior.typical.double().numpy(), prior.weight.double().numpy()
    typical = np.maximum(typical, 1e-3 * typical.mean() + 1e-12)
    weight = np.maximum(weight, 1e-3 * weight.mean() + 1e-12)
    scales = noise_scales(allocation, typical, weight)
    stretch = math.sqrt(float(((typical / scales) ** 2).sum()) / float((typical**2).sum()))
    return tuple(float(b) for b in scales * stretch)


def suits_objective(n: int, epsilon: float, features: Features, neighbours: str) -> bool:
    """Whether the perturbed loss suits n records of images or vectors better than class sums.

    A public prior says how records vary around class means. Few records say less than it does, so for them
    class sums are enough.

    Parameters
    ----------
    n : number of records, public or guessed.
    epsilon : the budget for one record.
    features : the public map.
    neighbours : the relation.
    """
    signal = n * epsilon * (2 if neighbours == "add-remove" else 1)
    return features.prior is None or (n >= SETTLED.many_images and signal >= SETTLED.image_signal)


def _objective(
    n: int, classes: int, noise: Mechanism, *, norm: float, constant: float, length: float | None = None
) -> Objective:
    """An objective whose ridge is not set; the constant is added to the norms."""
    cap = SETTLED.cap if classes > 1 else SETTLED.target_cap
    total = norm + constant if noise == "laplace" else math.hypot(norm, constant)
    return Objective(
        "classes" if classes > 1 else "target",
        classes,
        noise,
        cap,
        1.0,
        total,
        math.hypot(norm if length is None else length, constant),
        constant,
        n,
    )


def with_ridge(plan: PurePlan, epsilon: float, neighbours: str, strength: float) -> PurePlan:
    """Set the ridge in proportion to the noise in the loss, large enough to cost little of epsilon.

    Parameters
    ----------
    plan : the settings, with any ridge.
    epsilon : the budget for one record.
    neighbours : the relation.
    strength : ridge over the noise on one weight, in the unit of `Constants`.
    """
    objective, left = plan.objective, epsilon * float(plan.objective_share)
    wide = math.sqrt(plan.k) if objective.noise == "radial" else math.sqrt(2.0)
    noise = float(objective.gradient_bound) * wide / left
    if neighbours == "add-remove":
        noise /= 2
    least = 4 * float(objective.curvature) * objective.length**2 / left  # at most a quarter of epsilon
    ridge = float(f"{max(strength * noise, least):.4g}")
    return replace(plan, objective=replace(objective, ridge=ridge))


def plan_table(table: TableDomain, n: int, epsilon: float, fourier: int = 0) -> PurePlan:
    """Choose settings for n records of a declared table, with classes or a numeric target.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon : the budget for one record.
    fourier : random Fourier features; 0 leaves their number to the planner.
    """
    if n < 1:
        raise UserError(f"a plan needs at least one record, got {n}")
    classes = len(table.label.classes) if table.target is None else 1
    indicators = TableIndicators(table)
    ordered = sum(is_ordered(column) for column in table.features)
    few = ordered == len(table.features) <= SETTLED.few_columns and not table.crosses
    bound = 0.5 if classes == 2 else 1.0
    times = 1 if table.neighbours == "add-remove" else 2
    each = n * epsilon / (max(classes, 2) * times * bound * indicators.width)
    few_classes = classes <= 2
    enough = each >= (SETTLED.records_per_indicator if few_classes else SETTLED.records_of_many_classes)
    if not fourier and not few and (enough or 2 * ordered < len(table.features)):
        blocks = len(indicators.blocks)
        unit = 1 / math.sqrt(blocks)
        objective = _objective(n, classes, "laplace", norm=math.sqrt(blocks), constant=unit / 2, length=1.0)
        plan = PurePlan(objective, indicators.width, "indicators")
        plan = with_ridge(plan, epsilon, table.neighbours, SETTLED.indicator_ridge)
        why = (
            f"{indicators.width} categories and bins of {blocks} columns: n epsilon is {each:.3g} for each "
            "class and bin"
        )
    else:
        count = fourier or (SETTLED.fourier if few else 0)
        width = indicators.inputs + count
        objective = _objective(n, classes, "radial", norm=1.0, constant=0.3)
        plan = PurePlan(
            objective,
            width,
            "centred",
            count,
            centre_share=SETTLED.centre_share,
            length_share=SETTLED.length_share,
        )
        plan = with_ridge(plan, epsilon, table.neighbours, SETTLED.centred_ridge)
        why = (
            f"one number a column, {indicators.inputs} in all"
            + (f", and {count} random Fourier features" if count else "")
            + f": n epsilon is {each:.3g} for each class and bin, too few for bins"
            + (" of so few columns" if few else "")
        )
    reasons = (
        why,
        f"a ridge of {plan.objective.ridge:.3g}, in proportion to the noise in the loss",
        f"{float(plan.objective_share):.0%} of epsilon for the perturbed loss",
    )
    return replace(plan, reasons=reasons)
