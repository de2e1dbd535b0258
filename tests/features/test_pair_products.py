"""Products of leading coordinates beside a map's own: a quadratic form that a linear head can learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adlm import Domain, privatise
from adlm.errors import UserError
from adlm.features import (
    Backbone,
    Narrowed,
    brought_along,
    build,
    checked,
    for_domain,
    narrowed,
    provenance_of,
)
from adlm.features.identity import Identity
from adlm.features.natural import NaturalImages
from adlm.features.pair_products import FEW, MOST, TIERS, PairProducts
from adlm.features.prior import PriorProjection
from adlm.mechanism.planning import plan_moments
from adlm.model.fit import fit

PHOTOGRAPHS = Domain((3, 32, 32), 0, 255, tuple("abcdefghij"), "add-remove", "natural")


def drawn_products() -> PairProducts:
    return PairProducts(PriorProjection("drawn"), 20, 0.4)


def test_products_of_records_are_those_of_the_kernel() -> None:
    """(1 - s) z.z' + s (u.u')^2, pair by pair."""
    made, x = PairProducts(Identity((30,)), 7, 0.3), torch.rand(9, 30) - 0.3
    h, z = made(x).double(), made.inner(x).double()
    assert h.shape == (9, 30 + 28)
    for i in range(9):
        for j in range(9):
            u, v = (row[:7] / row[:7].norm() for row in (z[i], z[j]))
            expected = 0.7 * float(z[i] @ z[j]) + 0.3 * float(u @ v) ** 2
            assert float(h[i] @ h[j]) == pytest.approx(expected, abs=1e-6)


def test_rows_have_norm_at_most_one_and_nothing_stays_nothing() -> None:
    images = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    images[0], images[1] = 0.0, 1.0
    norms = PairProducts(NaturalImages(100), 30)(images).norm(dim=1)
    assert float(norms.max()) <= 1 + 1e-6
    assert float(norms[2:].min()) > 1 - 1e-5
    assert torch.equal(PairProducts(Identity((5,)), 3)(torch.full((2, 5), 0.5)), torch.zeros(2, 11))


def test_the_spec_builds_the_same_map() -> None:
    made = drawn_products()
    again = build(made.spec())
    assert again.fingerprint() == made.fingerprint()
    x = torch.rand(4, 28, 28)
    assert torch.equal(again(x), made(x))
    others = (PairProducts(made.inner, 21, 0.4), PairProducts(made.inner, 20, 0.3), made.inner)
    assert made.fingerprint() not in {other.fingerprint() for other in others}


def test_narrow_features_are_those_of_the_other_map() -> None:
    made, plain = drawn_products(), PriorProjection("drawn")
    assert narrowed(made, plain.width) is made.inner
    assert narrowed(made, made.width) is made
    few, wide = narrowed(made, 40), narrowed(made, plain.width + 5)
    assert few.fingerprint() == narrowed(plain, 40).fingerprint()
    assert type(wide) is Narrowed
    assert wide.width == plain.width + 5
    entry = {"spec": few.spec(), "fingerprint": few.fingerprint()}
    assert checked(entry, made).fingerprint() == few.fingerprint()


def test_the_rule_takes_products_where_the_signal_carries_them() -> None:
    made = for_domain(PHOTOGRAPHS)
    assert isinstance(made, PairProducts)
    plain = made.inner
    asked = [(0.1, 1e-5), (0.5, 1e-5), (3.0, 0.0), (1000.0, 0.0)]
    for epsilon, delta in asked:
        given = (50_000, 10, epsilon, delta, "replace-one")
        assert plan_moments(*given, made) == plan_moments(*given, plain)
    moments = (50_000, 10, 8.0, 1e-5, "add-remove")
    assert plan_moments(*moments, made).k == made.width
    assert plan_moments(*moments, made, rounds=False) == plan_moments(*moments, plain, rounds=False)
    assert made.rounds_width(MOST.signal) == made.width
    widths = [made.rounds_width(tier.signal) for tier in TIERS]
    assert widths == sorted(set(widths))
    assert [made.rounds_width(tier.signal - 1) for tier in TIERS[1:]] == widths[:-1]
    assert made.rounds_width(FEW.signal - 1) == plain.rounds_width(FEW.signal - 1)


def test_products_of_fewer_coordinates_are_part_of_the_map() -> None:
    made = for_domain(PHOTOGRAPHS)
    assert isinstance(made, PairProducts)
    parts = [narrowed(made, made.rounds_width(tier.signal)) for tier in TIERS]
    fewer = parts[0]
    assert isinstance(fewer, PairProducts)
    assert (fewer.multiplied, fewer.share) == (60, 0.25)
    assert fewer.rounds_width(MOST.signal) == fewer.width
    for part in (*parts, made.inner, made):
        entry = {"spec": part.spec(), "fingerprint": part.fingerprint()}
        assert checked(entry, made).fingerprint() == checked(entry).fingerprint() == part.fingerprint()
    with pytest.raises(UserError, match="not those that the release was made with"):
        checked({"spec": fewer.spec(), "fingerprint": made.fingerprint()}, made)


def test_a_map_alone_keeps_the_weights_that_suit_it() -> None:
    made, plain = drawn_products(), PriorProjection("drawn")
    weak = (60_000, 10, 0.1, 1e-5, "replace-one")
    assert plan_moments(*weak, made) == plan_moments(*weak, plain)
    assert made.rounds_taper(FEW.signal - 1) == plain.rounds_taper(FEW.signal - 1) > 0
    assert made.rounds_taper(FEW.signal) == 0


def test_garments_have_products_and_drawn_images_have_none() -> None:
    shape, names = (28, 28), ("a", "b")
    garments = for_domain(Domain(shape, 0, 255, names, "replace-one", "garments"))
    assert isinstance(garments, PairProducts)
    assert (garments.multiplied, garments.share, garments.width) == (60, 0.25, 600 + 1830)
    assert isinstance(for_domain(Domain(shape, 0, 255, names, "replace-one", "drawn")), PriorProjection)


def test_its_prior_is_near_what_synthetic_classes_say() -> None:
    made = drawn_products()
    z = made.synthetic(60, 30, 3)
    assert z is not None
    assert made.prior is not None
    found, products = z.flatten(0, 1), slice(made.inner.width, None)
    told = made.prior.within.diagonal() + made.prior.weight + made.prior.mean.square()
    assert float(told.sum()) == pytest.approx(1.0, abs=0.25)
    measured = torch.stack([found.abs().mean(0)[products], made.prior.typical[products]])
    assert float(torch.corrcoef(measured)[0, 1]) > 0.8
    assert float(measured[1].sum() / measured[0].sum()) == pytest.approx(1.0, abs=0.3)


def test_drawn_vectors_get_the_products_of_their_coordinates() -> None:
    made = drawn_products()
    z = torch.randn(5, made.width, generator=torch.Generator().manual_seed(0))
    possible = made.possible(z)
    assert torch.allclose(possible.norm(dim=1), torch.ones(5), atol=1e-5)
    plain = possible[:, : made.inner.width] / (1 - made.share) ** 0.5
    assert torch.allclose(possible, made.of(plain), atol=1e-6)
    assert torch.allclose(possible, made.possible(possible), atol=1e-6)


def test_a_quadratic_rule_is_learnt_that_a_linear_head_cannot_learn() -> None:
    """The class is the sign of a product of two columns, so class means and every linear score are alike."""
    rng = np.random.default_rng(0)
    x = rng.random((12_000, 6))
    y = ((x[:, 0] - 0.5) * (x[:, 1] - 0.5) > 0).astype(int)
    domain = Domain((6,), 0.0, 1.0, ("a", "b"), "add-remove")
    centred = Identity((6,))
    right = {}
    for name, features in (("plain", centred), ("products", PairProducts(centred, 6, 0.5))):
        records = x[:10_000], y[:10_000]
        made = privatise(
            *records, domain=domain, epsilon=8, delta="1e-5", seed=1, size=10_000, features=features
        )
        model = fit(made, features=features)
        right[name] = float((model.predict(x[10_000:]) == y[10_000:]).mean())
    assert right["plain"] < 0.6
    assert right["products"] > 0.75


def test_a_map_inside_products_is_still_the_person_s_own() -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 5))
    assert not brought_along(drawn_products())
    for provenance in ("public", "private"):
        made = PairProducts(Backbone(module, (4,), provenance=provenance), 3)
        assert brought_along(made)
        assert provenance_of(made, (4,)) == provenance


@pytest.mark.parametrize(("leading", "share"), [(0, 0.4), (31, 0.4), (3, 0.0), (3, 1.0)])
def test_products_that_cannot_be_made_are_refused(leading: int, share: float) -> None:
    with pytest.raises(UserError, match="products"):
        PairProducts(Identity((30,)), leading, share)
