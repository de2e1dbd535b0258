"""The training loop: any network, on a release alone, for any number of steps (lines 20-30).

Nothing here reads a record, so nothing here costs privacy: the certificate is the same after one epoch and
after a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from adlm.analyst import distributed, in_chunks
from adlm.analyst.checkpoint import Checkpoint
from adlm.analyst.examples import Examples, batch_loss
from adlm.errors import UserError
from adlm.paper.layers import TOGETHER, by_batch, even_parts
from adlm.runtime import progress
from adlm.runtime.device import choose_device

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
    class_weight : weights of errors by class: public weights by name, or `balanced`, from released counts.

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
    class_weight: Mapping[str, float] | str | None = None

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
    """Train ``network`` in place by the plan.

    Parameters
    ----------
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
    if plan.class_weight is None:
        described.pop("class_weight")
    if plan.schedule != "constant":
        described["epochs"] = plan.epochs  # the learning rate depends on it, so it cannot change on resuming
    losses: list[float] = []
    if checkpoint is not None and checkpoint.goes_on:
        losses = checkpoint.load(network, optimiser, described)
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
    network: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, target: Any, weight: float = 1.0
) -> float:
    """theta_{t+1} = theta_t - eta_t grad F_L(theta_t) / |L| (line 29), or the optimiser's variant."""

    def closure() -> float:
        optimiser.zero_grad()
        value = batch_loss(in_chunks.forward(network, x), target) * weight
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


@torch.no_grad()
def predict(
    network: nn.Module, x: Tensor, *, batch_size: int = 1000, device: str = "auto", together: bool = False
) -> Tensor:
    """Class codes (n,) of inputs (n, *shape).

    Parameters
    ----------
    network : classifier of inputs.
    x : (n, *shape) inputs.
    batch_size : inputs in a batch.
    device : `auto`, `cpu` or `cuda`.
    together : normalise by the statistics of each batch in place of the moving averages of training; for
        clean inputs after training on noisy ones.
    """
    place = choose_device(device)
    network.to(place).eval()
    parts = []
    for part in even_parts(len(x), batch_size):
        with by_batch(network, together and part.stop - part.start >= TOGETHER):
            parts.append(network(x[part].to(place)).argmax(1).cpu())
    return torch.cat(parts)


def accuracy(
    network: nn.Module, x: Tensor, labels: Tensor, *, device: str = "auto", together: bool = False
) -> float:
    """Share of inputs that are classified correctly. On private records this statistic is not private.

    Parameters
    ----------
    network, device, together : as for `predict`.
    x, labels : (n, *shape) inputs and their (n,) class codes.
    """
    return float((predict(network, x, device=device, together=together) == labels).double().mean())
