"""Training by several processes under `torchrun`: each takes a share of every batch, and one writes.

`torchrun --nproc-per-node 2 -m adlm train R` starts processes that connect through environment variables.
Gradients are averaged by DistributedDataParallel, so that a step is that of the whole batch. Only rank 0
writes checkpoints and models, and prints.
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
    """Return the rank of this process; 0 writes and prints."""
    return int(os.environ.get("RANK", "0")) if under_torchrun() else 0


def size() -> int:
    """Return how many processes train together."""
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


@contextlib.contextmanager
def joined(device: str = "cpu") -> Iterator[str]:
    """Join the process group in this context; yields this process's device. A single process does nothing."""
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
    """Return a network whose gradients are averaged over all processes; unchanged if there is only one."""
    if size() == 1 or not any(weight.requires_grad for weight in network.parameters()):
        return network
    return DistributedDataParallel(network)


def share(rows: Tensor) -> tuple[Tensor, float]:
    """Return this process's rows of a batch, and the factor of its loss in the batch's mean.

    If there are fewer rows than processes, each takes the whole batch.
    """
    others = size()
    if others == 1 or len(rows) < others:
        return rows, 1.0
    local = rows[distributed.get_rank() :: others]
    return local, len(local) * others / len(rows)


def mean(value: float) -> float:
    """Return the mean of a number over all processes, so that all take the same decisions."""
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
    """Return this process's seed for drop-out; rank 0 uses the given one."""
    return seed if size() == 1 else seed + 7919 * distributed.get_rank()


def state() -> dict[str, Any]:
    """Describe distributed training for a model's summary; empty for a single process."""
    return {} if size() == 1 else {"processes": size()}
