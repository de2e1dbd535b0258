"""Statements about ONNX files: the same predictions, served without torch."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from tests.declared import AGE_COLUMN, GROUPED, ILL, MISSING, SEEN, STAGE, TOWN, column
from torch import Tensor

from adlm.domain import Domain
from adlm.domain.encoding import TARGET_UNIT, encode_frame
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.export.onnx import as_inputs, export_onnx
from adlm.features import Features, build
from adlm.features.photographs import folded_pooling
from adlm.features.priors import strokes
from adlm.mechanism.privatise import privatise
from adlm.model.fit import fit
from adlm.model.model import Model
from adlm.model.training import TrainingConfig

TOML = (
    'crosses = [["age", "stage"]]\n'
    + AGE_COLUMN
    + "missing = 50\n"
    + column("gain", "numeric", lower=0, upper=1000, scale="log")
    + "cuts = [1, 10, 100]\n"
    + STAGE
    + TOWN
    + MISSING
    + column("sex", "boolean")
    + ILL
)


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_an_encoded_table_is_served_with_the_same_predictions(tmp_path: Path) -> None:
    table = TableDomain.from_toml(TOML)
    generator = np.random.default_rng(0)
    x = generator.random((500, table.domain.size)).astype(np.float32)
    y = (x[:, 0] > 0.5).astype(np.int64)
    model = fit(privatise(lambda: [(x, y)], domain=table, epsilon=2, seed=0))
    export_onnx(model, tmp_path / "m.onnx", encoded=True)
    run = session(tmp_path / "m.onnx")
    probabilities, code = run.run(None, {"records": x})
    assert np.abs(probabilities - model.probabilities(x)).max() < 1e-5
    assert np.array_equal(code, probabilities.argmax(1))
    told = run.get_modelmeta().custom_metadata_map
    assert json.loads(told["adlm.classes"]) == ["no", "yes"]
    assert json.loads(told["adlm.records"]) == list(table.domain.features or ())
    assert json.loads(told["adlm.privacy"])["epsilon_proved"] <= 2
    assert json.loads(told["adlm.stamps"]) == ["NOT PRIVATE: seeded"]


RAW = (
    'missing = ["?"]\ncrosses = [["age", "sex"]]\n'
    + column("age", "numeric", lower=18, upper=90, missing=50)
    + column("gain", "numeric", lower=0, upper=99999, scale="log")
    + "cuts = [1, 2000, 5000]\n"
    + column("sex", "boolean")
    + STAGE
    + MISSING
    + GROUPED.replace('other = "rest"', 'other = "rest"\nmissing = "category"')
    + column("town", "categorical", values=("north", "south"))
    + SEEN
    + MISSING
    + column("ill", "label", classes=("no", "yes", "perhaps"))
)
ROWS = pd.DataFrame(
    {
        "age": [17.0, 30.5, np.nan, 1e9, 90, 44],
        "gain": [0, 1, 1999.999, 2000, 1e9, 77.7],
        "sex": ["no", "YES", "True", "0", "f", "t"],
        "stage": ["I", "II", "?", "III", "", "II"],
        "code": ["401.10", "785", "V1", "V99", "?", "518.9"],
        "town": ["north", "south", "south", "north", "south", "north"],
        "seen": ["2019-05-01", "2020-01-01", "2020-12-31", None, "2020-07-04", "2021-01-01"],
    }
)


def made_model(table: TableDomain, fourier: int = 0, epsilon: float = 9, delta: str = "0") -> Model:
    generator = np.random.default_rng(3)
    x = generator.random((400, table.domain.size)).astype(np.float32)
    y = generator.integers(0, len(table.label.classes), 400)
    release = privatise(lambda: [(x, y)], domain=table, epsilon=epsilon, delta=delta, seed=0, fourier=fourier)
    return fit(release)


FORMS = [
    ("indicator-table", 0, 9000, "0"),
    ("centred-table", 0, 0.5, "0"),
    ("centred-table", 5, 9, "0"),
    ("scaled-table", 5, 9, "1e-5"),
]


@pytest.mark.parametrize(("name", "fourier", "epsilon", "delta"), FORMS)
def test_raw_columns_are_served_with_the_same_predictions(
    tmp_path: Path, name: str, fourier: int, epsilon: float, delta: str
) -> None:
    """Of every kind of features that a table can have."""
    table = TableDomain.from_toml(RAW)
    model = made_model(table, fourier, epsilon, delta)
    assert model.features is not None
    assert model.features.spec()["name"] == name
    export_onnx(model, tmp_path / "m.onnx")
    run = session(tmp_path / "m.onnx")
    assert [i.name for i in run.get_inputs()] == ["age", "gain", "sex", "stage", "code_", "town", "seen"]
    assert json.loads(run.get_modelmeta().custom_metadata_map["adlm.inputs"])["code"] == "code_"
    probabilities, code = run.run(None, as_inputs(table, ROWS))
    expected = model.probabilities(encode_frame(table, ROWS.replace({"stage": {"": "?"}})))
    assert np.ptp(expected, axis=0).max() > 0.01  # predictions that tell records apart
    assert np.abs(probabilities - expected).max() < 1e-5
    assert np.array_equal(code, expected.argmax(1))


@pytest.mark.parametrize(("name", "fourier"), [("indicator-table", 0), ("centred-table", 3)])
def test_a_numeric_target_is_served_from_raw_columns(tmp_path: Path, name: str, fourier: int) -> None:
    target = column("cost", "target", lower=100, upper=900)
    table = TableDomain.from_toml(RAW[: RAW.index("[columns.ill]")] + target)
    x = np.random.default_rng(3).random((400, table.domain.size)).astype(np.float32)
    y = np.rint(x[:, 0] * TARGET_UNIT).astype(np.int64)
    model = fit(privatise(lambda: [(x, y)], domain=table, epsilon=100, seed=0, fourier=fourier))
    assert model.features is not None
    assert model.features.spec()["name"] == name
    export_onnx(model, tmp_path / "m.onnx")
    (found,) = session(tmp_path / "m.onnx").run(None, as_inputs(table, ROWS))
    expected = model.values(encode_frame(table, ROWS.replace({"stage": {"": "?"}})))
    assert np.ptp(expected) > 1
    assert np.abs(found - expected).max() < 1e-5 * (900 - 100)


def test_a_declared_code_is_missing_when_served_too(tmp_path: Path) -> None:
    """-999 as a number and a day, given to the graph as they are, not as NaN."""
    table = TableDomain.from_toml(RAW.replace('missing = ["?"]', 'missing = ["?", "-999", "1900-01-01"]'))
    model = made_model(table)
    export_onnx(model, tmp_path / "m.onnx")
    inputs = as_inputs(table, ROWS)
    coded, gone = ({name: cells.copy() for name, cells in inputs.items()} for _ in range(2))
    for name, code in (("age", -999.0), ("seen", float((date(1900, 1, 1) - date(1970, 1, 1)).days))):
        coded[name][:, 0], gone[name][:, 0] = code, np.nan
    run = session(tmp_path / "m.onnx")
    np.testing.assert_array_equal(run.run(None, coded)[0], run.run(None, gone)[0])
    assert np.abs(run.run(None, coded)[0] - run.run(None, inputs)[0]).max() > 1e-3
    frame = ROWS.assign(age=-999, seen="1900-01-01").replace({"stage": {"": "?"}})
    expected = model.probabilities(encode_frame(table, frame))
    assert np.abs(run.run(None, coded)[0] - expected).max() < 1e-5


def test_what_the_domain_refuses_gets_no_prediction(tmp_path: Path) -> None:
    table = TableDomain.from_toml(RAW)
    export_onnx(made_model(table), tmp_path / "m.onnx")
    run = session(tmp_path / "m.onnx")
    refused: list[tuple[str, Any]] = [("gain", np.nan), ("gain", np.inf), ("sex", "perhaps"), ("stage", "IV")]
    for name, value in [*refused, ("town", "west"), ("town", "")]:
        inputs = as_inputs(table, ROWS)
        inputs[name][2, 0] = value
        probabilities, code = run.run(None, inputs)
        assert np.isnan(probabilities).any(1).tolist() == [False, False, True, False, False, False]
        assert (code == -1).tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("name", ["adult", "diabetes130"])
def test_the_committed_domains_can_be_exported(tmp_path: Path, name: str) -> None:
    """Exporting compares every value of every column, missing ones too, before it writes."""
    table = TableDomain.load(Path(__file__).parents[2] / "examples" / f"{name}.toml")
    export_onnx(made_model(table), tmp_path / "m.onnx")
    assert len(session(tmp_path / "m.onnx").get_inputs()) == len(table.features)
    graph = onnx.load(tmp_path / "m.onnx").graph
    used = {name for node in graph.node for name in node.input}
    assert {constant.name for constant in graph.initializer} <= used


def test_arrays_in_their_own_units_are_served_with_the_same_predictions(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    x = generator.uniform(-50, 50, (400, 6))
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    domain = Domain((6,), -40, 40, ("low", "high"))
    release = privatise(x, y, domain=domain, epsilon=5, seed=0)
    for network in (None, "mlp"):
        model = fit(release, network, TrainingConfig(epochs=1, batch_size=100), draws=200)
        export_onnx(model, tmp_path / f"{network}.onnx")
        found = session(tmp_path / f"{network}.onnx").run(
            ["probabilities"], {"records": x.astype(np.float32)}
        )
        assert np.abs(found[0] - model.probabilities(x)).max() < 1e-5


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ({"name": "prior-projection", "family": "drawn", "shape": [28, 28]}, (28, 28)),
        ({"name": "prior-projection", "family": "drawn", "shape": [64]}, (64,)),
        ({"name": "prior-projection", "family": "garments", "shape": [1, 20, 24]}, (1, 20, 24)),
        ({"name": "natural", "width": 50, "weights": "natural-32"}, (3, 32, 32)),
        ({"name": "natural", "width": 50, "weights": "natural-32", "shape": [40, 48]}, (40, 48)),
        (
            {
                "name": "pair-products",
                "leading": 20,
                "share": 0.4,
                "of": {"name": "natural", "width": 50, "weights": "natural-32"},
            },
            (3, 32, 32),
        ),
        (
            {
                "name": "pair-products",
                "leading": 60,
                "share": 0.25,
                "of": {"name": "prior-projection", "family": "garments", "shape": [28, 28]},
            },
            (28, 28),
        ),
        (
            {
                "name": "narrowed",
                "width": 40,
                "of": {"name": "prior-projection", "family": "drawn", "shape": [28, 28]},
            },
            (28, 28),
        ),
    ],
)
def test_image_features_are_the_same_compiled_and_as_written_to_a_file(
    spec: dict[str, Any], shape: tuple[int, ...]
) -> None:
    """What is written is the form that has gradients."""
    features = build(spec)
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    written = features(x.clone().requires_grad_()).detach()
    assert torch.allclose(written, features(x), atol=1e-5, rtol=0)


def test_images_are_served_with_the_same_predictions(tmp_path: Path) -> None:
    """To 1e-5, with an even ground and with an empty one, where scattering is next to nothing."""
    images, codes = strokes.draw(5, 40, torch.Generator().manual_seed(1))
    domain = Domain((28, 28), 0, 255, tuple("abcde"), "replace-one", "drawn")
    x = 255 * images.numpy()
    model = fit(privatise(x, codes.numpy(), domain=domain, epsilon=30, delta="1e-5", seed=0, k=150))
    export_onnx(model, tmp_path / "m.onnx")
    run = session(tmp_path / "m.onnx")
    grey = (0.9 * x + 20 * np.random.default_rng(0).random(x.shape)).astype(np.float32)
    for records in (grey, x):
        probabilities, code = run.run(None, {"records": records})
        expected = model.probabilities(records)
        assert np.abs(probabilities - expected).max() < 1e-5
        assert np.array_equal(code, expected.argmax(1))
        assert np.abs(expected - expected.mean(0)).max() > 0.1  # predictions that tell images apart


def test_photographs_are_served_with_the_same_predictions(tmp_path: Path) -> None:
    """By a process that has not mapped an image before."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (12, 3, 32, 32)).astype(np.float64)
    x[6:, 0] *= 0.5
    domain = Domain((3, 32, 32), 0, 255, ("red", "other"), "replace-one", "natural")
    model = fit(privatise(x, np.arange(12) // 6, domain=domain, epsilon=50, seed=0, k=10))
    folded_pooling.cache_clear()
    export_onnx(model, tmp_path / "m.onnx")
    (found,) = session(tmp_path / "m.onnx").run(["probabilities"], {"records": x.astype(np.float32)})
    assert np.abs(found - model.probabilities(x)).max() < 1e-5


class Spectrum(Features):
    """Features that have no twin in ONNX."""

    provenance = "public"

    width = 6

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(torch.fft.fft(x.flatten(1)).abs() / 20)

    def spec(self) -> dict[str, Any]:
        return {"name": "spectrum"}


def test_what_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    x = np.random.default_rng(2).uniform(-40, 40, (60, 6))
    domain = Domain((6,), -40, 40, ("low", "high"))
    model = fit(privatise(x, (x[:, 0] > 0).astype(int), domain=domain, epsilon=5, seed=0))
    with pytest.raises(UserError, match="the features 'spectrum' cannot be written as ONNX"):
        export_onnx(replace(model, features=Spectrum()), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
