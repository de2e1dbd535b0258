"""The linear model of a release: its head, whether it beats a constant, class weights, which columns matter.

Everything here reads released numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import TABLES, Features
from adlm.features.tables import CentredTable, IndicatorTable, ScaledTable
from adlm.model.estimates import ClassMeans, class_offsets, fit_discriminant, linear, shrunk_counts
from adlm.model.head import (
    ERROR_BOUND,
    GradientRounds,
    Head,
    TargetScale,
    calibrated_head,
    feature_mean,
    final_head,
    objective_head,
    tempered_head,
)
from adlm.model.model import Model
from adlm.privacy.release import Release

# ---- The head: recomputed from released gradients, read from the perturbed loss, or fitted to class sums


def has_head(release: Release) -> bool:
    """Whether a release has a linear model: that of gradient rounds or of a perturbed loss."""
    return "gradients" in release.tensors or "weights" in release.tensors


def released_head(release: Release) -> Head:
    """Return the linear model of a release, the same bits on every machine."""
    tensors, settings = release.tensors, release.certificate.settings
    if not has_head(release):
        raise UserError("this release has no linear model; one comes from its class sums")
    offsets, sd = np.zeros(1), float(settings.get("sd_sums", 0.0))
    if "class_sums" in tensors:
        sums, step = tensors["class_sums"].numpy(), tensors["step"].numpy()
        offsets = class_offsets(sums[:, 0], sd)
    if "weights" in tensors:
        constant = float(settings["objective"]["constant"])
        return objective_head(tensors["weights"].numpy(), offsets, constant)
    rounds = GradientRounds.from_dict(settings["rounds"])
    head = final_head(tensors["gradients"].numpy(), rounds, offsets)
    for row in tensors["predicted"].numpy() if "predicted" in tensors else ():
        head = calibrated_head(head, sums, step, sd, row, float(settings["sd_predicted"]))
    if "confidences" in tensors:
        counted = tensors["correct"].numpy(), tensors["confidences"].numpy()
        head = tempered_head(head, *counted, float(settings["sd_correct"]), sums, step)
    return head.uncentred(feature_mean(sums, step, sd)) if rounds.centred else head


def closed_form(release: Release, features: Features) -> nn.Linear:
    """The linear classifier of a release, in doubles: its released head, or that of its class sums."""
    if not has_head(release):
        return fit_discriminant(release.moments(), features.prior)
    head = released_head(release)
    return linear(torch.from_numpy(head.weight), torch.from_numpy(head.bias))


def closed_form_model(release: Release, features: Features) -> Model:
    """Make the linear model of a release; it predicts the majority class, or the mean, if noise dominates."""
    if release.kind == "regression":
        return target_model(release)
    head, summary = closed_form(release, features), _name(release)
    if below_majority_baseline(release):
        head = _majority_class_head(head, log_shares(release))
    if (accuracy := estimated_accuracy(release)) is not None:
        summary |= {"estimated_accuracy": accuracy[0], "estimated_accuracy_sd": accuracy[1]}
    if sentence := warning(release):
        summary["warning"] = sentence
    layer = linear(head.weight.float(), head.bias.float(), features.width)
    return Model(release.certificate, layer, {"kind": "linear"}, features, summary)


def _name(release: Release) -> dict[str, object]:
    """The first entries of a linear model's summary."""
    how = "by gradient rounds" if "gradients" in release.tensors else "in closed form"
    how = "from the loss perturbed once" if "weights" in release.tensors else how
    squared = (
        " of the squared loss" if release.kind == "regression" and "gradients" in release.tensors else ""
    )
    return {"network": f"linear, {how}{squared}", "epochs": 0}


# ---- Whether a model is better than the majority class. Where released numbers cannot decide, one sentence
# says so.

LEAST_EVIDENCE = 3.0  # standard deviations, below which a model is dominated by noise
_REMEDY = "raise epsilon, release more records, or declare fewer records per person"
NOISE_EXCEEDS_SIGNAL = (
    "the noise of this release leaves a model no better than the largest class, so every record is given "
    f"that class; {_REMEDY}"
)
UNSURE = (
    "the noise of this release is too large to tell whether its model is better than the largest class; "
    f"{_REMEDY}"
)
NOISE_EXCEEDS_TARGET = (
    "the noise of this release leaves a model no better than the mean, so every record is given the mean; "
    f"{_REMEDY}"
)
GAIN = 0.02  # expected gain on guessing, times the noise on the released accuracy
MOST_GAIN = 0.3
MOST_DOUBT = 0.05  # a model is kept if it is behind by less than this and the noise on its accuracy


def log_shares(release: Release) -> Tensor:
    """Log class shares from released counts, (M,)."""
    counts = release.tensors["class_sums"][:, 0].numpy()
    return torch.from_numpy(class_offsets(counts, float(release.certificate.settings["sd_sums"])))


def _released_accuracy(release: Release) -> tuple[float, float] | None:
    """Noisy share of private records that are classified correctly, and its noise's standard deviation."""
    if "correct" not in release.tensors:
        return None
    settings = release.certificate.settings
    each = max(release.moments().n, 1.0) * float(settings.get("correct_unit", 1))
    return float(release.tensors["correct"][0]) / each, float(settings["sd_correct"]) / each


def estimated_accuracy(release: Release) -> tuple[float, float] | None:
    """Accuracy of the model on the private records, and its noise's standard deviation; None if not released.

    It is charged like every release. The model was trained on these records, so it is slightly optimistic.
    """
    right = _released_accuracy(release)
    return None if right is None else (min(max(right[0], 0.0), 1.0), right[1])


def below_majority_baseline(release: Release) -> bool:
    """Whether a model of a release is expected to be no better than the largest class.

    By the released count of correctly classified records if there is one, else by how far the differences of
    class means exceed their noise. Where the largest class is hardly better than guessing by class shares, a
    model that may be no better is kept: it loses nothing.
    """
    right, shares = _released_accuracy(release), log_shares(release).exp()
    if right is None:
        moments = release.moments()
        to_lose = float(shares.max() - (shares**2).sum()) - moments.sd_counts / max(moments.n, 1.0)
        return to_lose > MOST_DOUBT and _evidence_of_means(release) < LEAST_EVIDENCE
    return _expected_accuracy(*right, shares) + min(right[1], MOST_DOUBT) < float(shares.max())


def _expected_accuracy(right: float, sd: float, shares: Tensor) -> float:
    """Return the posterior mean of a model's accuracy, given a noisy one and the (M,) class shares.

    A random model with the right class shares has the sum of their squares. The gain over that has an
    exponential prior, whose mean is smaller the more noise there is.
    """
    guessing = float((shares**2).sum())
    grid = np.linspace(guessing, 1.0, 513)
    gain = min(MOST_GAIN, GAIN / max(sd, 1e-9))
    log_odds = -(grid - guessing) / gain - 0.5 * ((grid - right) / max(sd, 1e-4)) ** 2
    odds = np.exp(log_odds - log_odds.max())
    return float(grid @ odds / odds.sum())


def _evidence_of_means(release: Release) -> float:
    """How far differences of class means exceed their noise, in standard deviations."""
    moments = release.moments()
    counts = shrunk_counts(moments)
    means = moments.sums / counts[:, None]
    centre = moments.sums.sum(0) / moments.n
    weighted = counts[:, None] * (means - centre) ** 2 / moments.n
    noise = (moments.sd_sums[None] ** 2 / counts[:, None]) / moments.n
    return float((weighted.sum() - noise.sum()) / (2 * (noise**2).sum()).sqrt().clamp_min(1e-300))


def warning(release: Release) -> str:
    """The warning about a model of this release, in one sentence; empty if none."""
    if below_majority_baseline(release):
        return NOISE_EXCEEDS_SIGNAL
    accuracy = estimated_accuracy(release)
    if accuracy is None:
        return UNSURE if _evidence_of_means(release) < LEAST_EVIDENCE else ""
    moments = release.moments()
    spread = math.hypot(accuracy[1], moments.sd_counts / max(moments.n, 1.0))
    beaten = accuracy[0] - LEAST_EVIDENCE * spread < float(log_shares(release).exp().max())
    return UNSURE if beaten else ""


def _majority_class_head(head: nn.Linear, shares: Tensor) -> nn.Linear:
    """Return a head that predicts the majority class for every record, and ranks records as before.

    Where classes differ in size, weights are shrunk until no score exceeds the majority class's.
    """
    reach = (head.weight - head.weight[int(shares.argmax())]).norm(dim=1)  # over rows of length 1
    behind = shares.max() - shares
    others = torch.arange(len(shares)) != int(shares.argmax())
    margin = (behind[others] / reach[others].clamp_min(1e-12)).min() if bool(others.any()) else behind.sum()
    return linear(head.weight * min(1.0, 0.99 * float(margin)), shares)


# ---- The model of a numeric target, and whether it is better than the mean


def target_scale(release: Release) -> TargetScale:
    """Mean and spread of the target, from the released counts of its bins."""
    return TargetScale.of(release.tensors["target"].numpy())


def target_model(release: Release) -> Model:
    """Make the model of a release for a numeric target: linear in public features, in the target's units."""
    scale, bounds = target_scale(release), release.certificate.domain.target
    assert bounds is not None
    features, head = release.features(), released_head(release)
    mean, sd = bounds[0] + (bounds[1] - bounds[0]) * scale.mean, (bounds[1] - bounds[0]) * scale.spread
    worse, fitted = _released_fit(release, scale)
    summary = _name(release) | {"target_mean": mean, "target_sd": sd}
    summary["estimated_rmse"] = sd * math.sqrt(fitted.pop("squared_error"))
    summary |= fitted
    weight, bias = torch.from_numpy(head.weight) * sd, torch.from_numpy(head.bias) * sd + mean
    if worse:
        summary["warning"] = NOISE_EXCEEDS_TARGET
        weight, bias = torch.zeros_like(weight), torch.full_like(bias, mean)
    layer = linear(weight, bias, features.width)
    return Model(release.certificate, layer, {"kind": "linear"}, features, summary)


def _released_fit(release: Release, scale: TargetScale) -> tuple[bool, dict[str, float]]:
    """Whether the model is no better than the mean, and its fit, from noisy sums of clipped squared errors.

    It was trained on these records, so the fit is optimistic. Errors are in units of the target's variance.
    How much the clip takes from the model's errors was not measured. It may be anything from nothing, if the
    model explains the extreme targets, to as much as from the mean's.
    """
    settings, counts = release.certificate.settings, release.tensors["target"].numpy()
    n = settings.get("n")
    records = float(n) if isinstance(n, int) else float(counts.sum()) / float(settings["target_unit"])
    unit = max(records, 1.0) * float(settings["error_unit"])
    of_model, of_mean = (max(float(v), 0.0) / unit for v in release.tensors["errors"])
    sd, limit = float(settings["sd_errors"]) / unit, float(settings.get("error_limit", ERROR_BOUND))
    shares = np.maximum(counts, 0) / max(float(np.maximum(counts, 0).sum()), 1.0)
    clipped_away = float(shares @ scale.beyond(limit))  # from the mean's error
    r2 = 1 - of_model / of_mean if of_mean > 0 else 0.0
    by_noise = sd * math.hypot(1.0, 1 - r2) / max(of_mean, sd)
    by_clip = clipped_away / math.sqrt(12) / max(of_mean + clipped_away, sd)
    return of_model >= of_mean, {
        "squared_error": of_model * (1 + clipped_away / of_mean if of_mean > 0 else 1.0),
        "estimated_r2": r2,
        "estimated_r2_sd": min(math.hypot(by_noise, by_clip), 1.0),
        "errors_clipped_at": limit,
    }


# ---- Classes that are too small for the noise, found from released counts. Noise is the same for every
# class, so a small class is learnt worst.

CLEAR = 2.0  # standard deviations of its noise that a count must exceed to be distinguished from 0
BELOW = 3.0  # standard deviations by which a count must stay below n / M for its class to be called small
MOST_SHOWN = 5  # classes that are listed one by one


@dataclass(frozen=True)
class SmallClass:
    """A class whose released count is not distinguishable from noise.

    Attributes
    ----------
    count : as it was released; it may be negative.
    sd : standard deviation of the noise on it.
    """

    name: str
    count: float
    sd: float

    def sentence(self) -> str:
        """Describe the problem and what to do about it."""
        return (
            f"class {self.name!r} may be smaller than its noise: released count {self.count:.0f}, noise of "
            f"standard deviation {self.sd:.0f}; do not expect it to be predicted well: raise epsilon, or "
            "merge classes"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"class": self.name, "count": round(self.count, 1), "sd": round(self.sd, 1)}


def small_classes(release: Release) -> tuple[SmallClass, ...]:
    """Return the classes that may be smaller than the noise on their count.

    A class is named when its released count is at most twice the standard deviation of its noise, and
    three of them below n / M. A release spends little on counts, so noise alone does not make a
    class small. Where that deviation exceeds n / M, all classes are named. A record release holds no counts,
    so none is named.
    """
    if "class_sums" not in release.tensors:
        return ()
    moments = release.moments()
    uniform, sd = max(moments.n, 0.0) / len(moments.counts), moments.sd_counts
    return tuple(
        SmallClass(name, count, sd)
        for name, count in zip(release.certificate.domain.classes, moments.counts.tolist(), strict=True)
        if uniform <= sd or (count <= CLEAR * sd and count + BELOW * sd < uniform)
    )


def sentences(small: Sequence[SmallClass]) -> list[str]:
    """One sentence for each small class, at most a few."""
    shown = [one.sentence() for one in small[:MOST_SHOWN]]
    rest = len(small) - len(shown)
    return [*shown, f"and so may be {rest} more classes"] if rest else shown


# ---- Public class weights, applied to a trained model at no privacy cost.
#
# A classifier that is trained with weights w_c on a loss of log probabilities has logits that are larger by
# log w_c than one trained without. So weights need no new release: they shift the biases of a release's
# model, and so the labels of the draws that a network is trained on. `balanced` takes them from counts that
# were released and charged already, never from records. Where class means are known, the biases make all
# scores equal half-way between them. The clip of gradient rounds shrinks scores, which log shares would not
# correct.

BALANCED = "balanced"
Weights = Mapping[str, float] | str


def parse_class_weight(text: str) -> Weights:
    """Read `balanced`, or `NAME=WEIGHT,NAME=WEIGHT`."""
    if text == BALANCED:
        return BALANCED
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.rpartition("=")
        try:
            weights[name.strip()] = float(weight)
        except ValueError:
            weights[""] = math.nan
    if "" in weights:
        raise UserError(f"class weights are {BALANCED}, or NAME=WEIGHT,... for some classes (got {text!r})")
    return weights


def class_weights(release: Release, given: Weights) -> dict[str, float]:
    """Return a weight for each class.

    Parameters
    ----------
    given : weights by class name, 1 for a class that is not named; or `balanced`, n / (M n_c) by the
        released counts n_c, in which a class has at least a fiftieth of a uniform share.
    """
    names = release.certificate.domain.classes
    if not names:
        raise UserError("class weights are for classes, and this release has a numeric target; omit them")
    if isinstance(given, str):
        if given != BALANCED:
            raise UserError(f"class weights are {BALANCED!r} or a weight for each name (got {given!r})")
        if "class_sums" not in release.tensors:
            raise UserError(
                "balanced class weights come from released counts, and this release has none; give a weight "
                "for each class from public shares"
            )
        shares = log_shares(release).exp().tolist()
        return {name: 1 / (len(names) * share) for name, share in zip(names, shares, strict=True)}
    by_name = {str(name): weight for name, weight in given.items()}
    for name, weight in by_name.items():
        if name not in names:
            raise UserError(f"there is no class {name!r} to weigh; the classes are {', '.join(names)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise UserError(f"the weight of class {name!r} must be a positive number (got {weight!r})")
    return {name: float(by_name.get(name, 1.0)) for name in names}


def weights_summary(weights: Mapping[str, float], given: Weights) -> dict[str, Any]:
    """What a model says of its class weights."""
    shown = {name: float(f"{weight:.6g}") for name, weight in weights.items()}
    return {"class_weight": given if isinstance(given, str) else "given", "class_weights": shown}


def with_class_weights(model: Model, release: Release, given: Weights) -> Model:
    """Return a linear model with class weights, at no privacy cost."""
    weights, layer, summary = class_weights(release, given), model.head, dict(model.training)
    assert isinstance(layer, nn.Linear)
    assert model.features is not None
    weight, bias = layer.weight, layer.bias + torch.tensor([math.log(w) for w in weights.values()])
    if given == BALANCED and release.kind == "moments":
        # Also for a model that was replaced by the largest class: plain accuracy is not the goal here.
        weight = closed_form(release, model.features).weight
        middle = ClassMeans.of(release.moments()).mean.mean(0)  # equal weight for every class
        bias = -(weight.double() @ middle[: weight.shape[1]])
        if summary.get("warning"):
            summary["warning"] = UNSURE
    head = linear(weight.to(layer.weight.dtype), bias, layer.in_features)
    return replace(model, head=head, training=summary | weights_summary(weights, given))


# ---- The relevance of a table's columns to the predictions of its release

FOURIER = "random Fourier features (numeric columns together)"


def has_columns(release: Release) -> bool:
    """Whether the relevance of a table's columns is known: by its linear model, or by private LRP."""
    spec = release.certificate.features.get("spec") or {}
    if spec.get("name") == "tabular":
        return "relevance" in release.tensors
    return spec.get("name") in TABLES


def relevance(release: Release) -> dict[str, float]:
    """Relevance of each original column to the prediction, as shares that sum to one.

    A record release carries private relevances (LRP, charged) of the numbers that encode a column: they are
    added up. In a linear model LRP gives a feature the relevance weight times value. A column's relevance is
    the standard deviation of its part of the scores, by the released spread of its features. Random Fourier
    features read all numeric columns, so they are one entry together.
    """
    if not has_columns(release):
        raise UserError("relevance by column is for a table's release; this one is of something else")
    found = _of_weights(release) if has_head(release) else _of_records(release)
    total = sum(found.values()) or 1.0
    return {name: value / total for name, value in found.items()}


def _of_weights(release: Release) -> dict[str, float]:
    """Standard deviation of each column's part of the scores."""
    features = release.features()
    assert isinstance(features, ScaledTable | CentredTable | IndicatorTable)
    weight = released_head(release).weight
    weight = weight - weight.mean(0) if len(weight) > 1 else weight
    if isinstance(features, ScaledTable):
        weight, variances = features.of_values(weight), features.variances()
    else:
        variances = features.variances(_means(release, features.width))
    spread: dict[str, float] = {}
    for feature, variance in enumerate(variances):
        name = features.column_of(feature) or FOURIER
        spread[name] = spread.get(name, 0.0) + float((weight[:, feature] ** 2).sum() * variance)
    return {name: math.sqrt(part) for name, part in spread.items()}


def _means(release: Release, width: int) -> npt.NDArray[np.float64]:
    """Released means of the features; even ones where no class sums were released."""
    if "class_sums" not in release.tensors:
        return np.full(width, 1 / width)
    moments = release.moments()
    return np.asarray(moments.sums.sum(0) / max(moments.n, 1.0))


def _of_records(release: Release) -> dict[str, float]:
    """Sums of the private relevances of the numbers that encode each column."""
    values = release.tensors["relevance"].flatten().clamp_min(0).tolist()
    table = TableDomain.from_dict(release.certificate.features["spec"]["table"])
    stops = np.cumsum([column.width for column in table.features])
    return {c.name: sum(values[stop - c.width : stop]) for c, stop in zip(table.features, stops, strict=True)}
