"""Record and replay: run a release on two neighbours with its outputs frozen, and compare inputs of noise.

The second run gets the outputs of the first, so that everything which may depend on outputs (a basis, a
later stage) is the same in both. Only the input of each draw of noise may then differ, and by no more than
the sensitivity charged for it. Deterministic, exact, in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from adlm.audit.subject import Records, Subject
from adlm.audit.tap import Call, DivergedError, Tap
from adlm.curator.ledger import Ledger
from adlm.curator.noise import Source
from adlm.privacy.accounting import Charge, Epsilon, gaussian_epsilon
from adlm.runtime.roots import root_up


@dataclass(frozen=True)
class Recording:
    """One run: its noise calls and the charges on its certificate."""

    calls: tuple[Call, ...]
    charges: tuple[Charge, ...]


@dataclass(frozen=True)
class Comparison:
    """The result of replaying two neighbours.

    Attributes
    ----------
    charges : as declared.
    powers : for each charge the loss that these neighbours cause. For Laplace noise it is the L1 distance
        over the scale, for radial noise the sum of the rows' L2 distances over it, for Gaussian noise the
        square of the L2 distance over it. Exact (radial: rounded up by 10^-12).
    faults : sentences on control flow, shapes, scales, charges; empty when all is the same.
    pairs : the calls of both runs.
    """

    charges: tuple[Charge, ...]
    powers: tuple[Fraction, ...]
    faults: tuple[str, ...]
    pairs: tuple[tuple[Call, Call], ...]

    @property
    def within(self) -> bool:
        """Whether nothing is at fault and every distance is within the sensitivity that was declared."""
        return not self.faults and all(
            power <= declared(charge) for charge, power in zip(self.charges, self.powers, strict=True)
        )

    def charged(self, focus: int | None) -> tuple[Charge, ...]:
        """Return one charge, or all."""
        return self.charges if focus is None else (self.charges[focus],)

    def used(self, focus: int | None = None) -> float:
        """Return the share of the declared loss that these neighbours cause, of one charge or of all."""
        chosen = range(len(self.charges)) if focus is None else [focus]
        caused = sum((self.powers[i] for i in chosen), Fraction(0))
        allowed = sum((declared(self.charges[i]) for i in chosen), Fraction(0))
        if len({charge.mechanism == "gaussian" for charge in self.charges}) > 1 and focus is None:
            raise ValueError("pure and Gaussian charges are audited one at a time; choose one")
        share = float(caused / allowed)
        return math.sqrt(share) if self.charges[chosen[0]].mechanism == "gaussian" else share

    def epsilon(self, focus: int | None = None) -> Epsilon:
        """Return the lower bound on epsilon from these neighbours, by the exact distribution of the noise.

        Laplace and radial noise attain their loss; for Gaussian noise it is the analytic epsilon of the
        distance.
        """
        chosen = range(len(self.charges)) if focus is None else [focus]
        total, mu = Fraction(0), Fraction(0)
        for i in chosen:
            if self.charges[i].mechanism == "gaussian":
                mu += self.powers[i]
            else:
                total += self.powers[i]
        if mu:
            total += gaussian_epsilon(root_up(mu), max(self.charges[i].delta for i in chosen))
        return total


def declared(charge: Charge) -> Fraction:
    """Return the loss that a charge allows, in the units of `Comparison.powers`."""
    return charge.loss**2 if charge.mechanism == "gaussian" else charge.loss


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
    return Recording(tap.finished(), charges)


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
        power = distance(one, two)
        if charge is None:
            if power:
                faults.append("noise that is charged to nobody was added to something private")
        else:
            powers[charge] += power
    return Comparison(first.charges, tuple(powers), tuple(faults), pairs)


def distance(one: Call, two: Call) -> Fraction:
    """Return the loss between two inputs; see `Comparison.powers`."""
    moved = (one.inputs - two.inputs).astype(object)
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
        if charge is None:
            continue
        if call.charged <= charge:
            return [f"noise for charge {charge + 1} was drawn before it was in the ledger"]
        if call.mechanism != run.charges[charge].mechanism:
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
