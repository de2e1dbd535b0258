"""From records to a release to models: the main job, on digits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adlm import Budget, Ledger, Model, Release, TrainingConfig, UserError, fit, privatise
from adlm.data import datasets
from adlm.engine.local import LocalEngine
from adlm.engine.passes import Records
from adlm.features import Backbone
from adlm.features.base import Identity
from adlm.privacy.certificate import SEEDED
from adlm.privacy.folders import CERTIFICATE

TRAIN, TEST = datasets.load("digits", "train"), datasets.load("digits", "test")


@pytest.fixture(scope="module")
def release() -> Release:
    return privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=4)


def accuracy(model: Model) -> float:
    return float((model.predict(TEST.x) == TEST.y).mean())


def test_a_release_of_digits_makes_a_useful_model_at_the_proved_epsilon(release: Release) -> None:
    assert release.certificate.totals.epsilon_proved <= 4
    assert release.certificate.totals.epsilon_proved > Fraction(399, 100)
    assert accuracy(fit(release)) > 0.7  # five releases gave 0.85 to 0.88; chance is 0.1


def test_one_epoch_or_a_hundred_leave_the_certificate_byte_for_byte_the_same(
    release: Release, tmp_path: Path
) -> None:
    release.save(tmp_path / "release")
    for epochs in (1, 100):
        model = fit(release, "mlp", TrainingConfig(epochs=epochs, batch_size=250), draws=1000)
        model.save(tmp_path / f"m{epochs}")
        assert model.training["epochs"] == epochs
    texts = {(tmp_path / name / CERTIFICATE).read_bytes() for name in ("release", "m1", "m100")}
    assert len(texts) == 1


def test_any_network_can_be_stacked_on_the_features(release: Release) -> None:
    width = release.features().width
    network = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 10))
    model = fit(release, network, TrainingConfig(epochs=30, batch_size=250, learning_rate=1e-2), draws=5000)
    assert accuracy(model) > 0.65


def test_a_model_survives_the_disk(release: Release, tmp_path: Path) -> None:
    for name, network in (("linear", None), ("mlp", "mlp")):
        model = fit(release, network, TrainingConfig(epochs=1, batch_size=250), draws=1000)
        model.save(tmp_path / name)
        again = Model.load(tmp_path / name)
        assert np.allclose(again.probabilities(TEST.x[:50]), model.probabilities(TEST.x[:50]))
        assert again.certificate.to_dict() == release.certificate.to_dict()


def test_an_altered_model_is_found(release: Release, tmp_path: Path) -> None:
    fit(release).save(tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="was altered"):
        Model.load(tmp_path / "m")


def test_drawn_vectors_have_the_released_means(release: Release) -> None:
    z, codes = release.sample(20_000, seed=1)
    moments = release.moments()
    drawn = torch.stack([z[codes == c].double().mean(0) for c in range(10)])
    released = moments.sums / moments.counts.clamp_min(50)[:, None]
    cosine = nn.functional.cosine_similarity(drawn, released, dim=1)
    assert cosine.min() > 0.8


def test_a_seed_makes_it_repeatable_and_says_so() -> None:
    one, two = (privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=1, seed=5) for _ in range(2))
    assert one.tensors["class_sums"].equal(two.tensors["class_sums"])
    assert SEEDED in one.certificate.stamps


def test_a_second_release_spends_again_or_is_refused() -> None:
    ledger = Ledger(budget=Budget(Fraction(3, 2)))
    privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=1, ledger=ledger)
    with pytest.raises(UserError, match="overspent"):
        privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=1, ledger=ledger)


def test_noise_by_the_relevance_of_the_public_prior_differs_from_feature_to_feature(release: Release) -> None:
    made = privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=4, allocation="optimal")
    assert Fraction(399, 100) < made.certificate.totals.epsilon_proved <= 4
    assert made.certificate.settings["asked"]["allocation"] == "optimal"
    assert made.tensors["step"][1:].std() > 0
    assert release.tensors["step"][1:].std() == 0


def test_under_add_remove_the_number_of_records_stays_private() -> None:
    domain = replace(TRAIN.domain, neighbours="add-remove")
    with pytest.raises(UserError, match="the number of records is private"):
        privatise(TRAIN.x, TRAIN.y, domain=domain, epsilon=1)
    made = privatise(TRAIN.x, TRAIN.y, domain=domain, epsilon=4, size=1500)
    assert made.certificate.settings["n"] is None
    assert str(len(TRAIN)) not in (str(v) for v in made.certificate.settings.values())
    assert accuracy(fit(made)) > 0.7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0}, "must be positive"),
        ({"epsilon": float("nan")}, "positive number"),
        ({"y": TRAIN.y[:-1]}, "one label for each record"),
        ({"y": np.full(len(TRAIN), 11)}, "11"),
        ({"x": TRAIN.x[:, :7]}, "shape"),
        ({"x": TRAIN.x[:0], "y": TRAIN.y[:0]}, "no records|empty|at least one"),
        ({"x": np.where(np.arange(64).reshape(8, 8) == 3, np.nan, TRAIN.x.astype(float))}, "NaN|finite"),
        ({"k": 0}, "between 1 and"),
        ({"k": 10**6}, "between 1 and"),
        ({"allocation": "guessed"}, "identical, linear"),
    ],
)
def test_bad_input_is_one_sentence_and_costs_nothing(change: dict[str, object], message: str) -> None:
    ledger = Ledger()
    given: dict[str, object] = {"x": TRAIN.x, "y": TRAIN.y, "domain": TRAIN.domain, "epsilon": 1}
    with pytest.raises(UserError, match=message):
        privatise(**(given | change), ledger=ledger)  # type: ignore[arg-type]
    assert ledger.charges == ()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_records_give_a_release_all_the_same(n: int) -> None:
    made = privatise(TRAIN.x[:n], TRAIN.y[:n], domain=TRAIN.domain, epsilon=1, features=Identity((8, 8)))
    assert made.certificate.totals.epsilon_proved <= 1
    assert fit(made).predict(TEST.x[:3]).shape == (3,)


def test_features_are_cached_for_their_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path))
    from adlm.engine.records import cache_folder, clear_cache

    one, two = (
        privatise(TRAIN.x[:100], TRAIN.y[:100], domain=TRAIN.domain, epsilon=1, seed=1, cache=True)
        for _ in range(2)
    )
    assert one.tensors["class_sums"].equal(two.tensors["class_sums"])
    kept = list(cache_folder().glob("*.npy"))
    assert len(kept) == 1
    assert kept[0].stat().st_mode & 0o077 == 0
    assert clear_cache() == 1
    assert not cache_folder().exists()


class TwoLayers(nn.Module):
    """A stand-in for a network that a person brings along."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def test_your_own_backbone_is_fingerprinted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mine = Backbone(TwoLayers(), (8, 8), provenance="public")
    made = privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=8, features=mine)
    made.save(tmp_path / "r")
    again = Release.load(tmp_path / "r")
    with pytest.raises(UserError, match="a backbone of your own"):
        fit(again)
    with pytest.raises(UserError, match="are not those that the release was made with"):
        fit(again, features=Backbone(TwoLayers(), (8, 8), provenance="public"))
    model = fit(again, features=mine)
    model.save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m", features=mine)
    assert (loaded.predict(TEST.x) == model.predict(TEST.x)).all()
    assert accuracy(model) > 0.3


def test_under_add_remove_no_record_moves_the_features_of_another() -> None:
    from adlm.engine.records import featurise
    from adlm.features import for_domain

    domain = replace(TRAIN.domain, neighbours="add-remove")
    features = for_domain(domain)
    whole = featurise(TRAIN.x[:60], domain, features)
    without = featurise(np.delete(TRAIN.x[:60], 7, axis=0), domain, features)
    assert (np.delete(whole, 7, axis=0) == without).all()


@pytest.mark.parametrize("delta", ["0", "1e-5"])
@pytest.mark.parametrize("prior", [True, False])
def test_a_release_that_exceeds_the_budget_is_refused_before_a_record_is_mapped(
    delta: str, prior: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, read = Ledger(budget=Budget.of(1, "1e-4")), []

    def features(self: LocalEngine, *given: object) -> Records:
        read.append(given)
        return mapped(self, *given)  # type: ignore[arg-type]

    mapped = LocalEngine.features
    monkeypatch.setattr(LocalEngine, "features", features)
    given: Any = {"domain": TRAIN.domain, "ledger": ledger, "delta": delta}
    if not prior:
        given["features"] = Identity((8, 8))
    privatise(TRAIN.x, TRAIN.y, epsilon="3/4", **given)
    charges = ledger.charges
    with pytest.raises(UserError, match="overspent"):
        privatise(TRAIN.x, TRAIN.y, epsilon="7/8", **given)
    assert len(read) == 1
    assert ledger.charges == charges
