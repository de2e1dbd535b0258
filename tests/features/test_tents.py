"""Overlapping cells: weights, and averages over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adlm.features.tents import tent_means, tent_shares, tents


@pytest.mark.parametrize(("size", "cells"), [(27, 3), (11, 3), (8, 4), (5, 1), (3, 3)])
def test_weights_of_a_place_are_shared_between_two_neighbouring_cells(size: int, cells: int) -> None:
    weights = tents(size, cells)
    assert (weights == np.rint(weights)).all()
    assert (weights >= 0).all()
    np.testing.assert_array_equal(weights.sum(0), 2.0 * size)
    assert ((weights > 0).sum(0) <= 2).all()
    np.testing.assert_array_equal(weights, weights[::-1, ::-1])


def test_an_average_over_cells_is_a_weighted_sum_place_by_place() -> None:
    maps = torch.rand((2, 3, 7, 9), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = tent_means(maps, 3)
    rows, columns = tent_shares(7, 3), tent_shares(9, 3)
    for row in range(3):
        for column in range(3):
            slow = sum(
                maps[:, :, i, j] * rows[row, i] * columns[column, j] for i in range(7) for j in range(9)
            )
            torch.testing.assert_close(found[:, :, row, column], slow)


def test_a_shift_moves_less_than_with_cells_that_end_abruptly() -> None:
    maps = torch.zeros(1, 1, 27, 27)
    maps[..., 13, 8] = 1.0
    shifted = maps.roll(1, 3)
    soft = tent_means(maps, 3) - tent_means(shifted, 3)
    hard = torch.nn.functional.adaptive_avg_pool2d(maps - shifted, 3)
    assert float(soft.norm()) < 0.3 * float(hard.norm())
