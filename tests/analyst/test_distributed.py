"""Statements about training under torchrun: two processes take the steps of one, and one of them writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from adlm import Domain, privatise
from adlm.analyst.distributed import mean, share
from adlm.analyst.model import Model

ARGUMENTS = (
    "--network",
    "recurrent",
    "--draws",
    "800",
    "--batch-size",
    "100",
    "--optimiser",
    "SGD",
    "--device",
    "cpu",
    "--learning-rate",
    "0.05",
    "--schedule",
    "constant",
    "--json",
)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2000)
    x = np.clip(0.3 + 0.4 * y[:, None] + rng.normal(0, 0.1, (2000, 6)), 0, 1)
    folder = tmp_path_factory.mktemp("r") / "release"
    privatise(x, y.astype(str), Domain((6,), 0.0, 1.0, ("0", "1")), epsilon=10, seed=1).save(folder)
    return folder


def train(release: Path, out: Path, *more: str, processes: int = 1) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "adlm"]
    if processes > 1:
        program = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(processes),
            "-m",
            "adlm",
        ]
    words = [*program, "train", str(release), "--out", str(out), *ARGUMENTS, *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in Model.load(folder).head.state_dict().items()}


def test_two_processes_take_the_steps_of_one_and_one_of_them_writes(release: Path, tmp_path: Path) -> None:
    """Equal up to the rounding of sums; each line of output is there once."""
    one = train(release, tmp_path / "one", "--epochs", "2")
    two = train(release, tmp_path / "two", "--epochs", "2", processes=2)
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    said = json.loads(two.stdout)
    assert said["processes"] == 2
    assert "processes" not in json.loads(one.stdout)
    assert said["loss"] == pytest.approx(json.loads(one.stdout)["loss"], rel=1e-4)
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], value, rtol=1e-3, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_a_run_of_two_processes_goes_on_from_the_checkpoint(release: Path, tmp_path: Path) -> None:
    """A checkpoint of one process after one epoch serves two processes, and the result is the same."""
    whole = train(release, tmp_path / "whole", "--epochs", "2", processes=2)
    assert whole.returncode == 0, whole.stderr
    script = (
        "import sys\nfrom adlm.analyst import training\nfrom adlm.cli import program\n"
        "save = training.checkpoint.save\n"
        "def stop(*given):\n    save(*given)\n    raise KeyboardInterrupt\n"
        "training.checkpoint.save = stop\nsys.argv[0] = 'adlm'\nprogram()\n"
    )
    words = ["train", str(release), "--out", str(tmp_path / "part"), *ARGUMENTS, "--epochs", "2"]
    stopped = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False
    )
    assert stopped.returncode != 0
    assert (tmp_path / "part.checkpoint").exists()
    resumed = train(release, tmp_path / "part", "--epochs", "2", "--resume", processes=2)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["epochs"] == 2
    for name, value in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weights(tmp_path / "part")[name], value, rtol=1e-3, atol=1e-5)
    assert not (tmp_path / "part.checkpoint").exists()


def test_alone_a_process_takes_every_row_and_its_own_loss() -> None:
    rows, weight = share(torch.arange(5))
    assert (rows.tolist(), weight, mean(1.5)) == ([0, 1, 2, 3, 4], 1.0, 1.5)
