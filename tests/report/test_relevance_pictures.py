"""Heat maps: the right pixels in the right place, for grey, colour and row records."""

from __future__ import annotations

import io

import numpy as np
import pytest

from adlm.errors import UserError
from adlm.report.results import as_picture, heat_map, record_heat_maps


def test_a_heat_map_shows_each_feature_where_it_belongs() -> None:
    values = np.arange(6.0)
    shown = heat_map(values, (2, 3), "average").axes[0].images[0].get_array()
    assert shown is not None
    assert np.asarray(shown).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_records_stand_side_by_side_under_their_titles_and_can_be_written() -> None:
    figure = record_heat_maps(np.random.default_rng(0).uniform(size=(3, 4, 4)), (4, 4), ["7", "2", "1"])
    assert [axis.get_title() for axis in figure.axes if axis.get_title()] == ["7", "2", "1"]
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert buffer.getvalue().startswith(b"\x89PNG")


def test_channels_are_averaged_and_rows_stay_rows() -> None:
    assert as_picture(np.arange(8.0), (2, 2, 2)).tolist() == [[2, 3], [4, 5]]
    assert as_picture([1.0, 2.0], (2,)).shape == (1, 2)


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="one to three axes"):
        as_picture(np.zeros(16), (2, 2, 2, 2))
    with pytest.raises(UserError, match="a title for each"):
        record_heat_maps(np.zeros((2, 4)), (4,), ["one"])
