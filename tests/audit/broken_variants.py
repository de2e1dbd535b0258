"""Variants of the product that are wrong on purpose: each must be caught by the audit.

Three kinds. Records reach a sound mechanism in a wrong way, or an exact number is released besides its output
(INPUTS). Gradient rounds are patched (ROUNDS), and so are releases for a numeric target (TARGETS); both are
tested by replay, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adlm.audit.replay import DivergedError, Records, Subject, replay
from adlm.audit.runner import Control, attacked, caught
from adlm.audit.separability import batch_separability, trial_records
from adlm.audit.statistics import Finding, Reals
from adlm.audit.subjects import (
    DELTA,
    MIXED,
    TARGET,
    of_bits,
    of_plan,
    of_sums,
    of_synthetic,
    public_relevance,
    release_vectors,
)
from adlm.audit.subjects import (
    ROUNDS as SHORT,
)
from adlm.domain import Domain
from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.features.base import Identity
from adlm.features.tables import ScaledTable
from adlm.mechanism import synthetic
from adlm.mechanism.gradient_rounds import GradientClip, RoundsStage, RoundSum, TargetClip, clip_of
from adlm.mechanism.planner import Plan
from adlm.mechanism.stages import Run
from adlm.model.head import ERROR_UNIT, Descent, GradientRounds
from adlm.privacy.accounting import Budget, Charge, Epsilon
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source

LIMIT, N = 50, 60  # records that a wrong reader takes, of so many
GRADIENTS, ERRORS = 2, 3  # charges of a release for a numeric target
CROWD = 400


# Inputs


def _subject(name: str, neighbours: str, reads: Callable[[Records], Records]) -> Subject:
    """A release of one class sum at epsilon 2, of the records as `reads` returns them."""
    domain = Domain((1,), 0.0, 1.0, ("a", "b"), neighbours)
    plan, budget = Plan("class sums", 2, 1, "laplace"), Budget(Fraction(2))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        return release_vectors(reads(data), domain, plan, budget, ledger, source).certificate.charges

    return Subject(name, neighbours, run, (0,), 1)


def shifting_window(runs: int, source: Source) -> Finding:
    """The first records of a file under add-remove: if one is removed, another one enters."""
    subject = _subject(
        "first records under add-remove",
        "add-remove",
        lambda data: Records(data.values[:LIMIT], data.codes[:LIMIT]),
    )
    values, codes = np.ones((N, 1)), np.arange(N) // LIMIT  # the record that enters is of the other class
    everybody, one_less = Records(values, codes), Records(values[1:], codes[1:])
    return attacked(subject, everybody, one_less, max(runs, 20_000), source)


def batch_maximum(runs: int, source: Source) -> Finding:
    """Features divided by the largest value of their batch: one outlier changes all others."""
    subject = _subject(
        "features divided by their batch's maximum",
        "replace-one",
        lambda data: Records(data.values / data.values.max(), data.codes),
    )
    values, codes = np.full((N, 1), 0.01), np.zeros(N, dtype=np.int64)
    outlier = values.copy()
    outlier[-1] = 1.0
    return attacked(subject, Records(values, codes), Records(outlier, codes), runs, source)


def exact_number(runs: int, source: Source) -> Finding:
    """The exact number of records where a person may have several: replacing a person changes it."""
    del source  # there is no noise on it
    on_either = np.full(runs, float(N)), np.full(runs, float(N - 1))
    return caught("exact n, several records a person", Fraction(1), on_either, "n is released without noise")


def seeded_input(runs: int, source: Source) -> Finding:
    """A network of a seeded release passed on as private: whoever knows the seed can remove the noise."""
    del source  # it is the seed that is wrong
    scale, moved = Fraction(1 << 20), 1 << 20

    def noise() -> Reals:
        return np.asarray(Source.seeded_with(7).laplace(runs, scale), dtype=np.float64)

    on_either = moved + noise() - noise(), noise() - noise()
    return caught(
        "relevance network of a seeded release", Fraction(1), on_either, "the seed's noise is subtracted"
    )


class BatchRounded(Identity):
    """Features divided by the number of records and multiplied by it again: only the last bits change."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / len(x) * len(x)


def batch_rounding(runs: int, source: Source) -> Finding:
    """Features whose last bits depend on the size of their batch."""
    del runs, source  # the features of every record are compared, bit by bit
    name = "features rounded by the size of their batch"
    finding = batch_separability(BatchRounded((20,)), trial_records(70, (20,)), "add-remove", name)
    return replace(finding, control=True)


def relevance_trained_on_data(runs: int, source: Source) -> Finding:
    """A relevance network trained on the records, declared public: one record decides its weights."""
    width, n = 4, 101
    domain = Domain((width,), 0.0, 1.0, ("a", "b"))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        network = _trained(torch.from_numpy(data.values).float(), torch.from_numpy(data.codes))
        return public_relevance(network, data, domain, Fraction(1, 2), ledger, source).charges

    values = np.full((n, width), 0.5)
    codes = np.arange(n) % 2  # identical records of both classes: nothing to learn from
    one, two = values.copy(), values.copy()
    one[-1], two[-1] = (1, 0, 0, 0), (0, 1, 0, 0)
    subject = Subject("relevance network trained on the data", "replace-one", run, (0,), width, box=True)
    return attacked(subject, Records(one, codes), Records(two, codes), runs, source)


def _trained(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """Fit a logistic regression from zero: the same initial weights for every data set."""
    layer = nn.Linear(x.shape[1], 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    network = nn.Sequential(layer)
    optimiser = torch.optim.SGD(network.parameters(), lr=1.0)
    for _ in range(50):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return network


INPUTS: tuple[Control, ...] = (
    shifting_window,
    batch_maximum,
    batch_rounding,
    exact_number,
    seeded_input,
    relevance_trained_on_data,
)


# Gradient rounds, patched


@contextmanager
def put(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a class or a module within this context."""
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def without_clip() -> AbstractContextManager[None]:
    """Gradients that are not clipped, charged as if they were."""

    def everything(self: GradientClip, squares: Any) -> Any:
        return np.full(len(squares), 1 << 52, dtype=np.int64)

    return put(GradientClip, "allowed_for", everything)


def half_sensitivity() -> AbstractContextManager[None]:
    """The sensitivity of adding a record, charged for replacing one: C where 2 C is due."""

    def one(self: GradientClip, neighbours: str) -> Fraction:
        return Fraction(self.bound)

    return put(GradientClip, "sensitivity", one)


def replayed(
    subject: Subject, pair: tuple[Records, Records], charge: int, note: str, source: Source
) -> Finding:
    """Replay a pair of neighbours, and report the lower bound against one charge.

    Parameters
    ----------
    subject : the control, under replace-one.
    pair : two sets of records that differ in one.
    charge : which of the release's charges is refuted.
    note : why the control is wrong.
    source : of the noise.
    """
    claimed: Epsilon = Fraction(4)
    lower = 0.0
    try:
        comparison = replay(subject, *pair, source)
        claimed = comparison.charges[charge].epsilon_proved
        if comparison.faults:
            lower = float("inf")
        elif comparison.powers[charge] > comparison.charges[charge].loss ** 2:
            lower = float(comparison.epsilon(charge))
    except (AssertionError, DivergedError) as error:
        lower, note = float("inf"), f"{note}: {error}"
    return refuted(subject.name, claimed, lower, note)


def refuted(name: str, claimed: Epsilon, lower: float, note: str) -> Finding:
    """Return the finding of an exact argument against a control.

    Parameters
    ----------
    name, note : the control, and why it is wrong.
    claimed : the epsilon that is charged for it.
    lower : the lower bound from its inputs; 0 if it was not refuted.
    """
    return Finding(
        attack="control",
        mechanism=name,
        neighbours="replace-one",
        claimed=claimed,
        proved=float("inf"),
        lower=lower,
        confidence=1.0,
        runs=1,
        control=True,
        note=note,
    )


def _rounds(name: str) -> Subject:
    shares = {"sums": Fraction(1, 2), "gradients": Fraction(19, 40), "check": Fraction(1, 40)}
    rounds = GradientRounds(2, 0.25, 8.0, 2)
    return of_sums(name, "replace-one", delta=DELTA, rounds=rounds, shares=shares)


def _pair() -> tuple[Records, Records]:
    """Two records with equal features and different classes: their gradients have opposite signs."""
    values = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    one = Records(values, np.array([0, 1]))
    return one, Records(values, np.array([1, 1]))


def _found(name: str, note: str, source: Source) -> Finding:
    """Replay the pair against the charge for the rounds."""
    subject = _rounds(name)
    return replayed(subject, _pair(), 1, note, source)


def round_without_clip(runs: int, source: Source) -> Finding:
    """Residuals that are not bounded, charged as if they were."""
    del runs
    with without_clip():
        return _found("gradient round without its clip", "nothing bounds a gradient", source)


def half_the_sensitivity(runs: int, source: Source) -> Finding:
    """The sensitivity of adding a record, charged for replacing one: C where 2 C is due."""
    del runs
    with half_sensitivity():
        return _found("sensitivity C under replace-one", "two gradients can point opposite ways", source)


def no_progress(done: int) -> None:
    """Show nothing."""


def head_before_noise(runs: int, source: Source) -> Finding:
    """A head that was updated by a gradient sum before its noise was added."""
    del runs

    def peeking(self: RoundsStage, run: Run, scale: int) -> None:
        clip, released = clip_of(self.rounds), []
        descent = Descent(replace(self.rounds, step=1e4), np.zeros_like(run.offsets), self.width)
        for _ in range(self.times):
            (total,) = run.total(RoundSum(clip, descent.head()), no_progress, stores=False)
            released.append(total + run.source.gaussian(total.shape, scale))
            descent.update(total)  # should be what was released
        run.head, run.tensors["gradients"] = descent.final(), np.stack(released)

    with put(RoundsStage, "run", peeking):
        data, neighbour = _pair()
        crowd = Records(np.tile([[0.0, 1.0, 0.0]], (400, 1)), np.tile(np.array([0, 1]), 200))
        subject = _rounds("head")
        comparison = replay(subject, crowd.plus(data), crowd.plus(neighbour), source)
    return refuted(
        "head that saw a sum before its noise",
        comparison.charges[1].epsilon_proved,
        0.0 if comparison.within else float(comparison.epsilon(1)),
        "the next gradients of all other records move with it",
    )


def noise_used_again(runs: int, source: Source) -> Finding:
    """Noise of one round reused in the next: the difference of the two carries none."""
    del runs

    def reused(self: RoundsStage, run: Run, scale: int) -> None:
        clip, drawn, released = clip_of(self.rounds), None, []
        descent = Descent(self.rounds, run.offsets, self.width)
        for _ in range(self.times):
            (total,) = run.total(RoundSum(clip, descent.head()), no_progress, stores=False)
            drawn = run.source.gaussian(total.shape, scale) if drawn is None else drawn
            released.append(total + drawn)
            descent.update(released[-1])
        run.head, run.tensors["gradients"] = descent.final(), np.stack(released)

    with put(RoundsStage, "run", reused):
        return _found("noise of one round used in the next", "one draw covers two sums", source)


ROUNDS = (round_without_clip, half_the_sensitivity, head_before_noise, noise_used_again)


# Releases for a numeric target, patched


def target_pair(other: float = 0.0) -> tuple[Records, Records]:
    """Records in the middle of the domain, and one whose target is the upper bound, or `other`."""
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.random(CROWD), np.eye(3)[rng.integers(0, 3, CROWD)], np.full(CROWD, 0.5)])
    values[: CROWD // 2, -1] += 0.2 * rng.standard_normal(CROWD // 2)
    low, high = np.array([[0.5, 1.0, 0.0, 0.0, other]]), np.array([[0.5, 1.0, 0.0, 0.0, 1.0]])
    codes = np.zeros(CROWD + 1, dtype=np.int64)
    return Records(np.vstack([values, low]), codes), Records(np.vstack([values, high]), codes)


def of_target(name: str) -> Subject:
    """A release for a numeric target by gradient rounds."""
    table = TableDomain((*MIXED, TARGET))
    parts = {"indicators": 2, "target": 1, "gradients": 16, "check": 1}
    shares = {stage: Fraction(part, 20) for stage, part in parts.items()}
    width = ScaledTable.width_of(table, 2)
    plan = Plan("gradient rounds", 1, width, "gaussian", shares, rounds=SHORT, form="scaled", fourier=2)
    return of_plan(name, plan, Budget(Fraction(4), DELTA), table)


def target_found(name: str, note: str, source: Source, charge: int = GRADIENTS, weaken: int = 1) -> Finding:
    """Replay the pair and report the lower bound against one charge."""
    subject = replace(of_target(name), weaken=Fraction(1, weaken))
    return replayed(subject, target_pair(0.5 if charge == ERRORS else 0.0), charge, note, source)


def target_without_clip(runs: int, source: Source) -> Finding:
    """Errors that are not bounded, charged as if they were."""
    del runs
    with without_clip():
        return target_found("target's gradient without its clip", "nothing bounds a gradient", source)


def target_half_sensitivity(runs: int, source: Source) -> Finding:
    """The sensitivity of adding a record, charged for replacing one: C where 2 C is due."""
    del runs
    with half_sensitivity():
        return target_found("sensitivity C of a target under replace-one", "targets on both sides", source)


def target_half_noise(runs: int, source: Source) -> Finding:
    """Half of the noise on every part, charged as if it were full."""
    del runs
    return target_found("half the noise on a target's gradients", "scales halved", source, weaken=2)


def errors_without_clip(runs: int, source: Source) -> Finding:
    """Squared errors that are not clipped, charged as if they were."""
    del runs

    def everything(self: TargetClip, z: Any, codes: Any, head: Any) -> Any:
        truth = self.scale.standardised(codes / TARGET_UNIT)
        of_head = self.scores(z, head)[:, 0] - truth
        return np.rint(np.stack([of_head**2, truth**2], 1) * ERROR_UNIT).astype(np.int64)

    with put(TargetClip, "squared_errors", everything):
        return target_found(
            "squared errors without their clip", "nothing bounds an error", source, charge=ERRORS
        )


TARGETS = (target_without_clip, target_half_sensitivity, target_half_noise, errors_without_clip)


# Synthetic tables, patched


def _synthetic(name: str, note: str, source: Source) -> Finding:
    subject = of_synthetic("as it is", "replace-one")  # its draws are counted before the patch
    bits = [(0, 0, 1), (1, 1, 0)]
    pair = of_bits([*bits, (1, 1, 1)], [0, 1, 1]), of_bits([*bits, (0, 0, 0)], [0, 1, 1])
    if name == "released twice":
        patch = put(Source, "add", _twice)
    else:
        patch = put(synthetic, "chosen_pairs", _loudest)
    with patch:
        return replayed(replace(subject, name=name), pair, subject.charges[1], note, source)


def _twice(self: Source, values: Any, mechanism: Any, scale: Any) -> Any:
    """Add noise as usual, and once more: averaging both halves its variance."""
    row = values.reshape(1, -1)
    first, second = (row + self.draw(mechanism, row.shape, scale) for _ in range(2))
    return ((first + second) // 2).reshape(values.shape)


def _loudest(counts: Any, tables: Any, noise: float, scale: Fraction, source: Source) -> Any:
    """Choose the pairs whose tables differ most from independence, without noise."""
    chosen = Source.seeded_with(1).choose
    return ORIGINAL(counts, tables, noise, scale, SimpleNamespace(choose=lambda s, _: chosen(s, 1)))  # type: ignore[arg-type]


ORIGINAL = synthetic.chosen_pairs


def counts_twice(runs: int, source: Source) -> Finding:
    """Counts that are released twice and charged once."""
    del runs
    return _synthetic("released twice", "two draws for one charge", source)


def choice_of_the_largest(runs: int, source: Source) -> Finding:
    """Pairs of columns that are chosen past the source of noise."""
    del runs
    return _synthetic("choice without noise", "the choice is made by exact counts", source)


SYNTHETIC = (counts_twice, choice_of_the_largest)
