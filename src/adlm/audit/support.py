"""The support attack: the low bits of a noisy number may reveal what the noise was added to.

A floating-point Laplace sampler is -b log(u) for one of finitely many u, so x + noise can reach only some of
the doubles near a value, and a neighbour x' reaches others. Mironov (2012) broke deployed mechanisms by that
alone. The attack here: from a released y, compute y - x and y - x', and test whether some u of the sampler
gives either. Noise that is an integer number of grid steps has every integer in its support whatever it was
added to, so the attack learns nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from adlm.audit.finding import ALPHA, Finding
from adlm.audit.statistics import two_worlds_bound
from adlm.curator.noise import Source

Reals = npt.NDArray[np.float64]
Sampler = Callable[[int], Reals]
SEARCH = 8  # doubles on either side of the u that inverts the sampler
STEPS = 1 << 20  # grid steps in one unit, for the product's noise


def naive_laplace(scale: float, rng: np.random.Generator) -> Sampler:
    """Return the textbook sampler: a random sign and -b log(u), u a multiple of 2^-53. The control."""

    def draw(count: int) -> Reals:
        u = 1.0 - rng.random(count)  # in (0, 1], a multiple of 2^-53
        return np.asarray(np.where(rng.random(count) < 0.5, -1.0, 1.0) * (-scale * np.log(u)))

    return draw


def exact_laplace(scale: float, source: Source) -> Sampler:
    """Return the product's noise in real units: integers of a grid, drawn by the product's sampler."""
    on_grid = Fraction(round(scale * STEPS))
    return lambda count: np.asarray(source.laplace(count, on_grid) / STEPS)


def reachable(noise: Reals, scale: float) -> npt.NDArray[np.bool_]:
    """Whether the textbook sampler can return each double for some u."""
    size = np.abs(noise)
    near = np.exp(-size / scale)
    grid = 2.0**-53
    nearest = np.round(near / grid)
    reached = np.zeros(len(noise), dtype=np.bool_)
    for offset in range(-SEARCH, SEARCH + 1):
        u = (nearest + offset) * grid
        valid = (u > 0) & (u <= 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            reached |= valid & (-scale * np.log(np.where(valid, u, 1.0)) == size)
    return reached


def attack(draw: Sampler, runs: int, *, scale: float, one: float, two: float) -> tuple[Reals, Reals]:
    """Return scores of both worlds: whether `one` can give y, minus whether `two` can.

    Parameters
    ----------
    draw : returns noise.
    runs : of each world.
    scale : of the noise.
    one, two : inputs of the two worlds.
    """

    def score(centre: float) -> Reals:
        released = centre + draw(runs)
        possible = reachable(released - one, scale).astype(np.float64)
        return np.asarray(possible - reachable(released - two, scale))

    return score(one), score(two)


def low_byte(values: Reals) -> npt.NDArray[np.intp]:
    """Return the last byte of each double's mantissa, or of its number of grid steps if it is on the grid."""
    steps = values * STEPS
    integers = np.where(np.abs(steps) < 2.0**62, steps, 0.0).astype(np.int64)
    on_grid = bool((steps == np.trunc(steps)).all())
    return np.asarray((integers if on_grid else values.view(np.int64)) & 255, dtype=np.intp)


def low_bits(draw: Sampler, runs: int, *, one: float, two: float) -> tuple[Reals, Reals]:
    """Return scores from the low byte: its log ratio, learnt from as many other runs.

    Parameters
    ----------
    draw, runs, one, two : as for `attack`.
    """
    learnt = [np.bincount(low_byte(centre + draw(runs)), minlength=256) + 1.0 for centre in (one, two)]
    ratio = np.log(learnt[0] / learnt[1])
    return ratio[low_byte(one + draw(runs))], ratio[low_byte(two + draw(runs))]


def support(
    draw: Sampler, name: str, runs: int, *, scale: float = 4.0, alpha: float = ALPHA, control: bool = False
) -> Finding:
    """Attack noise of a given scale on inputs 0 and 1, whose epsilon is 1/scale, by its bits alone.

    Two attacks share `alpha`: the reachable doubles, and the low byte.

    Parameters
    ----------
    draw : returns noise.
    name : of the finding.
    runs : of each world.
    scale : of the noise.
    alpha : level of both attacks together.
    control : whether it must be caught.
    """
    reached = two_worlds_bound(*attack(draw, runs, scale=scale, one=0.0, two=1.0), alpha=alpha / 2)
    byte = two_worlds_bound(*low_bits(draw, runs, one=0.0, two=1.0), alpha=alpha / 2)
    return Finding(
        rung="support",
        mechanism=name,
        neighbours="any",
        claimed=Fraction(1) / Fraction(scale),
        proved=Fraction(1) / Fraction(scale),
        lower=max(reached.value, byte.value),
        confidence=1 - alpha,
        runs=runs,
        control=control,
        note=f"from reachable values {reached.value:.3f}, from the low byte {byte.value:.3f}",
    )
