"""Commands run in this process, in a folder of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.declared import AGE
from typer.testing import CliRunner

from adlm.cli import main
from adlm.cli.app import app
from adlm.errors import UserError
from adlm.runtime import progress

runner = CliRunner()


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that commands run in, with ledgers of its own and a small table."""
    folder = tmp_path_factory.mktemp("cli")
    lines = [f"p{age},{age},{'yes' if age > 50 else 'no'}" for age in range(100)]
    (folder / "t.csv").write_text("\n".join(["id,age,ill", *lines]) + "\n")
    (folder / "t.toml").write_text(AGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ADLM_LEDGERS", str(folder / "ledgers"))
        patch.setenv("ADLM_CACHE", str(folder / "cache"))
        yield folder
    progress.enable(False)


def run(*words: object, code: int = 0) -> str:
    """Run a command that must end with this code; return what it prints."""
    done = runner.invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def figures(*words: object, code: int = 0) -> dict[str, Any]:
    """Run a command with --json; return what it prints."""
    found = json.loads(run(*words, "--json", code=code))
    assert isinstance(found, dict)
    return found


def refused(match: str, *words: object) -> None:
    """A command must end in one sentence that says this; what it would write or charge is not there."""
    ledger, out = Path("refused.jsonl"), Path("refused")
    ends = {"release": ["--ledger", ledger, "--out", out], "train": ["--out", out], "predict": ["--out", out]}
    with pytest.raises(UserError, match=match) as caught:
        run(*words, *ends.get(str(words[0]).partition("-")[0], []))
    assert "\n" not in str(caught.value).strip()
    assert not ledger.exists()
    assert not out.exists()


def typed(*words: object) -> int:
    """Run a command as a shell does, mistakes printed on standard error; return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["adlm", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)
