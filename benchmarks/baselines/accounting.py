"""The privacy cost of T steps of DP-SGD, and the noise that a budget needs.

Each step draws every record with probability q (Poisson sampling), clips its gradient to norm C and adds
Gaussian noise of standard deviation sigma C to the sum. The stated epsilon is the upper bound of Opacus's PRV
accountant (Gopi, Lee, Wutschitz 2021), which unlike RDP is tight for small budgets too; the search for sigma
is by dp-accounting's PLD, which is much faster.
"""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from functools import lru_cache

from adlm.errors import UserError
from adlm.privacy.accounting import gaussian_mu

_MISSING = "DP-SGD needs Opacus, which is not installed here; install it with: pip install adlm[baseline]"
_PRECISION = 0.002  # relative tolerance in epsilon of the search for sigma
_LARGEST = 1e5  # largest noise multiplier tried


def require_opacus() -> None:
    """Raise an error that says what to install when Opacus is missing."""
    try:
        import opacus  # noqa: F401
    except ImportError:
        raise UserError(_MISSING) from None


def _slack(epsilon: float) -> float:
    """Tolerance of the PRV bound above the true epsilon; memory and time grow as it shrinks."""
    return max(0.004 * epsilon, 4e-4)


@lru_cache(maxsize=512)
def epsilon_spent(sigma: float, rate: float, steps: int, delta: float, about: float = 1.0) -> float:
    """Return Opacus's PRV upper bound on epsilon after `steps` steps, add-remove neighbours.

    Parameters
    ----------
    about : a guess of the result, which sets the accountant's mesh.
    """
    require_opacus()
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(sigma, rate, steps)]
    with warnings.catch_warnings():
        # RDP only sets the size of the PRV's domain, where a loose bound costs memory and no tightness
        warnings.filterwarnings("ignore", "Optimal order is the (smallest|largest) alpha", UserWarning)
        return float(accountant.get_epsilon(delta, eps_error=_slack(about)))


@lru_cache(maxsize=512)
def quick_epsilon(sigma: float, rate: float, steps: int, delta: float, about: float = 1.0) -> float:
    """Return the same by dp-accounting's privacy loss distributions, pessimistic and fast.

    Parameters
    ----------
    sigma : noise multiplier.
    rate : share of the records in a batch.
    steps : of training.
    delta : of the guarantee.
    about : the expected epsilon, which sets the grid.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=_PRECISION / 4 * about)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=256)
def noise_multiplier(epsilon: float, rate: float, steps: int, delta: float) -> float:
    """Return the least sigma, to 1% of epsilon, whose PRV bound does not exceed `epsilon`.

    Parameters
    ----------
    epsilon, delta : the budget.
    rate : share of the records in a batch.
    steps : of training.
    """
    if not 0 < rate < 1 or steps < 1:
        raise UserError(
            f"DP-SGD needs batches smaller than the data set and a step, got rate {rate} and {steps} steps"
        )
    high = quick_multiplier(epsilon, rate, steps, delta, below=1.1 * _slack(epsilon))
    while epsilon_spent(high, rate, steps, delta, epsilon) > epsilon:
        high *= 1 + _PRECISION / 2
    return high


def quick_multiplier(epsilon: float, rate: float, steps: int, delta: float, below: float = 0.0) -> float:
    """Return the least sigma, to 0.05 %, whose `quick_epsilon` stays `below` under `epsilon`.

    Parameters
    ----------
    epsilon, delta : the budget.
    rate : share of the records in a batch.
    steps : of training.
    below : margin of epsilon for a looser bound.
    """
    aim = epsilon - below

    def spent(sigma: float) -> float:
        return quick_epsilon(sigma, rate, steps, delta, epsilon)

    low = high = _limit(aim, rate, steps, delta)
    while spent(high) > aim:
        low, high = high, 1.1 * high
        if high > _LARGEST:
            raise UserError(f"no noise gives DP-SGD epsilon {epsilon:g} at delta {delta:g}; raise epsilon")
    while low == high or spent(low) < aim:
        low = low / 1.1
    while high - low > _PRECISION / 4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > aim else (low, middle)
    return high


def _limit(epsilon: float, rate: float, steps: int, delta: float) -> float:
    """Return sigma by the central limit of Bu et al. 2020: mu = q sqrt(T (exp(1/sigma^2) - 1))."""
    mu = float(gaussian_mu(Fraction(epsilon), Fraction(delta)))
    return 1 / math.sqrt(math.log1p(mu * mu / (rate * rate * steps)))
