"""Public class weights, applied to a trained model at no privacy cost.

A classifier that is trained with weights w_c on a loss of log probabilities has logits that are larger by
log w_c than one trained without. So weights need no new release: they shift the biases of a release's model,
and so the labels of the draws that a network is trained on. `balanced` takes them from counts that were
released and charged already, never from records. Where class means are known, the biases make all scores
equal half-way between them. The clip of gradient rounds shrinks scores, which log shares would not correct.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from adlm.analyst.closed_form import closed_form
from adlm.analyst.evidence import UNSURE
from adlm.analyst.model import Model
from adlm.errors import UserError
from adlm.estimation.class_counts import class_offsets
from adlm.estimation.shrinkage import class_means
from adlm.privacy.release import Release

BALANCED = "balanced"
Weights = Mapping[str, float] | str


def parse_class_weight(text: str) -> Weights:
    """Read `balanced`, or `NAME=WEIGHT,NAME=WEIGHT`."""
    if text == BALANCED:
        return BALANCED
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = part.rpartition("=")
        try:
            weights[name.strip()] = float(weight)
        except ValueError:
            equals = ""
        if not equals:
            raise UserError(
                f"class weights are {BALANCED}, or NAME=WEIGHT for some classes with commas between (got "
                f"{text!r})"
            )
    return weights


def class_weights(release: Release, given: Weights) -> dict[str, float]:
    """Return a weight for each class.

    Parameters
    ----------
    given : weights by class name, 1 for a class that is not named; or `balanced`, n / (M n_c) by the
        released counts n_c, in which a class has at least a fiftieth of a uniform share.
    """
    names = release.certificate.domain.classes
    if not names:
        raise UserError("class weights are for classes, and this release has a numeric target; omit them")
    if isinstance(given, str):
        if given != BALANCED:
            raise UserError(f"class weights are {BALANCED!r} or a weight for each name (got {given!r})")
        shares = [math.exp(share) for share in _log_shares(release)]
        return {name: 1 / (len(names) * share) for name, share in zip(names, shares, strict=True)}
    by_name = {str(name): weight for name, weight in given.items()}
    for name, weight in by_name.items():
        if name not in names:
            raise UserError(f"there is no class {name!r} to weigh; the classes are {', '.join(names)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise UserError(f"the weight of class {name!r} must be a positive number (got {weight!r})")
    return {name: float(by_name.get(name, 1.0)) for name in names}


def with_class_weights(model: Model, release: Release, given: Weights | None) -> Model:
    """Return a model with class weights, at no privacy cost. None changes nothing."""
    if given is None:
        return model
    weights = class_weights(release, given)
    if not isinstance(model.head, nn.Linear):
        raise UserError(
            "the class weights of a network go into its plan: fit(release, network, TrainingConfig(..., "
            "class_weight=...))"
        )
    head = nn.Linear(model.head.in_features, model.head.out_features, dtype=model.head.weight.dtype)
    summary = dict(model.training)
    with torch.no_grad():
        head.weight.copy_(model.head.weight)
        if given == BALANCED and release.kind in ("moments", "rounds"):
            # Also for a model that was replaced by the largest class: plain accuracy is not the goal here.
            weight = closed_form(release, release.features(model.features)).weight
            middle = class_means(release.moments()).mean(0)  # equal weight for every class
            head.weight.zero_()
            head.weight[:, : weight.shape[1]] = weight.to(head.weight.dtype)
            head.bias.copy_(-(weight.double() @ middle[: weight.shape[1]]))
            if summary.get("warning"):
                summary["warning"] = UNSURE
        else:
            head.bias.copy_(model.head.bias + torch.tensor([math.log(w) for w in weights.values()]))
    summary |= {
        "class_weight": given if isinstance(given, str) else "given",
        "class_weights": {name: float(f"{w:.6g}") for name, w in weights.items()},
    }
    return replace(model, head=head, training=summary)


def _log_shares(release: Release) -> list[float]:
    """Log class shares from released counts."""
    tensors = release.tensors
    if "prior" in tensors:
        return [float(v) for v in tensors["prior"]]
    if "class_sums" not in tensors:
        raise UserError(
            "balanced class weights come from released counts, and this release has none; give a weight for "
            "each class from public shares"
        )
    spread = float(release.certificate.settings.get("sd_sums", 0.0))
    return [float(v) for v in class_offsets(tensors["class_sums"][:, 0].numpy(), spread)]
