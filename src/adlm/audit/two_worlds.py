"""Two worlds: run a mechanism many times on each of two neighbours, and distinguish the two by its outputs.

The attacker knows both data sets and the noise's distribution, so the score is the log likelihood ratio,
which is optimal. Inputs come from the product's code by replay; noise from the product's sampler, a block of
runs in one call, or from a whole release for each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from adlm.audit.finding import ALPHA, Finding, Point
from adlm.audit.replay import Comparison, record
from adlm.audit.statistics import gaussian_bound, two_worlds_bound
from adlm.audit.subject import Records, Subject
from adlm.audit.tap import Call
from adlm.audit.worst_case import Neighbours
from adlm.curator.noise import Source
from adlm.privacy.accounting import Charge, compose, gaussian_epsilon

Reals = npt.NDArray[np.float64]
Pair = tuple[Call, Call]
USUAL = 0.05  # the conventional level
BLOCK = 1 << 20  # draws of noise held at a time


def log_ratio(mechanism: str, scale: Fraction, output: npt.ArrayLike, one: Reals, two: Reals) -> Reals:
    """Return log Pr[output | one] - log Pr[output | two], summed over the last axis.

    Parameters
    ----------
    mechanism, scale : of the noise; scale in grid steps.
    output : (..., width) released integers.
    one, two : (width,) inputs of the two worlds.
    """
    y, s = np.asarray(output, dtype=np.float64), float(scale)
    if mechanism == "laplace":
        return np.asarray((np.abs(y - two) - np.abs(y - one)).sum(-1) / s)
    if mechanism == "gaussian":
        return np.asarray(((y - two) ** 2 - (y - one) ** 2).sum(-1) / (2 * s * s))
    far, near = (np.sqrt(((y - centre) ** 2).sum(-1)) for centre in (two, one))
    return np.asarray((far - near) / s)


def scores(pairs: Sequence[Pair], runs: int, source: Source) -> tuple[Reals, Reals]:
    """Return log likelihood ratios of `runs` releases of each world, noise drawn in blocks.

    Coordinates that are equal in both worlds carry no information and are not drawn.
    """
    worlds = (np.zeros(runs), np.zeros(runs))
    for call, other in pairs:
        for one, two in _moved(call, other):
            block = max(1, BLOCK // one.size)
            for world, centre in zip(worlds, (one, two), strict=True):
                for start in range(0, runs, block):
                    rows = min(block, runs - start)
                    noise = source.draw(call.mechanism, (rows, one.size), call.scale)
                    world[start : start + rows] += log_ratio(
                        call.mechanism, call.scale, centre + noise, one, two
                    )
    return worlds


def _moved(call: Call, other: Call) -> list[tuple[Reals, Reals]]:
    """Return the vectors that differ: rows for radial noise, else the coordinates that differ, as one."""
    one, two = call.inputs.astype(np.float64), other.inputs.astype(np.float64)
    if call.mechanism == "radial":
        return [(a, b) for a, b in zip(one, two, strict=True) if (a != b).any()]
    differ = one != two
    return [(one[differ], two[differ])] if differ.any() else []


def whole_scores(subject: Subject, neighbours: Neighbours, runs: int, source: Source) -> tuple[Reals, Reals]:
    """Return log likelihood ratios where every run is a new, whole release.

    A release made of one data set is replayed on the other with its outputs frozen, so that stages which
    depend on earlier outputs have the right inputs in both worlds.

    Parameters
    ----------
    subject : the mechanism.
    neighbours : a pair of data sets.
    runs : of each world.
    source : of the noise.
    """

    def score(data: Records, other: Records) -> float:
        calls = record(subject, data, source).calls
        replayed = record(subject, other, source, calls).calls
        return sum(
            float(log_ratio(one.mechanism, one.scale, one.output, *_inputs((one, two))).sum())
            for one, two in zip(calls, replayed, strict=True)
        )

    worlds = (np.empty(runs), np.empty(runs))
    for run in range(runs):
        worlds[0][run] = score(neighbours.data, neighbours.neighbour)
        worlds[1][run] = -score(neighbours.neighbour, neighbours.data)
    return worlds


def _inputs(pair: Pair) -> tuple[Reals, Reals]:
    return pair[0].inputs.astype(np.float64), pair[1].inputs.astype(np.float64)


def chosen_pairs(subject: Subject, comparison: Comparison) -> tuple[Pair, ...]:
    """Return the pairs of calls that belong to the charges under audit."""
    return tuple(
        pair
        for pair, charge in zip(comparison.pairs, subject.covers, strict=True)
        if charge is not None and subject.focus in (None, charge)
    )


def curve(worlds: tuple[Reals, Reals], points: int = 60) -> tuple[Point, ...]:
    """Return the ROC curve of the scores at thresholds spaced for log axes.

    Rates below one in the number of runs are drawn as that; between a threshold's point and the origin lies
    the test that accepts by an extra coin.
    """
    one, two = np.sort(worlds[0]), np.sort(worlds[1])
    least = 1 / len(two)
    rates = np.geomspace(least, 1.0, points)
    thresholds = two[np.minimum(len(two) - 1, ((1 - rates) * len(two)).astype(int))]
    above = np.nextafter(two[-1], np.inf)
    thresholds = np.unique(np.append(thresholds, above if one[-1] >= above else thresholds[0]))
    tpr = 1 - np.searchsorted(one, thresholds, side="left") / len(one)
    fpr = np.maximum(1 - np.searchsorted(two, thresholds, side="left") / len(two), least)
    f, t = float(fpr.min()), float(tpr[fpr.argmin()])
    coin = [(f * share, t * share) for share in np.geomspace(least, 1, 10)[:-1] if f > least]
    return tuple(Point(float(x), float(y)) for x, y in sorted({*coin, *zip(fpr, tpr, strict=True)}))


def judge(
    name: str,
    neighbours: str,
    charges: Sequence[Charge],
    worlds: tuple[Reals, Reals],
    *,
    rung: str = "two worlds",
    alpha: float = ALPHA,
) -> Finding:
    """Turn scores of two worlds into a finding.

    Where the noise is Gaussian the certificate claims more than (epsilon, delta): the trade-off curve of a
    Gaussian mechanism of its mu. That is what is tested; the note has the bound that assumes no curve. The
    note also has the bound at the usual 95%, which is no test of this audit's and raises no alarm.

    Parameters
    ----------
    name : of the finding.
    neighbours : the relation.
    charges : of the certificate.
    worlds : scores of the runs in either world.
    rung : of the ladder.
    alpha : level of the test.
    """
    totals = compose(charges)
    delta = float(totals.delta)

    def bound(level: float) -> float:
        if not delta:
            return two_worlds_bound(*worlds, alpha=level).value
        mu = gaussian_bound(*worlds, alpha=level)
        return float(gaussian_epsilon(Fraction(mu), totals.delta)) if mu > 0 else 0.0

    note = f"{bound(USUAL):.3f} at 95%"
    if delta:
        plain = two_worlds_bound(*worlds, alpha=alpha, delta=delta).value
        note += f"; without assuming the Gaussian curve, epsilon at least {plain:.3f}"
    return Finding(
        rung=rung,
        mechanism=name,
        neighbours=neighbours,
        claimed=totals.epsilon_claimed,
        proved=totals.epsilon_proved,
        lower=bound(alpha),
        confidence=1 - alpha,
        runs=len(worlds[0]),
        delta=delta,
        note=note,
        curve=curve(worlds),
    )


def two_worlds(
    subject: Subject, neighbours: Neighbours, runs: int, source: Source, *, alpha: float = ALPHA
) -> Finding:
    """Attack a mechanism at its worst neighbours, with noise in blocks.

    Parameters
    ----------
    subject, neighbours, runs, source : as for `whole_scores`.
    alpha : level of the test.
    """
    comparison = neighbours.comparison
    worlds = scores(chosen_pairs(subject, comparison), runs, source)
    return judge(subject.name, subject.neighbours, comparison.charged(subject.focus), worlds, alpha=alpha)


def whole_releases(
    subject: Subject, neighbours: Neighbours, runs: int, source: Source, *, alpha: float = ALPHA
) -> Finding:
    """Attack a mechanism at its worst neighbours, each run a whole release.

    Parameters
    ----------
    subject, neighbours, runs, source, alpha : as for `two_worlds`.
    """
    worlds = whole_scores(subject, neighbours, runs, source)
    rung = "two worlds, whole release"
    return judge(
        subject.name, subject.neighbours, neighbours.comparison.charges, worlds, rung=rung, alpha=alpha
    )
