"""Training by several processes under `torchrun`: each takes a share of every batch, and one writes.

`torchrun --nproc-per-node 2 -m adlm train R` starts processes that find one another by environment variables.
Gradients are averaged by DistributedDataParallel, so that a step is that of the whole batch. Only rank 0
writes checkpoints and models, and speaks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from adlm.errors import UserError


def under_torchrun() -> bool:
    """Whether `torchrun` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank() -> int:
    """Return the number of this process; 0 writes and speaks."""
    return int(os.environ.get("RANK", "0")) if under_torchrun() else 0


def size() -> int:
    """Return how many processes train together."""
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


@contextlib.contextmanager
def joined(device: str = "cpu") -> Iterator[str]:
    """Join the other processes for a while; gives the device of this one. Alone, nothing happens."""
    if not under_torchrun():
        yield device
        return
    cards = device.startswith("cuda")
    try:
        distributed.init_process_group("nccl" if cards else "gloo")
    except (RuntimeError, ValueError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"the processes of torchrun cannot find one another ({reason})") from None
    try:
        yield f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cards else device
    finally:
        distributed.destroy_process_group()


def wrapped(network: nn.Module) -> nn.Module:
    """Return a network whose gradients are averaged over all processes; alone, the network itself."""
    if size() == 1 or not any(weight.requires_grad for weight in network.parameters()):
        return network
    return DistributedDataParallel(network)


def share(rows: Tensor) -> tuple[Tensor, float]:
    """Return this process's rows of a batch, and what its loss is multiplied with to make the batch's mean.

    A batch of fewer rows than processes is taken whole by each.
    """
    others = size()
    if others == 1 or len(rows) < others:
        return rows, 1.0
    local = rows[distributed.get_rank() :: others]
    return local, len(local) * others / len(rows)


def mean(value: float) -> float:
    """Return the mean of a number over all processes, so that all decide alike."""
    if size() == 1:
        return value
    total = torch.tensor([value], dtype=torch.float64)
    distributed.all_reduce(total)
    return float(total[0]) / size()


def wait() -> None:
    """Wait for all processes."""
    if size() > 1:
        distributed.barrier()


def seed_of(seed: int) -> int:
    """Return a seed of this process's own for drop-out; that of rank 0 is the given one."""
    return seed if size() == 1 else seed + 7919 * distributed.get_rank()


def state() -> dict[str, Any]:
    """Say how training is distributed, for a model's summary; nothing when it is not."""
    return {} if size() == 1 else {"processes": size()}
