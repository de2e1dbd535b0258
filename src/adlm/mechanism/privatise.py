"""Privatise once: from private records of any kind to a release."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from adlm.data.images import InputPieces, input_pieces, read_inputs
from adlm.data.tables import frame_reader
from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.engine import Engine, open_engine
from adlm.engine.passes import Records
from adlm.engine.records import encoded_records
from adlm.errors import UserError
from adlm.features import Features, described, for_domain, narrowed, provenance_of
from adlm.features.narrowed import narrow
from adlm.features.tables import is_ordered
from adlm.mechanism import pure, regression, synthetic, table_rounds
from adlm.mechanism.calibration import MomentConfig, Upstream, calibrate
from adlm.mechanism.class_sums import measure
from adlm.mechanism.options import (
    Fourier,
    Reader,
    ReleaseOptions,
    TableReleasePlan,
    check_options,
    opened,
    public_size,
)
from adlm.mechanism.planner import PurePlan, plan_features, prior_scales, suits_objective
from adlm.mechanism.planner import plan_table as plan_pure
from adlm.mechanism.planning import MomentPlan, RegressionPlan, plan_moments
from adlm.mechanism.regression import plan_target
from adlm.mechanism.table_rounds import TableRoundsPlan, plan_table
from adlm.privacy.accounting import Budget
from adlm.privacy.certificate import LEARNT_BOUNDS, NOT_PUBLIC
from adlm.privacy.release import Release

# ---- Privatise a table once: from batches of encoded records to a release.

FOURIER_LIMIT = 1000  # random Fourier features, when requested by number


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
    plan = options.get("plan")
    if plan is None:
        n = public_size(table.neighbours, table.contributions, options.get("size"), lambda: _count(reader))
        plan = plan_release(table, n, budget.epsilon, budget.delta, options.get("fourier", 0))
    if isinstance(plan, RegressionPlan) != (table.target is not None) and not isinstance(plan, PurePlan):
        raise UserError("a numeric target needs a RegressionPlan, a label another plan; leave it to adlm")
    if isinstance(plan, PurePlan):
        return pure.release(
            encoded_records(reader, table),
            table,
            plan=plan,
            budget=budget,
            ledger=ledger,
            source=source,
            contributions=table.contributions,
        )
    if isinstance(plan, RegressionPlan):
        return regression.release(reader, table, plan=plan, budget=budget, ledger=ledger, source=source)
    if not isinstance(plan, TableRoundsPlan):
        raise UserError(f"a table's release follows a plan of tables, got {type(plan).__name__}")
    return table_rounds.release(reader, table, plan=plan, budget=budget, ledger=ledger, source=source)


def _privatise_synthetic(
    reader: Records | Reader, table: TableDomain, budget: Budget, options: ReleaseOptions
) -> Release:
    """Release a table to draw records from: a head by the usual plan, and noisy tables; see `synthetic`."""
    if options.get("plan") is not None:
        raise UserError("a synthetic release follows the planner; leave out plan")
    ledger, source = opened(options)
    n = public_size(table.neighbours, table.contributions, options.get("size"), lambda: _count(reader))
    of_head, spend = synthetic.divided(budget)
    plan = plan_release(table, n, of_head.epsilon, of_head.delta, options.get("fourier", 0))
    if isinstance(plan, PurePlan):
        inputs = sum(column.width for column in table.features)
        charges = pure.calibrate(plan, of_head, table.neighbours, table.contributions, inputs).charges
    elif isinstance(plan, RegressionPlan):
        charges = regression.calibrate(regression.configured(plan, table, of_head), table.neighbours).charges
    else:
        charges = table_rounds.calibrate(plan, table, of_head).charges
    usual: ReleaseOptions = {"plan": plan, "ledger": ledger, "source": source}
    return synthetic.release(
        encoded_records(reader, table),
        table,
        budget=budget,
        ledger=ledger,
        source=source,
        head_charges=charges,
        head=lambda: privatise_table(reader, table, of_head, usual),
        spend=spend,
    )


def plan_release(
    table: TableDomain, n: int, epsilon: Fraction, delta: Fraction, fourier: Fourier = 0
) -> TableReleasePlan:
    """Choose how to release a table: by a perturbed loss under pure epsilon, by gradient rounds with delta.

    Parameters
    ----------
    table : the declared table.
    n : number of records, public or guessed.
    epsilon, delta : the budget.
    fourier : random Fourier features: a number, or 0 or `auto` to leave it to the planner.
    """
    count = checked_fourier(table, fourier)
    if not delta:
        return plan_pure(table, n, float(epsilon / table.contributions), count)
    if table.target is not None:
        return plan_target(table, n, epsilon, delta, count)
    return plan_table(table, n, epsilon, delta, count)


def checked_fourier(table: TableDomain, fourier: Fourier) -> int:
    """Check a number of random Fourier features; 0 leaves it to the rule."""
    if fourier == "auto":
        return 0
    if not 0 <= fourier <= FOURIER_LIMIT:
        raise UserError(f"fourier must be auto or an integer from 0 to {FOURIER_LIMIT} (got {fourier!r})")
    if fourier and not any(is_ordered(column) for column in table.features):
        raise UserError("random Fourier features need a numeric, date or ordinal column; leave them out")
    return int(fourier)


def _count(reader: Records | Reader) -> int:
    n = reader.rows if isinstance(reader, Records) else sum(len(y) for _, y in reader())
    if n == 0:
        raise UserError("there are no records to release; give at least one")
    return n


# ---- Privatise once: from private records of any kind to a release, by the public rule.

PRIVATE_FEATURES = "private records had a part in the features"


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
    size : a public guess of the number of records, for the rule, where the number is private:
        under add-remove, or when a person may have several records.
    plan : settings; the public rule's when not given.
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
    of_table = isinstance(declared, TableDomain) and declared.input is None
    check_options(options, of_table)
    budget = Budget.of(epsilon, delta)
    if isinstance(declared, TableDomain) and declared.input is None:
        if options.get("kind") == "synthetic":
            synthetic.bins_that_fit(declared)  # before anything is read
        if isinstance(x, Path | str) and y is None:
            with _engine(options) as engine, contextlib.closing(engine.table(x, declared)) as records:
                release = privatise_table(records, declared, budget, options)
                return replace(release, engine=engine.described())
        if options.get("engine", "local") != "local":
            raise UserError("the engine ray reads a table from files; give a file, a folder or a glob")
        return privatise_table(_reader(x, y, declared), declared, budget, options)
    if isinstance(declared, TableDomain):
        if y is not None:
            raise UserError("y must be None: labels are read from the files")
        return _privatise_inputs(x, declared, budget, options, {"epsilon": str(epsilon), "delta": str(delta)})
    if y is None:
        raise UserError("labels are not given; an array needs one label for each record, y=...")
    requested = {"epsilon": str(epsilon), "delta": str(delta)}
    return _privatise_arrays(np.asarray(x), y, declared, budget, options, requested)


def _privatise_inputs(
    path: Path | str,
    declared: TableDomain,
    budget: Budget,
    options: ReleaseOptions,
    requested: dict[str, Any],
) -> Release:
    """Load files of images or vectors and release them as arrays, or leave reading to the engine."""
    if declared.contributions > 1:  # before anything is read
        public_size(declared.neighbours, declared.contributions, options.get("size"), lambda: 0)
    with _engine(options) as engine:
        options = options | {"engine": engine}
        pieces = input_pieces(path, declared) if engine.reads_files else None
        if pieces is not None:
            return _privatise_arrays(pieces, None, declared.domain, budget, options, requested, declared)
        x, codes = read_inputs(path, declared)
        return _privatise_arrays(x, codes, declared.domain, budget, options, requested, declared)


def _reader(x: Any, y: npt.ArrayLike | None, table: TableDomain) -> Reader:
    """Return a reader of a table's records in batches, called once a pass."""
    if hasattr(x, "columns"):
        return frame_reader(x, y, table)
    if y is not None:
        raise UserError("labels of a table stand in its file or come from its reader; leave y out")
    if callable(x):
        reader: Reader = x
        return reader
    raise UserError(
        f"a table's records are a file, a data frame or a reader of encoded batches, got {type(x).__name__}"
    )


def _privatise_arrays(
    records: npt.NDArray[Any] | InputPieces,
    y: npt.ArrayLike | None,
    domain: Domain,
    budget: Budget,
    options: ReleaseOptions,
    requested: dict[str, Any],
    declared: TableDomain | None = None,
) -> Release:
    """Release arrays; `declared` is the declaration of the files that they come from, if any.

    Files that an engine reads contain their labels; `y` is then None.
    """
    contributions = 1 if declared is None else declared.contributions
    if len(records) == 0:
        raise UserError("there are no records to release; give at least one")
    ledger, source = opened(options)
    settings: dict[str, Any] = {}
    if declared is not None and declared != TableDomain.of_domain(domain):  # else the domain is enough
        settings["input"] = declared.to_dict()  # so that models can read such files
    features, plan = _planned(domain, len(records), budget, options, contributions)
    public = provenance_of(features, domain.shape) == "public"
    stamps, unproved = ((), "") if public else ((NOT_PUBLIC,), PRIVATE_FEATURES)
    if public and domain.bounds_learnt_from_data:
        unproved = LEARNT_BOUNDS
    codes = None
    if y is not None:
        codes = domain.encode_labels(y) if declared is None else np.asarray(y, dtype=np.int64)
    if codes is not None and len(records) != len(codes):
        raise UserError(f"there must be one label for each record, got {len(records)} and {len(codes)}")
    features = narrowed(features, plan.k, plan.taper if isinstance(plan, MomentPlan) else 0)
    entry = described(features)
    settings["asked"] = requested | {"k": options.get("k"), "allocation": options.get("allocation")}
    if isinstance(plan, MomentPlan):
        settings["plan"] = plan.to_dict()  # scales are among the tensors, not in a plan
        config = MomentConfig.of(plan, budget, contributions)
        ledger.check(  # before a record is read
            *(replace(charge, unproved=unproved) for charge in calibrate(config, domain.neighbours).charges)
        )
    else:
        needed = pure.calibrate(plan, budget, domain.neighbours, contributions, 0)
        ledger.check(*(replace(charge, unproved=unproved) for charge in needed.charges))
    with (
        _engine(options) as engine,
        contextlib.closing(engine.features(records, codes, domain, features)) as mapped,
    ):
        ran_on = None if engine.name == "local" else engine.described()
        if isinstance(plan, PurePlan):
            made = pure.release(
                mapped,
                domain,
                plan=plan,
                budget=budget,
                ledger=ledger,
                source=source,
                features=features,
                contributions=contributions,
                settings=settings,
                stamps=stamps,
                unproved=unproved,
            )
            return replace(made, engine=ran_on)
        upstream = Upstream(settings, stamps, unproved)
        measured = measure(
            mapped, domain=domain, config=config, ledger=ledger, source=source, upstream=upstream
        )
    return replace(measured.release(domain, entry, upstream), engine=ran_on)


def _engine(options: ReleaseOptions) -> contextlib.AbstractContextManager[Engine]:
    """Open the engine that the options name."""
    return open_engine(
        options.get("engine", "local"),
        options.get("ray_address"),
        device=options.get("device", "cpu"),
        cache=options.get("cache", False),
    )


def _planned(
    domain: Domain, n: int, budget: Budget, options: ReleaseOptions, contributions: int = 1
) -> tuple[Features, MomentPlan | PurePlan]:
    """Return features and plan: given ones or the planner's, with the settings that were requested."""
    plan, k, allocation = options.get("plan"), options.get("k"), options.get("allocation")
    features = options.get("features") or for_domain(domain)
    if k is not None and not 1 <= k <= features.width:
        raise UserError(f"k must lie between 1 and the features' width {features.width}, got {k}")
    if isinstance(plan, PurePlan):
        return features, plan
    if plan is None:
        size = public_size(domain.neighbours, contributions, options.get("size"), lambda: n)
        classes, each = len(domain.classes), float(budget.epsilon / contributions)
        if not budget.delta and suits_objective(size, each, features, domain.neighbours):
            return features, plan_features(
                size, classes, each, domain.neighbours, features, k, allocation or "identical"
            )
        rounds = allocation is None
        plan = plan_moments(
            size, classes, each, float(budget.delta), domain.neighbours, features, rounds=rounds
        )
    if not isinstance(plan, MomentPlan):
        raise UserError(f"a release of arrays follows a plan of arrays, got {type(plan).__name__}")
    return features, adjusted(plan, features, k=k, allocation=allocation)


def adjusted(
    plan: MomentPlan, features: Features, *, k: int | None = None, allocation: str | None = None
) -> MomentPlan:
    """Return a plan of class sums with some settings replaced by the user's.

    Parameters
    ----------
    plan : the settings.
    features : the public map.
    k : number of features.
    allocation : `identical`, `linear` or `optimal`.
    """
    if k is not None:
        plan = replace(plan, k=k, q=min(plan.q, k), taper=0)
    if allocation is not None:
        return replace(plan, scales=_prior_scales(allocation, features, plan.k))
    if plan.scales is not None and len(plan.scales) != plan.k:
        return replace(plan, scales=None)
    return plan


def _prior_scales(allocation: str, features: Features, k: int) -> tuple[float, ...] | None:
    """Return the (k,) relative noise scales of an allocation by the public prior."""
    if allocation == "identical":
        return None
    if features.prior is None:
        raise UserError(f"allocation {allocation!r} needs features with a public prior; leave it out")
    prior = features.prior if features.width == k else narrow(features.prior, k)
    return prior_scales(allocation, prior)
