"""What is wrong with an input is said of every output: stamps travel, undeclared inputs are refused."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from torch import Tensor, nn

from adlm import AdLMClassifier, Budget, Certificate, Domain, Ledger, UserError, privatise
from adlm.audit.artefacts import audit_release
from adlm.data import datasets
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.export.verification import verify
from adlm.features import Backbone, Features, unit_norm
from adlm.features.base import Identity
from adlm.mechanism.planner import Plan
from adlm.mechanism.privatise import release_by_plan
from adlm.paper import Budgets, PrivateRecords, RelevanceSource, make_release
from adlm.privacy.certificate import NOT_PUBLIC, PEEKED, SEEDED, WEAK_DELTA, WEAK_EPSILON, weaknesses
from adlm.privacy.folders import CERTIFICATE
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime.artefact import canonical, sha256
from adlm.sklearn.inputs import PrivacyWarning

DOMAIN = Domain((6,), 0, 1, ("no", "yes"))
RNG = np.random.default_rng(1)
X, Y = RNG.random((80, 6)), RNG.integers(0, 2, 80)


def moments(*, seed: int | None = None, stamps: tuple[str, ...] = (), contributions: int = 1,
            neighbours: str = "replace-one", epsilon: str = "1", delta: str = "0") -> Release:  # fmt: skip
    return release_by_plan(
        lambda: [(X, Y)],
        Domain((6,), 0, 1, ("no", "yes"), neighbours=neighbours),
        features=Identity((6,)),
        plan=Plan("class sums", 2, 6, "gaussian" if Fraction(delta) else "laplace", sums_norm=4.0),
        budget=Budget(Fraction(epsilon), Fraction(delta)),
        contributions=contributions,
        ledger=Ledger(),
        source=Source.system() if seed is None else Source.seeded_with(seed),
        stamps=stamps,
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
        (InABuffer(), "what the map was asked before|earlier inputs"),
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


@pytest.mark.parametrize("delta", ["0", "1e-5"])
def test_features_that_are_not_public_prove_nothing_and_are_stamped(delta: str) -> None:
    for features in (Own("private"), Backbone(nn.Identity(), (6,), provenance="private")):
        made = privatise(X, Y, domain=DOMAIN, epsilon=9, delta=delta, features=features)
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


def rewritten(folder: Path, **changes: Any) -> None:
    """Change a certificate and make its digest again, as anybody can."""
    path = folder / CERTIFICATE
    whole = json.loads(path.read_bytes()) | changes
    body = {k: v for k, v in whole.items() if k not in ("digest", "engine")}  # the digest is of these
    path.write_bytes(canonical(whole | {"digest": sha256(canonical(body))}))


@pytest.mark.parametrize(
    ("epsilon", "delta", "stamp"), [("101", "0", WEAK_EPSILON), ("1", "0.02", WEAK_DELTA)]
)
def test_a_stamp_that_follows_from_the_numbers_cannot_be_taken_off(
    epsilon: str, delta: str, stamp: str, tmp_path: Path
) -> None:
    moments(epsilon=epsilon, delta=delta).save(tmp_path / "R")
    rewritten(tmp_path / "R", stamps=[])
    with pytest.raises(UserError, match=f"lacks the stamp {stamp!r}"):
        verify(tmp_path / "R")


def learnt() -> dict[str, Release]:
    """Releases whose bounds were computed from the records, of each kind that a user can make."""
    frame, y = X[:, :2], Y.astype(str)
    columns = tuple(Column(f"x{j}", "numeric", float(X[:, j].min()), float(X[:, j].max())) for j in range(2))
    table = TableDomain((*columns, Column("y", "label", classes=("0", "1"))), bounds_learnt_from_data=True)
    target = TableDomain((*columns, Column("y", "target", 0, 1)), bounds_learnt_from_data=True)
    encoded = ((X[:, :2]).astype(np.float32), Y)
    images = Domain((6,), float(X.min()), float(X.max()), ("no", "yes"), bounds_learnt_from_data=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        digits = datasets.load("digits", "train")
        scaled = make_pipeline(MinMaxScaler(), AdLMClassifier(domain=replace(digits.domain, upper=1.0)))
        flat = np.asarray(digits.x[:300]).reshape(300, -1)
        return {
            "classes": privatise(lambda: [encoded], domain=table, epsilon=1),
            "rounds": privatise(lambda: [encoded], domain=table, epsilon=1, delta="1e-5"),
            "target": privatise(lambda: [encoded], domain=target, epsilon=1),
            "target, rounds": privatise(lambda: [encoded], domain=target, epsilon=1, delta="1e-5"),
            "arrays": privatise(X, Y, images, epsilon=1),
            "records": make_release(
                PrivateRecords(X, Y, images),
                nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)),
                Budgets.split(2, method="ilm"),
                20,
                explained=None,
                ledger=Ledger(),
                source=Source.system(),
            ),
            "no domain": AdLMClassifier(epsilon=1).fit(frame, y).release_,
            "images behind a scaler": scaled.fit(flat, digits.y[:300])[-1].release_,
        }


def test_of_bounds_learnt_from_the_records_nothing_is_proved(tmp_path: Path) -> None:
    """A bound is a record's value: no epsilon holds, the stamp says so, and the audit finds it."""
    for name, made in learnt().items():
        certificate, folder = made.certificate, tmp_path / name
        assert PEEKED in certificate.stamps, name
        assert not certificate.private, name
        assert math.isinf(certificate.totals.epsilon_proved), name
        assert all(charge.unproved for charge in certificate.charges), name
        made.save(folder)
        assert verify(folder).stamps == certificate.stamps
        findings = audit_release(folder, 200, Source.seeded_with(1))
        assert findings[0].verdict == "VIOLATED", name
        rewritten(folder, stamps=[])
        with pytest.raises(UserError, match="lacks the stamp 'NOT PRIVATE: bounds learnt from data'"):
            verify(folder)


def test_an_epsilon_cannot_be_stated_for_learnt_bounds(tmp_path: Path) -> None:
    moments().save(tmp_path / "R")
    raw = json.loads((tmp_path / "R" / CERTIFICATE).read_bytes())
    rewritten(tmp_path / "R", domain=raw["domain"] | {"bounds_learnt_from_data": True}, stamps=[PEEKED])
    with pytest.raises(UserError, match="states an epsilon although its bounds were learnt"):
        verify(tmp_path / "R")


def test_learnt_bounds_cannot_be_charged_to_a_budget() -> None:
    images = replace(DOMAIN, bounds_learnt_from_data=True)
    with pytest.raises(UserError, match="no epsilon is proved for this release"):
        privatise(X, Y, images, epsilon=1, ledger=Ledger(budget=Budget.of(5)))


ENDLESS = (
    "1e400000000",
    "1e30000",
    "9" * 10**6,
    "0." + "1" * 10**6,
    "1/" + "9" * 10**6,
    10**4000,
    1e308,
    5e-324,
)


@pytest.mark.parametrize("delta", ["0", "1e-5"])
def test_no_number_in_a_file_stops_its_verification(delta: str, tmp_path: Path) -> None:
    """Every value of a certificate in turn is one that takes for ever to evaluate, or fits no double."""
    privatise(X, Y, DOMAIN, epsilon=1, delta=delta).save(tmp_path / "R")
    path = tmp_path / "R" / CERTIFICATE
    raw = path.read_bytes()
    for place in leaves(json.loads(raw)):
        if place[0] not in ("charges", "domain", "totals") and place[1:] not in (("n",), ("contributions",)):
            continue
        for value in ENDLESS:
            content = json.loads(raw)
            at = content
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = value
            path.write_bytes(canonical(content))
            rewritten(tmp_path / "R")
            start = time.process_time()
            said = ""
            try:
                verify(tmp_path / "R")
            except UserError as error:
                said = str(error)
            assert time.process_time() - start < 2, place
            assert len(said) < 2000, place


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a JSON object stand."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from leaves(below, (*place, key))
    if not isinstance(value, dict | list):
        yield place


def test_a_ledger_with_an_endless_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger(path, Budget.of(2)).charge(*moments().certificate.charges)
    text = path.read_text()
    for old, new in (
        ('"epsilon":"2"', '"epsilon":"1e400000000"'),
        ('"sensitivity":"', '"sensitivity":"1e400000000'),
    ):
        lines = [json.loads(line) for line in text.replace(old, new, 1).splitlines()]
        bodies = [{k: v for k, v in line.items() if k != "sha256"} for line in lines]
        dumped = [json.dumps(body, sort_keys=True, separators=(",", ":")) for body in bodies]
        path.write_text(
            "".join(
                json.dumps(body | {"sha256": sha256(line.encode())}, sort_keys=True, separators=(",", ":"))
                + "\n"
                for body, line in zip(bodies, dumped, strict=True)
            )
        )
        with pytest.raises(UserError, match="a number must be a decimal or a fraction"):
            Ledger(path)
