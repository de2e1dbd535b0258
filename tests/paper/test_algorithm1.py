"""Algorithm 1 from records to a trained network, in one call and by its halves; the relevance network."""

from __future__ import annotations

import doctest
import math
import subprocess
import sys
import warnings
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from adlm import paper
from adlm.cli.app import app
from adlm.domain import Domain
from adlm.errors import UserError, WeakReleaseWarning
from adlm.model.fit import fit
from adlm.model.training import TrainingConfig, accuracy
from adlm.paper import (
    Budgets,
    PrivateRecords,
    RecordOptions,
    RelevanceSource,
    adaptive_laplace_mechanism,
    algorithm1,
    make_release,
    train_on_records,
)
from adlm.paper.networks import build
from adlm.paper.relevance import RelevanceNetwork, make_public, pretrain, synthetic
from adlm.privacy.accounting import Budget, compose
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

DOMAIN = Domain(shape=(12,), lower=0.0, upper=1.0, classes=("0", "1", "2"))


def blobs(n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = random.uniform(0, 0.3, (n, 12))
    for i, label in enumerate(y):
        x[i, 3 * label : 3 * label + 3] += 0.7
    return x, y


def explained(provenance: str = "public") -> RelevanceSource:
    torch.manual_seed(0)
    return RelevanceSource(build("mlp", (12,), 5).eval(), provenance)


def test_the_whole_algorithm_learns_where_noise_is_small_and_certifies_both_totals() -> None:
    x, y = blobs()
    torch.manual_seed(0)
    network, release = adaptive_laplace_mechanism(
        PrivateRecords(x, y, DOMAIN),
        build("mlp", (12,), 3),
        Budgets(Fraction(100), Fraction(2000), Fraction(2000)),
        T=120,
        L=100,
        explained=explained(),
    )
    records, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    assert accuracy(network, records, labels, device="cpu") > 0.9
    totals = release.certificate.totals
    assert totals.epsilon_claimed == 4100
    sizes = {"d": 12, "L": 100, "delta_h0": 2 * 128 * 12, "delta_f": 3 * (25 + 625 / 4)}
    eps_x = sizes["L"] * sizes["d"] * 2000 / sizes["delta_h0"]
    eps_y = 2 * sizes["L"] * 2000 / sizes["delta_f"]
    assert float(totals.epsilon_proved) == pytest.approx(100 / 2 + eps_x + eps_y, rel=1e-5)
    assert release.certificate.settings["delta_h0_rule"] == "counted"


def test_a_network_of_ones_own_is_named_and_has_to_be_given_again() -> None:
    class Mine(nn.Sequential):
        pass

    x, y = blobs(30)
    made: list[Release] = []
    for network in (build("mlp", (12,), 3), Mine(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))):
        release = make_release(
            PrivateRecords(x, y, DOMAIN),
            network,
            Budgets.split(2, method="ilm"),
            10,
            explained=None,
            ledger=Ledger(),
            source=Source.seeded_with(0),
        )
        made.append(release)
    assert [release.certificate.settings["network"] for release in made] == ["mlp", "Mine"]
    plan = TrainingConfig(epochs=1, batch_size=10)
    assert fit(made[0], plan=plan).training["network"] == "mlp"
    with pytest.raises(UserError, match=r"made for Mine, which cannot be built by name; .* --network"):
        fit(made[1], plan=plan)
    assert fit(made[1], "mlp", plan).training["network"] == "mlp"


@pytest.mark.parametrize("delta_h0", ["counted", "per-patch", 500])
def test_each_way_to_count_the_first_layer_is_named_in_the_certificate(delta_h0: str | int) -> None:
    x, y = blobs(30)
    release = make_release(
        PrivateRecords(x, y, DOMAIN),
        build("mlp", (12,), 3),
        Budgets.split(2, method="ilm"),
        10,
        explained=None,
        options=RecordOptions(delta_h0=delta_h0),
        ledger=Ledger(),
        source=Source.seeded_with(0),
    )
    settings = release.certificate.settings
    assert settings["delta_h0"] == {"counted": "3072", "per-patch": "24"}.get(str(delta_h0), "500")
    assert settings["delta_h0_rule"] == (delta_h0 if isinstance(delta_h0, str) else "given")
    assert settings["method"] == "ilm"
    assert settings["allocation"] == "identical"


def test_a_private_relevance_network_leaves_nothing_proved(tmp_path: Path) -> None:
    x, y = blobs(30)
    ledger = Ledger()
    make_release(
        PrivateRecords(x, y, DOMAIN),
        build("mlp", (12,), 3),
        Budgets.split("0.5"),
        10,
        explained=explained("private"),
        options=RecordOptions(folder=tmp_path / "R"),
        ledger=ledger,
        source=Source.system(),
    )
    totals = Release.load(tmp_path / "R").certificate.totals
    assert math.isinf(totals.epsilon_proved)
    assert totals.epsilon_claimed == Fraction(1, 2)
    assert "private records" in totals.unproved[0]
    assert compose(ledger.charges) == totals


def test_the_analyst_needs_nothing_but_the_folder(tmp_path: Path) -> None:
    x, y = blobs(200)
    make_release(
        PrivateRecords(x, y, DOMAIN),
        build("cnn1d", (12,), 3),
        Budgets.split(10**5),
        100,
        explained=explained(),
        options=RecordOptions(rows=50, folder=tmp_path / "R"),
        ledger=Ledger(),
        source=Source.system(),
    )
    network = build("cnn1d", (12,), 3)
    history = train_on_records(
        Release.load(tmp_path / "R"), network, TrainingConfig(epochs=3, batch_size=50), device="cpu"
    )
    assert len(history.losses) == 3
    assert network(torch.rand(2, 12)).shape == (2, 3)


def test_training_again_on_the_same_release_leaves_the_bias_input_as_it_is() -> None:
    release = _release(delta_h0=100)
    released = float(release.tensors["bias"])
    assert abs(released - 1) > 1e-3
    torch.manual_seed(0)
    layer = nn.Linear(12, 5)
    network = nn.Sequential(layer, nn.ReLU(), nn.Linear(5, 3))
    before = layer.bias.detach().clone()
    still = TrainingConfig(steps=1, batch_size=10, optimiser="SGD", learning_rate=1e-30)
    for again in (
        lambda: train_on_records(release, network, still, device="cpu"),
        lambda: fit(release, network, still),
    ):
        for _ in range(2):
            again()
            torch.testing.assert_close(layer.bias.detach(), before * released)
    other = _release(delta_h0=100)
    assert other is not None
    train_on_records(other, network, still, device="cpu")
    torch.testing.assert_close(layer.bias.detach(), before * float(other.tensors["bias"]))


class Sideways(nn.Module):
    """A layer that relevance has no rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(self.out(x)).real  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"allocation": "quadratic"}, "allocation must be one of"),
        ({"mode": "both"}, "mode must be one of"),
        ({"delta_h0": "given"}, "counted, per-patch or a number"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"folder": Path()}, "exists already"),
        ({"ledger": Ledger(budget=Budget(Fraction(28, 100)))}, "would be overspent"),
        ({"y": ["0"]}, "one label for each"),
        ({"y": ["0", "9"] * 15}, "9"),
        ({"x": np.where(np.arange(360).reshape(30, 12) == 100, np.nan, 0.5)}, "record 8 has nan"),
        ({"x": np.full((30, 11), 0.5)}, "records must have shape"),
        (
            {"explained": RelevanceSource(nn.Sequential(nn.Linear(9, 3)), "public")},
            "does not take records of shape",
        ),
        ({"explained": RelevanceSource(Sideways(), "public")}, "not supported|cannot follow"),
    ],
)
def test_a_mistake_is_found_before_the_relevances_are_charged(changes: dict[str, Any], message: str) -> None:
    ledger = changes.get("ledger", Ledger())
    with pytest.raises(UserError, match=message):
        _release(**({"ledger": ledger} | changes))
    assert ledger.charges == ()


def test_the_split_of_ilm_gives_the_relevances_share_to_the_other_two() -> None:
    assert Budgets.split(2) == Budgets(Fraction(1, 2), Fraction(1), Fraction(1, 2))
    assert Budgets.split(3, ("0.25", "0.5", "0.25"), "ilm") == Budgets(None, Fraction(2), Fraction(1))
    assert Budgets.split("0.1", ("1", "1", "1")).epsilon2 == Fraction(1, 30)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Budgets.split(2, ("0.5", "0.5")), "three shares"),
        (lambda: Budgets.split(2, method="dpsgd"), "adlm, ilm"),
        (lambda: Budgets.split(-1), "must be positive"),
        (lambda: _release(explained=None), "needs a relevance network"),
        (lambda: _release(delta_h0="most"), "counted, per-patch or a number"),
        (lambda: pretrain(nn.Linear(2, 2), torch.zeros(0, 2), torch.zeros(0)), "pre-training needs"),
    ],
)
def test_mistakes_are_told(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=message):
        call()


def _release(**changes: Any) -> Release:
    open_to_choice = {field.name for field in fields(RecordOptions)} & changes.keys()
    options = RecordOptions(**{name: changes.pop(name) for name in open_to_choice})
    given: dict[str, Any] = {
        "explained": explained(),
        "ledger": Ledger(),
        "source": Source.system(),
    } | changes
    x, y = blobs(30)
    records = PrivateRecords(given.pop("x", x), given.pop("y", y), DOMAIN)
    return make_release(records, build("mlp", (12,), 3), Budgets.split(2), 10, options=options, **given)


def test_pre_training_learns_synthetic_classes_and_repeats_itself() -> None:
    first = make_public((12,), name="mlp", classes=4, per_class=40, epochs=8)
    second = make_public((12,), name="mlp", classes=4, per_class=40, epochs=8)
    x, labels = synthetic((12,), classes=4, per_class=40)
    assert float((first.network(x).argmax(1) == labels).double().mean()) > 0.9
    for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(28, 28), (1, 20, 20), (3, 16, 16), (7,), (5, 9)])
def test_synthetic_records_lie_in_the_unit_box_and_their_classes_differ(shape: tuple[int, ...]) -> None:
    x, labels = synthetic(shape, classes=3, per_class=6, seed=1)
    assert x.shape == (18, *shape)
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    means = torch.stack([x[labels == c].mean(0) for c in range(3)])
    assert float((means[0] - means[1]).abs().mean()) > 0.005
    assert torch.equal(x, synthetic(shape, classes=3, per_class=6, seed=1)[0])
    assert not torch.equal(x, synthetic(shape, classes=3, per_class=6, seed=2)[0])


def test_a_relevance_network_comes_back_from_its_folder_and_an_altered_one_does_not(tmp_path: Path) -> None:
    made = make_public((12,), name="mlp", classes=4, per_class=5, epochs=1)
    made.save(tmp_path / "N")
    loaded = RelevanceNetwork.load(tmp_path / "N", provenance="public")
    x = torch.rand(3, 12)
    assert torch.equal(made.network(x), loaded.network(x))
    assert loaded.provenance == "public"
    file = tmp_path / "N" / "network.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(UserError, match="not a sound relevance network"):
        RelevanceNetwork.load(tmp_path / "N", provenance="public")


def test_ilm_and_the_literal_loss_are_reached_from_the_algorithm() -> None:
    x, y = blobs(60)
    given: dict[str, Any] = {"budgets": Budgets(None, Fraction(2), Fraction(2)), "T": 3, "L": 20}
    given |= {"D": PrivateRecords(x, y, DOMAIN), "H": build("mlp", (12,), 3)}
    _, ilm = adaptive_laplace_mechanism(**given, explained=None, options=RecordOptions(mode="literal"))
    assert ilm.certificate.settings["method"] == "ilm"
    assert ilm.certificate.settings["allocation"] == "identical"
    assert ilm.certificate.totals.epsilon_claimed == 4
    assert ilm.tensors["phi"].shape == (60, 3, 3)
    with pytest.raises(UserError, match="without epsilon1 it is ILM"):
        adaptive_laplace_mechanism(**given, explained=explained())


@pytest.mark.parametrize("outputs", [2, 4, 12])
def test_a_network_with_other_outputs_than_classes_is_refused_before_anything_is_charged(
    outputs: int,
) -> None:
    x, y = blobs(30)
    ledger = Ledger()
    with pytest.raises(UserError, match=f"answers with {outputs} numbers and the domain has 3 classes"):
        adaptive_laplace_mechanism(
            PrivateRecords(x, y, DOMAIN),
            build("mlp", (12,), outputs),
            Budgets.split(3),
            T=1,
            L=10,
            explained=explained(),
            ledger=ledger,
        )
    assert ledger.charges == ()


def own_network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 12)),
        nn.Conv1d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, outputs),
    )


def test_one_call_trains_a_network_of_ones_own_and_certifies_both_totals() -> None:
    x, y = blobs()
    network, ledger = own_network(), Ledger()
    model, release = paper.train(
        network, x, y, DOMAIN, epsilon="1e5", explained=explained(), provenance="public", ledger=ledger
    )
    assert model.head is network
    assert model.certificate == release.certificate
    assert float((model.predict(x) == y).mean()) > 0.9
    assert compose(ledger.charges) == release.certificate.totals
    assert release.certificate.totals.epsilon_claimed == 10**5
    assert not any("was not declared" in stamp for stamp in model.stamps)
    again = fit(release, "mlp", TrainingConfig(steps=5))
    assert again.certificate == model.certificate


def test_the_defaults_are_those_of_the_paper() -> None:
    """|L| is at most n; d = 12, 48 neurons in the first layer, 48 before the output, three classes."""
    x, y = blobs(60)
    _, release = paper.train(own_network(), x, y, DOMAIN, epsilon=2, plan=TrainingConfig(steps=1))
    settings = release.certificate.settings
    assert (settings["method"], settings["allocation"]) == ("adlm", "linear")
    assert (settings["batch_size"], settings["delta_h0"]) == (60, str(2 * 48 * 12))
    assert (settings["delta_h0_rule"], settings["relevance_network"]) == ("counted", "public")
    eps_x, eps_y = 60 * 12 * 1 / (2 * 48 * 12), 2 * 60 * 0.5 / (3 * (48 + 48**2 / 4))
    proved = release.certificate.totals.epsilon_proved
    assert float(proved) == pytest.approx(0.5 / 2 + eps_x + eps_y, rel=1e-5)
    _, named = paper.train(
        "cnn1d", *blobs(2000), DOMAIN, epsilon=2, explained=explained(), plan=TrainingConfig(steps=1)
    )
    assert named.certificate.settings["batch_size"] == 1800


def test_identical_allocation_is_ilm_and_explains_nothing() -> None:
    x, y = blobs(60)
    given: dict[str, Any] = {"epsilon": 3, "allocation": "identical", "plan": TrainingConfig(steps=1)}
    _, release = paper.train("mlp", x, y, DOMAIN, **given)
    assert release.certificate.settings["method"] == "ilm"
    assert set(release.tensors["budget_ratios"].tolist()) == {1.0}
    assert [charge.epsilon_claimed for charge in release.certificate.charges] == [2, 1]
    with pytest.raises(UserError, match="without epsilon1 it is ILM"):
        paper.train("mlp", x, y, DOMAIN, explained=explained(), **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 61}, r"\|L\| = 61 is above the number of records, 60"),
        ({"delta_h0": 60 * 145}, r"noise of scale 145 on values in \[0, 1\] is too large .* of 20 records"),
        ({"delta_h0": 60}, r"the proved epsilon, 12\.\d+, is 6\.\d+ times the claimed one, 2"),
        (
            {"explained": "private"},
            "no epsilon is proved: the relevance network was trained on private records",
        ),
    ],
)
def test_weak_settings_are_warned_of_before_anything_is_charged(
    changes: dict[str, Any], message: str
) -> None:
    x, y = blobs(60)
    given: dict[str, Any] = {"delta_h0": 60 * 2, "explained": "public"} | changes
    given["explained"] = explained(given["explained"])
    ledger, plan = Ledger(), TrainingConfig(steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeakReleaseWarning)
        with pytest.raises(WeakReleaseWarning, match=message):
            paper.train("mlp", x, y, DOMAIN, epsilon=2, ledger=ledger, plan=plan, **given)
    assert ledger.charges == ()
    with pytest.warns(WeakReleaseWarning, match=message) as found:
        paper.train("mlp", x, y, DOMAIN, epsilon=2, ledger=ledger, plan=plan, **given)
    assert {Path(warning.filename).name for warning in found} == {Path(__file__).name}
    assert len(ledger.charges) == 3


def test_settings_that_are_sound_are_not_warned_of() -> None:
    """Claimed and proved agree at Delta_h0 = |L| d, and noise of scale 3 is learnt from with 600 records."""
    x, y = blobs(600)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeakReleaseWarning)
        given: dict[str, Any] = {
            "delta_h0": 600 * 12,
            "explained": explained(),
            "plan": TrainingConfig(steps=1),
        }
        _, release = paper.train("mlp", x, y, DOMAIN, epsilon=8, **given)
    assert release.certificate.totals.epsilon_proved < 4 * 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": own_network(4)}, "answers with 4 numbers and the domain has 3 classes"),
        ({"network": nn.Sequential(nn.Linear(9, 3))}, r"does not take records of shape \(12,\)"),
        ({"network": "resnet"}, "network must be one of"),
        ({"provenance": "public"}, "provenance is for a user-supplied module"),
        ({"network": own_network(), "provenance": "mine"}, "mine"),
        ({"plan": TrainingConfig(steps=1, class_weight="balanced")}, "class weights need classes"),
        ({"device": "abacus"}, "abacus"),
        ({"allocation": "quadratic"}, "allocation must be one of"),
        ({"split": ("0.5", "0.5")}, "three shares"),
        ({"epsilon": 0}, "must be positive"),
        ({"batch_size": 0}, "must be positive"),
        ({"y": None}, "labels are given when"),
        ({"x": 0.5}, "records must have shape"),
    ],
)
def test_the_one_call_refuses_a_mistake_before_anything_is_charged(
    changes: dict[str, Any], message: str
) -> None:
    x, y = blobs(30)
    given: dict[str, Any] = {"network": "mlp", "x": x, "y": y, "domain": DOMAIN, "epsilon": 2}
    given |= {"explained": explained(), "ledger": Ledger()} | changes
    with pytest.raises(UserError, match=message):
        paper.train(**given)
    assert given["ledger"].charges == ()


def test_who_trains_on_a_release_loads_nothing_that_reads_records() -> None:
    """The names of `adlm.paper` are imported when they are asked for, so its training half stays alone."""
    script = (
        "import sys, adlm.model.fit, adlm.paper.training; print(*(m for m in sys.modules if 'adlm' in m))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "adlm.paper.training" in loaded
    readers = (
        "adlm.data",
        "adlm.engine",
        "adlm.privacy.noise",
        "adlm.privacy.ledger",
        "adlm.paper.release",
        "adlm.paper.relevance",
        "adlm.paper.algorithm1",
    )
    assert [name for name in loaded if name.startswith(readers)] == []


def test_the_examples_of_the_docstrings_run() -> None:
    failed, tried = doctest.testmod(algorithm1)
    assert (failed, tried > 8) == (0, True)


def test_every_public_name_of_the_package_is_there() -> None:
    assert set(paper.__all__) <= set(dir(paper))
    assert all(getattr(paper, name) is not None for name in paper.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        paper.fit  # noqa: B018


def test_the_command_prints_the_same_warnings(tmp_path: Path) -> None:
    words = [
        "release-records",
        "--data",
        "digits",
        "--allocation",
        "identical",
        "--network",
        "mlp",
        "--epsilon",
        "2",
    ]
    words += ["--ledger", str(tmp_path / "L.jsonl"), "--out", str(tmp_path / "R")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "adlm: warning: |L| = 1800 is above the number of records, 1437" in done.stderr
    assert "adlm: warning: the proved epsilon" in done.stderr
