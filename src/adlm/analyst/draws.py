"""Labelled draws from a release, to train any network on, at no privacy cost.

Feature vectors are sampled from released statistics. The closed-form model labels them where it is more
accurate than the class of a draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from adlm.analyst.class_weights import class_weights, with_class_weights
from adlm.analyst.closed_form import closed_form_model, usable_head
from adlm.analyst.evidence import UNSURE, warning
from adlm.analyst.examples import Examples
from adlm.analyst.table_draws import draw_features, draw_without_labels
from adlm.analyst.training import TrainingConfig
from adlm.estimation.class_model import fit_class_model
from adlm.privacy.release import Release
from adlm.public.features import Features
from adlm.public.features.scaled_table import ScaledTable
from adlm.public.features.tables import IndicatorTable

# Share of the first of two mixed draws; fixed by the agreement of a network and the head on 6,000 training
# images of MNIST.
MIXED = (0.25, 0.75)
ABOUT_TARGET = ("target_mean", "target_sd", "warning")


def labelled_draws(
    release: Release, features: Features, n: int, plan: TrainingConfig
) -> tuple[Examples, dict[str, Any]]:
    """Draw n examples from a release of any kind but noisy records, with entries for a summary.

    Parameters
    ----------
    release : what is drawn from.
    features : its public features.
    n : how many.
    plan : gives the seed of the draws and the class weights of the labels.
    """
    generator = torch.Generator().manual_seed(plan.seed)
    if release.kind == "regression":
        return _with_target(release, features, n, generator)
    facts: dict[str, Any] = {}
    if release.kind == "moments":
        z, target = fit_class_model(release.moments(), features.prior).sample(n, generator)
        if plan.class_weight is not None:
            weights = torch.tensor(list(class_weights(release, plan.class_weight).values()))
            rows = torch.nn.functional.one_hot(target, len(weights)) * weights
            target = rows / weights[target].mean()
        wide = _wide(z, features)
    else:
        wide = _features(release, features, n, generator)
        target = _labels(release, features, wide, plan)
    if sentence := warning(release):  # draws of moments are not labelled by the head of the largest class
        facts["warning"] = UNSURE if release.kind == "moments" else sentence
    if plan.class_weight is not None:
        class_weight = plan.class_weight
        facts |= {
            "class_weight": class_weight if isinstance(class_weight, str) else "given",
            "class_weights": class_weights(release, class_weight),
        }
    return Examples(wide, target), facts


def _features(release: Release, features: Features, n: int, generator: torch.Generator) -> Tensor:
    if isinstance(features, ScaledTable):
        return _wide(draw_features(release, features, n, generator), features)
    drawn = _wide(_between_classes(release, features, n, generator), features)
    return features.possible(drawn) if isinstance(features, IndicatorTable) else drawn


def _between_classes(release: Release, features: Features, n: int, generator: torch.Generator) -> Tensor:
    """Mixes of two draws of the class model, (n, k).

    A draw lies near its class mean, where the head is confident and teaches little. Mixes lie near the
    decision boundaries.
    """
    drawn = fit_class_model(release.moments(), features.prior).sample(n, generator)[0]
    low, high = MIXED
    share = low + (high - low) * torch.rand(n, 1, generator=generator)
    return share * drawn + (1 - share) * drawn.roll(1, 0)


def _labels(release: Release, features: Features, wide: Tensor, plan: TrainingConfig) -> Tensor:
    """Class probabilities, (n, M), of the draws by the closed-form model, with class weights if any."""
    if plan.class_weight is None and release.kind == "rounds":
        head = usable_head(release, features)
        return head.logits(wide[:, : head.weight.shape[1]]).softmax(1).float()
    model = with_class_weights(closed_form_model(release, features), release, plan.class_weight)
    kind = next(model.head.parameters()).dtype
    with torch.inference_mode():
        return torch.as_tensor(model.head(wide.to(kind)).softmax(1).float()).clone()


def _wide(z: Tensor, features: Features) -> Tensor:
    """Draws of the first coordinates, padded with zeros: (n, width)."""
    wide = torch.zeros(len(z), features.width)
    wide[:, : z.shape[1]] = z
    return wide


def _with_target(
    release: Release, features: Features, n: int, generator: torch.Generator
) -> tuple[Examples, dict[str, Any]]:
    """Draws with the linear model's predictions, (n, 1), in standard deviations from the target's mean."""
    model = closed_form_model(release, features)
    facts = {name: model.training[name] for name in ABOUT_TARGET if name in model.training}
    low, high = release.certificate.domain.target or (-np.inf, np.inf)
    z = draw_without_labels(release, features, n, generator)
    with torch.inference_mode():
        values = model.head(z.double()).clamp(low, high)
    standard = (values - facts["target_mean"]) / facts["target_sd"]
    return Examples(z, standard.float().clone()), facts
