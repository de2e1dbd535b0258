"""The linear model of a release, with classes or a numeric target."""

from __future__ import annotations

import torch

from adlm.analyst import regression
from adlm.analyst.evidence import (
    below_majority_baseline,
    estimated_accuracy,
    log_shares,
    majority_class_head,
    warning,
)
from adlm.analyst.model import Model
from adlm.analyst.rounds import has_rounds, rounds_head
from adlm.estimation import discriminant
from adlm.privacy.release import Release
from adlm.public.features import Features

LINEAR = "linear, in closed form"
ROUNDS = "linear, by gradient rounds"
OBJECTIVE = "linear, from the loss perturbed once"


def closed_form_model(release: Release, features: Features) -> Model:
    """Make the model of a release of any kind but noisy records."""
    if release.kind == "regression":
        return regression.train(release)
    return _linear(release, features)


def _linear(release: Release, features: Features) -> Model:
    head = usable_head(release, features)
    summary: dict[str, object] = {"network": _name(release), "epochs": 0}
    if (accuracy := estimated_accuracy(release)) is not None:
        summary |= {"estimated_accuracy": accuracy[0], "estimated_accuracy_sd": accuracy[1]}
    if sentence := warning(release):
        summary["warning"] = sentence
    linear = head.module(features.width)
    return Model(release.certificate, linear, {"kind": "linear"}, features, summary)


def _name(release: Release) -> str:
    if "weights" in release.tensors:
        return OBJECTIVE
    return ROUNDS if has_rounds(release) else LINEAR


def usable_head(release: Release, features: Features) -> discriminant.LinearHead:
    """The linear classifier of a release; the majority class where noise dominates."""
    head = closed_form(release, features)
    if not below_majority_baseline(release):
        return head
    shares = log_shares(release)
    ahead = (head.weight - head.weight[int(shares.argmax())]).norm(dim=1)  # over rows of length 1
    return majority_class_head(head, shares, ahead)


def closed_form(release: Release, features: Features) -> discriminant.LinearHead:
    """The linear classifier of a release: the head of its gradient rounds, or that of its moments."""
    if has_rounds(release):
        head = rounds_head(release)
        return discriminant.LinearHead(torch.from_numpy(head.weight), torch.from_numpy(head.bias))
    return discriminant.fit(release.moments(), features.prior)
