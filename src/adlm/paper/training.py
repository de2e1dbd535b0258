"""Training on noisy records, lines 15 and 20-30 of Algorithm 1: it reads a release alone, so it is free."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from torch import nn

from adlm.errors import UserError
from adlm.model.model import AVERAGES, TOGETHER_STATISTICS, Model
from adlm.model.training import Checkpoint, Examples, History, TrainingConfig, default_plan, train
from adlm.paper import networks
from adlm.paper.loss import by_name
from adlm.paper.networks import EPOCHS, Unsupervised, perturb_bias
from adlm.privacy.release import Release

LITTLE_NOISE = 0.05  # in ranges of a feature


def from_records(release: Release) -> Examples:
    """The examples of a record release: noisy records, and the coefficients of their loss."""
    if release.kind != "records":
        raise UserError(f"a release of kind {release.kind!r} holds no records; draw from its moments.")
    if "phi" not in release.tensors:
        raise UserError(
            "this release holds no labels, so it trains no classifier; adlm.paper.learn_records trains an "
            "auto-encoder, rbm or deep-belief on its records"
        )
    polynomial = by_name(str(release.certificate.settings["loss"]))
    return Examples(release.tensors["x"], polynomial.released(release.tensors["phi"]))


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
    plan, device, checkpoint, after_epoch : as for `adlm.model.training.train`.
    """
    # Line 15: hidden layers are stacked on the private layer; line 14's bias is its input 0
    perturb_bias(network, release.certificate.domain.shape, float(release.tensors["bias"]))
    # Lines 21-29: random batches of noisy records; the loss is the polynomial of the noisy coefficients
    return train(
        network,
        from_records(release),
        plan,
        device=device,
        checkpoint=checkpoint,
        identity=release.certificate.digest,
        after_epoch=after_epoch,
    )


def model_on_records(
    release: Release,
    network: str | nn.Module | None,
    plan: TrainingConfig | None,
    *,
    device: str,
    checkpoint: Checkpoint | None,
) -> Model:
    """Train a network on noisy records and return it as a model of raw records: `adlm.fit` of such a release.

    Without a network, it is the one that the release was made for.
    """
    network = network_of(release) if network is None else network
    plan = plan or default_plan(len(release.tensors["x"]))
    domain = release.certificate.domain
    body, architecture = networks.initialised(network, domain.shape, len(domain.classes), plan.seed)
    outputs = networks.layer_sizes(body, domain.shape).outputs
    if outputs != len(domain.classes):
        shape = ", ".join(map(str, domain.shape))
        raise UserError(
            f"this release gives records of shape {domain.shape}, so a network must map (n, {shape}) to "
            f"(n, {len(domain.classes)}), and yours gives (n, {outputs})"
        )
    history = train_on_records(release, body, plan, device=device, checkpoint=checkpoint)
    # Averages over noisy records do not suit clean ones unless the noise is small.
    settings = release.certificate.settings
    scale, size, epsilon2 = (Fraction(str(settings[k])) for k in ("delta_h0", "batch_size", "epsilon2"))
    statistics = TOGETHER_STATISTICS if scale / size / epsilon2 > LITTLE_NOISE else AVERAGES
    summary = history.summary(architecture, plan) | {"statistics": statistics}
    return Model(release.certificate, body, architecture, None, summary)


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
