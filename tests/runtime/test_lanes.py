"""Eight lanes: compiled code gives the bits of plain Python, and plain Python those of exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from adlm.runtime.compiled import (
    LANES,
    Compiled,
    Floats,
    every,
    fused,
    larger,
    load,
    numbers,
    root,
    store,
)

KINDS = 7
SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 3.4e38, np.inf, -np.inf, np.nan, 1 + 2.0**-23, 2.0**-126]


def _all_kinds(a: Floats, b: Floats, c: Floats, out: Floats) -> None:
    size = len(a)
    x, y, z, to = numbers(a), numbers(b), numbers(c), numbers(out)
    for i in range(0, size, LANES):
        u, v, w = load(x, i), load(y, i), load(z, i)
        store(to, i, u + v)
        store(to, size + i, u - v)
        store(to, 2 * size + i, u * v)
        store(to, 3 * size + i, fused(u, v, w))
        store(to, 4 * size + i, larger(u, v))
        store(to, 5 * size + i, root(u * u))
        store(to, 6 * size + i, every(x[i]))


def trial(seed: int) -> tuple[Floats, Floats, Floats]:
    """Numbers of every size, products that are nearly cancelled, ties of the last bit, and special values."""
    rng = np.random.default_rng(seed)
    n = 64 * LANES
    a, b = (rng.normal(size=n) * 2.0 ** rng.integers(-60, 60, n) for _ in range(2))
    c = np.where(rng.random(n) < 0.5, -a * b * (1 + rng.integers(-2, 3, n) * 2.0**-24), rng.normal(size=n))
    arrays = [x.astype(np.float32) for x in (a, b, c)]
    for array in arrays:
        array[rng.permutation(n)[: len(SPECIAL) * 4]] = np.tile(SPECIAL, 4).astype(np.float32)
    return arrays[0], arrays[1], arrays[2]


@pytest.mark.parametrize("seed", range(4))
def test_compiled_code_gives_the_bits_of_plain_python(seed: int) -> None:
    """Of a number that is none, only that it is none."""
    given = trial(seed)
    compiled, plain = (np.empty(KINDS * len(given[0]), np.float32) for _ in range(2))
    Compiled(_all_kinds)(*given, compiled)
    with np.errstate(all="ignore"):
        _all_kinds(*given, plain)
    numbers_alone = ~np.isnan(plain)
    assert np.array_equal(np.isnan(compiled), ~numbers_alone)
    assert np.array_equal(compiled[numbers_alone].view(np.int32), plain[numbers_alone].view(np.int32))


def nearest(value: Fraction) -> NDArray[np.float32]:
    """The float32 next to a fraction, ties to even: found among neighbours of a rounded double."""
    guess = np.float32(float(value))
    near = [np.nextafter(guess, np.float32(side)) for side in (-np.inf, np.inf)]
    around = [x for x in (guess, *near) if np.isfinite(x)]
    apart = [(abs(Fraction(float(x)) - value), int(x.view(np.int32)) & 1) for x in around]
    return np.asarray(around[apart.index(min(apart))])


def test_a_fused_product_is_rounded_once() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.normal(size=800).astype(np.float32) for _ in range(2))
    c = (-a.astype(np.float64) * b * (1 + rng.integers(-3, 4, 800) * 2.0**-25)).astype(np.float32)
    found = np.concatenate([fused(*(x[i : i + LANES] for x in (a, b, c))) for i in range(0, 800, LANES)])
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)
    ]
    assert np.array_equal(found, np.array([nearest(value) for value in exact]))
    assert not np.array_equal(found, a * b + c)  # rounded twice, it differs
