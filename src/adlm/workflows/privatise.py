"""Privatise once: from private records to a moment release, by the public rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from adlm.curator.featurise import featurise
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.moments import (
    Batch,
    CrossMoments,
    MomentConfig,
    Second,
    calibrate,
    release_moments,
)
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.privacy.accounting import parse_delta, parse_epsilon
from adlm.privacy.release import NOT_PUBLIC, Release
from adlm.public.domain import Domain
from adlm.public.features import Features, for_domain, narrowed, provenance_of
from adlm.public.features.narrowed import narrow
from adlm.public.planning.moments import MomentPlan, plan_moments
from adlm.workflows import pilot

PRIVATE_FEATURES = "private records had a part in the features"
RELEVANCES = ("prior", "private")
INPUT = "input"  # the setting that holds a declared file of images or vectors
BATCH = 4096  # records whose features are added up at once


def privatise(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    domain: Domain,
    epsilon: object,
    delta: object = 0,
    features: Features | None = None,
    plan: MomentPlan | None = None,
    k: int | None = None,
    second: int | None = None,
    share_sums: float | None = None,
    allocation: str | None = None,
    relevance: str = "prior",
    ledger: Ledger | None = None,
    source: Source | None = None,
    seed: int | None = None,
    size: int | None = None,
    cache: bool = False,
    device: str = "cpu",
    contributions: int = 1,
    declared: Mapping[str, Any] | None = None,
) -> Release:
    """Read private records once and release noisy sums of their public features.

    Parameters
    ----------
    x, y : (n, *shape) records in the units of the domain, and n labels.
    epsilon, delta : the budget; delta 0 gives pure epsilon.
    features : the frozen public map; the one that suits the domain's family when not given. A map of your
        own has a `provenance`, and is tried on noise: alone, in a batch, shuffled, and twice.
    plan : settings; the public rule's when not given. `k`, `second`, `share_sums` and `allocation` change
        single settings of it.
    relevance : what an adaptive allocation follows: `prior` (public, free), or `private`: LRP on a model of
        a first small release, which takes a tenth of the budget and is charged.
    ledger : where the cost is written before noise is drawn; in memory when not given.
    seed : makes the release repeatable and stamps it `NOT PRIVATE: seeded`.
    size : under add-remove, a public guess of the number of records for the rule to work with.
    cache : keep the features of the records on disk, readable by their owner alone.
    contributions : most records that one person has in `x`, which the caller has seen to; the guarantee is
        for a person.
    declared : a public declaration of the records' file, kept in the certificate.

    Formal guarantees
    -----------------
    Relation: the domain's. Guarantee: the certificate's, at most the budget. Proved in docs/proof-moments.md.
    """
    budget, slack = parse_epsilon(epsilon), parse_delta(delta)
    if relevance not in RELEVANCES:
        raise UserError(f"relevance must be one of {', '.join(RELEVANCES)}, got {relevance!r}")
    if relevance == "private" and allocation == "identical":
        raise UserError("identical noise follows no relevance: leave out the private relevance, which costs")
    if relevance == "private" and contributions > 1:
        raise UserError("private relevance is for one record a person; leave it out, or declare one record")
    records, codes = np.asarray(x), domain.encode_labels(y)
    if len(records) != len(codes):
        raise UserError(f"there must be one label for each record, got {len(records)} and {len(codes)}")
    if len(codes) == 0:
        raise UserError("there are no records to release; give at least one")
    features = features or for_domain(domain)
    public = provenance_of(features, domain.shape) == "public"
    stamps, unproved = ((), "") if public else ((NOT_PUBLIC,), PRIVATE_FEATURES)
    if plan is None:
        plan = plan_moments(
            public_size(domain, len(codes), size, contributions), len(domain.classes),
            float(budget / contributions), float(slack),
            domain.neighbours, features,
            rounds=second is None and allocation is None and relevance == "prior",
        )  # fmt: skip
    plan = adjusted(
        plan,
        features,
        k=k,
        second=second,
        share_sums=share_sums,
        allocation=None if relevance == "private" else allocation,
    )
    features = narrowed(features, plan.k)
    z = featurise(records, domain, features, device=device, cache=cache)

    def batches() -> list[Batch]:
        return [(z[i : i + BATCH], codes[i : i + BATCH]) for i in range(0, len(z), BATCH)]

    asked = {"epsilon": str(epsilon), "delta": str(delta), "k": k, "second": second, "share": share_sums,
             "allocation": allocation}  # fmt: skip
    book = ledger or Ledger()
    draw = source or (Source.system() if seed is None else Source.seeded_with(seed))
    if relevance == "private":
        early, budget = pilot.shares(budget, slack)
        book.check(  # both, before the first is charged: a second that does not fit would waste it
            *calibrate(pilot.first_design(plan, early, slack), domain.neighbours)[1],
            *calibrate(design(replace(plan, scales=None), budget, slack), domain.neighbours)[1],
        )
        first = pilot.pilot_release(batches, domain, features, plan, early, slack, book, draw, unproved)
        plan = replace(plan, scales=pilot.scales(first.relevance, first.typical, allocation or "optimal"))
    else:
        first = pilot.NO_PILOT
    return release_moments(
        batches,
        domain=domain,
        features=features,
        design=design(plan, budget, slack, contributions),
        ledger=book,
        source=draw,
        settings={"plan": plan.to_dict(), "relevance": relevance, "asked": asked}
        | ({} if declared is None else {INPUT: dict(declared)}),
        stamps=stamps,
        unproved=unproved,
        earlier=first.charges,
        extra=first.tensors,
    )


def public_size(domain: Domain, n: int, size: int | None, contributions: int = 1) -> int:
    """Return the number of records that the rule may use: n is public only under replace-one of records."""
    if domain.neighbours == "replace-one" and contributions == 1:
        return n
    if size is None:
        why = "under add-remove" if contributions == 1 else "where a person may have several records"
        raise UserError(
            f"{why} the number of records is private; give a public guess of it (size=..., --public-size)"
        )
    return size


def design(plan: MomentPlan, epsilon: Fraction, delta: Fraction, contributions: int = 1) -> MomentConfig:
    """Turn a plan and a budget into what the curator follows."""
    pure: Literal["laplace", "radial"] = "laplace" if plan.noise == "laplace" else "radial"
    cross = (
        CrossMoments(*plan.cross_clip_norms, plan.cross_share)
        if plan.cross_clip_norms and plan.q < plan.k
        else None
    )
    second = (
        Second(plan.q, plan.basis, plan.second_clip_norm, around=plan.around, cross=cross) if plan.q else None
    )
    return MomentConfig(
        epsilon,
        delta,
        plan.k,
        plan.clip_norm,
        plan.scales,
        plan.constant,
        plan.share_sums,
        second,
        contributions,
        pure,
        plan.rounds,
    )


def adjusted(
    plan: MomentPlan,
    features: Features,
    *,
    k: int | None = None,
    second: int | None = None,
    share_sums: float | None = None,
    allocation: str | None = None,
) -> MomentPlan:
    """Change single settings of a plan, as a person asked."""
    changes: dict[str, Any] = {}
    if k is not None:
        if not 1 <= k <= features.width:
            raise UserError(f"k must lie between 1 and the features' width {features.width}, got {k}")
        changes |= {"k": k, "q": min(plan.q, k)}
    if second is not None:
        if not 0 <= second <= (k or plan.k):
            raise UserError(f"second moments must be of 0 to {k or plan.k} coordinates, got {second}")
        changes["q"] = second
    if share_sums is not None:
        if not 0 < share_sums < 1:
            raise UserError(f"the share of class sums must lie between 0 and 1, got {share_sums}")
        changes["share_sums"] = Fraction(str(share_sums))
    plan = replace(plan, **changes)
    if allocation is not None:
        plan = replace(plan, scales=_prior_scales(allocation, features, plan.k))
    elif plan.scales is not None and len(plan.scales) != plan.k:
        plan = replace(plan, scales=None)
    return plan


def _prior_scales(allocation: str, features: Features, k: int) -> tuple[float, ...] | None:
    """Return the (k,) relative noise scales of an allocation by the public prior."""
    if allocation == "identical":
        return None
    if features.prior is None:
        raise UserError(f"allocation {allocation!r} needs features with a public prior, or private relevance")
    prior = features.prior if features.width == k else narrow(features.prior, k)
    return pilot.scales(prior.weight.double().sqrt(), prior.typical.double(), allocation)
