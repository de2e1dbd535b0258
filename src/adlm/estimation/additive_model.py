"""The additive model of a table's release, from all of its stages: for curator and analyst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.estimation import additive
from adlm.estimation.additive import Block, Linear
from adlm.estimation.additive_scaling import UNIT, Scaling


def final_model(
    tensors: Mapping[str, npt.NDArray[Any]],
    facts: Mapping[str, Any],
    blocks: Sequence[Block],
    ordered: Sequence[bool] = (),
    *,
    stages: int = 3,
    noise_penalty: float = 1.0,
) -> Linear:
    """Return the model of a release; settings here cost no privacy.

    Parameters
    ----------
    tensors : the released tensors, by name.
    facts : standard deviations of its noise, and the number of records.
    blocks, ordered : span of each column's indicators, and whether they are ordered.
    stages : use only the first stages of the release (1: scores alone).
    noise_penalty : strength of regularisation by the noise; 1 for its stated size.
    """
    offsets = tensors.get("offsets", tensors["prior"])  # absent in older files
    column_weights = additive.ColumnWeights.of(tensors["scores"], offsets, blocks)
    if stages < 2 or not {"gradient", "scaling"} & set(tensors):
        return column_weights.linear()
    n = float(facts.get("n_estimated", facts.get("told_n")))  # files of 0.1.0 have the second name
    if "scaling" in tensors:
        scaling, sd = Scaling(offsets), noise_penalty * float(facts["sd_scaling"]) / UNIT
        for row in tensors["scaling"]:
            scaling = scaling.moved(row, n * np.exp(tensors["prior"]), sd)
        return Linear(column_weights.linear().weight * scaling.factor, scaling.offsets)
    gradient, curvature = additive.derivatives(tensors)
    step = additive.newton(
        gradient, curvature, noise_penalty * facts["sd_gradient"], noise_penalty * facts["sd_curvature"]
    )
    model = column_weights.linear(step)
    if stages < 3 or "residuals" not in tensors:
        return model
    summary = additive.Scores(
        tensors["scores"], tensors["prior"], tensors["rates"], tensors["records"], n, offsets
    )
    change = additive.residual_step(
        tensors["residuals"] * float(tensors["step_residuals"][0]),
        noise_penalty * float(facts["sd_residuals"]),
        summary,
        _slope(summary, float(curvature[0, 0])),
        blocks,
        ordered,
    )
    return Linear(model.weight + change, model.bias)


def _slope(summary: additive.Scores, curvature: float) -> float:
    """Unexplained share of the label's variance, from the curvature in the first offset."""
    share = float(np.exp(summary.prior[1]))
    return min(max(curvature / summary.n / (share * (1 - share)), 0.2), 1.0)
