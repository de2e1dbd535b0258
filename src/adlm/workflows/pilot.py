"""Noise by relevance: the relative noise scales of a moment release.

The paper's second promise. Relevances come from the public prior at no cost, or from the data. For the
latter, a tenth of the budget pays for a first release of class sums, to which a model is fitted. LRP explains
that model on labelled vectors drawn from the same release. The noise of the main release follows these
relevances. Only the first release reads records to find them, and it is charged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor, nn

from adlm.curator.allocation import noise_scales
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.calibration import Upstream
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.mechanisms.moments import release as release_moments
from adlm.curator.noise import Source
from adlm.curator.passes import Batches, Records
from adlm.errors import UserError
from adlm.estimation.class_model import fit_class_model
from adlm.estimation.discriminant import fit
from adlm.estimation.lrp import relevance as propagate
from adlm.privacy.accounting import Charge, gaussian_epsilon, gaussian_mu, show
from adlm.privacy.budget import Budget
from adlm.public.domain import Domain
from adlm.public.features import Features
from adlm.public.planning.moments import MomentPlan
from adlm.runtime.roots import root_down

SHARE = Fraction(1, 10)  # of the budget, for the first release
DRAWS = 2000


@dataclass(frozen=True)
class PilotRelease:
    """The relevances of the coordinates, from a first release.

    Attributes
    ----------
    relevance : (k,) mean |R_j| by LRP; `typical` : (k,) mean |z_j|, both over drawn vectors.
    charges : of the first release.
    """

    relevance: Tensor
    typical: Tensor
    charges: tuple[Charge, ...] = ()
    tensors: dict[str, Tensor] = field(default_factory=dict)


NO_PILOT = PilotRelease(torch.empty(0), torch.empty(0))


def shares(budget: Budget) -> tuple[Budget, Budget]:
    """Split a budget between a first release, which gets a tenth, and the rest.

    Formal guarantees
    -----------------
    Releases of the two budgets, both at this delta, compose to at most the whole. Pure epsilons add. Those of
    Gaussian noise do not: there it is mu^2 that is split, and epsilons are a margin below those of their
    parts, so that what is calibrated to them has at most the mu of its part.
    """
    epsilon, delta = budget.epsilon, budget.delta
    if not delta:
        return Budget(epsilon * SHARE), Budget(epsilon * (1 - SHARE))
    margin, mu = Fraction(1, 10**6), gaussian_mu(epsilon, delta)
    first = max(gaussian_epsilon(mu * root_down(SHARE), delta) - margin, margin)
    unspent = mu**2 - gaussian_mu(first, delta) ** 2
    rest = gaussian_epsilon(root_down(unspent), delta) - margin if unspent > 0 else Fraction(0)
    if rest <= 0:  # with so large a delta, that little noise needs no epsilon
        raise UserError(
            f"a tenth of epsilon {show(epsilon)} at delta {float(delta):g} is too little for private "
            "relevances; raise epsilon, or take the prior's relevance, which is free"
        )
    return Budget(first, delta), Budget(rest, delta)


def pilot_release(
    batches: Records | Batches,
    domain: Domain,
    features: Features,
    *,
    plan: MomentPlan,
    budget: Budget,
    ledger: Ledger,
    source: Source,
    unproved: str = "",
) -> PilotRelease:
    """Spend a budget on class sums with identical noise, and explain a model of them.

    Parameters
    ----------
    batches : yields ((n, width) features, (n,) class codes) batches.
    domain, features : of the records, and the public map that made the features.
    plan : the public settings; its second stage is not used.
    budget : of this release alone.
    ledger, source : where charges are written, and where noise comes from.
    unproved : why nothing is proved, if so.

    Formal guarantees
    -----------------
    Relation, sensitivity, guarantee: those of `moments.release` at this budget. All else here reads that
    release alone.
    """
    release = release_moments(
        batches,
        domain=domain,
        features=features,
        config=first_config(plan, budget),
        ledger=ledger,
        source=source,
        upstream=Upstream(unproved=unproved),
    )
    charges = tuple(replace(c, what=f"{c.what}, for private relevances") for c in release.certificate.charges)
    moments = release.moments()
    if moments.n <= 0:  # under add-remove, noisy counts can sum to no records: equal relevances
        isotropic = torch.ones(plan.k, dtype=torch.float64)
        return PilotRelease(isotropic, isotropic, charges, {"relevance": isotropic})
    head = fit(moments, features.prior)
    z, codes = fit_class_model(moments, features.prior).sample(DRAWS, torch.Generator().manual_seed(0))
    explained = propagate(nn.Sequential(head.module()), z, target=codes).features.abs().mean(0).double()
    return PilotRelease(explained, z.abs().mean(0).double(), charges, {"relevance": explained})


def first_config(plan: MomentPlan, budget: Budget) -> MomentConfig:
    """Class sums alone, with identical noise."""
    pure: Literal["laplace", "radial"] = "laplace" if plan.noise == "laplace" else "radial"
    return MomentConfig(budget.epsilon, budget.delta, plan.k, plan.clip_norm, None, plan.constant, pure=pure)


def scales(relevance: Tensor, typical: Tensor, allocation: str) -> tuple[float, ...] | None:
    """Return relative noise scales under which a typical record is as long as under identical ones.

    A relevance R gives an error weight R^2. No coordinate is dropped: a floor of a thousandth of the mean
    keeps its noise finite.
    """
    if allocation == "identical":
        return None
    size = typical.clamp_min(1e-3 * float(typical.mean()) + 1e-12)
    weight = relevance.square()
    weight = weight.clamp_min(1e-3 * float(weight.mean()) + 1e-12)
    b = torch.from_numpy(noise_scales(allocation, size.numpy(), weight.numpy()))
    stretch = (size / b).square().sum().sqrt() / size.square().sum().sqrt()
    return tuple((b * stretch).tolist())
