"""Statements about training under torchrun: two processes take the steps of one, and one of them writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from adlm import Domain, privatise
from adlm.model.distributed import mean, share
from adlm.model.model import Model

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


def started(processes: int) -> list[str]:
    """The words that start so many processes."""
    if processes == 1:
        return [sys.executable]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
    ]


SCRIPT = """
import os
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from torch import nn
from adlm.model import distributed, training
from adlm.model.training import Checkpoint
from adlm.model.training import Examples

folder, stop = Path(sys.argv[1]), sys.argv[2] == "stop"
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
x, y = torch.randn(205, 6), torch.randint(0, 3, (205,))
plan = training.TrainingConfig(epochs=3, batch_size=20, optimiser="Adam", learning_rate=0.01)
save = Checkpoint.save

def save_and_stop(*given):
    save(*given)
    raise SystemExit(3)

if stop:
    Checkpoint.save = save_and_stop
with distributed.joined("cpu") as device:
    history = training.train(
        network, Examples(x, y), plan, device=device, checkpoint=Checkpoint(folder / "c", resume=True)
    )
    if distributed.rank() == 0:
        losses = torch.tensor(history.losses, dtype=torch.float64)
        save_file({"losses": losses, **network.state_dict()}, folder / "made")
os._exit(0)  # as the command does: a library's thread may outlive the interpreter
"""


def trained(folder: Path, processes: int, *, stop: bool = False) -> dict[str, Any]:
    """Train a small network without statistics of a batch, by so many processes."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(SCRIPT)
    words = [*started(processes), str(folder / "script.py"), str(folder), "stop" if stop else "on"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert (done.returncode == 0) != stop, done.stderr
    return {} if stop else dict(load_file(folder / "made"))


def check_alike(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-6)


def test_two_processes_take_the_steps_of_one_and_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Equal up to the rounding of sums: batches of 20 and a last one of 5, three epochs of Adam."""
    whole = trained(tmp_path / "one", 1)
    check_alike(dict(whole), trained(tmp_path / "two", 2))
    trained(tmp_path / "part", 1, stop=True)
    assert (tmp_path / "part" / "c").exists()
    check_alike(dict(whole), trained(tmp_path / "part", 2))


def test_the_command_trains_by_two_processes_and_one_of_them_writes(release: Path, tmp_path: Path) -> None:
    """Each line of output is there once, and no checkpoint is left."""
    words = [*started(2), "-m", "adlm", "train", str(release), "--out", str(tmp_path / "m"), *ARGUMENTS]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["processes"], said["epochs"]) == (2, 2)
    assert Model.load(tmp_path / "m").training["loss"] == said["loss"]
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_alone_a_process_takes_every_row_and_its_own_loss() -> None:
    rows, weight = share(torch.arange(5))
    assert (rows.tolist(), weight, mean(1.5)) == ([0, 1, 2, 3, 4], 1.0, 1.5)
