"""The model of a release for a numeric target, and whether it is better than the mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adlm.analyst.model import Model
from adlm.analyst.table_draws import draw_without_labels
from adlm.errors import UserError
from adlm.estimation.gradient_head import Head, final_head, objective_head
from adlm.estimation.regression import ERROR_BOUND, TargetScale
from adlm.privacy.release import Release
from adlm.public.planning.regression import RegressionPlan

Reals = npt.NDArray[np.float64]
NETWORKS = {
    "objective": "linear, from the loss perturbed once",
    "rounds": "linear, by gradient rounds of the squared loss",
}
DROWNED = (
    "the noise of this release leaves a model no better than the mean, so every record is given the mean; "
    "raise epsilon, or release more records"
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


def regression_head(release: Release) -> Head:
    """Recompute the head of a release from its gradients, bit for bit the curator's; or read it."""
    if release.kind != "regression":
        raise UserError("this release has no numeric target; its model is a classifier")
    if "objective" in release.certificate.settings:
        constant = float(release.certificate.settings["objective"]["constant"])
        return objective_head(release.tensors["weights"].numpy(), np.zeros(1), constant)
    plan = RegressionPlan.from_dict(release.certificate.settings["plan"])
    return final_head(release.tensors["gradients"].numpy(), plan.rounds, np.zeros(1))


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


def train(release: Release) -> Model:
    """Make the model of a release for a numeric target: linear in public features, in the target's units."""
    scale, bounds = target_scale(release), release.certificate.domain.target
    assert bounds is not None
    span, fitted = bounds[1] - bounds[0], estimated_fit(release)
    features, head = release.features(), regression_head(release)
    summary: dict[str, object] = {
        "network": NETWORKS[str(release.certificate.settings["method"])],
        "epochs": 0,
        "target_mean": bounds[0] + span * scale.mean,
        "target_sd": span * scale.spread,
        "estimated_rmse": span * scale.spread * math.sqrt(fitted.model_error),
        "estimated_r2": fitted.r2,
        "estimated_r2_sd": fitted.r2_sd,
        "errors_clipped_at": fitted.limit,
    }
    linear = nn.Linear(features.width, 1, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(head.weight) * (span * scale.spread))
        linear.bias.copy_(torch.from_numpy(head.bias) * (span * scale.spread) + bounds[0] + span * scale.mean)
        if fitted.worse_than_mean:
            summary["warning"] = DROWNED
            linear.weight.zero_()
            linear.bias.fill_(bounds[0] + span * scale.mean)
    return Model(release.certificate, linear, {"kind": "linear"}, features, summary)


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
    features, model = release.features(), train(release)
    z = draw_without_labels(release, features, n, torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        middle = model.head(z.double())[:, 0]
    spread = float(model.training["estimated_rmse"])
    low, high = release.certificate.domain.target or (-math.inf, math.inf)
    normal = np.random.default_rng(seed).standard_normal(n)
    return z, (middle + spread * torch.from_numpy(normal)).clamp(low, high)
