"""Training on a release of records: lines 15 and 20-30 of Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from adlm.analyst.examples import from_records
from adlm.analyst.layer_sizes import perturb_bias
from adlm.analyst.training import History, TrainingConfig, train
from adlm.analyst.unsupervised import Unsupervised
from adlm.privacy.release import Release


def train_on_records(
    release: Release,
    network: nn.Module,
    plan: TrainingConfig,
    *,
    device: str = "auto",
    checkpoints: Path | None = None,
    resume: bool = False,
    after_epoch: Callable[[int, nn.Module], None] | None = None,
) -> History:
    """Train a network on noisy records, in place.

    Parameters
    ----------
    release : of records, with its certificate.
    network : trained in place; one that learns records before labels does so first.
    plan : how to train.
    device : `auto`, `cpu` or `cuda`.
    checkpoints, resume : file that keeps the run after each epoch, and whether to go on from it.
    after_epoch : called with the number of each epoch and the network.
    """
    # Line 15: the hidden layers stand on the private layer; line 14's bias is its input 0
    perturb_bias(network, release.certificate.domain.shape, float(release.tensors["bias"]))
    # Lines 21-29: random batches of noisy records; the loss is the polynomial of the noisy coefficients
    examples = from_records(release)
    learn_records_first(network, examples.x, plan.seed, checkpoints, resume)
    return train(
        network,
        examples,
        plan,
        device=device,
        checkpoints=checkpoints,
        resume=resume,
        identity=str(release.certificate.to_dict()["digest"]),
        after_epoch=after_epoch,
    )


def learn_records_first(
    network: nn.Module, x: Tensor, seed: int, checkpoints: Path | None, resume: bool
) -> None:
    """Let a network that learns records before labels do so, unless it goes on from a checkpoint.

    Parameters
    ----------
    network : trained in place; any other is left as it is.
    x : the records.
    seed : of its training.
    checkpoints, resume : as in `train`.
    """
    going_on = resume and checkpoints is not None and checkpoints.exists()
    if isinstance(network, Unsupervised) and not going_on:
        network.learn_records(x, seed=seed)
