"""The classifier of a table's release: an additive model, one weight for each cell of each column."""

from __future__ import annotations

from html import escape

import numpy as np
import torch

from adlm.analyst.model import Model
from adlm.analyst.regression import is_regression, regression_head
from adlm.analyst.rounds import has_rounds, rounds_head
from adlm.errors import UserError
from adlm.estimation import additive
from adlm.estimation.discriminant import LinearHead
from adlm.privacy.release import Release
from adlm.public.domain.table import TableDomain
from adlm.public.features.scaled_table import ScaledTable
from adlm.public.features.tabular import TabularFeatures

ADDITIVE = "additive, in closed form"
WAVES = "waves (numeric columns together)"


def fit(release: Release, *, stages: int = 3, noise_penalty: float = 1.0) -> LinearHead:
    """Fit the additive model of a table's release; any choice here is free.

    Parameters
    ----------
    stages : use only the first stages of the release (1: scores alone).
    noise_penalty : how strongly the noise holds the steps back; 1 takes its stated size.
    """
    if release.kind != "table":
        raise UserError("this release is not that of a table; train it in closed form without stages")
    features = release.features()
    assert isinstance(features, TabularFeatures)
    model = _linear(release, features, stages, noise_penalty)
    return LinearHead(torch.from_numpy(model.weight / features.unit), torch.from_numpy(model.bias))


def train(release: Release, *, stages: int = 3, noise_penalty: float = 1.0) -> Model:
    """Make the model of a table's release."""
    head = fit(release, stages=stages, noise_penalty=noise_penalty)
    summary = {"network": ADDITIVE, "epochs": 0}
    return Model(release.certificate, head.module(), {"kind": "linear"}, release.features(), summary)


def _linear(
    release: Release, features: TabularFeatures, stages: int, noise_penalty: float
) -> additive.Linear:
    settings = release.certificate.settings
    tensors = {name: value.numpy() for name, value in release.tensors.items()}
    weighing = additive.Weighing.of(tensors["scores"], tensors["prior"], features.blocks)
    if stages < 2 or "gradient" not in tensors:
        return weighing.linear()
    gradient, curvature = additive.derivatives(tensors)
    step = additive.newton(
        gradient, curvature, noise_penalty * settings["sd_gradient"], noise_penalty * settings["sd_curvature"]
    )
    model = weighing.linear(step)
    if stages < 3 or "residuals" not in tensors:
        return model
    n = float(settings.get("n_estimated", settings.get("told_n")))  # files of 0.1.0 have the second name
    summary = additive.Scores(tensors["scores"], tensors["prior"], tensors["rates"], tensors["records"], n)
    change = additive.residual_step(
        tensors["residuals"] * float(tensors["step_residuals"][0]),
        noise_penalty * float(settings["sd_residuals"]),
        summary,
        _slope(summary, float(curvature[0, 0])),
        features.blocks,
        features.ordered,
    )
    return additive.Linear(model.weight + change, model.bias)


def _slope(summary: additive.Scores, curvature: float) -> float:
    """How much of the variance of the label is left, from the curvature in the first offset."""
    share = float(np.exp(summary.prior[1]))
    return min(max(curvature / summary.n / (share * (1 - share)), 0.2), 1.0)


def has_columns(release: Release) -> bool:
    """Whether the relevance of a table's columns can be told: of an additive release, or by private LRP."""
    spec = release.certificate.features.get("spec") or {}
    return (
        release.kind == "table"
        or spec.get("name") == "scaled-table"
        or (spec.get("name") == "tabular" and "relevance" in release.tensors)
    )


def relevance(release: Release) -> dict[str, float]:
    """How much each original column moves the prediction, as shares that sum to one.

    A record release carries private relevances (LRP, charged) of the numbers that encode a column: they are
    added up. In a linear model LRP gives a cell the relevance weight times value, so a column's relevance to
    a record is the weight of the cell that is on. What is shown is its standard deviation over the records,
    cells counted by their *released* tables: it reads the release alone and costs nothing. Random Fourier
    features read all numeric columns, so they are shown together, as `waves`.
    """
    if not has_columns(release):
        raise UserError("relevance by column is for a table's release; this one is of something else")
    if has_rounds(release) or is_regression(release):
        return _of_rounds(release)
    if release.kind != "table":
        return _of_records(release)
    features = release.features()
    assert isinstance(features, TabularFeatures)
    model = _linear(release, features, 3, 1.0)
    records = release.tensors["records"].numpy()
    spread: dict[str, float] = {}
    for name, (start, stop) in zip(features.block_names, features.blocks, strict=True):
        mass = records[start:stop] / max(float(records[start:stop].sum()), 1.0)
        weight = model.weight[:, start:stop] - model.weight[:, start:stop].mean(0)
        middle = (weight * mass).sum(1, keepdims=True)
        variance = float((mass * (weight - middle) ** 2).sum())
        name = WAVES if features.is_wave(start) else name
        spread[name] = float(np.hypot(spread.get(name, 0.0), np.sqrt(variance)))
    return _shares(spread)


def _of_rounds(release: Release) -> dict[str, float]:
    """Standard deviation of each column's part of the scores, by the released spread of its features."""
    features = release.features()
    assert isinstance(features, ScaledTable)
    weight = regression_head(release).weight if is_regression(release) else rounds_head(release).weight
    weight = weight if is_regression(release) else weight - weight.mean(0)
    spread: dict[str, float] = {}
    for feature, variance in enumerate(features.variances()):
        name = features.column_of(feature) or WAVES
        part = float((weight[:, feature] ** 2).sum() * variance)
        spread[name] = spread.get(name, 0.0) + part
    return _shares({name: float(np.sqrt(part)) for name, part in spread.items()})


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


def relevance_picture(release: Release) -> str:
    """Draw the relevance of each column as an SVG: one bar each, the most relevant first."""
    shares = sorted(relevance(release).items(), key=lambda item: -item[1])
    longest = max(share for _, share in shares) or 1.0
    left, line, width = 220, 22, 640
    bars = []
    for row, (name, share) in enumerate(shares):
        y, length = 30 + row * line, (width - left - 70) * share / longest
        bars.append(
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{left}" y="{y + 3}" width="{length:.1f}" height="{line - 8}" fill="#3b6ea5"/>'
            f'<text x="{left + length + 6:.1f}" y="{y + 14}">{100 * share:.1f}%</text>'
        )
    height = 40 + len(shares) * line
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="sans-serif" font-size="12"><title>Relevance of each column</title>'
        f'<text x="{left}" y="18" font-weight="bold">share of what moves the prediction</text>'
        f"{''.join(bars)}</svg>"
    )
