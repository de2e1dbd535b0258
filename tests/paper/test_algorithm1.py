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
from tests.paper.conftest import DOMAIN, blobs, explained
from torch import nn
from typer.testing import CliRunner

from adlm import paper
from adlm.cli.app import app
from adlm.errors import UserError, WeakReleaseWarning
from adlm.model.fit import fit
from adlm.model.training import TrainingConfig
from adlm.paper import Budgets, PrivateRecords, RecordOptions, RelevanceSource, algorithm1, build
from adlm.paper.relevance import RelevanceNetwork, make_public, synthetic
from adlm.privacy.accounting import Budget, compose
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

STEP = TrainingConfig(steps=1)


def made(**changes: Any) -> Release:
    """A release of 30 records by default; any argument or option can be changed."""
    options = RecordOptions(
        **{f.name: changes.pop(f.name) for f in fields(RecordOptions) if f.name in changes}
    )
    x, y = blobs(30)
    records = PrivateRecords(changes.pop("x", x), changes.pop("y", y), DOMAIN)
    given: dict[str, Any] = {"H": build("mlp", (12,), 3), "budgets": Budgets.split(2), "L": 10}
    given |= {"explained": explained(), "ledger": Ledger(), "source": Source.system()}
    return paper.make_release(records, options=options, **(given | changes))


ILM: dict[str, Any] = {"budgets": Budgets.split(2, method="ilm"), "explained": None}


def test_the_whole_algorithm_learns_where_noise_is_small_and_certifies_both_totals() -> None:
    x, y = blobs()
    torch.manual_seed(0)
    network, release = paper.adaptive_laplace_mechanism(
        PrivateRecords(x, y, DOMAIN),
        build("mlp", (12,), 3),
        Budgets(Fraction(100), Fraction(2000), Fraction(2000)),
        T=120,
        L=100,
        explained=explained(),
        options=RecordOptions(rows=50),
    )
    answers = network.eval()(torch.tensor(x, dtype=torch.float32)).argmax(1).numpy()
    assert float((answers == y).mean()) > 0.9
    totals = release.certificate.totals
    assert totals.epsilon_claimed == 4100
    eps_x, eps_y = 100 * 12 * 2000 / (2 * 128 * 12), 2 * 100 * 2000 / (3 * (25 + 625 / 4))
    assert float(totals.epsilon_proved) == pytest.approx(100 / 2 + eps_x + eps_y, rel=1e-5)


def test_a_network_of_ones_own_is_named_and_has_to_be_given_again() -> None:
    class Mine(nn.Sequential):
        pass

    mine = made(H=Mine(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)), **ILM)
    assert mine.certificate.settings["network"] == "Mine"
    plan = TrainingConfig(epochs=1, batch_size=10)
    assert fit(made(**ILM), plan=plan).training["network"] == "mlp"
    with pytest.raises(UserError, match=r"made for Mine, which cannot be built by name; .* --network"):
        fit(mine, plan=plan)
    assert fit(mine, "mlp", plan).training["network"] == "mlp"


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Linear(12, 4), r"map \(n, 12\) to \(n, 3\), and yours gives \(n, 4\)"),
        (
            nn.Sequential(nn.Unflatten(1, (1, 9)), nn.Conv1d(1, 2, 3)),
            r"does not take records of shape \(12,\)",
        ),
    ],
)
def test_a_network_of_another_shape_is_refused_before_training(network: nn.Module, message: str) -> None:
    before = [weight.clone() for weight in network.parameters()]
    with pytest.raises(UserError, match=message):
        fit(made(**ILM), network, STEP)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


@pytest.mark.parametrize("delta_h0", ["counted", "per-patch", 500])
def test_each_way_to_count_the_first_layer_is_named_in_the_certificate(delta_h0: str | int) -> None:
    settings = made(delta_h0=delta_h0, **ILM).certificate.settings
    assert settings["delta_h0"] == {"counted": "3072", "per-patch": "24"}.get(str(delta_h0), "500")
    assert settings["delta_h0_rule"] == (delta_h0 if isinstance(delta_h0, str) else "given")
    assert (settings["method"], settings["allocation"]) == ("ilm", "identical")


def test_a_private_relevance_network_leaves_nothing_proved() -> None:
    ledger = Ledger()
    totals = made(explained=explained("private"), ledger=ledger).certificate.totals
    assert math.isinf(totals.epsilon_proved)
    assert totals.epsilon_claimed == 2
    assert "private records" in totals.unproved[0]
    assert compose(ledger.charges) == totals


def test_the_analyst_needs_nothing_but_the_folder(tmp_path: Path) -> None:
    made().save(tmp_path / "R")
    network = build("cnn1d", (12,), 3)
    plan = TrainingConfig(epochs=3, batch_size=10)
    history = paper.train_on_records(Release.load(tmp_path / "R"), network, plan, device="cpu")
    assert len(history.losses) == 3


def test_training_again_on_the_same_release_leaves_the_bias_input_as_it_is() -> None:
    release, other = made(delta_h0=100), made(delta_h0=100)
    torch.manual_seed(0)
    layer = nn.Linear(12, 5)
    network = nn.Sequential(layer, nn.ReLU(), nn.Linear(5, 3))
    before = layer.bias.detach().clone()
    still = TrainingConfig(steps=1, batch_size=10, optimiser="SGD", learning_rate=1e-30)
    for seen in (release, release, other):
        fit(seen, network, still)
        assert abs(float(seen.tensors["bias"]) - 1) > 1e-3
        torch.testing.assert_close(layer.bias.detach(), before * float(seen.tensors["bias"]))


class Sideways(nn.Module):
    """A layer that relevance has no rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(self.out(x)).real  # type: ignore[no-any-return]


class InPlace(Sideways):
    """Writes into a tensor, which relevance cannot follow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(x)
        scores.add_(7.0)
        return scores


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"allocation": "quadratic"}, "allocation must be one of"),
        ({"mode": "both"}, "mode must be one of"),
        ({"delta_h0": "given"}, "counted, per-patch or a number"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"ledger": Ledger(budget=Budget(Fraction(28, 100)))}, "would be overspent"),
        ({"y": ["0"]}, "one label for each"),
        ({"y": ["0", "9"] * 15}, "9"),
        ({"x": np.where(np.arange(360).reshape(30, 12) == 100, np.nan, 0.5)}, "record 8 has nan"),
        ({"x": np.full((30, 11), 0.5)}, "records must have shape"),
        ({"explained": None}, "needs a relevance network"),
        ({"budgets": ILM["budgets"]}, "without epsilon1 it is ILM"),
        ({"H": build("mlp", (12,), 4)}, "answers with 4 numbers and the domain has 3 classes"),
        (
            {"explained": RelevanceSource(nn.Sequential(nn.Linear(9, 3)), "public")},
            "not take records of shape",
        ),
        ({"explained": RelevanceSource(Sideways(), "public")}, "not supported"),
        ({"explained": RelevanceSource(InPlace(), "public")}, "writes into its tensors"),
    ],
)
def test_a_mistake_is_found_before_the_relevances_are_charged(changes: dict[str, Any], message: str) -> None:
    ledger = changes.get("ledger", Ledger())
    with pytest.raises(UserError, match=message):
        made(**({"ledger": ledger} | changes))
    assert ledger.charges == ()


def test_the_split_of_ilm_gives_the_relevances_share_to_the_other_two() -> None:
    assert Budgets.split(2) == Budgets(Fraction(1, 2), Fraction(1), Fraction(1, 2))
    assert Budgets.split(3, ("0.25", "0.5", "0.25"), "ilm") == Budgets(None, Fraction(2), Fraction(1))
    assert Budgets.split("0.1", ("1", "1", "1")).epsilon2 == Fraction(1, 30)
    for given, message in (((2, ("0.5", "0.5")), "three shares"), ((-1,), "must be positive")):
        with pytest.raises(UserError, match=message):
            Budgets.split(*given)


def test_pre_training_learns_synthetic_classes_and_an_altered_network_is_refused(tmp_path: Path) -> None:
    first, second = (make_public((12,), name="mlp", classes=4, per_class=40, epochs=8) for _ in range(2))
    x, labels = synthetic((12,), classes=4, per_class=40)
    assert float((first.network(x).argmax(1) == labels).double().mean()) > 0.9
    assert torch.equal(first.network(x), second.network(x))
    first.save(tmp_path / "N")
    loaded = RelevanceNetwork.load(tmp_path / "N", provenance="public")
    assert torch.equal(first.network(x), loaded.network(x))
    file = tmp_path / "N" / "network.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(UserError, match="not a sound relevance network"):
        RelevanceNetwork.load(tmp_path / "N", provenance="public")
    with pytest.raises(UserError, match="pre-training needs"):
        make_public((12,), name="mlp", epochs=0)


@pytest.mark.parametrize("shape", [(28, 28), (1, 20, 20), (3, 16, 16), (5, 9)])
def test_synthetic_records_lie_in_the_unit_box_and_their_classes_differ(shape: tuple[int, ...]) -> None:
    x, labels = synthetic(shape, classes=3, per_class=6, seed=1)
    assert x.shape == (18, *shape)
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    means = torch.stack([x[labels == c].mean(0) for c in range(3)])
    assert float((means[0] - means[1]).abs().mean()) > 0.005
    assert torch.equal(x, synthetic(shape, classes=3, per_class=6, seed=1)[0])
    assert not torch.equal(x, synthetic(shape, classes=3, per_class=6, seed=2)[0])


# ---- In one call


def own_network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    first = (nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 4, 3, padding=1), nn.ReLU())
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(48, outputs))


def test_one_call_trains_a_network_of_ones_own_and_certifies_both_totals() -> None:
    """The defaults are the paper's: |L| at most n; the first layer has 48 neurons of 12 inputs."""
    (x, y), network, ledger = blobs(), own_network(), Ledger()
    plan = TrainingConfig(epochs=40, batch_size=50, learning_rate=5e-3)
    given: dict[str, Any] = {"provenance": "public", "ledger": ledger, "plan": plan}
    model, release = paper.train(network, x, y, DOMAIN, epsilon="1e5", **given)
    assert model.head is network
    assert model.certificate == release.certificate
    assert float((model.predict(x) == y).mean()) > 0.9
    assert compose(ledger.charges) == release.certificate.totals
    assert not any("was not declared" in stamp for stamp in model.stamps)
    assert fit(release, "mlp", STEP).certificate == model.certificate
    settings, totals = release.certificate.settings, release.certificate.totals
    assert (settings["method"], settings["allocation"]) == ("adlm", "linear")
    assert (settings["batch_size"], settings["delta_h0"]) == (600, str(2 * 48 * 12))
    assert (settings["delta_h0_rule"], settings["relevance_network"]) == ("counted", "public")
    eps_x, eps_y = 600 * 12 * 5e4 / (2 * 48 * 12), 2 * 600 * 2.5e4 / (3 * (48 + 48**2 / 4))
    assert totals.epsilon_claimed == 10**5
    assert float(totals.epsilon_proved) == pytest.approx(2.5e4 / 2 + eps_x + eps_y, rel=1e-5)


def test_identical_allocation_is_ilm_and_explains_nothing() -> None:
    given: dict[str, Any] = {"epsilon": 3, "allocation": "identical", "plan": STEP}
    _, release = paper.train("mlp", *blobs(2000), DOMAIN, **given)
    assert (release.certificate.settings["method"], release.certificate.settings["batch_size"]) == (
        "ilm",
        1800,
    )
    assert set(release.tensors["budget_ratios"].tolist()) == {1.0}
    assert [charge.epsilon_claimed for charge in release.certificate.charges] == [2, 1]
    with pytest.raises(UserError, match="without epsilon1 it is ILM"):
        paper.train("mlp", *blobs(60), DOMAIN, explained=explained(), **given)


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
    given: dict[str, Any] = {"delta_h0": 60 * 2, "explained": "public", "plan": STEP} | changes
    given |= {"explained": explained(given["explained"]), "ledger": Ledger()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeakReleaseWarning)
        with pytest.raises(WeakReleaseWarning, match=message):
            paper.train("mlp", *blobs(60), DOMAIN, epsilon=2, **given)
    assert given["ledger"].charges == ()
    with pytest.warns(WeakReleaseWarning, match=message) as found:
        paper.train("mlp", *blobs(60), DOMAIN, epsilon=2, **given)
    assert {Path(warning.filename).name for warning in found} == {Path(__file__).name}
    assert len(given["ledger"].charges) == 3


def test_settings_that_are_sound_are_not_warned_of() -> None:
    """Claimed and proved agree at Delta_h0 = |L| d, and noise of scale 3 is learnt from with 600 records."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeakReleaseWarning)
        given: dict[str, Any] = {"delta_h0": 600 * 12, "allocation": "identical", "plan": STEP}
        paper.train("mlp", *blobs(600), DOMAIN, epsilon=8, **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": own_network(4)}, "answers with 4 numbers and the domain has 3 classes"),
        ({"network": nn.Sequential(nn.Linear(9, 3))}, r"does not take records of shape \(12,\)"),
        ({"network": "resnet"}, "network must be one of"),
        ({"provenance": "public"}, "provenance is for a user-supplied module"),
        ({"network": own_network(), "provenance": "mine"}, "mine"),
        ({"device": "abacus"}, "abacus"),
        ({"allocation": "quadratic"}, "allocation must be one of"),
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
    script = "import sys, adlm.model.fit, adlm.paper; print(*(m for m in sys.modules if 'adlm' in m))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "adlm.paper.training" in loaded
    halves = ("adlm.paper.release", "adlm.paper.relevance", "adlm.paper.algorithm1")
    readers = ("adlm.data", "adlm.engine", "adlm.privacy.noise", "adlm.privacy.ledger", *halves)
    assert [name for name in loaded if name.startswith(readers)] == []
    assert all(getattr(paper, name) is not None for name in paper.__all__)


def test_the_examples_of_the_docstrings_run() -> None:
    failed, tried = doctest.testmod(algorithm1)
    assert (failed, tried > 8) == (0, True)


def test_the_command_prints_the_same_warnings(tmp_path: Path) -> None:
    words = ["release-records", "--data", "digits", "--allocation", "identical", "--network", "mlp"]
    words += ["--epsilon", "2", "--batch-size", "1800"]
    words += ["--ledger", str(tmp_path / "L.jsonl"), "--out", str(tmp_path / "R")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "adlm: warning: |L| = 1800 is above the number of records, 1437" in done.stderr
    assert "adlm: warning: the proved epsilon" in done.stderr
