"""Training on noisy records, lines 15 and 20-30 of Algorithm 1: it reads a release alone, so it is free."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from torch import nn

from adlm.errors import UserError
from adlm.model.model import AVERAGES, TOGETHER_STATISTICS, Model
from adlm.model.training import Checkpoint, Examples, History, TrainingConfig, default_plan, train
from adlm.paper import networks
from adlm.paper.networks import EPOCHS, Unsupervised, by_name, perturb_bias, released
from adlm.privacy.release import Release

LITTLE_NOISE = 0.05  # in ranges of a feature


def from_records(release: Release, floor: float | None = None) -> Examples:
    """The examples of a record release, with negative second-order coefficients raised (see `released`)."""
    if release.kind != "records":
        raise UserError(f"a release of kind {release.kind!r} holds no records; draw from its moments.")
    if "phi" not in release.tensors:
        raise UserError(
            "this release holds no labels, so it trains no classifier; adlm.paper.learn_records trains an "
            "auto-encoder, rbm or deep-belief on its records"
        )
    polynomial = by_name(str(release.certificate.settings["loss"]))
    return Examples(release.tensors["x"], released(polynomial, release.tensors["phi"], floor))


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


def model_on_records(
    release: Release,
    network: str | nn.Module | None = None,
    plan: TrainingConfig | None = None,
    *,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
) -> Model:
    """Train a network on noisy records and return it as a model of raw records: `adlm.fit` of such a release.

    Parameters
    ----------
    release : of records, with its certificate.
    network : by name, or a module that is trained in place; None for the one that the release was made for.
    plan : how to train; `default_plan` of as many examples when not given.
    device : `auto`, `cpu`, `cuda` or `mps`.
    checkpoint : file that saves the run after each epoch, and whether to resume from it.
    """
    if network is None:
        network = network_of(release)
    check_plan(plan)
    plan = plan or default_plan(len(release.tensors["x"]))
    domain = release.certificate.domain
    body, architecture = networks.initialised(network, domain.shape, len(domain.classes), plan.seed)
    history = train_on_records(release, body, plan, device=device, checkpoint=checkpoint)
    # Averages over noisy records do not suit clean ones unless the noise is small.
    statistics = TOGETHER_STATISTICS if noise_scale(release) > LITTLE_NOISE else AVERAGES
    summary = training_summary(architecture, plan, history) | {"statistics": statistics}
    return Model(release.certificate, body, architecture, None, summary)


def check_plan(plan: TrainingConfig | None) -> None:
    """Refuse a plan that noisy records cannot be trained by."""
    if plan is not None and plan.class_weight is not None:
        raise UserError("class weights need classes that are known, and noisy records have none; omit them")


def learn_records(
    release: Release, network: str | Unsupervised, *, seed: int = 0, epochs: int = EPOCHS
) -> Unsupervised:
    """Train a network that learns records alone on a record release, with labels or without.

    Parameters
    ----------
    network : `auto-encoder`, `rbm`, `deep-belief`, or a user-supplied `Unsupervised`, trained in place.

    The target is the released record. No labels are needed, so a release without epsilon3 is enough.
    Nothing here costs privacy.
    """
    if release.kind != "records":
        raise UserError(f"a release of kind {release.kind!r} holds no records to learn")
    domain = release.certificate.domain
    body = networks.initialised(network, domain.shape, len(domain.classes), seed)[0]
    if not isinstance(body, Unsupervised):
        raise UserError(
            f"{networks.name_of(body)} learns labels, not records; choose auto-encoder, rbm or deep-belief"
        )
    perturb_bias(body, domain.shape, float(release.tensors["bias"]))  # line 14
    body.learn_records(release.tensors["x"], seed=seed, epochs=epochs)
    return body


def noise_scale(release: Release) -> float:
    """Scale of the noise on a feature of a record release, in ranges of the feature, at budget ratio one."""
    settings = release.certificate.settings
    parts = (Fraction(str(settings[key])) for key in ("delta_h0", "batch_size", "epsilon2"))
    delta_h0, batch_size, epsilon2 = parts
    return float(delta_h0 / batch_size / epsilon2)


def network_of(release: Release) -> str:
    """Name of the network that a record release was made for."""
    name = release.certificate.settings.get("network")
    if name not in networks.NETWORKS:
        summary = "does not say what network it was made for" if name is None else f"was made for {name}"
        raise UserError(
            f"the release {summary}, which cannot be built by name; give the network to train: a module, or "
            f"--network with one of {', '.join(networks.NETWORKS)}"
        )
    return str(name)


def training_summary(
    architecture: dict[str, object], plan: TrainingConfig, history: History
) -> dict[str, object]:
    """What a saved model says of its training; training that gave no network is refused."""
    if not history.losses:
        raise UserError(f"training gave no network: {history.stopped or 'there were no epochs'}")
    return {
        "network": architecture["name"],
        "epochs": len(history.losses),
        "first_loss": history.losses[0],
        "loss": history.losses[-1],
        "stopped": history.stopped,
        "seed": plan.seed,
    }
