"""A real Ray cluster of two workers on this machine, for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adlm.engine import Engine


@pytest.fixture(scope="module")
def cluster() -> Iterator[Engine]:
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'adlm[ray]')")
    from adlm.engine.ray import RayEngine

    engine = RayEngine(workers=2, store_bytes=200 << 20)
    yield engine
    engine.close()
