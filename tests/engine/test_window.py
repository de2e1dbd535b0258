"""A part of the records is taken so that one record more or less changes that record alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.data import datasets
from adlm.engine.records import window

TRAIN = datasets.load("digits", "train")


@given(st.integers(0, 399), st.integers(1, 500))
def test_under_add_remove_no_record_decides_about_another(missing: int, limit: int) -> None:
    """Records read of 400, and of 399: they differ by the missing one or not at all."""
    x, y = TRAIN.x[:400], TRAIN.y[:400]
    whole = window(x, y, limit, neighbours="add-remove", size=400)
    fewer_x, fewer_y = np.delete(x, missing, axis=0), np.delete(y, missing)
    without = window(fewer_x, fewer_y, limit, neighbours="add-remove", size=400)
    places = np.delete(np.arange(400), missing)[without]
    assert set(whole) - {missing} == set(places)


def test_the_first_records_under_add_remove_would_let_another_in() -> None:
    """What --limit did before: two records change where one is charged."""
    places = np.arange(400)
    assert len(set(places[:100]) ^ set(np.delete(places, 3)[:100])) == 2


@pytest.mark.parametrize("limit", [100, 500, 1000])
def test_about_as_many_are_read_as_were_asked_for(limit: int) -> None:
    """Five standard deviations: the hash is fixed, so this holds always or never."""
    kept = window(TRAIN.x, TRAIN.y, limit, neighbours="add-remove", size=len(TRAIN))
    assert abs(len(kept) - limit) < 5 * limit**0.5


def test_under_replace_one_the_first_places_are_read() -> None:
    assert window(TRAIN.x, TRAIN.y, 7, neighbours="replace-one", size=1).tolist() == list(range(7))
    assert len(window(TRAIN.x, TRAIN.y, 10**6, neighbours="replace-one", size=1)) == len(TRAIN)
    assert len(window(TRAIN.x, TRAIN.y, 10**6, neighbours="add-remove", size=10)) == len(TRAIN)
