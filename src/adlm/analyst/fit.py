"""From a release to a model: in closed form, or by training any network on it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction

import torch
from torch import nn

from adlm.analyst import networks
from adlm.analyst.checkpoint import Checkpoint
from adlm.analyst.closed_form import closed_form_model
from adlm.analyst.draws import labelled_draws
from adlm.analyst.layer_sizes import perturb_bias
from adlm.analyst.model import AVERAGES, TOGETHER_STATISTICS, Model
from adlm.analyst.on_records import train_on_examples, train_on_records
from adlm.analyst.training import History, TrainingConfig, default_plan
from adlm.analyst.unsupervised import EPOCHS, Unsupervised
from adlm.errors import NoisyModelWarning, UserError
from adlm.privacy.release import Release
from adlm.public.features import Features, declared

DRAWS = 20_000
LITTLE_NOISE = 0.05  # in ranges of a feature


def fit(
    release: Release,
    network: str | nn.Module | None = None,
    plan: TrainingConfig | None = None,
    *,
    provenance: str | None = None,
    features: Features | None = None,
    draws: int = DRAWS,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
) -> Model:
    """Make a model from a release alone; its certificate is the release's, whatever is done here.

    Parameters
    ----------
    release : noisy numbers and their certificate; the records are not needed.
    network : a network by name, or any module. It takes the features of a moment release, or the scaled
        records of a record release. None gives the linear classifier of a moment release in closed form, or
        the network that a record release was made for.
    plan : how to train a network; by default `default_plan` of as many examples, as in `adlm train`.
    provenance : of a module's initial weights: `public` when no private record had a part in them, else
        `private`. A certificate is about the release alone, so the model is stamped unless they are
        `public`.
    features : the features of a moment release, when they are a user-supplied backbone.
    draws : how many labelled vectors to draw from released moments for a network.
    device : `auto`, `cpu`, `cuda` or `mps`.
    checkpoint : file that saves the training of a network after each epoch, and whether to resume from it.

    Returns
    -------
    The model. `model.training` describes its training, and warns where noise dominates.

    Raises
    ------
    UserError : the network does not fit the features or the classes, the features are not the release's, a
        setting is for another kind of release, or training gave no finite loss.

    Warns
    -----
    NoisyModelWarning : when the release itself cannot show that the model is better than the largest class.

    Examples
    --------
    >>> import numpy as np
    >>> from adlm import Domain, fit, privatise
    >>> x, y = np.eye(2).repeat(50, 0), np.arange(100) // 50
    >>> release = privatise(x, y, Domain((2,), 0, 1, ("no", "yes")), epsilon=8, seed=1)
    >>> fit(release).predict([[1, 0], [0, 1]])
    array([0, 1])
    >>> fit(release, "mlp", draws=500).certificate == release.certificate
    True
    """
    origin = _origin(network, provenance)
    model = _made(release, network, plan, features, draws, device, checkpoint)
    summary = dict(model.training) if origin is None else dict(model.training) | {"provenance": origin}
    if summary.get("warning"):
        warnings.warn(str(summary["warning"]), NoisyModelWarning, stacklevel=2)
    return replace(model, training=summary, release_signature=release.signature)


def _origin(network: str | nn.Module | None, provenance: str | None) -> str | None:
    """Return the declared provenance of a module's weights; None for a network that adlm builds."""
    if not isinstance(network, nn.Module):
        if provenance is not None:
            raise UserError("provenance is for a user-supplied module; leave it out for a network by name")
        return None
    return "undeclared" if provenance is None else declared(provenance, "the network")


def _made(
    release: Release,
    network: str | nn.Module | None,
    plan: TrainingConfig | None,
    features: Features | None,
    draws: int,
    device: str,
    checkpoint: Checkpoint | None,
) -> Model:
    if release.kind != "records":
        taken = release.features(features)
        if network is None:
            return closed_form_model(release, taken)
        plan = plan or default_plan(draws)
        return _on_draws(release, taken, network, plan, draws, device, checkpoint)
    if network is None:
        network = network_of(release)
    plan = plan or default_plan(len(release.tensors["x"]))
    if plan.class_weight is not None:
        raise UserError("class weights need classes that are known, and noisy records have none; omit them")
    return _on_records(release, network, plan, device, checkpoint)


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
    body = _network(network, domain.shape, len(domain.classes), seed)[0]
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


def _on_draws(
    release: Release,
    features: Features,
    network: str | nn.Module,
    plan: TrainingConfig,
    draws: int,
    device: str,
    checkpoint: Checkpoint | None,
) -> Model:
    target = release.certificate.domain.target
    examples, facts = labelled_draws(release, features, draws, plan)
    outputs = len(release.certificate.domain.classes) if target is None else 1
    head, architecture = _network(network, (features.width,), outputs, plan.seed)
    history = train_on_examples(release, head, examples, plan, device=device, checkpoint=checkpoint)
    if target is not None:
        head = networks.in_units(head, float(facts["target_mean"]), float(facts["target_sd"]))
    return Model(
        release.certificate, head, architecture, features, _summary(architecture, plan, history) | facts
    )


def _on_records(
    release: Release,
    network: str | nn.Module,
    plan: TrainingConfig,
    device: str,
    checkpoint: Checkpoint | None,
) -> Model:
    domain = release.certificate.domain
    body, architecture = _network(network, domain.shape, len(domain.classes), plan.seed)
    history = train_on_records(release, body, plan, device=device, checkpoint=checkpoint)
    # Averages over noisy records do not suit clean ones unless the noise is small.
    statistics = TOGETHER_STATISTICS if noise_scale(release) > LITTLE_NOISE else AVERAGES
    summary = _summary(architecture, plan, history) | {"statistics": statistics}
    return Model(release.certificate, body, architecture, None, summary)


def _network(
    network: str | nn.Module, shape: tuple[int, ...], classes: int, seed: int
) -> tuple[nn.Module, dict[str, object]]:
    if isinstance(network, nn.Module):
        return network, {"kind": "custom", "name": type(network).__name__, "shape": list(shape)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = networks.build(network, shape, classes)
    return built, {"kind": "network", "name": network, "shape": list(shape)}


def _summary(architecture: dict[str, object], plan: TrainingConfig, history: History) -> dict[str, object]:
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
