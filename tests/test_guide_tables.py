"""The guide to tables does what it says, on a small made table."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

GUIDE = Path(__file__).parents[1] / "docs" / "guide-tables.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)


def patients(n: int, seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    age = generator.integers(18, 100, n)
    smokes = generator.random(n) < 0.3
    town = generator.choice(["north", "south", "east", "west"], n)
    back = generator.random(n) < 1 / (1 + np.exp(-(age - 60) / 8 - 2 * smokes + 1 - (town == "south")))
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(generator.integers(0, 1400, n), "D")
    frame = pd.DataFrame(
        {
            "id": [f"p{i}" for i in generator.integers(0, 4 * n, n)],
            "age": age.astype(object),
            "town": town,
            "admitted": days.strftime("%Y-%m-%d"),
            "smokes": np.where(smokes, "yes", "no"),
            "back": np.where(back, "yes", "no"),
        }
    )
    frame.loc[frame.index % 50 == 0, "age"] = "?"
    return frame


def test_every_command_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adlm.cli.app import app

    monkeypatch.chdir(tmp_path)
    patients(3000, 0).to_csv("patients.csv", index=False)
    patients(1000, 1).to_csv("test.csv", index=False)
    patients(20, 2).drop(columns="back").to_csv("new.csv", index=False)
    Path("patients.toml").write_text(blocks("toml")[0], encoding="utf-8")
    told: dict[str, Any] = {}
    for command in "".join(blocks("sh")).splitlines():
        words = shlex.split(command)[1:]
        found = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
        assert found.exit_code == 0, (command, found.output)
        told[" ".join(words[:2]) if words[0] == "domain" else words[0]] = json.loads(found.stdout)
    assert told["domain init"]["bounds_learnt_from_data"] is False
    assert told["domain check"]["fits"] is True
    assert told["domain check"]["dropped"] > 0
    assert 0.9 < told["release"]["epsilon_proved"] <= 1
    assert told["evaluate"]["accuracy"] > 0.75
    assert told["evaluate"]["auc"] > 0.8
    with Path("predictions.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 20
    assert {row["prediction"] for row in rows} <= {"no", "yes"}
    with Path("predictions.csv").open(encoding="utf-8") as stream:
        first = float(next(csv.DictReader(stream))["probability of yes"])
    served: dict[str, Any] = {}
    exec(compile(blocks("python")[0], "guide", "exec"), served)
    assert served["probabilities"][0, 1] == pytest.approx(first, abs=1e-5)
    report = Path("report.html").read_text(encoding="utf-8")
    assert "Relevance of columns" in report
    assert all(f">{name}<" in report for name in ("age", "town", "admitted", "smokes"))
    shown = CliRunner().invoke(app, ["evaluate", "M", "test.csv"], catch_exceptions=False).output
    for label in ("balanced accuracy", "auc", "calibration error", "true class", "as yes"):
        assert label in shown


def test_the_python_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    patients(800, 3).to_csv("patients.csv", index=False)
    Path("patients.toml").write_text(blocks("toml")[0], encoding="utf-8")
    Path("stays.toml").write_text(blocks("toml")[1], encoding="utf-8")
    names: dict[str, Any] = {}
    for block in blocks("python")[1:]:
        exec(compile(block, "guide", "exec"), names)
    assert names["model"].certificate_.stamps == ()
    assert names["model"].predict(names["frame"]).max() <= 30
    assert (tmp_path / "classifier" / "release" / "certificate.json").is_file()


def test_a_draft_says_what_is_left_to_fill_in_and_a_peeked_one_is_stamped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adlm.data.drafts import draft, peek
    from adlm.domain.table import TableDomain
    from adlm.errors import UserError
    from adlm.mechanism.privatise import privatise

    monkeypatch.chdir(tmp_path)
    patients(400, 4).to_csv("p.csv", index=False)
    text = draft(Path("p.csv"), label="back", person="id")
    assert "south" not in text  # nothing of the cells
    with pytest.raises(UserError, match="the label needs at least two classes"):
        TableDomain.from_toml(text)
    table = peek(Path("p.csv"), label="back", person="id")
    assert TableDomain.from_toml(table.to_toml()) == table
    release = privatise("p.csv", domain=table, epsilon=1, seed=0)
    assert "NOT PRIVATE: bounds learnt from data" in release.certificate.stamps
