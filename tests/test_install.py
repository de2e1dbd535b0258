"""A built wheel works by itself: in a clean environment, without a checkout and without network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from adlm import __version__

ROOT = Path(__file__).parent.parent
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "src")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that nothing is left in the checkout."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        else:
            shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
               "--disable-pip-version-check", "--wheel-dir", str(out), str(copy)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.glob("adlm-*.whl")
    return made


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it; what it depends on is borrowed from this one."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(folder / "env" / "bin" / "python"), "install",
               "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Last, so that pip sees the clean environment alone.
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    # A path in a .pth file is searched, and .pth files below it are not read: no editable adlm gets in.
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return folder


def run(place: Path, *words: str) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "ADLM", "COV"))}
    env |= {"ADLM_LEDGERS": str(place / "ledgers"), "ADLM_CACHE": str(place / "cache")}
    command = [str(place / "env" / "bin" / words[0]), *words[1:]]
    done = subprocess.run(
        command, cwd=place, env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


EVERYTHING = """
import json, pathlib, adlm
from typer.testing import CliRunner
from adlm.cli.app import app

def run(*words):
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout

assert pathlib.Path(adlm.__file__).is_relative_to(pathlib.Path("env").resolve()), adlm.__file__
help = run("--help")
assert "experiment" not in help and "bench" not in help  # those need the checkout
assert json.loads(run("doctor", "--json"))["well"]
made = run("release", "--data", "digits", "--limit", "150", "--k", "8", "--epsilon=2", "--out", "R", "--json")
assert json.loads(made)["epsilon_proved"] == 2.0
assert json.loads(run("verify", "R", "--json"))["whole"]
run("train", "R", "--out", "M", "--quiet")
run("report", "M", "--out", "report.html")
from adlm.ui.page import gather, render
text = render(gather([pathlib.Path("R")], []), live=True)
assert "DP-SGD, linear head on our features" in text and "Tramer and Boneh 2021" in text
"""


def test_the_wheel_works_without_the_checkout(place: Path) -> None:
    assert run(place, "adlm", "--version").strip() == f"adlm {__version__}"
    run(place, "python", "-c", EVERYTHING)
    assert (place / "M" / "model.safetensors").is_file()


def test_the_wheel_holds_what_the_source_holds_and_declares_its_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (place,) = (name for name in names if name.endswith("/METADATA"))
        told = message_from_bytes(archive.read(place))
    package = ROOT / "src"
    kept = {".py", ".typed", ".safetensors", ".toml", ".html", ".css", ".js", ".json"}
    source = {
        str(path.relative_to(package))
        for path in (package / "adlm").rglob("*")
        if path.suffix in kept or path.name == "py.typed"
    }
    assert source <= names
    assert not [name for name in names if "experiments/" in name or "bench/" in name or "benchmarks" in name]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(told.get_all("Provides-Extra") or ()) == set(declared["optional-dependencies"])
    assert {"export", "baseline"} <= set(declared["optional-dependencies"])
    versions = [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)]
    assert set(versions) <= set(told.get_all("Classifier") or ())
