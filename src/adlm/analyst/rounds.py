"""The linear model of a release: recomputed from its gradients, or read from its perturbed loss."""

from __future__ import annotations

import numpy as np

from adlm.errors import UserError
from adlm.estimation.class_counts import class_offsets, plausible_counts
from adlm.estimation.gradient_head import (
    RESIDUAL_UNIT,
    GradientRounds,
    Head,
    calibrated,
    calibration_spread,
    feature_mean,
    final_head,
    objective_head,
)
from adlm.privacy.release import Release


def has_rounds(release: Release) -> bool:
    """Whether a release has a linear model: that of gradient rounds or of a perturbed loss."""
    return "gradients" in release.tensors or "weights" in release.tensors


def rounds_head(release: Release) -> Head:
    """Return the linear model of a release, bit for bit the one that its check counted."""
    if not has_rounds(release):
        raise UserError("this release has no gradient rounds; its model comes from its moments")
    if "weights" in release.tensors:
        settings = release.certificate.settings
        counts = release.tensors["class_sums"][:, 0].numpy()
        offsets = class_offsets(counts, float(settings["sd_sums"]))
        constant = float(settings["objective"]["constant"])
        return objective_head(release.tensors["weights"].numpy(), offsets, constant)
    plan = GradientRounds.from_dict(release.certificate.settings["rounds"])
    sums, step = release.tensors["class_sums"].numpy(), release.tensors["step"].numpy()
    counts, settings = sums[:, 0], release.certificate.settings
    sd = float(settings["sd_sums"])
    offsets = class_offsets(counts, sd)
    head = final_head(release.tensors["gradients"].numpy(), plan, offsets)
    if "predicted" in release.tensors:
        spread = calibration_spread(sd * float(step[0]), float(settings["sd_predicted"]))
        known = plausible_counts(counts, sd).astype(np.float64) * float(step[0])
        for row in release.tensors["predicted"].numpy():
            head = calibrated(head, known, row / RESIDUAL_UNIT, spread)
    return head.uncentred(feature_mean(sums, step, sd)) if plan.centred else head
