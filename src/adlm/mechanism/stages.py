"""A release as a list of stages: one function calibrates all of them, and one charges and runs them.

A stage has a share of the budget, a pass over the records (which may depend on what earlier stages released),
the sensitivity of its sums, and what becomes of the noisy sums. Class sums, counts of indicators, gradient
rounds, the perturbed loss and checks of a model are all stages; `adlm.mechanism.privatise.stages_of` lists
those of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adlm.domain import Domain
from adlm.engine.passes import Keep, Part, Partial, Records, Transform, clamped
from adlm.engine.records import TableFeatures
from adlm.errors import UserError
from adlm.features import Features, described
from adlm.model.head import Head, TargetScale
from adlm.privacy.accounting import GAUSSIAN, Budget, Charge, Gaussians, Mechanism, gaussian_mu, show
from adlm.privacy.certificate import LEARNT_BOUNDS, SEEDED
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import progress
from adlm.runtime.arithmetic import root_down, root_up

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

MU_STEPS = 10**6  # of the search for the largest mu within a budget


@dataclass(frozen=True)
class Terms:
    """The guarantee that is asked of a release.

    Attributes
    ----------
    budget : epsilon and delta.
    neighbours : `replace-one` or `add-remove`.
    contributions : records that one person may have; the guarantee is for a person.
    """

    budget: Budget
    neighbours: str
    contributions: int = 1

    @property
    def size_is_public(self) -> bool:
        """Whether the number of records is public."""
        return self.neighbours == "replace-one" and self.contributions == 1


class Run:
    """What a release has so far, for its next stages and for the certificate.

    Attributes
    ----------
    terms : the guarantee.
    records : what the next pass reads.
    n : number of records; 0 before the first pass. Private unless `terms.size_is_public`.
    features : the public map that the model is for.
    offsets, head, target : class offsets, linear model, and mean and spread of a target, once released.
    known : further released numbers that later stages need.
    tensors, facts : released numbers by name, and settings for the certificate.
    """

    def __init__(self, terms: Terms, records: Records, source: Source, charge: Callable[[], None]) -> None:
        self.terms, self.records, self.n = terms, records, 0
        self.features: Features | None = None
        self.offsets: Reals = np.zeros(1)
        self.head: Head | None = None
        self.target: TargetScale | None = None
        self.known: dict[str, Any] = {}
        self.tensors: dict[str, npt.NDArray[Any]] = {}
        self.facts: dict[str, Any] = {}
        self._source, self._charge, self._kept = source, charge, records
        self._given = records

    @property
    def source(self) -> Source:
        """The source of noise. All stages are charged before it is first handed out."""
        self._charge()
        return self._source

    def total(self, summed: Partial | Keep, advance: progress.Advance, *, stores: bool) -> tuple[Any, ...]:
        """Pass over the records and return exact sums; `stores` replaces the records by what is stored."""
        if stores:
            kept, totals = self.records.keep(_CountedKeep(summed), advance)  # type: ignore[arg-type]
            self.keep(kept)
        else:
            totals = self.records.total(_Counted(summed), advance)  # type: ignore[arg-type]
        if totals is None:
            raise UserError("there are no records to release; give at least one")
        *sums, (count,) = (total.integers() for total in totals)
        self.n = int(count)
        return tuple(sums)

    def map_tables(self, features: Features) -> None:
        """Let later passes read the features of a table's records."""
        self.features, self.records = features, self.records.mapped(TableFeatures(features))

    def keep(self, kept: Records) -> None:
        """Let later passes read stored records, and let go of those that were stored before."""
        self.close()
        self.records = self._kept = kept

    def close(self) -> None:
        """Let go of what was stored."""
        if self._kept is not self._given:
            self._kept.close()


@dataclass(frozen=True)
class Stage:
    """Noisy sums over the records: one pass, or several that cost the same.

    Attributes
    ----------
    name : what is released, in words.
    share : of the budget: of epsilon, or of mu^2 with delta.
    noise : its mechanism.
    sensitivity : of the sums of one pass to one record, in grid steps, asked of the clip.
    proof : page and theorem.
    summed : returns the pass, given what was released; its first result is what gets noise.
    then : takes the noisy sums and their noise scale into the run.
    times : number of passes with noise.
    stores : whether the pass also stores records, which later passes read.
    by_row : whether radial noise is one row of noise for each row of the sums, rather than one in all.
    """

    name: str
    share: Fraction
    noise: Mechanism
    sensitivity: Fraction
    proof: str
    summed: Callable[[Run], Partial | Keep]
    then: Callable[[Run, Integers, int], None]
    times: int = 1
    stores: bool = False
    by_row: bool = False

    @property
    def draws(self) -> int:
        """How many times noise is drawn."""
        return self.times

    def calibrated(self, loss: Fraction, terms: Terms) -> tuple[Any, tuple[Charge, ...]]:
        """Return the smallest noise scale that costs at most `loss`, epsilon or mu, and its charges."""
        moved = self.sensitivity
        if self.times > 1:
            gaussian = self.noise == "gaussian"  # whose mu^2 adds up
            moved = root_up(self.times * moved**2) if gaussian else self.times * moved
        moved *= terms.contributions
        scale = math.ceil(moved / loss)
        return scale, (self.charge(terms, moved, Fraction(scale)),)

    def charge(self, terms: Terms, moved: Fraction, scale: Fraction) -> Charge:
        """Return the charge of a sensitivity and a scale."""
        return Charge(
            self.name,
            self.noise,
            terms.neighbours,
            moved,
            scale,
            self.proof,
            terms.budget.delta,
            contributions=terms.contributions,
        )

    def noisy(self, sums: npt.NDArray[Any], scale: int, source: Source) -> npt.NDArray[Any]:
        """Return sums with noise, cut off at 64 bits."""
        if self.by_row:
            return clamped(sums + source.draw(self.noise, sums.shape, scale))
        return clamped(source.add(sums, self.noise, scale))

    def run(self, run: Run, scale: Any) -> None:
        """Pass over the records, add noise, and take the result into the run."""
        with progress.bar(run.records.rows * self.times, self.name, "records") as advance:
            for _ in range(self.times):
                sums = run.total(self.summed(run), advance, stores=self.stores)
                self.then(run, self.noisy(sums[0], scale, run.source), scale)


def spread(noise: Mechanism, width: int) -> float:
    """Return the standard deviation of noise of scale 1 on each of `width` numbers."""
    return {"laplace": math.sqrt(2.0), "radial": math.sqrt(1.0 + width), "gaussian": 1.0}[noise]


@dataclass(frozen=True)
class Calibrated:
    """Stages with the scales of their noise and what all of them cost."""

    stages: tuple[Stage, ...]
    terms: Terms
    scales: tuple[Any, ...]
    charges: tuple[Charge, ...]


def calibrate(stages: Sequence[Stage], terms: Terms, unproved: str = "") -> Calibrated:
    """Divide a budget between stages: epsilon, or mu^2 with delta.

    Parameters
    ----------
    stages : of a release, in order; their shares add up to at most 1.
    terms : budget, relation, and records of a person.
    unproved : why no epsilon is proved, if so.

    Formal guarantees
    -----------------
    Relation: the given one. Sensitivity: the stages', which asked the code that clips. Guarantee: the charges
    compose to at most the budget; they are computed from the scales returned, not from the request. Pure
    charges add up, squares of mu do (docs/proof-moments.md, Composition), and noise in a loss composes with
    both by Theorem 4 of docs/proof-objective.md.
    """
    if sum(stage.share for stage in stages) > 1:
        raise UserError("the shares of the stages add up to more than the budget")
    budget = terms.budget
    if any((stage.noise == "gaussian") != bool(budget.delta) for stage in stages):
        raise UserError("Gaussian noise needs delta, and no other noise can use it")

    def at(loss: Fraction) -> Calibrated:
        scales: list[Any] = []
        charges: list[Charge] = []
        for stage in stages:
            part = loss * (root_down(stage.share) if budget.delta else stage.share)
            scale, cost = stage.calibrated(part, terms)
            scales.append(scale)
            charges.extend(replace(charge, unproved=unproved) for charge in cost)
        return Calibrated(tuple(stages), terms, tuple(scales), tuple(charges))

    if not budget.delta:
        return at(budget.epsilon)

    def holds(found: Calibrated) -> bool:
        pure = sum((c.loss for c in found.charges if c.mechanism not in GAUSSIAN), Fraction(0))
        left = Fraction(math.floor((budget.epsilon - pure) * 10**6), 10**6)
        return Gaussians.of(found.charges).delta(left) <= budget.delta

    most = gaussian_mu(budget.epsilon, budget.delta)
    found = at(most)
    if holds(found):
        return found
    low, high = 0, MU_STEPS
    middle = high - 1  # nearly always enough for sums, whose mu was rounded
    while high - low > 1:
        low, high = (middle, high) if holds(at(most * Fraction(middle, MU_STEPS))) else (low, middle)
        middle = (low + high) // 2
    if not low:
        raise UserError(f"epsilon {show(budget.epsilon)} is too small for these settings; raise it")
    return at(most * Fraction(low, MU_STEPS))


def run_stages(
    calibrated: Calibrated,
    records: Records,
    domain: Domain,
    *,
    ledger: Ledger,
    source: Source,
    features: Features | None = None,
    settings: Mapping[str, Any] | None = None,
    stamps: tuple[str, ...] = (),
) -> Release:
    """Run the stages of a release over the records.

    Parameters
    ----------
    calibrated : the stages, their noise and their charges.
    records : encoded records of a table, or features of images and vectors, with class codes or positions of
        the target.
    domain : of the records.
    ledger : all charges are written there, once, before the first noise is drawn.
    source : of the noise.
    features : the public map that made the features; None where a stage makes that of a table.
    settings : further public facts for the certificate.
    stamps : warnings that travel with the release.

    Formal guarantees
    -----------------
    Relation and guarantee: those of the charges. A stage reads records and released numbers, and draws noise
    through `Run.source` alone. n is kept only where it is public: under replace-one with one record a person.
    """
    terms, charged = calibrated.terms, False

    def charge() -> None:
        nonlocal charged
        if not charged:
            ledger.charge(*calibrated.charges)
            charged = True

    ledger.check(*calibrated.charges)
    run = Run(terms, records, source, charge)
    run.features = features
    try:
        for stage, scale in zip(calibrated.stages, calibrated.scales, strict=True):
            stage.run(run, scale)
    finally:
        run.close()
    assert run.features is not None
    return Release.make(
        {name: torch.from_numpy(np.asarray(value)) for name, value in run.tensors.items()},
        kind="regression" if domain.target is not None else "moments",
        domain=domain,
        features=described(run.features),
        settings={
            "n": run.n if terms.size_is_public else None,
            "contributions": terms.contributions,
            "asked": terms.budget.to_dict(),
        }
        | run.facts
        | dict(settings or {}),
        charges=calibrated.charges,
        stamps=stamps + ((SEEDED,) if source.seeded else ()),
    )


def unproved_by(domain: Domain, given: str = "") -> str:
    """Return why no epsilon is proved: the given reason, or that bounds were learnt from the records."""
    return given or (LEARNT_BOUNDS if domain.bounds_learnt_from_data else "")


@dataclass(frozen=True)
class Stored:
    """A pass that sums records and stores a form of them for later passes."""

    summed: Partial
    form: Transform

    def __call__(self, part: Part) -> tuple[Part, tuple[Integers, ...]]:
        """Return the part to store, and the sums."""
        return self.form(part), self.summed(part)


class _Counted:
    """A pass, with the number of its records as its last result."""

    def __init__(self, summed: Partial) -> None:
        self.summed = summed
        if hasattr(summed, "block_rows"):
            self.block_rows = summed.block_rows

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        return (*self.summed(part), np.array([len(part[0])], dtype=np.int64))


class _CountedKeep:
    """A pass that stores records, with the number of its records as its last result."""

    def __init__(self, summed: Keep) -> None:
        self.summed = summed

    def __call__(self, part: Part) -> tuple[Part, tuple[Integers, ...]]:
        kept, sums = self.summed(part)
        return kept, (*sums, np.array([len(part[0])], dtype=np.int64))
