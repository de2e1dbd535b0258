"""`adlm doctor` says what is there and what is missing; a shell completes commands and options."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adlm import __version__
from adlm.cli.app import app
from adlm.runtime import progress

runner = CliRunner()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ADLM_LEDGERS", str(tmp_path / "ledgers"))
    monkeypatch.chdir(tmp_path)
    progress.enable(False)


def test_a_sound_machine_is_well_and_nothing_is_made(tmp_path: Path) -> None:
    done = runner.invoke(app, ["doctor", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["well"]
    assert found["adlm"] == __version__
    assert {p["name"] for p in found["packages"]} >= {"torch", "numpy", "typer", "cryptography"}
    assert set(found["extras"]) >= {"export", "baseline", "dev", "docs"}
    assert found["devices"][0] == "cpu"
    assert found["threads"]["processors"] >= 1
    assert {p["path"] for p in found["folders"]} >= {str(tmp_path / "ledgers"), str(tmp_path)}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ADLM_LEDGERS", str(tmp_path / "file" / "ledgers"))
    done = runner.invoke(app, ["doctor", "--quiet"], catch_exceptions=False)
    assert done.exit_code == 1
    assert f"{tmp_path / 'file' / 'ledgers'} (ledgers): Not a directory" in done.stdout


def test_what_is_missing_is_told_for_its_extra_and_what_is_required_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = ["numpy>=1", 'no-such-package>=2; extra == "export"', 'torch>=999; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
    done = runner.invoke(app, ["doctor", "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    extras = json.loads(done.stdout)["extras"]
    assert extras["export"]["missing"] == ["no-such-package"]
    assert extras["dev"]["missing"] == ["torch"]
    lines.append("numpy>=999")
    done = runner.invoke(app, ["doctor", "--quiet"], catch_exceptions=False)
    assert done.exit_code == 1
    assert "numpy >=999 is needed" in done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("adlm rel", {"release", "release-records"}),
        ("adlm evaluate --sp", {"--split"}),
        ("adlm ledger s", {"show"}),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, offered: set[str]) -> None:
    env = {
        "_ADLM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = runner.invoke(app, [], env=env, prog_name="adlm")
    assert set(done.stdout.split()) == offered
