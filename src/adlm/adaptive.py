"""Noise that follows relevance: where a moment release takes its noise scales from.

The paper's second promise. Relevances come from the public prior at no cost; or from the data: a tenth of
the budget buys a first release of class sums, a model is made of it, LRP explains that model on labelled
vectors drawn from the same release, and the rest of the budget is spent by what came out. Only the first
release reads records, and it is charged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor, nn

from adlm.analyst.discriminant import fit
from adlm.certificate import Charge
from adlm.curator.allocation import noise_scales
from adlm.curator.ledger import Ledger
from adlm.curator.lrp import relevance as propagate
from adlm.curator.moments import Batches, Design, release_moments
from adlm.curator.noise import Source
from adlm.public.domain import Domain
from adlm.public.features import Features
from adlm.public.rule import Plan
from adlm.sampling import class_laws

SHARE = Fraction(1, 10)  # of the budget, for the first release
DRAWS = 2000


@dataclass(frozen=True)
class First:
    """A first release and what it says of the coordinates.

    Attributes
    ----------
    share : of the budget that it took.
    relevance : (k,) mean |R_j| by LRP; `typical` : (k,) mean |z_j|, both over drawn vectors.
    charges : what it cost.
    """

    share: Fraction
    relevance: Tensor
    typical: Tensor
    charges: tuple[Charge, ...] = ()
    tensors: dict[str, Tensor] = field(default_factory=dict)


NOTHING = First(Fraction(0), torch.empty(0), torch.empty(0))


def first_release(
    batches: Batches,
    domain: Domain,
    features: Features,
    plan: Plan,
    epsilon: Fraction,
    delta: Fraction,
    ledger: Ledger,
    source: Source,
) -> First:
    """Spend a tenth of the budget on class sums with identical noise, and explain a model of them.

    Formal guarantees
    -----------------
    Relation, sensitivity, guarantee: those of `release_moments` at a tenth of epsilon. All else here reads
    that release alone.
    """
    pure: Literal["laplace", "radial"] = "laplace" if plan.noise == "laplace" else "radial"
    design = Design(epsilon * SHARE, delta, plan.k, plan.level, None, plan.constant, pure=pure)
    release = release_moments(
        batches, domain=domain, features=features, design=design, ledger=ledger, source=source
    )
    charges = tuple(replace(c, what=f"{c.what}, for private relevances") for c in release.certificate.charges)
    moments = release.moments()
    if moments.n <= 0:  # under add-remove, noisy counts can say that nobody is there: all coordinates alike
        even = torch.ones(plan.k, dtype=torch.float64)
        return First(SHARE, even, even, charges, {"relevance": even})
    head = fit(moments, features.prior)
    linear = nn.Linear(plan.k, len(domain.classes))
    with torch.no_grad():
        linear.weight.copy_(head.weight)
        linear.bias.copy_(head.bias)
    z, codes = class_laws(moments, features.prior).sample(DRAWS, torch.Generator().manual_seed(0))
    explained = propagate(nn.Sequential(linear), z, target=codes).features.abs().mean(0).double()
    return First(SHARE, explained, z.abs().mean(0).double(), charges, {"relevance": explained})


def scales(relevance: Tensor, typical: Tensor, allocation: str) -> tuple[float, ...] | None:
    """Return relative noise scales whose typical record is as long as with identical ones.

    A relevance of R asks for an error weight R^2. Coordinates are never withheld here: a floor of a
    thousandth of the mean keeps their noise finite.
    """
    if allocation == "identical":
        return None
    size = typical.clamp_min(1e-3 * float(typical.mean()) + 1e-12)
    weight = relevance.square()
    weight = weight.clamp_min(1e-3 * float(weight.mean()) + 1e-12)
    b = torch.from_numpy(noise_scales(allocation, size.numpy(), weight.numpy()))
    stretch = (size / b).square().sum().sqrt() / size.square().sum().sqrt()
    return tuple((b * stretch).tolist())
