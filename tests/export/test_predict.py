"""Statements about predicting and measuring files of records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.declared import AGE

from adlm import AdLMClassifier, Ledger, TrainingConfig, fit
from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.export.predict import measure_file, predict_file
from adlm.model.model import Model
from adlm.paper import Budgets, PrivateRecords, make_release
from adlm.paper.networks import build
from adlm.privacy.noise import Source

TOML = AGE


def frame() -> pd.DataFrame:
    return pd.DataFrame({"age": range(100), "ill": ["no"] * 50 + ["yes"] * 50})


@pytest.fixture(scope="module")
def model() -> Model:
    data = frame()
    made: Model = (
        AdLMClassifier(epsilon=100, domain=TableDomain.from_toml(TOML)).fit(data, data["ill"]).model_
    )
    return made


def test_every_record_of_a_file_is_predicted_and_measured(tmp_path: Path, model: Model) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    assert predict_file(model, tmp_path / "a.csv", tmp_path / "p.csv") == 100
    told = pd.read_csv(tmp_path / "p.csv")
    assert (told["prediction"] == frame()["ill"]).mean() == measure_file(model, tmp_path / "a.csv").accuracy


@pytest.mark.parametrize("name", ["none.csv", "none.parquet"])
def test_a_file_without_records_is_refused_and_nothing_is_written(
    tmp_path: Path, model: Model, name: str
) -> None:
    nobody = frame()[:0]
    nobody.to_csv(tmp_path / name, index=False) if name.endswith("csv") else nobody.to_parquet(
        tmp_path / name
    )
    with pytest.raises(UserError, match=f"{name} holds no records"):
        predict_file(model, tmp_path / name, tmp_path / "p.csv")
    with pytest.raises(UserError, match=f"{name} holds no records"):
        measure_file(model, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_model_of_image_records_reads_no_table_and_says_so(tmp_path: Path) -> None:
    domain = Domain((4, 4), 0, 1, ("a", "b"), "replace-one", "drawn")
    x, y = np.random.default_rng(0).random((40, 4, 4)), np.arange(40) % 2
    network = build("mlp", domain.shape, 2)
    release = make_release(
        PrivateRecords(x, y, domain),
        network,
        Budgets.split(4, method="ilm"),
        20,
        explained=None,
        ledger=Ledger(),
        source=Source.seeded_with(0),
    )
    made = fit(release, network, TrainingConfig(steps=1, batch_size=20))
    frame().to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(UserError, match="are arrays, which no file of records holds"):
        predict_file(made, tmp_path / "a.csv", tmp_path / "p.csv")
    with pytest.raises(UserError, match="are arrays, which no file of records holds"):
        measure_file(made, tmp_path / "a.csv")
