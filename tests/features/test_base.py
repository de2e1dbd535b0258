"""Fewer coordinates of a map, products of its leading ones, and records as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adlm import Domain, privatise
from adlm.errors import UserError
from adlm.features import Backbone, build, checked, for_domain, provenance_of, user_supplied
from adlm.features.base import (
    FEW,
    MOST,
    TIERS,
    BoundedVector,
    Identity,
    Narrowed,
    PairProducts,
    PriorStatistics,
    RandomDirections,
    narrow,
    narrowed,
)
from adlm.features.drawn import PriorProjection
from adlm.features.photographs import NaturalImages
from adlm.mechanism.planner import plan_arrays
from adlm.model.fit import fit

PHOTOGRAPHS = Domain((3, 32, 32), 0, 255, tuple("abcdefghij"), "add-remove", "natural")


def test_a_prior_decides_how_features_are_narrowed() -> None:
    drawn, plain = PriorProjection("drawn"), Identity((30,))
    assert type(narrowed(drawn, 40)) is Narrowed
    assert type(narrowed(plain, 10)) is RandomDirections
    assert narrowed(plain, 30) is plain


def test_random_directions_are_orthogonal_and_keep_lengths_and_angles_on_average() -> None:
    wide, n = Identity((400,)), 50
    made = RandomDirections(wide, 200)
    torch.testing.assert_close(made.directions.T @ made.directions, torch.eye(200), atol=1e-5, rtol=0)
    x = torch.rand(n, 400, generator=torch.Generator().manual_seed(1))
    z, kept = wide(x), made(x)
    torch.testing.assert_close(kept.norm(dim=1), torch.ones(n))
    torch.testing.assert_close(made.of(z), kept)
    before = torch.nn.functional.normalize(z, dim=1)
    assert (before @ before.T - kept @ kept.T).abs().mean() < 0.05


def test_the_spec_builds_the_same_map_and_a_wide_one_may_be_given() -> None:
    made = RandomDirections(Identity((30,)), 10)
    x = torch.rand(4, 30, generator=torch.Generator().manual_seed(1))
    entry = {"spec": made.spec(), "fingerprint": made.fingerprint()}
    for again in (build(made.spec()), checked(entry), checked(entry, Identity((30,)))):
        assert again.fingerprint() == made.fingerprint()
        assert torch.equal(again(x), made(x))
    assert made.fingerprint() != RandomDirections(Identity((30,)), 11).fingerprint()
    assert made.fingerprint() != Narrowed(Identity((30,)), 10).fingerprint()


@pytest.mark.parametrize("delta", ["0", "1e-5"])
def test_what_matters_may_stand_in_any_column(delta: str) -> None:
    """Classes differ in the last columns alone, and the budget is enough for a part of the width."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 4000)
    x = rng.random((4000, 300)) * 0.2 + 0.4
    x[:, -90:] = np.repeat(np.eye(3)[y], 30, axis=1)
    domain = Domain((300,), 0.0, 1.0, ("a", "b", "c"))
    made = privatise(x[:3000], y[:3000], domain=domain, epsilon="0.5", delta=delta, seed=1)
    plan = made.certificate.settings["plan"]
    assert plan["k"] < 300
    assert "random directions" in plan["reasons"][-1]
    assert made.certificate.features["spec"]["name"] == "random-directions"
    assert (fit(made).predict(x[3000:]) == y[3000:]).mean() > 0.95


def test_a_narrowed_prior_has_the_length_of_the_whole() -> None:
    whole = PriorStatistics(
        typical=torch.ones(4),
        weight=torch.ones(4),
        within=torch.eye(4),
        mean=torch.tensor([1.0, 0.0, 0.0, 0.0]),
    )
    slim = narrow(whole, 2)
    length = slim.within.diagonal() + slim.weight + slim.mean.square()
    assert float(length.sum()) == pytest.approx(9.0)


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
    norms = PairProducts(NaturalImages(width=100), 30)(images).norm(dim=1)
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
        assert plan_arrays(made, *given) == plan_arrays(plain, *given)
    moments = (50_000, 10, 8.0, 1e-5, "add-remove")
    assert plan_arrays(made, *moments).k == made.width
    assert plan_arrays(made, *moments, rounds=False) == plan_arrays(plain, *moments, rounds=False)
    assert made.rounds_width(MOST.signal) == made.width
    widths = [made.rounds_width(tier.signal) for tier in TIERS]
    assert widths == sorted(set(widths))
    assert [made.rounds_width(tier.signal - 1) for tier in TIERS[1:]] == widths[:-1]
    assert made.rounds_width(FEW.signal - 1) == plain.rounds_width(FEW.signal - 1)


def test_products_of_fewer_coordinates_are_part_of_the_map() -> None:
    made = PairProducts(PriorProjection("garments"))
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


def test_rounds_of_a_weak_signal_take_the_other_map_alone() -> None:
    made, plain = drawn_products(), PriorProjection("drawn")
    weak = (60_000, 10, 0.1, 1e-5, "replace-one")
    assert plan_arrays(made, *weak) == plan_arrays(plain, *weak)


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
    assert not user_supplied(drawn_products())
    for provenance in ("public", "private"):
        made = PairProducts(Backbone(module, (4,), provenance=provenance), 3)
        assert user_supplied(made)
        assert provenance_of(made, (4,)) == provenance


@pytest.mark.parametrize(("leading", "share"), [(0, 0.4), (31, 0.4), (3, 0.0), (3, 1.0)])
def test_products_that_cannot_be_made_are_refused(leading: int, share: float) -> None:
    with pytest.raises(UserError, match="products"):
        PairProducts(Identity((30,)), leading, share)


def test_vectors_within_their_bound_are_divided_by_it_and_longer_ones_cut_to_it() -> None:
    domain = Domain((3,), -2, 2, ("a", "b"), family="vector")
    features = for_domain(domain)
    assert isinstance(features, BoundedVector)
    given = torch.tensor([[0.6, 0.0, -0.8], [0.0, 0.0, 0.0], [2.0, 2.0, 1.0], [90.0, 0.0, 0.0]])
    found = features(torch.from_numpy(domain.scale(given)))
    assert torch.allclose(found[:2], given[:2] / 2, atol=1e-6)
    assert torch.allclose(found[2], given[2] / 3, atol=1e-6)
    assert torch.allclose(found[3], torch.tensor([1.0, 0.0, 0.0]), atol=1e-6)
    assert found.norm(dim=1).max() <= 1 + 1e-6
