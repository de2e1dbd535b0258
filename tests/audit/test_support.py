"""The support attack breaks textbook floating-point noise with 1,000 outputs and sees nothing in ours."""

from __future__ import annotations

import numpy as np
import pytest

from adlm.audit.finding import CAUGHT, HOLDS
from adlm.audit.support import exact_laplace, low_byte, naive_laplace, reachable, support
from adlm.curator.noise import Source


@pytest.mark.parametrize("scale", [1.0, 3.7, 4.0])
def test_floating_point_laplace_is_caught_at_a_thousand(scale: float) -> None:
    finding = support(
        naive_laplace(scale, np.random.default_rng(1)), "float", 1000, scale=scale, control=True
    )
    assert finding.verdict == CAUGHT
    assert finding.lower > 2


def test_exact_noise_shows_nothing_at_a_million() -> None:
    """False alarm: at most 10^-5."""
    assert support(exact_laplace(4.0, Source.seeded_with(7)), "exact", 1_000_000).verdict == HOLDS


def test_what_the_textbook_sampler_returns_is_reachable() -> None:
    noise = naive_laplace(2.0, np.random.default_rng(0))(2000)
    assert reachable(noise, 2.0).all()
    assert reachable(noise + 1.0 - 0.5, 2.0).mean() < 0.9


def test_low_bits_of_a_sampler_that_keeps_parity_are_caught() -> None:
    """Noise that is always an even number of steps leaves the input's parity in the output."""
    rng = np.random.default_rng(2)

    def even(count: int) -> np.ndarray:
        return 2 * rng.integers(-(1 << 19), 1 << 19, count) / (1 << 20)

    from adlm.audit.statistics import two_worlds_bound
    from adlm.audit.support import low_bits

    worlds = low_bits(even, 2000, one=0.0, two=2.0**-20)
    assert two_worlds_bound(*worlds, alpha=1e-3).value > 3
    assert set(low_byte(even(100)) & 1) == {0}
