"""Reading lets no image and no vector change another; a loader that does is caught."""

from __future__ import annotations

import pytest
from tests.audit.reading import finding
from tests.audit.reading_inputs import FORMS, images_brightened_together, product, search_inputs

from adlm.audit.statistics import CAUGHT, HOLDS
from adlm.privacy.noise import Source


@pytest.mark.parametrize("name", FORMS)
def test_no_record_changes_another_in_any_form(name: str) -> None:
    found = search_inputs(FORMS[name], product, 60, seed=1)
    assert found.changed == 0, found.example
    assert found.compared > 20  # a reader that refuses everything would pass otherwise
    assert found.refused > 5  # and one that takes anything would not
    assert finding(name, found).verdict == HOLDS


def test_pixels_scaled_by_the_brightest_of_the_folder_are_caught() -> None:
    found = images_brightened_together(1, Source.seeded_with(0))
    assert found.verdict == CAUGHT
    assert found.lower > 2
