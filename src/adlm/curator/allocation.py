"""Allocation of the budget over features: identical (ILM), linear in the relevance (Eq. 16), or optimal.

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


def budget_ratios(
    allocation: str, relevance: Sequence[float] | Floats | None = None, *, size: int | None = None
) -> Floats:
    """beta_j of Eq. 16 for d features of equal range: not negative, and d in sum.

    Parameters
    ----------
    allocation : `identical` (all one), `linear` (beta_j = d |R_j| / sum |R|), or `optimal` (proportional to
        |R_j|^(2/3), which minimises sum_j R_j^2 b_j^2 at the same cost).
    relevance : (d,) private relevances; not needed for `identical`.
    size : d, needed for `identical` without relevances.

    Returns
    -------
    (d,) ratios. A feature whose ratio is zero is not released; its budget goes to the others. If all
    relevances are zero, all ratios are equal.
    """
    _check(allocation)
    if relevance is None:
        if allocation != "identical" or size is None:
            raise UserError(f"allocation {allocation!r} needs the relevance of every feature.")
        return np.ones(size)
    weight = np.abs(_finite("relevance", relevance))
    share = {"identical": np.ones_like(weight), "linear": weight, "optimal": np.cbrt(weight**2)}[allocation]
    if not share.any():
        return np.ones_like(weight)
    return np.asarray(len(share) * (share / share.sum()))


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
    _check(allocation)
    m, w = _finite("typical", typical), _finite("weight", weight)
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


def _check(allocation: str) -> None:
    if allocation not in ALLOCATIONS:
        raise UserError(f"allocation must be one of {', '.join(ALLOCATIONS)} (got {allocation!r}).")


def _finite(name: str, values: Sequence[float] | Floats) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise UserError(f"{name} must be a row of finite numbers, one for each coordinate.")
    return array
