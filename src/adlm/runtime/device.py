"""Choice of the device that tensors are computed on."""

from __future__ import annotations

import torch

from adlm.errors import UserError

KINDS = ("cuda", "mps")


def choose_device(name: str = "auto", kinds: tuple[str, ...] = KINDS) -> torch.device:
    """Return the device of that name; `auto` is an accelerator of these kinds if there is one."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next((kind for kind in kinds if there[kind]), "cpu"))
    kind = name.partition(":")[0]
    if kind not in ("cpu", *kinds):
        allowed = ", ".join(("auto", "cpu", *kinds[:-1])) + f" or {kinds[-1]}"
        raise UserError(f"device must be {allowed}, got {name!r}")
    if kind != "cpu" and not there[kind]:
        raise UserError(f"device {kind} was asked for, but this machine has none; use --device auto")
    return torch.device(name)
