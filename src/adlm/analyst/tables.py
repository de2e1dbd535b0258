"""The relevance of a table's columns to the predictions of its release."""

from __future__ import annotations

from html import escape

import numpy as np
import numpy.typing as npt

from adlm.analyst.regression import regression_head
from adlm.analyst.rounds import has_rounds, rounds_head
from adlm.errors import UserError
from adlm.privacy.release import Release
from adlm.public.domain.table import TableDomain
from adlm.public.features import TABLES
from adlm.public.features.scaled_table import ScaledTable
from adlm.public.features.tables import CentredTable, IndicatorTable

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
    if has_rounds(release) or release.kind == "regression":
        return _of_weights(release)
    return _of_records(release)


def _of_weights(release: Release) -> dict[str, float]:
    """Standard deviation of each column's part of the scores."""
    features = release.features()
    assert isinstance(features, ScaledTable | CentredTable | IndicatorTable)
    regression = release.kind == "regression"
    weight = regression_head(release).weight if regression else rounds_head(release).weight
    weight = weight if regression else weight - weight.mean(0)
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
