"""The training loop: any network, on a release alone, for any number of steps (lines 20-30).

Nothing here reads a record, so nothing here costs privacy: the certificate is the same after one epoch and
after a thousand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.nn import functional as F

from adlm.errors import UserError
from adlm.model import distributed
from adlm.paper.loss import mean_loss
from adlm.paper.networks import LocalResponseNorm, Unsupervised, name_of
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from adlm.runtime.machine import choose_device


@dataclass(frozen=True)
class Examples:
    """Inputs, and the target of the loss for each.

    Attributes
    ----------
    x : (n, *shape) inputs.
    target : (n, 3, M) coefficients of the polynomial loss; for the cross-entropy (n,) class codes or (n, M)
        probabilities of the classes; of a numeric target (n, 1) values.
    """

    x: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """The examples of given rows, on a device."""
        return self.x[rows].to(device), self.target[rows].to(device)


def batch_loss(logits: Tensor, target: Tensor) -> Tensor:
    """The loss of a batch: the released polynomial, cross-entropy, or the squared error of one output."""
    if target.dim() == 3:
        return mean_loss(logits, target)
    return F.mse_loss(logits, target) if logits.shape[1] == 1 else F.cross_entropy(logits, target)


# ---- Forward passes of large batches, in chunks where that changes nothing.
#
# The feature maps of a batch of 1,800 images are hundreds of megabytes for each layer. Layers that treat
# every record by itself give the same in chunks, and chunks that fit a cache take half the time on a CPU.
# Layers that use batch statistics, such as the paper's min-max, get the whole batch.

ROWS = 256
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BY_RECORD = (
    *(nn.Linear, *CONVOLUTIONS, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.GELU, nn.ELU, nn.SiLU),
    *(nn.Hardtanh, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d),
    *(nn.AdaptiveAvgPool2d, nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.GroupNorm, nn.LayerNorm),
    LocalResponseNorm,
)


def forward_in_chunks(network: nn.Module, x: Tensor) -> Tensor:
    """Return network(x), equal up to rounding; on a CPU its leading layers in chunks of the batch.

    Those are the layers of an `nn.Sequential` that are known to treat every record by itself, if there is a
    convolution among them: dense layers gain nothing from chunks.
    """
    if type(network) is nn.Sequential and x.device.type == "cpu" and len(x) > ROWS:
        layers = list(network)
        count = next((i for i, layer in enumerate(layers) if type(layer) not in BY_RECORD), len(layers))
        if any(isinstance(layer, CONVOLUTIONS) for layer in layers[:count]):
            x = torch.cat([network[:count](part) for part in torch.split(x, ROWS)])
            network = network[count:]
    outputs: Tensor = network(x)
    return outputs


# ---- Checkpoints of training: one safetensors file with JSON metadata, no pickle, written atomically.

FORMAT = 3


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
        """Replace the file by the state after an epoch; `described` are the settings of the run."""
        tensors: dict[str, Tensor] = {}
        state = {"network": network.state_dict(), "optimiser": optimiser.state_dict()}
        kept = _to_json(state, "", tensors)
        body = {"format": FORMAT, "plan": described, "losses": losses, "state": kept}
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
        """Restore network and optimiser from the file of a run as described; return the losses so far."""
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
        state = _from_json(body["state"], tensors)
        optimiser_state = state["optimiser"]
        optimiser_state["state"] = {int(index): of for index, of in optimiser_state["state"].items()}
        try:
            network.load_state_dict(state["network"])
            optimiser.load_state_dict(optimiser_state)
        except (RuntimeError, ValueError):  # torch's message lists every weight
            raise UserError(
                f"the checkpoint {self.path} is of another network than {name_of(network)}; train the "
                "network it is of, or remove it to start again"
            ) from None
        return [float(value) for value in body["losses"]]


def _to_json(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Convert a state to JSON; its tensors go to `tensors`."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {key: _to_json(item, f"{name}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item, f"{name}/{place}", tensors) for place, item in enumerate(value)]
    return value


def _from_json(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Inverse of `_to_json`."""
    if isinstance(value, dict):
        if value.keys() == {"tensor"}:
            return tensors[value["tensor"]]
        return {key: _from_json(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_json(item, tensors) for item in value]
    return value


# ---- The plan, and the loop

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1 + math.cos(math.pi * share)),
}

RATE = 3e-3  # initial; the polynomial loss is flatter than the cross-entropy it approximates
ENOUGH_STEPS = 2000  # for the networks here to converge with little noise
MOST_SEED = 2**32 - 1  # times 1,000,003 it still fits 64 bits


@dataclass(frozen=True)
class TrainingConfig:
    """How to train a network. No setting costs privacy.

    Parameters
    ----------
    epochs : passes over the examples; or `steps`, the number T of batches. One of the two.
    batch_size : |L|.
    optimiser : the name of any optimiser in torch.optim, with `options` for it besides the learning rate.
    learning_rate, schedule : eta_t is the rate times the schedule at the share of steps done.
    seed : of the order of batches and of drop-out; it does not affect privacy.

    Raises
    ------
    UserError : both or neither of `epochs` and `steps` are given, a number is out of range, or torch has no
        such optimiser.

    Examples
    --------
    >>> from adlm import TrainingConfig
    >>> TrainingConfig(epochs=20, batch_size=200, learning_rate=3e-3, schedule="cosine").total(1000)
    100
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 1800
    optimiser: str = "Adam"
    learning_rate: float = 1e-3
    schedule: str = "constant"
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise UserError("a plan needs either epochs or steps, and not both.")
        length = self.epochs if self.steps is None else self.steps
        if length is None or length < 1 or self.batch_size < 1:
            raise UserError(
                f"epochs, steps and batch_size must be positive (got {length}, {self.batch_size})."
            )
        if self.schedule not in SCHEDULES:
            raise UserError(f"schedule must be one of {', '.join(SCHEDULES)} (got {self.schedule!r}).")
        if not 0 < self.learning_rate < math.inf:
            raise UserError(f"learning_rate must be positive and finite (got {self.learning_rate}).")
        if not 0 <= self.seed <= MOST_SEED:
            raise UserError(f"seed must be an integer from 0 to {MOST_SEED} (got {self.seed}).")
        if not isinstance(getattr(torch.optim, self.optimiser, None), type):
            raise UserError(f"torch.optim has no optimiser {self.optimiser!r}; SGD and Adam are two it has.")

    def total(self, n: int) -> int:
        """Number of steps on n examples."""
        return (
            self.steps if self.steps is not None else cast(int, self.epochs) * math.ceil(n / self.batch_size)
        )


def default_plan(n: int, seed: int = 0) -> TrainingConfig:
    """The default plan for n examples: 12 epochs, or more for 2,000 steps.

    |L| in the noise is that of the release. Batches of training are smaller, at most 300, because a network
    needs many steps.
    """
    batch = max(20, min(300, n // 20))
    epochs = max(12, math.ceil(ENOUGH_STEPS / math.ceil(n / batch)))
    return TrainingConfig(epochs=epochs, batch_size=batch, learning_rate=RATE, schedule="cosine", seed=seed)


@dataclass(frozen=True)
class History:
    """Mean loss of each epoch, and why training ended early, if it did."""

    losses: tuple[float, ...]
    stopped: str = ""

    def summary(self, architecture: dict[str, object], plan: TrainingConfig) -> dict[str, object]:
        """What a saved model says of its training; training that gave no network is refused."""
        if not self.losses:
            raise UserError(f"training gave no network: {self.stopped or 'there were no epochs'}")
        return {
            "network": architecture["name"],
            "epochs": len(self.losses),
            "first_loss": self.losses[0],
            "loss": self.losses[-1],
            "stopped": self.stopped,
            "seed": plan.seed,
        }


class _NotFiniteError(Exception):
    """The loss of a batch is not a finite number."""


def train(
    network: nn.Module,
    examples: Examples,
    plan: TrainingConfig,
    *,
    device: str = "auto",
    checkpoint: Checkpoint | None = None,
    identity: str = "",
    after_epoch: Callable[[int, nn.Module], None] | None = None,
) -> History:
    """Train ``network`` in place by the plan. One that learns records before labels does so first.

    Parameters
    ----------
    device : `auto`, `cpu`, `cuda` or `mps`.
    checkpoint : a file that is replaced after every epoch; safetensors with JSON inside, no pickle. On a CPU
        a resumed run ends as an uninterrupted one, bit for bit.
    identity : of the training data, such as a certificate's digest; resuming with another is refused.
    after_epoch : called with the number of epochs done and the network.

    Notes
    -----
    A loss that is not finite ends training: the network is restored to the start of the epoch, and the
    history says so. It also says when the trained network's loss is not finite, or far above the initial one.

    Under `torchrun` every process takes a share of each batch, gradients are averaged, and rank 0 writes the
    checkpoint. Layers with batch statistics use those of their share.
    """
    if len(examples) == 0:
        raise UserError("there are no examples to train on.")
    place = choose_device(device)
    network.to(place)
    optimiser = _optimiser(network, plan)
    described = {key: value for key, value in asdict(plan).items() if key != "epochs"}
    described["identity"] = identity
    if plan.schedule != "constant":
        described["epochs"] = plan.epochs  # the learning rate depends on it, so it cannot change on resuming
    losses: list[float] = []
    if checkpoint is not None and checkpoint.goes_on:
        losses = checkpoint.load(network, optimiser, described)
    elif isinstance(network, Unsupervised):
        network.learn_records(examples.x, seed=plan.seed)
    at_first = losses[0] if losses else _loss_now(network, examples, place)
    together = distributed.wrapped(network)
    total, per_epoch = plan.total(len(examples)), math.ceil(len(examples) / plan.batch_size)
    stopped = ""
    with progress.bar(total * plan.batch_size, "training", "records") as advance:
        advance(len(losses) * per_epoch * plan.batch_size)
        for epoch in range(len(losses), math.ceil(total / per_epoch)):
            before = {name: value.detach().clone() for name, value in network.state_dict().items()}
            try:
                first, last = epoch * per_epoch, min(total, (epoch + 1) * per_epoch)
                losses.append(
                    _epoch(together, optimiser, examples, plan, (first, last, total), place, advance)
                )
            except _NotFiniteError:
                network.load_state_dict(before)
                stopped = f"the loss was not finite in epoch {epoch + 1}; the network is as that epoch began"
                progress.say(f"training: {stopped}")
                break
            if checkpoint is not None and distributed.rank() == 0:
                checkpoint.save(network, optimiser, described, losses)
            distributed.wait()
            if after_epoch is not None:
                after_epoch(epoch + 1, network)
    at_last = _loss_now(network, examples, place)
    if not math.isfinite(at_last):
        stopped = f"{stopped or 'training ended'}, and its answers are not finite; lower the learning rate"
    elif not stopped and at_last > at_first + abs(at_first):
        stopped = f"the loss rose from {at_first:.3g} to {at_last:.3g}; lower the learning rate"
    return History(tuple(losses), stopped)


@torch.no_grad()
def _loss_now(network: nn.Module, examples: Examples, device: torch.device) -> float:
    """The current loss on a few examples; the network is left in evaluation mode."""
    x, target = examples.batch(torch.arange(min(100, len(examples))), device)
    return float(batch_loss(network.eval()(x), target))


def _epoch(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    examples: Examples,
    plan: TrainingConfig,
    steps: tuple[int, int, int],
    device: torch.device,
    advance: progress.Advance,
) -> float:
    """One pass; its randomness depends on the seed and its first step alone, so resuming is exact."""
    first, last, total = steps
    sum_of_losses = 0.0
    network.train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(plan.seed * 1_000_003 + first)
        order = torch.randperm(len(examples))
        if distributed.size() > 1:
            torch.manual_seed(distributed.seed_of(plan.seed * 1_000_003 + first))
        for step in range(first, last):
            rows = order[(step - first) * plan.batch_size : (step - first + 1) * plan.batch_size]
            for group in optimiser.param_groups:
                group["lr"] = plan.learning_rate * SCHEDULES[plan.schedule](step / total)
            local, weight = distributed.share(rows)
            sum_of_losses += _step(network, optimiser, *examples.batch(local, device), weight)
            advance(len(rows))
    return sum_of_losses / (last - first)


def _step(
    network: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, target: Tensor, weight: float
) -> float:
    """theta_{t+1} = theta_t - eta_t grad F_L(theta_t) / |L| (line 29), or the optimiser's variant."""

    def closure() -> float:
        optimiser.zero_grad()
        value = batch_loss(forward_in_chunks(network, x), target) * weight
        mean = distributed.mean(float(value.detach()))
        if not math.isfinite(mean):
            raise _NotFiniteError
        value.backward()  # type: ignore[no-untyped-call]
        return mean

    return float(optimiser.step(closure))


def _optimiser(network: nn.Module, plan: TrainingConfig) -> torch.optim.Optimizer:
    kind = getattr(torch.optim, plan.optimiser)
    try:
        optimiser = cast(
            torch.optim.Optimizer, kind(network.parameters(), lr=plan.learning_rate, **plan.options)
        )
        trial = nn.Parameter(torch.zeros(2, 2))
        kind([trial], lr=plan.learning_rate, **plan.options).step(lambda: _slope_one(trial))
    except (TypeError, ValueError, NotImplementedError) as problem:
        raise UserError(f"optimiser {plan.optimiser} does not take these options: {problem}.") from None
    except RuntimeError as problem:  # such as an optimiser of sparse gradients alone
        raise UserError(f"optimiser {plan.optimiser} cannot train a network: {problem}.") from None
    return optimiser


def _slope_one(weight: nn.Parameter) -> float:
    """A closure to test an optimiser with."""
    weight.grad = torch.ones_like(weight)
    return 0.0
