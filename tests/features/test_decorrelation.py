"""Values of a table without their correlations: the matrix, its grid, its behaviour under noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import build
from adlm.features.tables import GRID, ScaledTable, TableIndicators, decorrelation, noise_norm, unit_rows


def two_columns() -> TableDomain:
    return TableDomain(
        (
            Column("a", "numeric", -5, 5),
            Column("b", "numeric", -5, 5),
            Column("y", "label", classes=("n", "y")),
        )
    )


def moments(correlation: float, columns: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Values with a common part, and the second moments of their rows of length 1."""
    rng = np.random.default_rng(0)
    common, own = rng.normal(size=(4000, 1)), rng.normal(size=(4000, columns))
    values = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
    rows = np.rint(unit_rows(values) * 1000)
    return values, np.triu((rows.T @ rows).astype(np.int64))


def test_correlations_are_gone_where_there_is_no_noise() -> None:
    values, triangle = moments(0.9, 20)
    matrix = decorrelation(triangle, 1.0)
    mixed = values @ matrix
    assert abs(np.asarray(np.corrcoef(values.T))[0, 1]) > 0.85
    assert abs(np.asarray(np.corrcoef(mixed.T))[0, 1]) < 0.3
    assert ((unit_rows(values) @ matrix) ** 2).sum(1).mean() == pytest.approx(1, rel=0.01)


def test_noise_that_drowns_the_moments_leaves_values_as_they_are() -> None:
    _, triangle = moments(0.9)
    assert np.array_equal(decorrelation(triangle, 1e10), np.eye(2))
    assert np.array_equal(decorrelation(-triangle, 1.0), np.eye(2))
    mild = decorrelation(triangle, float(np.trace(triangle)))  # the ridge is as long as the noise
    assert abs(mild[0, 1]) < abs(decorrelation(triangle, 1.0)[0, 1])


def test_the_matrix_lies_on_its_grid() -> None:
    found = decorrelation(moments(0.99)[1], 1.0) * GRID
    assert np.array_equal(found, np.rint(found))


@pytest.mark.parametrize("columns", [2, 20])
def test_the_norm_of_noise_is_about_what_is_drawn(columns: int) -> None:
    rng = np.random.default_rng(3)
    upper = np.triu(rng.normal(size=(200, columns, columns)), 1) / np.sqrt(2)
    drawn = upper + upper.transpose(0, 2, 1)
    drawn[:, range(columns), range(columns)] = rng.normal(size=(200, columns))
    norm = np.abs(np.linalg.eigvalsh(drawn)).max(1).mean()
    assert 0.7 < norm / noise_norm(1.0, columns) < 1.3


def test_a_map_with_a_matrix_is_built_again_and_knows_weights_of_columns() -> None:
    table = two_columns()
    even = [1 / len(b.entries) for b in TableIndicators(table).blocks for _ in b.entries]
    features = ScaledTable(table, even, fourier=5, mixing=decorrelation(moments(0.9)[1], 1.0))
    x = torch.rand(50, 2)
    again = build(features.spec())
    assert torch.equal(again(x), features(x))
    assert again.fingerprint() == features.fingerprint() != ScaledTable(table, even, fourier=5).fingerprint()
    assert features.mixing is not None
    weight = np.random.default_rng(0).normal(size=(2, features.width))
    values = features.values(x).numpy()
    mixed = values @ (features.mixing / GRID)
    assert np.allclose(mixed @ weight[:, :2].T, values @ features.of_values(weight)[:, :2].T)


def test_a_matrix_of_the_wrong_shape_is_refused() -> None:
    table = two_columns()
    even = [1 / len(b.entries) for b in TableIndicators(table).blocks for _ in b.entries]
    with pytest.raises(UserError, match="2 columns with a value"):
        ScaledTable(table, even, mixing=np.eye(3))
