"""The guide to images does what it says, on a folder of made pictures of mixed sizes and formats."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from adlm.domain.table import TableDomain
from adlm.features.priors import scenes

GUIDE = Path(__file__).parents[1] / "docs" / "guide-images.md"
CLASSES = ("coast", "forest", "street")
SUFFIXES = (".png", ".jpg", ".webp", ".tif")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)


def photographs(root: Path) -> None:
    """Pictures of three kinds of scene: 120 of each to release, 20 of each held out."""
    drawn, labels = scenes.draw(3, 140, torch.Generator().manual_seed(0), 32)
    sizes = np.random.default_rng(0).integers(33, 120, (len(drawn), 2))
    for i, (pixels, code) in enumerate(zip(drawn, labels, strict=True)):
        place = i % 140
        folder = root / ("photos" if place < 120 else "held-out") / CLASSES[int(code)]
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((pixels * 255).byte().permute(1, 2, 0).numpy())
        image = image.resize((int(sizes[i, 0]), int(sizes[i, 1])))
        image = image.convert("RGBA") if place % 8 == 0 else image
        image.save(folder / f"{place:03}-{code}{SUFFIXES[place % 4]}")
    (root / "new").mkdir()
    kept = next((root / "held-out" / "coast").glob("*.jpg"))
    (root / "new" / "one.jpg").write_bytes(kept.read_bytes())
    (root / "new.jpg").write_bytes(kept.read_bytes())


def run(command: str) -> dict[str, Any]:
    from adlm.cli.app import app

    found = CliRunner().invoke(app, [*shlex.split(command)[1:], "--json"], catch_exceptions=False)
    assert found.exit_code == 0, (command, found.output)
    told: dict[str, Any] = json.loads(found.stdout)
    return told


def test_six_commands_lead_from_raw_files_to_a_served_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ADLM_LEDGERS", str(tmp_path / "ledgers"))
    photographs(tmp_path)
    commands = blocks("sh")[0].splitlines()
    assert len(commands) == 6
    told = [run(command) for command in commands]
    assert told[1]["fits"] is True
    assert told[1]["records"] == 360
    assert 3.9 < told[2]["epsilon_proved"] <= 4
    assert told[4]["accuracy"] > 0.6  # a third by chance
    served: dict[str, Any] = {}
    exec(compile(blocks("python")[0], "guide", "exec"), served)
    for command in blocks("sh")[1].splitlines():
        run(command)
    with Path("predictions.csv").open(encoding="utf-8") as stream:
        row = next(csv.DictReader(stream))
    assert row["record"].endswith("one.jpg")
    assert float(row["probability of coast"]) == pytest.approx(served["probabilities"][0, 0], abs=1e-5)
    assert row["prediction"] == CLASSES[int(served["code"][0])]


def test_the_domain_of_the_guide_is_what_the_draft_says() -> None:
    declared = TableDomain.from_toml(blocks("toml")[0])
    assert declared.domain.shape == (3, 32, 32)
    assert declared.label.classes == CLASSES
    assert declared == TableDomain.of_domain(declared.domain)


def test_the_vectors_of_the_guide_are_declared_as_it_says() -> None:
    text = next(block for block in blocks("text") if "vector" in block)
    declared = TableDomain.from_toml(text)
    assert declared.domain.shape == (384,)
    assert (declared.domain.lower, declared.domain.upper) == (-1.0, 1.0)
