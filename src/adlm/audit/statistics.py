"""Lower bounds on epsilon from what an attacker gets right, each with a stated confidence.

An audit can only ever prove from below: a bound above the claimed epsilon refutes the claim, a bound
below it refutes nothing. All bounds are for finite samples; none assumes that a score is normal.
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
PAIRED = 0.8  # of the level of a bound on mu: for pairs of runs; the rest looks for what is rare


def clopper_pearson_lower(successes: npt.ArrayLike, trials: int, alpha: float) -> Reals:
    """Return what a success probability is at least, wrong with probability at most `alpha`."""
    k = np.asarray(successes, dtype=np.float64)
    return np.asarray(np.where(k > 0, betaincinv(np.maximum(k, 1), trials - k + 1, alpha), 0.0))


def clopper_pearson_upper(successes: npt.ArrayLike, trials: int, alpha: float) -> Reals:
    """Return what a success probability is at most, wrong with probability at most `alpha`."""
    return np.asarray(1.0 - clopper_pearson_lower(trials - np.asarray(successes), trials, alpha))


@dataclass(frozen=True)
class Bound:
    """What a threshold test proves, and the two rates behind it.

    Attributes
    ----------
    value : lower bound on epsilon at `delta`, or on mu when the curve is `gaussian`.
    confidence : probability with which the bound holds, over the runs.
    tpr, fpr : rates of the test on the half that it was not chosen on.
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
    """Bound from below how well scores distinguish two neighbouring worlds.

    The first half of the runs chooses the threshold and which world is called positive; the second half,
    which played no part in that, is counted. `alpha` is shared by the bounds on the two rates.

    Parameters
    ----------
    with_record, without : (runs,) scores in either world; larger speaks for the first.
    curve : `epsilon` assumes nothing of the mechanism; `gaussian` refutes the sharper claim that its whole
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
        # The best of many is a lucky one, most so in the tails: a bound that holds for all at once is not.
        values, _, _ = bounded(positive[:half], negative[:half], thresholds, alpha / len(thresholds))
        top = int(values.argmax())
        if values[top] > best[0]:
            best = (float(values[top]), sign, float(thresholds[top]))
    _, sign, threshold = best
    positive, negative = (one, two) if sign > 0 else (-two, -one)
    value, tpr, fpr = bounded(positive[half:], negative[half:], np.array([threshold]), alpha)
    return Bound(float(value[0]), 1 - alpha, float(tpr[0]), float(fpr[0]), sign * threshold)


def gaussian_bound(with_record: npt.ArrayLike, without: npt.ArrayLike, *, alpha: float) -> float:
    """Bound from below the mu of the Gaussian trade-off curve that two neighbouring worlds allow.

    A run of either world makes a pair. Who sees a pair and not its order can put it in order with probability
    at most Phi(mu / sqrt 2), for whatever has the curve is a function of a normal number and own coins. So
    the number of pairs in order is bounded by a binomial one; every run counts, and nothing is chosen. What
    shows in few runs alone moves few pairs: thresholds, with the rest of `alpha`, look for that.
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
    """Bound how likely an (epsilon, delta) mechanism lets this many guesses of one run be right.

    Steinke, Nasr and Jagielski 2023, Theorem 5.2: each of `canaries` records is in or out by an own coin,
    the attacker guesses `guesses` of them and is right `correct` times. For pure epsilon the number of right
    guesses is dominated by Binomial(guesses, e^eps / (1 + e^eps)), whatever the mechanism.

    Parameters
    ----------
    correct, guesses, canaries : right guesses, all guesses, and records that were in or out.
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
