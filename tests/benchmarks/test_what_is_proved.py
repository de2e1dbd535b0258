"""The tables of docs/what-is-proved.md: their arithmetic, and that the linear baseline is a true minimum."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.what_is_proved import L, linear, proved_table, settings, table

from adlm.domain import Domain
from adlm.model.training import batch_loss
from adlm.paper.release import PrivateRecords, Settings
from adlm.paper.release import release as release_records
from adlm.paper.training import from_records
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from benchmarks import kinds

ROOT = Path(__file__).parents[2]


def test_the_table_without_data_is_the_arithmetic_of_the_design() -> None:
    rows = {(row["batch_size"], row["rule"]): row for row in proved_table()}
    assert rows[L, "per-patch"]["epsilon_x"] == pytest.approx(144, rel=1e-6)
    assert rows[L, "counted"]["epsilon_x"] == pytest.approx(1800 * 784 / (2 * 25_088 * 784), rel=1e-4)
    assert rows[L, "counted"]["epsilon_y"] == pytest.approx(3600 / 1812.5, rel=1e-6)
    assert all(rows[size, "given"]["epsilon_x"] == pytest.approx(1, rel=1e-5) for size in (1, 60, 600, L))


def test_the_linear_baseline_is_the_minimum_of_the_released_loss() -> None:
    domain = Domain(shape=(5,), lower=0.0, upper=1.0, classes=("0", "1", "2"))
    chosen = Settings(
        epsilon2=Fraction(5),
        epsilon3=Fraction(50),
        batch_size=10,
        delta_h0=Fraction(10),
        delta_h0_rule="given",
        hidden=5,
        allocation="identical",
    )
    x, y = np.random.default_rng(0).uniform(size=(400, 5)), np.arange(400) % 3
    release = release_records(
        PrivateRecords(x, y, domain), chosen, relevance=None, ledger=Ledger(), source=Source.seeded_with(3)
    )
    best, examples = linear(release), from_records(release)
    lowest = float(batch_loss(best(examples.x), examples.target).detach())
    torch.manual_seed(0)
    for _ in range(50):
        with torch.no_grad():
            other = linear(release)
            for parameter in other.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        assert float(batch_loss(other(examples.x), examples.target).detach()) > lowest


def test_every_run_has_its_own_key_and_finds_its_line_in_the_table(tmp_path: Path) -> None:
    keys = [setting.key for setting in settings()]
    assert len(set(keys)) == len(keys) == 20
    line = {
        "key": "adlm 2 counted",
        "method": "adlm",
        "delta_h0_rule": "counted",
        "batch_size": 1800,
        "epsilon_claimed": 2.0,
        "epsilon_proved": 1.279,
        "accuracy": 0.1032,
        "accuracy_linear": 0.2,
    }
    (tmp_path / "r.jsonl").write_text(json.dumps(line) + "\n")
    assert "| adlm | 1,800 | counted | 2 | 1.279 | 10.3 % | 20.0 % |" in table(tmp_path / "r.jsonl")


def test_the_page_shows_what_the_result_files_say() -> None:
    text = (ROOT / "docs" / "what-is-proved.md").read_text()
    assert table(ROOT / "results" / "what-is-proved.jsonl").split("\n\n")[1] in text


def test_the_table_of_kinds_has_accuracy_and_error_beside_the_control(tmp_path: Path) -> None:
    lines = [
        {"key": [name, str(scale)], "accuracy": 0.5, "epsilon_proved": 10.0}
        | ({"error": 0.25} if name == "rbm" else {})
        for name in kinds.KINDS
        for scale in (None, *kinds.SCALES)
    ]
    (tmp_path / "kinds.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    text = kinds.table(tmp_path / "kinds.jsonl")
    assert "| rbm | 50.0; 0.250 | 50.0; 0.250 |" in text
    assert "| mlp | 50.0 | 50.0 |" in text
