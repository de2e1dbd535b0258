"""The model of a release for a numeric target, and whether it is better than the mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adlm.analyst.model import Model
from adlm.errors import UserError
from adlm.estimation.gradient_head import Head, final_head
from adlm.estimation.regression import ERROR_BOUND, TargetScale
from adlm.privacy.release import Release
from adlm.public.domain.column import Column
from adlm.public.domain.encoding import constant
from adlm.public.features.scaled_table import ScaledTable
from adlm.public.features.table_indicators import knots
from adlm.public.planning.regression import RegressionPlan

Reals = npt.NDArray[np.float64]
NETWORKS = {"rounds": "linear, by gradient rounds of the squared loss", "moments": "ridge, in closed form"}
DROWNED = (
    "the noise of this release leaves a model no better than the mean, so every record is given the mean; "
    "raise epsilon, or release more records"
)


@dataclass(frozen=True)
class Fit:
    """The model's fit to the private records, from charged, noisy sums of clipped squared errors.

    Attributes
    ----------
    of_model, of_mean : mean squared error in units of the target's variance, clipped at ERROR_BOUND a record.
    sd : standard deviation of the noise on each.
    """

    of_model: float
    of_mean: float
    sd: float

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
        """Standard deviation of `r2` by the noise, to first order; at most 1."""
        return min(self.sd * math.hypot(1.0, 1 - self.r2) / max(self.of_mean, self.sd), 1.0)


def target_scale(release: Release) -> TargetScale:
    """Mean and spread of the target, from the released counts of its bins."""
    return TargetScale.of(release.tensors["target"].numpy())


def regression_head(release: Release) -> Head:
    """Recompute the head of a release from its gradients, bit for bit the curator's; or read it."""
    if release.kind != "regression":
        raise UserError("this release has no numeric target; its model is a classifier")
    plan = RegressionPlan.from_dict(release.certificate.settings["plan"])
    if plan.method == "moments":
        weights = release.tensors["weights"].numpy().astype(np.float64)
        further = release.features().width - (weights.shape[1] - 1)  # coordinates without moments
        return Head(np.pad(weights, ((0, 0), (0, further))), plan.rounds.constant)
    return final_head(release.tensors["gradients"].numpy(), plan.rounds, np.zeros(1))


def estimated_fit(release: Release) -> Fit:
    """Return the released fit of the head. It was trained on these records, so this is optimistic."""
    settings = release.certificate.settings
    n = max(_records(release), 1.0)
    unit = n * float(settings["error_unit"])
    of_model, of_mean = (float(v) / unit for v in release.tensors["errors"])
    return Fit(max(of_model, 0.0), max(of_mean, 0.0), float(settings["sd_errors"]) / unit)


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
        "estimated_rmse": span * scale.spread * math.sqrt(fitted.of_model),
        "estimated_r2": fitted.r2,
        "estimated_r2_sd": fitted.r2_sd,
        "errors_clipped_at": ERROR_BOUND,
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
    Columns are drawn independently by their released shares; the target is the model's, with normal errors of
    the estimated size, within its bounds. The draws read the release alone.
    """
    features = release.features()
    assert isinstance(features, ScaledTable)
    generator = np.random.default_rng(seed)
    parts = [
        _encoded_column(column, features.frequencies[block.span], n, generator)
        for column, block in zip(features.table.features, features.indicators.blocks, strict=False)
    ]
    with torch.inference_mode():
        z = features(torch.from_numpy(np.hstack(parts).astype(np.float32)))
        model = train(release)
        middle = model.head(z.double())[:, 0]
    spread = float(model.training["estimated_rmse"])
    low, high = release.certificate.domain.target or (-math.inf, math.inf)
    noisy = middle + spread * torch.from_numpy(generator.standard_normal(n))
    return z, noisy.clamp(low, high)


def _encoded_column(column: Column, shares: Reals, n: int, generator: np.random.Generator) -> Reals:
    """Draw encoded values of one column by the released shares of its indicators."""
    entry = generator.choice(len(shares), n, p=shares / shares.sum())
    out = np.zeros((n, column.width))
    if column.kind == "categorical":
        out[np.arange(n), entry] = 1.0
        return out
    missing = (entry == len(shares) - 1) if column.missing is not None else np.zeros(n, dtype=bool)
    if column.kind == "boolean":
        out[:, 0] = np.minimum(entry, 1)
    else:
        cuts = [0.0, *(column.position(column.number(c)) for c in column.cuts)]
        low = np.array(cuts if column.cuts else knots(column))
        high = np.append(low[1:], 1.0)
        place = np.minimum(entry, len(low) - 1)
        out[:, 0] = low[place] + (high - low)[place] * generator.random(n)
    out[missing, 0] = constant(column)
    if column.missing is not None:
        out[:, 1] = missing
    return out
