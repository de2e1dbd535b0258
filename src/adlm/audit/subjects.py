"""The subjects of the audit: the product's mechanisms on their real code paths, small enough to run often.

A subject makes a release of given records and says which charge each draw of noise belongs to. Every
mechanism that can be reached is here, under the relations that it serves; what is audited of it (sensitivity,
control flow, noise) is the same for all of them. A new mechanism needs a function that returns a `Subject`
and a line in `subjects`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt
from torch import nn

from adlm.domain import NEIGHBOURS, Domain
from adlm.domain.columns import Column
from adlm.domain.encoding import TARGET_UNIT
from adlm.domain.table import TableDomain
from adlm.features.identity import Identity
from adlm.mechanism.calibration import MomentConfig
from adlm.mechanism.class_sums import release as release_moments
from adlm.mechanism.planning import RegressionPlan
from adlm.mechanism.privatise import privatise
from adlm.mechanism.regression import release as release_regression
from adlm.mechanism.table_rounds import TableRoundsPlan
from adlm.mechanism.table_rounds import release as release_table
from adlm.model.head import GradientRounds
from adlm.paper.release import PrivateRecords, Settings
from adlm.paper.release import release as release_records
from adlm.paper.relevance import PrivateRelevance, RelevanceSource, private_relevance
from adlm.privacy.accounting import Budget, Charge
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

Reals = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
DELTA = Fraction(1, 10**5)
ROUNDS = GradientRounds(3, 0.25, 6.0, 10)  # few and short: what is audited does not depend on their number


@dataclass(frozen=True)
class Records:
    """A data set: (n, k) values and (n,) class codes."""

    values: Reals
    codes: Codes

    def plus(self, other: Records) -> Records:
        """These records and then others."""
        return Records(np.vstack([self.values, other.values]), np.concatenate([self.codes, other.codes]))


Run = Callable[[Records, Ledger, Source], tuple[Charge, ...]]


@dataclass(frozen=True)
class Subject:
    """A mechanism under audit.

    Attributes
    ----------
    name, neighbours : of the mechanism and of the relation it is audited for.
    run : makes the release by the product's own code and returns the charges on its certificate.
    covers : for each draw of noise in order, the index of its charge; None for noise on no record.
    width, classes : of the records.
    tight : whether some pair of neighbours attains the proved bound.
    box : whether records lie in [0, 1] (raw records) or are unbounded (feature vectors).
    contributions : records in which neighbours differ.
    weaken : factor on every noise scale that the charges do not know of; 1 except for negative controls.
    """

    name: str
    neighbours: str
    run: Run
    covers: tuple[int | None, ...]
    width: int
    classes: int = 2
    tight: bool = True
    box: bool = False
    contributions: int = 1
    weaken: Fraction = Fraction(1)

    @property
    def label(self) -> str:
        """Name and relation in one line."""
        return f"{self.name}, {self.neighbours}"


def release_vectors(
    data: Records, domain: Domain, config: MomentConfig, ledger: Ledger, source: Source
) -> Release:
    """Make a moment release whose feature vectors are the records themselves.

    Parameters
    ----------
    data : (n, k) feature vectors with class codes.
    domain, config : the public settings.
    ledger, source : the ledger to charge, and the noise source.
    """
    return release_moments(
        lambda: [(data.values, data.codes)],
        domain=domain,
        features=Identity((config.k,)),
        config=config,
        ledger=ledger,
        source=source,
    )


def of_moments(name: str, design: MomentConfig, neighbours: str) -> Subject:
    """Audit class sums, with gradient rounds if the design has them: records are the feature vectors.

    Parameters
    ----------
    name : of the subject.
    design : the public settings, with the budget.
    neighbours : the relation.
    """
    domain = Domain((design.k,), 0.0, 1.0, ("class 0", "class 1"), neighbours)

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        return release_vectors(data, domain, design, ledger, source).certificate.charges

    covers = (0,) if design.rounds is None else (0, *(1,) * design.rounds.rounds, 2)
    tight = design.rounds is None
    return Subject(name, neighbours, run, covers, design.k, tight=tight, contributions=design.contributions)


def of_table(name: str, neighbours: str) -> Subject:
    """Audit a table with delta: indicator counts, second moments, class sums, gradients and a check.

    Parameters
    ----------
    name : of the subject.
    neighbours : the relation.
    """
    table = TableDomain(
        (
            Column("age", "numeric", 0, 1),
            Column("pay", "numeric", 0, 1),
            Column("town", "categorical", values=tuple("abc")),
            Column("y", "label", classes=("no", "yes")),
        ),
        neighbours=neighbours,
    )
    quarter = Fraction(1, 4)
    plan = TableRoundsPlan(ROUNDS, 2, quarter, quarter, quarter)
    release = partial(release_table, table=table, plan=plan, budget=Budget(Fraction(4), DELTA))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        x = table.domain.scale(data.values).astype(np.float32)
        return release(lambda: [(x, data.codes)], ledger=ledger, source=source).certificate.charges

    covers = (0, 1, 1, 2, *(3,) * ROUNDS.rounds, 4, 4, 5)
    return Subject(name, neighbours, run, covers, table.domain.size, tight=False, box=True)


def of_target(name: str, neighbours: str) -> Subject:
    """Audit the release of a table with a numeric target and delta; the target is the last value.

    Parameters
    ----------
    name : of the subject.
    neighbours : the relation.
    """
    table = TableDomain(
        (
            Column("age", "numeric", 0, 1),
            Column("town", "categorical", values=tuple("abc")),
            Column("days", "target", 0, 1),
        ),
        neighbours=neighbours,
    )
    plan = RegressionPlan(ROUNDS, 2)
    release = partial(release_regression, table=table, plan=plan, budget=Budget(Fraction(4), DELTA))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        x = table.domain.scale(data.values[:, :-1]).astype(np.float32)
        positions = np.rint(np.clip(data.values[:, -1], 0.0, 1.0) * TARGET_UNIT).astype(np.int64)
        return release(lambda: [(x, positions)], ledger=ledger, source=source).certificate.charges

    return Subject(
        name, neighbours, run, (0, 1, *(2,) * ROUNDS.rounds, 3), table.domain.size + 1, tight=False, box=True
    )


def of_product(name: str, neighbours: str) -> Subject:
    """Audit the whole pipeline from raw records, with delta: domain, features, planner, release.

    Parameters
    ----------
    name : of the subject.
    neighbours : the relation.
    """
    domain = Domain((4,), -1.0, 3.0, ("a", "b"), neighbours)

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        made = privatise(
            4 * data.values - 1,
            data.codes,
            domain=domain,
            epsilon=4,
            delta=DELTA,
            k=4,
            allocation="identical",
            ledger=ledger,
            source=source,
            size=4,
        )
        return made.certificate.charges

    return Subject(name, neighbours, run, (0,), 4, tight=False, box=True)


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
    network: nn.Module,
    data: Records,
    domain: Domain,
    epsilon: Fraction,
    ledger: Ledger,
    source: Source,
    sensitivity: str = "paper",
) -> PrivateRelevance:
    """Release relevances by a network that is declared public.

    Parameters
    ----------
    network : the relevance network.
    data, domain : the records, and their declared domain.
    epsilon : of the relevances.
    ledger, source : the ledger to charge, and the noise source.
    sensitivity : `paper` or `tight`.
    """
    return private_relevance(
        RelevanceSource(network, "public"),
        data.values,
        domain,
        epsilon=epsilon,
        ledger=ledger,
        source=source,
        sensitivity=sensitivity,
    )


def of_relevance(name: str, epsilon: Fraction, width: int, sensitivity: str) -> Subject:
    """Audit the private relevance by a network that was fixed beforehand.

    Parameters
    ----------
    name : of the subject.
    epsilon : of the relevances.
    width : number of features.
    sensitivity : `paper` or `tight`.
    """
    domain, network = Domain((width,), 0.0, 1.0, ("a", "b")), relevance_network(width)

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        return public_relevance(network, data, domain, epsilon, ledger, source, sensitivity).charges

    return Subject(name, "replace-one", run, (0,), width, tight=False, box=True)


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

    return Subject(name, "replace-one", run, (0, None, 1, 2), width, tight=False, box=True)


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


def designs() -> dict[str, MomentConfig]:
    """The moment releases that are audited under both relations."""
    pure = MomentConfig(Fraction(1), Fraction(0), 3, 1.0)
    gaussian = MomentConfig(Fraction(4), DELTA, 3, 1.0)
    return {
        "one class sum, Laplace": replace(pure, k=1, constant=0.0),
        "class sums, Laplace, adaptive": replace(pure, scales=(1.0, 2.5, 0.4)),
        "class sums, radial": replace(pure, pure="radial"),
        "class sums, Gaussian": gaussian,
        "gradient rounds, Gaussian": replace(gaussian, rounds=ROUNDS, share_sums=Fraction(1, 2)),
    }


def subjects() -> tuple[Subject, ...]:
    """Every mechanism of the product; Algorithm 1 serves replace-one alone."""
    made = [of_moments(name, design, r) for name, design in designs().items() for r in NEIGHBOURS]
    persons = replace(designs()["class sums, Laplace, adaptive"], scales=None, contributions=2)
    rounds = designs()["gradient rounds, Gaussian"]
    centred = replace(rounds, rounds=replace(ROUNDS, centred=True))
    relevant = np.zeros(784)
    relevant[406] = 1.0  # the worst case of relevance: all of the budget on one feature
    linear = replace(paper_settings(), allocation="linear")
    literal = replace(paper_settings(Fraction(3, 2)), mode="literal")
    return (
        *made,
        of_moments("class sums, Laplace, 2 records a person", persons, "add-remove"),
        of_moments("gradient rounds around the mean, Gaussian", centred, "replace-one"),
        *(of_table("table, gradient rounds, Gaussian", relation) for relation in NEIGHBOURS),
        of_target("numeric target, gradient rounds, Gaussian", "replace-one"),
        of_product("from raw records, Gaussian", "replace-one"),
        of_records("record release, Algorithm 1", linear, image_domain(), relevance=relevant),
        of_records("record release, literal", literal, Domain((4,), 0.0, 1.0, ("a", "b", "c"))),
        of_relevance("relevance, d/n", Fraction(1), 4, "tight"),
        of_algorithm1("Algorithm 1, whole", 4),
    )
