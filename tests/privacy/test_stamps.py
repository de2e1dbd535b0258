"""What is wrong with an input is said of every output: stamps travel, undeclared inputs are refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adlm import Certificate, Domain, Ledger, UserError, privatise
from adlm.algorithm1 import Budgets, PrivateRecords, RelevanceSource, make_release
from adlm.audit.artefact import audit_release
from adlm.curator.mechanisms.calibration import Upstream
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.mechanisms.moments import release as release_moments
from adlm.curator.noise import Source
from adlm.privacy.certificate import NOT_PUBLIC, PEEKED, SEEDED, WEAK_DELTA, WEAK_EPSILON, weaknesses
from adlm.privacy.release import Release
from adlm.public.features import Backbone, Features, unit_norm
from adlm.public.features.identity import Identity

DOMAIN = Domain((6,), 0, 1, ("no", "yes"))
RNG = np.random.default_rng(1)
X, Y = RNG.random((80, 6)), RNG.integers(0, 2, 80)


def moments(*, seed: int | None = None, stamps: tuple[str, ...] = (), contributions: int = 1,
            neighbours: str = "replace-one", epsilon: str = "1", delta: str = "0") -> Release:  # fmt: skip
    return release_moments(
        lambda: [(X, Y)],
        domain=Domain((6,), 0, 1, ("no", "yes"), neighbours=neighbours),
        features=Identity((6,)),
        config=MomentConfig(Fraction(epsilon), Fraction(delta), 6, 4.0, contributions=contributions),
        ledger=Ledger(),
        source=Source.system() if seed is None else Source.seeded_with(seed),
        upstream=Upstream(stamps=stamps),
    )


def explained_by(certificate: Certificate) -> Release:
    """A record release whose relevance network was trained on another release."""
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    made = make_release(
        PrivateRecords(X, Y, DOMAIN),
        network,
        Budgets.split(2),
        20,
        explained=RelevanceSource(network, certificate),
        ledger=Ledger(),
        source=Source.system(),
    )
    return made


@pytest.mark.parametrize("stamp", [SEEDED, PEEKED, NOT_PUBLIC, "a warning of somebody's own"])
def test_a_relevance_network_brings_the_stamps_of_its_release(stamp: str) -> None:
    first = moments(seed=3) if stamp == SEEDED else moments(stamps=(stamp,))
    assert stamp in explained_by(first.certificate).certificate.stamps
    assert explained_by(moments().certificate).certificate.stamps == ()


def test_the_number_of_records_is_private_when_a_person_may_have_several() -> None:
    """Replacing a person with two records by one with a single record changes n."""
    assert moments().certificate.settings["n"] == len(X)
    several = moments(contributions=2)
    assert several.certificate.settings["n"] is None
    assert several.moments().n != len(X)  # the noisy counts', which is not whole
    assert moments(neighbours="add-remove").certificate.settings["n"] is None


@pytest.mark.parametrize(
    ("epsilon", "delta", "stamps"),
    [
        ("1", "0", ()),
        ("100", "0", ()),
        ("101", "0", (WEAK_EPSILON,)),
        ("1000000000000", "0", (WEAK_EPSILON,)),
        ("1", "0.0099", ()),
        ("1", "0.01", (WEAK_DELTA,)),
        ("1", "0.5", (WEAK_DELTA,)),
    ],
)
def test_what_nobody_would_call_private_is_stamped(epsilon: str, delta: str, stamps: tuple[str, ...]) -> None:
    made = moments(epsilon=epsilon, delta=delta)
    assert made.certificate.stamps == stamps
    assert made.certificate.private == (stamps == ())


@pytest.mark.parametrize(("n", "most"), [(1000, "1/1000"), (None, "1/100"), (10, "1/100")])
def test_a_delta_of_one_record_in_n_is_stamped(n: int | None, most: str) -> None:
    """A mechanism that publishes a random record as it is has delta 1/n."""
    law = moments(delta=most).certificate.totals
    assert weaknesses(law, n) == (WEAK_DELTA,)
    assert weaknesses(replace(law, delta=law.delta * Fraction(99, 100)), n) == ()


class Own(Features):
    """Features that a person brings along."""

    width = 6

    def __init__(self, provenance: str = "public") -> None:
        super().__init__()
        self.provenance = provenance

    def forward(self, x: Tensor) -> Tensor:
        return unit_norm(x)

    def spec(self) -> dict[str, Any]:
        return {"name": type(self).__name__}


class OfTheBatch(Own):
    """Divides by the largest value of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return unit_norm(x) / (1 + x.max())


class OfThePlace(Own):
    """Turns every second record upside down."""

    def forward(self, x: Tensor) -> Tensor:
        odd = torch.arange(len(x))[:, None] % 2 == 1
        return unit_norm(torch.where(odd & (len(x) > 1), x.flip(1), x))


class OfThePast(Own):
    """Remembers what it saw."""

    seen = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return unit_norm(x) / (1 + self.seen)


class InABuffer(Own):
    """Keeps count in a buffer, which nothing reads yet."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return unit_norm(x)


class BatchMaximum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.max().clamp_min(1e-3)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (OfTheBatch(), "other records of its batch"),
        (OfThePlace(), "depends on"),
        (OfThePast(), "depends on"),
        (InABuffer(), "what the map was asked before"),
        (Backbone(BatchMaximum(), (6,), torch.full((6,), 0.5), provenance="public"), "its batch"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Features) else "",
)
def test_features_that_let_records_meet_are_refused_before_a_record_is_read(
    features: Features, words: str
) -> None:
    ledger = Ledger()
    with pytest.raises(UserError, match=words):
        privatise(X, Y, domain=DOMAIN, epsilon=1, features=features, ledger=ledger)
    assert ledger.charges == ()


@pytest.mark.parametrize("provenance", ["", "mine"])
def test_features_of_your_own_say_where_they_come_from(provenance: str) -> None:
    with pytest.raises(UserError, match="must be 'public'"):
        privatise(X, Y, domain=DOMAIN, epsilon=1, features=Own(provenance))
    with pytest.raises(UserError, match="must be 'public'"):
        Backbone(nn.Identity(), (6,), provenance=provenance)


@pytest.mark.parametrize("relevance", ["prior", "private"])
def test_features_that_are_not_public_prove_nothing_and_are_stamped(relevance: str) -> None:
    for features in (Own("private"), Backbone(nn.Identity(), (6,), provenance="private")):
        made = privatise(X, Y, domain=DOMAIN, epsilon=9, features=features, relevance=relevance)
        assert NOT_PUBLIC in made.certificate.stamps
        assert made.certificate.totals.to_dict()["epsilon_proved"] is None
        assert made.certificate.features["provenance"] == "private"
    made = privatise(X, Y, domain=DOMAIN, epsilon=1, features=Own("public"), k=3)
    assert made.certificate.stamps == ()
    assert made.certificate.features["provenance"] == "public"


def test_an_audit_reports_what_is_stamped_not_private(tmp_path: Path) -> None:
    private, weak = (
        privatise(X, Y, domain=DOMAIN, epsilon=9, features=Own("private")),
        privatise(X, Y, domain=DOMAIN, epsilon="1e12", delta="1e-5"),
    )
    for name, release, words in (("p", private, "had a part in the features"), ("w", weak, WEAK_EPSILON)):
        release.save(tmp_path / name)
        checked = audit_release(tmp_path / name, 500, Source.system())[0]
        assert checked.fault
        assert words in checked.note
