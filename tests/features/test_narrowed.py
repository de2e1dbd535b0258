"""Fewer coordinates: the first where a prior put them in order, random directions where nothing did."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adlm import Domain, privatise
from adlm.errors import UserError
from adlm.features import Narrowed, RandomDirections, Tapered, build, checked, narrowed
from adlm.features.identity import Identity
from adlm.features.prior import PriorProjection
from adlm.mechanism.planning import plan_moments
from adlm.mechanism.privatise import adjusted
from adlm.model.fit import fit


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


def test_weights_fall_off_over_the_coordinates() -> None:
    wide = Identity((30,))
    made, x = narrowed(wide, 12, 4), torch.rand(5, 30, generator=torch.Generator().manual_seed(1))
    assert isinstance(made, Tapered)
    for row, z in zip(made(x).double(), wide(x).double(), strict=True):
        expected = torch.stack([z[j] / (1 + j / 4) for j in range(12)])
        torch.testing.assert_close(row, expected / expected.norm(), atol=1e-6, rtol=0)
    torch.testing.assert_close(made.of(wide(x)), made(x))
    entry = {"spec": made.spec(), "fingerprint": made.fingerprint()}
    for again in (build(made.spec()), checked(entry), checked(entry, wide), checked(entry, made)):
        assert torch.equal(again(x), made(x))
    assert made.fingerprint() not in {Tapered(wide, 12, 5).fingerprint(), Narrowed(wide, 12).fingerprint()}
    with pytest.raises(UserError, match="1 or later"):
        Tapered(wide, 12, 0)


def test_the_prior_of_tapered_coordinates_is_that_of_tapered_synthetic_classes() -> None:
    made = Tapered(PriorProjection("drawn"), 60, 30)
    z = made.synthetic(60, 30, 3)
    assert z is not None
    assert made.prior is not None
    told = made.prior.within.diagonal() + made.prior.weight + made.prior.mean.square()
    found = z.flatten(0, 1).square().mean(0)
    assert float(told.sum()) == pytest.approx(1.0, abs=0.1)
    assert float((told - found).abs().sum()) < 0.15


def test_rounds_of_drawn_images_are_tapered_where_the_signal_is_weak() -> None:
    drawn, few, many = PriorProjection("drawn"), (60_000, 10, 0.1), (60_000, 10, 3.0)
    plan = plan_moments(*few, 1e-5, "replace-one", drawn)
    assert 0 < plan.taper < plan.k == 2 * plan.taper < drawn.width
    assert plan.to_dict()["taper"] == plan.taper
    assert any("halved" in reason for reason in plan.reasons)
    assert plan_moments(*many, 1e-5, "add-remove", drawn).taper == 0
    assert plan_moments(*few, 0.0, "replace-one", drawn).taper == 0
    assert adjusted(plan, drawn, k=50).taper == 0
    garments = PriorProjection("garments")
    assert plan_moments(*few, 1e-5, "replace-one", garments).taper == 0


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


def test_products_across_the_basis_are_for_features_with_a_prior() -> None:
    plain, drawn = Identity((300,)), PriorProjection("drawn")
    assert plan_moments(60_000, 10, 8.0, 0.0, "replace-one", drawn).cross_clip_norms is not None
    assert plan_moments(60_000, 10, 8.0, 0.0, "replace-one", plain).cross_clip_norms is None
