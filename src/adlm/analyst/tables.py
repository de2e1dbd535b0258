"""The classifier of a table's release: an additive model, one weight for each indicator of each column."""

from __future__ import annotations

from html import escape

import numpy as np
import torch

from adlm.analyst.evidence import (
    below_majority_baseline,
    estimated_accuracy,
    log_shares,
    majority_class_head,
    warning,
)
from adlm.analyst.model import Model
from adlm.analyst.regression import regression_head
from adlm.analyst.rounds import has_rounds, rounds_head
from adlm.errors import UserError
from adlm.estimation import additive
from adlm.estimation.additive_model import final_model
from adlm.estimation.discriminant import LinearHead
from adlm.privacy.release import Release
from adlm.public.domain.table import TableDomain
from adlm.public.features.scaled_table import ScaledTable
from adlm.public.features.tabular import TabularFeatures

ADDITIVE = "additive, in closed form"
FOURIER = "random Fourier features (numeric columns together)"


def fit(release: Release, *, stages: int = 3, noise_penalty: float = 1.0) -> LinearHead:
    """Fit the additive model of a table's release; settings here cost no privacy.

    Parameters
    ----------
    stages : use only the first stages of the release (1: scores alone).
    noise_penalty : strength of regularisation by the noise; 1 for its stated size.
    """
    if release.kind != "table":
        raise UserError("this release is not that of a table; train it in closed form without stages")
    features = release.features()
    assert isinstance(features, TabularFeatures)
    model = _model(release, features, stages=stages, noise_penalty=noise_penalty)
    return LinearHead(torch.from_numpy(model.weight / features.unit), torch.from_numpy(model.bias))


def _model(
    release: Release, features: TabularFeatures, *, stages: int = 3, noise_penalty: float = 1.0
) -> additive.Linear:
    return final_model(
        {name: value.numpy() for name, value in release.tensors.items()},
        release.certificate.settings,
        features.blocks,
        features.ordered,
        stages=stages,
        noise_penalty=noise_penalty,
    )


def train(release: Release, *, stages: int = 3, noise_penalty: float = 1.0) -> Model:
    """Make the model of a table's release."""
    head = fit(release, stages=stages, noise_penalty=noise_penalty)
    summary: dict[str, object] = {"network": ADDITIVE, "epochs": 0}
    if (accuracy := estimated_accuracy(release)) is not None:
        summary |= {"estimated_accuracy": accuracy[0], "estimated_accuracy_sd": accuracy[1]}
        if sentence := warning(release):
            summary["warning"] = sentence
        if below_majority_baseline(release):
            features = release.features()
            assert isinstance(features, TabularFeatures)
            shares = log_shares(release)
            ahead = (head.weight - head.weight[int(shares.argmax())]) * features.unit
            reach = sum(ahead[:, start:stop].amax(1).clamp_min(0) for start, stop in features.blocks)
            head = majority_class_head(head, shares, torch.as_tensor(reach))
    return Model(release.certificate, head.module(), {"kind": "linear"}, release.features(), summary)


def has_columns(release: Release) -> bool:
    """Whether the relevance of a table's columns is known: of an additive release, or by private LRP."""
    spec = release.certificate.features.get("spec") or {}
    return (
        release.kind == "table"
        or spec.get("name") == "scaled-table"
        or (spec.get("name") == "tabular" and "relevance" in release.tensors)
    )


def relevance(release: Release) -> dict[str, float]:
    """Relevance of each original column to the prediction, as shares that sum to one.

    A record release carries private relevances (LRP, charged) of the numbers that encode a column: they are
    added up. In a linear model LRP gives an indicator the relevance weight times value, so a column's
    relevance to a record is the weight of the indicator that is on. The result is its standard deviation
    over the records, with indicators counted by their *released* tables: it reads the release alone. Random
    Fourier features read all numeric columns, so they are one entry together.
    """
    if not has_columns(release):
        raise UserError("relevance by column is for a table's release; this one is of something else")
    if has_rounds(release) or release.kind == "regression":
        return _of_rounds(release)
    if release.kind != "table":
        return _of_records(release)
    features = release.features()
    assert isinstance(features, TabularFeatures)
    model = _model(release, features)
    records = release.tensors["records"].numpy()
    spread: dict[str, float] = {}
    for name, (start, stop) in zip(features.block_names, features.blocks, strict=True):
        mass = records[start:stop] / max(float(records[start:stop].sum()), 1.0)
        weight = model.weight[:, start:stop] - model.weight[:, start:stop].mean(0)
        middle = (weight * mass).sum(1, keepdims=True)
        variance = float((mass * (weight - middle) ** 2).sum())
        name = FOURIER if features.is_fourier(start) else name
        spread[name] = float(np.hypot(spread.get(name, 0.0), np.sqrt(variance)))
    return _shares(spread)


def _of_rounds(release: Release) -> dict[str, float]:
    """Standard deviation of each column's part of the scores, by the released spread of its features."""
    features = release.features()
    assert isinstance(features, ScaledTable)
    regression = release.kind == "regression"
    weight = regression_head(release).weight if regression else rounds_head(release).weight
    weight = features.of_values(weight if regression else weight - weight.mean(0))
    spread: dict[str, float] = {}
    for feature, variance in enumerate(features.variances()):
        name = features.column_of(feature) or FOURIER
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
