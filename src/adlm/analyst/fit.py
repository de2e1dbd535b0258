"""From a release to a model: in closed form, or by training any network on it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from adlm.analyst.checkpoint import Checkpoint
from adlm.analyst.closed_form import closed_form_model
from adlm.analyst.draws import labelled_draws
from adlm.analyst.model import Model
from adlm.analyst.training import TrainingConfig, default_plan
from adlm.errors import NoisyModelWarning, UserError
from adlm.paper import networks
from adlm.paper.training import model_on_records, train_on_examples, training_summary
from adlm.privacy.release import Release
from adlm.public.features import Features, declared

DRAWS = 20_000


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
    origin = declared_origin(network, provenance)
    model = _made(release, network, plan, features, draws, device, checkpoint)
    summary = dict(model.training) if origin is None else dict(model.training) | {"provenance": origin}
    warn_of_noise(summary, stacklevel=3)
    return replace(model, training=summary, release_signature=release.signature)


def warn_of_noise(training: Mapping[str, Any], *, stacklevel: int) -> None:
    """Warn with the sentence that a model's training summary has, if it has one."""
    if training.get("warning"):
        warnings.warn(str(training["warning"]), NoisyModelWarning, stacklevel=stacklevel)


def declared_origin(network: str | nn.Module | None, provenance: str | None) -> str | None:
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
    if release.kind == "records":
        return model_on_records(release, network, plan, device=device, checkpoint=checkpoint)
    taken = release.features(features)
    if network is None:
        return closed_form_model(release, taken)
    return _on_draws(release, taken, network, plan or default_plan(draws), draws, device, checkpoint)


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
    head, architecture = networks.initialised(network, (features.width,), outputs, plan.seed)
    history = train_on_examples(release, head, examples, plan, device=device, checkpoint=checkpoint)
    if target is not None:
        head = networks.in_units(head, float(facts["target_mean"]), float(facts["target_sd"]))
    return Model(
        release.certificate,
        head,
        architecture,
        features,
        training_summary(architecture, plan, history) | facts,
    )
