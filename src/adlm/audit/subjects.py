"""The subjects of the audit: what a user can reach, on its real code path, small enough to run often.

A release is a list of stages, so a subject follows from the stages: their charges, the draws of noise that
belong to them, and the perturbed loss. Plans of tables are the planner's. The paper's Algorithm 1 has no
stages. What is audited (sensitivity, control flow, noise) is the same for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from torch import nn

from adlm.audit.replay import FREE, Minimum, Records, Subject, Tap
from adlm.audit.statistics import Reals
from adlm.domain import Domain
from adlm.domain.columns import Column
from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.engine.passes import Part, as_records
from adlm.features.base import Identity
from adlm.features.tables import IndicatorTable, with_bins
from adlm.mechanism.objective import Objective, ObjectiveStage, Standardised
from adlm.mechanism.planner import Plan
from adlm.mechanism.privatise import calibrated_plan, plan_release, release_by_plan, synthetic_stages
from adlm.mechanism.stages import Calibrated, Stage, Terms, calibrate, run_stages
from adlm.mechanism.synthetic import MapStage, PairsStage, head_budget
from adlm.model.head import FEATURE_UNIT, WEIGHT_UNIT, GradientRounds
from adlm.paper.release import PrivateRecords, Settings
from adlm.paper.release import release as release_records
from adlm.paper.relevance import PrivateRelevance, RelevanceSource, private_relevance
from adlm.privacy.accounting import Budget, Charge
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

DELTA = Fraction(1, 10**5)
ROUNDS = GradientRounds(3, 0.25, 6.0, 10)  # few and short: what is audited does not depend on their number
SIZE = 200  # public guess of the number of records, which plans follow
FOURIER = 2  # random Fourier features of a table of numbers
NONE = Records(np.zeros((0, 0)), np.zeros(0, dtype=np.int64))


# ---- Releases


class ObservedLoss(ObjectiveStage):
    """The stage of a perturbed loss, which also shows the audit what was minimised."""

    def run(self, run: Any, scale: Any) -> None:
        """Release the minimum, then note records and weights."""
        super().run(run, scale)
        if not isinstance(run.source, Tap):
            return
        parts: list[Part] = []

        def noted(part: Part) -> tuple[Any, ...]:
            parts.append(part)
            return (np.zeros(1, dtype=np.int64),)

        run.records.total(noted)
        answers = np.concatenate([part[1] for part in parts])
        targets = None if run.target is None else Standardised(run.target)
        run.source.minima.append(
            Minimum(
                self.objective,
                scale,
                np.concatenate([part[0] for part in parts]) / FEATURE_UNIT,
                np.asarray(answers if targets is None else targets(answers)),
                run.offsets,
                run.offsets[1:] - run.offsets[:1] if self.objective.classes == 2 else run.offsets,
                run.tensors["weights"] / WEIGHT_UNIT,
            )
        )


def covered(stages: Sequence[Stage]) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    """Return the charge of each draw of noise of some stages, and of each perturbed loss."""
    covers: list[int | None] = []
    losses, first = [], 0
    for stage in stages:
        if isinstance(stage, ObjectiveStage):  # its noise, its ridge, and the error of its minimum
            covers += [FREE] * stage.draws
            losses.append(first)
            first += 3
        elif isinstance(stage, PairsStage):  # the choices together, and the counts
            covers += [first] * (stage.draws - 1) + [first + 1]
            first += 2
        elif stage.draws:
            covers += [first] * stage.draws
            first += 1
    return tuple(covers), tuple(losses)


def of_stages(
    name: str, calibrated: Calibrated, subject: Domain | TableDomain, bystanders: Records = NONE
) -> Subject:
    """Audit a release by its stages.

    Parameters
    ----------
    name : of the subject.
    calibrated : the stages, with their noise.
    subject : the declared domain. Records of a table are encoded ones, with a numeric target as the last
        value; those of a `Domain` are feature vectors. No number is clipped before the stages read it, as if
        a user's reader broke its contract.
    bystanders : records that are the same in all data sets.
    """
    table = subject if isinstance(subject, TableDomain) else None
    domain = subject.domain if isinstance(subject, TableDomain) else subject
    target = table is not None and table.target is not None
    stages = tuple(ObservedLoss(**vars(s)) if isinstance(s, ObjectiveStage) else s for s in calibrated.stages)
    watched = replace(calibrated, stages=stages)

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        data = bystanders.plus(data) if len(bystanders.codes) else data
        x, codes = data.values if table is None else data.values.astype(np.float32), data.codes
        if target:
            x, codes = x[:, :-1], np.rint(data.values[:, -1] * TARGET_UNIT).astype(np.int64)
        made = run_stages(
            watched,
            as_records(lambda: [(x, codes)]),
            domain,
            ledger=ledger,
            source=source,
            features=Identity(domain.shape) if table is None else None,
        )
        return made.certificate.charges

    covers, losses = covered(stages)
    width, classes = domain.size + target, max(2, len(domain.classes))
    people = calibrated.terms.contributions
    return Subject(name, subject.neighbours, run, covers, width, classes, False, people, losses)


def of_plan(
    name: str, plan: Plan, budget: Budget, subject: Domain | TableDomain, contributions: int = 1
) -> Subject:
    """Audit a release by a plan.

    Parameters
    ----------
    name : of the subject.
    plan, budget, contributions : the public settings.
    subject : the declared domain.
    """
    calibrated = calibrated_plan(plan, subject, budget, contributions)
    if plan.form == "indicators":
        assert isinstance(subject, TableDomain)
        mapped = MapStage.of(IndicatorTable(with_bins(subject, plan.bins)))
        stages, scales = (mapped, *calibrated.stages), (None, *calibrated.scales)
        calibrated = replace(calibrated, stages=stages, scales=scales)
    return of_stages(name, calibrated, subject)


def vectors(k: int, neighbours: str, classes: int = 2) -> Domain:
    """Declare feature vectors."""
    return Domain((k,), 0.0, 1.0, tuple(f"class {c}" for c in range(classes)), neighbours)


def release_vectors(
    data: Records, domain: Domain, plan: Plan, budget: Budget, ledger: Ledger, source: Source
) -> Release:
    """Make a release of feature vectors by a plan.

    Parameters
    ----------
    data, domain : the vectors and their declaration.
    plan, budget : the public settings.
    ledger, source : the ledger to charge, and the noise.
    """
    return release_by_plan(
        lambda: [(data.values, data.codes)],
        domain,
        plan=plan,
        budget=budget,
        ledger=ledger,
        source=source,
        features=Identity((plan.k,)),
    )


def of_sums(
    name: str, neighbours: str, *, delta: Fraction = Fraction(0), people: int = 1, **other: Any
) -> Subject:
    """Audit class sums, with gradient rounds if `other` has them; `other` are settings of the plan."""
    budget = Budget(Fraction(4 if delta else 1), delta)
    settings: dict[str, Any] = {"noise": "gaussian" if delta else "laplace", "k": 3} | other
    plan = Plan("class sums", 2, **settings)
    return of_plan(name, plan, budget, vectors(plan.k, neighbours), people)


def of_loss(
    name: str,
    neighbours: str,
    noise: Any,
    *,
    classes: int = 2,
    delta: Fraction = Fraction(0),
    people: int = 1,
) -> Subject:
    """Audit the loss of vectors, perturbed once: one row of weights for two classes, else a row for each."""
    cap = 1.0 if classes == 2 else 1.2
    objective = Objective("classes", classes, noise, cap, 20.0 * people, 1.0, 1.0, 0.3, SIZE)
    shares = {"sums": Fraction(1, 10), "loss": Fraction(8, 10), "check": Fraction(1, 10)}
    kind: Any = "gaussian" if delta else noise
    plan = Plan("perturbed loss", classes, 2, kind, shares, objective=objective)
    return of_plan(name, plan, Budget(Fraction(6), delta), vectors(2, neighbours, classes), people)


NUMBERS = (Column("age", "numeric", 0, 1), Column("pay", "numeric", 0, 1))
MIXED = (Column("age", "numeric", 0, 1), Column("town", "categorical", values=tuple("abc")))
BITS = tuple(Column(name, "categorical", values=("0", "1")) for name in "abc")
LABEL, TARGET = Column("y", "label", classes=("no", "yes")), Column("days", "target", 0, 1)


def of_table(
    name: str, columns: tuple[Column, ...], neighbours: str, delta: Fraction = Fraction(0)
) -> Subject:
    """Audit the release of a table by the planner's plan; the budget is divided between its stages."""
    table, budget = TableDomain(columns, neighbours=neighbours), Budget(Fraction(16 if delta else 6), delta)
    plan = plan_release(table, SIZE, budget.epsilon, delta, FOURIER if columns[:-1] == NUMBERS else 0)
    return of_plan(name, shortened(plan), budget, table)


def shortened(plan: Plan) -> Plan:
    """Make the rounds of a plan few."""
    if plan.rounds is None:
        return plan
    return replace(plan, rounds=replace(plan.rounds, rounds=ROUNDS.rounds))


def of_synthetic(name: str, neighbours: str, delta: Fraction = Fraction(0)) -> Subject:
    """Audit a release to draw records from: counts of columns, the choice of pairs, their counts, a head."""
    table, budget = TableDomain((*BITS, LABEL), neighbours=neighbours), Budget(Fraction(16), delta)
    head = head_budget(budget)
    plan = shortened(plan_release(table, SIZE, head.epsilon, head.delta))
    stages = synthetic_stages(plan, table, SIZE, gaussian=delta > 0)
    calibrated = calibrate(stages, Terms(budget, neighbours))
    # Bystanders in every cell: without them a record moves all scores of the choice alike.
    bits = np.array(3 * list(itertools.product((0, 1), repeat=len(BITS) + 1)))
    return of_stages(name, calibrated, table, of_bits(bits[:, :-1], bits[:, -1]))


def of_bits(bits: Any, codes: Any) -> Records:
    """Encode records of columns that are 0 or 1."""
    bits = np.asarray(bits, dtype=np.float64)
    return Records(np.stack([1 - bits, bits], 2).reshape(len(bits), -1), np.asarray(codes, dtype=np.int64))


# ---- The paper


def of_records(name: str, settings: Settings, domain: Domain, *, relevance: Reals | None = None) -> Subject:
    """Audit a record release: the paper's features and label coefficients, for given relevances.

    Parameters
    ----------
    name : of the subject.
    settings, domain : of the release.
    relevance : (d,) relevances; None for identical noise.
    """
    relevances = None if relevance is None else PrivateRelevance(relevance, (), {})

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        private = PrivateRecords(data.values, data.codes, domain)
        release = release_records(private, settings, relevance=relevances, ledger=ledger, source=source)
        return release.certificate.charges

    covers = (None, 0, *(1 for _ in settings.orders))
    return Subject(name, domain.neighbours, run, covers, domain.size, len(domain.classes), box=True)


def relevance_network(width: int) -> nn.Module:
    """A public relevance network with equal weights: the relevance of a feature is then its value."""
    network = nn.Sequential(nn.Linear(width, 2))
    for parameter in network.parameters():
        nn.init.constant_(parameter, 1.0 if parameter.ndim == 2 else 0.0)
    return network


def public_relevance(
    network: nn.Module, data: Records, domain: Domain, epsilon: Fraction, ledger: Ledger, source: Source
) -> PrivateRelevance:
    """Release relevances by a network that is declared public."""
    return private_relevance(
        RelevanceSource(network, "public"),
        data.values,
        domain,
        epsilon=epsilon,
        ledger=ledger,
        source=source,
        sensitivity="tight",
    )


def of_algorithm1(name: str, width: int) -> Subject:
    """Audit the whole of Algorithm 1: relevance, then records and coefficients with noise by relevance."""
    domain, network = Domain((width,), 0.0, 1.0, ("a", "b")), relevance_network(width)
    settings = replace(
        paper_settings(Fraction(1, 5), Fraction(1, 8)), allocation="linear", delta_h0=Fraction(1800)
    )

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        relevance = public_relevance(network, data, domain, Fraction(1, 2), ledger, source)
        private = PrivateRecords(data.values, data.codes, domain)
        release = release_records(private, settings, relevance=relevance, ledger=ledger, source=source)
        return release.certificate.charges

    return Subject(name, "replace-one", run, (0, None, 1, 2), width, box=True)


def paper_settings(epsilon2: Fraction = Fraction(1, 50), epsilon3: Fraction = Fraction(1, 2)) -> Settings:
    """The record release in the paper's MNIST setting, with the authors' Delta_h0 = 9,800."""
    return Settings(
        epsilon2=epsilon2,
        epsilon3=epsilon3,
        batch_size=1800,
        delta_h0=Fraction(9800),
        delta_h0_rule="per-patch",
        hidden=25,
        allocation="identical",
    )


def image_domain(classes: int = 10) -> Domain:
    """28 by 28 values and ten classes: the shape of the paper's MNIST."""
    return Domain((28, 28), 0.0, 1.0, tuple(map(str, range(classes))))


def subjects() -> tuple[Subject, ...]:
    """Every mechanism of the product; Algorithm 1 serves replace-one alone."""
    one, add = "replace-one", "add-remove"
    shares = {"sums": Fraction(1, 2), "gradients": Fraction(19, 40), "check": Fraction(1, 40)}
    relevant = np.zeros(784)
    relevant[406] = 1.0  # the worst case of relevance: all of the budget on one feature
    linear = replace(paper_settings(), allocation="linear")
    return (
        of_sums("one class sum, Laplace", one, k=1, sums_constant=0.0),
        of_sums("one class sum, Laplace", add, k=1, sums_constant=0.0),
        of_sums("class sums, Laplace, adaptive", add, scales=(1.0, 2.5, 0.4)),
        of_sums("class sums, Laplace, 2 records a person", one, people=2),
        of_sums("class sums, radial", one, noise="radial"),
        of_sums("class sums, Gaussian", one, delta=DELTA),
        of_sums("class sums, Gaussian", add, delta=DELTA),
        of_sums("gradient rounds", one, delta=DELTA, rounds=ROUNDS, shares=shares),
        of_loss("perturbed loss of one row, Laplace", one, "laplace"),
        of_loss("perturbed loss of one row, radial", add, "radial", people=2),
        of_loss("perturbed loss of one row, Gaussian", one, "gaussian", delta=DELTA),
        of_loss("perturbed loss of many rows, Laplace", add, "laplace", classes=3),
        of_loss("perturbed loss of many rows, radial", one, "radial", classes=4),
        of_table("table, pure", (*MIXED, LABEL), one),
        of_table("table, with delta", (*MIXED, LABEL), add, DELTA),
        of_table("table of numbers, pure", (*NUMBERS, LABEL), add),
        of_table("table of numbers, with delta", (*NUMBERS, LABEL), add, DELTA),
        of_table("numeric target, pure", (*MIXED, TARGET), add),
        of_table("numeric target, with delta", (*MIXED, TARGET), one, DELTA),
        of_synthetic("synthetic table, pure", one),
        of_synthetic("synthetic table, with delta", add, DELTA),
        of_records("record release, Algorithm 1", linear, image_domain(), relevance=relevant),
        of_algorithm1("Algorithm 1, whole", 4),
    )
