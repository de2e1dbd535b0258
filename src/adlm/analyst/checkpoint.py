"""Checkpoints of training: one safetensors file with JSON metadata, no pickle, written atomically."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.paper.networks import name_of
from adlm.runtime.artefact import write_file

FORMAT = 2
_NETWORK, _OPTIMISER = "network/", "optimiser/"


@dataclass(frozen=True)
class Checkpoint:
    """The file of a training run, replaced after each epoch, and whether to resume from it."""

    path: Path
    resume: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether there is a run to resume."""
        return self.resume and self.path.exists()

    def save(
        self,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        described: dict[str, Any],
        losses: list[float],
    ) -> None:
        """Replace the file by the state after an epoch.

        Parameters
        ----------
        network, optimiser : their state is saved.
        described : the settings of the run; `load` refuses others.
        losses : mean loss of each epoch so far.
        """
        tensors: dict[str, Tensor] = {
            _NETWORK + name: value.detach().cpu().contiguous().clone()
            for name, value in network.state_dict().items()
        }
        state, plain = optimiser.state_dict(), {}
        for index, values in state["state"].items():
            for name, value in values.items():
                plain[f"{index}/{name}"] = _to_json(value, f"{_OPTIMISER}{index}/{name}", tensors)
        body = {
            "format": FORMAT,
            "plan": described,
            "losses": losses,
            "plain": plain,
            "groups": state["param_groups"],
        }
        try:
            text = json.dumps(body, sort_keys=True)
        except TypeError as problem:
            raise UserError(
                f"the state of {type(optimiser).__name__} cannot be kept in JSON: {problem}."
            ) from None
        write_file(self.path, save_tensors(tensors, {"adlm": text}), what="checkpoint")

    def load(
        self, network: nn.Module, optimiser: torch.optim.Optimizer, described: dict[str, Any]
    ) -> list[float]:
        """Restore a network and its optimiser from the file; return the losses so far.

        `described` are the settings of this run, which must be those of the file.
        """
        try:
            with safe_open(self.path, framework="pt") as file:
                body = json.loads(file.metadata()["adlm"])
                if body["format"] != FORMAT:
                    raise KeyError("format")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError, ValueError):
            raise UserError(
                f"{self.path} is not a checkpoint of this adlm, or it was truncated; remove it to start again"
            ) from None
        plan = body["plan"]
        changed = [key for key in described if json.loads(json.dumps(described[key])) != plan.get(key)]
        if changed or set(described) != set(plan):
            names = ", ".join(sorted(changed or set(described) ^ set(plan)))
            raise UserError(
                f"the checkpoint {self.path} belongs to another run, its {names} differs; remove it to start "
                "again"
            )
        state: dict[int, dict[str, Any]] = {}
        for name, value in body["plain"].items():
            index, key = name.split("/")
            state.setdefault(int(index), {})[key] = _from_json(value, tensors)
        weights = {k.removeprefix(_NETWORK): v for k, v in tensors.items() if k.startswith(_NETWORK)}
        try:
            network.load_state_dict(weights)
            optimiser.load_state_dict({"state": state, "param_groups": body["groups"]})
        except (RuntimeError, ValueError):  # torch's message lists every weight
            raise UserError(
                f"the checkpoint {self.path} is of another network than {name_of(network)}; train the "
                "network it is of, or remove it to start again"
            ) from None
        return [float(value) for value in body["losses"]]


def _to_json(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Convert a value of an optimiser's state to JSON; tensors, also in lists (LBFGS), go to `tensors`."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, list):
        return [_to_json(item, f"{name}/{place}", tensors) for place, item in enumerate(value)]
    return value


def _from_json(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Inverse of `_to_json`."""
    if isinstance(value, dict):
        return tensors[value["tensor"]]
    if isinstance(value, list):
        return [_from_json(item, tensors) for item in value]
    return value
