"""From a release to a model: in closed form, or by training any network on it."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import nn

from adlm.errors import NoisyModelWarning, UserError
from adlm.features import Features, declared
from adlm.model.closed_form import Weights, closed_form_model, with_class_weights
from adlm.model.draws import labelled_draws
from adlm.model.model import Model, in_units
from adlm.model.training import Checkpoint, TrainingConfig, default_plan, train
from adlm.paper import networks
from adlm.paper.training import model_on_records
from adlm.privacy.release import Release

DRAWS = 20_000


def fit(
    release: Release,
    network: str | nn.Module | None = None,
    plan: TrainingConfig | None = None,
    *,
    class_weight: Weights | None = None,
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
    network : a network by name, or any module. It takes the public features of the release, or the scaled
        records of a release of noisy records. None gives the linear model in closed form, or
        the network that a record release was made for.
    plan : how to train a network; by default `default_plan` of as many examples, as in `adlm train`.
    class_weight : weights of errors by class, at no privacy cost: public weights by name, or `balanced`, from
        released counts.
    provenance : of a module's initial weights: `public` when no private record had a part in them, else
        `private`. A certificate is about the release alone, so the model is stamped unless they are
        `public`.
    features : the features of the release, when they are a user-supplied backbone.
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
    origin = declared_origin(network, provenance)
    if release.kind == "records":
        if class_weight is not None:
            raise UserError(
                "class weights need classes that are known, and noisy records have none; omit them"
            )
        model = model_on_records(release, network, plan, device=device, checkpoint=checkpoint)
    elif network is None:
        model = closed_form_model(release, release.features(features))
        model = model if class_weight is None else with_class_weights(model, release, class_weight)
    else:
        taken, plan = release.features(features), plan or default_plan(draws)
        model = _on_draws(release, taken, network, plan, class_weight, draws, device, checkpoint)
    summary = dict(model.training) if origin is None else dict(model.training) | {"provenance": origin}
    if summary.get("warning"):
        warnings.warn(str(summary["warning"]), NoisyModelWarning, stacklevel=2)
    return replace(model, training=summary, release_signature=release.signature)


def declared_origin(network: str | nn.Module | None, provenance: str | None) -> str | None:
    """Return the declared provenance of a module's weights; None for a network that adlm builds."""
    if not isinstance(network, nn.Module):
        if provenance is not None:
            raise UserError("provenance is for a user-supplied module; leave it out for a network by name")
        return None
    return "undeclared" if provenance is None else declared(provenance, "the network")


def _on_draws(
    release: Release,
    features: Features,
    network: str | nn.Module,
    plan: TrainingConfig,
    class_weight: Weights | None,
    draws: int,
    device: str,
    checkpoint: Checkpoint | None,
) -> Model:
    """Train a network on labelled draws of the features."""
    certificate = release.certificate
    outputs = len(certificate.domain.classes) if certificate.domain.target is None else 1
    head, architecture = networks.initialised(network, (features.width,), outputs, plan.seed)
    _check_shapes(head, features.width, outputs)
    examples, facts = labelled_draws(release, features, draws, seed=plan.seed, class_weight=class_weight)
    digest = certificate.digest
    history = train(head, examples, plan, device=device, checkpoint=checkpoint, identity=digest)
    if certificate.domain.target is not None:
        head = in_units(head, float(facts["target_mean"]), float(facts["target_sd"]))
    return Model(certificate, head, architecture, features, history.summary(architecture, plan) | facts)


def _check_shapes(network: nn.Module, width: int, outputs: int) -> None:
    """Refuse a network that does not take what a release gives, before it is trained."""
    was, found = network.training, None
    try:
        with torch.no_grad():
            found = tuple(network.eval()(torch.zeros(2, width)).shape)
        why = f"yours gives {found}" if found != (2, outputs) else ""
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        why = f"yours failed on it: {str(error).splitlines()[0]}"
    finally:
        network.train(was)
    if why:
        raise UserError(
            f"this release gives vectors of {width} features, so a network must map (n, {width}) to "
            f"(n, {outputs}), and {why}; a network of images trains on noisy records: adlm.paper.train"
        )
