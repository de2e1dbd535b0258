"""Search for worst-case neighbours: how tight is a proved bound, and does anything exceed it?

A small evolutionary search over pairs of records and labels. It treats mechanisms as black boxes. Its
objective is the share of the declared loss that a pair causes, measured by replay on the real code path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adlm.audit.finding import Finding
from adlm.audit.replay import Comparison, replay
from adlm.audit.subject import Reals, Records, Subject
from adlm.curator.noise import Source
from adlm.privacy.accounting import compose

EVALUATIONS = 160
KEPT = 4


@dataclass(frozen=True)
class Neighbours:
    """Two neighbouring data sets and their comparison by replay."""

    data: Records
    neighbour: Records
    comparison: Comparison

    def used(self, subject: Subject) -> float:
        """Share of the declared loss that they cause."""
        return self.comparison.used(subject.focus)


@dataclass(frozen=True)
class _Pair:
    """The records in which neighbours differ: (contributions, width) and labels, before and after."""

    before: Reals
    after: Reals
    codes: tuple[int, int]


def worst_neighbours(
    subject: Subject, source: Source, *, seed: int = 0, evaluations: int = EVALUATIONS
) -> Neighbours:
    """Return the worst pair of neighbours found; `seed` steers the search, not the noise.

    Parameters
    ----------
    subject : the mechanism.
    source : of the noise.
    seed : of the search.
    evaluations : pairs tried.
    """
    rng = np.random.default_rng(seed)
    others = _draw(subject, rng, 2)
    rest = Records(others, np.arange(2) % subject.classes)

    def measure(pair: _Pair) -> Neighbours:
        data, neighbour = _data_sets(subject, rest, pair)
        return Neighbours(data, neighbour, replay(subject, data, neighbour, source))

    tried: list[tuple[tuple[float, int, float], _Pair, Neighbours]] = []

    def attempt(pair: _Pair) -> bool:
        result = measure(pair)
        tried.append((_rank(subject, result), pair, result))
        tried.sort(key=lambda entry: entry[0], reverse=True)
        return bool(result.comparison.faults)  # nothing can be worse

    for pair in _corners(subject):
        if attempt(pair):
            return tried[0][2]
    while len(tried) < evaluations:
        parent = tried[int(rng.integers(min(KEPT, len(tried))))][1]
        width = 0.5 * rng.random() ** 3  # mostly small steps, sometimes a large one
        if attempt(_mutated(subject, parent, width, rng)):
            break
    return tried[0][2]


def _rank(subject: Subject, neighbours: Neighbours) -> tuple[float, int, float]:
    """Order by loss; at about equal loss, pairs that differ in fewer numbers are easier to attack."""
    if neighbours.comparison.faults:
        return math.inf, 0, math.inf
    moved = sum(int((one.inputs != two.inputs).sum()) for one, two in neighbours.comparison.pairs)
    used = neighbours.used(subject)
    return round(used, 3), -moved, used


def _data_sets(subject: Subject, rest: Records, pair: _Pair) -> tuple[Records, Records]:
    count = len(pair.before)
    before = Records(pair.before, np.full(count, pair.codes[0]))
    after = Records(pair.after, np.full(count, pair.codes[1]))
    if subject.neighbours == "add-remove":
        return rest, rest.plus(after)
    return rest.plus(before), rest.plus(after)


def _draw(subject: Subject, rng: np.random.Generator, rows: int) -> Reals:
    if subject.box:
        return rng.random((rows, subject.width))
    return rng.normal(size=(rows, subject.width))


def _corners(subject: Subject) -> list[_Pair]:
    """Extreme records: one coordinate alone, all equal, zero, far outside; equal and unequal labels."""
    rows, width = subject.contributions, subject.width
    full, none = np.ones((rows, width)), np.zeros((rows, width))
    first, last = none.copy(), none.copy()
    first[:, 0], last[:, -1] = 1.0, 1.0
    mixed = full * np.where(np.arange(width) % 2, -1.0, 1.0)
    pairs = [(none, full), (first, last), (first, -first), (full, -full), (1e6 * first, -1e6 * last)]
    pairs += [] if subject.box else [(1e6 * full, 1e6 * mixed)]
    return [_Pair(a, b, codes) for a, b in pairs for codes in ((0, 0), (0, 1))]


def _mutated(subject: Subject, pair: _Pair, width: float, rng: np.random.Generator) -> _Pair:
    """Change records a little or a lot; sometimes negate, zero some coordinates, or relabel."""
    before, after = (
        side + width * max(1.0, float(np.abs(side).max())) * rng.normal(size=side.shape) * rng.integers(0, 2)
        for side in (pair.before, pair.after)
    )
    codes = pair.codes
    match int(rng.integers(8)):
        case 0:
            after = -after
        case 1:
            after = after * (rng.random(after.shape[1]) < 0.7)
        case 2:
            before = before * (rng.random(before.shape[1]) < 0.7)
        case 3:
            codes = (codes[0], int(rng.integers(subject.classes)))
    if subject.box:
        before, after = np.clip(before, 0, 1), np.clip(after, 0, 1)
    return _Pair(before, after, codes)


def report(subject: Subject, worst: Neighbours, evaluations: int) -> Finding:
    """Turn the worst of all pairs into a finding: exact, by the distribution of the noise."""
    comparison = worst.comparison
    totals = compose(comparison.charged(subject.focus))
    return Finding(
        rung="replay, worst case",
        mechanism=subject.name,
        neighbours=subject.neighbours,
        claimed=totals.epsilon_claimed,
        proved=totals.epsilon_proved,
        lower=math.inf if comparison.faults else float(comparison.epsilon(subject.focus)),
        confidence=1.0,
        runs=evaluations,
        delta=float(totals.delta),
        note="; ".join(comparison.faults) or f"{100 * worst.used(subject):.2f}% of the declared loss",
        fault=not comparison.within,
    )
