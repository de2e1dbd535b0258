"""Training on a release of records: lines 15 and 20-30 of Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from adlm.analyst.checkpoint import Checkpoint
from adlm.analyst.examples import Examples, from_records
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
    checkpoint: Checkpoint | None = None,
    after_epoch: Callable[[int, nn.Module], None] | None = None,
) -> History:
    """Train a network on noisy records, in place.

    Parameters
    ----------
    release : of records, with its certificate.
    network : trained in place; one that learns records before labels does so first.
    plan : how to train.
    device : `auto`, `cpu` or `cuda`.
    checkpoint : file that saves the run after each epoch, and whether to resume from it.
    after_epoch : called with the number of each epoch and the network.
    """
    # Line 15: hidden layers are stacked on the private layer; line 14's bias is its input 0
    perturb_bias(network, release.certificate.domain.shape, float(release.tensors["bias"]))
    # Lines 21-29: random batches of noisy records; the loss is the polynomial of the noisy coefficients
    examples = from_records(release)
    return train_on_examples(
        release, network, examples, plan, device=device, checkpoint=checkpoint, after_epoch=after_epoch
    )


def train_on_examples(
    release: Release,
    network: nn.Module,
    examples: Examples,
    plan: TrainingConfig,
    *,
    device: str,
    checkpoint: Checkpoint | None,
    after_epoch: Callable[[int, nn.Module], None] | None = None,
) -> History:
    """Train a network, in place, on examples of a release.

    A network that learns records before labels does so first, unless it resumes from a checkpoint.

    Parameters
    ----------
    release : its digest identifies the run in a checkpoint.
    examples : noisy records of the release, or draws from it.
    network, plan, device, checkpoint, after_epoch : as for `train_on_records`.
    """
    if isinstance(network, Unsupervised) and not (checkpoint and checkpoint.goes_on):
        network.learn_records(examples.x, seed=plan.seed)
    return train(
        network,
        examples,
        plan,
        device=device,
        checkpoint=checkpoint,
        identity=str(release.certificate.to_dict()["digest"]),
        after_epoch=after_epoch,
    )
