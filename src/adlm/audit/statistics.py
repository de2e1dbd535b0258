"""Findings of an audit, and the lower bounds on epsilon in them, each with a stated confidence.

An audit only gives lower bounds: one above the claimed epsilon refutes the claim, one below it refutes
nothing. All bounds are for finite samples; none assumes that a score is normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv, ndtri
from scipy.stats import binom

from adlm.privacy.accounting import Epsilon, number, show, show_mu

Reals = npt.NDArray[np.float64]
Curve = Literal["epsilon", "gaussian"]
CANDIDATES = 200  # thresholds tried on the first half
STEPS = 14  # of bisection
TIE = 1e-9  # scores that are nearer to zero are zero, up to rounding
LARGEST_FACTOR = 1e3
COMMAND_ALPHA = 1e-3  # false-alarm rate of one whole command on a sound product
MOST_TESTS = 125  # statistical tests that one command makes at most
ALPHA = COMMAND_ALPHA / MOST_TESTS

HOLDS, ABOVE_CLAIM, VIOLATED, CAUGHT, MISSED = "holds", "above claim", "VIOLATED", "violated", "NOT CAUGHT"


@dataclass(frozen=True)
class Point:
    """A point of a ROC curve with its bounds, for the picture."""

    fpr: float
    tpr: float


@dataclass(frozen=True)
class Finding:
    """The result of one attack on one mechanism.

    Attributes
    ----------
    attack : `replay, worst case`, `distinguishing`, `separability`, `support`, `canaries`, `artefact` or
        `control`.
    mechanism, neighbours : what was attacked, and under which relation.
    claimed : the epsilon that its authors claim; `proved` the one on the certificate.
    delta : for which both are.
    lower : lower bound on epsilon that the attack proves.
    confidence : probability that `lower` is a lower bound; 1 for an exact argument.
    runs : of the mechanism, or neighbours tried, or guesses made.
    control : whether this is a negative control, which must be violated.
    note : further remarks.
    fault : whether an exact check failed, whatever `lower` is.
    curve : points of the ROC curve, when the attack has one.
    mu : of the charges, where all of them are Gaussian: their exact trade-off curve; else 0.
    """

    attack: str
    mechanism: str
    neighbours: str
    claimed: Epsilon
    proved: Epsilon
    lower: float
    confidence: float
    runs: int
    delta: float = 0.0
    control: bool = False
    note: str = ""
    fault: bool = False
    curve: tuple[Point, ...] = ()
    mu: float = 0.0

    @property
    def verdict(self) -> str:
        """Whether the attack refutes the proof, or the claim, or nothing.

        A control has no proof: it is tested against its claim.
        """
        refuted = self.fault or self.lower > float(self.claimed if self.control else self.proved) + 1e-9
        if self.control:
            return CAUGHT if refuted else MISSED
        if refuted:
            return VIOLATED
        return ABOVE_CLAIM if self.lower > float(self.claimed) + 1e-9 else HOLDS

    @property
    def passed(self) -> bool:
        """Whether the product holds, or the control was caught."""
        return self.verdict in (HOLDS, ABOVE_CLAIM, CAUGHT)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values under stable keys."""
        return {
            "attack": self.attack,
            "mechanism": self.mechanism,
            "neighbours": self.neighbours,
            "epsilon_claimed": number(self.claimed),
            "epsilon_proved": number(self.proved),
            "delta": self.delta,
            "mu": self.mu or None,
            "epsilon_lower": self.lower if math.isfinite(self.lower) else None,
            "confidence": self.confidence,
            "runs": self.runs,
            "verdict": self.verdict,
            "control": self.control,
            "note": self.note,
            "curve": [[point.fpr, point.tpr] for point in self.curve],
        }

    def row(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        confidence = "exact" if self.confidence >= 1 else f"{100 * self.confidence:.5g}%"
        lower = "unbounded" if math.isinf(self.lower) else f"{self.lower:.3f}"
        return (
            self.mechanism,
            self.neighbours,
            self.attack,
            show(self.claimed),
            show(self.proved) + (f" (mu {show_mu(self.mu)})" if self.mu else ""),
            lower,
            confidence,
            f"{self.runs:,}",
            self.verdict,
        )


HEADINGS = (
    "mechanism",
    "relation",
    "attack",
    "claimed",
    "proved",
    "lower bound",
    "confidence",
    "runs",
    "verdict",
)


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


def threshold_bound(
    with_record: npt.ArrayLike,
    without: npt.ArrayLike,
    *,
    alpha: float,
    delta: float = 0.0,
    curve: Curve = "epsilon",
) -> Bound:
    """Return a lower bound on how well a threshold on scores distinguishes two neighbouring data sets.

    The first half of the runs chooses the threshold and the positive side; the rates are counted on the
    second half, which is independent of that choice. `alpha` is shared by the bounds on the two rates.

    Parameters
    ----------
    with_record, without : (runs,) scores on either data set; larger is evidence for the first.
    curve : `epsilon` assumes nothing about the mechanism; `gaussian` tests the stronger claim that its whole
        trade-off curve is that of a Gaussian mechanism, and bounds its mu.
    """
    one, two = np.asarray(with_record, dtype=np.float64), np.asarray(without, dtype=np.float64)
    half = min(len(one), len(two)) // 2
    if half < 1:
        raise ValueError("a threshold needs at least two runs on each data set")
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


def right_guesses(scores: Reals) -> int:
    """Count the positive scores; scores of zero say nothing, and every second run is then guessed right."""
    return int(np.count_nonzero(scores > TIE) + np.count_nonzero(np.abs(scores[::2]) <= TIE))


def guess_bound(
    one: npt.ArrayLike, two: npt.ArrayLike, stated: Callable[[float], float], *, alpha: float
) -> float:
    """Return a lower bound on the factor by which a mechanism exceeds the distance that is stated for it.

    Each run is guessed to come from the first data set if its score is positive, else from the second. The
    share of right guesses, at most that of the best attacker at even odds, is bounded from below by all runs
    together; nothing is chosen. The bound is the largest factor whose `stated` share is below it.

    Parameters
    ----------
    one, two : (runs,) log likelihood ratios on either data set; positive is evidence for the first.
    stated : from a factor to the largest share of right guesses when inputs are that many times as far
        apart as stated; rising with the factor, 1 is what is stated.
    alpha : probability with which the bound may be wrong.
    """
    first, second = np.asarray(one, dtype=np.float64), np.asarray(two, dtype=np.float64)
    right = right_guesses(first) + right_guesses(-second)
    share = float(clopper_pearson_lower(right, len(first) + len(second), alpha))
    if share <= 0.5:
        return 0.0
    low, high = 0.0, 2.0
    while stated(high) < share and high < LARGEST_FACTOR:
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if stated(middle) < share else (low, middle)
    return low


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
