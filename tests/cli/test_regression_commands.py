"""A table with a numeric target, from the command line to a served file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.declared import DAYS, WARD, column
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.data.reading import read_batches
from adlm.domain import Domain
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.privacy.ledger import Ledger
from adlm.runtime import progress

HEAD = 'decimal = ","\ndelimiter = ";"\n'
TOML = HEAD + column("age", "numeric", lower=0, upper=120) + WARD + DAYS


def write(path: Path, n: int, seed: int, *, label: bool = True) -> None:
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as stream:
        stream.write("age;ward;days\n" if label else "age;ward\n")
        for age, ward, noise in zip(
            rng.integers(18, 95, n), rng.integers(0, 3, n), rng.normal(0, 1, n), strict=True
        ):
            days = f"{max(0.0, 1 + 0.08 * (age - 18) + 3 * ward + noise):.2f}".replace(".", ",")
            stream.write(f"{age};{'abc'[ward]}" + (f";{days}\n" if label else "\n"))


def run(*words: str, code: int = 0) -> Any:
    progress.enable(False)
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if code == 0 else done


def test_a_numeric_target_goes_all_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("t.csv"), 4000, 0)
    write(Path("test.csv"), 1000, 1)
    write(Path("new.csv"), 25, 2, label=False)
    Path("d.toml").write_text(TOML, encoding="utf-8")
    assert run("domain", "check", "d.toml", "t.csv")["fits"]
    planned = run("plan", "--domain", "d.toml", "--size", "4000", "--epsilon", "2", "--delta", "1e-5")
    assert 0 < planned["plans"][0]["accuracy"] < planned["plans"][0]["ceiling"] < 1
    made = run(
        "release",
        "t.csv",
        "--domain",
        "d.toml",
        "--epsilon",
        "2",
        "--delta",
        "1e-5",
        "--out",
        "R",
        "--ledger",
        "L",
    )
    assert 1.99 < made["epsilon_proved"] <= 2
    assert made["charges"] == 4
    trained = run("train", "R", "--out", "M")
    assert trained["estimated_r2"] > 0.7
    assert "warning" not in trained
    found = run("evaluate", "M", "test.csv", "--save", "evaluation.json")
    assert found["r2"] > 0.8
    assert 0 < found["mae"] < found["rmse"] < 1.6
    assert run("predict", "M", "new.csv")["records"] == 25
    with Path("predictions.csv").open(encoding="utf-8") as stream:
        values = [float(row["prediction"]) for row in csv.DictReader(stream)]
    assert len(values) == 25
    assert all(0 <= value <= 20 for value in values)
    for place in ("R", "M"):
        assert run("verify", place)["epsilon_proved"] == made["epsilon_proved"]
    run("card", "M", "--out", "card.md")
    card = Path("card.md").read_text(encoding="utf-8")
    assert "tabular-regression" in card
    assert "Predicts a number between 0 and 20" in card
    run("report", ".", "--out", "report.html")
    report = Path("report.html").read_text(encoding="utf-8")
    assert "with a number between 0 and 20 to predict" in report
    assert "Noisy counts of the target" in report
    assert "Relevance of columns" in report
    audited = run("audit", "--release", "R", "--runs", "500")
    assert audited["sound"]


def test_the_onnx_file_gives_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip("onnxruntime")
    from adlm import Release, fit, privatise
    from adlm.export.onnx import export_onnx

    monkeypatch.chdir(tmp_path)
    write(Path("t.csv"), 1000, 0)
    made: Release = privatise("t.csv", domain=TableDomain.from_toml(TOML), epsilon=5, delta=1e-5)
    model = fit(made)
    export_onnx(model, "m.onnx")
    session = runtime.InferenceSession("m.onnx")
    inputs = {"age": np.array([[30.0], [200.0], [np.nan]]), "ward": np.array([["a"], ["c"], ["b"]], object)}
    (found,) = session.run(None, inputs)
    x = np.array([[30 / 120, 1, 0, 0], [1.0, 0, 0, 1]], dtype=np.float32)
    assert np.allclose(found[:2], model.values(x), atol=1e-3)
    assert np.isnan(found[2])  # the domain refuses a missing age
    assert run("verify", "m.onnx")["neighbours"] == "replace-one"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("lower = 0\nupper = 20", "the target needs public bounds"),
        ("upper = 20", "upper must exceed lower"),
        ('kind = "target"', "declare one column of kind label"),
    ],
)
def test_wrong_declarations_of_a_target_are_one_sentence(change: str, told: str) -> None:
    text = {
        "lower = 0\nupper = 20": TOML.replace("lower = 0\nupper = 20", ""),
        "upper = 20": TOML.replace("upper = 20", "upper = 0"),
        'kind = "target"': TOML.replace('kind = "target"', 'kind = "numeric"'),
    }[change]
    with pytest.raises(UserError, match=told):
        TableDomain.from_toml(text)


def test_a_label_and_a_target_do_not_go_together() -> None:
    with pytest.raises(UserError, match="declare one column of kind label"):
        TableDomain.from_toml(TOML + '[columns.back]\nkind = "label"\nclasses = ["no", "yes"]\n')
    with pytest.raises(UserError, match="missing must lie between"):
        TableDomain.from_toml(TOML + "missing = 25\n")
    table = TableDomain.from_toml(TOML + "missing = 5\n")
    assert TableDomain.from_toml(table.to_toml()) == table
    assert Domain.from_dict(table.domain.to_dict()) == table.domain
    with pytest.raises(UserError, match="numeric target"):
        _ = table.label
    with pytest.raises(UserError, match="no classes"):
        Domain((1,), 0, 1, ("a", "b"), target=(0, 1))


def test_a_bad_target_is_refused_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("t.csv"), 10, 0)
    Path("d.toml").write_text(TOML, encoding="utf-8")
    with Path("t.csv").open("a", encoding="utf-8") as stream:
        stream.write("30;a;long\n")
    from adlm.cli import main

    monkeypatch.setattr("sys.argv", ["adlm", "release", "t.csv", "--domain", "d.toml", "--ledger", "L"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert Ledger(Path("L")).charges == ()
    assert not Path("release").exists()


def test_a_network_learns_a_number_as_the_linear_model_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adlm import fit, privatise
    from adlm.model.model import Model

    monkeypatch.chdir(tmp_path)
    write(Path("t.csv"), 2000, 0)
    table = TableDomain.from_toml(TOML)
    made = privatise("t.csv", domain=table, epsilon=8, delta="1e-5", seed=1)
    linear, network = fit(made), fit(made, "mlp", draws=4000)
    x = np.concatenate([batch.x for batch in read_batches(Path("t.csv"), table)])
    one, other = linear.values(x), network.values(x)
    assert np.corrcoef(one, other)[0, 1] > 0.95
    assert abs(one - other).mean() < 0.3 * one.std()
    network.save("m")
    assert np.array_equal(Model.load("m").values(x), other)


def test_a_model_of_a_number_has_no_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adlm import fit, privatise

    monkeypatch.chdir(tmp_path)
    write(Path("t.csv"), 200, 0)
    made = privatise("t.csv", domain=TableDomain.from_toml(TOML), epsilon=1)
    model = fit(made)
    for wrong in (model.probabilities, model.predict):
        with pytest.raises(UserError, match=r"values\(\)"):
            wrong(np.zeros((1, 4)))
