"""What all tests share: property tests that no busy machine fails, and one browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.report import chromium

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    """A page of a real browser."""
    executable = chromium.found()
    assert executable is not None
    with chromium.browser(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened
