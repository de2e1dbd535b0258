"""The classifier of a table's release: an additive model, one weight for each cell of each column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from adlm import additive
from adlm.analyst.model import Model
from adlm.errors import UserError
from adlm.public.features.tabular import TabularFeatures
from adlm.release import Release

ADDITIVE = "additive, in closed form"


@dataclass(frozen=True)
class Head:
    """A linear classifier of features: logits z @ weight' + bias."""

    weight: Tensor  # (M, k) float64
    bias: Tensor  # (M,) float64


def is_additive(release: Release) -> bool:
    """Whether a release is that of a table, in stages."""
    return release.certificate.settings.get("model") == "additive"


def fit(release: Release, *, stages: int = 3, hold_back: float = 1.0) -> Head:
    """Fit the additive model of a table's release; any choice here is free.

    Parameters
    ----------
    stages : use only the first stages of the release (1: scores alone).
    hold_back : how strongly the noise holds the steps back; 1 takes its stated size.
    """
    if not is_additive(release):
        raise UserError("this release is not that of a table; train it in closed form without stages")
    features = release.features()
    assert isinstance(features, TabularFeatures)
    model = _linear(release, features, stages, hold_back)
    return Head(torch.from_numpy(model.weight / features.unit), torch.from_numpy(model.bias))


def train(release: Release, *, stages: int = 3, hold_back: float = 1.0) -> Model:
    """Make the model of a table's release."""
    head = fit(release, stages=stages, hold_back=hold_back)
    linear = nn.Linear(head.weight.shape[1], head.weight.shape[0])
    with torch.no_grad():
        linear.weight.copy_(head.weight.float())
        linear.bias.copy_(head.bias.float())
    told = {"network": ADDITIVE, "epochs": 0}
    return Model(release.certificate, linear, {"kind": "linear"}, release.features(), told)


def _linear(release: Release, features: TabularFeatures, stages: int, hold_back: float) -> additive.Linear:
    settings = release.certificate.settings
    tensors = {name: value.numpy() for name, value in release.tensors.items()}
    weighing = additive.Weighing.of(tensors["scores"], tensors["prior"], features.blocks)
    if stages < 2 or "gradient" not in tensors:
        return weighing.linear()
    upper = tensors["curvature"] * float(tensors["step_curvature"][0]) ** 2
    curvature = upper + np.triu(upper, 1).T
    gradient = tensors["gradient"] * float(tensors["step_gradient"][0])
    step = additive.newton(
        gradient, curvature, hold_back * settings["sd_gradient"], hold_back * settings["sd_curvature"]
    )
    model = weighing.linear(step)
    if stages < 3 or "residuals" not in tensors:
        return model
    told = additive.Scores(
        tensors["scores"], tensors["prior"], tensors["rates"], tensors["records"], float(settings["told_n"])
    )
    change = additive.residual_step(
        tensors["residuals"] * float(tensors["step_residuals"][0]),
        hold_back * float(settings["sd_residuals"]),
        told,
        _slope(told, float(curvature[0, 0])),
        features.blocks,
        features.ordered,
    )
    return additive.Linear(model.weight + change, model.bias)


def _slope(told: additive.Scores, curvature: float) -> float:
    """How much of the variance of the label is left, from the curvature in the first offset."""
    share = float(np.exp(told.prior[1]))
    return min(max(curvature / told.n / (share * (1 - share)), 0.2), 1.0)


def relevance(release: Release) -> dict[str, float]:
    """How much each original column moves the prediction: the spread of its weights over its cells.

    It reads the release alone, so it is free to show: the share of each column in the sum over columns of
    the standard deviation of its contribution, cells weighted by their released counts.
    """
    features = release.features()
    if not isinstance(features, TabularFeatures):
        raise UserError("relevance by column is for tables; this release is of something else")
    model = _linear(release, features, 3, 1.0)
    records = release.tensors["records"].numpy()
    spread: dict[str, float] = {}
    for name, (start, stop) in zip(features.block_names, features.blocks, strict=True):
        mass = records[start:stop] / max(float(records[start:stop].sum()), 1.0)
        weight = model.weight[:, start:stop] - model.weight[:, start:stop].mean(0)
        middle = (weight * mass).sum(1, keepdims=True)
        spread[name] = float(np.sqrt((mass * (weight - middle) ** 2).sum(1).sum()))
    total = sum(spread.values()) or 1.0
    return {name: value / total for name, value in spread.items()}
