"""Distinguishing attacks: run a mechanism many times on each of two neighbours, and tell its outputs apart.

The attacker knows both data sets and the distribution of the noise, so the score is the log likelihood ratio
of the whole output, which is optimal. A `Law` is noise of one kind on two inputs; a release is a product of
several. Inputs come from the product's code by replay, noise from its sampler in blocks of many runs, or from
a whole release for each run. `support` looks at the bits of noise instead, where floating point leaves holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from adlm.audit.replay import Call, Comparison, Neighbours, Worst, declared, record
from adlm.audit.statistics import (
    ALPHA,
    Finding,
    Point,
    Reals,
    clopper_pearson_upper,
    guess_bound,
    right_guesses,
    threshold_bound,
)
from adlm.audit.subjects import Records, Subject, release_vectors
from adlm.domain import NEIGHBOURS, Domain
from adlm.mechanism.calibration import MomentConfig
from adlm.mechanism.objective import FINE_UNIT, NOISE_STEPS, Objective, ObjectiveNoise, residuals
from adlm.mechanism.objective import calibrate as calibrate_objective
from adlm.privacy.accounting import Charge, Mechanism, compose, gaussian_epsilon
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.runtime.arithmetic import root_up

BLOCK = 1 << 20  # numbers drawn at a time
REFERENCE = 200_000  # simulated runs of the stated noise
GUESSES, SIMULATED = 0.6, 0.2  # shares of a test's level: right guesses, and what is simulated for them
CLASSES = 500  # runs in one release of many classes; its time grows with their square
BYSTANDER = 0.25  # a record in each of these classes that is the same in both data sets
DRAWS, FEWEST = 4_000_000, 4_000  # most numbers drawn for a test on one data set; fewest runs all the same
RADIAL_RUNS = 5_000  # most runs on radial noise, which is slow to draw
RADIAL = 25  # numbers of other noise that cost as much as one of radial noise
SEARCH = 8  # doubles on either side of the u that inverts a floating-point sampler
STEPS = 1 << 20  # grid steps in one unit, for the support attack on the product's noise
Sampler = Callable[[int], Reals]


# Noise laws


@dataclass(frozen=True)
class Law:
    """Noise of one kind on either of two inputs.

    Attributes
    ----------
    mechanism, scale : of the noise; scale in grid steps. Radial noise is independent in each row of the last
        axis, other noise in each number.
    one, two : inputs on the two data sets, of equal shape, in grid steps.
    stretch : factor on the distance of the inputs at which they would be as far apart as is charged.
    """

    mechanism: Mechanism
    scale: Fraction
    one: Reals
    two: Reals
    stretch: float = 1.0

    def moved(self) -> list[tuple[Reals, Reals]]:
        """Return the vectors that differ: rows for radial noise, else the numbers that differ, as one.

        Numbers that are equal on both data sets carry no information.
        """
        if self.mechanism == "radial":
            rows = zip(np.atleast_2d(self.one), np.atleast_2d(self.two), strict=True)
            return [(a, b) for a, b in rows if (a != b).any()]
        differ = self.one != self.two
        return [(self.one[differ], self.two[differ])] if differ.any() else []

    def add_scores(self, scores: tuple[Reals, Reals], source: Source) -> None:
        """Add the log likelihood ratios of runs on either data set, with noise from the product's sampler."""
        for one, two in self.moved():
            block = max(1, BLOCK // one.size)
            for total, centre in zip(scores, (one, two), strict=True):
                for start in range(0, len(total), block):
                    rows = min(block, len(total) - start)
                    noise = source.draw(self.mechanism, (rows, one.size), self.scale)
                    total[start : start + rows] += log_ratio(
                        self.mechanism, self.scale, centre + noise, one, two
                    )


def log_ratio(mechanism: str, scale: Fraction, output: npt.ArrayLike, one: Reals, two: Reals) -> Reals:
    """Return log Pr[output | one] - log Pr[output | two], summed over the last axis.

    Parameters
    ----------
    mechanism, scale : of the noise; scale in grid steps.
    output : (..., width) released integers.
    one, two : (width,) inputs on the two data sets.
    """
    y, s = np.asarray(output, dtype=np.float64), float(scale)
    if mechanism == "laplace":
        return np.asarray((np.abs(y - two) - np.abs(y - one)).sum(-1) / s)
    if mechanism == "gaussian":
        return np.asarray(((y - two) ** 2 - (y - one) ** 2).sum(-1) / (2 * s * s))
    far, near = (np.sqrt(((y - centre) ** 2).sum(-1)) for centre in (two, one))
    return np.asarray((far - near) / s)


def scores(laws: Sequence[Law], runs: int, source: Source) -> tuple[Reals, Reals]:
    """Return log likelihood ratios of `runs` outputs on each data set: (runs,) each."""
    totals = np.zeros(runs), np.zeros(runs)
    for law in laws:
        law.add_scores(totals, source)
    return totals


def affordable(laws: Sequence[Law]) -> int:
    """Return the number of runs that a test can draw: fewer for many numbers, and for radial noise."""
    numbers = sum(
        one.size * (RADIAL if law.mechanism == "radial" else 1) for law in laws for one, _ in law.moved()
    )
    return max(FEWEST, DRAWS // max(1, numbers))


def stated_guesses(laws: Sequence[Law], rng: np.random.Generator, alpha: float) -> Callable[[float], float]:
    """Return how often the best attacker guesses right between inputs as far apart as charged, and farther.

    The function maps a factor on that distance to an upper bound on the share of right guesses at even odds.
    It is exact for Gaussian noise. Other noise is simulated in floating point, once for all factors, and a
    Clopper-Pearson bound is taken at level `alpha`.

    Formal guarantees
    -----------------
    All three kinds of noise have log-concave densities, so inputs that are closer along the same line are
    not easier to tell apart: the integral of min(p(x), c p(x - t v)) is log-concave in t (Prékopa) and
    largest at t = 0. So a release whose distances are within those charged is guessed no better than at
    factor 1. The log likelihood ratio of a draw is convex in the factor and 0 at 0, so each simulated run is
    guessed right from some factor on, and the share rises with the factor.
    """
    squared = 0.0
    parts: list[Callable[[float], Reals]] = []
    moved = [(law, a, b) for law in laws for a, b in law.moved()]
    widest = max((a.size for law, a, _ in moved if law.mechanism == "laplace"), default=1)
    runs = min(REFERENCE, 8 * BLOCK // widest)
    for law, one, two in moved:
        apart = np.abs(one - two) * law.stretch / float(law.scale)
        if law.mechanism == "gaussian":
            squared += float(apart @ apart)
        elif law.mechanism == "laplace":
            parts.append(_laplace_loss(apart, rng.laplace(size=(runs, apart.size))))
        else:
            along = rng.normal(size=runs)
            across = rng.chisquare(apart.size - 1, runs) if apart.size > 1 else np.zeros(runs)
            length = rng.gamma(apart.size, size=runs) / np.sqrt(along**2 + across)
            parts.append(_radial_loss(float(np.linalg.norm(apart)), along * length, across * length**2))
    mu = math.sqrt(squared)
    if not parts:
        return lambda factor: float(ndtr(factor * mu / 2))
    normal = rng.normal(size=runs)

    def share(factor: float) -> float:
        loss = factor * mu * normal + (factor * mu) ** 2 / 2
        for part in parts:
            loss = loss + part(factor)
        return float(clopper_pearson_upper(right_guesses(loss), runs, alpha))

    return share


def _laplace_loss(apart: Reals, noise: Reals) -> Callable[[float], Reals]:
    size = np.abs(noise)
    return lambda factor: np.asarray((np.abs(noise + factor * apart) - size).sum(1))


def _radial_loss(apart: float, along: Reals, across: Reals) -> Callable[[float], Reals]:
    size = np.sqrt(along**2 + across)
    return lambda factor: np.asarray(np.sqrt((along + factor * apart) ** 2 + across) - size)


# The verdict on scores


def judge(
    name: str,
    neighbours: str,
    charges: Sequence[Charge],
    runs: tuple[Reals, Reals],
    *,
    laws: Sequence[Law] = (),
    attack: str = "distinguishing",
    alpha: float = ALPHA,
) -> Finding:
    """Turn scores of runs on two neighbours into a finding.

    A certificate states more than (epsilon, delta): it states the noise, and so how well the best attacker
    can guess. Three bounds share the level: a threshold on the score, which assumes nothing about the noise;
    for Gaussian charges the same against the trade-off curve of their mu; and right guesses against those of
    the stated noise, which see too little noise in any number of dimensions. The note has each.

    Parameters
    ----------
    name : of the finding.
    neighbours : the relation.
    charges : of the certificate, for what the scores are of.
    runs : log likelihood ratios of the runs on either data set.
    laws : the noise behind the scores; without them pure charges are held against their epsilon alone.
    attack : what the finding says was done.
    alpha : level of all bounds together.
    """
    totals = compose(charges)
    delta = float(totals.delta)
    gaussian = all(charge.mechanism == "gaussian" for charge in charges)
    mu = root_up(sum((c.loss**2 for c in charges if c.mechanism == "gaussian"), Fraction(0)))

    def at(factor: float) -> float:
        """Return the epsilon of the charges if their inputs were so many times as far apart."""
        pure = sum(float(c.loss) for c in charges if c.mechanism != "gaussian")
        noisy = float(gaussian_epsilon(Fraction(factor) * mu, totals.delta)) if mu and factor > 0 else 0.0
        return factor * pure + noisy

    guessed = bool(laws) or gaussian
    rest = (1 - GUESSES - SIMULATED) * alpha if guessed else alpha
    plain = threshold_bound(*runs, alpha=rest / 2 if gaussian else rest, delta=delta).value
    bounds = {"threshold": plain}
    if gaussian:
        found = threshold_bound(*runs, alpha=rest / 2, curve="gaussian").value
        bounds["Gaussian curve"] = at(found / float(mu))
    if guessed:
        stated = (
            (lambda factor: float(ndtr(factor * float(mu) / 2)))
            if gaussian
            else stated_guesses(laws, np.random.default_rng(), SIMULATED * alpha)
        )
        bounds["guesses"] = at(guess_bound(*runs, stated, alpha=GUESSES * alpha))
    return Finding(
        attack=attack,
        mechanism=name,
        neighbours=neighbours,
        claimed=totals.epsilon_claimed,
        proved=totals.epsilon_proved,
        lower=max(bounds.values()),
        confidence=1 - alpha,
        runs=len(runs[0]),
        delta=delta,
        note="epsilon at least, by " + ", ".join(f"{key} {value:.3f}" for key, value in bounds.items()),
        curve=curve(runs),
    )


def curve(runs: tuple[Reals, Reals], points: int = 60) -> tuple[Point, ...]:
    """Return the ROC curve of the scores at thresholds spaced for log axes.

    Rates below one in the number of runs are drawn as that; between a threshold's point and the origin lies
    the test that accepts by an extra coin.
    """
    one, two = np.sort(runs[0]), np.sort(runs[1])
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


# Attacks on a subject


def laws_of(subject: Subject, comparison: Comparison, focus: int | None = None) -> tuple[Law, ...]:
    """Return the noise laws of one charge, or of all, at a pair of neighbours that was replayed."""
    laws = []
    for (one, two), index in zip(comparison.pairs, subject.covers, strict=True):
        if index is None or focus not in (None, index) or not comparison.powers[index]:
            continue
        share = float(declared(comparison.charges[index]) / comparison.powers[index])
        stretch = math.sqrt(share) if one.mechanism == "gaussian" else share
        laws.append(Law(one.mechanism, one.scale, *_inputs(one, two), stretch))
    return tuple(laws)


def _inputs(one: Call, two: Call) -> tuple[Reals, Reals]:
    return one.inputs.astype(np.float64), two.inputs.astype(np.float64)


def distinguish(
    subject: Subject,
    pair: Neighbours,
    runs: int,
    source: Source,
    *,
    focus: int | None = None,
    alpha: float = ALPHA,
) -> Finding:
    """Attack one charge of a mechanism, or all together, at a pair of neighbours, with noise in blocks.

    Parameters
    ----------
    subject : the mechanism.
    pair : two neighbouring data sets, replayed.
    runs : on each data set, as far as they are `affordable`.
    source : of the noise.
    focus : index of the charge; None for all.
    alpha : level of the test.
    """
    comparison = pair.comparison
    charges = comparison.charged(focus)
    laws = laws_of(subject, comparison, focus)
    few = min(runs, affordable(laws))
    what = "" if focus is None or len(comparison.charges) == 1 else f": {charges[0].what}"
    drawn = scores(laws, few, source)
    return judge(subject.name + what, subject.neighbours, charges, drawn, laws=laws, alpha=alpha)


def distinguish_all(subject: Subject, worst: Worst, runs: int, source: Source) -> list[Finding]:
    """Attack each charge of a mechanism at its worst neighbours, and all together.

    Parameters
    ----------
    subject, runs, source : as for `distinguish`.
    worst : what the search for neighbours found.
    """
    foci = [None] if len(worst) == 2 else list(worst)
    return [distinguish(subject, worst[focus], runs, source, focus=focus) for focus in foci]


def whole_scores(subject: Subject, pair: Neighbours, runs: int, source: Source) -> tuple[Reals, Reals]:
    """Return log likelihood ratios where every run is a new, whole release.

    A release made of one data set is replayed on the other with its outputs frozen, so that stages which
    depend on earlier outputs have the right inputs on both.

    Parameters
    ----------
    subject : the mechanism.
    pair : two neighbouring data sets.
    runs : on each data set.
    source : of the noise.
    """

    def score(data: Records, other: Records) -> float:
        calls = record(subject, data, source).calls
        replayed = record(subject, other, source, calls).calls
        return sum(
            float(log_ratio(one.mechanism, one.scale, one.output, *_inputs(one, two)).sum())
            for one, two in zip(calls, replayed, strict=True)
        )

    totals = (np.empty(runs), np.empty(runs))
    for run in range(runs):
        totals[0][run] = score(pair.data, pair.neighbour)
        totals[1][run] = -score(pair.neighbour, pair.data)
    return totals


def whole_releases(
    subject: Subject, pair: Neighbours, runs: int, source: Source, *, alpha: float = ALPHA
) -> Finding:
    """Attack a mechanism at a pair of neighbours, each run a whole release.

    Parameters
    ----------
    subject, pair, runs, source : as for `whole_scores`.
    alpha : level of the test.
    """
    drawn = whole_scores(subject, pair, runs, source)
    laws = laws_of(subject, pair.comparison) if len(subject.covers) == 1 else ()  # else inputs vary by run
    return judge(
        subject.name,
        subject.neighbours,
        pair.comparison.charges,
        drawn,
        laws=laws,
        attack="distinguishing, whole release",
        alpha=alpha,
    )


# Many runs in each release: one-dimensional worst cases, through the whole pipeline


def released_sums(
    design: MomentConfig, neighbours: str, runs: int, value: float | None, source: Source
) -> tuple[Reals, tuple[Charge, ...]]:
    """Return (runs,) released sums of as many classes, and the charges of each release.

    A release of class sums puts independent noise on each class, and a class's number depends on its records
    alone. So one release of records of many classes is as many runs of the mechanism on one class, and every
    step of the product is taken: clipping, sums, charge, noise, units.

    Parameters
    ----------
    design, neighbours : the public settings, and the relation.
    runs : numbers to return.
    value : of the record besides the bystander in every class; None for no such record.
    source : of the noise.
    """
    classes = min(runs, CLASSES)
    domain = Domain((1,), -1.0, 1.0, tuple(map(str, range(classes))), neighbours)
    codes = np.arange(classes)
    values = np.full((classes, 1), BYSTANDER)
    if value is not None:
        values, codes = np.vstack([values, np.full((classes, 1), value)]), np.concatenate([codes, codes])
    sums: list[Reals] = []
    charges: tuple[Charge, ...] = ()
    for _ in range(-(-runs // classes)):
        release = release_vectors(Records(values, codes), domain, design, Ledger(), source)
        charges = release.certificate.charges
        sums.append(release.moments().sums[:, 0].numpy())
    return np.concatenate(sums)[:runs], charges


def released_class_sums(
    epsilon: Fraction, delta: Fraction, neighbours: str, runs: int, source: Source, *, alpha: float = ALPHA
) -> Finding:
    """Distinguish two neighbours by the released sum of one class: a record at one end of its bound, or not.

    The released number, less the middle of the two inputs, is the score. The noise has a monotone likelihood
    ratio in one dimension, so this test is optimal.

    Parameters
    ----------
    epsilon, delta : the budget.
    neighbours : the relation.
    runs : on each data set.
    source : of the noise.
    alpha : level of the test.
    """
    design = MomentConfig(epsilon, delta, 1, 1.0, constant=0.0)
    other = 0.0 if neighbours == "add-remove" else -1.0
    with_record, charges = released_sums(design, neighbours, runs, 1.0, source)
    without, _ = released_sums(design, neighbours, runs, other or None, source)
    middle = BYSTANDER + (1.0 + other) / 2
    name = f"one class sum, {'Gaussian' if delta else 'Laplace'}, from the released numbers"
    loss = np.array([float(charges[0].loss)])
    law = Law(charges[0].mechanism, Fraction(1), loss, np.zeros(1))
    return judge(
        name,
        neighbours,
        charges,
        (with_record - middle, without - middle),
        laws=(law,),
        attack="distinguishing, whole release",
        alpha=alpha,
    )


# The support attack
#
# A floating-point Laplace sampler is -b log(u) for one of finitely many u, so x + noise can reach only some
# of the doubles near a value, and a neighbour x' reaches others. Mironov (2012) broke deployed mechanisms by
# that alone. From a released y, compute y - x and y - x', and test whether some u of the sampler gives
# either. Noise that is an integer number of grid steps has every integer in its support whatever it was added
# to, so the attack learns nothing.


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


def reachable_scores(
    draw: Sampler, runs: int, *, scale: float, one: float, two: float
) -> tuple[Reals, Reals]:
    """Return scores on both inputs: whether `one` can give y, minus whether `two` can.

    Parameters
    ----------
    draw : returns noise.
    runs : on each input.
    scale : of the noise.
    one, two : the two inputs.
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


def low_byte_scores(draw: Sampler, runs: int, *, one: float, two: float) -> tuple[Reals, Reals]:
    """Return scores from the low byte: its log ratio, learnt from as many other runs.

    Parameters
    ----------
    draw, runs, one, two : as for `reachable_scores`.
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
    runs : on each input.
    scale : of the noise.
    alpha : level of both attacks together.
    control : whether it must be caught.
    """
    reached = threshold_bound(*reachable_scores(draw, runs, scale=scale, one=0.0, two=1.0), alpha=alpha / 2)
    byte = threshold_bound(*low_byte_scores(draw, runs, one=0.0, two=1.0), alpha=alpha / 2)
    return Finding(
        attack="support",
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


# The perturbed loss


def perturbed_losses(runs: int, source: Source, *, weaken: float = 1.0) -> list[Finding]:
    """Attack the minimum of a perturbed loss, whose density is known: noise density times Hessian.

    One record of two classes with one feature, whose label differs between neighbours (replace-one) or which
    is missing (add-remove). The ridge is so large that the minimum stays where the bound is attained. Noise,
    its calibration and the gradient of the loss are the product's; the minimum of one weight is found for all
    runs at once, by bisection.

    Parameters
    ----------
    runs : on each data set.
    source : of the noise.
    weaken : factor on the noise that the charges do not know of; 1 except for negative controls.
    """
    findings, runs = [], min(runs, RADIAL_RUNS)
    for neighbours in NEIGHBOURS:
        objective = Objective("classes", 2, "laplace", 1.0, 200.0, 1.0, 1.0, 0.01, 1)
        calibrated = calibrate_objective(objective, Fraction(2), neighbours)
        two = (0,) if neighbours == "replace-one" else ()
        outputs = [_minima(objective, calibrated, labels, runs, source, weaken) for labels in ((1,), two)]
        ratios = [
            _log_density(objective, calibrated.scale, (1,), w)
            - _log_density(objective, calibrated.scale, two, w)
            for w in outputs
        ]
        name = f"loss perturbed once, {neighbours}"
        findings.append(judge(name, neighbours, calibrated.charges, (ratios[0], ratios[1])))
    return findings


def _slope(objective: Objective, labels: tuple[int, ...], weights: Reals) -> Reals:
    """Gradient of the loss and the ridge at (runs,) weights of one feature that is 1."""
    total = objective.ridge * weights
    for label in labels:
        total = total + residuals(weights[:, None].copy(), np.full(len(weights), label), objective)[:, 0]
    return np.asarray(total)


def _minima(
    objective: Objective,
    calibrated: ObjectiveNoise,
    labels: tuple[int, ...],
    runs: int,
    source: Source,
    weaken: float,
) -> Reals:
    """Return (runs,) released minima."""
    drawn = source.radial(runs, 1, NOISE_STEPS)[:, 0].astype(np.float64)
    linear = drawn * (calibrated.scale * weaken / NOISE_STEPS)
    far = (np.abs(linear).max() + len(labels)) / objective.ridge + 1.0
    low, high = np.full(runs, -far), np.full(runs, far)
    for _ in range(80):
        middle = (low + high) / 2
        below = _slope(objective, labels, middle) + linear < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    rounding = source.radial(runs, 1, calibrated.rounding)[:, 0].astype(np.float64) / FINE_UNIT
    return np.asarray((low + high) / 2 + weaken * rounding)


def _log_density(objective: Objective, scale: float, labels: tuple[int, ...], weights: Reals) -> Reals:
    """Log density of the minimum, but for a constant: noise at minus the slope, times the Hessian."""
    step = 1e-6
    slope = _slope(objective, labels, weights)
    hessian = (_slope(objective, labels, weights + step) - slope) / step
    return np.asarray(-np.abs(slope) / scale + np.log(np.maximum(hessian, objective.ridge)))
