"""The planner: every setting of a release, from public quantities alone.

Its inputs are the declared domain, the number of records, and the budget; it never reads a record. Every
constant stands in `SETTLED`, with the data that it was settled on; docs/reproduction.md has the figures.

Which mechanism when: under pure epsilon the loss is perturbed once, except that few images, or a small
budget, get class sums. With delta there are gradient rounds, except that images of little signal get class
sums, and tables of two classes and a strong signal a perturbed loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import Features, PriorStatistics
from adlm.features.base import narrow
from adlm.features.tables import (
    MOST_COLUMNS,
    VALUE_ENERGY,
    ScaledTable,
    TableIndicators,
    is_ordered,
    noise_norm,
    with_bins,
)
from adlm.mechanism.objective import MOST_PRECISION, PRECISION_UNIT, Objective
from adlm.model.head import GradientRounds
from adlm.privacy.accounting import Mechanism, gaussian_mu
from adlm.privacy.certificate import Part, box
from adlm.privacy.clipping import check_allocation, noise_scales

Method = Literal["class sums", "perturbed loss", "gradient rounds"]
TableForm = Literal["centred", "indicators", "scaled"]


@dataclass(frozen=True)
class Constants:
    """Constants of the planner, settled on held-out training records."""

    # perturbed loss of images: the last 10,000 training images of MNIST and Fashion-MNIST, 5,000 of CIFAR-10
    features_per_signal: float = 0.45  # number of features over sqrt(n epsilon)
    fewest_features: int = 10
    image_signal: float = 12_000.0  # n epsilon, below which features with a public prior get class sums
    image_ridge: float = 3.0  # ridge times epsilon, over sqrt(number of features)
    # perturbed loss of tables: a quarter of the training records of the six tables of docs/reproduction.md
    # and of 13 others
    centred_ridge: float = 1.6  # the same, times the bound on the gradient
    indicator_ridge: float = 0.24  # ridge times epsilon, over the noise on an indicator, for each column
    indicator_ridges: tuple[float, float] = (1.4, 4.2)  # the same of all columns: least and most
    smoothness: float = 0.05  # of weights of neighbouring bins, for each column; at most 1
    fine_cuts: float = 40.0  # n epsilon for each class and indicator, below which declared cuts are thinned
    coarse_bins: int = 4  # bins that are left of a column then
    records_per_indicator: float = 3.0  # n epsilon for each class and indicator, from which they are used
    records_of_many_classes: float = 1_000.0  # the same for more than two classes of mostly ordered columns
    few_columns: int = 3  # up to so many ordered columns get random Fourier features
    fourier: int = 50
    length: float = 0.75  # what records are divided by, over their mean distance to the centre
    # perturbed loss of all; a cap of 1 leaves the gradient of an untrained model as it is
    cap: float = 1.0  # two classes
    cap_of_many_classes: float = 0.7  # less noise, and probabilities that are better calibrated
    target_cap: float = 1.0  # standard deviations of the target
    centre_share: Fraction = Fraction(1, 10)
    length_share: Fraction = Fraction(1, 50)
    sums_share: Fraction = Fraction(1, 20)
    check_share: Fraction = Fraction(1, 50)
    # class sums: the last 10,000 training images of MNIST and Fashion-MNIST
    records_per_coordinate: int = 10  # of a class, times epsilon
    records_per_spare_coordinate: int = 16  # the same, beyond those that are enough
    enough_coordinates: tuple[int, int] = (100, 200)  # a third of the width, within these
    most_coordinates_delta: int = 150  # with delta
    most_noise_energy: float = 0.2  # with delta: of the noise on a class mean, over that of a record
    # gradient rounds: held-out training records of MNIST, Fashion-MNIST, CIFAR-10 and of six tables. The
    # noise on a score does not depend on the number of rounds. It grows with the path, the sum of all steps,
    # over the signal, n mu over the sensitivity in clip norms. So the path follows the signal, and rounds
    # only have to be many enough for the steps to be stable.
    clip_norm: float = 0.25
    wider_clips: tuple[tuple[float, float], ...] = (
        (8_000.0, 0.5),
        (16_000.0, 1.0),
    )  # from a signal on: small
    # clip norms bias the class shares of imbalanced data
    table_path: float = 0.15  # step x clip norm x rounds, over the signal; that of images is their features'
    table_rounds: tuple[int, int] = (100, 200)  # default and most
    image_rounds: tuple[int, int] = (200, 400)
    table_step: float = 32.0  # the longest stable step, for a clip norm of 0.25
    image_step: float = 128.0
    short_image_step: float = 40.0  # for any clip norm, while there are fewer than the most rounds
    momentum: tuple[float, float] = (0.9, 0.97)  # default and most
    rounds_sums_share: Fraction = Fraction(1, 40)  # images: enough for means and checks
    rounds_check_share: Fraction = Fraction(1, 50)
    # gradient rounds of a table with many records take long, so there are fewer; settled for time
    many_records: int = 100_000
    least_rounds: int = 50
    wide_columns: int = 20  # the more columns, the longer and fewer steps can be
    wide_least_rounds: int = 36
    wide_step: float = 256.0
    momentum_reach: float = 3.0  # momentum keeps at most e^-3 of the first of all rounds
    # features and stages of a table with gradient rounds: the six tables, and Adult whole and in parts
    fourier_range: tuple[int, int] = (200, 512)  # random Fourier features of the ordered columns
    fourier_each: int = 8  # for each ordered column
    fourier_signal: float = 10_000.0  # from which they are the most; made tables of 100,000 records
    categorical_signal: float = 300.0  # mostly categories: from this signal on no Fourier features, and
    categorical_energy: float = 0.25  # values weigh less than bins
    indicators_share: Fraction = Fraction(1, 20)
    values_share: Fraction = Fraction(1, 20)  # second moments of values
    table_sums_share: Fraction = Fraction(1, 20)  # of what indicators and values leave; so are the next two
    predicted_share: Fraction = Fraction(1, 50)
    most_check_share: Fraction = Fraction(1, 10)
    check_noise: float = 0.03  # over n, of the count of correct predictions
    most_values_noise: float = 0.5  # on second moments of rows of length 1, above which they are not released
    offset_corrections: int = 2  # by sums of predicted probabilities
    # a numeric target with gradient rounds: Adult (age), satimage (a pixel), `load_diabetes` and
    # `make_friedman1` of scikit-learn
    target_path: float = 0.035
    target_step: float = 3.5  # rows have norm at most about 1, so steps of 2 (1 + momentum) are stable
    wider_target_clips: tuple[tuple[float, float], ...] = ((2_000.0, 0.5), (6_000.0, 1.0))
    target_fourier: int = 200
    target_indicators_share: Fraction = Fraction(1, 10)
    target_share: Fraction = Fraction(1, 20)
    target_check_share: Fraction = Fraction(1, 20)


SETTLED = Constants()


@dataclass(frozen=True)
class Plan:
    """The public settings of a release.

    Attributes
    ----------
    method : which mechanism the model comes from.
    classes : number of classes; 1 for a numeric target.
    k : number of features.
    noise : of class sums and counts.
    shares : of the budget, by stage: `centre`, `distance`, `indicators`, `values`, `sums`, `target`, `loss`,
        `gradients`, `predicted`, `check`. Of epsilon, or of mu^2 with delta.
    sums_norm, sums_constant : clip norm of a record in class sums, and the share of it that counts it.
    scales : (k,) relative noise scales of class sums; None for identical noise.
    objective, rounds : the perturbed loss, or the gradient rounds.
    form, fourier, value_energy, bins : of a table's features: form, number of random Fourier features, weight
        of values beside bins, and most bins of a column with declared cuts; 0 for all of them.
    reasons : one sentence for each choice.
    """

    method: Method
    classes: int
    k: int
    noise: Mechanism
    shares: Mapping[str, Fraction] = field(default_factory=lambda: {"sums": Fraction(1)})
    sums_norm: float = 1.0
    sums_constant: float = 0.2
    scales: tuple[float, ...] | None = None
    objective: Objective | None = None
    rounds: GradientRounds | None = None
    form: TableForm | None = None
    fourier: int = 0
    value_energy: float = VALUE_ENERGY
    bins: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """Short description of the mechanism."""
        if self.objective is not None:
            return f"loss perturbed once, {self.objective.noise} noise, {self.k} features"
        sums = f"class sums of {self.k} features, {self.noise} noise"
        if self.rounds is None:
            return sums
        rounds = f"{self.rounds.rounds} gradient rounds"
        return (
            f"{sums}, then {rounds}"
            if self.form is None
            else f"{rounds}, clip norm {self.rounds.clip_norm:g}"
        )

    def _repr_html_(self) -> str:
        entries = [
            (name, value) for name, value in self.to_dict().items() if name not in ("reasons", "scales")
        ]
        facts = [("mechanism", self.summary), ("features", self.k), ("noise", self.noise)]
        why = Part("why", ("",), [(reason,) for reason in self.reasons])
        return box("Plan of a release", facts, [why, Part("settings", ("setting", "value"), entries)])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "method": self.method,
            "classes": self.classes,
            "k": self.k,
            "noise": self.noise,
            "shares": {name: str(share) for name, share in self.shares.items()},
            "sums_norm": self.sums_norm,
            "sums_constant": self.sums_constant,
            "scales": self.scales and list(self.scales),
            "objective": self.objective and self.objective.to_dict(),
            "rounds": self.rounds and self.rounds.to_dict(),
            "form": self.form,
            "fourier": self.fourier,
            "value_energy": self.value_energy,
            "bins": self.bins,
            "reasons": list(self.reasons),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Plan:
        """Read what `to_dict` wrote."""
        try:
            values = dict(raw)
            values["shares"] = {name: Fraction(share) for name, share in raw["shares"].items()}
            values["scales"] = raw["scales"] and tuple(raw["scales"])
            values["objective"] = raw["objective"] and Objective.from_dict(dict(raw["objective"]))
            values["rounds"] = raw["rounds"] and GradientRounds.from_dict(raw["rounds"])
            return cls(**values | {"reasons": tuple(raw["reasons"])})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"the plan of a release cannot be read: {error}") from None


def _checked(n: int, classes: int = 2, epsilon: float = 1.0, delta: float = 0.0) -> None:
    """Refuse quantities that no release can have."""
    if n < 1 or classes < 2:
        raise UserError(f"a plan needs at least one record and two classes, got {n} and {classes}")
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 <= delta < 1):
        raise UserError(f"a budget needs epsilon > 0 and 0 <= delta < 1, got {epsilon} and {delta}")


# ---- Images and vectors


def plan_arrays(
    features: Features,
    n: int,
    classes: int,
    epsilon: float,
    delta: float,
    neighbours: str,
    *,
    k: int | None = None,
    allocation: str | None = None,
    rounds: bool = True,
) -> Plan:
    """Choose settings for n records of images or vectors.

    Parameters
    ----------
    features : the public map of the records.
    n, classes : number of records, public or guessed, and of classes.
    epsilon, delta : the budget for one record.
    neighbours : `replace-one` or `add-remove`.
    k : number of features, instead of the planner's.
    allocation : noise over features: `identical`, or by the relevance of the public prior, `linear` or
        `optimal`. Gradient rounds have none, so that naming one gives class sums.
    rounds : whether the plan may have gradient rounds.
    """
    if not delta and suits_objective(n, epsilon, features, neighbours):
        return plan_features(n, classes, epsilon, neighbours, features, k, allocation or "identical")
    _checked(n, classes, epsilon, delta)
    if delta and rounds and allocation is None:
        factor = 2.0 if neighbours == "add-remove" else 1.0
        mu = factor * float(gaussian_mu(Fraction(str(epsilon)), Fraction(str(delta))))
        signal = n * mu / 2 * math.sqrt(1 - SETTLED.rounds_sums_share)
        if signal >= features.rounds_from:
            plan = _image_rounds(n, classes, signal, features)
            return plan if k is None else replace(plan, k=k)
    return plan_class_sums(features, n, classes, epsilon, delta, neighbours, k=k, allocation=allocation)


def plan_class_sums(
    features: Features,
    n: int,
    classes: int,
    epsilon: float,
    delta: float,
    neighbours: str,
    *,
    k: int | None = None,
    allocation: str | None = None,
) -> Plan:
    """Choose settings for class sums alone.

    Parameters
    ----------
    features, n, classes, epsilon, delta, neighbours, k, allocation : as for `plan_arrays`.
    """
    plan = _class_sums(n, classes, epsilon, delta, neighbours, features)
    if k is not None:
        plan = replace(plan, k=k)
    if allocation is None:
        return plan
    check_allocation(allocation)
    return replace(plan, scales=_class_sum_scales(allocation, features, plan.k))


def _class_sums(
    n: int, classes: int, epsilon: float, delta: float, neighbours: str, features: Features
) -> Plan:
    """As many features as the noise on class means allows."""
    _checked(n, classes, epsilon, delta)
    # An added or removed record changes one class; a replaced one may change two.
    factor = 2.0 if neighbours == "add-remove" else 1.0
    plain, settled = features.part(features.moments_width()), SETTLED
    width = plain.width
    enough = min(width, max(settled.enough_coordinates[0], min(width // 3, settled.enough_coordinates[1])))
    fewest = min(width, settled.fewest_features)
    if delta:
        mu = factor * float(gaussian_mu(Fraction(str(epsilon)), Fraction(str(delta))))
        # A coordinate of a class mean has noise of standard deviation 2 M / (mu n).
        energy = settled.most_noise_energy
        most = min(enough, settled.most_coordinates_delta)
        k = max(min(most, math.floor(energy * (n * mu / (2 * classes)) ** 2)), fewest)
        why = (
            f"{k} features: at least {fewest}, else noise of at most {energy:g} of a record's energy per "
            "class mean"
        )
        plan = Plan("class sums", classes, k, "gaussian", reasons=(why,))
    else:
        # Radial noise: a coordinate of a class mean has standard deviation 2 sqrt(k) M / (epsilon n). Beyond
        # those that are enough a coordinate adds little, so it must cost little.
        known, each = factor * epsilon * n, settled.records_per_coordinate
        spare = math.floor(known / (settled.records_per_spare_coordinate * classes))
        most = min(width, 3 * enough // 2, max(enough, spare))
        k = max(min(most, math.floor(known / (each * classes))), fewest)
        why = f"{k} features: epsilon n / ({each} classes), between {fewest} and {most}"
        plan = Plan("class sums", classes, k, "radial", sums_constant=0.1, reasons=(why,))
    return replace(plan, reasons=plan.reasons + _about_directions(features, k))


def _about_directions(features: Features, k: int) -> tuple[str, ...]:
    if features.prior is not None or k >= features.width:
        return ()
    return ("the coordinates are random directions: nothing public says which of the features matter",)


def _image_rounds(n: int, classes: int, signal: float, features: Features) -> Plan:
    """Gradient rounds: noise on a score depends on the path, not on k."""
    k = features.rounds_width(signal)
    which = "all of them" if k == features.width else "the leading ones, by the strength of the signal"
    rounds = plan_image_rounds(n, signal, features.path, features.clip_norm)
    reasons = (
        f"{k} features: {which}",
        f"{rounds.rounds} gradient rounds: the signal n mu / sensitivity is {signal:.0f}, at least "
        f"{features.rounds_from:g}",
        f"step size {rounds.step:g}: the path length is {features.path:g} times the signal",
        "a fortieth of the budget for class sums, which networks and checks need; features are taken around "
        "their mean",
    )
    sums, check = SETTLED.rounds_sums_share, SETTLED.rounds_check_share
    shares = {"sums": sums, "gradients": 1 - sums - check, "check": check}
    return Plan("gradient rounds", classes, k, "gaussian", shares, rounds=rounds, reasons=reasons)


def plan_features(
    n: int,
    classes: int,
    epsilon: float,
    neighbours: str,
    features: Features,
    k: int | None = None,
    allocation: str = "identical",
) -> Plan:
    """Choose the settings of a perturbed loss for n records of images or vectors.

    Parameters
    ----------
    n, classes, epsilon, neighbours, features, k, allocation : as for `plan_arrays`.
    """
    check_allocation(allocation)
    _checked(n, classes, epsilon)
    signal = n * epsilon * (2 if neighbours == "add-remove" else 1) * (2 if classes == 2 else 1)
    width = features.moments_width()
    wanted = max(SETTLED.fewest_features, round(SETTLED.features_per_signal * math.sqrt(signal)))
    count = min(width, wanted) if k is None else k
    objective = _objective(n, classes, "radial", norm=1.0, constant=0.2)
    plan = _perturbed(objective, count, epsilon, neighbours, SETTLED.image_ridge)
    if allocation != "identical":
        assert plan.objective is not None
        precision = precisions(features, count, allocation)
        plan = replace(plan, objective=replace(plan.objective, precision=precision))
    reasons = (
        f"{count} features: {SETTLED.features_per_signal:g} sqrt(n epsilon), between "
        f"{SETTLED.fewest_features} and {width}",
        *plan.reasons,
        f"{float(plan.shares['sums']):.0%} of epsilon for class sums, which networks and checks need, "
        f"{float(plan.shares['check']):.0%} to count correct predictions",
        *_about_directions(features, count),
    )
    return replace(plan, reasons=reasons)


def _class_sum_scales(allocation: str, features: Features, k: int) -> tuple[float, ...] | None:
    """Return the (k,) relative noise scales of class sums under an allocation by the public prior."""
    if allocation == "identical":
        return None
    if features.prior is None:
        raise UserError(f"allocation {allocation!r} needs features with a public prior; leave it out")
    prior = features.prior if features.width == k else narrow(features.prior, k)
    return prior_scales(allocation, prior)


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

    A public prior says how records vary around class means. Where noise is strong, a loss says less than it
    does, and class sums are enough.

    Parameters
    ----------
    n : number of records, public or guessed.
    epsilon : the budget for one record.
    features : the public map.
    neighbours : the relation.
    """
    signal = n * epsilon * (2 if neighbours == "add-remove" else 1)
    return features.prior is None or signal >= SETTLED.image_signal


# ---- The perturbed loss


def _objective(
    n: int, classes: int, noise: Mechanism, *, norm: float, constant: float, length: float | None = None
) -> Objective:
    """An objective whose ridge is not set; the constant is added to the norms."""
    cap = SETTLED.cap_of_many_classes if classes > 2 else SETTLED.cap if classes == 2 else SETTLED.target_cap
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


def _perturbed(
    objective: Objective,
    k: int,
    epsilon: float,
    neighbours: str,
    strength: float,
    form: TableForm | None = None,
    fourier: int = 0,
) -> Plan:
    """A plan whose ridge is in proportion to the noise in the loss, and costs little of epsilon.

    `strength` is the ridge over the noise on one weight, in the unit of `Constants`.
    """
    answer = "target" if objective.loss == "target" else "sums"
    shares = {answer: SETTLED.sums_share, "check": SETTLED.check_share}
    if form == "centred":
        shares = {"centre": SETTLED.centre_share, "distance": SETTLED.length_share} | shares
    shares["loss"] = 1 - sum(shares.values(), Fraction(0))
    left = epsilon * float(shares["loss"])
    wide = math.sqrt(k) if objective.noise == "radial" else math.sqrt(2.0)
    noise = float(objective.gradient_bound) * wide / left
    if neighbours == "add-remove":
        noise /= 2
    objective = replace(objective, ridge=_ridge(objective, strength * noise, left))
    laplace = objective.noise == "laplace"
    return Plan(
        "perturbed loss",
        objective.classes,
        k,
        "gaussian" if objective.noise == "gaussian" else "laplace" if laplace else "radial",
        shares,
        sums_norm=objective.norm - objective.constant if laplace else 1.0,
        sums_constant=0.5,
        objective=objective,
        form=form,
        fourier=fourier,
        reasons=(f"a ridge of {objective.ridge:.3g}, in proportion to the noise in the loss",),
    )


def _ridge(objective: Objective, wanted: float, epsilon: float) -> float:
    """Return a ridge that costs at most a quarter of epsilon."""
    least = 4 * float(objective.curvature) * objective.length**2 / epsilon
    return float(f"{max(wanted, least):.4g}")


# ---- Tables


def plan_table(table: TableDomain, n: int, epsilon: Fraction, delta: Fraction, fourier: int = 0) -> Plan:
    """Choose settings for n records of a declared table, with classes or a numeric target.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    fourier : random Fourier features; 0 leaves their number to the planner.
    """
    _checked(n)
    if not delta:
        return _perturbed_table(table, n, float(epsilon / table.contributions), fourier)
    if table.target is not None:
        return _target_rounds(table, n, epsilon, delta, fourier)
    return _table_rounds(table, n, epsilon, delta, fourier)


def _perturbed_table(table: TableDomain, n: int, epsilon: float, fourier: int) -> Plan:
    """Bins of columns where records are many, else one number a column; `epsilon` is for one record."""
    classes = len(table.label.classes) if table.target is None else 1
    indicators = TableIndicators(table)
    ordered = sum(is_ordered(column) for column in table.features)
    few = ordered == len(table.features) <= SETTLED.few_columns and not table.crosses
    bound = 0.5 if classes == 2 else 1.0
    times = 1 if table.neighbours == "add-remove" else 2
    each = n * epsilon / (max(classes, 2) * times * bound * indicators.width)
    enough = each >= (SETTLED.records_per_indicator if classes <= 2 else SETTLED.records_of_many_classes)
    if not fourier and not few and (enough or 2 * ordered < len(table.features)):
        blocks = len(indicators.blocks)
        unit = 1 / math.sqrt(blocks)
        objective = _objective(n, classes, "laplace", norm=math.sqrt(blocks), constant=unit / 2, length=1.0)
        bins = SETTLED.coarse_bins if each < SETTLED.fine_cuts else 0
        indicators = TableIndicators(with_bins(table, bins))
        runs = tuple((b.entries.start, b.entries.start + len(b.knots)) for b in indicators.blocks if b.knots)
        smoothness = min(1.0, SETTLED.smoothness * blocks) if runs else 0.0
        objective = replace(objective, smoothness=smoothness, runs=runs)
        least, most = SETTLED.indicator_ridges
        ridge = max(least, min(most, SETTLED.indicator_ridge * blocks))
        plan = _perturbed(objective, indicators.width, epsilon, table.neighbours, ridge, "indicators")
        plan = replace(plan, bins=bins)
        why = (
            f"{indicators.width} categories and bins of {blocks} columns: n epsilon is {each:.3g} for each "
            "class and bin"
        )
    else:
        count = fourier or (SETTLED.fourier if few else 0)
        objective = _objective(n, classes, "radial", norm=1.0, constant=0.3)
        width, ridge = indicators.inputs + count, SETTLED.centred_ridge
        plan = _perturbed(objective, width, epsilon, table.neighbours, ridge, "centred", count)
        why = (
            f"one number a column, {indicators.inputs} in all"
            + (f", and {count} random Fourier features" if count else "")
            + f": n epsilon is {each:.3g} for each class and bin, too few for bins"
            + (" of so few columns" if few else "")
        )
    spent = f"{float(plan.shares['loss']):.0%} of epsilon for the perturbed loss"
    return replace(plan, reasons=(why, *plan.reasons, spent))


def _table_rounds(table: TableDomain, n: int, epsilon: Fraction, delta: Fraction, fourier: int) -> Plan:
    """Gradient rounds of a table with classes."""
    values = values_share(table, n, epsilon, delta)
    left = 1 - SETTLED.indicators_share - values
    mu = float(gaussian_mu(epsilon, delta)) * math.sqrt(left * (1 - SETTLED.table_sums_share))
    signal = signal_of(n, mu, table.neighbours, table.contributions)
    categories_lead = mostly_categorical(table) and signal >= SETTLED.categorical_signal
    count = fourier or (0 if categories_lead else fourier_count(table, signal))
    check = check_share(signal, table.neighbours)
    shares = table_shares(SETTLED.indicators_share, values, SETTLED.table_sums_share, check)
    width = ScaledTable.width_of(table, count)
    scaled = (
        f"{count} random Fourier features of the ordered columns together"
        + ("; values weigh less than bins: most columns are categories" if categories_lead else ""),
        f"{_per_cent(SETTLED.indicators_share)} of the budget counts indicators, to centre "
        "and scale the columns"
        + (f"; {_per_cent(values)} goes to second moments, to take correlations out" if values else "")
        + f"; {_per_cent(SETTLED.table_sums_share)} of the rest goes to class sums",
        f"{_per_cent(check)} of the rest counts correct predictions",
    )
    plan = Plan(
        "gradient rounds",
        len(table.label.classes),
        width,
        "gaussian",
        shares,
        sums_constant=TABLE_CONSTANT,
        form="scaled",
        fourier=count,
        value_energy=SETTLED.categorical_energy if categories_lead else VALUE_ENERGY,
        reasons=scaled,
    )
    clip_norm = _wider(SETTLED.wider_clips, signal)
    longest = SETTLED.table_step
    rounds = plan_rounds(n, signal, path=SETTLED.table_path, longest_step=longest, clip_norm=clip_norm)
    rounds = fewer_rounds(rounds, len(table.features))
    reasons = (
        f"{rounds.rounds} gradient rounds with steps of {rounds.step:g}: the signal n mu / sensitivity is "
        f"{signal:.0f}",
        f"gradients are clipped at {rounds.clip_norm:g}",
        *scaled,
    )
    return replace(plan, rounds=rounds, reasons=reasons)


TABLE_CONSTANT = 0.7  # share of a record's length that counts it; 0.7 costs replace-one nothing


def table_shares(
    indicators: Fraction, values: Fraction, sums: Fraction, check: Fraction
) -> dict[str, Fraction]:
    """Return the shares of a table's stages; those of sums and check are of what indicators and values leave.

    Parameters
    ----------
    indicators, values : of the budget.
    sums, check : of the rest.
    """
    left, predicted = 1 - indicators - values, SETTLED.predicted_share
    shares = {
        "indicators": indicators,
        "values": values,
        "sums": left * sums,
        "gradients": left * (1 - sums - check - predicted),
        "predicted": left * predicted,
        "check": left * check,
    }
    return {name: share for name, share in shares.items() if share}


def _target_rounds(table: TableDomain, n: int, epsilon: Fraction, delta: Fraction, fourier: int) -> Plan:
    """Gradient rounds of the squared loss of a numeric target."""
    count = fourier or (SETTLED.target_fourier if any(map(is_ordered, table.features)) else 0)
    shares = {
        "indicators": SETTLED.target_indicators_share,
        "target": SETTLED.target_share,
        "check": SETTLED.target_check_share,
    }
    shares["gradients"] = 1 - sum(shares.values(), Fraction(0))
    mu = float(gaussian_mu(epsilon, delta)) * math.sqrt(shares["gradients"])
    signal = signal_of(n, mu, table.neighbours, table.contributions)
    # Small clip norms bias a skewed target's mean to its median, so a strong signal gets a larger one.
    clip_norm = _wider(SETTLED.wider_target_clips, signal)
    longest = SETTLED.target_step * clip_norm / SETTLED.clip_norm  # curvature does not depend on the clip
    rounds = plan_rounds(n, signal, path=SETTLED.target_path, longest_step=longest, clip_norm=clip_norm)
    reasons = (
        f"{rounds.rounds} gradient rounds of the squared loss with steps of {rounds.step:g}: the signal "
        f"n mu / sensitivity is {signal:.0f}",
        f"gradients are clipped at {clip_norm:g} standard deviations of the target, which makes the loss "
        "Huber's",
        f"{count} random Fourier features of the ordered columns together",
        "a tenth of the budget counts indicators, to centre and scale the columns; a twentieth finds the "
        "target's mean and spread; a twentieth compares the model with that mean",
    )
    return Plan(
        "gradient rounds",
        1,
        ScaledTable.width_of(table, count),
        "gaussian",
        shares,
        rounds=rounds,
        form="scaled",
        fourier=count,
        reasons=reasons,
    )


def _wider(clips: tuple[tuple[float, float], ...], signal: float) -> float:
    """Return the clip norm of gradients under a signal."""
    return max((norm for least, norm in clips if signal >= least), default=SETTLED.clip_norm)


def _per_cent(share: Fraction) -> str:
    return f"{float(100 * share):g} %"


def fourier_count(table: TableDomain, signal: float) -> int:
    """Return the number of random Fourier features: more for more columns, and most where noise allows it.

    Parameters
    ----------
    table : the declared table.
    signal : n mu over the sensitivity of a gradient, in clip norms.
    """
    ordered = sum(is_ordered(column) for column in table.features)
    fewest, most = SETTLED.fourier_range
    if not ordered or signal >= SETTLED.fourier_signal:
        return most if ordered else 0
    return min(max(SETTLED.fourier_each * ordered, fewest), most)


def check_share(signal: float, neighbours: str) -> Fraction:
    """Return the share for the count of correctly classified records: more where noise would hide it.

    Parameters
    ----------
    signal : n mu over the sensitivity of a gradient, in clip norms.
    neighbours : the relation; a replaced record moves the count by 1, a gradient by 2 clip norms.
    """
    clear = signal * (1.0 if neighbours == "add-remove" else 2.0) * SETTLED.check_noise
    wanted = Fraction(f"{1 / max(clear, 1e-3) ** 2:.3f}")
    return max(SETTLED.rounds_check_share, min(SETTLED.most_check_share, wanted))


def values_share(table: TableDomain, n: int, epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the share of the budget for second moments of values; 0 where noise hides them or few matter.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    """
    columns = value_columns(table)
    if not 2 <= columns <= MOST_COLUMNS or mostly_categorical(table):
        return Fraction(0)
    mu = float(gaussian_mu(epsilon, delta)) * math.sqrt(SETTLED.values_share) / table.contributions
    sd = (1.0 if table.neighbours == "add-remove" else math.sqrt(2.0)) / mu
    return SETTLED.values_share if noise_norm(sd, columns) <= SETTLED.most_values_noise * n else Fraction(0)


def value_columns(table: TableDomain) -> int:
    """Return the number of columns with a value: all but categories."""
    return sum(column.kind != "categorical" for column in table.features)


def mostly_categorical(table: TableDomain) -> bool:
    """Whether at least half of a table's columns are categories."""
    return 2 * sum(column.kind == "categorical" for column in table.features) >= len(table.features)


# ---- Gradient rounds: how many, and how long a step


def signal_of(n: int, mu: float, neighbours: str, contributions: int = 1) -> float:
    """Return n mu over the sensitivity, in clip norms.

    Parameters
    ----------
    n : number of records.
    mu : of the gradients' share of the budget.
    neighbours : the relation.
    contributions : records that one person may have.
    """
    return n * mu / ((1.0 if neighbours == "add-remove" else 2.0) * contributions)


def plan_rounds(
    n: int, signal: float, *, path: float, longest_step: float, clip_norm: float | None = None
) -> GradientRounds:
    """Choose gradient rounds for n records and a signal.

    The path grows with the signal: first by longer steps, then by more rounds, then by more momentum.

    Parameters
    ----------
    n : public number of records.
    signal : what `signal_of` returns.
    path : step x clip norm x rounds, over the signal.
    longest_step : the longest stable step on the mean gradient, for the default clip norm.
    clip_norm : L2 bound on one record's gradient.
    """
    norm = SETTLED.clip_norm if clip_norm is None else clip_norm
    longest = longest_step * SETTLED.clip_norm / norm
    return _with_steps(n, path * signal / norm, (longest, longest), SETTLED.table_rounds, norm)


def plan_image_rounds(n: int, signal: float, path: float, clip_norm: float | None = None) -> GradientRounds:
    """Choose gradient rounds for the features of n images, taken around their mean.

    More rounds come before longer steps, up to the most of `image_rounds`.

    Parameters
    ----------
    n, signal, path, clip_norm : as for `plan_rounds`.
    """
    norm = SETTLED.clip_norm if clip_norm is None else clip_norm
    steps = (SETTLED.short_image_step, SETTLED.image_step * SETTLED.clip_norm / norm)
    return replace(_with_steps(n, path * signal / norm, steps, SETTLED.image_rounds, norm), centred=True)


def _with_steps(
    n: int, length: float, steps: tuple[float, float], rounds_range: tuple[int, int], clip_norm: float
) -> GradientRounds:
    """Divide a length into rounds: steps up to the first length, more rounds, longer steps, more momentum."""
    usual, longest = steps
    fewest, most = rounds_range
    rounds, momentum = max(fewest, min(most, round(length / usual))), SETTLED.momentum[0]
    step = length / rounds
    if step > longest:
        momentum = min(SETTLED.momentum[1], 1 - (1 - momentum) * longest / step)
        step = longest
    return GradientRounds(rounds, clip_norm, float(f"{step:.6g}"), n, momentum=float(f"{momentum:.6g}"))


def fewer_rounds(plan: GradientRounds, columns: int = 0) -> GradientRounds:
    """Take fewer and longer steps over a table of many records, where a round takes long.

    The path is the same, so the noise on a score is. Momentum must not reach back over too many of the
    remaining rounds. Over a wide table of more than twice `many_records`, rounds are fewer still, and steps
    make up for less momentum as well, up to `wide_step`.

    Parameters
    ----------
    plan : the rounds of a table of fewer records.
    columns : of the table.
    """
    wide = columns >= SETTLED.wide_columns
    share, usual = SETTLED.many_records / plan.size, SETTLED.table_rounds[1]
    most = max(SETTLED.least_rounds, round(usual * share))
    if wide and share < 1 / 2:
        most = max(SETTLED.wide_least_rounds, round(usual * 2 * share * share))
    if plan.rounds <= most:
        return plan
    step = plan.step * plan.rounds / most
    momentum = min(plan.momentum, 1 - SETTLED.momentum_reach / most)
    if wide:
        longest = max(step, SETTLED.wide_step * SETTLED.clip_norm / plan.clip_norm)
        step = min(step * (1 - momentum) / (1 - plan.momentum), longest)
    return replace(plan, rounds=most, step=float(f"{step:.6g}"), momentum=float(f"{momentum:.6g}"))
