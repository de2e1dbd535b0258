"""The linear model of a release, whether it beats a constant prediction, and which columns matter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import TABLES, Features
from adlm.features.tables import CentredTable, IndicatorTable, ScaledTable
from adlm.model.estimates import class_offsets, fit_discriminant, linear, shrunk_counts
from adlm.model.head import (
    ERROR_BOUND,
    GradientRounds,
    Head,
    TargetScale,
    calibrated_head,
    feature_mean,
    final_head,
    objective_head,
)
from adlm.model.model import Model
from adlm.model.table_draws import draw_without_labels
from adlm.privacy.release import Release

# ---- Whether a model is better than the majority class, judged from the release alone.
#
# Where released numbers cannot decide, one sentence says so.

LEAST_EVIDENCE = 3.0  # standard deviations, below which a model is dominated by noise
NOISE_EXCEEDS_SIGNAL = (
    "the noise of this release leaves a model no better than the largest class, so every record is given "
    "that class; raise epsilon, release more records, or declare fewer records per person"
)
UNSURE = (
    "the noise of this release is too large to tell whether its model is better than the largest class; "
    "raise epsilon, release more records, or declare fewer records per person"
)
GAIN = 0.02  # expected gain on guessing, times the noise on the released accuracy
MOST_GAIN = 0.3
MOST_DOUBT = 0.05  # a model is kept if it is behind by less than this and the noise on its accuracy
GRID = 513  # accuracies of the posterior's grid


def log_shares(release: Release) -> Tensor:
    """Log class shares from released counts, (M,)."""
    counts = release.tensors["class_sums"][:, 0].numpy()
    return torch.from_numpy(class_offsets(counts, float(release.certificate.settings["sd_sums"])))


def _right(release: Release) -> tuple[float, float] | None:
    """Noisy share of private records that are classified correctly, and its noise's standard deviation."""
    if "correct" not in release.tensors:
        return None
    settings = release.certificate.settings
    n = max(release.moments().n, 1.0)
    return float(release.tensors["correct"][0]) / n, float(settings["sd_correct"]) / n


def estimated_accuracy(release: Release) -> tuple[float, float] | None:
    """Accuracy of the model on the private records, and its noise's standard deviation; None if not released.

    It is charged like every release. The model was trained on these records, so it is slightly optimistic.
    """
    right = _right(release)
    return None if right is None else (min(max(right[0], 0.0), 1.0), right[1])


def expected_accuracy(right: float, sd: float, shares: Tensor) -> float:
    """Return the posterior mean of a model's accuracy, given a noisy one and the class shares.

    A random model with the right class shares has the sum of their squares. The gain over that has an
    exponential prior, whose mean is smaller the more noise there is.

    Parameters
    ----------
    right : released accuracy, which noise may have moved below 0 or above 1.
    sd : standard deviation of that noise.
    shares : (M,) class shares.
    """
    guessing = float((shares**2).sum())
    grid = np.linspace(guessing, 1.0, GRID)
    gain = min(MOST_GAIN, GAIN / max(sd, 1e-9))
    log_odds = -(grid - guessing) / gain - 0.5 * ((grid - right) / max(sd, 1e-4)) ** 2
    odds = np.exp(log_odds - log_odds.max())
    return float(grid @ odds / odds.sum())


def below_majority_baseline(release: Release) -> bool:
    """Whether a model of a release is expected to be no better than the largest class.

    By the released count of correctly classified records if there is one, else by how far the differences of
    class means exceed their noise.
    """
    right = _right(release)
    if right is None:
        return _evidence_of_means(release) < LEAST_EVIDENCE
    shares = log_shares(release).exp()
    return expected_accuracy(*right, shares) + min(right[1], MOST_DOUBT) < float(shares.max())


def warning(release: Release) -> str:
    """The warning about a model of this release, in one sentence; empty if none."""
    if below_majority_baseline(release):
        return NOISE_EXCEEDS_SIGNAL
    accuracy = estimated_accuracy(release)
    if accuracy is not None:
        spread = math.hypot(accuracy[1], _count_spread(release))
        if accuracy[0] - LEAST_EVIDENCE * spread < float(log_shares(release).exp().max()):
            return UNSURE
    return ""


def _count_spread(release: Release) -> float:
    """Standard deviation of the noise on a class share."""
    moments = release.moments()
    return moments.sd_counts / max(moments.n, 1.0)


def majority_class_head(head: nn.Linear, shares: Tensor, reach: Tensor) -> nn.Linear:
    """Return a head that predicts the majority class for every record, and ranks records as before.

    Where classes differ in size, weights are shrunk until no score exceeds the majority class's.

    Parameters
    ----------
    head : one that is no better than the largest class.
    shares : (M,) log class shares.
    reach : (M,) largest lead of each score over the largest class's, without offsets.
    """
    behind = shares.max() - shares
    others = torch.arange(len(shares)) != int(shares.argmax())
    margin = (behind[others] / reach[others].clamp_min(1e-12)).min() if bool(others.any()) else behind.sum()
    return linear(head.weight * min(1.0, 0.99 * float(margin)), shares)


def _evidence_of_means(release: Release) -> float:
    moments = release.moments()
    counts = shrunk_counts(moments)
    means = moments.sums / counts[:, None]
    centre = moments.sums.sum(0) / moments.n
    weighted = counts[:, None] * (means - centre) ** 2 / moments.n
    noise = (moments.sd_sums[None] ** 2 / counts[:, None]) / moments.n
    return float((weighted.sum() - noise.sum()) / (2 * (noise**2).sum()).sqrt().clamp_min(1e-300))


# ---- The linear model of a release: recomputed from its gradients, or read from its perturbed loss.


def has_head(release: Release) -> bool:
    """Whether a release has a linear model: that of gradient rounds or of a perturbed loss."""
    return "gradients" in release.tensors or "weights" in release.tensors


def released_head(release: Release) -> Head:
    """Return the linear model of a release, bit for bit the one that its check counted."""
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
    return head.uncentred(feature_mean(sums, step, sd)) if rounds.centred else head


# ---- The model of a release for a numeric target, and whether it is better than the mean.

Reals = npt.NDArray[np.float64]
NOISE_EXCEEDS_TARGET = (
    "the noise of this release leaves a model no better than the mean, so every record is given the mean; "
    "raise epsilon, release more records, or declare fewer records per person"
)


@dataclass(frozen=True)
class Fit:
    """The model's fit to the private records, from charged, noisy sums of clipped squared errors.

    Attributes
    ----------
    of_model, of_mean : mean squared error in units of the target's variance, clipped at `limit` a record.
    sd : standard deviation of the noise on each.
    clipped_away : how much the clip takes from the mean's error, by the released counts of the target.
    limit : where squared errors are clipped.
    """

    of_model: float
    of_mean: float
    sd: float
    clipped_away: float = 0.0
    limit: float = ERROR_BOUND

    @property
    def worse_than_mean(self) -> bool:
        """Whether the model is no better than the mean."""
        return self.of_model >= self.of_mean

    @property
    def r2(self) -> float:
        """Share of the variance that the model explains, estimated under noise and clipping."""
        return 1 - self.of_model / self.of_mean if self.of_mean > 0 else 0.0

    @property
    def r2_sd(self) -> float:
        """Standard deviation of `r2` by noise and by errors that were clipped, to first order; at most 1.

        How much the clip takes from the model's errors was not measured. It may be anything from nothing, if
        the model explains the extreme targets, to as much as from the mean's.
        """
        by_noise = self.sd * math.hypot(1.0, 1 - self.r2) / max(self.of_mean, self.sd)
        whole = max(self.of_mean + self.clipped_away, self.sd)
        return min(math.hypot(by_noise, self.clipped_away / math.sqrt(12) / whole), 1.0)

    @property
    def model_error(self) -> float:
        """Mean squared error of the model before the clip, if that takes the same share of both errors."""
        return self.of_model * (1 + self.clipped_away / self.of_mean if self.of_mean > 0 else 1.0)


def target_scale(release: Release) -> TargetScale:
    """Mean and spread of the target, from the released counts of its bins."""
    return TargetScale.of(release.tensors["target"].numpy())


def estimated_fit(release: Release) -> Fit:
    """Return the released fit of the head. It was trained on these records, so this is optimistic."""
    settings = release.certificate.settings
    n = max(_records(release), 1.0)
    unit = n * float(settings["error_unit"])
    of_model, of_mean = (float(v) / unit for v in release.tensors["errors"])
    scale, limit = target_scale(release), float(settings.get("error_limit", ERROR_BOUND))
    counts, beyond = np.maximum(release.tensors["target"].numpy(), 0), scale.beyond(limit)
    return Fit(
        max(of_model, 0.0),
        max(of_mean, 0.0),
        float(settings["sd_errors"]) / unit,
        float(counts @ beyond / max(float(counts.sum()), 1.0)),
        limit,
    )


def _records(release: Release) -> float:
    """The number of records if public, else the sum of the released counts of the target's bins."""
    n = release.certificate.settings.get("n")
    unit = float(release.certificate.settings["target_unit"])
    return float(n) if isinstance(n, int) else float(release.tensors["target"].sum()) / unit


def target_model(release: Release) -> Model:
    """Make the model of a release for a numeric target: linear in public features, in the target's units."""
    scale, bounds = target_scale(release), release.certificate.domain.target
    assert bounds is not None
    fitted, features, head = estimated_fit(release), release.features(), released_head(release)
    mean, sd = bounds[0] + (bounds[1] - bounds[0]) * scale.mean, (bounds[1] - bounds[0]) * scale.spread
    summary: dict[str, object] = {
        "network": OBJECTIVE if "weights" in release.tensors else f"{ROUNDS} of the squared loss",
        "epochs": 0,
        "target_mean": mean,
        "target_sd": sd,
        "estimated_rmse": sd * math.sqrt(fitted.model_error),
        "estimated_r2": fitted.r2,
        "estimated_r2_sd": fitted.r2_sd,
        "errors_clipped_at": fitted.limit,
    }
    weight, bias = torch.from_numpy(head.weight) * sd, torch.from_numpy(head.bias) * sd + mean
    if fitted.worse_than_mean:
        summary["warning"] = NOISE_EXCEEDS_TARGET
        weight, bias = torch.zeros_like(weight), torch.full_like(bias, mean)
    layer = linear(weight, bias, features.width)
    return Model(release.certificate, layer, {"kind": "linear"}, features, summary)


def draw(release: Release, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw labelled feature vectors from a release with a numeric target, to train anything on.

    Parameters
    ----------
    release : of a table with a numeric target.
    n : how many.
    seed : of the draw.

    Returns
    -------
    z, targets : (n, k) feature vectors and (n,) targets in their units.

    Notes
    -----
    Columns are drawn by released numbers where there are any; the target is the model's, with normal errors
    of the estimated size, within its bounds. The draws read the release alone.
    """
    features, model = release.features(), target_model(release)
    z = draw_without_labels(release, features, n, torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        middle = model.head(z.double())[:, 0]
    spread = float(model.training["estimated_rmse"])
    low, high = release.certificate.domain.target or (-math.inf, math.inf)
    normal = np.random.default_rng(seed).standard_normal(n)
    return z, (middle + spread * torch.from_numpy(normal)).clamp(low, high)


# ---- The linear model of a release, with classes or a numeric target.

LINEAR = "linear, in closed form"
ROUNDS = "linear, by gradient rounds"
OBJECTIVE = "linear, from the loss perturbed once"


def closed_form_model(release: Release, features: Features) -> Model:
    """Make the model of a release of any kind but noisy records."""
    if release.kind == "regression":
        return target_model(release)
    head = usable_head(release, features)
    name = OBJECTIVE if "weights" in release.tensors else ROUNDS if has_head(release) else LINEAR
    summary: dict[str, object] = {"network": name, "epochs": 0}
    if (accuracy := estimated_accuracy(release)) is not None:
        summary |= {"estimated_accuracy": accuracy[0], "estimated_accuracy_sd": accuracy[1]}
    if sentence := warning(release):
        summary["warning"] = sentence
    layer = linear(head.weight.float(), head.bias.float(), features.width)
    return Model(release.certificate, layer, {"kind": "linear"}, features, summary)


def usable_head(release: Release, features: Features) -> nn.Linear:
    """The linear classifier of a release; the majority class where noise dominates."""
    head = closed_form(release, features)
    if not below_majority_baseline(release):
        return head
    shares = log_shares(release)
    ahead = (head.weight - head.weight[int(shares.argmax())]).norm(dim=1)  # over rows of length 1
    return majority_class_head(head, shares, ahead)


def closed_form(release: Release, features: Features) -> nn.Linear:
    """The linear classifier of a release, in doubles: its released head, or that of its class sums."""
    if not has_head(release):
        return fit_discriminant(release.moments(), features.prior)
    head = released_head(release)
    return linear(torch.from_numpy(head.weight), torch.from_numpy(head.bias))


# ---- The relevance of a table's columns to the predictions of its release.

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
    if has_head(release):
        return _of_weights(release)
    return _of_records(release)


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
        part = float((weight[:, feature] ** 2).sum() * variance)
        spread[name] = spread.get(name, 0.0) + part
    return _shares({name: float(np.sqrt(part)) for name, part in spread.items()})


def _means(release: Release, width: int) -> npt.NDArray[np.float64]:
    """Released means of the features; even ones where no class sums were released."""
    if "class_sums" not in release.tensors:
        return np.full(width, 1 / width)
    moments = release.moments()
    return np.asarray(moments.sums.sum(0) / max(moments.n, 1.0))


def _of_records(release: Release) -> dict[str, float]:
    values = release.tensors["relevance"].flatten().clamp_min(0).tolist()
    table = TableDomain.from_dict(release.certificate.features["spec"]["table"])
    added: dict[str, float] = {}
    for column in table.features:
        added[column.name] = sum(values[: column.width])
        del values[: column.width]
    return _shares(added)


def _shares(values: dict[str, float]) -> dict[str, float]:
    total = sum(values.values()) or 1.0
    return {name: value / total for name, value in values.items()}
