"""Commands run in this process, in a folder of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.runtime import progress

runner = CliRunner()


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that commands run in, with ledgers of its own."""
    folder = tmp_path_factory.mktemp("cli")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ADLM_LEDGERS", str(folder / "ledgers"))
        yield folder
    progress.enable(False)


def run(*words: str) -> str:
    """Run a command that must succeed; return what it prints."""
    done = runner.invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def figures(*words: str) -> dict[str, Any]:
    """Run a command with --json; return what it prints."""
    found = json.loads(run(*words, "--json"))
    assert isinstance(found, dict)
    return found
