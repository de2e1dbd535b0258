"""Lower bounds on epsilon from the success of an attack, each with a stated confidence.

An audit only gives lower bounds: one above the claimed epsilon refutes the claim, one below it refutes
nothing. All bounds are for finite samples; none assumes that a score is normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv, ndtri
from scipy.stats import binom

Reals = npt.NDArray[np.float64]
Curve = Literal["epsilon", "gaussian"]
CANDIDATES = 200  # thresholds tried on the first half
PAIRED = 0.8  # share of the level of a bound on mu that pairs of runs get; thresholds get the rest


def clopper_pearson_lower(successes: npt.ArrayLike, trials: int, alpha: float) -> Reals:
    """Return a lower confidence bound on a success probability, wrong with probability at most `alpha`."""
    k = np.asarray(successes, dtype=np.float64)
    return np.asarray(np.where(k > 0, betaincinv(np.maximum(k, 1), trials - k + 1, alpha), 0.0))


def clopper_pearson_upper(successes: npt.ArrayLike, trials: int, alpha: float) -> Reals:
    """Return an upper confidence bound on a success probability, wrong with probability at most `alpha`."""
    return np.asarray(1.0 - clopper_pearson_lower(trials - np.asarray(successes), trials, alpha))


@dataclass(frozen=True)
class Bound:
    """The lower bound of a threshold test, and its two rates.

    Attributes
    ----------
    value : lower bound on epsilon at `delta`, or on mu when the curve is `gaussian`.
    confidence : probability with which the bound holds, over the runs.
    tpr, fpr : rates of the test on the held-out half.
    threshold : of the score that was tested.
    """

    value: float
    confidence: float
    tpr: float
    fpr: float
    threshold: float


def epsilon_at(tpr: npt.ArrayLike, fpr: npt.ArrayLike, delta: float) -> Reals:
    """Return log((tpr - delta) / fpr): every (epsilon, delta) mechanism has tpr <= e^eps fpr + delta."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log((np.asarray(tpr) - delta) / np.asarray(fpr))
    return np.asarray(np.nan_to_num(np.maximum(value, 0.0), nan=0.0))


def mu_at(tpr: npt.ArrayLike, fpr: npt.ArrayLike) -> Reals:
    """Return the mu of the Gaussian trade-off curve through a point: Phi^-1(tpr) - Phi^-1(fpr)."""
    value = ndtri(np.asarray(tpr)) - ndtri(np.asarray(fpr))
    return np.asarray(np.maximum(np.nan_to_num(value, nan=0.0, neginf=0.0, posinf=0.0), 0.0))


def two_worlds_bound(
    with_record: npt.ArrayLike,
    without: npt.ArrayLike,
    *,
    alpha: float,
    delta: float = 0.0,
    curve: Curve = "epsilon",
) -> Bound:
    """Return a lower bound on how well scores distinguish two neighbouring worlds.

    The first half of the runs chooses the threshold and the positive world; the rates are counted on the
    second half, which is independent of that choice. `alpha` is shared by the bounds on the two rates.

    Parameters
    ----------
    with_record, without : (runs,) scores in either world; larger is evidence for the first.
    curve : `epsilon` assumes nothing about the mechanism; `gaussian` tests the stronger claim that its whole
        trade-off curve is that of a Gaussian mechanism, and bounds its mu.
    """
    one, two = np.asarray(with_record, dtype=np.float64), np.asarray(without, dtype=np.float64)
    half = min(len(one), len(two)) // 2
    if half < 1:
        raise ValueError("two worlds need at least two runs each")
    measure: Callable[[Reals, Reals], Reals] = (
        (lambda tpr, fpr: epsilon_at(tpr, fpr, delta)) if curve == "epsilon" else mu_at
    )

    def bounded(
        positive: Reals, negative: Reals, thresholds: Reals, level: float
    ) -> tuple[Reals, Reals, Reals]:
        hits = len(positive) - np.searchsorted(np.sort(positive), thresholds, side="left")
        alarms = len(negative) - np.searchsorted(np.sort(negative), thresholds, side="left")
        low = clopper_pearson_lower(hits, len(positive), level / 2)
        high = clopper_pearson_upper(alarms, len(negative), level / 2)
        return measure(low, high), hits / len(positive), alarms / len(negative)

    best: tuple[float, float, float] = (-1.0, 1.0, 0.0)  # value on the first half, sign, threshold
    for sign, positive, negative in ((1.0, one, two), (-1.0, -two, -one)):
        thresholds = _candidates(positive[:half], negative[:half])
        # The best of many thresholds overfits, most in the tails; a simultaneous bound corrects for that.
        values, _, _ = bounded(positive[:half], negative[:half], thresholds, alpha / len(thresholds))
        top = int(values.argmax())
        if values[top] > best[0]:
            best = (float(values[top]), sign, float(thresholds[top]))
    _, sign, threshold = best
    positive, negative = (one, two) if sign > 0 else (-two, -one)
    value, tpr, fpr = bounded(positive[half:], negative[half:], np.array([threshold]), alpha)
    return Bound(float(value[0]), 1 - alpha, float(tpr[0]), float(fpr[0]), sign * threshold)


def gaussian_bound(with_record: npt.ArrayLike, without: npt.ArrayLike, *, alpha: float) -> float:
    """Return a lower bound on the mu of the Gaussian trade-off curve of two neighbouring worlds.

    One run of each world makes a pair. An unordered pair can be ordered correctly with probability at most
    Phi(mu / sqrt 2), since every mechanism with that curve is a randomised function of a normal variable. So
    a binomial bounds the number of pairs in order; every run is used, and nothing is chosen. A difference
    that is visible in few runs changes few pairs: thresholds, with the rest of `alpha`, test for that.
    """
    one, two = np.asarray(with_record, dtype=np.float64), np.asarray(without, dtype=np.float64)
    pairs = min(len(one), len(two))
    ordered = clopper_pearson_lower(np.count_nonzero(one[:pairs] > two[:pairs]), pairs, PAIRED * alpha)
    seldom = two_worlds_bound(one, two, alpha=(1 - PAIRED) * alpha, curve="gaussian").value
    return max(0.0, math.sqrt(2) * float(ndtri(ordered)), seldom)


def _candidates(positive: Reals, negative: Reals) -> Reals:
    """Return thresholds to try: values that occurred, and just above the largest atoms."""
    values = np.unique(np.concatenate([positive, negative]))
    if len(values) > CANDIDATES:
        values = values[np.linspace(0, len(values) - 1, CANDIDATES).astype(int)]
    return np.asarray(np.concatenate([values, np.nextafter(values[-1:], np.inf)]))


def one_run_p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float = 0.0) -> float:
    """Bound the probability of this many correct guesses in one run of an (epsilon, delta) mechanism.

    Steinke, Nasr and Jagielski 2023, Theorem 5.2: each of `canaries` records is in or out by a fair coin,
    the attacker guesses `guesses` of them, `correct` of them correctly. For pure epsilon the number of
    correct guesses is dominated by Binomial(guesses, e^eps / (1 + e^eps)), whatever the mechanism.

    Parameters
    ----------
    correct, guesses, canaries : correct guesses, all guesses, and records that were in or out.
    epsilon, delta : of the mechanism.
    """
    p = 1.0 / (1.0 + math.exp(-epsilon))
    beta = float(betainc(correct, guesses - correct + 1, p)) if correct > 0 else 1.0
    if delta == 0:
        return min(1.0, beta)
    masses = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, p))
    alpha = float((masses / np.arange(1, correct + 1)).max()) if correct > 0 else 0.0
    return min(1.0, beta + 2 * canaries * delta * alpha)


def one_run_bound(correct: int, guesses: int, canaries: int, *, alpha: float, delta: float = 0.0) -> float:
    """Return the largest epsilon that the guesses of one run refute at level `alpha`; 0 when none.

    Parameters
    ----------
    correct, guesses, canaries : as for `one_run_p_value`.
    alpha : level of the test.
    delta : of the mechanism.
    """
    if guesses < 1 or one_run_p_value(correct, guesses, canaries, 0.0, delta) > alpha:
        return 0.0
    low, high = 0.0, 64.0
    for _ in range(40):
        middle = (low + high) / 2
        if one_run_p_value(correct, guesses, canaries, middle, delta) <= alpha:
            low = middle
        else:
            high = middle
    return low
