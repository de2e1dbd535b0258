"""Privatise once: from private records of any kind to a release."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.engine import Engine, open_engine
from adlm.engine.passes import Batches, Records, as_records
from adlm.engine.records import TableFeatures
from adlm.errors import UserError
from adlm.features import Features, for_domain, narrowed, provenance_of
from adlm.features.tables import IndicatorTable, is_ordered, with_bins
from adlm.mechanism import gradient_rounds, objective, planner, synthetic
from adlm.mechanism.class_sums import (
    centre_stages,
    class_sums_stage,
    indicators_stage,
    target_stage,
    values_stage,
)
from adlm.mechanism.planner import Plan, plan_arrays, plan_table, value_columns
from adlm.mechanism.stages import Calibrated, Stage, Terms, calibrate, run_stages, unproved_by
from adlm.privacy.accounting import Budget, Mechanism
from adlm.privacy.certificate import NOT_PUBLIC
from adlm.privacy.clipping import Clip
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

Encoded = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]  # (n, width) in [0, 1]; classes or targets
Reader = Callable[[], Iterable[Encoded]]  # called once a pass over the records
Fourier = int | Literal["auto"]
FOURIER_LIMIT = 1000  # random Fourier features, when requested by number
PRIVATE_FEATURES = "private records had a part in the features"


# ---- The stages of a plan


def stages_of(plan: Plan, subject: Domain | TableDomain) -> tuple[Stage, ...]:
    """List the stages of a plan.

    Parameters
    ----------
    plan : the public settings.
    subject : the declared domain of the records.
    """
    table = subject if isinstance(subject, TableDomain) else None
    relation, target = subject.neighbours, plan.classes == 1
    first: tuple[Stage, ...] = ()
    if table is not None and plan.form == "centred":
        assert plan.objective is not None
        first = centre_stages(
            (plan.shares["centre"], plan.shares["distance"]),
            table,
            size=plan.objective.size,
            fourier=plan.fourier,
            length=planner.SETTLED.length,
            gaussian=plan.noise == "gaussian",
        )
    elif table is not None and plan.form == "scaled":
        first = _scaled_stages(plan, table, shrunk=not target)
    if plan.objective is not None:
        numbers: Mechanism = "gaussian" if plan.noise == "gaussian" else "laplace"
        form = objective.Bounded(plan.objective, plan.k)
        return (
            *first,
            target_stage(plan.shares["target"], numbers, relation, form)
            if target
            else class_sums_stage(
                plan.shares["sums"], sums_clip(plan), plan.noise, relation, plan.classes, form
            ),
            objective.objective_stage(plan.shares["loss"], plan.objective, plan.k, relation),
            objective.check_stage(plan.shares["check"], numbers, target=target),
        )
    if plan.rounds is None:
        return (class_sums_stage(plan.shares["sums"], sums_clip(plan), plan.noise, relation, plan.classes),)
    rounds, shares = plan.rounds, plan.shares
    stored = gradient_rounds.Gridded(gradient_rounds.clip_of(rounds), plan.k)
    learnt = gradient_rounds.rounds_stage(shares["gradients"], rounds, plan.k, relation)
    if target:
        counts = target_stage(shares["target"], "gaussian", relation, stored)
        return (*first, counts, learnt, gradient_rounds.errors_stage(shares["check"], rounds))
    sums = class_sums_stage(shares["sums"], sums_clip(plan), "gaussian", relation, plan.classes, stored)
    corrected: tuple[Stage, ...] = ()
    if "predicted" in shares:
        times = planner.SETTLED.offset_corrections
        corrected = (gradient_rounds.predicted_stage(shares["predicted"], rounds, times, relation),)
    check = gradient_rounds.correct_stage(shares["check"], rounds)
    if table is not None:
        check = gradient_rounds.confidence_stage(shares["check"], rounds, plan.classes)
    return (*first, sums, learnt, *corrected, check)


def sums_clip(plan: Plan) -> Clip:
    """The clip of a record's features in class sums."""
    norm: Literal["l1", "l2"] = "l1" if plan.noise == "laplace" else "l2"
    return Clip(norm, plan.scales or (1.0,) * plan.k, plan.sums_norm, plan.sums_constant)


def _scaled_stages(plan: Plan, table: TableDomain, *, shrunk: bool) -> tuple[Stage, ...]:
    """Counts of indicators, and second moments of values: what a table's features are scaled by."""
    values = plan.shares.get("values")
    counts = indicators_stage(
        plan.shares["indicators"],
        table,
        fourier=plan.fourier,
        value_energy=plan.value_energy,
        last=values is None,
        shrunk=shrunk,
    )
    if values is None:
        return (counts,)
    return counts, values_stage(values, table.neighbours, value_columns(table))


def release_by_plan(
    records: Records | Batches,
    subject: Domain | TableDomain,
    *,
    plan: Plan,
    budget: Budget,
    ledger: Ledger,
    source: Source,
    features: Features | None = None,
    contributions: int = 1,
    settings: Mapping[str, Any] | None = None,
    stamps: tuple[str, ...] = (),
    unproved: str = "",
) -> Release:
    """Make a release by a plan.

    Parameters
    ----------
    records : encoded records of a table with class codes or positions of the target; or features of images
        and vectors with class codes.
    subject : their declared domain.
    plan : the public settings.
    budget : epsilon and delta.
    ledger : the charges are written there before noise is drawn.
    source : of the noise.
    features : the public map that made the features; None for a table.
    contributions : records that one person may have.
    settings : further public facts for the certificate.
    stamps, unproved : warnings that travel with the release, and why no epsilon is proved, if so.

    Formal guarantees
    -----------------
    Those of `calibrate` and `run_stages`.
    """
    calibrated = calibrated_plan(plan, subject, budget, contributions, unproved)
    return _run(calibrated, records, subject, plan, ledger, source, features, settings, stamps)


def calibrated_plan(
    plan: Plan, subject: Domain | TableDomain, budget: Budget, contributions: int = 1, unproved: str = ""
) -> Calibrated:
    """Return the stages of a plan with their noise scales and charges.

    Parameters
    ----------
    plan, subject, budget, contributions, unproved : as for `release_by_plan`.
    """
    domain = subject.domain if isinstance(subject, TableDomain) else subject
    terms = Terms(budget, subject.neighbours, contributions)
    return calibrate(stages_of(plan, subject), terms, unproved_by(domain, unproved))


def _run(
    calibrated: Calibrated,
    given: Records | Batches,
    subject: Domain | TableDomain,
    plan: Plan,
    ledger: Ledger,
    source: Source,
    features: Features | None,
    settings: Mapping[str, Any] | None,
    stamps: tuple[str, ...],
) -> Release:
    records = as_records(given)
    if isinstance(subject, TableDomain) and plan.form == "indicators":
        features = IndicatorTable(with_bins(subject, plan.bins))
        records = records.mapped(TableFeatures(features))
    facts = {"k": plan.k, "mechanism": plan.noise, "plan": plan.to_dict()}
    return run_stages(
        calibrated,
        records,
        subject.domain if isinstance(subject, TableDomain) else subject,
        ledger=ledger,
        source=source,
        features=features,
        settings=facts | dict(settings or {}),
        stamps=stamps,
    )


# ---- Options


class ReleaseOptions(TypedDict, total=False):
    """Options of `privatise`, described there."""

    neighbours: str | None
    ledger: Ledger | None
    source: Source | None
    seed: int | None
    size: int | None
    plan: Plan | None
    allocation: str | None
    features: Features | None
    k: int | None
    cache: bool
    device: str
    fourier: Fourier
    kind: str
    engine: Engine | str
    ray_address: str | None


FOR_ARRAYS = frozenset({"allocation", "features", "k", "cache", "device"})
FOR_TABLES = frozenset({"fourier", "kind"})


def check_options(options: Mapping[str, object], table: bool) -> None:
    """Refuse an option that does not exist, and one that would have no effect on this kind of release."""
    for name, value in options.items():
        if name not in ReleaseOptions.__annotations__:
            raise TypeError(f"privatise() got an unexpected keyword argument {name!r}")
        if value is None or value is False or (name, value) in (("fourier", 0), ("kind", "moments")):
            continue
        if name == "kind" and value != "synthetic":
            raise UserError(f"kind must be moments or synthetic, got {value!r}")
        if table and name in FOR_ARRAYS:
            raise UserError(f"a table's release has no setting {name}; leave it out")
        if not table and name in FOR_TABLES:
            raise UserError(f"{name} is for tables; leave it out for arrays")


def opened(options: ReleaseOptions) -> tuple[Ledger, Source]:
    """Return the ledger and the noise source; by default in memory, and the operating system's."""
    seed = options.get("seed")
    source = options.get("source") or (Source.system() if seed is None else Source.seeded_with(seed))
    return options.get("ledger") or Ledger(), source


def public_size(neighbours: str, contributions: int, size: int | None, count: Callable[[], int]) -> int:
    """Return the number of records that the planner may use.

    Parameters
    ----------
    neighbours, contributions : the relation, and records that one person may have.
    size : a public guess, if one was given.
    count : counts the records; called only where their number is public, under replace-one with one record
        a person.
    """
    if neighbours == "replace-one" and contributions == 1:
        return count() if size is None else size
    if size is not None:
        return size
    why = "under add-remove" if neighbours == "add-remove" else "when a person may have several records"
    raise UserError(f"{why} the number of records is private; give a public guess of it (size=..., --size)")


# ---- Privatise once


def privatise(
    x: Any,
    y: npt.ArrayLike | None = None,
    domain: Domain | TableDomain | Path | str | None = None,
    *,
    epsilon: object,
    delta: object = 0,
    **options: Unpack[ReleaseOptions],
) -> Release:
    """Read private records once and make a release: noisy numbers to train on, and a certificate.

    The domain decides what the records are. An array with a `Domain`, or files of images or vectors, become
    noisy sums of public features. A file or a data frame with a `TableDomain` becomes what a model of a table
    needs.

    Parameters
    ----------
    x : the records. With a `Domain`, an (n, *shape) array in its units. With a `TableDomain`, a data frame,
        or a CSV or Parquet file, a folder or a glob of them, local or at an address (s3://, gs://). It may
        also be a reader: a function without parameters that yields batches of encoded records, (n, width) in
        [0, 1], with their (n,) class codes, the same ones at each call. With a column of images or
        vectors, a file or a folder of them (`adlm.data.images`).
    y : n labels; None for a file or a reader, and for a data frame that has the label's column.
    domain : the public domain of the records: a `Domain`, a `TableDomain`, or the domain
        file of a table, of images or of vectors.
    epsilon, delta : the budget, a number or an exact one such as "1/3"; delta 0 gives pure epsilon.
    neighbours : the relation, instead of the domain's: `replace-one` or `add-remove`.
    ledger : where the cost is written before noise is drawn; in memory when not given.
    seed : makes the release repeatable and stamps it `NOT PRIVATE: seeded`. `source` gives the noise source.
    size : a public guess of the number of records, for the planner, where the number is private:
        under add-remove, or when a person may have several records.
    plan : settings; the planner's when not given.
    allocation : arrays: noise over features: `identical`, or by the relevance of the public prior, `linear`
        or `optimal`.
    features : arrays: the frozen public map; the one for the domain's family when not given. A user-supplied
        map has a `provenance`, and is tested on random records: alone, in a batch, shuffled, and twice.
    k : arrays: number of features, instead of the planner's.
    cache, device : arrays: keep the features of the records on disk, readable by their owner alone; and
        where features are computed.
    fourier : tables: random Fourier features of the numeric columns together: a number, or `auto`.
    kind : tables: `moments`, or `synthetic` for a release that `Release.synthesise` draws records from.
    engine : where passes over files and arrays run: `local`, `ray`, or an `Engine`. The release is the same.
    ray_address : of the engine `ray`: a cluster, such as `auto`; one of this machine alone when not given.

    Returns
    -------
    The release: `tensors` with exact noise, and the `certificate` that states what it cost. `release.save`
    writes it, `adlm.fit` trains on it.

    Raises
    ------
    UserError : records or labels do not match the domain, an option is for another kind of records, the
        number of records is private and no `size` was given, or the ledger's budget would be exceeded. An
        error before the charge costs nothing; the ledger says what was charged.

    Formal guarantees
    -----------------
    Relation: the domain's. Guarantee: the certificate's, at most the budget. Proved in docs/proof-moments.md,
    docs/proof-objective.md and docs/proof-gradients.md. Of files, the number of records and, in a folder, the
    order of the file names are public under replace-one of single records.

    Examples
    --------
    >>> import numpy as np
    >>> from adlm import Domain, privatise
    >>> domain = Domain((2,), 0, 1, ("no", "yes"))
    >>> made = privatise(np.eye(2).repeat(50, 0), np.arange(100) // 50, domain, epsilon=1)
    >>> made.certificate.totals.epsilon_proved <= 1
    True
    """
    if domain is None:
        raise UserError("the domain is not given; declare what is public of the records, domain=...")
    declared = TableDomain.load(domain) if isinstance(domain, Path | str) else domain
    neighbours = options.get("neighbours")
    if neighbours is not None:
        declared = replace(declared, neighbours=neighbours)
    budget = Budget.of(epsilon, delta)
    if isinstance(declared, TableDomain) and declared.input is None:
        check_options(options, table=True)
        if options.get("kind") == "synthetic":
            synthetic.bins_that_fit(declared)  # before anything is read
        with _engine(options) as engine, contextlib.closing(engine.read(x, declared, y)) as records:
            release = privatise_table(records, declared, budget, options)
            return replace(release, engine=engine.described())
    check_options(options, table=False)
    if y is None and isinstance(declared, Domain):
        raise UserError("labels are not given; an array needs one label for each record, y=...")
    contributions = declared.contributions if isinstance(declared, TableDomain) else 1
    if contributions > 1:  # before anything is read
        public_size(declared.neighbours, contributions, options.get("size"), lambda: 0)
    requested = {"epsilon": str(epsilon), "delta": str(delta)}
    with _engine(options) as engine, contextlib.closing(engine.read(x, declared, y)) as records:
        return _privatise_arrays(records, declared, budget, options, requested, engine)


def _engine(options: ReleaseOptions) -> contextlib.AbstractContextManager[Engine]:
    """Open the engine that the options name."""
    return open_engine(
        options.get("engine", "local"),
        options.get("ray_address"),
        device=options.get("device", "cpu"),
        cache=options.get("cache", False),
    )


# ---- Tables


def privatise_table(
    reader: Records | Reader, table: TableDomain, budget: Budget, options: ReleaseOptions
) -> Release:
    """Release a table from its encoded records; see `privatise`.

    Parameters
    ----------
    reader : records that an engine holds, or a function, called once a pass, that yields batches of
        (n, width) records in [0, 1] with their (n,) class codes, or positions of the target.
    table : the declared table.
    budget : epsilon and delta.
    options : those of `privatise` that are for tables.
    """
    if options.get("kind") == "synthetic":
        return _privatise_synthetic(reader, table, budget, options)
    ledger, source = opened(options)
    plan = options.get("plan") or _planned_table(reader, table, budget, options)
    if plan.form is None or (plan.classes == 1) != (table.target is not None):
        raise UserError("the plan is not one for this table; leave it to adlm")
    return release_by_plan(
        as_records(reader),
        table,
        plan=plan,
        budget=budget,
        ledger=ledger,
        source=source,
        contributions=table.contributions,
    )


def _planned_table(
    reader: Records | Reader, table: TableDomain, budget: Budget, options: ReleaseOptions
) -> Plan:
    """Count the records where their number is public, and plan."""
    n = _public_size(reader, table, options)
    return plan_release(table, n, budget.epsilon, budget.delta, options.get("fourier", 0))


def _public_size(reader: Records | Reader, table: TableDomain, options: ReleaseOptions) -> int:
    def count() -> int:
        n = as_records(reader).count()
        if n == 0:
            raise UserError("there are no records to release; give at least one")
        return n

    return public_size(table.neighbours, table.contributions, options.get("size"), count)


def plan_release(
    table: TableDomain, n: int, epsilon: Fraction, delta: Fraction, fourier: Fourier = 0
) -> Plan:
    """Choose how to release a table: by a perturbed loss under pure epsilon, by gradient rounds with delta.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    fourier : random Fourier features: a number, or 0 or `auto` to leave it to the planner.
    """
    count = 0 if fourier == "auto" else fourier
    if not 0 <= count <= FOURIER_LIMIT:
        raise UserError(f"fourier must be auto or an integer from 0 to {FOURIER_LIMIT} (got {fourier!r})")
    if count and not any(is_ordered(column) for column in table.features):
        raise UserError("random Fourier features need a numeric, date or ordinal column; leave them out")
    return plan_table(table, n, epsilon, delta, int(count))


def _privatise_synthetic(
    reader: Records | Reader, table: TableDomain, budget: Budget, options: ReleaseOptions
) -> Release:
    """Release a table to draw records from: noisy tables, and a head by the usual plan; see `synthetic`."""
    if options.get("plan") is not None:
        raise UserError("a synthetic release follows the planner; leave out plan")
    ledger, source = opened(options)
    size = _public_size(reader, table, options)
    head = synthetic.head_budget(budget)
    plan = plan_release(table, size, head.epsilon, head.delta, options.get("fourier", 0))
    terms = Terms(budget, table.neighbours, table.contributions)
    listed = synthetic_stages(plan, table, size, gaussian=budget.delta > 0)
    calibrated = calibrate(listed, terms, unproved_by(table.domain))
    return run_stages(
        calibrated,
        as_records(reader),
        table.domain,
        ledger=ledger,
        source=source,
        settings={"k": plan.k, "mechanism": plan.noise, "plan": plan.to_dict(), "size": size},
    )


def synthetic_stages(plan: Plan, table: TableDomain, size: int, *, gaussian: bool) -> tuple[Stage, ...]:
    """List the stages of a release to draw records from: its tables, and the head with its share.

    Parameters
    ----------
    plan : of the head.
    table : the declared table.
    size : number of records, public or guessed.
    gaussian : whether there is a delta.
    """
    head = [replace(stage, share=stage.share * synthetic.HEAD[gaussian]) for stage in stages_of(plan, table)]
    if plan.form == "indicators":
        head.insert(0, synthetic.MapStage.of(IndicatorTable(with_bins(table, plan.bins))))
    return (*synthetic.stages(table, size, gaussian=gaussian), *head)


# ---- Images and vectors


def _privatise_arrays(
    records: Records,
    declared: Domain | TableDomain,
    budget: Budget,
    options: ReleaseOptions,
    requested: dict[str, Any],
    engine: Engine,
) -> Release:
    """Release arrays, images or vectors that an engine has read."""
    domain = declared if isinstance(declared, Domain) else declared.domain
    contributions = declared.contributions if isinstance(declared, TableDomain) else 1
    if records.rows == 0:
        raise UserError("there are no records to release; give at least one")
    ledger, source = opened(options)
    settings: dict[str, Any] = {}
    if isinstance(declared, TableDomain) and declared != TableDomain.of_domain(domain):
        settings["input"] = declared.to_dict()  # so that models can read such files
    wide = options.get("features") or for_domain(domain)
    plan = _planned_arrays(wide, domain, records.rows, budget, options, contributions)
    public = provenance_of(wide, domain.shape) == "public"
    stamps, unproved = ((), "") if public else ((NOT_PUBLIC,), PRIVATE_FEATURES)
    features = narrowed(wide, plan.k)
    settings["asked"] = requested | {"k": options.get("k"), "allocation": options.get("allocation")}
    calibrated = calibrated_plan(plan, domain, budget, contributions, unproved)
    ledger.check(*calibrated.charges)  # before a record is read
    with contextlib.closing(engine.features(records, domain, features)) as mapped:
        made = _run(calibrated, mapped, domain, plan, ledger, source, features, settings, stamps)
        return replace(made, engine=None if engine.name == "local" else engine.described())


def _planned_arrays(
    features: Features, domain: Domain, n: int, budget: Budget, options: ReleaseOptions, contributions: int
) -> Plan:
    """Return the given plan or the planner's, with the settings that were requested."""
    plan, k = options.get("plan"), options.get("k")
    if k is not None and not 1 <= k <= features.width:
        raise UserError(f"k must lie between 1 and the features' width {features.width}, got {k}")
    if plan is None:
        return plan_arrays(
            features,
            public_size(domain.neighbours, contributions, options.get("size"), lambda: n),
            len(domain.classes),
            float(budget.epsilon / contributions),
            float(budget.delta),
            domain.neighbours,
            k=k,
            allocation=options.get("allocation"),
        )
    if plan.form is not None or plan.classes != len(domain.classes):
        raise UserError("the plan is not one for these records; leave it to adlm")
    return plan
