"""Exact tests of a mechanism: record and replay, and a search for worst-case neighbours.

A release is run on two neighbours with its outputs frozen, and the inputs of its noise are compared. The
second run gets the outputs of the first, so that everything which may depend on outputs (a basis, a later
stage) is the same in both. Only the input of each draw of noise may then differ, and by no more than the
sensitivity charged for it. Deterministic, exact, in milliseconds. The search looks for the pair of neighbours
that comes nearest to what is charged, or exceeds it; it treats mechanisms as black boxes.

Every mechanism takes a `Source`, draws noise by its methods, and adds it. A `Tap` is a source whose noise is
a proxy that records what it is added to: the mechanism's input. The code under audit is the product's own,
unchanged; noise made in any other way is detected, because a tap refuses to return random bytes.

The minimum of a perturbed loss is not a sum with noise. There the released weights are frozen, and the noise
that each data set would have needed for them is compared: the gradient of its loss, and its curvature
(`Minimum`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.audit.statistics import Finding, Reals
from adlm.mechanism.objective import PRECISION_UNIT, Objective, ObjectiveNoise, residuals
from adlm.mechanism.synthetic import CHOICE_MU
from adlm.privacy.accounting import GAUSSIAN, Charge, Epsilon, Mechanism, TradeOff, compose, gaussian_epsilon
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Scale, Source
from adlm.runtime.arithmetic import root_up

Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int64]
Shape = int | tuple[int, ...]
KEPT = 4  # pairs that the search goes on from, for each charge
FREE = -1  # in `Subject.covers`: noise whose input is not compared, because something else is
STEP = 1e-6  # of the derivative of a residual
WEISZFELD = 25  # steps towards a geometric median
ROUNDED = Fraction(10**9 - 1, 10**9)  # of powers that are computed in floating point


@dataclass(frozen=True)
class Records:
    """A data set: (n, k) values and (n,) class codes."""

    values: Reals
    codes: Codes

    def plus(self, other: Records) -> Records:
        """These records and then others."""
        return Records(np.vstack([self.values, other.values]), np.concatenate([self.codes, other.codes]))


@dataclass(frozen=True)
class Subject:
    """A mechanism under audit.

    Attributes
    ----------
    name, neighbours : of the mechanism and of the relation it is audited for.
    run : makes the release by the product's own code and returns the charges on its certificate.
    covers : for each draw of noise in order, the index of its charge; None for noise on no record, and FREE
        for the two draws of a perturbed loss.
    width, classes : of the records.
    box : whether records lie in [0, 1] (raw records) or are unbounded (feature vectors).
    contributions : records in which neighbours differ.
    losses : index of the charge of noise in each perturbed loss; the next one is that of its ridge.
    weaken : factor on every noise scale that the charges do not know of; 1 except for negative controls.
    """

    name: str
    neighbours: str
    run: Callable[[Records, Ledger, Source], tuple[Charge, ...]]
    covers: tuple[int | None, ...]
    width: int
    classes: int = 2
    box: bool = False
    contributions: int = 1
    losses: tuple[int, ...] = ()
    weaken: Fraction = Fraction(1)

    @property
    def label(self) -> str:
        """Name and relation in one line."""
        return f"{self.name}, {self.neighbours}"

    @property
    def charges(self) -> tuple[int, ...]:
        """Indices of the charges that an attack can be made on."""
        return tuple(sorted({c for c in self.covers if c is not None and c != FREE} | set(self.losses)))


@dataclass(frozen=True, eq=False)
class Minimum:
    """A perturbed loss as it was minimised: its records and settings, and the weights that were released.

    Attributes
    ----------
    objective, noise : the public settings, and the calibrated noise.
    rows, answers : (n, 1 + k) bounded features, real, and (n,) class codes or standardised targets.
    offsets, shift : (M,) as released, and (R,) as added to the scores.
    weights : (R, 1 + k) released weights, real.
    """

    objective: Objective
    noise: ObjectiveNoise
    rows: Reals
    answers: Reals
    offsets: Reals
    shift: Reals
    weights: Reals

    def _residuals(self, scores: Reals) -> Reals:
        """Return (runs, n, R) gradients in (runs, n, R) scores."""
        flat = np.ascontiguousarray(scores.reshape(-1, scores.shape[2]))
        labels = np.tile(self.answers, len(scores))
        return residuals(flat, labels, self.objective).reshape(scores.shape)

    def _scores(self, weights: Reals) -> Reals:
        return np.asarray(np.einsum("nk,trk->tnr", self.rows, weights) + self.shift)

    def slope(self, weights: Reals) -> Reals:
        """Return the (runs, R, 1 + k) gradients of loss and ridge at as many weights: minus the noise."""
        found = np.einsum("tnr,nk->trk", self._residuals(self._scores(weights)), self.rows)
        return np.asarray(found + self.objective.penalty(weights))

    def hessian(self, weights: Reals) -> Reals:
        """Return the (runs, D, D) Hessians of loss and ridge, D = R (1 + k)."""
        scores = self._scores(weights)
        runs, _, rows = scores.shape
        bend = np.empty((*scores.shape, rows))
        for r in range(rows):
            side = np.zeros(rows)
            side[r] = STEP
            bend[..., r] = (self._residuals(scores + side) - self._residuals(scores - side)) / (2 * STEP)
        found = np.einsum("tnrs,nk,nl->trksl", bend, self.rows, self.rows)
        width = self.rows.shape[1]
        size = rows * width
        ridge = np.kron(np.eye(rows), self.objective.penalty(np.eye(width)))
        return np.asarray(found.reshape(runs, size, size) + ridge)

    def loss_of(self, moved: Reals) -> Reals:
        """Return the norms of (runs, R, 1 + k) noise over its scale; one shift of all rows costs nothing."""
        if self.objective.precision is not None:
            moved = moved * self.objective.weighting / PRECISION_UNIT
        shift = np.zeros_like(moved[:, :1])
        if self.objective.rows > 1:
            shift = np.median(moved, axis=1, keepdims=True)
        if self.objective.noise == "laplace":
            return np.asarray(np.abs(moved - shift).sum((1, 2)) / self.noise.scale)
        least = np.sqrt(((moved - shift) ** 2).sum(2)).sum(1)
        for row in range(moved.shape[1] if self.objective.rows > 1 else 0):  # steps never end at a row itself
            apart = np.sqrt(((moved - moved[:, row : row + 1]) ** 2).sum(2)).sum(1)
            least = np.minimum(least, apart)
        for _ in range(WEISZFELD if self.objective.rows > 1 else 0):  # the best shift is a geometric median
            near = 1 / np.maximum(np.sqrt(((moved - shift) ** 2).sum(2, keepdims=True)), 1e-12)
            shift = (moved * near).sum(1, keepdims=True) / near.sum(1, keepdims=True)
            least = np.minimum(least, np.sqrt(((moved - shift) ** 2).sum(2)).sum(1))
        return np.asarray(least / self.noise.scale)

    def log_density(self, weights: Reals) -> Reals:
        """Return the log densities of released weights, up to a constant: of the noise, and the Hessian."""
        size = self.loss_of(self.slope(weights))
        cost = size**2 / 2 if self.objective.noise == "gaussian" else size
        return np.asarray(np.linalg.slogdet(self.hessian(weights))[1] - cost)


@dataclass(frozen=True)
class Call:
    """One use of noise: its input, its output, and the charges made by then.

    Attributes
    ----------
    mechanism : `laplace`, `gaussian`, `radial`, or `choice` by the exponential mechanism.
    scale : of the noise, in grid steps.
    inputs : integers that the noise was added to; zeros when it was used alone; scores of a choice.
    output : their sum with the noise, or the index chosen.
    charged : number of charges in the ledger when the noise was drawn.
    """

    mechanism: str
    scale: Fraction
    inputs: Integers
    output: Integers
    charged: int


class Tap(Source):
    """Records the draws of a run; given those of an earlier run, returns their outputs again.

    Parameters
    ----------
    source : where real noise comes from.
    ledger : the one that the run charges.
    frozen : calls of an earlier run. Call i then returns the earlier output, whatever its input.
    weaken : factor on every noise scale while the charges stay as they are, for negative controls.
    """

    def __init__(
        self,
        source: Source,
        ledger: Ledger,
        frozen: Sequence[Call] | None = None,
        weaken: Fraction = Fraction(1),
    ) -> None:
        super().__init__(bytes(32), seeded=False)
        self.source, self.ledger, self.frozen, self.weaken = source, ledger, frozen, weaken
        self.calls: list[Call | None] = []
        self.minima: list[Minimum] = []

    def octets(self, count: int) -> npt.NDArray[np.uint8]:
        """Refuse."""
        raise AssertionError("noise was drawn past a source's methods, where the audit cannot see its input")

    def permutation(self, count: int) -> npt.NDArray[np.intp]:
        """Return one order for both runs: it does not depend on the records."""
        return np.arange(count)

    def laplace(self, shape: Shape, scale: Scale) -> Any:
        """Stand in for Laplace noise."""
        return self._recorded("laplace", shape if isinstance(shape, tuple) else (shape,), scale)

    def gaussian(self, shape: Shape, scale: Scale) -> Any:
        """Stand in for Gaussian noise."""
        return self._recorded("gaussian", shape if isinstance(shape, tuple) else (shape,), scale)

    def radial(self, rows: int, width: int, scale: Scale) -> Any:
        """Stand in for radial noise."""
        return self._recorded("radial", (rows, width), scale)

    def choose(self, scores: Integers, scale: Scale) -> int:
        """Stand in for the exponential mechanism."""
        exact = Fraction(scale) * self.weaken
        picked = self.source.choose(scores, exact)
        if self.frozen is not None:
            index = len(self.calls)
            if index >= len(self.frozen) or self.frozen[index].inputs.shape != scores.shape:
                raise DivergedError(f"choice {index + 1} has no counterpart of {len(scores)} scores")
            picked = int(self.frozen[index].output[0])
        inputs, charged = scores.astype(np.int64), len(self.ledger.charges)
        self.calls.append(Call("choice", exact, inputs, np.array([picked]), charged))
        return picked

    def _recorded(self, mechanism: Mechanism, shape: tuple[int, ...], scale: Scale) -> _Noise:
        index, exact = len(self.calls), Fraction(scale)
        if self.weaken != 1:  # rounded down to a whole number of steps, which is faster to draw
            exact = Fraction(max(1, math.floor(exact * self.weaken)))
        self.calls.append(None)
        charged = len(self.ledger.charges)
        drawn = self.source.draw(mechanism, shape, exact) if self.frozen is None else None

        def settle(inputs: Integers) -> Integers:
            if self.calls[index] is not None:
                raise AssertionError("one draw of noise was used twice")
            if drawn is not None:
                output = inputs + drawn
            else:
                assert self.frozen is not None
                if index >= len(self.frozen) or self.frozen[index].output.shape != inputs.shape:
                    raise DivergedError(f"noise call {index + 1} has no counterpart of shape {inputs.shape}")
                output = self.frozen[index].output
            self.calls[index] = Call(mechanism, exact, inputs.copy(), output.copy(), charged)
            return np.asarray(output.copy())

        return _Noise(shape, settle)

    def finished(self) -> tuple[Call, ...]:
        """All calls, once the run is over."""
        return tuple(call for call in self.calls if call is not None)


class DivergedError(Exception):
    """The second run diverged from the first: its control flow depends on more than the outputs."""


class _Noise(np.lib.mixins.NDArrayOperatorsMixin):
    """Proxy of an array of noise: may be added once to integers of its shape, or read as it is."""

    def __init__(self, shape: tuple[int, ...], settle: Callable[[Integers], Integers]) -> None:
        self.shape, self._settle = shape, settle

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        others = [operand for operand in inputs if operand is not self]
        if ufunc is not np.add or method != "__call__" or len(others) != 1:
            raise AssertionError(f"noise may be added and nothing else before it is released, not {ufunc}")
        values = np.asarray(others[0])
        if values.dtype.kind not in "iu" or values.shape != self.shape:
            raise AssertionError(f"noise must be added to integers of its shape, not {values.dtype}")
        result = self._settle(values.astype(np.int64))
        out = kwargs.get("out")
        if out is None:
            return result
        out[0][...] = result
        return out[0]

    def __getitem__(self, key: Any) -> Any:
        return self._settle(np.zeros(self.shape, dtype=np.int64))[key]


@dataclass(frozen=True)
class Recording:
    """One run: its noise calls, the charges on its certificate, and its perturbed losses."""

    calls: tuple[Call, ...]
    charges: tuple[Charge, ...]
    minima: tuple[Minimum, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The result of replaying two neighbours.

    Attributes
    ----------
    charges : as declared, of the first run.
    powers : for each charge the loss that these neighbours cause. For Laplace noise it is the L1 distance
        over the scale, for radial noise the sum of the rows' L2 distances over it, for Gaussian noise the
        square of the L2 distance over it. Exact (radial: rounded up by 10^-12). For a choice the range of
        the differences of scores over the scale. For a perturbed loss the difference of the gradients at the
        released weights, and of the log determinants of the Hessians, in floating point.
    faults : sentences on control flow, shapes, scales, charges; empty when all is the same.
    pairs, minima : the calls and the perturbed losses of both runs.
    """

    charges: tuple[Charge, ...]
    powers: tuple[Fraction, ...]
    faults: tuple[str, ...]
    pairs: tuple[tuple[Call, Call], ...]
    minima: tuple[tuple[Minimum, Minimum], ...] = ()

    @property
    def within(self) -> bool:
        """Whether nothing is at fault and every distance is within the sensitivity that was declared."""
        return not self.faults and all(
            power <= declared(charge) for charge, power in zip(self.charges, self.powers, strict=True)
        )

    def used(self, charge: int | None = None) -> float:
        """Return the share of the declared loss that these neighbours cause, of one charge or of all."""
        chosen = self._chosen(charge)
        charges = [self.charges[i] for i in chosen]
        if len({c.mechanism in GAUSSIAN for c in charges}) > 1:  # the two kinds add as epsilons
            return float(self.epsilon(charge)) / float(compose(charges).epsilon_proved)
        share = float(sum(self.powers[i] for i in chosen) / sum(map(declared, charges), Fraction(0)))
        return math.sqrt(share) if charges[0].mechanism in GAUSSIAN else share

    def epsilon(self, charge: int | None = None) -> Epsilon:
        """Return the lower bound on epsilon from these neighbours, by the exact distribution of the noise.

        Laplace and radial noise attain their loss; for Gaussian noise it is the analytic epsilon of the
        distance.
        """
        total, mu, delta = Fraction(0), Fraction(0), Fraction(0)
        for i in self._chosen(charge):
            if self.charges[i].mechanism in GAUSSIAN:
                mu, delta = mu + self.powers[i], max(delta, self.charges[i].delta)
            else:
                total += self.powers[i]
        return total + gaussian_epsilon(root_up(mu), delta) if mu else total

    def _chosen(self, charge: int | None) -> Sequence[int]:
        return range(len(self.charges)) if charge is None else [charge]


def declared(charge: Charge) -> Fraction:
    """Return the loss that a charge allows, in the units of `Comparison.powers`."""
    return charge.loss**2 if charge.mechanism in GAUSSIAN else charge.loss


def record(
    subject: Subject, data: Records, source: Source, frozen: Sequence[Call] | None = None
) -> Recording:
    """Run a subject on data and record the inputs and outputs of its noise.

    Parameters
    ----------
    subject : the mechanism.
    data : its records.
    source : of real noise.
    frozen : calls of an earlier run, whose outputs are returned again.
    """
    ledger = Ledger()
    tap = Tap(source, ledger, frozen, subject.weaken)
    charges = subject.run(data, ledger, tap)
    return Recording(tap.finished(), charges, tuple(tap.minima))


def replay(subject: Subject, data: Records, neighbour: Records, source: Source) -> Comparison:
    """Run on `data`, run again on `neighbour` with frozen outputs, and compare.

    Parameters
    ----------
    subject : the mechanism.
    data, neighbour : records that differ in one record or person.
    source : of the first run's noise.

    Formal guarantees
    -----------------
    If `Comparison.within` holds for all neighbours then the composed charges bound the privacy loss: each
    draw is exact noise on inputs whose distance is within the sensitivity charged for it, given the outputs
    before it. Replay checks the pair that it is given.
    """
    first = record(subject, data, source)
    return compare(subject, first, neighbour, source)


def compare(subject: Subject, first: Recording, neighbour: Records, source: Source) -> Comparison:
    """Replay a recorded run on a neighbour.

    Parameters
    ----------
    subject : the mechanism.
    first : a run on one data set.
    neighbour : the other data set.
    source : not used, as outputs are frozen.
    """
    try:
        second = record(subject, neighbour, source, first.calls)
    except DivergedError as error:
        return Comparison(first.charges, (Fraction(0),) * len(first.charges), (str(error),), ())
    faults = [*_faults(subject, first), *_differences(first, second)]
    pairs = tuple(zip(first.calls, second.calls, strict=False))
    if faults:
        return Comparison(first.charges, (Fraction(0),) * len(first.charges), tuple(faults), pairs)
    powers = [Fraction(0)] * len(first.charges)
    for (one, two), charge in zip(pairs, subject.covers, strict=True):
        if charge == FREE:
            continue
        power = distance(one, two, squared=charge is not None and first.charges[charge].mechanism in GAUSSIAN)
        if charge is None:
            if power:
                faults.append("noise that is charged to nobody was added to something private")
        else:
            powers[charge] += power
    minima = tuple(zip(first.minima, second.minima, strict=True))
    for (here, there), charge in zip(minima, subject.losses, strict=True):
        at = here.weights[None]
        moved = Fraction(float(here.loss_of(here.slope(at) - there.slope(at))[0])) * ROUNDED
        powers[charge] = moved**2 if first.charges[charge].mechanism in GAUSSIAN else moved
        bends = [float(np.linalg.slogdet(side.hessian(at))[1][0]) for side in (here, there)]
        powers[charge + 1] = Fraction(abs(bends[0] - bends[1])) * ROUNDED
    return Comparison(first.charges, tuple(powers), tuple(faults), pairs, minima)


def distance(one: Call, two: Call, *, squared: bool = False) -> Fraction:
    """Return the loss between two inputs, of a choice as mu^2 if `squared`; see `Comparison.powers`."""
    moved = (one.inputs - two.inputs).astype(object)
    if one.mechanism == "choice":
        spread = Fraction(int(moved.max() - moved.min())) / one.scale
        return (spread * CHOICE_MU / 2) ** 2 if squared else spread
    if one.mechanism == "laplace":
        return Fraction(int(abs(moved).sum())) / one.scale
    if one.mechanism == "gaussian":
        return Fraction(int((moved * moved).sum())) / one.scale**2
    return sum((root_up(Fraction(int((row * row).sum()))) for row in moved), Fraction(0)) / one.scale


def _faults(subject: Subject, run: Recording) -> list[str]:
    """List the faults of a single run."""
    if len(run.calls) != len(subject.covers):
        return [f"{len(run.calls)} draws of noise were made, {len(subject.covers)} are accounted for"]
    for call, charge in zip(run.calls, subject.covers, strict=True):
        if charge is None or charge == FREE:
            continue
        if call.charged <= charge:
            return [f"noise for charge {charge + 1} was drawn before it was in the ledger"]
        if call.mechanism not in (run.charges[charge].mechanism, "choice"):
            return [f"charge {charge + 1} is {run.charges[charge].mechanism}, its noise {call.mechanism}"]
    return []


def _differences(one: Recording, two: Recording) -> list[str]:
    """List the differences of two runs other than the inputs of their noise."""
    if one.charges != two.charges:
        return ["the charges depend on the records"]
    if len(one.calls) != len(two.calls):
        return [f"one run drew noise {len(one.calls)} times, the other {len(two.calls)} times"]
    for index, (a, b) in enumerate(zip(one.calls, two.calls, strict=True), 1):
        if (a.mechanism, a.scale, a.charged) != (b.mechanism, b.scale, b.charged):
            return [f"noise call {index} depends on the records: {a.scale} against {b.scale}"]
        if not np.array_equal(a.output, b.output):
            return [f"noise call {index} did not return the frozen output"]
    return []


@dataclass(frozen=True)
class Neighbours:
    """Two neighbouring data sets and their comparison by replay."""

    data: Records
    neighbour: Records
    comparison: Comparison


Worst = dict[int | None, Neighbours]  # the worst pair for each charge, and under None for all together


@dataclass(frozen=True)
class _Pair:
    """The records in which neighbours differ: (contributions, width) and labels, before and after."""

    before: Reals
    after: Reals
    codes: tuple[int, int]


def worst_neighbours(subject: Subject, source: Source, *, evaluations: int, seed: int = 0) -> Worst:
    """Return the worst pairs of neighbours found; `seed` steers the search, not the noise.

    A small evolutionary search over pairs of records and labels. Its objective is the share of the declared
    loss that a pair causes, measured by replay on the real code path. Each pair is run once and held against
    every charge.

    Parameters
    ----------
    subject : the mechanism.
    source : of the noise.
    seed : of the search.
    evaluations : pairs tried.
    """
    rng = np.random.default_rng(seed)
    rest = Records(_draw(subject, rng, 2), np.arange(2) % subject.classes)
    best: dict[int | None, list[tuple[tuple[float, int, float], _Pair, Neighbours]]] = {}
    tried = 0

    def attempt(pair: _Pair) -> Neighbours:
        data, neighbour = _data_sets(subject, rest, pair)
        result = Neighbours(data, neighbour, replay(subject, data, neighbour, source))
        for charge in (None, *subject.charges):
            kept = best.setdefault(charge, [])
            kept.append((_rank(subject, result.comparison, charge), pair, result))
            kept.sort(key=lambda entry: entry[0], reverse=True)
            del kept[KEPT:]
        return result

    corners = _corners(subject)
    while tried < max(evaluations, len(corners)):
        if tried < len(corners):
            pair = corners[tried]
        else:
            kept = best[[*best][int(rng.integers(len(best)))]]
            parent = kept[int(rng.integers(len(kept)))][1]
            width = 0.5 * rng.random() ** 3  # mostly small steps, sometimes a large one
            pair = _mutated(subject, parent, width, rng)
        tried += 1
        if attempt(pair).comparison.faults:  # nothing can be worse
            break
    return {charge: kept[0][2] for charge, kept in best.items()}


def _rank(subject: Subject, comparison: Comparison, charge: int | None) -> tuple[float, int, float]:
    """Order by loss; at about equal loss, pairs that differ in fewer numbers are easier to attack."""
    if comparison.faults:
        return math.inf, 0, math.inf
    moved = sum(int((one.inputs != two.inputs).sum()) for one, two in pairs_of(subject, comparison, charge))
    used = comparison.used(charge)
    return round(used, 3), -moved, used


def pairs_of(subject: Subject, comparison: Comparison, charge: int | None) -> list[tuple[Call, Call]]:
    """Return the draws of noise that belong to one charge, or to any."""
    wanted = [i for i in subject.charges if charge in (None, i)]
    return [pair for pair, i in zip(comparison.pairs, subject.covers, strict=True) if i in wanted]


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
    pairs = [(none, full), (first, last), (1e6 * first, -1e6 * last), (first, full - first)]
    pairs.append(((full - mixed) / 2, (full + mixed) / 2))
    inside = [(full / 2, full), (full / 2, none)]
    outside = [(first, -first), (full, -full), (1e6 * full, 1e6 * mixed)]
    pairs += inside if subject.box else outside
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


def report(subject: Subject, worst: Worst, evaluations: int) -> Finding:
    """Turn the worst of all pairs into a finding: exact, by the distribution of the noise."""
    comparison = worst[None].comparison
    totals, bound = compose(comparison.charges), TradeOff.of(comparison.charges)
    faults = dict.fromkeys(fault for pair in worst.values() for fault in pair.comparison.faults)
    note = "; ".join(faults)
    if not faults:
        shares = [worst[i].comparison.used(i) for i in subject.charges]
        note = f"share of the charged loss: {', '.join(f'{100 * share:.2f}%' for share in shares)}"
    return Finding(
        attack="replay, worst case",
        mechanism=subject.name,
        neighbours=subject.neighbours,
        claimed=totals.epsilon_claimed,
        proved=totals.epsilon_proved,
        lower=math.inf if faults else float(comparison.epsilon()),
        confidence=1.0,
        runs=evaluations,
        delta=float(totals.delta),
        note=note,
        fault=not all(pair.comparison.within for pair in worst.values()),
        mu=bound.mu if bound is not None and not bound.epsilon else 0.0,
    )
