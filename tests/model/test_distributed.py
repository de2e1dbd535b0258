"""Training under torchrun: two processes take the steps of one, and one of them writes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from adlm import Domain, privatise
from adlm.model.distributed import mean, rank, share
from adlm.model.model import Model
from adlm.model.training import Checkpoint, Examples, TrainingConfig, train

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, sys
from pathlib import Path
from tests.model.test_distributed import trained
from adlm.model import distributed

with distributed.joined("cpu"):
    for folder in sys.argv[2:4]:
        trained(Path(folder))
os.environ["MASTER_PORT"] = sys.argv[1]
sys.argv[1:] = sys.argv[4:]
from adlm.cli import program
program()
"""


class StoppedError(Exception):
    """Training ends after its first checkpoint."""


class Stopping(Checkpoint):
    """A checkpoint that can be written once."""

    def save(self, *given: Any) -> None:
        """Write, and stop."""
        super().save(*given)
        raise StoppedError


def trained(folder: Path, kind: type[Checkpoint] = Checkpoint) -> None:
    """Train a small network without statistics of a batch, from the checkpoint if there is one."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    examples = Examples(torch.randn(205, 6), torch.randint(0, 3, (205,)))
    plan = TrainingConfig(epochs=3, batch_size=20, optimiser="Adam", learning_rate=0.01)
    history = train(network, examples, plan, device="cpu", checkpoint=kind(folder / "c", resume=True))
    if rank() == 0:
        losses = torch.tensor(history.losses, dtype=torch.float64)
        save_file({"losses": losses, **network.state_dict()}, folder / "made")


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def test_two_processes_take_the_steps_of_one_and_one_of_them_writes(tmp_path: Path) -> None:
    """Equal up to the rounding of sums: batches of 20 and a last one of 5, three epochs of Adam.

    Then the command trains in both; each line of output is there once, and no checkpoint is left.
    """
    one, two, part, out = (tmp_path / name for name in ("one", "two", "part", "out"))
    for folder in (one, two, part, out):
        folder.mkdir()
    trained(one)
    with pytest.raises(StoppedError):
        trained(part, Stopping)
    assert (part / "c").exists()
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2000)
    x = np.clip(0.3 + 0.4 * y[:, None] + rng.normal(0, 0.1, (2000, 6)), 0, 1)
    privatise(x, y.astype(str), Domain((6,), 0.0, 1.0, ("0", "1")), epsilon=10, seed=1).save(tmp_path / "R")
    words = ["train", str(tmp_path / "R"), "--out", str(out / "m"), "--network", "mlp", "--draws", "800"]
    words += ["--epochs", "2", "--device", "cpu", "--json"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    several = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    command = [sys.executable, "-c", SCRIPT, free_port(), str(two), str(part), *words]
    processes = [
        subprocess.Popen(
            command,
            env={**several, "WORLD_SIZE": "2", "PYTHONPATH": path, "RANK": number, "LOCAL_RANK": number},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in ("0", "1")
    ]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    expected = load_file(one / "made")
    for folder in (two, part):
        found = load_file(folder / "made")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
    assert said[1] == ""
    printed = json.loads(said[0])
    assert (printed["processes"], printed["epochs"]) == (2, 2)
    assert Model.load(out / "m").training["loss"] == printed["loss"]
    assert [path.name for path in out.iterdir()] == ["m"]


def test_alone_a_process_takes_every_row_and_its_own_loss() -> None:
    rows, weight = share(torch.arange(5))
    assert (rows.tolist(), weight, mean(1.5)) == ([0, 1, 2, 3, 4], 1.0, 1.5)
