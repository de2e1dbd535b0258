"""Statements about training under torchrun: two processes take the steps of one, and one of them writes."""

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

ARGUMENTS = ("--network", "mlp", "--draws", "800", "--epochs", "2", "--device", "cpu", "--json")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2000)
    x = np.clip(0.3 + 0.4 * y[:, None] + rng.normal(0, 0.1, (2000, 6)), 0, 1)
    folder = tmp_path_factory.mktemp("r") / "release"
    privatise(x, y.astype(str), Domain((6,), 0.0, 1.0, ("0", "1")), epsilon=10, seed=1).save(folder)
    return folder


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
ROOT = Path(__file__).parents[2]
SCRIPT = """
import os
import sys
from pathlib import Path
from tests.model.test_distributed import trained
from adlm.model import distributed

with distributed.joined("cpu"):
    for folder in sys.argv[1:]:
        trained(Path(folder))
os._exit(0)  # as the command does: a library's thread may outlive the interpreter
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


def by_two_processes(*folders: Path) -> None:
    """Train in two processes that know each other as under torchrun."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    several = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *map(str, folders)],
            env={**ENVIRONMENT, **several, "RANK": number, "LOCAL_RANK": number},
        )
        for number in ("0", "1")
    ]
    assert [process.wait() for process in processes] == [0, 0]


def test_two_processes_take_the_steps_of_one_and_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Equal up to the rounding of sums: batches of 20 and a last one of 5, three epochs of Adam."""
    one, two, part = (tmp_path / name for name in ("one", "two", "part"))
    for folder in (one, two, part):
        folder.mkdir()
    trained(one)
    with pytest.raises(StoppedError):
        trained(part, Stopping)
    assert (part / "c").exists()
    by_two_processes(two, part)
    expected = load_file(one / "made")
    for folder in (two, part):
        found = load_file(folder / "made")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_the_command_trains_by_two_processes_and_one_of_them_writes(release: Path, tmp_path: Path) -> None:
    """Each line of output is there once, and no checkpoint is left."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*torchrun, "-m", "adlm", "train", str(release), "--out", str(tmp_path / "m"), *ARGUMENTS]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["processes"], said["epochs"]) == (2, 2)
    assert Model.load(tmp_path / "m").training["loss"] == said["loss"]
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_alone_a_process_takes_every_row_and_its_own_loss() -> None:
    rows, weight = share(torch.arange(5))
    assert (rows.tolist(), weight, mean(1.5)) == ([0, 1, 2, 3, 4], 1.0, 1.5)
