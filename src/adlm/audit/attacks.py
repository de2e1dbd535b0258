"""Distinguishing attacks: run a mechanism many times on each of two neighbours, and tell its outputs apart.

The attacker knows both data sets and the distribution of the noise, so the score is the log likelihood ratio
of the whole output, which is optimal. A `Law` is noise of one kind on two inputs; a release is a product of
several. Inputs come from the product's code by replay, noise from its sampler in blocks of many runs, or from
a whole release for each run. `support` looks at the bits of noise instead, where floating point leaves holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import log_softmax, ndtr

from adlm.audit.replay import (
    Comparison,
    Minimum,
    Neighbours,
    Records,
    Subject,
    Tap,
    Worst,
    declared,
    pairs_of,
)
from adlm.audit.statistics import (
    ALPHA,
    Finding,
    Point,
    Reals,
    clopper_pearson_lower,
    clopper_pearson_upper,
    guess_bound,
    one_run_bound,
    right_guesses,
    threshold_bound,
)
from adlm.audit.subjects import release_vectors
from adlm.domain import Domain
from adlm.engine.passes import as_records
from adlm.mechanism.objective import PRECISION_UNIT, perturbed_minimum
from adlm.mechanism.planner import Plan
from adlm.model.estimates import fit_class_model
from adlm.model.head import FEATURE_UNIT, WEIGHT_UNIT
from adlm.model.training import Examples, TrainingConfig, train
from adlm.privacy.accounting import GAUSSIAN, Budget, Charge, compose, gaussian_epsilon
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.runtime.arithmetic import root_up

BLOCK = 1 << 20  # numbers drawn at a time
REFERENCE = 200_000  # simulated runs of the stated noise
GUESSES, SIMULATED = 0.6, 0.2  # shares of a test's level: right guesses, and what is simulated for them
CLASSES = 500  # runs in one release of many classes; its time grows with their square
BYSTANDER = 0.25  # a record in each of these classes that is the same in both data sets
DRAWS, FEWEST = 4_000_000, 4_000  # most numbers drawn for a test on one data set; fewest runs all the same
RADIAL, CHOICE = 25, 200  # numbers of other noise that cost as much as one of radial noise, or a choice
MINIMA, STATED = 300, 4_000  # minima of a perturbed loss that are released on each data set, and simulated
ABOVE, BELOW = (1.25, 1.5, 2.0), (0.75, 0.5, 0.25)  # factors on how far apart the simulated ones are
NEWTON = 40  # steps towards a simulated minimum
CANARY_CLASSES, GUESSED = 10, 0.4  # classes of canaries, and the share of them that is guessed
DRAWN = 4000  # vectors that a model is trained on
COARSE = 1 << 12  # steps of a noise scale, below which Laplace noise is simulated on integers
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
        axis, other noise in each number. A `choice` is made once, by scores.
    one, two : inputs on the two data sets, of equal shape, in grid steps.
    stretch : factor on the distance of the inputs at which they would be as far apart as is charged; of a
        choice, the share of the stated scale that it is made with.
    """

    mechanism: str
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
        if self.mechanism == "choice":
            differ = np.full(len(differ), differ.any())
        return [(self.one[differ], self.two[differ])] if differ.any() else []

    def add_scores(self, scores: tuple[Reals, Reals], source: Source) -> None:
        """Add the log likelihood ratios of runs on either data set, with noise from the product's sampler."""
        for one, two in self.moved():
            block = max(1, BLOCK // one.size)
            for total, centre in zip(scores, (one, two), strict=True):
                if self.mechanism == "choice":
                    given = centre.astype(np.int64)
                    picked = [source.choose(given, self.scale) for _ in range(len(total))]
                    total += self.log_odds()[picked]
                    continue
                for start in range(0, len(total), block):
                    rows = min(block, len(total) - start)
                    noise = source.draw(self.mechanism, (rows, one.size), self.scale)  # type: ignore[arg-type]
                    total[start : start + rows] += log_ratio(
                        self.mechanism, self.scale, centre + noise, one, two
                    )

    def log_odds(self, factor: float = 1.0) -> Reals:
        """Return log Pr[i | one] - log Pr[i | two] of a choice at the stated scale over `factor`."""
        sharp = factor * self.stretch / float(self.scale)
        return np.asarray(log_softmax(self.one * sharp) - log_softmax(self.two * sharp))

    def choices(self, runs: int, rng: np.random.Generator) -> Callable[[float], Reals]:
        """Simulate stated choices: log likelihood ratios for the data set that each was made from."""
        half, uniform = runs // 2, rng.random(runs)

        def losses(factor: float) -> Reals:
            sharp = factor * self.stretch / float(self.scale)
            ratio = self.log_odds(factor)
            sides = [np.exp(log_softmax(side * sharp)).cumsum() for side in (self.one, self.two)]
            last = len(ratio) - 1
            first, second = (
                np.minimum(np.searchsorted(side, part), last)
                for side, part in zip(sides, (uniform[:half], uniform[half:]), strict=True)
            )
            return np.concatenate([ratio[first], -ratio[second]])

        return losses


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
    cost = {"radial": RADIAL, "choice": CHOICE}
    numbers = sum(one.size * cost.get(law.mechanism, 1) for law in laws for one, _ in law.moved())
    return max(FEWEST, DRAWS // max(1, numbers))


def stated_guesses(laws: Sequence[Law], rng: np.random.Generator, alpha: float) -> Callable[[float], float]:
    """Return how often the best attacker guesses right between inputs as far apart as charged, and farther.

    The function maps a factor on that distance to an upper bound on the share of right guesses at even odds.
    It is exact for Gaussian noise. Other noise is simulated, once for all factors, and a Clopper-Pearson
    bound is taken at level `alpha`. Laplace noise of a few steps is simulated on integers, where it is easier
    to guess than in the limit of a fine grid; other noise is rounded, which makes nothing easier.

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
        if law.mechanism == "choice":
            parts.append(law.choices(runs, rng))
            continue
        apart = np.abs(one - two) * law.stretch / float(law.scale)
        if law.mechanism == "gaussian":
            squared += float(apart @ apart)
        elif law.mechanism == "laplace" and law.scale < COARSE:
            distance, scale = (
                np.abs(one - two) * max(law.stretch, 1.0),
                float(law.scale) / min(law.stretch, 1.0),
            )
            parts.append(_discrete_loss(distance, scale, runs, rng))
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


def _discrete_loss(
    distance: Reals, scale: float, runs: int, rng: np.random.Generator
) -> Callable[[float], Reals]:
    """Simulate Laplace noise on integers, of few steps; distances are rounded up to whole ones."""
    stop = 1 - math.exp(-1 / scale)
    noise = rng.geometric(stop, (runs, distance.size)) - rng.geometric(stop, (runs, distance.size))

    def losses(factor: float) -> Reals:
        moved = np.ceil(factor * distance - 1e-9)
        return np.asarray((np.abs(noise + moved) - np.abs(noise)).sum(1) / scale)

    return losses


def _radial_loss(apart: float, along: Reals, across: Reals) -> Callable[[float], Reals]:
    size = np.sqrt(along**2 + across)
    return lambda factor: np.asarray(np.sqrt((along + factor * apart) ** 2 + across) - size)


# The verdict on scores


def judge(
    name: str,
    neighbours: str,
    charges: Sequence[Charge],
    runs: tuple[Reals, Reals],
    laws: Sequence[Law],
    *,
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
    laws : the noise behind the scores.
    attack : what the finding says was done.
    alpha : level of all bounds together.
    """
    totals = compose(charges)
    delta = float(totals.delta)
    gaussian = all(c.mechanism == "gaussian" for c in charges) and all(w.mechanism != "choice" for w in laws)
    mu = root_up(sum((c.loss**2 for c in charges if c.mechanism == "gaussian"), Fraction(0)))

    def at(factor: float) -> float:
        """Return the epsilon of the charges if their inputs were so many times as far apart."""
        pure = sum(float(c.loss) for c in charges if c.mechanism != "gaussian")
        noisy = float(gaussian_epsilon(Fraction(factor) * mu, totals.delta)) if mu and factor > 0 else 0.0
        return factor * pure + noisy

    rest = (1 - GUESSES - SIMULATED) * alpha
    plain = threshold_bound(*runs, alpha=rest / 2 if gaussian else rest, delta=delta).value
    bounds = {"threshold": plain}
    if gaussian:
        found = threshold_bound(*runs, alpha=rest / 2, curve="gaussian").value
        bounds["Gaussian curve"] = at(found / float(mu))
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
        mu=float(mu) if gaussian else 0.0,
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


def laws_of(subject: Subject, comparison: Comparison, charge: int) -> tuple[Law, ...]:
    """Return the noise laws of one charge at a pair of neighbours that was replayed."""
    laws = []
    for one, two in pairs_of(subject, comparison, charge) if comparison.powers[charge] else ():
        share = float(declared(comparison.charges[charge]) / comparison.powers[charge])
        stretch = math.sqrt(share) if one.mechanism == "gaussian" else share
        if one.mechanism == "choice":
            stretch = float(subject.weaken)
        inputs = one.inputs.astype(np.float64), two.inputs.astype(np.float64)
        laws.append(Law(one.mechanism, one.scale, *inputs, stretch))
    return tuple(laws)


def distinguish(
    subject: Subject,
    pair: Neighbours,
    charge: int,
    runs: int,
    source: Source,
    *,
    alpha: float = ALPHA,
    minima: int = MINIMA,
) -> Finding:
    """Attack one charge of a mechanism at a pair of neighbours.

    Parameters
    ----------
    subject : the mechanism.
    pair : two neighbouring data sets, replayed.
    charge : index of the charge.
    runs : on each data set, as far as they are `affordable`.
    source : of the noise.
    alpha : level of the test.
    minima : of a perturbed loss: most runs on each data set.
    """
    comparison = pair.comparison
    charges = comparison.charges
    name = subject.name if len(charges) == 1 else f"{subject.name}: {charges[charge].what}"
    if charge in subject.losses:
        one, two = comparison.minima[subject.losses.index(charge)]
        drawn = minima_scores(one, two, min(runs, minima), source, subject.weaken)
        return judge_minima(name, charges[charge : charge + 3], drawn, (one, two), alpha)
    laws = laws_of(subject, comparison, charge)
    drawn = scores(laws, min(runs, affordable(laws)), source)
    return judge(name, subject.neighbours, charges[charge : charge + 1], drawn, laws, alpha=alpha)


def distinguish_all(
    subject: Subject, worst: Worst, runs: int, source: Source, *, alpha: float = ALPHA, minima: int = MINIMA
) -> list[Finding]:
    """Attack each charge of a mechanism at its worst neighbours; parameters as for `distinguish`."""
    return [
        distinguish(subject, worst[i], i, runs, source, alpha=alpha, minima=minima) for i in subject.charges
    ]


# The perturbed loss


def minima_scores(
    one: Minimum, two: Minimum, runs: int, source: Source, weaken: Fraction = Fraction(1)
) -> tuple[Reals, Reals]:
    """Return log likelihood ratios of minima that the product releases, on each of two data sets.

    Parameters
    ----------
    one, two : the loss on either data set.
    runs : on each.
    source : of the noise.
    weaken : factor on the noise.
    """
    tap = Tap(source, Ledger(), weaken=weaken)

    def released(side: Minimum) -> Reals:
        part: Any = (np.rint(side.rows * FEATURE_UNIT).astype(np.int16), side.answers)
        records, width = as_records(lambda: [part]), side.rows.shape[1] - 1
        made = [
            perturbed_minimum(records, side.objective, side.noise, side.offsets, tap, width)
            for _ in range(runs)
        ]
        return np.stack(made) / WEIGHT_UNIT

    first, second = (
        one.log_density(weights) - two.log_density(weights) for weights in (released(one), released(two))
    )
    return first, second


def simulated_minima(side: Minimum, runs: int, factor: float, rng: np.random.Generator) -> Reals:
    """Return (runs, R, 1 + k) minima with the stated noise over `factor`, in floating point, by Newton steps.

    Parameters
    ----------
    side : the loss on a data set.
    runs : number of minima.
    factor : of less noise.
    rng : of the noise.
    """
    objective, shape = side.objective, (runs, *side.weights.shape)
    if objective.noise == "laplace":
        noise = rng.laplace(size=shape)
    else:
        noise = rng.normal(size=shape)
        if objective.noise == "radial":
            noise *= rng.gamma(shape[2], size=shape[:2])[..., None] / np.linalg.norm(noise, axis=2)[..., None]
    noise *= side.noise.scale / factor
    if objective.precision is not None:
        noise *= PRECISION_UNIT / objective.weighting
    if objective.rows > 1:
        noise -= noise.mean(1, keepdims=True)
    weights = np.zeros(shape)
    slope = side.slope(weights) + noise
    size = np.linalg.norm(slope, axis=(1, 2))
    ridge = objective.ridge * (1 + 4 * objective.smoothness)
    steepest = ridge + float(objective.curvature) * float((side.rows**2).sum())
    for _ in range(NEWTON):
        if size.max() < 1e-7 * objective.ridge:
            break
        step = np.linalg.solve(side.hessian(weights), slope.reshape(runs, -1, 1)).reshape(shape)
        moved = weights - step
        after = side.slope(moved) + noise
        worse = np.linalg.norm(after, axis=(1, 2)) >= size
        if worse.any():  # the loss bends at its cap: a short step along the gradient always helps
            moved[worse] = (weights - slope / steepest)[worse]
            after = side.slope(moved) + noise
        weights, slope, size = moved, after, np.linalg.norm(after, axis=(1, 2))
    return weights


def judge_minima(
    name: str,
    charges: Sequence[Charge],
    runs: tuple[Reals, Reals],
    pair: tuple[Minimum, Minimum],
    alpha: float,
) -> Finding:
    """Turn scores of minima on two neighbours into a finding.

    Two bounds share the level: a threshold on the score against epsilon, where the noise is pure; and the
    share of right guesses against that of simulated minima with the stated noise, or with less of it.

    Parameters
    ----------
    name : of the finding.
    charges : of noise, ridge and error of the minimum.
    runs : log likelihood ratios of released minima on either data set.
    pair : the loss on either data set.
    alpha : level of both bounds.
    """
    totals, rng = compose(charges), np.random.default_rng()
    one, two = pair

    def stated(factor: float) -> float:
        first, second = (simulated_minima(side, STATED, factor, rng) for side in pair)
        right = right_guesses(one.log_density(first) - two.log_density(first))
        right += right_guesses(two.log_density(second) - one.log_density(second))
        return float(clopper_pearson_upper(right, 2 * STATED, SIMULATED * alpha))

    right = right_guesses(runs[0]) + right_guesses(-runs[1])
    share = float(clopper_pearson_lower(right, len(runs[0]) + len(runs[1]), GUESSES * alpha))
    exceeds = share > stated(1.0)
    found = 1.0 if exceeds else 0.0
    if exceeds:  # the largest factor that is refuted, on a grid
        for factor in ABOVE:
            if share <= stated(factor):
                break
            found = factor
    else:
        found = next((factor for factor in BELOW if share > stated(factor)), 0.0)
    pure = sum(float(c.loss) for c in charges if c.mechanism not in GAUSSIAN)
    mu = charges[0].loss if charges[0].mechanism in GAUSSIAN else Fraction(0)
    lower = found * pure
    if mu:
        noise = replace(charges[0], sensitivity=charges[0].sensitivity * Fraction(max(found, 0.01)))
        lower = pure + float(noise.epsilon_proved) if found else 0.0
    bounds = {"guesses": lower}
    rest = (1 - GUESSES - SIMULATED) * alpha
    bounds["threshold"] = threshold_bound(*runs, alpha=rest, delta=float(totals.delta)).value
    return Finding(
        attack="distinguishing",
        mechanism=name,
        neighbours=totals.neighbours,
        claimed=totals.epsilon_claimed,
        proved=totals.epsilon_proved,
        lower=max(bounds.values()),
        confidence=1 - alpha,
        runs=len(runs[0]),
        delta=float(totals.delta),
        note="epsilon at least, by " + ", ".join(f"{key} {value:.3f}" for key, value in bounds.items()),
        fault=exceeds,
        curve=curve(runs),
    )


# Many runs in each release: one-dimensional worst cases, through the whole pipeline


def released_sums(
    budget: Budget, neighbours: str, runs: int, value: float | None, source: Source
) -> tuple[Reals, tuple[Charge, ...]]:
    """Return (runs,) released sums of as many classes, and the charges of each release.

    A release of class sums puts independent noise on each class, and a class's number depends on its records
    alone. So one release of records of many classes is as many runs of the mechanism on one class, and every
    step of the product is taken: clipping, sums, charge, noise, units.

    Parameters
    ----------
    budget, neighbours : of each release.
    runs : numbers to return.
    value : of the record besides the bystander in every class; None for no such record.
    source : of the noise.
    """
    classes = min(runs, CLASSES)
    domain = Domain((1,), -1.0, 1.0, tuple(map(str, range(classes))), neighbours)
    plan = Plan("class sums", classes, 1, "gaussian" if budget.delta else "laplace", sums_constant=0.0)
    codes = np.arange(classes)
    values = np.full((classes, 1), BYSTANDER)
    if value is not None:
        values, codes = np.vstack([values, np.full((classes, 1), value)]), np.concatenate([codes, codes])
    sums: list[Reals] = []
    charges: tuple[Charge, ...] = ()
    for _ in range(-(-runs // classes)):
        release = release_vectors(Records(values, codes), domain, plan, budget, Ledger(), source)
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
    budget = Budget(epsilon, delta)
    other = 0.0 if neighbours == "add-remove" else -1.0
    with_record, charges = released_sums(budget, neighbours, runs, 1.0, source)
    without, _ = released_sums(budget, neighbours, runs, other or None, source)
    middle = BYSTANDER + (1.0 + other) / 2
    name = f"one class sum, {'Gaussian' if delta else 'Laplace'}, from the released numbers"
    loss = np.array([float(charges[0].loss)])
    law = Law(charges[0].mechanism, Fraction(1), loss, np.zeros(1))
    return judge(
        name,
        neighbours,
        charges,
        (with_record - middle, without - middle),
        (law,),
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


# Canaries in one run
#
# Each canary is a record chosen by the attacker, which an independent fair coin puts into the data or not
# (under replace-one: itself or its opposite). The attacker sees the release, or a model trained on it,
# guesses the most confident coins and abstains on the rest; too many correct guesses refute epsilon (Steinke,
# Nasr and Jagielski 2023). A longer training must not make the guesses better.


def canaries(
    k: int, neighbours: str, source: Source, rng: np.random.Generator, epochs: Sequence[int] = (1, 100)
) -> list[Finding]:
    """Plant canaries in a release of class sums: coordinate j alone, in class c, for all j and c.

    Such a canary puts the whole norm bound of a record into one released number, the best case for the
    attacker. It guesses from the release, and from a linear model that is trained on draws from it.

    Parameters
    ----------
    k : number of coordinates; there are CANARY_CLASSES times as many canaries.
    neighbours : the relation.
    source : of the noise.
    rng : decides which canaries are in.
    epochs : of the models.
    """
    plan = Plan("class sums", CANARY_CLASSES, k, "laplace", sums_constant=0.05)
    domain = Domain((k,), 0.0, 1.0, tuple(map(str, range(CANARY_CLASSES))), neighbours)
    coins = rng.random((CANARY_CLASSES, k)) < 0.5
    values, codes = np.tile(np.eye(k), (CANARY_CLASSES, 1)), np.repeat(np.arange(CANARY_CLASSES), k)
    if neighbours == "add-remove":
        values, codes = values[coins.ravel()], codes[coins.ravel()]
    else:
        values = np.where(coins.ravel()[:, None], values, -values)
    release = release_vectors(Records(values, codes), domain, plan, Budget(Fraction(1)), Ledger(), source)
    moments, totals = release.moments(), release.certificate.totals
    by_source = {"canaries in a whole release": moments.sums.numpy()}
    x, y = fit_class_model(moments, None).sample(DRAWN, torch.Generator().manual_seed(0))
    for count in epochs:
        head = torch.nn.Linear(k, CANARY_CLASSES)
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        config = TrainingConfig(epochs=count, batch_size=500, optimiser="SGD", learning_rate=0.5)
        train(head, Examples(x, y), config, device="cpu")
        weight = head.weight.detach().double().numpy()
        by_source[f"canaries, model after {count} epoch{'s' * (count > 1)}"] = weight - weight.mean(0)
    findings = []
    for name, evidence in by_source.items():
        order, truth = np.argsort(evidence.ravel()), coins.ravel()
        each = max(1, int(GUESSED * truth.size / 2))
        right = int((~truth[order[:each]]).sum() + truth[order[-each:]].sum())
        findings.append(
            Finding(
                attack="canaries",
                mechanism=name,
                neighbours=neighbours,
                claimed=totals.epsilon_claimed,
                proved=totals.epsilon_proved,
                lower=one_run_bound(right, 2 * each, truth.size, alpha=ALPHA),
                confidence=1 - ALPHA,
                runs=truth.size,
                note=f"{right} of {2 * each} guesses right, {truth.size} canaries",
            )
        )
    return findings
