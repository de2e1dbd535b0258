"""The subjects of the audit: what a user can reach, on its real code path, small enough to run often.

A release is a list of stages, so a subject follows from a plan: its charges, the draws of noise that belong
to them, and its perturbed loss. Plans of tables are the planner's. Beside these there are the counts and
choices of a synthetic table, and the paper's Algorithm 1. What is audited (sensitivity, control flow, noise)
is the same for all of them.
"""

from __future__ import annotations

import itertools
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
from adlm.engine.records import TableFeatures
from adlm.features import Features
from adlm.features.base import Identity
from adlm.features.tables import IndicatorTable, with_bins
from adlm.mechanism import synthetic
from adlm.mechanism.objective import Objective, ObjectiveStage, Standardised
from adlm.mechanism.planner import Plan
from adlm.mechanism.privatise import calibrated_plan, plan_release
from adlm.mechanism.stages import Calibrated, Terms, calibrate, run_stages
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


# ---- Releases by a plan


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


def release_plan(
    data: Records,
    subject: Domain | TableDomain,
    plan: Plan,
    budget: Budget,
    ledger: Ledger,
    source: Source,
    contributions: int = 1,
) -> Release:
    """Make a release by a plan; feature vectors of a `Domain` are the records themselves.

    Parameters
    ----------
    data : encoded records of a table, in [0, 1], with a numeric target as the last value; or vectors.
    subject, plan, budget, contributions : the public settings.
    ledger, source : the ledger to charge, and the noise source.
    """
    calibrated = calibrated_plan(plan, subject, budget, contributions)
    stages = tuple(
        ObservedLoss(**vars(stage)) if isinstance(stage, ObjectiveStage) else stage
        for stage in calibrated.stages
    )
    records = as_records(lambda: [_encoded(data, subject)])
    features: Features | None = None
    if isinstance(subject, Domain):
        features = Identity((plan.k,))
    elif plan.form == "indicators":
        indicators = IndicatorTable(with_bins(subject, plan.bins))
        records, features = records.mapped(TableFeatures(indicators)), indicators
    return run_stages(
        replace(calibrated, stages=stages),
        records,
        subject.domain if isinstance(subject, TableDomain) else subject,
        ledger=ledger,
        source=source,
        features=features,
    )


def _encoded(data: Records, subject: Domain | TableDomain) -> tuple[Any, Any]:
    if isinstance(subject, Domain):
        return data.values, data.codes
    x = np.clip(data.values, 0, 1).astype(np.float32)
    if subject.target is None:
        return x, data.codes
    return x[:, :-1], np.rint(np.clip(data.values[:, -1], 0, 1) * TARGET_UNIT).astype(np.int64)


def covered(calibrated: Calibrated, first: int = 0) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    """Return the charge of each draw of noise of some stages, and of each perturbed loss."""
    covers: list[int | None] = []
    losses = []
    for stage in calibrated.stages:
        if isinstance(stage, ObjectiveStage):
            covers += [FREE] * stage.draws
            losses.append(first)
            first += 3
        else:
            covers += [first] * stage.draws
            first += 1
    return tuple(covers), tuple(losses)


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
    covers, losses = covered(calibrated_plan(plan, subject, budget, contributions))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        made = release_plan(data, subject, plan, budget, ledger, source, contributions)
        return made.certificate.charges

    table = isinstance(subject, TableDomain)
    width = plan.k
    if isinstance(subject, TableDomain):
        width = subject.domain.size + (subject.target is not None)
    return Subject(
        name, subject.neighbours, run, covers, width, max(2, plan.classes), table, contributions, losses
    )


def vectors(k: int, neighbours: str, classes: int = 2) -> Domain:
    """Declare feature vectors."""
    return Domain((k,), 0.0, 1.0, tuple(f"class {c}" for c in range(classes)), neighbours)


def of_sums(
    name: str, neighbours: str, *, delta: Fraction = Fraction(0), people: int = 1, **other: Any
) -> Subject:
    """Audit class sums, with gradient rounds if `other` has them; `other` are settings of the plan."""
    budget = Budget(Fraction(4 if delta else 1), delta)
    settings: dict[str, Any] = {"noise": "gaussian" if delta else "laplace", "k": 3} | other
    plan = Plan("class sums", 2, **settings)
    return of_plan(name, plan, budget, vectors(plan.k, neighbours), people)


def of_loss(
    name: str, neighbours: str, noise: Any, *, classes: int = 2, delta: Fraction = Fraction(0)
) -> Subject:
    """Audit the loss of vectors, perturbed once: one row of weights for two classes, else a row for each."""
    cap = 1.0 if classes == 2 else 1.2
    objective = Objective("classes", classes, noise, cap, 20.0, 1.0, 1.0, 0.3, SIZE)
    shares = {"sums": Fraction(1, 10), "loss": Fraction(8, 10), "check": Fraction(1, 10)}
    kind: Any = "gaussian" if delta else noise
    plan = Plan("perturbed loss", classes, 2, kind, shares, objective=objective)
    return of_plan(name, plan, Budget(Fraction(6), delta), vectors(2, neighbours, classes))


def table_of(neighbours: str, *, target: bool = False) -> TableDomain:
    """A table of a number, a category, and a label or a numeric target."""
    answer = Column("days", "target", 0, 1) if target else Column("y", "label", classes=("no", "yes"))
    columns = (Column("age", "numeric", 0, 1), Column("town", "categorical", values=tuple("abc")), answer)
    return TableDomain(columns, neighbours=neighbours)


def of_table(name: str, neighbours: str, *, target: bool = False, delta: Fraction = Fraction(0)) -> Subject:
    """Audit the release of a table by the planner's plan; the budget is divided between its stages."""
    table, budget = table_of(neighbours, target=target), Budget(Fraction(16 if delta else 6), delta)
    plan = plan_release(table, SIZE, budget.epsilon, delta)
    if plan.rounds is not None:
        plan = replace(plan, rounds=replace(plan.rounds, rounds=ROUNDS.rounds))
    return of_plan(name, plan, budget, table)


def of_synthetic(name: str, neighbours: str, delta: Fraction = Fraction(0)) -> Subject:
    """Audit the tables of a synthetic release: counts of columns, the choice of pairs, counts of pairs.

    The stages of its head, which come after them, are those of the same table.
    """
    columns = [Column(c, "categorical", values=("0", "1")) for c in "abc"]
    label = Column("y", "label", classes=("no", "yes"))
    table = TableDomain((*columns, label), neighbours=neighbours)
    stages = synthetic.stages(table, SIZE, gaussian=delta > 0)
    calibrated = calibrate(stages, Terms(Budget(Fraction(16), delta), neighbours))
    # Bystanders in every cell: without them a record moves all scores of the choice alike.
    crowd = np.tile(np.array(list(itertools.product((0.0, 1.0), repeat=4))), (3, 1))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        every = data.plus(Records(crowd[:, :3], crowd[:, 3].astype(np.int64)))
        bits = (every.values > 0.5).astype(np.float32)
        x = np.stack([1 - bits, bits], 2).reshape(len(bits), -1)
        records, features = as_records(lambda: [(x, every.codes)]), IndicatorTable(table)
        made = run_stages(calibrated, records, table.domain, ledger=ledger, source=source, features=features)
        return made.certificate.charges

    covers = (0, *(1 for _ in columns[1:]), 2)  # a pair is chosen for each column but one
    return Subject(name, neighbours, run, covers, 3, box=True)


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
        of_sums("gradient rounds", add, delta=DELTA, rounds=ROUNDS, shares=shares),
        of_loss("perturbed loss of one row, Laplace", one, "laplace"),
        of_loss("perturbed loss of one row, radial", add, "radial"),
        of_loss("perturbed loss of one row, Gaussian", one, "gaussian", delta=DELTA),
        of_loss("perturbed loss of many rows, Laplace", add, "laplace", classes=3),
        of_loss("perturbed loss of many rows, radial", one, "radial", classes=4),
        of_table("table, pure", one),
        of_table("table, with delta", add, delta=DELTA),
        of_table("numeric target, pure", add, target=True),
        of_table("numeric target, with delta", one, target=True, delta=DELTA),
        of_synthetic("synthetic table, pure", one),
        of_synthetic("synthetic table, with delta", add, DELTA),
        of_records("record release, Algorithm 1", linear, image_domain(), relevance=relevant),
        of_algorithm1("Algorithm 1, whole", 4),
    )
