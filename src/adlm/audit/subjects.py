"""The subjects of the audit: the product's mechanisms on their real code paths, small enough to run often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import torch

from adlm.audit.paper_subjects import image_domain, of_algorithm1, of_records, of_relevance, paper_settings
from adlm.audit.subject import Records, Subject, release_vectors
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.additive import release as release_additive
from adlm.curator.mechanisms.model_selection import SelectionPlan
from adlm.curator.mechanisms.model_selection import release as release_selection
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.mechanisms.regression import release as release_regression
from adlm.curator.mechanisms.second_moments import CrossMoments, Second
from adlm.curator.mechanisms.table_rounds import TableRoundsPlan
from adlm.curator.mechanisms.table_rounds import release as release_table
from adlm.curator.noise import Source
from adlm.estimation.gradient_head import GradientRounds
from adlm.privacy.accounting import Charge
from adlm.privacy.budget import Budget
from adlm.public.domain import NEIGHBOURS, Domain
from adlm.public.domain.column import Column
from adlm.public.domain.encoding import TARGET_UNIT
from adlm.public.domain.table import TableDomain
from adlm.public.features.tabular import TabularFeatures
from adlm.public.planning.moments import MomentPlan
from adlm.public.planning.regression import RegressionPlan
from adlm.public.planning.tables import TablePlan
from adlm.workflows.privatise import privatise

DELTA = Fraction(1, 10**5)
CROWD = 300  # seven times the noise on the number of records, or more


def of_moments(
    name: str,
    design: MomentConfig,
    neighbours: str,
    covers: tuple[int | None, ...],
    *,
    focus: int | None = None,
) -> Subject:
    """Audit a moment release: records are the feature vectors themselves.

    Parameters
    ----------
    name : of the subject.
    design : the public settings, with the budget.
    neighbours : the relation.
    covers : for each draw of noise the index of its charge; None for noise on no record.
    focus : the charge that the search for neighbours looks at; None for all.
    """
    domain = Domain((design.k,), 0.0, 1.0, ("class 0", "class 1"), neighbours)

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        return release_vectors(data, domain, design, ledger, source).certificate.charges

    tight = design.rounds is None
    people = design.contributions
    return Subject(name, neighbours, run, covers, design.k, 2, focus, tight=tight, contributions=people)


def of_table(
    name: str, delta: Fraction, neighbours: str, *, focus: int | None, scaled: bool = False
) -> Subject:
    """Audit the release of a table, all of its stages: records are encoded rows of three columns.

    Parameters
    ----------
    name : of the subject.
    delta : 0 for Laplace noise.
    neighbours : the relation.
    focus : the charge that the search looks at; None for all.
    scaled : class offsets and one temperature instead of column weights and residual tables.
    """
    table = TableDomain(
        (
            Column("age", "numeric", 0, 1),
            Column("town", "categorical", values=tuple("abcd")),
            Column("ill", "boolean"),
            Column("y", "label", classes=("no", "yes")),
        ),
        neighbours=neighbours,
    )
    domain, features = table.domain, TabularFeatures(table, detail=5)
    plan = TablePlan(5, "columns", True, (Fraction(1, 5),) * 5)
    if scaled:
        shares = (Fraction(1), *(Fraction(0),) * 4)
        plan = TablePlan(5, "none", False, shares, scaling_share=Fraction(1, 4))

    budget = Budget(Fraction(4 if delta else 1), delta)
    release = partial(release_additive, features=features, plan=plan, budget=budget)

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        z = features(torch.from_numpy(domain.scale(data.values))).numpy()
        return release(lambda: [(z, data.codes)], ledger=ledger, source=source).certificate.charges

    covers = (0, 1, 1, 1, 2) if scaled else (0, 1, 2, 3, 3, 4, 5)
    return Subject(name, neighbours, run, covers, domain.size, focus=focus, tight=False, box=True)


def of_table_rounds(name: str, delta: Fraction, neighbours: str, *, mixed: bool = False) -> Subject:
    """Audit the release of a table by gradient rounds: indicators, class sums, gradients and a check.

    Parameters
    ----------
    name, delta, neighbours : as for `of_table`.
    mixed : second moments of two values come after the indicators.
    """
    table = TableDomain(
        (
            Column("age", "numeric", 0, 1),
            *((Column("pay", "numeric", 0, 1),) if mixed else ()),
            Column("town", "categorical", values=tuple("abc")),
            Column("y", "label", classes=("no", "yes")),
        ),
        neighbours=neighbours,
    )
    rounds = GradientRounds(3, 0.25, 2.0, 10)
    plan = TableRoundsPlan(
        rounds, 2, Fraction(1, 4), Fraction(1, 4), Fraction(1, 4) if mixed else Fraction(0)
    )

    release = partial(release_table, table=table, plan=plan, budget=Budget(Fraction(4), delta))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        x = table.domain.scale(data.values).astype(np.float32)
        return release(lambda: [(x, data.codes)], ledger=ledger, source=source).certificate.charges

    pure: tuple[int, ...] = (0, 1, 2, 2, 2, 3)
    covers = (0, 1, 1, 2, 3, 3, 3, 4, 4, 5) if mixed else (0, 1, 2, 2, 2, 3, 3, 4) if delta else pure
    width = table.domain.size
    return Subject(name, neighbours, run, covers, width, tight=False, box=True)


def of_selection(name: str, neighbours: str) -> Subject:
    """Audit the release of the better of two models of a table: every part of both.

    Parameters
    ----------
    name : of the subject.
    neighbours : the relation.
    """
    table = TableDomain(
        (
            Column("age", "numeric", 0, 1),
            Column("town", "categorical", values=tuple("abc")),
            Column("y", "label", classes=("no", "yes")),
        ),
        neighbours=neighbours,
    )
    plan = SelectionPlan(
        TablePlan(5, "columns", True, (Fraction(1, 5),) * 5),
        TableRoundsPlan(GradientRounds(3, 0.25, 2.0, 10, one_row=True), 2, Fraction(1, 4), Fraction(1, 4)),
        Fraction(1, 2),
    )
    release = partial(release_selection, table=table, plan=plan, budget=Budget(Fraction(8)))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        x = table.domain.scale(data.values).astype(np.float32)
        release(lambda: [(x, data.codes)], ledger=ledger, source=source)
        return ledger.charges  # in the order of the draws: which model is kept changes a certificate's

    covers = (0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 8, 8, 9)
    return Subject(name, neighbours, run, covers, table.domain.size, tight=False, box=True)


def of_target(
    name: str, delta: Fraction, neighbours: str, *, method: str = "rounds", focus: int | None = None
) -> Subject:
    """Audit the release of a table with a numeric target, all of its parts; the target is the last value.

    Parameters
    ----------
    name : of the subject.
    delta : 0 for radial noise.
    neighbours : the relation.
    method : `rounds` or `moments`.
    focus : the charge that the search looks at; None for all together.
    """
    table = TableDomain(
        (
            Column("age", "numeric", 0, 1),
            Column("town", "categorical", values=tuple("abc")),
            Column("days", "target", 0, 1),
        ),
        neighbours=neighbours,
    )
    plan = RegressionPlan(GradientRounds(3, 0.25, 2.0, 10), 2 if method == "rounds" else 0, method)

    release = partial(release_regression, table=table, plan=plan, budget=Budget(Fraction(4), delta))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        x = table.domain.scale(data.values[:, :-1]).astype(np.float32)
        positions = np.rint(np.clip(data.values[:, -1], 0.0, 1.0) * TARGET_UNIT).astype(np.int64)
        return release(lambda: [(x, positions)], ledger=ledger, source=source).certificate.charges

    learnt = (2, 2, 2) if method == "rounds" else (2, 2) if delta else (2,)
    covers = (0, 1, *learnt, 3)
    return Subject(name, neighbours, run, covers, table.domain.size + 1, focus=focus, tight=False, box=True)


def of_product(
    name: str, delta: Fraction, neighbours: str, *, plan: MomentPlan | None = None, relevance: str = "prior"
) -> Subject:
    """Audit the whole pipeline from raw records: domain, public features, the public rule, the release.

    With private relevance a first release, charged separately, sets the noise scales of the second. The model
    fitted to it needs records: a crowd that is the same in both worlds.

    Parameters
    ----------
    name : of the subject.
    delta : 0 for pure epsilon.
    neighbours : the relation.
    plan : the rule's when not given.
    relevance : `prior` or `private`.
    """
    domain = Domain((4,), -1.0, 3.0, ("a", "b"), neighbours)
    private = relevance == "private"
    covers = (0, 1) if private else (0,)
    rng = np.random.default_rng(0)
    crowd = Records(rng.random((CROWD * private, 4)), np.arange(CROWD * private) % 2)

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        combined = crowd.plus(data)
        made = privatise(
            4 * combined.values - 1,
            combined.codes,
            domain=domain,
            epsilon=4 if delta or private else 1,
            delta=delta,
            plan=plan,
            k=4,
            second=0,
            relevance=relevance,
            ledger=ledger,
            source=source,
            size=4 + len(crowd.codes),
        )
        return made.certificate.charges

    return Subject(name, neighbours, run, covers, 4, tight=private, box=True)


def designs() -> dict[str, tuple[MomentConfig, tuple[int | None, ...], int | None]]:
    """The moment releases that are audited: design, charges covered, focus of the search."""
    pure = MomentConfig(Fraction(1), Fraction(0), 3, 1.0)
    gaussian = MomentConfig(Fraction(4), DELTA, 3, 1.0)
    radial = replace(pure, epsilon=Fraction(4), pure="radial")
    around = Second(3, "means", 0.5, around="means")
    across = Second(2, "means", 0.5, around="means", cross=CrossMoments(0.5, 0.5, Fraction(1, 2)))
    descent = GradientRounds(3, 0.25, 2.0, 10)
    rounds = replace(gaussian, rounds=descent, share_sums=Fraction(1, 2))
    return {
        "one class sum, Laplace": (replace(pure, k=1, constant=0.0), (0,), None),
        "one class sum, Gaussian": (replace(gaussian, k=1, constant=0.0), (0,), None),
        "class sums, Laplace": (pure, (0,), None),
        "class sums, Laplace, adaptive": (replace(pure, scales=(1.0, 2.5, 0.4)), (0,), None),
        "class sums, Laplace, 2 records a person": (replace(pure, contributions=2), (0,), None),
        "second moments, Laplace": (replace(pure, second=Second(3)), (0, 1, 1), 1),
        "second moments in the span of means, Laplace": (
            replace(pure, second=Second(3, "means")),
            (0, 1, 1),
            1,
        ),
        "class sums and second moments, Laplace": (replace(pure, second=Second(3)), (0, 1, 1), None),
        "one class sum, radial": (replace(pure, k=1, constant=0.0, pure="radial"), (0,), None),
        "class sums, radial": (replace(pure, pure="radial"), (0,), None),
        "class sums, Gaussian": (gaussian, (0,), None),
        "second moments, Gaussian": (replace(gaussian, second=Second(3, clip_norm=0.5)), (0, 1, 1), 1),
        "class sums and second moments, Gaussian": (replace(gaussian, second=Second(3)), (0, 0, 0), None),
        "second moments, radial": (replace(radial, second=Second(3)), (0, 1), 1),
        "second moments around means, radial": (replace(radial, second=around), (0, 1), 1),
        "second moments around means, Gaussian": (replace(gaussian, second=around), (0, 1, 1), 1),
        "products across the basis, radial": (replace(radial, second=across), (0, 1, 2), 2),
        "products across the basis, Gaussian": (replace(gaussian, second=across), (0, 1, 1, 2), 2),
        "gradient rounds, Gaussian": (rounds, (0, 1, 1, 1, 2), 1),
        "gradient rounds around the mean, Gaussian": (
            replace(rounds, rounds=replace(descent, centred=True)),
            (0, 1, 1, 1, 2),
            1,
        ),
        "gradient rounds, radial": (replace(radial, rounds=descent), (0, 1, 1, 1, 2), 1),
        "gradient rounds of one row, radial": (
            replace(radial, rounds=replace(descent, one_row=True)),
            (0, 1, 1, 1, 2),
            1,
        ),
    }


def _settings(pure: str) -> Iterator[tuple[str, Fraction, str]]:
    """Noise by name, delta and relation: pure noise of that name, then Gaussian, under each relation."""
    for noise, delta in ((pure, Fraction(0)), ("Gaussian", DELTA)):
        for relation in NEIGHBOURS:
            yield noise, delta, relation


def subjects() -> tuple[Subject, ...]:
    """Every mechanism of the product, under every relation that it serves."""
    made = [
        of_moments(name, design, relation, covers, focus=focus)
        for name, (design, covers, focus) in designs().items()
        for relation in NEIGHBOURS
    ]
    linear = replace(paper_settings(), allocation="linear")
    relevant = np.zeros(784)
    relevant[406] = 1.0  # the worst case of relevance: all of the budget on one feature
    literal = replace(paper_settings(), mode="literal")
    images = image_domain()
    made.extend(
        of_table(f"table, {stage}, {noise}", delta, relation, focus=focus)
        for stage, focus in (("class tables", 0), ("all stages", None))
        for noise, delta, relation in _settings("Laplace")
    )
    made.extend(
        of_table(f"table, offsets and temperature, {noise}", delta, relation, focus=None, scaled=True)
        for noise, delta, relation in _settings("Laplace")
    )
    made.extend(
        of_table_rounds(f"table, gradient rounds, {noise}", delta, relation)
        for noise, delta, relation in _settings("radial")
    )
    made.extend(
        of_table_rounds("table, gradient rounds, mixed values", DELTA, relation, mixed=True)
        for relation in NEIGHBOURS
    )
    made.extend(of_selection("table, the better of two models, pure", relation) for relation in NEIGHBOURS)
    made.extend(
        of_target(f"numeric target, {how}, {noise}", delta, relation, method=method)
        for how, method in (("gradient rounds", "rounds"), ("second moments", "moments"))
        for noise, delta, relation in _settings("radial")
    )
    made.extend(
        of_product(f"from raw records, {noise}", delta, relation)
        for noise, delta, relation in _settings("pure")
    )
    made.extend(
        of_product(f"private relevance, {noise}", delta, relation, plan=plan, relevance="private")
        for noise, delta, plan in (
            ("radial", Fraction(0), MomentPlan(4, "radial", 1.0, 0.5)),
            ("Laplace", Fraction(0), MomentPlan(4, "laplace", 1.0, 0.5)),
            ("Gaussian", DELTA, MomentPlan(4, "gaussian", 1.0, 0.5)),
        )
        for relation in NEIGHBOURS
    )
    return (
        *made,
        of_records("record features, Algorithm 1", linear, images, focus=0, relevance=relevant),
        of_records("label coefficients, Algorithm 1", paper_settings(), images, focus=1),
        of_records("label coefficients, literal", literal, images, focus=1),
        of_relevance("relevance, 2d/n", Fraction(1), 4, "paper"),
        of_relevance("relevance, d/n", Fraction(1), 4, "tight"),
        of_algorithm1("Algorithm 1, whole", 4),
    )
