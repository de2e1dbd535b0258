"""Allocation of the budget over coordinates: identical, linear in the relevance, or optimal.

Pure functions of public or already private numbers. Noise of scale b_j on coordinate j costs range_j / b_j,
so eps_j = range_j / b_j is the coordinate's share of the budget and sum_j eps_j the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from adlm.errors import UserError

ALLOCATIONS = ("identical", "linear", "optimal")
Floats = npt.NDArray[np.float64]


def noise_scales(
    allocation: str, typical: Sequence[float] | Floats, weight: Sequence[float] | Floats, *, cost: float = 1.0
) -> Floats:
    """Scales b_j under which a typical record costs ``cost``: sum_j typical_j / b_j = cost.

    Parameters
    ----------
    allocation : `identical` (one scale for all), `linear` (eps_j proportional to sqrt(weight_j), the paper's
        |R_j| with weight = R^2), or `optimal` (b_j proportional to (typical_j / weight_j)^(1/3), which
        minimises sum_j weight_j b_j^2).
    typical : (k,) typical |z_j| of a coordinate, m_j.
    weight : (k,) weight w_j of an error in the coordinate.
    cost : of the typical record.

    Returns
    -------
    (k,) scales; infinite for coordinates that are not released, which are those where typical or weight is
    zero, except that identical noise releases all.
    """
    check_allocation(allocation)
    m, w = finite_row("typical", typical), finite_row("weight", weight)
    if m.shape != w.shape:
        raise UserError(f"typical and weight must be of one length (got {m.size} and {w.size}).")
    if (m < 0).any() or (w < 0).any() or not cost > 0:
        raise UserError("typical and weight must not be negative, and cost must be positive.")
    if allocation == "identical":
        shape = np.ones_like(m)
    else:
        released = (m > 0) & (w > 0)
        if not released.any():
            raise UserError(
                "no coordinate has both size and weight, so there is nothing to give a budget to."
            )
        shape = np.full_like(m, np.inf)
        ratio = m[released] / w[released]
        shape[released] = np.cbrt(ratio) if allocation == "optimal" else m[released] / np.sqrt(w[released])
    total = float((m / shape).sum())
    if total == 0:
        raise UserError("every typical value is zero, so there is nothing to give a budget to.")
    return np.asarray(shape * (total / cost))


def check_allocation(allocation: str) -> None:
    """Refuse an allocation that is not one of `ALLOCATIONS`."""
    if allocation not in ALLOCATIONS:
        raise UserError(f"allocation must be one of {', '.join(ALLOCATIONS)} (got {allocation!r}).")


def finite_row(name: str, values: Sequence[float] | Floats) -> Floats:
    """Return values as a row of numbers; refuse any that is not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise UserError(f"{name} must be a row of finite numbers, one for each coordinate.")
    return array
