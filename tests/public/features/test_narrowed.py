"""Fewer coordinates: the first where a prior put them in order, random directions where nothing did."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adlm import Domain, privatise
from adlm.analyst.fit import fit
from adlm.public.features import Narrowed, RandomDirections, build, checked, narrowed
from adlm.public.features.identity import Identity
from adlm.public.features.prior import PriorProjection
from adlm.public.planning.moments import plan_moments


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


def test_products_across_the_basis_are_for_features_with_a_prior() -> None:
    plain, drawn = Identity((300,)), PriorProjection("drawn")
    assert plan_moments(60_000, 10, 8.0, 0.0, "replace-one", drawn).cross_clip_norms is not None
    assert plan_moments(60_000, 10, 8.0, 0.0, "replace-one", plain).cross_clip_norms is None
